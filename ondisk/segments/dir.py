"""Dir segments: a directory with one file for each datum.

    2026/11-20.h5/
      000000.h5, 000001.h5 …   the data; in a generation no number is used twice, and no file is written twice
      .metadata                one entry for each file, one after the other
      .sequence                the last number used, 8 bytes, little-endian; empty before the first
      .metadata.new            the entries of the files that remain, while others are removed; replaces `.metadata`

An entry is a frame of `ondisk.frame` (length, content, CRC-32, length); its content is

    u64 number | u64 size of the file | u32 CRC-32 of the file | reftime and metadata, as the format wrote them

all little-endian. If two entries have the same number, the later one counts. An entry without a file means that the
file is lost, unless `.metadata.new` exists without this entry: then ondisk removed the file.

A repack links the files into a new generation of the directory, with numbers from 0 in query order.

A crash leaves files above `.sequence`, files and entries that the index does not know, and a torn entry at the end of
`.metadata`. Nobody reads them. The next append cuts off the torn entry, and uses numbers above those of all files.

In the index, the `End` of a dir segment contains the size of `.metadata` and the next number. Its facts are

    mtime, inode    of `.sequence`, which every append and every repack writes
    tail            of `.metadata`, to which every append adds, and which every repack replaces
    checksum        of number, size, mtime and inode of every file: compared by what looks at all of them anyway

The tail is compared also if time and inode are as recorded: another directory may get a freed inode, and a clock may be
too coarse to show that a file was written twice.
"""

from __future__ import annotations

import contextlib
import re
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from google_crc32c import extend
from zlib_ng.zlib_ng import crc32

from ondisk import frame
from ondisk.datum import INTEGER_MAX
from ondisk.errors import RESTORE, DiskFull, FrameCorrupt, InvalidInput, SegmentCorrupt, SegmentMissing
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.segment import Damage, End, Facts, ScanResult
from ondisk.segments import quarantine
from ondisk.segments.file_facts import (
    Committed,
    Seen,
    changed,
    drop_oldest,
    facts_of,
    missing,
    restore_or_salvage,
    tail_of,
)
from ondisk.segments.generations import names_of

SEQUENCE = ".sequence"
METADATA, NEW_METADATA = ".metadata", ".metadata.new"
COPY = ".copy"

_FILE = re.compile(r"([0-9]{6,18})\.(.+)")
_NUMBER = struct.Struct("<Q")
_BEGIN = struct.Struct("<QQI")  # of an entry
_STAT = struct.Struct("<4q")
_MOST = 10**17  # no segment has so many files; the longest file names have 18 digits
_FOUND = 256  # data in one `ScanResult`
_CHUNK = 1024 * 1024  # bytes of a file that are read together
_LONGEST = 2 * 1024 * 1024  # bytes of an entry
_ENTRIES = 64 * 1024  # bytes of entries that are read together; each damaged entry copies the rest of them

Describe: TypeAlias = Callable[[bytes], tuple[int, Mapping[str, Any]]]
"""Returns the reftime (microseconds) and the metadata that the format wrote to an entry."""

BesideOf: TypeAlias = Callable[[bytes], bytes]
"""Returns what the format writes to the entry of a file."""


def file_name(name: str, number: int) -> str:
    return f"{number:06}.{name.rpartition('.')[2]}"


def number_of(name: str, file: str) -> int | None:
    """Return the number of a segment's file; None if `file_name` returns no such name."""
    matched = _FILE.fullmatch(file)
    return int(matched[1]) if matched and file == file_name(name, int(matched[1])) else None


def open_directory(directory: Directory, name: str) -> Directory:
    try:
        return directory.inside(name)
    except FileNotFoundError:
        raise missing(directory, name) from None


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


def write_sequence(folder: Directory, number: int) -> None:
    folder.separate(SEQUENCE, SEQUENCE + COPY)
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


