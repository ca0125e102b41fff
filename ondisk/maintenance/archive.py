"""Archive and unarchive: segments are moved from the dataset to its archive, and back.

The place a segment is moved to gets it first, in one commit; then it is dropped where it was. Killed between, both hold
it: who asks leaves one out (see `ondisk.dataset.archives`), and `settle` drops it from the dataset.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess, common, in_both, replaced
from ondisk.errors import (
    AlreadyExists,
    IndexCorrupt,
    LockError,
    OndiskError,
    SegmentMissing,
    StateError,
)
from ondisk.filesystem import Directory
from ondisk.index import INDEX, Row, Segment, Snapshot, Transaction, segment_rows
from ondisk.index.connection import RESTORE
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.dir_segments import remove
from ondisk.maintenance.inspect import Inspection, all_known, check_trusted
from ondisk.maintenance.states import Diagnosis, Done, Report, State
from ondisk.segment import End
from ondisk.segments import DirWriter, SegmentWriter, generations
from ondisk.segments.dir import open_directory
from ondisk.step import Interval

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
        move = _Move(access, last, segment)
        with last.transaction("archive") as incoming:
            move.copy(incoming)
            incoming.commit()
        transaction.advance_seq(incoming.seq)
        size = _drop(access, transaction, segment)
    return Done(name, diagnosis.state, diagnosis.reasons, "archive", 0 if move.is_whole else size)


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
                _Move(last, access, segment).copy(transaction)
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


def _drop(access: Access, transaction: Transaction, segment: Segment) -> int:
    """Remove a segment that stands elsewhere now; gives the bytes of its file."""
    directory, name = access.directory, segment.name
    if access.format(segment.format).is_dir:
        transaction.remove(segment, moved=True)
        transaction.commit()
        return remove(directory, name, set(), whole=True) if transaction.unread else 0
    generations.complete(directory, name, segment.id, segment.end.size)
    found = directory.stat(name)
    access.leave(name)
    if found is not None:
        generations.hide(directory, name, segment.id)
        transaction.on_rollback(lambda: _put_back(directory, segment))
    transaction.remove(segment, moved=True)
    transaction.commit()
    return 0 if found is None else found.st_size


def _put_back(directory: Directory, segment: Segment) -> None:
    """Undo the hiding of a segment's file; what fails here is done by the next opening for writing."""
    with contextlib.suppress(OndiskError):
        generations.complete(directory, segment.name, segment.id, segment.end.size)


def _drop_unread(access: Access, last: Access, outgoing: Transaction, segment: Segment) -> None:
    """Drop a segment from the archive when nobody reads a state of the dataset from before the segment's return."""
    deadline = time.monotonic() + access.config.lock_timeout
    while not access.current().index.checkpoint():
        if time.monotonic() >= deadline:
            hint = "Try again when they have ended."
            raise LockError(f"{access.path}: queries of an older state take too long to end", hint=hint)
        time.sleep(_POLL)
    _drop(last, outgoing, segment)


