"""Dir segments: a directory with one file for each datum.

    2026/11-20.h5/
      000000.h5, 000001.h5 …   the data; no number is used twice, and no file is written twice
      .metadata                one entry for each file, one after the other
      .sequence                the last number used, 8 bytes, little-endian; empty before the first
      .metadata.new            the entries of the remaining files, while a repack removes files; replaces `.metadata`

An entry is a frame of `ondisk.frame` (length, content, CRC-32, length); its content is

    u64 number | u64 size of the file | u32 CRC-32 of the file | reftime and metadata, as the format wrote them

all little-endian. If two entries have the same number, the later one counts. An entry without a file means that the
file is lost, unless `.metadata.new` exists without this entry: then a repack removed the file.

A crash leaves files above `.sequence`, files and entries that the index does not know, and a torn entry at the end of
`.metadata`. Nobody reads them. The next append cuts off the torn entry, and uses numbers above those of all files.

In the index, the `End` of a dir segment contains the size of `.metadata` and the next number.
"""

from __future__ import annotations

import contextlib
import re
import stat
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from zlib import crc32

from ondisk import frame
from ondisk.errors import DiskFull, FrameCorrupt, OndiskError, SegmentCorrupt, SegmentMissing, StorageError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.segment import Block, Damage, End, Facts, Laid, Layout, ScanResult, Start
from ondisk.segments import quarantine
from ondisk.segments.facts import Committed, Seen, facts_of, tail_of
from ondisk.segments.generations import LOOKS, hidden
from ondisk.segments.metadata_file import (
    METADATA,
    NEW_METADATA,
    MetadataEntry,
    MetadataFile,
    encode_entry,
    end_of_entries,
)

SEQUENCE = ".sequence"

_NUMBER = struct.Struct("<Q")
_CHUNK = 1024 * 1024  # bytes of a file that are read together
_MANY = 32  # files of a batch; fewer are synced one by one
_COPY = ".copy"
_OPEN = 16  # directories that a reader keeps open
_KEPT = 4  # segments for which a reader keeps the positions of all entries
_FILE = re.compile(r"([0-9]{6,18})\.(.+)")
_FOUND = 256  # data in one `ScanResult`
_RESTORE = "Restore the file from a backup, or delete the datum by its location."


Describe: TypeAlias = Callable[[bytes], tuple[int, Mapping[str, Any]]]
"""Returns the reftime (microseconds) and the metadata that the format wrote to an entry."""


def file_name(name: str, number: int) -> str:
    """Return the name of a segment's file, relative to its directory."""
    return f"{number:06}.{name.rpartition('.')[2]}"


def number_of(name: str, file: str) -> int | None:
    """Return the number of a segment's file; None if `file_name` returns no such name."""
    matched = _FILE.fullmatch(file)
    return int(matched[1]) if matched and file == file_name(name, int(matched[1])) else None


def open_directory(directory: Directory, name: str) -> Directory:
    """Open the directory of a segment.

    Raises:
        SegmentMissing: it does not exist.
    """
    try:
        return directory.inside(name)
    except FileNotFoundError:
        hint = "Restore it from a backup, or run `ondisk fix DATASET --yes`, which removes its data from the index."
        raise SegmentMissing(f"{directory.path / name} is not on disk", hint=hint, segment=name) from None


_MOST = 10**17
"""No segment has so many files. The longest file names have 18 digits."""


def read_sequence(folder: Directory) -> int | None:
    """Return the last number used: -1 before the first; None if `.sequence` does not exist or is damaged."""
    try:
        file = folder.open_to_read(SEQUENCE)
    except FileNotFoundError:
        return None
    content = file.read(0, _NUMBER.size)
    if len(content) < _NUMBER.size:
        return -1
    number: int = _NUMBER.unpack(content)[0]
    return number if number < _MOST else None


