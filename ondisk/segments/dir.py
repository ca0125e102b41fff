"""Dir segments: a directory, in it a file for each datum.

    2026/11-20.h5/
      000000.h5, 000001.h5 …   the data; a number is given out once, and a file is never written again
      .metadata                an entry for each file, one behind the other
      .sequence                the last number given out, 8 bytes, little-endian; empty before the first
      .metadata.new            entries of what stays, while a repack removes files; takes the place of `.metadata` then

An entry is a frame as in `ondisk.formats.diskqueue.frame` (length, content, CRC-32, length); its content is

    u64 number | u64 size of the file | u32 CRC-32 of the file | reftime and metadata, as the format wrote them

all little-endian. Of two entries with one number the later one counts. An entry without its file tells of one that is
lost, but where `.metadata.new` does not have it, too. What a crash leaves are files above `.sequence`,
entries and files that the index does not know, and a torn entry at the end of `.metadata`, which the next append cuts
off. Nobody reads these, and the next append goes on above all files.

The index has of such a segment, as `End`, the size of `.metadata` and the number that comes next.
"""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from ondisk.errors import FrameCorrupt, OndiskError, SegmentCorrupt, SegmentMissing
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats.diskqueue import frame
from ondisk.segment import Block, Damage, End, Laid, Layout, ScanResult

METADATA, SEQUENCE, STAGED = ".metadata", ".sequence", ".metadata.new"

_BEGIN = struct.Struct("<QQI")
_NUMBER = struct.Struct("<Q")
_LONGEST = 2 * 1024 * 1024  # bytes of an entry
_PIECE = 1024 * 1024
_ENTRIES = 64 * 1024  # bytes of entries read together: what is left of them is copied for each one that is damaged
_MANY = 32  # files of a batch; fewer are synced one by one
_KEPT = 4  # segments of which a reader keeps the places of all entries
_FILE = re.compile(r"([0-9]{6,18})\.(.+)")
_FOUND = 256  # data that are described together
_RESTORE = "Restore the file from a backup, or delete the datum by its location."


Describe: TypeAlias = Callable[[bytes], tuple[int, Mapping[str, Any]]]
"""Reads reftime (microseconds) and metadata from what is beside a file."""


class Entry(NamedTuple):
    """What stands in `.metadata` of one file.

    Attributes:
        size: bytes of the file.
        checksum: its CRC-32.
        beside: reftime and metadata, as the format wrote them.
    """

    size: int
    checksum: int
    beside: bytes


def file_name(name: str, number: int) -> str:
    """Name one file of a segment, relative to its directory."""
    return f"{number:06}.{name.rpartition('.')[2]}"


def number_of(name: str, file: str) -> int | None:
    """Give the number of a file of a segment; None where its name is none that ondisk gives."""
    matched = _FILE.fullmatch(file)
    return int(matched[1]) if matched and file == file_name(name, int(matched[1])) else None


def open_directory(directory: Directory, name: str) -> Directory:
    """Open the directory of a segment.

    Raises:
        SegmentMissing: there is none.
    """
    try:
        return directory.inside(name)
    except FileNotFoundError:
        hint = "Put the directory back, from a backup, or delete its data."
        raise SegmentMissing(f"{directory.path / name} is not on disk", hint=hint, segment=name) from None


_MOST = 10**17
"""No segment has so many files; names of 18 digits are the longest that are read."""


def read_sequence(folder: Directory) -> int | None:
    """Read the last number that was given out: -1 before the first; None where nothing says it."""
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
    """Say which number was given out last. Synced."""
    try:
        file = folder.open_to_write(SEQUENCE)
    except FileNotFoundError:
        file = folder.create_file(SEQUENCE)
    with file:
        file.write(0, _NUMBER.pack(number))
        file.truncate(_NUMBER.size)
        file.sync()


def raise_sequence(folder: Directory, name: str) -> None:
    """Let `.sequence` say the highest number of a file, if it says less. Synced.

    A torn entry is cut off first: then files of the append that wrote it are still told from damage, see `scan`.
    """
    sequence, numbers = read_sequence(folder), files_of(folder, name)
    if not numbers or (sequence is not None and sequence >= max(numbers)):
        return
    with contextlib.suppress(SegmentCorrupt, FileNotFoundError):
        end = _end_of_entries(folder, name, End())
        with folder.open_to_write(METADATA) as file:
            file.truncate(end)
            file.sync()
    if folder.stat(METADATA) is not None:  # else nobody knows what any of the files is
        write_sequence(folder, max(numbers))
        folder.sync()