def add_entries(folder: Directory, name: str, beside_of: BesideOf, limit: int) -> None:
    """Write the entries that are missing of files which say themselves what is in them.

    Only if `.metadata` is missing or damaged: else a file without one belongs to an interrupted append, as do those
    above `.sequence`.

    Args:
        limit: larger files get none.

    Memory: `.metadata`, and one file.
    """
    sequence, entries = read_sequence(folder), MetadataFile.of(folder)
    if entries is not None and entries.is_intact:
        return
    added = []
    for number, size in sorted(files_of(folder, name).items()):
        is_interrupted = sequence is not None and number > sequence
        if is_interrupted or size > limit or (entries is not None and number in entries):
            continue
        content = folder.read(file_name(name, number), limit)
        with contextlib.suppress(InvalidInput):
            added += frame.encode([encode_entry(number, len(content), crc32(content), beside_of(content))])
    if added:
        kept = [] if entries is None else map(entries.frame, entries)
        folder.replace(METADATA, b"".join([*kept, *added]))


def keep_only(folder: Directory, name: str, kept: Collection[int]) -> None:
    """Remove the files of a segment but some, and first all entries but theirs.

    After a crash in between, files without an entry are those of an interrupted append.

    Memory: `.metadata`.
    """
    entries = MetadataFile.of(folder)
    frames = [] if entries is None else [entries.frame(number) for number in sorted(kept) if number in entries]
    folder.replace(METADATA, b"".join(frames))
    folder.discard(*(file_name(name, number) for number in files_of(folder, name) if number not in kept))


def scan(folder: Directory, name: str, describe: Describe) -> Iterator[ScanResult]:
    """Yield the data of a segment: the files that match their entries. Offsets of data and damage are file numbers.

    An entry without a file is damage, unless a repack removed the file. Files without an entry belong to interrupted
    appends and are ignored. If an entry is damaged or torn, or no entry exists, only files above `.sequence` are
    ignored: those up to it may have had an entry.

    Memory: a few numbers for each file; the bytes of one.
    """
    sequence, entries = read_sequence(folder), MetadataFile.of(folder)
    sizes, kept = files_of(folder, name), MetadataFile.of(folder, NEW_METADATA)
    lost = {each for each in entries or () if each not in sizes and (kept is None or each in kept)}
    is_intact = entries is not None and entries.is_intact
    found = ScanResult()
    for number in sorted(lost.union(sizes)):
        if number in lost:
            found.damage.append(Damage(number, 1, f"its file is missing, but {METADATA} has an entry for it"))
            continue
        if entries is None or number not in entries:
            is_interrupted = is_intact or (sequence is not None and number > sequence)
            if not is_interrupted:
                found.damage.append(Damage(number, 1, f"{METADATA} has no entry for it"))
            continue
        try:
            entry = entries.get(number)
            verify_file(folder, file_name(name, number), entry)
            reftime, metadata = describe(entry.beside)
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


def entries_of(folder: Directory, name: str) -> dict[int, Entry]:
    numbers = ((number_of(name, each.name), each) for each in folder.entries() if each.kind == "file")
    return {number: each for number, each in numbers if number is not None}


def files_of(folder: Directory, name: str) -> dict[int, int]:
    return {number: each.size for number, each in entries_of(folder, name).items()}


def verify_file(folder: Directory, file: str, entry: MetadataEntry) -> None:
    """Read a file, and raise FrameCorrupt unless it matches its entry."""
    size = folder.open_to_read(file).size()
    if size != entry.size:
        raise FrameCorrupt(f"it has {size} bytes instead of {entry.size}")
    verify(checksum_of(folder, file), entry.checksum)


def checksum_of(folder: Directory, file: str) -> int:
    opened = folder.open_to_read(file)
    checksum = at = 0
    while chunk := opened.read(at, _CHUNK):
        checksum, at = crc32(chunk, checksum), at + len(chunk)
    return checksum


def is_whole(folder: Directory, file: str, entry: MetadataEntry) -> bool:
    with contextlib.suppress(FrameCorrupt):
        verify_file(folder, file, entry)
        return True
    return False


def verify(checksum: int, wanted: int) -> None:
    if checksum != wanted:
        raise FrameCorrupt(f"its checksum is {checksum:#010x} instead of {wanted:#010x}")


class MetadataEntry(NamedTuple):
    """The entry of one file in `.metadata`."""

    size: int  # bytes of the file
    checksum: int  # CRC-32 of the file
    beside: bytes  # reftime and metadata, as the format wrote them


