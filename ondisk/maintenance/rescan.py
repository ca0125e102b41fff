"""Read a segment's data back from its files into the index: the part of a fix that works on one segment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import accumulate, compress, count

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.archives import Archives, of_same_key
from ondisk.datum import Location, microseconds
from ondisk.errors import IntegrityError, SegmentMissing, StorageError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Batch, Format
from ondisk.index import Row, Segment, Snapshot, Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.inspect import interval_of
from ondisk.maintenance.scanned import Scanned
from ondisk.maintenance.second_copy import is_second_copy
from ondisk.maintenance.states import Diagnosis, Done
from ondisk.maintenance.tally import Tally
from ondisk.segment import End, ScanResult
from ondisk.segments import SegmentWriter, generations
from ondisk.segments.dir import raise_sequence, scan
from ondisk.step import Interval

REMEDY = "to have them back, put the file back from a backup, and fix again"
"""The end of the damage that is recorded for a segment which may contain data that the index has lost.

Never change this text: `fix` looks for it in the index, where older versions have written it.
"""


class OtherIndex:
    """The indices of the archives, while a fix works on the dataset; or the others, while it works on the archive.

    After a move, the files may still be in both places: a query still reads them, or a crash came before their removal.
    People copy segments by hand, too. A fix must not read these data a second time.

    Args:
        archives: of the dataset.
        access: what the fix works on.
    """

    def __init__(self, archives: Archives, access: Access) -> None:
        self._archives = archives
        self._fixed = access
        self._access = archives.counterpart(access)

    def copy_of(self, name: str) -> str | None:
        """Return where all data of a segment are, too, with the same bytes; None if they are nowhere else."""
        for access in self._archives.all():
            if access is not self._fixed and is_second_copy(self._fixed, name, access):
                return access.prefix + name
        return None

    def places(self, found: ScanResult) -> set[int]:
        """Return the positions in a scan result of data that the other index has, and that can be read there."""
        if self._access is None:
            return set()
        opened = self._access.current()
        with opened.index.snapshot() as snapshot:
            same = of_same_key(snapshot, found.reftimes, found.metadata)
            return {place for place, (_, *row) in same if self._is_readable(opened, snapshot, tuple(row))}

    def _is_readable(self, opened: Opened, snapshot: Snapshot, row: Row) -> bool:
        """Return whether a datum can be read: somebody may have moved or damaged its file, and copied it back here."""
        location = Location(snapshot.segment(row[1]).name, row[2], row[3])
        with contextlib.suppress(IntegrityError, SegmentMissing, StorageError):
            return bool(microseconds(opened.reader.read(snapshot, location).reftime) == row[0])
        return False


class NeedsRewrite(Exception):
    """A segment cannot be read in place, and must be rewritten; see `ScanResult.foreign`."""


class DataAfterDamage(Exception):
    """The index knows data after damage, where a scan cannot find their offsets."""

    def __init__(self, segment: Segment, reason: str) -> None:
        super().__init__(reason)
        self.segment = segment


class Rescan:
    """Reads a segment's data back from its file into the index, in one transaction."""

    def __init__(
        self, access: Access, transaction: Transaction, name: str, known: Known | None, other: OtherIndex
    ) -> None:
        self._access = access
        self._other = other
        self._directory = access.directory
        self._transaction = transaction
        self._name = name
        self._format: Format = access.format(known.segment.format) if known is not None else access.format_of(name)
        interval = interval_of(access, name)
        assert interval is not None, "a name that does not fit is CORRUPTED"
        self._interval: Interval = interval
        self._known = known
        self._copied = other.copy_of(name) if known is None else None  # where all data of a second copy are, too
        self._damage, self._duplicates = Tally(), Tally()
        self._file: ReadableFile | None = None
        self._is_directory = False
        self._forgotten = 0  # data of a directory that does not exist
        self._missing = 0
        self._remedy = REMEDY

    @property
    def folder(self) -> str:
        """The directory that contains the segment."""
        return self._name.rpartition("/")[0]

    def done(self, diagnosis: Diagnosis, *reasons: str) -> Done:
        """Return the result, with what the segment contains that is not in the index now."""
        all_reasons = [*diagnosis.reasons, *reasons]
        if self._copied is not None:
            all_reasons.append(f"{self._copied} has the same bytes, so a repack removes this copy")
        if self._damage.count:
            all_reasons.append(self._damaged())
        if duplicates := self._duplicates.count:
            all_reasons.append(
                f"{duplicates} data are already in other segments and were skipped: {self._duplicates.text()}"
            )
        if self._missing:
            reason = f"up to {self._missing} data are lost: its header counts more than the file has"
            all_reasons.append(f"{reason}; {self._remedy}")
        lost = self._damage.count + self._forgotten + self._missing
        return Done(self._name, diagnosis.state, tuple(all_reasons), "rescan", 0, lost)

    def in_place(self, *, trusted: bool = False, scanned: Scanned | None = None) -> bool:
        """Insert all data of the segment into the index, and leave its files as they are. The caller commits.

        Args:
            trusted: the index has all data of every dir segment that it knows.
            scanned: the result of an earlier scan of the file.

        Returns:
            Whether there is anything to commit.

        Raises:
            Changed: the file has changed since that scan.
            NeedsRewrite: it must be rewritten.
            DataAfterDamage: it is damaged, and the index knows data after the damage.
        """
        if self._format.is_dir:
            return self._in_directory(trusted=trusted)
        transaction, known = self._transaction, self._known
        segment = self._segment()
        if known is not None:
            generations.complete(self._directory, self._name, segment.id, segment.end.size)
        # The file at the segment's name counts. Remove the hidden name, which readers would prefer; `commit` makes that
        # durable.
        self._directory.discard(generations.hidden(self._name, segment.id))
        file = self._file = self._directory.open_to_read(self._name)
        if known is not None:
            transaction.forget_blocks(segment)
        results = self._format.scan(file) if scanned is None else scanned.results(self._access, file)
        end = self._add_all(segment, results)
        if (
            known is not None
            and known.count
            and (end.length < known.data_end or (end.compressed and self._damage.count))
        ):
            reason = f"it can be read up to byte {end.length}, but has data up to byte {known.data_end}; {REMEDY}"
            raise DataAfterDamage(segment, self._damaged() if self._damage.count else reason)
        self._save(replace(segment, end=end), self._damaged() if self._damage.count else None)
        return True

    def sync(self) -> None:
        """Make the files durable: the process that wrote them may not have synced them."""
        if self._file is not None:
            self._file.sync()
        elif self._is_directory and not self._directory.sync_together([self._name]):
            with self._directory.inside(self._name) as folder:
                for entry in folder.entries():
                    if entry.kind == "file":
                        folder.open_to_read(entry.name).sync()
                folder.sync()

    def raise_sequence(self) -> None:
        """Raise the `.sequence` of a dir segment if it is too low, after the commit."""
        if self._is_directory:
            with self._directory.inside(self._name) as folder:
                raise_sequence(folder, self._name)

    def _in_directory(self, *, trusted: bool) -> bool:
        """Insert the data of a dir segment into the index; if it is not a directory, remove its data from the index."""
        known = self._known
        try:
            self._directory.inside(self._name).close()
        except StorageError:
            assert known is not None, "an unknown segment that is not a directory is CORRUPTED"
            self._forgotten = self._transaction.remove(known.segment, lost=True)
            return True
        self._is_directory = True
        if known is not None and trusted:
            return False
        segment = self._segment()
        end = self._add_all(segment, scan(self._directory, self._name, self._format.describe))
        self._save(replace(segment, end=end), self._damaged() if self._damage.count else None)
        return True

    def _segment(self) -> Segment:
        """Return the segment in the index, or a new one."""
        if self._known is not None:
            return self._known.segment
        generation = self._transaction.take_generation()
        return Segment(generation, self._name, self._format.name, self._format.begin().end)

    def _add_all(self, segment: Segment, results: Iterable[ScanResult]) -> End:
        """Insert the data of all scan results, and return where the segment ends."""
        end = segment.end
        with self._known_offsets(segment) as known_offsets:
            first = self._transaction.take_seqs(0).start
            for found in results:
                if found.foreign:
                    raise NeedsRewrite
                end = found.end
                self._add(found, segment, first, known_offsets)
                self._transaction.save_blocks(segment, found.blocks)
                self._note(found)
        return end

    def rewrite(self) -> None:
        """Write the data of the file to a new generation, in the form that ondisk writes, and commit."""
        transaction, known = self._transaction, self._known
        segment = Segment(transaction.take_generation(), self._name, self._format.name, self._format.begin().end)
        if known is None:
            old = transaction.take_generation()
        else:  # these are data of another file: ondisk never appends to a file that must be rewritten
            old = known.segment.id
            generations.complete(self._directory, self._name, old, known.segment.end.size)
            transaction.remove(known.segment)
        source = self._directory.open_to_read(self._name)
        first = transaction.take_seqs(0).start
        aliases = [generations.hidden(self._name, each) for each in (segment.id, old)]
        transaction.on_rollback(lambda: self._directory.discard(*aliases))
        with generations.stage(self._directory, self._name, segment.id) as staged:
            writer = SegmentWriter(self._format, staged, save_blocks=partial(transaction.save_blocks, segment))
            for batch in self._format.parse(_Stream(source), 100_000):
                sizes = list(map(len, batch.payloads))
                *offsets, _ = accumulate(self._format.extents(sizes), initial=writer.end.length)
                writer.add(batch.payloads)
                found = ScanResult(offsets, sizes, batch.reftimes, batch.metadata, damage=batch.damage)
                self._add(found, segment, first, lambda _begin, _end: set())
                self._note(batch)
                for _, reason in batch.refused:
                    self._damage.add(reason)
            end = writer.seal()
        if self._damage.count or self._missing:
            self._keep_original()
        generations.link_old(self._directory, self._name, old)
        self._save(replace(segment, end=end), None)
        self._access.clean_up_later(self._name)
        transaction.after_commit(lambda: generations.promote(self._directory, self._name, segment.id))
        transaction.check_space()
        transaction.commit()

    def _add(
        self, found: ScanResult, segment: Segment, first: int, known_offsets: Callable[[int, int], set[int]]
    ) -> None:
        """Insert the data that are new. If data in one segment have the same unique fields, the last one counts."""
        if not found.offsets:
            return
        reftimes, offsets, sizes, metadata = found.reftimes, found.offsets, found.sizes, found.metadata
        if self._copied is not None:
            return
        here, elsewhere = known_offsets(offsets[0], offsets[-1] + 1), self._other.places(found)
        if here or elsewhere:
            for place in sorted(elsewhere):
                if offsets[place] not in here:
                    self._skip(offsets[place])
            is_new = [offset not in here and place not in elsewhere for place, offset in enumerate(offsets)]
            reftimes, offsets, sizes = ([*compress(each, is_new)] for each in (reftimes, offsets, sizes))
            metadata = [*compress(metadata, is_new)]
            if not offsets:
                return
        transaction = self._transaction
        seqs = transaction.take_seqs(len(offsets))
        fields = transaction.columns(metadata)
        columns = (seqs, reftimes, [segment.id] * len(offsets), offsets, sizes, *fields)
        if transaction.insert(zip(*columns, strict=True)) == len(offsets):  # zip reuses one tuple: 5 % of a rebuild
            return
        rows = list(zip(*columns, strict=True))
        inserted = transaction.seqs_from(seqs.start)
        for row in rows:
            if row[0] in inserted:
                continue
            other = transaction.duplicate_of(row)
            if other is None or other[2] == segment.id:
                if other is None or other[3] < row[3]:
                    transaction.replace(row, first, None)
            else:
                self._skip(row[3])

    def _skip(self, offset: int) -> None:
        self._duplicates.add(f"the datum at {self._format.unit} {offset}")

    def _known_offsets(self, segment: Segment) -> AbstractContextManager[Callable[[int, int], set[int]]]:
        """Return what `Transaction.known_offsets` returns; for a new segment, a function that returns no offsets."""
        if self._known is None:
            return contextlib.nullcontext(lambda _begin, _end: set())
        return self._transaction.known_offsets(segment)

    def _note(self, found: ScanResult | Batch) -> None:
        # An index that has rows of the segment knows better what an interrupted append counted.
        if self._known is None or not self._known.count or self._access.needs_check():
            self._missing += found.missing
        for damage in found.damage:
            self._damage.add(f"at {self._format.unit} {damage.offset}: {damage.reason}", damage.size)

    def _keep_original(self) -> None:
        """Link the damaged file, which is rewritten, to a second name, which keeps it."""
        for at in count(1):
            kept = f"{self._name}.damaged{f'-{at}' * (at > 1)}"
            with contextlib.suppress(FileExistsError):
                self._directory.link(self._name, kept)
                self._remedy = f"the original file is now {kept}"
                return

    def _save(self, segment: Segment, damage: str | None) -> None:
        mtime = self._directory.stat(self._name)
        assert mtime is not None
        self._transaction.save_segment(segment, self._interval, mtime.st_mtime_ns)
        self._transaction.note_check(segment, damage)
        self._transaction.count_lost(self._damage.count + self._missing)

    def _damaged(self) -> str:
        return f"{self._damage.size} {self._format.unit}s are damaged, {self._damage.text('; ')}; {self._remedy}"


def commit(transaction: Transaction, directory: Directory, rescans: Sequence[Rescan]) -> None:
    """Commit segments that `Rescan.in_place` has read.

    Durability: syncs them and the directories that contain them, then commits.
    """
    for each in rescans:
        each.sync()
    for folder in {each.folder for each in rescans}:
        directory.sync(folder)
    transaction.check_space()
    transaction.commit()


class _Stream:
    """A segment's file as a stream, from its begin."""

    def __init__(self, file: object) -> None:
        self._file = file
        self._position = 0

    def read(self, size: int, /) -> bytes:
        content: bytes = self._file.read(self._position, size)  # type: ignore[attr-defined]
        self._position += len(content)
        return content