class Entries:
    """The entries of one segment, found by the number of their file. May be shared by threads.

    Attributes:
        end: position behind the last one.
        damage: what is wrong behind it; None where the file just ends.

    Memory: a few numbers for each entry.
    """

    def __init__(self, file: ReadableFile) -> None:
        self.end = 0
        self.damage: frame.Fault | None = None
        self._file = file
        self._places: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self.read_on()

    @classmethod
    def of(cls, folder: Directory, name: str = METADATA) -> Entries | None:
        """Read the entries of a segment; None where it has no `.metadata`."""
        try:
            return cls(folder.open_to_read(name))
        except FileNotFoundError:
            return None

    def read_on(self) -> None:
        """Find what was appended since; entries that are damaged are passed over where the way on can be told."""
        with self._lock:
            at, held = self.end, b""
            while True:
                chunk = self._file.read(at + len(held), _ENTRIES)
                held += chunk
                while True:
                    scanned = self._found(held, at)
                    held, at = held[scanned.end - at :], scanned.end
                    is_damaged = scanned.damage is not None and not scanned.damage.torn
                    if not is_damaged or not frame.has_two_lengths(held, _LONGEST):
                        break
                    size = frame.length(held)
                    held, at = held[size:], at + size
                self.end, self.damage = at, scanned.damage
                if is_damaged or not chunk:
                    return

    def _found(self, data: bytes, at: int) -> frame.Scan:
        """Remember where the entries stand in some bytes."""
        scanned = frame.scan(data, max_size=_LONGEST, base=at)
        behind = (*scanned.offsets[1:], scanned.end)
        for offset, end, content in zip(scanned.offsets, behind, scanned.payloads, strict=False):
            if len(content) >= _BEGIN.size:
                self._places[_BEGIN.unpack_from(content)[0]] = offset, end - offset
        return scanned

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def frame(self, number: int) -> bytes:
        """Give the whole entry of a file, as it stands there."""
        position, size = self._places[number]
        return self._file.read(position, size)

    def get(self, number: int) -> Entry:
        """Give the entry of a file.

        Raises:
            KeyError: there is none.
            FrameCorrupt: it is damaged.
        """
        content = frame.decode(self.frame(number))
        _, size, checksum = _BEGIN.unpack_from(content)
        return Entry(size, checksum, content[_BEGIN.size :])


@dataclass(slots=True)
class _Written:
    """One segment that a batch has written to."""

    is_new: bool  # the batch made the directory
    known: bool
    size_before: int  # of .metadata
    next: int  # number after the last one given out
    numbers: list[int] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    is_synced: bool = False
    size: int = 0  # of .metadata
    mtime: int = 0


