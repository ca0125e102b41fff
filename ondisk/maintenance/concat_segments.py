"""Concat segments in maintenance: each is one file, which changes by generations; see `ondisk.segments.generations`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import ClassVar

from ondisk.dataset.access import Access
from ondisk.errors import DiskFull, OndiskError, SegmentMissing
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.formats.base import is_zeros
from ondisk.index import Row, Segment, Snapshot, Transaction, segment_rows
from ondisk.maintenance.diagnosis import Circumstances, Known, OnDisk, diagnose
from ondisk.maintenance.known import lay_out
from ondisk.maintenance.rewrite import IndexPlaces, Written, lay
from ondisk.maintenance.segment_kind import Move, Rewriting, SegmentKind
from ondisk.maintenance.states import Diagnosis, Done, State
from ondisk.segment import End, ScanResult
from ondisk.segments import SegmentWriter, generations
from ondisk.segments.generations import hidden, stray, switched
from ondisk.step import Interval

_READ = "an older query may still read its old file; the next writer after that query frees the space"
_MERGED = 4 * 1024 * 1024  # bytes of data that are merged together


class ConcatSegments(SegmentKind):
    """See the module's docstring."""

    is_one_file: ClassVar[bool] = True

    def complete(self, directory: Directory, segment: Segment) -> None:
        generations.complete(directory, segment.name, segment.id, segment.end.size)

    def diagnose(
        self,
        directory: Directory,
        snapshot: Snapshot,
        name: str,
        known: Known | None,
        entry: Entry | None,
        at: Circumstances,
        format: Format,
    ) -> Diagnosis:
        if entry is None and known is not None:  # its first generation may wait to be promoted
            segment = known.segment
            if (found := switched(directory, name, segment.id, segment.end.size)) is not None:
                entry = Entry.of(hidden(name, segment.id).rpartition("/")[2], found)
        on_disk = None if entry is None else _look(directory, name, entry, known, format)
        if known is not None and known.count:
            if not known.is_laid_out:
                lay_out(snapshot, known, len(format.padding))
            known.needed = known.data_end
            if known.segment.end.compressed:
                known.needed = segment_rows.end_of_block_before(snapshot, known.segment, known.data_end)
        return diagnose(name, known, on_disk, at, format.begin().end.length)

    def scan(self, directory: Directory, name: str, format: Format, file: ReadableFile | None) -> Iterator[ScanResult]:
        assert file is not None
        return format.scan(file)

    def rewriting(self, access: Access, transaction: Transaction, known: Known) -> Rewriting:
        return _Rewriting(access, transaction, known)

    def drop(self, access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
        directory, name = access.directory, diagnosis.segment
        access.clean_up_later(name)
        found = None if State.MISSING in diagnosis.state else directory.stat(name)
        is_kept, lost = False, 0
        if known is not None:
            if found is not None:
                with contextlib.suppress(DiskFull):  # then its file stays until nobody reads it
                    generations.link_old(directory, name, known.segment.id)
                    is_kept = True
            lost = transaction.remove(known.segment, lost=State.MISSING in diagnosis.state)
        # Commit even if the index does not know the segment: `unread` then says whether an older snapshot knows it.
        transaction.commit()
        action = diagnosis.action
        if found is None:
            lost = lost if State.MISSING in diagnosis.state else 0
            return Done(name, diagnosis.state, diagnosis.reasons, action, 0, lost)
        if not is_kept and not transaction.unread:
            reason = "an older query may still read it; a repack after that query deletes it"
            return Done(name, diagnosis.state, (*diagnosis.reasons, reason), action if known is not None else None)
        if transaction.checkpoint_error is None:
            directory.discard(name)
            directory.sync(name.rpartition("/")[0])
        reasons = diagnosis.reasons
        if is_kept and not transaction.unread:
            return Done(name, diagnosis.state, (*reasons, _READ), action)
        return Done(name, diagnosis.state, reasons, action, freed_by(found))

    def drop_moved(self, access: Access, transaction: Transaction, segment: Segment) -> int:
        directory, name = access.directory, segment.name
        self.complete(directory, segment)
        found = directory.stat(name)
        access.clean_up_later(name)
        if found is not None:
            generations.move_old(directory, name, segment.id)
            transaction.on_rollback(lambda: _put_back(directory, segment))
        transaction.remove(segment, moved=True)
        transaction.commit()
        return 0 if found is None else found.st_size

    def move(self, source: Access, target: Access, segment: Segment) -> Move:
        return _Move(source, target, segment)


def freed_by(unlinked: os.stat_result) -> int:
    """Return the bytes that unlinking a file frees: none while somebody else, such as a backup, has a link to it."""
    return unlinked.st_size if unlinked.st_nlink == 1 else 0


def _look(directory: Directory, name: str, entry: Entry, known: Known | None, format: Format) -> OnDisk:
    """Return what is on disk; a committed generation that waits to be promoted counts as the segment."""
    if entry.kind != "file":
        return OnDisk(False, entry.size, entry.mtime)
    path, size, other = name, entry.size, None
    if known is not None and directory.stat(hidden(name, known.segment.id)) is not None:
        generation, committed = known.segment.id, known.segment.end.size
        other = stray(directory, name, generation, committed)
        if (waiting := switched(directory, name, generation, committed)) is not None:
            path, size = hidden(name, generation), waiting.st_size
    changed = max(entry.mtime, entry.ctime)  # a file that is moved or restored keeps its mtime
    found = OnDisk(True, size, changed, stray=other)
    if known is not None and known.count and size == known.segment.end.size:
        return found
    with contextlib.suppress(FileNotFoundError):
        file = directory.open_to_read(path)
        if known is None or not known.count:
            is_empty = format.is_empty(file)
            is_readable = is_empty or format.is_readable(file)
            return replace(
                found, is_empty=is_empty, is_readable=is_readable, is_zeros=not is_readable and is_zeros(file, 0)
            )
        end = known.segment.end
        seal = format.seal(end)
        if size == end.size + len(seal) and file.read(end.size, len(seal)) == seal:
            return replace(found, sealed=len(seal))
    return found


def _put_back(directory: Directory, segment: Segment) -> None:
    """Undo `move_old`; if this fails, the next opening for writing does it."""
    with contextlib.suppress(OndiskError):
        generations.complete(directory, segment.name, segment.id, segment.end.size)


class _Rewriting:
    """Rewrites one segment to its next generation, in query order."""

    def __init__(self, access: Access, transaction: Transaction, known: Known) -> None:
        self._access = access
        self._transaction = transaction
        self._known = known
        self._old = known.segment
        self._new = Segment(transaction.take_generation(), self._old.name, self._old.format, End())
        self._size = 0

    def write(self, snapshot: Snapshot, written: Written | None) -> ReadableFile | None:
        directory, transaction = self._access.directory, self._transaction
        reader = self._access.current().reader
        self._access.clean_up_later(self._old.name)
        # A rollback leaves the hidden name that `link_old` creates; a later writer removes it.
        alias = hidden(self._old.name, self._new.id)
        transaction.on_rollback(lambda: directory.discard(alias))
        interval = segment_rows.interval_of(snapshot, self._old)
        if written is None:
            format, places = self._access.format(self._old.format), IndexPlaces(transaction, self._old, self._new)
            with generations.stage(directory, self._old.name, self._new.id) as staged:
                end = lay(format, snapshot, reader, self._known, staged, places)
        else:
            end = written.end
            written.save(directory, transaction, self._old, self._new, self._known.count)
            generations.adopt(directory, written.file, self._old.name, self._new.id)
        found = directory.stat(alias)
        assert found is not None
        self._size = found.st_size
        self._new = replace(self._new, end=end)
        transaction.supersede(self._old)
        transaction.save_segment(self._new, interval, found.st_mtime_ns)
        generations.link_old(directory, self._old.name, self._old.id)
        return reader.file_of(self._old)

    def commit(self, diagnosis: Diagnosis) -> Done:
        directory, name = self._access.directory, self._old.name
        before = directory.stat(name)
        self._transaction.after_commit(lambda: generations.promote(directory, name, self._new.id))
        self._transaction.commit()
        reasons = diagnosis.reasons
        if before is None:
            return Done(name, diagnosis.state, reasons, "repack")
        if not self._transaction.unread:
            return Done(name, diagnosis.state, (*reasons, _READ), "repack")
        # Its other name is that of the old generation.
        freed = (before.st_size if before.st_nlink <= 2 else 0) - self._size
        return Done(name, diagnosis.state, reasons, "repack", freed)


class _Move(Move):
    """Moves one segment: links its file into the target, or merges it with the target's segment of the same name."""

    def copy(self, transaction: Transaction) -> None:
        name = self._segment.name
        source = self._source.current()
        there = transaction.segments([name]).get(name)
        generations.complete(self._source.directory, name, self._segment.id, self._segment.end.size)
        target = self._target.directory
        with contextlib.ExitStack() as stack:
            snapshot = stack.enter_context(source.index.snapshot())
            interval = segment_rows.interval_of(snapshot, self._segment)
            transaction.advance_seq(snapshot.dataset()["seq"])
            new = Segment(transaction.take_generation(), name, self._segment.format, self._segment.end)
            staged = [generations.hidden(name, new.id)]
            transaction.on_rollback(lambda: target.discard(*staged))
            self._insert(snapshot, transaction, new)
            if there is None:
                self._link(new)
                end, mtime = new.end, self._stat_mtime(name)
                transaction.save_blocks(new, segment_rows.blocks_of(snapshot, self._segment))
            else:
                target_snapshot = stack.enter_context(self._target.current().index.snapshot())
                staged.append(generations.hidden(name, there.id))
                end, mtime = self._merge(snapshot, target_snapshot, transaction, there, new, interval)
                transaction.supersede(there)
            transaction.save_segment(replace(new, end=end), interval, mtime)
        transaction.after_commit(lambda: generations.complete(target, name, new.id, end.size))
        self._target.clean_up_later(name)

    def _link(self, new: Segment) -> None:
        """Link the file into the target, under the hidden name of its generation until that is committed."""
        name = new.name
        source, target = self._source.directory, self._target.directory
        self._check_free(name)
        alias = generations.hidden(name, new.id)
        target.discard(alias)
        try:
            self.is_linked = source.link(name, alias, target)
            if not self.is_linked:  # the target is on another filesystem
                file = source.open_to_read(name)
                with generations.stage(target, name, new.id) as copy:
                    copy.copy(file, 0, file.size(), 0)
                    copy.sync()
        except FileNotFoundError:
            raise SegmentMissing(f"{source.path / name} is not on disk", segment=name) from None
        target.sync(name.rpartition("/")[0])

    def _stat_mtime(self, name: str) -> int:
        found = self._source.directory.stat(name)
        return 0 if found is None else found.st_mtime_ns

    def _merge(
        self,
        snapshot: Snapshot,
        target_snapshot: Snapshot,
        transaction: Transaction,
        there: Segment,
        new: Segment,
        interval: Interval,
    ) -> tuple[End, int]:
        """Write the data of both, in query order, to a new generation of the target's segment."""
        format = self._format
        directory, name = self._target.directory, new.name
        readers = {
            there.id: (self._target.current().reader, target_snapshot),
            new.id: (self._source.current().reader, snapshot),
        }
        with generations.stage(directory, name, new.id) as staged:
            writer = SegmentWriter(format, staged, save_blocks=partial(transaction.save_blocks, new))
            for piece in transaction.pieces_of((there, new), interval, _MERGED):
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
        generations.link_old(directory, name, there.id)
        return end, mtime