def encode_entry(number: int, size: int, checksum: int, beside: bytes) -> bytes:
    return _BEGIN.pack(number, size, checksum) + beside


class MetadataFile:
    """The `.metadata` of one segment: reads entries by the number of their file. Threads may share it.

    Iterates over these numbers.

    Memory: a few numbers for each entry.
    """

    def __init__(self, file: ReadableFile) -> None:
        self.end = 0  # position after the last entry
        self.damage: frame.Fault | None = None  # what is wrong after that; None if the file ends there
        self.skipped = False  # a damaged entry before that was skipped
        self._file = file
        self._spans: dict[int, tuple[int, int, int]] = {}  # number → position and size of the entry, checksum
        self._lock = threading.Lock()
        self.read_on()

    @classmethod
    def of(cls, folder: Directory, name: str = METADATA) -> MetadataFile | None:
        try:
            return cls(folder.open_to_read(name))
        except FileNotFoundError:
            return None

    def read_on(self) -> None:
        """Read what was appended since; skip a damaged entry if one of its lengths is intact."""
        with self._lock:
            at, rest = self.end, b""
            while True:
                chunk = self._file.read(at + len(rest), _ENTRIES)
                rest += chunk
                while True:
                    scanned = self._scan(rest, at)
                    rest, at = rest[scanned.end - at :], scanned.end
                    is_damaged = scanned.damage is not None and not scanned.damage.torn
                    size = _end_of_damaged(rest) if is_damaged or (scanned.damage is not None and not chunk) else 0
                    if not size:
                        break
                    rest, at, self.skipped = rest[size:], at + size, True
                self.end, self.damage = at, scanned.damage
                if is_damaged or not chunk:
                    return

    def _scan(self, data: bytes, at: int) -> frame.Scan:
        """Scan bytes at a position, and remember where their entries are."""
        scanned = frame.scan(data, max_size=_LONGEST, base=at)
        ends = (*scanned.offsets[1:], scanned.end)
        for offset, end, content in zip(scanned.offsets, ends, scanned.payloads, strict=False):
            if len(content) >= _BEGIN.size:
                number, _, checksum = _BEGIN.unpack_from(content)
                self._spans[number] = offset, end - offset, checksum
        return scanned

    @property
    def is_intact(self) -> bool:
        """Whether no entry is damaged, and there is one: then a file without an entry never was a datum."""
        return bool(self._spans) and self.damage is None and not self.skipped

    def __contains__(self, number: int) -> bool:
        return number in self._spans

    def __iter__(self) -> Iterator[int]:
        return iter(self._spans)

    def frame(self, number: int) -> bytes:
        position, size, _ = self._spans[number]
        return self._file.read(position, size)

    def has_size(self, number: int, size: int) -> bool:
        try:
            return number in self and self.get(number).size == size
        except FrameCorrupt:
            return False

    def checksum(self, number: int) -> int:
        """Return the CRC-32 of a file. It was verified when `.metadata` was read."""
        return self._spans[number][2]

    def get(self, number: int) -> MetadataEntry:
        """Return the entry of a file; raise KeyError without one, FrameCorrupt if it is damaged."""
        content = bytes(frame.decode(self.frame(number)))
        _, size, checksum = _BEGIN.unpack_from(content)
        return MetadataEntry(size, checksum, content[_BEGIN.size :])


def _end_of_damaged(data: bytes) -> int:
    """Return the size of the damaged entry at the beginning of `data`; 0 if both of its lengths are damaged."""
    size = frame.length(data)
    if frame.has_two_lengths(data, _LONGEST):
        return size
    if frame.OVERHEAD < size < len(data) and frame.is_whole(data, size, _LONGEST):
        return size
    for end in range(frame.OVERHEAD + 1, min(len(data), _LONGEST)):
        if frame.length(data[end - 4 : end]) == end and frame.is_whole(data, end, _LONGEST):
            return end
    return 0