class DirWriter:
    """Appends one batch to its segments: write all files, then sync them, or take everything back.

    Used under the writers' lock.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._written: dict[str, _Written] = {}

    def exists(self, name: str, generation: int = 0, size: int = 0) -> bool:
        """Return whether anything is at the segment's name; a dir segment has no generations."""
        return self._directory.stat(name) is not None

    def start(self, name: str, end: End | None, layout: Layout | None = None, *, trusted: bool) -> Laid:
        """Return where a segment continues: its `length` is the number of the next file.

        Args:
            end: as the index knows it; None if it does not know the segment.
            trusted: the index is trusted. Otherwise files and entries are looked at, too.
        """
        known = end or End()
        if not self.exists(name):
            return Laid(b"", known)
        with self._directory.inside(name) as folder:
            sequence = read_sequence(folder)
            if trusted and end is not None and sequence is not None:
                return Laid(b"", End(known.size, max(known.length, sequence + 1)))
            entries = Entries.of(folder)
        number = max(known.length, self._free_number(name), *(number + 1 for number in entries or ()))
        return Laid(b"", End(known.size, number))

    def restart(self, name: str, start: Laid) -> Laid:
        """Return where a segment continues after all files that a crash left there."""
        return Laid(b"", End(start.end.size, self._free_number(name)))

    def clear(self, name: str, generation: int) -> None:
        """Do nothing: a dir segment has no generations."""

    @contextlib.contextmanager
    def writing(self, name: str, start: Laid, layout: Layout | None = None, *, known: bool) -> Iterator[FileWriter]:
        """Open a segment to write a batch's data to it, as files numbered from `start` on.

        Durability: nothing, until `sync`. A crash before leaves files above `.sequence`.

        Args:
            start: where it continues; entries are written to `.metadata` from its `size` on.
            known: the index knows the segment, so its directory entry is durable.

        Raises:
            FileExistsError: one of these files exists already, and is never overwritten; see `restart`.
            SegmentMissing: the index knows data of it, and it is not on disk.
            SegmentCorrupt: `.metadata` is damaged.
        """
        written = self._begin(name, start.end, known=known)
        with self._directory.inside(name) as folder:
            yield FileWriter(folder, name, written)

    def _free_number(self, name: str) -> int:
        """Return the number above those of all files, and above the last one given out."""
        with self._directory.inside(name) as folder:
            sequence = read_sequence(folder)
            numbers = [number_of(name, each) for each in folder.names()]
        return max([-1 if sequence is None else sequence, *(each for each in numbers if each is not None)]) + 1

    def adopt(self, name: str, start: Laid, source: Directory, numbers: Sequence[int], *, known: bool) -> bool:
        """Give files of the same segment of another dataset a second name here, and copy their entries.

        Durability: as `writing`.

        Args:
            start, known: as in `writing`. A file's number here is its number there, plus the number of `start`.
            source: the segment's directory there.
            numbers: those of its files.

        Returns:
            False where they had to be copied, since they are on another filesystem.

        Raises:
            SegmentMissing: a file, or its entry, is not there.
        """
        shift = start.end.length
        written = self._begin(name, start.end, known=known)
        entries = Entries.of(source)
        is_linked = True
        with self._directory.inside(name) as folder:
            for number in numbers:
                file = file_name(name, number)
                if entries is None or number not in entries:
                    raise SegmentMissing(f"{source.path / METADATA} has no entry of {file}", segment=name)
                entry = entries.get(number)
                written.numbers.append(number + shift)
                try:
                    is_linked &= _link_or_copy(source, file, folder, file_name(name, number + shift))
                except FileNotFoundError:
                    raise SegmentMissing(f"{source.path / file} is not on disk", segment=name) from None
                written.entries.append(_BEGIN.pack(number + shift, entry.size, entry.checksum) + entry.beside)
        written.next = max(written.numbers, default=shift - 1) + 1
        return is_linked

    def sync(self) -> None:
        """Make everything written so far durable: the files, then what says of them.

        Raises:
            DurabilityLost: a sync failed; the batch must not be committed.

        Cost: of a few files, a sync for each, all behind the last write; of more, one for all where the filesystem
            allows it, which takes a fifth of the time on a quiet disk.
        """
        is_synced = self._sync_together()
        parents = set()
        for name, written in self._written.items():
            with self._directory.inside(name) as folder:
                for number in () if is_synced else written.numbers:
                    with folder.open_to_write(file_name(name, number)) as file:
                        file.sync()
                written.is_synced = True
                self._say(folder, written)
                folder.sync()
            if not written.known:
                parents |= {name.rpartition("/")[0], ""}
        for parent in parents:
            self._directory.sync(parent)

    def _sync_together(self) -> bool:
        """Sync the files of all segments at once, if there are many; tells whether that was done."""
        if sum(len(written.numbers) for written in self._written.values()) < _MANY:
            return False
        return self._directory.sync_together(self._written)

    def end(self, name: str) -> End:
        """Return where a segment that was synced ends now."""
        written = self._written[name]
        return End(written.size, written.next)

    def blocks(self, name: str) -> list[Block]:
        """Return no blocks: files are not compressed."""
        return []

    def mtime(self, name: str) -> int:
        """Tell when a segment was written, nanoseconds since 1970."""
        return self._written[name].mtime

    def undo(self) -> None:
        """Take back what was written, as far as the disk lets us: what stays is nothing that anybody reads.

        `.sequence` stays as it is, so no number is given out again.
        """
        for name, written in self._written.items():
            with contextlib.suppress(OSError, OndiskError), self._directory.inside(name) as folder:
                if written.is_synced and not written.is_new:  # the entries first: without its file, one would look lost
                    with folder.open_to_write(METADATA) as file:
                        file.truncate(written.size_before)
                for number in written.numbers:
                    _discard(folder, file_name(name, number))
                if written.is_new:
                    _discard(folder, METADATA)
                    _discard(folder, SEQUENCE)
                    self._directory.remove_directory(name)
        self._written.clear()

    def close(self) -> None:
        """Do nothing: no file is open between two calls."""

    def _begin(self, name: str, end: End, *, known: bool) -> _Written:
        """Make the directory of a segment, if it is not there."""
        is_new = not self.exists(name)
        if is_new and end.length:
            open_directory(self._directory, name)
        if is_new:
            self._directory.create_file(f"{name}/{SEQUENCE}").close()
        with self._directory.inside(name) as folder:
            written = _Written(is_new, known, _end_of_entries(folder, name, end), end.length)
        self._written[name] = written
        return written

    def _say(self, folder: Directory, written: _Written) -> None:
        """Write `.metadata`, then `.sequence`: an entry is durable before its number is."""
        try:
            file = folder.open_to_write(METADATA)
        except FileNotFoundError:
            file = folder.create_file(METADATA)
        with file:
            if file.stat().st_size > written.size_before:
                file.truncate(written.size_before)
            entries = b"".join(frame.encode(written.entries))
            file.write(written.size_before, entries)
            file.sync()
        written.size = written.size_before + len(entries)
        write_sequence(folder, written.next - 1)
        sequence = folder.stat(SEQUENCE)
        written.mtime = 0 if sequence is None else sequence.st_mtime_ns


