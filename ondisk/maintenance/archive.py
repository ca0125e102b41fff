"""Archive and unarchive: move segments from the dataset to its archive, and back.

A move commits the segment to its new place first, and then drops it from the old one. If a crash comes between, both
contain it: queries skip one of them (see `ondisk.dataset.archives`), and `settle` drops it from the dataset.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from functools import partial

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.overlap import common, in_both
from ondisk.errors import (
    AuthenticationFailed,
    KeyMissing,
    LockError,
    OndiskError,
    SegmentCorrupt,
    SegmentMissing,
    StateError,
    command,
)
from ondisk.formats.diskqueue.state import NAME
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.check import wrong_with
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.inspect import UNREAD, Inspection, check_trusted
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.known import all_known
from ondisk.maintenance.second_copy import is_second_copy, is_verified, remove_copy
from ondisk.maintenance.segment_kind import Move
from ondisk.maintenance.single_copies import keep_single_copies
from ondisk.maintenance.states import Diagnosis, Done, Report, State
from ondisk.segments.facts import changed

_POLL = 0.01  # seconds
UNMOVABLE = State.CORRUPTED | State.MISSING | State.UNALIGNED | State.DELETED
"""The states of segments that cannot be moved."""


def archive(access: DatasetAccess, names: Iterable[str]) -> list[Done]:
    """Move segments to `.archive/last`, whatever their age.

    Raises:
        SegmentMissing: the index does not know the segment.
        StateError: the segment is in a state of `UNMOVABLE`, or its data must be merged with a damaged segment.
        NeedsCheck: an index was lost, and may not know all data.
        OndiskError: every error ends the work; `error.context["report"]` contains the segments moved before it.

    Durability: the archive commits, then the dataset; at every moment, every datum is in at least one of them.
    Locks: takes the writers' lock for each segment.
    """
    with _reporting(access) as done:
        before = _known_before(access)
        for name in names:
            archived(access, name, done, before.get(name))
    return done


def planned(dataset: DatasetAccess, names: Iterable[str], verb: str) -> list[Done]:
    """Return what `archive` or `unarchive` would do, and change nothing.

    Raises:
        As these, if they are certain to: `error.context["report"]` contains the segments that would be moved before it.
    """
    with _reporting(dataset) as done:
        last = dataset.archives.last()
        if verb == "unarchive":
            dataset.archives.check_last()
        source, target = (dataset, last) if verb == "archive" else (last or dataset, dataset)
        for place in (source, target):
            if place is not None:
                check_trusted(place)
        before = _known_before(source)
        for name in names:
            inner = name.removeprefix(source.prefix)
            if verb == "unarchive" and last is None:
                raise _no_archive(dataset, name)
            if verb == "unarchive":
                _check_not_consumed(dataset, source.prefix + inner)
            if source is dataset and last is not None and inner not in before and is_second_copy(source, inner, last):
                done.append(Done(inner, State.OK, (), verb))  # see `_finish`
                continue
            diagnosis, _ = _movable(source, inner, before.get(inner))
            if target is not None:
                _check_whole(target, inner)
            done.append(Done(source.prefix + inner, diagnosis.state, diagnosis.reasons, verb))
    return done


@contextlib.contextmanager
def _reporting(access: Access) -> Iterator[list[Done]]:
    """Yield a list for the results of the block; if an error ends the block, attach a report of them to it."""
    done: list[Done] = []
    try:
        yield done
    except OndiskError as error:
        error.context["report"] = Report(str(access.path), segments=[*done])
        raise


def archived(access: DatasetAccess, name: str, done: list[Done], before: Known | None = None) -> Done:
    """Move one segment to `.archive/last`, and merge it with a segment of the same name there.

    Args:
        done: gets the result as soon as it is committed, also if the disk fails after the commit.
        before: as for `Inspection.examine`; None if all segments were diagnosed just before.
    """
    archives = access.archives
    there = archives.last()
    if there is not None and _finish(access, there, name):
        done.append(Done(name, State.OK, (), "archive"))
        return done[-1]
    for place in (access, there):
        if place is not None and not place.needs_check():
            keep_single_copies(place, archives, name, "archive")
    with access.transaction("archive") as transaction:
        check_trusted(access)
        last = archives.make_last()
        check_trusted(last)
        archives.complete_deletes()
        _remove_unknown_copy(last, name, access)
        diagnosis, segment = _movable(access, name, before)
        _check_whole(last, name)
        with access.current().index.snapshot() as snapshot:
            count = segment_rows.count_of(snapshot, segment)
        move = _move(access, last, segment)
        with last.transaction("archive") as of_archive:
            move.copy(of_archive)
            of_archive.check_space()
            of_archive.commit()
        transaction.advance_seq(of_archive.seq)
        transaction.know_archive(archives.record.with_moved(last, count))
        size = _drop(access, transaction, segment, may_keep=move.is_apart)
        done.append(Done(name, diagnosis.state, diagnosis.reasons, "archive", 0 if move.is_linked else size))
    return done[-1]


def unarchive(access: DatasetAccess, names: Iterable[str]) -> list[Done]:
    """Move segments of `.archive/last` back to the dataset.

    Raises:
        SegmentMissing: the archive does not know the segment.
        StateError, NeedsCheck: as `archive`; also if it is a queue that has a consumer.
        LockError: queries that began earlier take too long. The data are safe, and the next repack archives them again.
        OndiskError: every error ends the work; `error.context["report"]` contains the segments moved before it.

    Durability: the dataset commits; then, when nobody reads an older snapshot of the dataset, the archive commits.
    Locks: takes the writers' locks of dataset and archive for each segment.
    """
    with _reporting(access) as done:
        access.archives.check_last()
        last = access.archives.last()
        before = {} if last is None else _known_before(last)
        for name in names:
            if last is None:
                raise _no_archive(access, name)
            inner = name.removeprefix(last.prefix)
            for place in (last, access):
                if not place.needs_check():
                    keep_single_copies(place, access.archives, inner, "unarchive")
            with access.transaction("unarchive") as transaction, last.transaction("unarchive") as of_archive:
                check_trusted(access)
                check_trusted(last)
                _check_not_consumed(access, last.prefix + inner)
                _, segment = _movable(last, inner, before.get(inner))
                _check_whole(access, inner)
                move = _move(last, access, segment)
                move.copy(transaction)
                transaction.after_commit(partial(_drop_unread, access, last, of_archive, segment, move.is_apart))
                transaction.commit()
                done.append(Done(last.prefix + inner, State.OK, (), "unarchive"))
        access.archives.record.update(recount=True)
    return done


def settle(access: DatasetAccess) -> None:
    """Finish what a crash interrupted: deletes of archived data, and moves of segments.

    Locks: takes the writers' lock only if there is something to do.
    """
    if access.archives.has_pending():
        with access.locked("delete"):
            access.archives.complete_deletes()
    last = access.archives.last()
    if last is None:
        return
    with access.current().index.snapshot() as main, last.current().index.snapshot() as there:
        both = _moved(main, there)
    for name in both:
        # Both files stay. A check reports what is wrong, and an opening with the keys tries again.
        with contextlib.suppress(SegmentCorrupt, KeyMissing, AuthenticationFailed):
            _finish(access, last, name)


def _finish(access: Access, last: Access, name: str) -> bool:
    """Finish a move to the archive that a crash interrupted; data appended to the segment since then stay.

    Returns:
        Whether there was such a move, and the whole segment is in the archive now.

    Raises:
        SegmentCorrupt: its data cannot be read from the archive, or not with the same bytes. Nothing was dropped.
    """
    if _remove_unknown_copy(access, name, last):  # a crash came before its files were removed
        return True
    with access.transaction("archive") as transaction:
        with access.current().index.snapshot() as main, last.current().index.snapshot() as there:
            segment, other = main.segment_named(name), there.segment_named(name)
            if segment is None or other is None:
                return False
            count = sum(1 for _ in common(main, there, segment, other))
            if not count:
                return False
            is_equal = is_verified(access.current(), main, segment, last.current(), there, other)
            # If only the file in the dataset is damaged, the archive's has all that is left of it, and all data.
            if not is_equal and not (is_second_copy(access, name, last) and wrong_with(last, name) is None):
                hint = f"{command('check', access.path, '--accurate')} reports what is wrong with it."
                message = f"{last.path / name} differs from {access.path / name}, though a move began to replace that"
                raise SegmentCorrupt(message, hint=hint, segment=last.prefix + name)
            is_whole = count == segment_rows.count_of(main, segment)
            if not is_whole:
                transaction.drop_rows(common(main, there, segment, other))
        if is_whole:  # into a folder, the move may have merged them
            _drop(access, transaction, segment, may_keep=kind_of(access.format(segment.format)).is_one_file)
        else:
            transaction.commit()
        return is_whole


def _remove_unknown_copy(access: Access, name: str, other: Access) -> bool:
    """Remove a second copy of a segment that the index does not know, and return whether there was one.

    It stays while a query may read it, which began before the segment was archived; a fix and a repack remove it later.
    """
    with access.locked("archive"):
        with access.current().index.snapshot() as snapshot:
            is_known = snapshot.segment_named(name) is not None
        if is_known or access.directory.stat(name) is None or not is_second_copy(access, name, other):
            return False
        check_trusted(access)
        if access.current().index.checkpoint():
            remove_copy(access, name)
    return True


def _moved(main: Snapshot, archive: Snapshot) -> list[str]:
    """Return the names of the segments whose data are in both."""
    return [archive.segment(id_).name for id_ in dict.fromkeys(id_ for id_, _, _ in in_both(main, archive))]


def _known_before(access: Access) -> dict[str, Known]:
    """Return what the index knows about all segments, including data with reftimes outside their segment's interval."""
    with access.current().index.snapshot() as snapshot:
        return {each.segment.name: each for each in all_known(access, snapshot)}