def end_of_entries(folder: Directory, name: str, end: End) -> int:
    """Return where the next entry goes in `.metadata`, before a torn one; raise SegmentCorrupt if it is damaged."""
    try:
        file = folder.open_to_read(METADATA)
    except FileNotFoundError:
        return 0
    size = file.size()
    for known in (end.size, size):
        if 0 < known <= size and _is_end_of_entry(file, known):
            return known
    entries = MetadataFile(file)
    rest = file.read(entries.end, _LONGEST + 1)
    if entries.damage is None or entries.damage.torn or not rest.strip(b"\0"):
        return entries.end
    raise SegmentCorrupt(
        f"cannot append to {folder.path}: {METADATA} is damaged at byte {entries.end}: {entries.damage.reason}",
        hint=f"{RESTORE}.",
        segment=name,
    )


def _is_end_of_entry(file: ReadableFile, position: int) -> bool:
    size = frame.length(file.read(position - 4, 4)) if position >= frame.OVERHEAD else 0
    if not frame.OVERHEAD < size <= min(position, _LONGEST):
        return False
    return frame.walk_back(file.read(position - size, size), max_size=_LONGEST) == 0


def seen_in(folder: Directory, facts: Facts, size: int) -> Seen:
    """Compare the directory of a segment with the facts in the index; read at most the tail of `.metadata`.

    The files of the data are not looked at: who reads one compares its checksum with its entry.

    Args:
        size: bytes of `.metadata` at the last commit.
    """
    sequence = folder.stat(SEQUENCE)
    is_untouched = sequence is not None and Committed(0, facts, range(0)).is_untouched(sequence)
    entries = None
    with contextlib.suppress(FileNotFoundError):
        entries = folder.open_to_read(METADATA)
    if (0 if entries is None else entries.size()) < size:
        return Seen.OTHER
    if facts.tail is None:
        return Seen.UNTOUCHED if is_untouched else Seen.UNKNOWN
    if entries is None or tail_of(entries, size, range(0)) != facts.tail:
        return Seen.OTHER
    return Seen.UNTOUCHED if is_untouched else Seen.SAME_TAIL


def is_refused(folder: Directory, facts: Facts) -> bool:
    """Return whether a fix has found none of the segment's data in the directory with this `.metadata`."""
    entries = folder.stat(METADATA)
    return entries is not None and Committed(0, facts, range(0)).is_refused(entries)


def seen_with_files(folder: Directory, facts: Facts, size: int, stats: int | None) -> Seen:
    """Compare the directory of a segment with the facts in the index, its files included.

    Args:
        stats: what `checksum_of_stats` returns.

    Returns:
        SAME_TAIL if a file was touched, exchanged, added or removed: then only reading all of them shows what they are.
    """
    seen = seen_in(folder, facts, size)
    if facts.checksum is None or seen in (Seen.OTHER, Seen.UNKNOWN):
        return seen
    return seen if stats == facts.checksum else Seen.SAME_TAIL


def facts_in(folder: Directory, name: str, end: End) -> Facts:
    sequence, tail = folder.stat(SEQUENCE), None
    with contextlib.suppress(FileNotFoundError):
        tail = tail_of(folder.open_to_read(METADATA), end.size, range(0))
    stats = checksum_of_stats(entries_of(folder, name), end.length)
    return Facts(tail=tail, checksum=stats) if sequence is None else facts_of(sequence, tail, stats)


def checksum_of_stats(files: Mapping[int, Entry], length: int) -> int:
    """Return the checksum that shows whether somebody touched, exchanged, added or removed one of some files."""
    counted = ((number, files[number]) for number in sorted(files) if number < length)
    return int(extend(0, b"".join(stat_of(number, at.size, at.mtime, at.inode) for number, at in counted)))


def stat_of(number: int, size: int, mtime: int, inode: int) -> bytes:
    """Return what `checksum_of_stats` sums up of a file."""
    return _STAT.pack(number, size, mtime, inode & INTEGER_MAX)