class _Move:
    """The move of one segment into another dataset's index and directory.

    Attributes:
        is_whole: its file is the same now, under another name.
    """

    def __init__(self, source: Access, target: Access, segment: Segment) -> None:
        self._source = source
        self._target = target
        self._segment = segment
        self._format = source.format(segment.format)
        self.is_whole = False

    def copy(self, transaction: Transaction) -> None:
        """Let the target have the segment, too: its bytes, and its rows in the index; the caller commits."""
        name = self._segment.name
        source = self._source.current()
        there = transaction.segments([name]).get(name)
        if self._format.is_dir:
            self._copy_files(transaction, there)
            return
        generations.complete(self._source.directory, name, self._segment.id, self._segment.end.size)
        target = self._target.directory
        with contextlib.ExitStack() as stack:
            snapshot = stack.enter_context(source.index.snapshot())
            interval = segment_rows.interval_of(snapshot, self._segment)
            transaction.advance_seq(snapshot.dataset()["seq"])
            new = Segment(transaction.take_generation(), name, self._segment.format, self._segment.end)
            staged = [generations.hidden(name, new.id)]
            transaction.on_rollback(lambda: generations.discard(target, staged))
            self._insert(snapshot, transaction, new)
            if there is None:
                self._link(new)
                end, mtime = new.end, self._stat_mtime(name)
                transaction.save_blocks(new, segment_rows.blocks_of(snapshot, self._segment))
            else:
                behind = stack.enter_context(self._target.current().index.snapshot())
                staged.append(generations.hidden(name, there.id))
                end, mtime = self._merge(snapshot, behind, transaction, there, new, interval)
                transaction.supersede(there)
            transaction.save_segment(replace(new, end=end), interval, mtime)
        transaction.after_commit(lambda: generations.complete(target, name, new.id, end.size))
        self._target.leave(name)

    def _copy_files(self, transaction: Transaction, there: Segment | None) -> None:
        """Let the target have a dir segment, too: its files under numbers above those that it has."""
        name = self._segment.name
        writer = DirWriter(self._target.directory)
        transaction.on_rollback(writer.undo)
        if there is None:
            self._check_free(name)
        with self._source.current().index.snapshot() as snapshot:
            interval = segment_rows.interval_of(snapshot, self._segment)
            transaction.advance_seq(snapshot.dataset()["seq"])
            new = there or Segment(transaction.take_generation(), name, self._segment.format, End())
            start = writer.start(name, new.end, trusted=False)
            shift = start.end.length
            self._insert(snapshot, transaction, new, shift)
            placed = [
                offset for piece in transaction.pieces_of([new], interval, _PIECE) for _, _, _, offset, _ in piece
            ]
            numbers = sorted(offset - shift for offset in placed if offset >= shift)
            with open_directory(self._source.directory, name) as folder:
                self.is_whole = writer.adopt(name, start, folder, numbers, known=there is not None)
        writer.sync()
        transaction.save_segment(replace(new, end=writer.end(name)), interval, writer.mtime(name))

    def _insert(self, snapshot: Snapshot, transaction: Transaction, new: Segment, shift: int = 0) -> None:
        """Insert the rows, which keep their numbers; of data with equal unique fields the later one stays."""
        for rows in segment_rows.in_order_of_seq(snapshot, self._segment):
            fields = transaction.columns([snapshot.canonical(row[4:]) for _, row in rows])
            made = [(seq, row[0], new.id, row[2] + shift, row[3]) for seq, row in rows]
            if fields:
                made = list(map(tuple.__add__, made, zip(*fields, strict=True)))
            try:
                inserted = transaction.insert(made)
            except IndexCorrupt as error:
                raise self._same_numbers(error) from error
            if inserted == len(made):
                continue
            for row in made:
                other = transaction.duplicate_of(row)
                if other is not None and other[0] < row[0] and self._target.config.replace != "no":
                    transaction.replace(row, _ALL, None)

    def _same_numbers(self, error: IndexCorrupt) -> IndexCorrupt:
        paths = " and ".join(str(access.path / INDEX) for access in (self._source, self._target))
        message = f"{paths} give the same numbers to different data: one of them is damaged ({error.message})"
        return IndexCorrupt(message, hint=RESTORE, segment=self._segment.name)

    def _link(self, new: Segment) -> None:
        """Let the file stand in the target, under the hidden name of its generation there until that is committed."""
        name = new.name
        source, target = self._source.directory, self._target.directory
        self._check_free(name)
        place = generations.hidden(name, new.id)
        generations.discard(target, [place])
        try:
            self.is_whole = source.link(name, place, target)
            if not self.is_whole:  # it is on another filesystem
                file = source.open_to_read(name)
                with generations.stage(target, name, new.id) as copy:
                    copy.copy(file, 0, file.size(), 0)
                    copy.sync()
        except FileNotFoundError:
            raise SegmentMissing(f"{source.path / name} is not on disk", segment=name) from None
        target.sync(name.rpartition("/")[0])

    def _check_free(self, name: str) -> None:
        target = self._target.directory
        if target.stat(name) is not None:
            hint = f"Move it away, or `ondisk fix {self._target.path}`, which lets the index know it."
            raise AlreadyExists(f"{target.path / name} is there, and no index knows it", hint=hint)

    def _stat_mtime(self, name: str) -> int:
        found = self._source.directory.stat(name)
        return 0 if found is None else found.st_mtime_ns

    def _merge(
        self,
        snapshot: Snapshot,
        behind: Snapshot,
        transaction: Transaction,
        there: Segment,
        new: Segment,
        interval: Interval,
    ) -> tuple[End, int]:
        """Write the data of both, in query order, to a new generation of the target's segment."""
        format = self._format
        directory, name = self._target.directory, new.name
        readers = {there.id: (self._target.current().reader, behind), new.id: (self._source.current().reader, snapshot)}
        with generations.stage(directory, name, new.id) as staged:
            writer = SegmentWriter(format, staged, save_blocks=partial(transaction.save_blocks, new))
            for piece in transaction.pieces_of((there, new), interval, _PIECE):
                contents = {}
                for id_, (reader, its) in readers.items():
                    own = self._segment.id if id_ == new.id else id_
                    rows: list[Row] = [
                        (reftime, own, offset, size) for _, reftime, of, offset, size in piece if of == id_
                    ]
                    contents[id_] = reader.contents(its, rows) if rows else iter(())
                offsets = accumulate(format.extents(size for *_, size in piece), initial=writer.end.length)
                writer.add([next(contents[of]) for _, _, of, _, _ in piece])
                transaction.place((new.id, offset, seq) for (seq, *_), offset in zip(piece, offsets, strict=False))
            end = writer.seal()
            mtime = staged.stat().st_mtime_ns
        generations.complete(directory, name, there.id, there.end.size)
        generations.retire(directory, name, there.id)
        return end, mtime