def _movable(access: Access, name: str, before: Known | None) -> tuple[Diagnosis, Segment]:
    """Return the diagnosis of a segment, and its row; raise unless it can be moved."""
    with access.current().index.snapshot() as snapshot:
        diagnosis, known = Inspection(access).examine(snapshot, name, before)
    if diagnosis is not None and diagnosis.error is not None and diagnosis.is_denied:
        raise diagnosis.error
    if diagnosis is None or known is None or diagnosis.state & UNMOVABLE:
        raise _refused(access, name, diagnosis, "moved")
    if diagnosis.consumed or diagnosis.unread:
        why = diagnosis.reasons[0] if diagnosis.consumed else UNREAD
        raise StateError(f"{access.path / name} cannot be moved: {why}")
    if diagnosis.is_touched and kind_of(access.format(known.segment.format)).is_one_file:
        file = access.current().reader.file_of(known.segment)
        if access.committed(known.segment).is_whole_in(file) is False:
            raise changed(access.directory, name)
    return diagnosis, known.segment


def _check_not_consumed(access: Access, name: str) -> None:
    """Raise if a segment would come back to a queue that has a consumer.

    That may be after its number, and remove it unread; or have read a part of a newer segment of this number, with
    which it would be merged in the order of time.
    """
    if access.config.is_sequence and access.directory.stat(NAME) is not None:
        path = access.path / name
        hint = (
            f"Queries find its data in the archive. To consume them again: {command('append', 'ANOTHER-QUEUE', path)}."
            f" If this queue has no consumer any more, remove {NAME}."
        )
        problem = "the queue has a consumer, which would not read it, or not in its order"
        raise StateError(f"{path} cannot be moved: {problem}", hint=hint)


