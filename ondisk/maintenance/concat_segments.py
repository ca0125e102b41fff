"""Concat segments in maintenance: each is one file, which changes by generations; see `ondisk.segments.generations`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from ondisk.dataset.access import Access
from ondisk.errors import (
    StorageError,
)
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Format
from ondisk.index import Copies, Row, Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.observe import has_more
from ondisk.maintenance.replaced import keep
from ondisk.maintenance.rewrite import IndexPlaces, Written, lay, start_for
from ondisk.maintenance.states import Diagnosis, Done, State
from ondisk.maintenance.successor import Successor, complete, withdraw
from ondisk.segment import End, Facts
from ondisk.segments import generations, quarantine
from ondisk.segments.concat_writer import SegmentWriter, keep_data_after
from ondisk.segments.facts import CheckedReading, changed, facts_of
from ondisk.step import Interval

_READ = "an older query may still read its old file; the next writer after that query frees the space"
COPIES = "data in it were equal to data of other segments, and a rewrite keeps only those that have rows"
_MERGED = 4 * 1024 * 1024  # bytes of data that are merged together


class ConcatSegments:
    """What maintenance does with one concat segment."""

    def is_readable(self, directory: Directory, name: str, format: Format) -> bool:
        """Return whether at least part of what has a name is a segment of this kind, in a format."""
        try:
            return format.is_readable(directory.open_to_read(name))
        except (FileNotFoundError, StorageError):
            return False

    def rewriting(self, access: Access, transaction: Transaction, known: Known) -> _Rewriting:
        """Return the rewriting of a segment without its holes."""
        return _Rewriting(access, transaction, known)

    def drop(self, access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
        """Commit the removal of a segment from the index, then remove it from the disk."""
        directory, name = access.directory, diagnosis.segment
        access.clean_up_later(name)
        found = None if State.MISSING in diagnosis.state else directory.stat(name)
        lost, is_kept = 0, False
        if known is None:  # it is empty, and no query reads it
            directory.discard(name)
            directory.sync(name.rpartition("/")[0])
        else:
            if found is not None:
                format = access.format(known.segment.format)
                # An event that Beats has not written completely is no data, as for Beats.
                if not known.segment.shared or has_more(directory.open_to_read(name), known.segment.end, format):
                    keep_data_after(directory, name, known.segment.end, format, verb="repack")
                is_kept = keep(access, transaction, known.segment)
                withdraw(access, transaction, known.segment)
            else:
                generations.set_aside(directory, name, known.segment.id, verb="repack")
            lost = transaction.remove(known.segment, diagnosis.removal(is_kept=is_kept))
            transaction.commit()
        reasons, action = diagnosis.reasons, diagnosis.action
        if found is None:
            return Done(name, diagnosis.state, reasons, action, 0, lost if State.MISSING in diagnosis.state else 0)
        if known is not None and not transaction.has_no_older_readers:
            return Done(name, diagnosis.state, (*reasons, _READ), action)
        return Done(name, diagnosis.state, reasons, action, 0 if is_kept else freed_by(found))

    def move(
        self, access: Access, transaction: Transaction, segment: Segment, name: str, there: Segment | None
    ) -> bool:
        """Link or copy a segment to a name in another folder, or merge it with the segment there; change its rows.

        The caller commits. The new file is at a hidden name until then, and the old one keeps its own.

        Returns:
            Whether the files were linked, not copied.
        """
        return _Move(access, transaction, segment, name).write(there)


def freed_by(unlinked: os.stat_result) -> int:
    """Return the bytes that unlinking a file frees: none while somebody else has a link to it."""
    return unlinked.st_size if unlinked.st_nlink == 1 else 0


class _Rewriting:
    """Rewrites one segment to its next generation, in query order: in two steps around the end of a snapshot."""

    def __init__(self, access: Access, transaction: Transaction, known: Known) -> None:
        self._access = access
        self._transaction = transaction
        self._known = known
        self._old = known.segment
        self._successor = Successor(access, transaction, self._old.name)
        self._new = Segment(self._successor.id, self._old.name, self._old.format, End())
        self._size = 0
        self._is_kept = False

    def write(self, snapshot: Snapshot, written: Written | None) -> ReadableFile | None:
        """Write the segment's new bytes, and save them in the index; the caller then ends the snapshot.

        Returns:
            The segment's old file; its space is freed when it is closed.

        Raises:
            Changed: the segment has changed since the other process read it.
            IntegrityError, SegmentMissing: the data cannot be read.
        """
        directory, transaction = self._access.directory, self._transaction
        reader, format = self._access.current().reader, self._access.format(self._old.format)
        keep_data_after(directory, self._old.name, self._old.end, format, verb="repack")
        interval = segment_rows.interval_of(snapshot, self._old)
        if self._access.config.is_sequence:
            interval = Interval.around((self._known.rows.begin, self._known.rows.end))
        if written is None:
            places = IndexPlaces(transaction, self._old, self._new)
            with self._successor.create() as staged:
                end, facts = lay(format, snapshot, reader, self._known, staged, places)
        else:
            end, facts = written.end, written.facts
            written.save(directory, transaction, self._old, self._new, self._known.rows.count)
            self._successor.adopt(written.file)
        found = directory.stat(self._successor.path)
        assert found is not None
        self._size = found.st_size
        self._new = self._new._replace(end=end, facts=facts, unproven=self._old.unproven)
        transaction.supersede(self._old)
        transaction.save_segment(self._new, interval)
        self._is_kept = keep(self._access, transaction, self._old)
        self._successor.displace(self._old)
        return reader.file_of(self._old)

    def commit(self, diagnosis: Diagnosis) -> Done:
        """Commit, and put the new bytes in the place of the old ones.

        An error after the commit leaves the new bytes at their hidden name, where readers and the next opening find
        them.
        """
        directory, name = self._access.directory, self._old.name
        before = directory.stat(name)
        self._successor.appear(self._new)
        self._transaction.commit()
        reasons = diagnosis.reasons
        if before is None:
            return Done(name, diagnosis.state, reasons, "repack")
        if not self._transaction.has_no_older_readers:
            return Done(name, diagnosis.state, (*reasons, _READ), "repack")
        # Its other name is that of the old generation.
        freed = 0 if self._is_kept else (before.st_size if before.st_nlink <= 2 else 0) - self._size
        return Done(name, diagnosis.state, reasons, "repack", freed)


class _Move:
    """Moves one segment: links its file into another folder, or merges it with the segment of its name there."""

    def __init__(self, access: Access, transaction: Transaction, segment: Segment, name: str) -> None:
        self._access = access
        self._directory = access.directory
        self._transaction = transaction
        self._old = segment
        self._name = name
        self._format = access.format(segment.format)

    def write(self, there: Segment | None) -> bool:
        access, transaction, old = self._access, self._transaction, self._old
        complete(access, old)
        if there is not None:
            complete(access, there)
        with access.current().index.snapshot() as snapshot:
            interval = segment_rows.interval_of(snapshot, old)
            if there is not None:
                interval |= segment_rows.interval_of(snapshot, there)
        successor = Successor(access, transaction, self._name)
        new = old._replace(id=successor.id, name=self._name)
        keep(access, transaction, old)
        is_linked = False
        if there is None:
            is_linked = self._directory.link(old.name, successor.path)
            facts = old.facts if is_linked else self._copy(successor)
            self._check_same(new)
            new = new._replace(facts=facts)
            transaction.move(old, new, interval)
        else:
            keep(access, transaction, there)
            end, facts = self._merge(there, successor, new, interval)
            copies, unproven = max(old.copies, there.copies), old.unproven or there.unproven
            new = new._replace(end=end, facts=facts, copies=copies, unproven=unproven)
            transaction.supersede(old)
            transaction.supersede(there)
            transaction.save_segment(new, interval)
            transaction.set_unowned(new, self._format.holes(new.end, *transaction.sums_of(new)))
        successor.appear(new)
        return is_linked

    def _copy(self, successor: Successor) -> Facts:
        """Copy the file to the hidden name of its new generation, on another filesystem; return its facts there."""
        file = self._directory.open_to_read(self._old.name)
        with successor.create() as copy:
            copy.copy(file, 0, file.size(), 0)
            copy.sync()
        found = self._directory.stat(successor.path)
        assert found is not None
        return facts_of(found, self._old.facts.tail, self._old.facts.checksum)

    def _check_same(self, new: Segment) -> None:
        """Make the new name durable, and raise if the old file was exchanged before it got it."""
        self._directory.sync(new.name.rpartition("/")[0])
        if generations.waiting(self._directory, new.name, new.id, self._access.committed(self._old)) is None:
            raise changed(self._directory, self._old.name)

    def _merge(self, there: Segment, successor: Successor, new: Segment, interval: Interval) -> tuple[End, Facts]:
        """Write the data of both segments, in query order, to a new generation."""
        access, transaction, format = self._access, self._transaction, self._format
        old, directory, name = self._old, self._directory, new.name
        reader, checked = access.current().reader, dict[int, CheckedReading]()
        for each in (old, there):
            if each.copies is not Copies.NONE:  # data without rows are not written
                quarantine.link(directory, each.name, verb="archive", why=COPIES)
            keep_data_after(directory, each.name, each.end, format, verb="archive")
            checked[each.id] = CheckedReading(reader.file_of(each), each.committed(format.mutable))
        with access.current().index.snapshot() as snapshot, successor.create() as staged:

            def read(piece: Sequence[tuple[int, int, int, int, int]]) -> list[bytes]:
                """Return the bytes of data, in their order: (seq, reftime, segment, offset, size) of each."""
                contents = {}
                for id_ in (old.id, there.id):
                    rows: list[Row] = [each[1:] for each in piece if each[2] == id_]
                    contents[id_] = reader.contents(snapshot, rows, checked[id_].add) if rows else iter(())
                return [next(contents[of]) for _, _, of, _, _ in piece]

            pieces = partial(transaction.pieces_of, (there, old), interval, _MERGED)
            ends = [there.end, old.end]
            start = start_for(format, ends, (read(piece) for piece in pieces()))
            writer = SegmentWriter(format, staged, name, start, save_blocks=partial(transaction.save_blocks, new))
            for piece in pieces():
                payloads = read(piece)
                if any(end.kind != writer.end.kind for end in ends):
                    payloads, _ = format.refit(payloads, writer.end.kind)
                sizes = [*map(len, payloads)]
                offsets = accumulate(format.extents(sizes), initial=writer.end.length)
                writer.add(payloads)
                transaction.set_places((new.id, offset, seq) for (seq, *_), offset in zip(piece, offsets, strict=False))
                if sizes != [row[-1] for row in piece]:
                    transaction.resize(new, zip([row[0] for row in piece], sizes, strict=True))
            for each in (old, there):
                if checked[each.id].is_whole() is False:
                    raise reader.wrong_checksum(each)
            end, facts = writer.seal(), writer.facts()
        successor.displace(there)
        return end, facts