def seen_in(folder: Directory, facts: Facts, size: int) -> Seen:
    """Compare the directory of a segment with the facts in the index; read at most the tail of `.metadata`.

    Every append writes `.sequence`, and adds to `.metadata`.

    Args:
        size: bytes of `.metadata` at the last commit.
    """
    sequence = folder.stat(SEQUENCE)
    if sequence is not None and Committed(0, facts, range(0)).is_untouched(sequence):
        return Seen.UNTOUCHED
    if facts.tail is None:
        return Seen.UNKNOWN
    try:
        entries = folder.open_to_read(METADATA)
    except FileNotFoundError:
        return Seen.OTHER
    return Seen.SAME_TAIL if tail_of(entries, size, range(0)) == facts.tail else Seen.OTHER


def facts_in(folder: Directory, size: int) -> Facts:
    """Return the facts of a segment's directory; see `seen_in`."""
    sequence, tail = folder.stat(SEQUENCE), None
    with contextlib.suppress(FileNotFoundError):
        tail = tail_of(folder.open_to_read(METADATA), size, range(0))
    return Facts(tail=tail) if sequence is None else facts_of(sequence, tail, None)


def write_sequence(folder: Directory, number: int) -> None:
    """Write the last number used to `.sequence`, and sync it."""
    folder.separate(SEQUENCE, SEQUENCE + _COPY)
    try:
        file = folder.open_to_write(SEQUENCE)
    except FileNotFoundError:
        file = folder.create_file(SEQUENCE)
    with file:
        file.write(0, _NUMBER.pack(number))
        file.truncate(_NUMBER.size)
        file.sync()


def raise_sequence(folder: Directory, name: str) -> None:
    """Raise `.sequence` to the highest number of a file, if it is lower, and sync it.

    Cuts off a torn entry first: `scan` then still treats the files of that append as interrupted, not as damaged.
    """
    sequence, numbers = read_sequence(folder), files_of(folder, name)
    if not numbers or (sequence is not None and sequence >= max(numbers)):
        return
    with contextlib.suppress(SegmentCorrupt, FileNotFoundError):
        end = end_of_entries(folder, name, End())
        with folder.open_to_write(METADATA) as file:
            file.truncate(end)
            file.sync()
    if folder.stat(METADATA) is not None:  # without it, no file can be read
        write_sequence(folder, max(numbers))
        folder.sync()


@dataclass(slots=True)
class _Append:
    """What a batch wrote to one segment: all that is needed to sync it, or to undo it."""

    path: str  # of the directory; a hidden name for a new segment
    generation: int
    is_new: bool  # the batch created the directory
    known: bool
    size_before: int  # of .metadata
    next: int  # number after the last one used
    numbers: list[int] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    is_synced: bool = False
    size: int = 0  # of .metadata
    facts: Facts = field(default_factory=Facts)


