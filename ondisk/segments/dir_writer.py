"""Append to dir segments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from google_crc32c import extend
from zlib_ng.zlib_ng import crc32

from ondisk import frame
from ondisk.errors import OndiskError, SegmentMissing
from ondisk.filesystem import Directory
from ondisk.segment import Block, End, Facts, Framing, Laid, Start
from ondisk.segments.dir import (
    COPY,
    METADATA,
    SEQUENCE,
    MetadataFile,
    discard_folder,
    encode_entry,
    end_of_entries,
    file_name,
    number_of,
    open_directory,
    read_sequence,
    seen_in,
    stat_of,
    write_sequence,
)
from ondisk.segments.file_facts import Committed, Seen, changed, facts_of, tail_of
from ondisk.segments.generations import complete, hidden

_MANY = 32  # files of a batch; fewer are synced one by one


@dataclass(slots=True)
class _Append:
    """What a batch wrote to one segment: all that is needed to sync it, or to undo it."""

    path: str  # of the directory; a hidden name for a new segment
    generation: int
    is_new: bool  # the batch created the directory
    known: bool
    size_before: int  # of .metadata
    next: int  # number after the last one used
    stats: int | None  # as `checksum_of_stats`; None if unknown
    is_touched: bool  # somebody else has touched the directory before
    before: os.stat_result | None  # of `.sequence`
    numbers: list[int] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    is_synced: bool = False
    size: int = 0  # of .metadata
    facts: Facts = field(default_factory=Facts)

    def count(self, number: int, found: os.stat_result | None) -> None:
        assert found is not None
        if self.stats is not None:
            self.stats = int(extend(self.stats, stat_of(number, found.st_size, found.st_mtime_ns, found.st_ino)))


class DirWriter:
    """Appends one batch, under the writers' lock: write all files, then sync them all, or undo everything."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._appends: dict[str, _Append] = {}

    def start(
        self,
        name: str,
        end: End | None,
        committed: Committed | None = None,
        framing: Framing | None = None,
        *,
        trusted: bool,
    ) -> Start:
        """Return where a segment continues: its `length` is the number of the next file.

        Args:
            trusted: the index is trusted. Otherwise the numbers of files and entries count, too.

        Raises:
            SegmentCorrupt: its directory is not the one that the index describes.
        """
        known = end or End()
        if self._directory.stat(name) is None:
            return Start(Laid(b"", known), is_new=end is None, checksum=0)
        is_touched, stats = False, None
        with self._directory.inside(name) as folder:
            if committed is not None:
                seen, stats = seen_in(folder, committed.facts, committed.size), committed.facts.checksum
                if seen is Seen.OTHER:
                    raise changed(self._directory, name)
                is_touched = seen is not Seen.UNTOUCHED
            sequence = read_sequence(folder)
            if trusted and end is not None and sequence is not None:
                place = Laid(b"", End(known.size, max(known.length, sequence + 1)))
                return Start(place, is_touched=is_touched, checksum=stats)
            entries = MetadataFile.of(folder)
        number = max(known.length, self._free_number(name), *(number + 1 for number in entries or ()))
        has_unknown = end is None or number > known.length
        # Size 0: the next entry goes behind all that there are. A lost index may have known them.
        return Start(Laid(b"", End(0, number)), is_touched=is_touched, has_unknown=has_unknown, checksum=stats)

    def restart(self, name: str, start: Start) -> Start:
        """Return where a segment continues, after all files that a crash left."""
        return start._replace(laid=Laid(b"", End(start.laid.end.size, self._free_number(name))))

    def clear(self, name: str, generation: int) -> None:
        """Remove what a crash left at the hidden name of a new segment."""
        discard_folder(self._directory, name, hidden(name, generation))

    @contextlib.contextmanager
    def writing(
        self,
        name: str,
        generation: int,
        start: Start,
        framing: Framing | None = None,
        payloads: Sequence[bytes] = (),
        *,
        known: bool,
    ) -> Iterator[FileWriter]:
        """Open a segment to write a batch's data to it, as files numbered from `start` on.

        Durability: none until `sync`. A crash before that leaves files above `.sequence`.

        Args:
            start: where it continues; entries are written to `.metadata` from its `size` on.
            payloads: ignored; exists for concat segments.

        Raises:
            FileExistsError: one of these files exists already, and is never overwritten; see `restart`.
            SegmentMissing: the index knows data of it, but it is not on disk.
            SegmentCorrupt: `.metadata` is damaged.
        """
        append = self._begin(name, generation, start, known=known)
        with self._directory.inside(append.path) as folder:
            yield FileWriter(folder, name, append)

    def _free_number(self, name: str) -> int:
        """Return the number after the last one used, and after those of all files."""
        with self._directory.inside(name) as folder:
            sequence = read_sequence(folder)
            numbers = [number_of(name, each) for each in folder.names()]
        return max([-1 if sequence is None else sequence, *(each for each in numbers if each is not None)]) + 1

    def adopt(
        self,
        name: str,
        generation: int,
        start: Start,
        source: Directory,
        numbers: Iterable[tuple[int, int]],
        *,
        known: bool,
    ) -> bool:
        """Link files of another directory of this segment into this one, under new numbers, and copy their entries.

        Durability: as `writing`.

        Args:
            source: the other directory: in another dataset, or of an older generation.
            numbers: the number of each file there, and its new one, which ascend.

        Returns:
            False if the files had to be copied, because they are on another filesystem.

        Raises:
            SegmentMissing: a file, or its entry, does not exist.
        """
        append = self._begin(name, generation, start, known=known)
        entries = MetadataFile.of(source)
        is_linked = True
        with self._directory.inside(append.path) as folder:
            for number, new in numbers:
                file = file_name(name, number)
                if entries is None or number not in entries:
                    raise SegmentMissing(f"{source.path / METADATA} has no entry of {file}", segment=name)
                entry = entries.get(number)
                append.numbers.append(new)
                alias = file_name(name, new)
                try:
                    is_linked &= _link_or_copy(source, file, folder, alias)
                except FileNotFoundError:
                    raise SegmentMissing(f"{source.path / file} is not on disk", segment=name) from None
                append.count(new, folder.stat(alias))
                append.entries.append(encode_entry(new, entry.size, entry.checksum, entry.beside))
        append.next = max(append.numbers, default=start.laid.end.length - 1) + 1
        return is_linked

    def sync(self) -> None:
        """Make everything written so far durable: the files, then `.metadata` and `.sequence`, then directories.

        Raises:
            DurabilityLost: a sync failed; the batch must not be committed.

        Cost: a few files are synced one by one; many with one sync for all, if the filesystem can, which takes a fifth
            of the time on a quiet disk.
        """
        paths = [append.path for append in self._appends.values()]
        count = sum(len(append.numbers) for append in self._appends.values())
        is_synced = count >= _MANY and self._directory.sync_together(paths)
        parents = set()
        for name, append in self._appends.items():
            with self._directory.inside(append.path) as folder:
                for number in () if is_synced else append.numbers:
                    with folder.open_to_write(file_name(name, number)) as file:
                        file.sync()
                append.is_synced = True
                self._write_entries(folder, append)
                folder.sync()
            if not append.known:
                parents |= {name.rpartition("/")[0], ""}
        for parent in parents:
            self._directory.sync(parent)

    def appended(self, name: str) -> tuple[End, list[Block], Facts]:
        append = self._appends[name]
        return End(append.size, append.next), [], append.facts

    def reveal(self) -> None:
        """Give the directories of new segments their names, after the commit."""
        for name, append in self._appends.items():
            if append.path != name:
                committed = Committed(append.size, append.facts, range(0))
                complete(self._directory, name, append.generation, committed)

    def undo(self) -> None:
        """Undo all writes as far as the disk allows; nobody reads what stays, and no number is used twice."""
        for name, append in self._appends.items():
            with contextlib.suppress(OSError, OndiskError), self._directory.inside(append.path) as folder:
                if append.is_synced and not append.is_new:  # entries first: an entry without a file means a lost file
                    with folder.open_to_write(METADATA) as file:
                        file.truncate(append.size_before)
                    if append.before is not None:
                        with folder.open_to_write(SEQUENCE) as file:
                            file.set_mtime(append.before.st_mtime_ns)
                folder.discard(*(file_name(name, number) for number in append.numbers))
                if append.is_new:
                    folder.discard(METADATA, SEQUENCE)
                    self._directory.remove_directory(append.path)
        self._appends.clear()

    def _begin(self, name: str, generation: int, start: Start, *, known: bool) -> _Append:
        end = start.laid.end
        path = hidden(name, generation) if start.is_new else name
        if start.is_new:
            try:
                self._directory.create_file(f"{path}/{SEQUENCE}").close()
            except OndiskError:
                with contextlib.suppress(OndiskError):
                    self._directory.remove_directory(path)  # `undo` does not know it yet
                raise
        with open_directory(self._directory, path) as folder:
            size, before = end_of_entries(folder, name, end), folder.stat(SEQUENCE)
        append = self._appends[name] = _Append(
            path, generation, start.is_new, known, size, end.length, start.checksum, start.is_touched, before
        )
        return append

    def _write_entries(self, folder: Directory, append: _Append) -> None:
        """Write `.metadata`, sync it, then write `.sequence`: an entry is durable before its number is."""
        try:
            folder.separate(METADATA, METADATA + COPY)
            file = folder.open_to_write(METADATA)
        except FileNotFoundError:
            file = folder.create_file(METADATA)
        with file:
            if file.stat().st_size > append.size_before:
                file.truncate(append.size_before)
            entries = b"".join(frame.encode(append.entries))
            file.write(append.size_before, entries)
            file.sync()
        append.size = append.size_before + len(entries)
        write_sequence(folder, append.next - 1)
        sequence = folder.stat(SEQUENCE)
        assert sequence is not None
        tail = tail_of(folder.open_to_read(METADATA), append.size, range(0))
        append.facts = facts_of(sequence, tail, append.stats, is_touched=append.is_touched)


class FileWriter:
    """Writes data to a dir segment, each datum to its own file."""

    def __init__(self, folder: Directory, name: str, append: _Append) -> None:
        self._folder = folder
        self._name = name
        self._append = append

    def add(self, payloads: Sequence[bytes], beside: Sequence[bytes]) -> None:
        """Write data; `DirWriter.sync` writes `beside`, the content of their entries. Never overwrites a file."""
        append = self._append
        for payload, each in zip(payloads, beside, strict=True):
            number = append.next
            with self._folder.create_file(file_name(self._name, number)) as file:
                append.numbers.append(number)
                file.write(0, payload)
                append.count(number, file.stat())
            append.entries.append(encode_entry(number, len(payload), crc32(payload), each))
            append.next += 1


def _link_or_copy(source: Directory, file: str, folder: Directory, name: str) -> bool:
    if source.link(file, name, folder):
        return True
    content = source.open_to_read(file)
    with folder.create_file(name) as copy:
        copy.copy(content, 0, content.size(), 0)
    return False
