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

In the index, the `End` of a dir segment contains the size of `.metadata` and the next number.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from zlib_ng.zlib_ng import crc32

from ondisk.errors import FrameCorrupt, SegmentCorrupt
from ondisk.filesystem import Directory
from ondisk.segment import Damage, End, ScanResult
from ondisk.segments.file_errors import missing
from ondisk.segments.metadata_file import METADATA, NEW_METADATA, MetadataEntry, MetadataFile, end_of_entries

SEQUENCE = ".sequence"
_NUMBER = struct.Struct("<Q")
_CHUNK = 1024 * 1024  # bytes of a file that are read together
COPY = ".copy"
_FILE = re.compile(r"([0-9]{6,18})\.(.+)")
_FOUND = 256  # data in one `ScanResult`


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
        raise missing(directory, name) from None


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


def write_sequence(folder: Directory, number: int) -> None:
    """Write the last number used to `.sequence`, and sync it."""
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
    verify_file(folder, file, entry)
    return describe(entry.beside)


def verify_file(folder: Directory, file: str, entry: MetadataEntry) -> None:
    """Read a file, and raise FrameCorrupt unless it matches its entry."""
    opened = folder.open_to_read(file)
    if opened.size() != entry.size:
        raise FrameCorrupt(f"it has {opened.size()} bytes instead of {entry.size}")
    checksum = at = 0
    while chunk := opened.read(at, _CHUNK):
        checksum, at = crc32(chunk, checksum), at + len(chunk)
    verify(checksum, entry.checksum)


def is_whole(folder: Directory, file: str, entry: MetadataEntry) -> bool:
    """Read a file, and return whether it matches its entry."""
    with contextlib.suppress(FrameCorrupt):
        verify_file(folder, file, entry)
        return True
    return False


def verify(checksum: int, wanted: int) -> None:
    """Raise FrameCorrupt unless a file has the checksum in its entry."""
    if checksum != wanted:
        raise FrameCorrupt(f"its checksum is {checksum:#010x} instead of {wanted:#010x}")