class DirWriter:
    """Appends one batch to its segments: write all files, then sync them all, or undo everything.

    Used under the writers' lock.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._appends: dict[str, _Append] = {}

    def exists(self, name: str, generation: int, committed: Committed | None = None) -> bool:
        """Return whether anything is at the segment's name, after giving a new one its name if a crash came before."""
        if committed is not None:
            complete_folder(self._directory, name, generation, committed)
        return self._directory.stat(name) is not None

    def start(
        self,
        name: str,
        end: End | None,
        committed: Committed | None = None,
        layout: Layout | None = None,
        *,
        trusted: bool,
    ) -> Start:
        """Return where a segment continues: its `length` is the number of the next file.

        Args:
            end: its end in the index; None if the index does not know the segment.
            trusted: the index is trusted. Otherwise the numbers of files and entries count, too.
        """
        known = end or End()
        if self._directory.stat(name) is None:
            return Start(Laid(b"", known), is_new=end is None)
        with self._directory.inside(name) as folder:
            sequence = read_sequence(folder)
            if trusted and end is not None and sequence is not None:
                return Start(Laid(b"", End(known.size, max(known.length, sequence + 1))))
            entries = MetadataFile.of(folder)
        number = max(known.length, self._free_number(name), *(number + 1 for number in entries or ()))
        return Start(Laid(b"", End(known.size, number)), unread=end is None or number > known.length)

    def restart(self, name: str, start: Start) -> Start:
        """Return where a segment continues, after all files that a crash left."""
        return replace(start, laid=Laid(b"", End(start.laid.end.size, self._free_number(name))))

    def clear(self, name: str, generation: int) -> None:
        """Remove what a crash left at the hidden name of a new segment."""
        discard_folder(self._directory, name, hidden(name, generation))

    @contextlib.contextmanager
    def writing(
        self, name: str, generation: int, start: Start, layout: Layout | None = None, *, known: bool
    ) -> Iterator[FileWriter]:
        """Open a segment to write a batch's data to it, as files numbered from `start` on.

        Durability: none until `sync`. A crash before that leaves files above `.sequence`.

        Args:
            start: where it continues; entries are written to `.metadata` from its `size` on.
            known: the index knows the segment, so its directory entry is durable.

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
        self, name: str, generation: int, start: Start, source: Directory, numbers: Sequence[int], *, known: bool
    ) -> bool:
        """Link files of the same segment of another dataset into this one, and copy their entries.

        Durability: as `writing`.

        Args:
            start, known: as in `writing`. The number of `start` is added to the number of each file.
            source: the segment's directory in the other dataset.
            numbers: the numbers of the files there.

        Returns:
            False if the files had to be copied, because they are on another filesystem.

        Raises:
            SegmentMissing: a file, or its entry, does not exist.
        """
        shift = start.laid.end.length
        append = self._begin(name, generation, start, known=known)
        entries = MetadataFile.of(source)
        is_linked = True
        with self._directory.inside(append.path) as folder:
            for number in numbers:
                file = file_name(name, number)
                if entries is None or number not in entries:
                    raise SegmentMissing(f"{source.path / METADATA} has no entry of {file}", segment=name)
                entry = entries.get(number)
                append.numbers.append(number + shift)
                try:
                    is_linked &= _link_or_copy(source, file, folder, file_name(name, number + shift))
                except FileNotFoundError:
                    raise SegmentMissing(f"{source.path / file} is not on disk", segment=name) from None
                append.entries.append(encode_entry(number + shift, entry.size, entry.checksum, entry.beside))
        append.next = max(append.numbers, default=shift - 1) + 1
        return is_linked

    def sync(self) -> None:
        """Make everything written so far durable: the files, then `.metadata` and `.sequence`, then directories.

        Raises:
            DurabilityLost: a sync failed; the batch must not be committed.

        Cost: a few files are synced one by one; many with one sync for all, if the filesystem can, which takes a fifth
            of the time on a quiet disk.
        """
        is_synced = self._sync_together()
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

    def _sync_together(self) -> bool:
        """Sync the files of all segments with one sync if there are many; return whether that was done."""
        if sum(len(append.numbers) for append in self._appends.values()) < _MANY:
            return False
        return self._directory.sync_together(append.path for append in self._appends.values())

    def appended(self, name: str) -> tuple[End, list[Block], Facts]:
        """Return as `ConcatWriter.appended`, after `sync`; files have no blocks."""
        append = self._appends[name]
        return End(append.size, append.next), [], append.facts

    def reveal(self) -> None:
        """Give the directories of new segments their names, after the commit."""
        for name, append in self._appends.items():
            if append.path != name:
                committed = Committed(append.size, append.facts, range(0))
                complete_folder(self._directory, name, append.generation, committed)

    def undo(self) -> None:
        """Undo all writes as far as the disk allows; nobody reads what stays.

        `.sequence` stays as it is, so that no number is used twice.
        """
        for name, append in self._appends.items():
            with contextlib.suppress(OSError, OndiskError), self._directory.inside(append.path) as folder:
                if append.is_synced and not append.is_new:  # entries first: an entry without a file means a lost file
                    with folder.open_to_write(METADATA) as file:
                        file.truncate(append.size_before)
                folder.discard(*(file_name(name, number) for number in append.numbers))
                if append.is_new:
                    folder.discard(METADATA, SEQUENCE)
                    self._directory.remove_directory(append.path)
        self._appends.clear()

    def _begin(self, name: str, generation: int, start: Start, *, known: bool) -> _Append:
        """Create the directory of a segment if it is new."""
        end = start.laid.end
        path = hidden(name, generation) if start.is_new else name
        if start.is_new:
            self._directory.create_file(f"{path}/{SEQUENCE}").close()
        with open_directory(self._directory, path) as folder:
            size = end_of_entries(folder, name, end)
        append = self._appends[name] = _Append(path, generation, start.is_new, known, size, end.length)
        return append

    def _write_entries(self, folder: Directory, append: _Append) -> None:
        """Write `.metadata`, sync it, then write `.sequence`: an entry is durable before its number is."""
        try:
            folder.separate(METADATA, METADATA + _COPY)
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
        append.facts = facts_in(folder, append.size)


def complete_folder(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Give the directory of a generation its name, if that is left to do.

    Another directory at NAME is moved to quarantine, if this one agrees with the facts in the index and that does not.

    Args:
        committed: the facts, and the bytes of `.metadata` at the last commit.

    Durability: the rename is synced.
    """
    alias = hidden(name, generation)
    there = directory.stat(alias)
    if there is None or not stat.S_ISDIR(there.st_mode):
        return
    if directory.stat(name) is not None:
        if _agrees(directory, name, committed) or not _agrees(directory, alias, committed):
            return
        quarantine.keep(directory, name, verb="open", why=f"generation {generation} of the segment takes its place")
    directory.rename(alias, name)