class FileWriter:
    """Writes data to a dir segment, each to a file of its own."""

    def __init__(self, folder: Directory, name: str, written: _Written) -> None:
        self._folder = folder
        self._name = name
        self._written = written

    def add(self, payloads: Sequence[bytes], beside: Sequence[bytes]) -> None:
        """Write data, and remember the entry of each.

        Args:
            beside: reftime and metadata of each, as the format wrote them.

        Raises:
            FileExistsError: there is such a file already.
        """
        written = self._written
        for payload, each in zip(payloads, beside, strict=True):
            number = written.next
            with self._folder.create_file(file_name(self._name, number)) as file:
                written.numbers.append(number)
                file.write(0, payload)
            written.entries.append(_BEGIN.pack(number, len(payload), crc32(payload)) + each)
            written.next += 1


def _end_of_entries(folder: Directory, name: str, end: End) -> int:
    """Find where in `.metadata` the next entry is to stand; what lies behind is a torn one.

    Raises:
        SegmentCorrupt: it is damaged otherwise.
    """
    try:
        file = folder.open_to_read(METADATA)
    except FileNotFoundError:
        return 0
    size = file.size()
    for known in (end.size, size):
        if 0 < known <= size and _is_behind_an_entry(file, known):
            return known
    entries = Entries(file)
    rest = file.read(entries.end, _LONGEST + 1)
    if entries.damage is None or entries.damage.torn or not rest.strip(b"\0"):
        return entries.end
    raise SegmentCorrupt(
        f"nothing is appended to {folder.path}: {METADATA} is damaged at byte {entries.end}: {entries.damage.reason}",
        hint="Restore the file from a backup.",
        segment=name,
    )


def _is_behind_an_entry(file: ReadableFile, position: int) -> bool:
    size = frame.length(file.read(position - 4, 4)) if position >= frame.OVERHEAD else 0
    if not frame.OVERHEAD < size <= min(position, _LONGEST):
        return False
    return frame.walk_back(file.read(position - size, size), max_size=_LONGEST) == 0


def _link_or_copy(source: Directory, file: str, folder: Directory, name: str) -> bool:
    if source.link(file, name, folder):
        return True
    content = source.open_to_read(file)
    with folder.create_file(name) as copy:
        copy.copy(content, 0, content.size(), 0)
    return False