def discard_folder(directory: Directory, name: str, path: str) -> None:
    """Remove the directory of a segment with its files, unless it contains other files.

    First an empty `.metadata.new` is written, so that `scan` does not treat the files as lost after a crash.
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


def drop_folder(directory: Directory, name: str, path: str) -> None:
    """Remove the directory of a generation; if it contains other files, those go to quarantine with it."""
    discard_folder(directory, name, path)
    if directory.stat(path) is not None:
        why = "files that are not the segment's were in its directory, which was removed"
        quarantine.keep(directory, path, verb="repack", why=why, of=name)


Known: TypeAlias = Callable[[], Committed]

_OPEN = 16  # directories that a reader keeps open
_KEPT = 4  # segments for which a reader keeps the positions of all entries


class DirReader:
    """Reads files of segments, and their metadata. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._folders: OrderedDict[int, Directory] = OrderedDict()
        self._entries: OrderedDict[int, MetadataFile] = OrderedDict()
        self._most = _OPEN

    def folder_of(self, generation: int, name: str, known: Known) -> Directory:
        """Open the directory of a generation: at its hidden name if that exists, else at its name.

        Only a directory that agrees with the facts in the index is it: in another one, the numbers may have other data.

        Args:
            known: returns the facts, and the bytes of `.metadata` at the last commit.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: another directory is in its place.
        """
        folder = self._folders.get(generation)
        if folder is not None:
            return folder
        other, committed = None, known()
        for place in names_of(self._directory, name, generation):
            folder = self._inside(place)
            if folder is not None and seen_in(folder, committed.facts, committed.size) is not Seen.OTHER:
                self._folders[generation] = folder
                drop_oldest(self._folders, self._most)
                return folder
            other = folder or other
        if other is None:
            open_directory(self._directory, name).close()  # reports that it is missing
        raise changed(self._directory, name, is_refused=other is not None and is_refused(other, committed.facts))

    def read(self, generation: int, name: str, known: Known, number: int, size: int) -> bytes:
        """Read one file, which must have `size` bytes and the checksum in its entry.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: it has another size, its entry is missing or damaged, or another directory is in the place
                of the segment's.
            FrameCorrupt: it has another checksum.
        """
        last = file_name(name, number)
        try:
            file = self._open(generation, name, known, last)
        except FileNotFoundError:
            message = f"{self._directory.path / name / last} is in the index but not on disk"
            raise SegmentMissing(message, hint=restore_or_salvage(self._directory, name), segment=name) from None
        found = file.size()
        content = file.read(0, size) if found == size else b""
        if len(content) != size:
            message = f"{file.path} has {found} bytes instead of {size}"
            hint = restore_or_salvage(self._directory, name)
            raise SegmentCorrupt(message, hint=hint, segment=name, size=found, wanted=size)
        verify(crc32(content), self._entries_with(generation, name, known, number).checksum(number))
        return content

    def beside(self, generation: int, name: str, known: Known, number: int) -> bytes:
        """Return reftime and metadata of one file, as the format wrote them; raise as `read`."""
        try:
            return self._entries_with(generation, name, known, number).get(number).beside
        except FrameCorrupt as error:
            raise self._unreadable(name, number, error.message) from None

    def keep_open(self, most: int) -> None:
        self._most = min(self._most, most)

    def close(self) -> None:
        self._entries.clear()
        self._folders.clear()

    def _entries_with(self, generation: int, name: str, known: Known, number: int) -> MetadataFile:
        """Return the `.metadata` of a segment, which has an entry for the file."""
        entries = self._entries.get(generation)
        if entries is not None and number not in entries:
            entries.read_on()
        if entries is None or number not in entries:
            entries = MetadataFile.of(self.folder_of(generation, name, known))
            if entries is not None:
                self._entries[generation] = entries
                drop_oldest(self._entries, _KEPT)
        if entries is None or number not in entries:
            raise self._unreadable(name, number, "it has no entry")
        return entries

    def _unreadable(self, name: str, number: int, reason: str) -> SegmentCorrupt:
        path = self._directory.path / name
        message = f"{path}: cannot read the metadata of {file_name(name, number)} from {METADATA}: {reason}"
        return SegmentCorrupt(message, hint=restore_or_salvage(self._directory, name), segment=name)

    def _open(self, generation: int, name: str, known: Known, file: str) -> ReadableFile:
        """Open a file of a segment; look for the directory again if somebody has replaced it."""
        is_known = generation in self._folders
        try:
            return self.folder_of(generation, name, known).open_to_read(file)
        except FileNotFoundError:
            self._folders.pop(generation, None)
            if not is_known:
                raise
        return self.folder_of(generation, name, known).open_to_read(file)

    def _inside(self, name: str) -> Directory | None:
        with contextlib.suppress(FileNotFoundError):
            return self._directory.inside(name)
        return None
