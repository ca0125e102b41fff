"""Reads what a segment's file holds back into the index: the part of a fix that works on one segment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, compress, count, repeat

from ondisk.dataset.access import Access
from ondisk.dataset.archives import of_same_key
from ondisk.errors import StorageError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Format
from ondisk.index import Segment, Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.inspect import interval_of
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.scanned import Scanned
from ondisk.maintenance.states import Diagnosis, Done
from ondisk.segment import End, ScanResult
from ondisk.segments import SegmentWriter, generations
from ondisk.segments.dir import raise_sequence, scan
from ondisk.step import Interval

REMEDY = "to have them back, put the file back from a backup, and fix again"
"""The end of what is noted of a segment that may hold data which the index has lost."""
_NAMED = 3  # of many reasons of one kind, so many are told


class Elsewhere:
    """Tells which data the archive holds, or for those of the archive, the dataset.

    What was moved may still stand where it was, while a query reads it, or since a crash came between: with the index
    that knew of the move lost, it would be there twice.
    """

    def __init__(self, other: Access | None) -> None:
        self._other = other

    def held(self, found: ScanResult) -> set[int]:
        """Find the places of data that stand there, too."""
        if self._other is None:
            return set()
        with self._other.current().index.snapshot() as snapshot:
            same = of_same_key(snapshot, found.reftimes, found.metadata)
            return {place for place, (_, _, id_, number, *_) in same if self._is_on_disk(snapshot.segment(id_), number)}

    def _is_on_disk(self, segment: Segment, number: int) -> bool:
        """Look for the file of a datum: if people moved it here, no other index has to know it."""
        assert self._other is not None
        kind = kind_of(self._other.format(segment.format))
        return kind.has_datum(self._other.directory, segment, number)


class Foreign(Exception):
    """A segment cannot stay as it is; see `ScanResult.foreign`."""


class Unsafe(Exception):
    """What the index knows of a segment stands behind damage, where a scan cannot tell its place."""

    def __init__(self, segment: Segment, reason: str) -> None:
        super().__init__(reason)
        self.segment = segment


@dataclass(slots=True)
class _Tally:
    """What of one kind was met: how often, how many bytes, and the first few in words."""

    count: int = 0
    size: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, text: str, size: int = 0) -> None:
        self.count += 1
        self.size += size
        if len(self.named) < _NAMED:
            self.named.append(text)


class Rescan:
    """Reads a segment's data back from its file into the index, in one transaction."""

    def __init__(
        self, access: Access, transaction: Transaction, name: str, known: Known | None, elsewhere: Elsewhere
    ) -> None:
        self._access = access
        self._elsewhere = elsewhere
        self._directory = access.directory
        self._transaction = transaction
        self._name = name
        self._format: Format = access.format(known.segment.format) if known is not None else access.format_of(name)
        interval = interval_of(access, name)
        assert interval is not None, "a name that does not fit is CORRUPTED"
        self._interval: Interval = interval
        self._known = known
        self._damage, self._duplicates = _Tally(), _Tally()
        self._file: ReadableFile | None = None
        self._is_directory = False
        self._forgotten = 0  # data of a directory that is not there
        self._remedy = REMEDY

    @property
    def folder(self) -> str:
        """The directory in which the segment stands."""
        return self._name.rpartition("/")[0]

    def done(self, diagnosis: Diagnosis, *reasons: str) -> Done:
        """Say what was done, and what was met that is not in the index now."""
        said = [*diagnosis.reasons, *reasons]
        if self._damage.count:
            said.append(self._damaged())
        if self._duplicates.count:
            said.append(
                f"{self._duplicates.count} data stand in other segments already and were left out:"
                f" {', '.join(self._duplicates.named)}{' …' * (self._duplicates.count > _NAMED)}"
            )
        return Done(self._name, diagnosis.state, tuple(said), "rescan", 0, self._damage.count + self._forgotten)

    def in_place(self, *, trusted: bool = False, scanned: Scanned | None = None) -> bool:
        """Tell the index of all data in the file, or the directory, which stays as it is; the caller commits.

        Args:
            trusted: of a dir segment that it knows, the index lacks nothing.
            scanned: what the file holds, where it was scanned before.

        Returns:
            Whether there is anything to commit.

        Raises:
            Changed: it is not any more what was scanned.
            Foreign: it cannot stay so.
            Unsafe: it holds damage, and behind that data that the index knows.
        """
        if self._format.is_dir:
            return self._in_directory(trusted=trusted)
        transaction, known = self._transaction, self._known
        if known is None:
            segment = Segment(transaction.take_generation(), self._name, self._format.name, self._format.begin().end)
        else:
            segment = known.segment
            generations.complete(self._directory, self._name, segment.id, segment.end.size)
        # The bytes are to be those at the segment's name. What a crash left here must not come back, see `commit`.
        generations.discard(self._directory, [generations.hidden(self._name, segment.id)])
        file = self._file = self._directory.open_to_read(self._name)
        if known is not None:
            transaction.forget_blocks(segment)
        end = segment.end
        with self._known_offsets(segment) as known_offsets:
            first = transaction.take_seqs(0).start
            for found in self._format.scan(file) if scanned is None else scanned.results(self._access, file):
                if found.foreign:
                    raise Foreign
                end = found.end
                self._add(found, segment, first, known_offsets)
                transaction.save_blocks(segment, found.blocks)
                self._note(found)
        if (
            known is not None
            and known.count
            and (end.length < known.data_end or (end.compressed and self._damage.count))
        ):
            reason = f"it can be read up to byte {end.length}, its data go up to byte {known.data_end}; {REMEDY}"
            raise Unsafe(segment, self._damaged() if self._damage.count else reason)
        self._save(replace(segment, end=end), self._damaged() if self._damage.count else None)
        return True

    def sync(self) -> None:
        """Make durable what was read: who wrote it may not have done so."""
        if self._file is not None:
            self._file.sync()
        elif self._is_directory and not self._directory.sync_together([self._name]):
            with self._directory.inside(self._name) as folder:
                for entry in folder.entries():
                    if entry.kind == "file":
                        folder.open_to_read(entry.name).sync()
                folder.sync()

    def raise_sequence(self) -> None:
        """Mend the `.sequence` of a directory, behind the commit."""
        if self._is_directory:
            with self._directory.inside(self._name) as folder:
                raise_sequence(folder, self._name)

    def _in_directory(self, *, trusted: bool) -> bool:
        """Tell the index of all files that are as their entries say.

        Where no directory stands, its data are removed from the index.
        """
        known = self._known
        try:
            self._directory.inside(self._name).close()
        except StorageError:
            assert known is not None, "what the index does not know, and is no directory, is CORRUPTED"
            self._forgotten = self._transaction.remove(known.segment)
            return True
        self._is_directory = True
        if known is not None and trusted:
            return False
        self._read_files(known)
        return True

    def _read_files(self, known: Known | None) -> None:
        transaction = self._transaction
        if known is None:
            segment = Segment(transaction.take_generation(), self._name, self._format.name, End())
        else:
            segment = known.segment
        end = segment.end
        with self._known_offsets(segment) as known_offsets:
            first = transaction.take_seqs(0).start
            for found in scan(self._directory, self._name, self._format.describe):
                end = found.end
                self._add(found, segment, first, known_offsets)
                self._note(found)
        self._save(replace(segment, end=end), self._damaged() if self._damage.count else None)

    def rewrite(self) -> None:
        """Write the data that the file holds to a new generation, in the form that ondisk itself writes."""
        transaction, known = self._transaction, self._known
        segment = Segment(transaction.take_generation(), self._name, self._format.name, self._format.begin().end)
        if known is None:
            old = transaction.take_generation()
        else:  # it was of another file, as ondisk never goes on with one of this kind
            old = known.segment.id
            generations.complete(self._directory, self._name, old, known.segment.end.size)
            transaction.remove(known.segment)
        source = self._directory.open_to_read(self._name)
        first = transaction.take_seqs(0).start
        places = [generations.hidden(self._name, each) for each in (segment.id, old)]
        transaction.on_rollback(lambda: generations.discard(self._directory, places))
        with generations.stage(self._directory, self._name, segment.id) as staged:
            writer = SegmentWriter(self._format, staged, save_blocks=partial(transaction.save_blocks, segment))
            for batch in self._format.parse(_Stream(source), 100_000):
                sizes = list(map(len, batch.payloads))
                *offsets, _ = accumulate(self._format.extents(sizes), initial=writer.end.length)
                writer.add(batch.payloads)
                found = ScanResult(offsets, sizes, batch.reftimes, batch.metadata, damage=batch.damage)
                self._add(found, segment, first, lambda _begin, _end: set())
                self._note(found)
                for _, reason in batch.refused:
                    self._damage.add(reason)
            end = writer.seal()
        if self._damage.count:
            self._keep_original()
        generations.link_old(self._directory, self._name, old)
        self._save(replace(segment, end=end), None)
        self._access.clean_up_later(self._name)
        transaction.after_commit(lambda: generations.promote(self._directory, self._name, segment.id))
        transaction.commit()

    def _add(
        self, found: ScanResult, segment: Segment, first: int, known_offsets: Callable[[int, int], set[int]]
    ) -> None:
        """Insert rows of the data that are new; of equal data in one segment the last wins."""
        if not found.offsets:
            return
        reftimes, offsets, sizes, metadata = found.reftimes, found.offsets, found.sizes, found.metadata
        there, held = known_offsets(offsets[0], offsets[-1] + 1), self._elsewhere.held(found)
        if there or held:
            for place in sorted(held):
                if offsets[place] not in there:
                    self._left_out(offsets[place])
            is_new = [offset not in there and place not in held for place, offset in enumerate(offsets)]
            reftimes, offsets, sizes = ([*compress(each, is_new)] for each in (reftimes, offsets, sizes))
            metadata = [*compress(metadata, is_new)]
            if not offsets:
                return
        transaction = self._transaction
        seqs = transaction.take_seqs(len(offsets))
        fields = transaction.columns(metadata)
        rows = list(zip(seqs, reftimes, repeat(segment.id, len(offsets)), offsets, sizes, *fields, strict=True))
        if transaction.insert(rows) == len(rows):
            return
        inserted = transaction.seqs_from(seqs.start)
        for row in rows:
            if row[0] in inserted:
                continue
            other = transaction.duplicate_of(row)
            if other is None or other[2] == segment.id:
                if other is None or other[3] < row[3]:
                    transaction.replace(row, first, None)
            else:
                self._left_out(row[3])

    def _left_out(self, offset: int) -> None:
        self._duplicates.add(f"the datum at {self._format.unit} {offset}")

    def _known_offsets(self, segment: Segment) -> AbstractContextManager[Callable[[int, int], set[int]]]:
        """Look up at which offsets, from one to before another, the index knew data of a segment: at none of a new."""
        if self._known is None:
            return contextlib.nullcontext(lambda _begin, _end: set())
        return self._transaction.known_offsets(segment)

    def _note(self, found: ScanResult) -> None:
        for damage in found.damage:
            self._damage.add(f"at {self._format.unit} {damage.offset}: {damage.reason}", damage.size)

    def _keep_original(self) -> None:
        """Give a damaged file that is written anew another name, by which it stays."""
        for at in count(1):
            kept = f"{self._name}.damaged{f'-{at}' * (at > 1)}"
            with contextlib.suppress(FileExistsError):
                self._directory.link(self._name, kept)
                self._remedy = f"the file as it was is {kept} now"
                return

    def _save(self, segment: Segment, damage: str | None) -> None:
        mtime = self._directory.stat(self._name)
        assert mtime is not None
        self._transaction.save_segment(segment, self._interval, mtime.st_mtime_ns)
        self._transaction.note_check(segment, damage)

    def _damaged(self) -> str:
        return (
            f"{self._damage.size} {self._format.unit}s of it are no data, {'; '.join(self._damage.named)}"
            f"{' …' * (self._damage.count > _NAMED)}; {self._remedy}"
        )


def commit(transaction: Transaction, directory: Directory, rescans: Sequence[Rescan]) -> None:
    """Commit what segments were read into the index in place.

    Durability: they are synced before, and so are the folders that they stand in.
    """
    for each in rescans:
        each.sync()
    for folder in {each.folder for each in rescans}:
        directory.sync(folder)
    transaction.commit()


class _Stream:
    """A segment's file, read from its begin on."""

    def __init__(self, file: object) -> None:
        self._file = file
        self._position = 0

    def read(self, size: int, /) -> bytes:
        content: bytes = self._file.read(self._position, size)  # type: ignore[attr-defined]
        self._position += len(content)
        return content
