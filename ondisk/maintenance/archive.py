"""Archive and unarchive: segments are moved from the dataset to its archive, and back.

The place a segment is moved to gets it first, in one commit; then it is dropped where it was. Killed between, both hold
it: who asks leaves one out (see `ondisk.dataset.archives`), and `settle` drops it from the dataset.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from functools import partial

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess, common, in_both, replaced
from ondisk.errors import (
    LockError,
    OndiskError,
    SegmentMissing,
    StateError,
)
from ondisk.index import Segment, Snapshot, Transaction, segment_rows
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.inspect import Inspection, check_trusted
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.known import all_known
from ondisk.maintenance.segment_kind import Move
from ondisk.maintenance.states import Diagnosis, Done, Report, State

_ROWS = 10_000
_PIECE = 4 * 1024 * 1024  # bytes that are laid together
_POLL = 0.01  # seconds
_ALL = 2**63 - 1
UNMOVABLE = State.CORRUPTED | State.MISSING | State.UNALIGNED | State.DELETED
"""States of segments that stay where they are."""


def archive(access: DatasetAccess, names: Iterable[str]) -> list[Done]:
    """Move segments to `.archive/last`, however old they are.

    Raises:
        SegmentMissing: the index knows no such segment.
        StateError: it is damaged, or empty, or the index does not know all of it; or what it is to be merged with is
            damaged.
        NeedsCheck: an index was lost, and may not know all data.
        OndiskError: all of these end the work; `error.context["report"]` tells what was done before.

    Durability: the archive commits, then the dataset; every datum is in one of them at every moment.
    Locks: the writers' lock, for each segment anew.
    """
    with _reporting(access) as done:
        before = _known_before(access)
        for name in names:
            done.append(archived(access, name, before.get(name)))
    return done


@contextlib.contextmanager
def _reporting(access: Access) -> Iterator[list[Done]]:
    """Collect what is done, for the length of the block, and let an error that ends it tell of that."""
    done: list[Done] = []
    try:
        yield done
    except OndiskError as error:
        error.context["report"] = Report(str(access.path), segments=[*done])
        raise


def archived(access: DatasetAccess, name: str, before: Known | None = None) -> Done:
    """Move one segment to `.archive/last`; where that has data of the same name, they are merged.

    Args:
        before: as `examine` has it; None where all segments were diagnosed just before.
    """
    archives = access.archives
    there = archives.last()
    if there is not None and _end(access, there, name):
        return Done(name, State.OK, (), "archive")
    with access.transaction("archive") as transaction:
        check_trusted(access)
        last = archives.make_last()
        check_trusted(last)
        archives.delete_replaced()
        diagnosis, segment = _movable(access, name, before)
        _check_whole(last, name)
        move = _move(access, last, segment)
        with last.transaction("archive") as incoming:
            move.copy(incoming)
            incoming.commit()
        transaction.advance_seq(incoming.seq)
        size = _drop(access, transaction, segment)
    return Done(name, diagnosis.state, diagnosis.reasons, "archive", 0 if move.is_linked else size)


def unarchive(access: DatasetAccess, names: Iterable[str]) -> list[Done]:
    """Move segments of `.archive/last` back to the dataset.

    Raises:
        SegmentMissing: the archive knows no such segment.
        StateError, NeedsCheck: as `archive`.
        LockError: queries that began before took too long to end; what was moved is safe, and archived again later.
        OndiskError: all of these end the work; `error.context["report"]` tells what was done before.

    Durability: the dataset commits, then the archive, when nobody reads an older state of the dataset.
    Locks: the writers' lock, for each segment anew.
    """
    with _reporting(access) as done:
        last = access.archives.last()
        before = {} if last is None else _known_before(last)
        for name in names:
            if last is None:
                raise SegmentMissing(f"{access.path} has no archive", hint="Nothing was archived yet.", segment=name)
            inner = name.removeprefix(last.prefix)
            with access.transaction("unarchive") as transaction, last.transaction("unarchive") as outgoing:
                check_trusted(access)
                check_trusted(last)
                _, segment = _movable(last, inner, before.get(inner))
                _check_whole(access, inner)
                _move(last, access, segment).copy(transaction)
                transaction.after_commit(partial(_drop_unread, access, last, outgoing, segment))
                transaction.commit()
                done.append(Done(last.prefix + inner, State.OK, (), "unarchive"))
    return done


def settle(access: DatasetAccess) -> None:
    """End what a crash interrupted: drop from the dataset what its archive holds too, and from that what was replaced.

    Locks: taken only where there is something to do.
    """
    last = access.archives.last()
    if last is None:
        return
    with access.current().index.snapshot() as main, last.current().index.snapshot() as there:
        both, old = _moved(main, there), replaced(main, there)
    if old:
        with access.locked("archive"):
            access.archives.delete_replaced()
    for name in both:
        _end(access, last, name)


def _end(access: Access, last: Access, name: str) -> bool:
    """End a move that a crash interrupted; tells whether there was one and all of the segment is in the archive now.

    What others appended to the segment since then stays in the dataset.
    """
    with access.transaction("archive") as transaction:
        with access.current().index.snapshot() as main, last.current().index.snapshot() as there:
            segment, other = main.segment_named(name), there.segment_named(name)
            if segment is None or other is None:
                return False
            count = sum(1 for _ in common(main, there, segment, other))
            if not count:
                return False
            is_whole = count == segment_rows.count_of(main, segment)
            if not is_whole:
                transaction.take_back(common(main, there, segment, other))
        if is_whole:
            _drop(access, transaction, segment)
        else:
            transaction.commit()
        return is_whole


def _moved(main: Snapshot, archive: Snapshot) -> list[str]:
    """Name the segments of which both hold the same data."""
    return [archive.segment(id_).name for id_ in dict.fromkeys(id_ for id_, _, _ in in_both(main, archive))]


def _known_before(access: Access) -> dict[str, Known]:
    """Sum up all segments, also by data whose reftimes lie outside of theirs: these would not be moved with them."""
    with access.current().index.snapshot() as snapshot:
        return {each.segment.name: each for each in all_known(access, snapshot)}


def _movable(access: Access, name: str, before: Known | None) -> tuple[Diagnosis, Segment]:
    """Diagnose a segment, and refuse one that stays where it is."""
    with access.current().index.snapshot() as snapshot:
        diagnosis, known = Inspection(access).examine(snapshot, name, before)
    if diagnosis is None or known is None or diagnosis.state & UNMOVABLE:
        raise _unmovable(access, name, diagnosis)
    return diagnosis, known.segment


def _check_whole(access: Access, name: str) -> None:
    """Refuse a damaged segment as the place of others' data: merged, it would lose what cannot be read now."""
    with access.current().index.snapshot() as snapshot:
        diagnosis, known = Inspection(access).examine(snapshot, name)
    if diagnosis is not None and known is not None and State.CORRUPTED in diagnosis.state:
        raise _unmovable(access, name, diagnosis)