def _discard(folder: Directory, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder.unlink(name)


class DirReader:
    """Reads files of segments, and what stands beside them. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._entries: OrderedDict[int, Entries] = OrderedDict()

    def read(self, name: str, number: int, size: int) -> bytes:
        """Read one file, which must have `size` bytes.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: it has another size.
        """
        place = f"{name}/{file_name(name, number)}"
        try:
            file = self._directory.open_to_read(place)
        except FileNotFoundError:
            path = self._directory.path / place
            hint = "Put the file back, from a backup, or delete its datum."
            raise SegmentMissing(f"{path} is in the index and not on disk", hint=hint, segment=name) from None
        found = file.size()
        content = file.read(0, size) if found == size else b""
        if len(content) != size:
            message = f"{file.path} has {found} bytes, the index knows {size}"
            raise SegmentCorrupt(message, hint=_RESTORE, segment=name, size=found, wanted=size)
        return content

    def beside(self, generation: int, name: str, number: int) -> bytes:
        """Read what stands beside one file.

        Raises:
            SegmentMissing: the segment is not on disk.
            SegmentCorrupt: it is not there, or damaged.
        """
        entries = self._entries.get(generation)
        if entries is not None and number not in entries:
            entries.read_on()
        if entries is None or number not in entries:
            with open_directory(self._directory, name) as folder:
                entries = Entries.of(folder)
            if entries is not None:
                self._entries[generation] = entries
                while len(self._entries) > _KEPT:
                    with contextlib.suppress(KeyError):  # another thread did so
                        self._entries.popitem(last=False)
        try:
            if entries is not None and number in entries:
                return entries.get(number).beside
            reason = "it has no entry there"
        except FrameCorrupt as error:
            reason = error.message
        place = (
            f"{self._directory.path / name}: the metadata of {file_name(name, number)} cannot be read from {METADATA}"
        )
        raise SegmentCorrupt(f"{place}: {reason}", hint=_RESTORE, segment=name)

    def close(self) -> None:
        self._entries.clear()


def scan(directory: Directory, name: str, describe: Describe) -> Iterator[ScanResult]:
    """Find the data of a segment: files that are as their entries say. Offsets, and those of damage, are numbers.

    An entry without its file is damage, unless a repack has removed that. Files behind the last entry are of an append
    that did not come through, and passed over in silence, unless that entry is torn, or there is none: then those up to
    `.sequence` once had one.

    Memory: a few numbers for each file; the bytes of one.
    """
    with open_directory(directory, name) as folder:
        sequence, entries = read_sequence(folder), Entries.of(folder)
        sizes, kept = files_of(folder, name), Entries.of(folder, STAGED)
        lost = {each for each in entries or () if each not in sizes and (kept is None or each in kept)}
        last = -1 if entries is None or entries.damage is not None else max(entries, default=-1)
        found = ScanResult()
        for number in sorted(lost.union(sizes)):
            if number in lost:
                found.damage.append(Damage(number, 1, f"it has gone, {METADATA} has an entry of it"))
                continue
            if entries is None or number not in entries:
                is_behind = number > last >= 0 or (sequence is not None and number > sequence)
                if not is_behind:
                    found.damage.append(Damage(number, 1, f"{METADATA} has no entry of it"))
                continue
            try:
                entry = entries.get(number)
                reftime, metadata = _described(folder, file_name(name, number), entry, describe)
            except (FrameCorrupt, FileNotFoundError) as error:
                reason = error.message if isinstance(error, FrameCorrupt) else "it has gone"
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
    """Give number and size of each file of a segment."""
    numbers = ((number_of(name, each.name), each) for each in folder.entries() if each.kind == "file")
    return {number: each.size for number, each in numbers if number is not None}


def _described(folder: Directory, file: str, entry: Entry, describe: Describe) -> tuple[int, Mapping[str, Any]]:
    """Read a file, and describe it, if it is as its entry says.

    Raises:
        FrameCorrupt: it is not.
    """
    opened = folder.open_to_read(file)
    if opened.size() != entry.size:
        raise FrameCorrupt(f"it has {opened.size()} bytes instead of {entry.size}")
    checksum = at = 0
    while piece := opened.read(at, _PIECE):
        checksum, at = crc32(piece, checksum), at + len(piece)
    if checksum != entry.checksum:
        raise FrameCorrupt(f"its checksum is {checksum:#010x} instead of {entry.checksum:#010x}")
    return describe(entry.beside)