def _agrees(directory: Directory, path: str, committed: Committed) -> bool:
    """Return whether a directory is the one that the index describes."""
    try:
        with directory.inside(path) as folder:
            return seen_in(folder, committed.facts, committed.size) in (Seen.UNTOUCHED, Seen.SAME_TAIL)
    except (FileNotFoundError, StorageError):
        return False


def discard_folder(directory: Directory, name: str, path: str) -> None:
    """Remove the directory of a segment with its files, unless it contains other files.

    First an empty `.metadata.new` is written, so that `scan` does not treat the files as lost after a crash.

    Args:
        path: of the directory.
    """
    found = directory.stat(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return
    with directory.inside(path) as folder:
        folder.discard(NEW_METADATA)
        with contextlib.suppress(DiskFull):  # as long as the index exists, entries without a file do no harm
            folder.create_file(NEW_METADATA).close()
        folder.discard(*(file_name(name, number) for number in files_of(folder, name)))
        folder.discard(METADATA, NEW_METADATA, SEQUENCE)
    directory.remove_directory(path)


def recover_folders(
    directory: Directory,
    name: str,
    generations: list[int],
    current: tuple[int, Committed] | None,
    *,
    unread: bool,
    trusted: bool,
) -> list[int]:
    """Finish what a crash interrupted with one segment; see `ondisk.segments.generations.recover`.

    Returns:
        The generations that are still needed.
    """
    known = None if current is None else current[0]
    if current is not None and known in generations:
        complete_folder(directory, name, *current)
    others = [generation for generation in generations if generation != known]
    if not unread or not trusted:
        return others
    for generation in others:
        alias = hidden(name, generation)
        discard_folder(directory, name, alias)
        if directory.stat(alias) is not None:
            why = "files that are not the segment's were in its directory, which was removed"
            quarantine.keep(directory, alias, verb="repack", why=why, of=name)
    return []


class FileWriter:
    """Writes data to a dir segment, each datum to its own file."""

    def __init__(self, folder: Directory, name: str, append: _Append) -> None:
        self._folder = folder
        self._name = name
        self._append = append

    def add(self, payloads: Sequence[bytes], beside: Sequence[bytes]) -> None:
        """Write data; their entries are written by `DirWriter.sync`.

        Args:
            beside: reftime and metadata of each, as the format wrote them.

        Raises:
            FileExistsError: one of the files exists already.
        """
        append = self._append
        for payload, each in zip(payloads, beside, strict=True):
            number = append.next
            with self._folder.create_file(file_name(self._name, number)) as file:
                append.numbers.append(number)
                file.write(0, payload)
            append.entries.append(encode_entry(number, len(payload), crc32(payload), each))
            append.next += 1


def _link_or_copy(source: Directory, file: str, folder: Directory, name: str) -> bool:
    if source.link(file, name, folder):
        return True
    content = source.open_to_read(file)
    with folder.create_file(name) as copy:
        copy.copy(content, 0, content.size(), 0)
    return False


class DirReader:
    """Reads files of segments, and their metadata. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._folders: OrderedDict[int, Directory] = OrderedDict()
        self._entries: OrderedDict[int, MetadataFile] = OrderedDict()

    def choose(self, generation: int, name: str, facts: Facts, size: int) -> None:
        """Open the directory of a generation that agrees with the facts in the index, if it is not open yet.

        Without one, `read` takes what it finds, and the checksums of files and entries decide.

        Args:
            size: bytes of `.metadata` at the last commit.
        """
        if generation in self._folders:
            return
        alias = hidden(name, generation)
        for place in (alias, name, alias):  # it may be moved in between
            folder = self._inside(place)
            if folder is not None and seen_in(folder, facts, size) is not Seen.OTHER:
                self._keep_open(generation, folder)
                return

    def read(self, generation: int, name: str, number: int, size: int) -> bytes:
        """Read one file, which must have `size` bytes and the checksum in its entry.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: it has another size, or its entry is missing or damaged.
            FrameCorrupt: it has another checksum.
        """
        last = file_name(name, number)
        try:
            file = self._open(generation, name, last)
        except FileNotFoundError:
            message = f"{self._directory.path / name / last} is in the index but not on disk"
            raise SegmentMissing(message, hint=_RESTORE, segment=name) from None
        found = file.size()
        content = file.read(0, size) if found == size else b""
        if len(content) != size:
            message = f"{file.path} has {found} bytes instead of {size}"
            raise SegmentCorrupt(message, hint=_RESTORE, segment=name, size=found, wanted=size)
        _verify(crc32(content), self._entries_with(generation, name, number).checksum(number))
        return content

    def beside(self, generation: int, name: str, number: int) -> bytes:
        """Return reftime and metadata of one file, as the format wrote them.

        Raises:
            SegmentMissing: the segment is not on disk.
            SegmentCorrupt: the file's entry is missing or damaged.
        """
        try:
            return self._entries_with(generation, name, number).get(number).beside
        except FrameCorrupt as error:
            raise self._unreadable(name, number, error.message) from None

    def close(self) -> None:
        self._entries.clear()
        self._folders.clear()

    def _entries_with(self, generation: int, name: str, number: int) -> MetadataFile:
        """Return the `.metadata` of a segment, which has an entry for the file."""
        entries = self._entries.get(generation)
        if entries is not None and number not in entries:
            entries.read_on()
        if entries is None or number not in entries:
            try:
                entries = MetadataFile.of(self._folder(generation, name))
            except FileNotFoundError:
                with open_directory(self._directory, name) as folder:  # reports that it is missing
                    entries = MetadataFile.of(folder)
            if entries is not None:
                self._entries[generation] = entries
                while len(self._entries) > _KEPT:
                    with contextlib.suppress(KeyError):  # another thread removed it
                        self._entries.popitem(last=False)
        if entries is None or number not in entries:
            raise self._unreadable(name, number, "it has no entry")
        return entries

    def _unreadable(self, name: str, number: int, reason: str) -> SegmentCorrupt:
        path = self._directory.path / name
        message = f"{path}: cannot read the metadata of {file_name(name, number)} from {METADATA}: {reason}"
        hint = f"Restore {METADATA} from a backup, or delete the datum by its location."
        return SegmentCorrupt(message, hint=hint, segment=name)

    def _open(self, generation: int, name: str, file: str) -> ReadableFile:
        """Open a file of a segment; look for the directory again if somebody has replaced it."""
        is_known = generation in self._folders
        try:
            return self._folder(generation, name).open_to_read(file)
        except FileNotFoundError:
            self._folders.pop(generation, None)
            if not is_known:
                raise
        return self._folder(generation, name).open_to_read(file)

    def _folder(self, generation: int, name: str) -> Directory:
        """Open the directory of a generation: at its hidden name if that exists, else at its name."""
        folder = self._folders.get(generation)
        if folder is None:
            alias = hidden(name, generation)
            looks = (self._inside(alias) or self._moved(alias, name) for _ in range(LOOKS))
            folder = next((each for each in looks if each is not None), None)  # a drop may be undone meanwhile
            if folder is None:
                raise FileNotFoundError(name)
            self._keep_open(generation, folder)
        return folder

    def _keep_open(self, generation: int, folder: Directory) -> None:
        self._folders[generation] = folder
        while len(self._folders) > _OPEN:
            with contextlib.suppress(KeyError):  # another thread removed it
                self._folders.popitem(last=False)

    def _moved(self, alias: str, name: str) -> Directory | None:
        """Open the directory at its name, unless it was moved to its hidden name in between."""
        plain = self._inside(name)
        return self._inside(alias) or plain

    def _inside(self, name: str) -> Directory | None:
        try:
            return self._directory.inside(name)
        except FileNotFoundError:
            return None


def scan(directory: Directory, name: str, describe: Describe) -> Iterator[ScanResult]:
    """Yield the data of a segment: the files that match their entries. Offsets of data and damage are file numbers.

    An entry without a file is damage, unless a repack removed the file. Files above the last entry belong to an
    interrupted append and are ignored. If the last entry is torn or no entry exists, only files above `.sequence` are
    ignored: those up to it once had an entry.

    Memory: a few numbers for each file; the bytes of one.
    """
    with open_directory(directory, name) as folder:
        sequence, entries = read_sequence(folder), MetadataFile.of(folder)
        sizes, kept = files_of(folder, name), MetadataFile.of(folder, NEW_METADATA)
        lost = {each for each in entries or () if each not in sizes and (kept is None or each in kept)}
        last = -1 if entries is None or entries.damage is not None else max(entries, default=-1)
        found = ScanResult()
        for number in sorted(lost.union(sizes)):
            if number in lost:
                found.damage.append(Damage(number, 1, f"its file is missing, but {METADATA} has an entry for it"))
                continue
            if entries is None or number not in entries:
                is_interrupted = number > last >= 0 or (sequence is not None and number > sequence)
                if not is_interrupted:
                    found.damage.append(Damage(number, 1, f"{METADATA} has no entry for it"))
                continue
            try:
                entry = entries.get(number)
                reftime, metadata = _describe(folder, file_name(name, number), entry, describe)
            except (FrameCorrupt, FileNotFoundError) as error:
                reason = error.message if isinstance(error, FrameCorrupt) else "its file is missing"
                found.damage.append(Damage(number, 1, reason))
                continue
            found.offsets.append(number)
            found.sizes.append(entry.size)
            found.reftimes.append(reftime)
            found.metadata.append(metadata)
            if len(found.offsets) >= _FOUND:
                yield found
                found = ScanResult()
        highest = max([-1, *sizes, *(entries or ())])
        found.end = End(0 if entries is None else entries.end, max(highest, -1 if sequence is None else sequence) + 1)
        yield found


def files_of(folder: Directory, name: str) -> dict[int, int]:
    """Return the number and size of each file of a segment."""
    numbers = ((number_of(name, each.name), each) for each in folder.entries() if each.kind == "file")
    return {number: each.size for number, each in numbers if number is not None}


def _describe(folder: Directory, file: str, entry: MetadataEntry, describe: Describe) -> tuple[int, Mapping[str, Any]]:
    """Read a file, and return its reftime and metadata.

    Raises:
        FrameCorrupt: the file does not match its entry.
    """
    opened = folder.open_to_read(file)
    if opened.size() != entry.size:
        raise FrameCorrupt(f"it has {opened.size()} bytes instead of {entry.size}")
    checksum = at = 0
    while chunk := opened.read(at, _CHUNK):
        checksum, at = crc32(chunk, checksum), at + len(chunk)
    _verify(checksum, entry.checksum)
    return describe(entry.beside)


def _verify(checksum: int, wanted: int) -> None:
    """Raise FrameCorrupt unless a file has the checksum in its entry."""
    if checksum != wanted:
        raise FrameCorrupt(f"its checksum is {checksum:#010x} instead of {wanted:#010x}", hint=_RESTORE)