def _unmovable(access: Access, name: str, diagnosis: Diagnosis | None) -> OndiskError:
    if diagnosis is None:
        hint = "`ondisk check --all` names the segments there are."
        return SegmentMissing(f"{access.path} has no segment {name!r}", hint=hint, segment=name)
    hint = "`ondisk check` says what mends it."
    states = ", ".join(diagnosis.state.names)
    return StateError(f"{access.path / name} stays where it is: it is {states}: {diagnosis.reasons[0]}", hint=hint)


def _move(source: Access, target: Access, segment: Segment) -> Move:
    return kind_of(source.format(segment.format)).move(source, target, segment)


def _drop(access: Access, transaction: Transaction, segment: Segment) -> int:
    """Remove a segment that is in another dataset now; return the bytes of its files."""
    return kind_of(access.format(segment.format)).drop_moved(access, transaction, segment)


def _drop_unread(access: Access, last: Access, outgoing: Transaction, segment: Segment) -> None:
    """Drop a segment from the archive when nobody reads a state of the dataset from before the segment's return."""
    deadline = time.monotonic() + access.config.lock_timeout
    while not access.current().index.checkpoint():
        if time.monotonic() >= deadline:
            hint = "Try again when they have ended."
            raise LockError(f"{access.path}: queries of an older state take too long to end", hint=hint)
        time.sleep(_POLL)
    _drop(last, outgoing, segment)