def _check_whole(access: Access, name: str) -> None:
    """Raise if a segment is damaged, or its data are missing: a merge would lose those that cannot be read now."""
    with access.current().index.snapshot() as snapshot:
        diagnosis, known = Inspection(access).examine(snapshot, name)
    if diagnosis is None or known is None:
        return
    if State.CORRUPTED in diagnosis.state or (State.MISSING in diagnosis.state and known.count):
        raise _refused(access, name, diagnosis, "merged")


def _no_archive(access: Access, name: str) -> SegmentMissing:
    return SegmentMissing(f"{access.path} has no archive", hint="Nothing was archived yet.", segment=name)


def _refused(access: Access, name: str, diagnosis: Diagnosis | None, verb: str) -> OndiskError:
    if diagnosis is None:
        hint = f"{command('check', access.dataset_path, '--all')} lists the segments."
        return SegmentMissing(f"{access.path} has no segment {name!r}", hint=hint, segment=name)
    hint = f"{command('check', access.dataset_path)} reports what mends it."
    states = ", ".join(diagnosis.state.names)
    return StateError(f"{access.path / name} cannot be {verb}: it is {states}: {diagnosis.reasons[0]}", hint=hint)


def _move(source: Access, target: Access, segment: Segment) -> Move:
    return kind_of(source.format(segment.format)).move(source, target, segment)


def _drop(access: Access, transaction: Transaction, segment: Segment, *, may_keep: bool) -> int:
    """Drop a segment that is in another dataset now; see `SegmentKind.drop_moved`."""
    return kind_of(access.format(segment.format)).drop_moved(access, transaction, segment, may_keep=may_keep)


def _drop_unread(access: Access, last: Access, of_archive: Transaction, segment: Segment, may_keep: bool) -> None:
    """Drop a segment from the archive, after all queries that do not see it in the dataset yet have ended."""
    deadline = time.monotonic() + access.config.lock_timeout
    while not access.current().index.checkpoint():
        if time.monotonic() >= deadline:
            hint = "Try again when these queries have ended."
            raise LockError(f"{access.path}: older queries did not end in {access.config.lock_timeout} s", hint=hint)
        time.sleep(_POLL)
    _drop(last, of_archive, segment, may_keep=may_keep)
