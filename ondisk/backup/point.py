"""What a point of a backup contains, and how that is written: `point.json`, and a line of JSON for each segment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from typing import Any

from zlib_ng.zlib_ng import crc32

from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.datum import from_microseconds
from ondisk.errors import DiskFull, DurabilityLost, IntegrityError, NotFound, OndiskError, StorageError, VersionTooNew
from ondisk.filesystem import Directory, ReadableFile, WritableFile
from ondisk.index import INDEX
from ondisk.segment import SegmentFile
from ondisk.segments.dir import MetadataEntry
from ondisk.segments.file_facts import checksum_of

POINT, SEGMENTS = "point.json", "segments.jsonl"
VERSION = 1
_NAMED = "%Y%m%dT%H%M%S.%fZ"
_LONGEST = 16 * 1024 * 1024  # bytes of `point.json`
_PIECE = 128 * 1024  # bytes
DATASET = "dataset"
"""The name of the part of a dataset; a point made by ondisk before revision 6 also has a part for each archive."""


class Kept(StrEnum):
    """What a backup has of a segment."""

    WHOLE = "whole"  # the committed bytes, proven by their checksum
    UNPROVEN = "unproven"
    """The committed bytes, as far as their end shows: an index of an older revision did not record their checksum."""
    OLDER = "older"  # an earlier state of the segment: it was damaged in the dataset when this point was made
    DAMAGED = "damaged"  # the bytes that were there: it was damaged, and the backup had no earlier state of it
    PARTLY = "partly"  # of a dir segment: the files that are not damaged
    MISSING = "missing"  # nothing


USABLE = (Kept.WHOLE, Kept.UNPROVEN)
UNREADABLE = (IntegrityError, NotFound, StorageError, FileNotFoundError, EOFError)
"""What reading a segment or its copy raises that is damaged, or not there."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A segment that is damaged or missing, in the dataset or in the backup.

    Attributes:
        segment: its name; of an archive, `.archive/NAME/…`.
        reason: what is wrong with it.
        kept: what the backup has of it.
    """

    segment: str
    reason: str
    kept: Kept


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    segment: str  # its name
    generation: int  # of the segment in the index
    size: int  # bytes that the index has committed; of a dir segment, of its `.metadata`
    kept: Kept  # what the copy is
    # the path of the copy below `segments/PART/`; of a dir segment that of its `.metadata`; empty if it is missing
    file: str = ""
    stored: int = 0  # bytes of this file
    checksum: int = 0  # CRC-32C of this file, with zeros at `zeros`
    zeros: tuple[int, int] = (0, 0)  # begin and end of bytes that are rewritten in place
    tail: int | None = None  # tail, recorded: the checksums in the index; see `ondisk.segment.Facts`
    recorded: int | None = None
    mark: str = ""  # what follows the last datum of the segment, in hexadecimal digits
    once: bool = False  # no append may continue it: other bytes at the same place would have the same keystream
    length: int = 0  # of a dir segment, the number after the last file; else 0
    # of a dir segment, first and last number of each run of files; else None
    numbers: tuple[tuple[int, int], ...] | None = None
    total: int = 0  # bytes of the copy, those of the files of a dir segment included
    count: int = 0  # how many data the index has of the segment
    problem: str = ""  # why it is not whole

    @property
    def is_dir(self) -> bool:
        return self.numbers is not None

    @property
    def files(self) -> Iterator[int]:
        return (number for first, last in self.numbers or () for number in range(first, last + 1))

    def is_in(self, file: SegmentFile) -> bool:
        """Read a file, and return whether it is this copy; of a dir segment, its `.metadata`."""
        return file.size() == self.stored and checksum_of(file, self.stored, range(*self.zeros)) == self.checksum

    @classmethod
    def from_line(cls, line: bytes) -> SegmentCopy:
        values = json.loads(line)
        begin, end = values["zeros"]
        values["kept"], values["zeros"] = Kept(values["kept"]), (begin, end)
        if values["numbers"] is not None:
            values["numbers"] = tuple((first, last) for first, last in values["numbers"])
        copy = cls(**values)
        numbers = [copy.generation, copy.size, copy.stored, copy.checksum, copy.length, copy.total, copy.count,
                   *copy.zeros, *chain.from_iterable(copy.numbers or ())]  # fmt: skip
        texts = (copy.segment, copy.file, copy.mark, copy.problem)
        if not _are_sound(texts, numbers) or any(last >= copy.length for _, last in copy.numbers or ()):
            raise ValueError("its values are not those of a copy")
        bytes.fromhex(copy.mark)
        return copy


def runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return first and last number of each run of consecutive ones in an ascending sequence."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Part:
    """The dataset, or one of its archives, in a point."""

    name: str  # of its folder: `dataset` or `archive/NAME`
    place: str  # where it is in the dataset: empty, or `.archive/NAME`
    uuid: str  # of its index
    segments: int  # how many it has
    incomplete: int  # how many of them it does not have whole
    count: int  # how many data those have that it has whole
    total: int  # bytes of the copies
    # path in the part's folder → size and CRC-32C. Those besides the index and `segments.jsonl` have the same paths in
    # the dataset
    files: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Point:
    time: int  # microseconds since 1970
    path: str  # of the dataset
    parts: Sequence[Part]  # the archives, then the dataset itself
    # the names of the archives that were away: the point has at most what earlier ones have of them
    offline: Sequence[str] = field(default=())

    @property
    def at(self) -> datetime:
        return from_microseconds(self.time)

    @property
    def name(self) -> str:
        return self.at.strftime(_NAMED)

    @property
    def uuid(self) -> str:
        return self.parts[-1].uuid

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode() + b"\n"


def time_of(name: str) -> datetime:
    return datetime.strptime(name, _NAMED).replace(tzinfo=UTC)


def read_point(folder: Directory, name: str) -> Point:
    """Read the point in a folder; it is valid under its own name only.

    Raises IntegrityError if `point.json` is missing, damaged or of another point, VersionTooNew.
    """
    path = folder.at(POINT)
    try:
        values = json.loads(folder.read(POINT, _LONGEST))
        version = values.pop("version")
        if version > VERSION:
            hint = "Use that newer version."
            raise VersionTooNew(f"{path} has version {version}, this ondisk knows {VERSION}", hint=hint)
        values["parts"] = [Part(**part) for part in values["parts"]]
        point = Point(**values)
        if not _is_sound(point):
            raise ValueError("its values are not those of a point")
        if point.name != name:
            raise ValueError(f"it is that of the point {point.name}")
        return point
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        hint = f"Restore another point; or remove this one: rm -r {folder.path}"
        raise IntegrityError(f"{path} is damaged: {error}", hint=hint, path=path) from None


def _is_sound(point: Point) -> bool:
    """Return whether values have the types and names that `encode` writes; or raise ValueError or TypeError."""
    texts = [point.path, *point.offline]
    numbers = [point.time]
    for part in point.parts:
        texts += part.name, part.place, part.uuid, *part.files
        numbers += part.segments, part.incomplete, part.count, part.total
        numbers += (number for size, checksum in part.files.values() for number in (size, checksum))
        if part.name != (part.place.removeprefix(".") or DATASET) or not part.files.keys() >= {INDEX, SEGMENTS, CONFIG}:
            return False
    return _are_sound(texts, numbers) and len(point.parts) > 0 and not point.parts[-1].place


def _are_sound(texts: Iterable[object], numbers: Iterable[Any]) -> bool:
    """Return whether values from JSON are texts, and whole numbers of up to 63 bits."""
    is_sound = all(type(each) is str for each in texts)
    return is_sound and all(type(each) is int and 0 <= each < 1 << 63 for each in numbers)


def whole(folder: Directory, name: str, part: Part) -> str | None:
    """Return what is wrong with a file of a part of a point; None if nothing is."""
    try:
        if [*measured(folder.open_to_read(name))] == [*part.files[name]]:
            return None
    except (FileNotFoundError, StorageError):
        return f"{folder.at(name)} is missing, or cannot be read"
    return f"{folder.at(name)} is damaged: it does not have the checksum that was recorded for it"


def write_lines(file: WritableFile, copies: Iterable[SegmentCopy]) -> tuple[int, int, int, int]:
    """Write the lines of `segments.jsonl`; return `segments`, `incomplete`, `count` and `total` of the `Part`."""
    at, held = 0, bytearray()
    segments = incomplete = count = total = 0
    for each in copies:
        is_usable = each.kept in USABLE
        segments, incomplete = segments + 1, incomplete + (not is_usable)
        count, total = count + each.count * is_usable, total + each.total
        held += json.dumps(asdict(each), separators=(",", ":")).encode() + b"\n"
        if len(held) >= _PIECE:
            file.write(at, bytes(held))
            at, held = at + len(held), bytearray()
    file.write(at, bytes(held))
    return segments, incomplete, count, total


def read_lines(file: ReadableFile) -> Iterator[SegmentCopy]:
    at, rest = 0, b""
    try:
        while piece := file.read(at, _PIECE):
            at += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(SegmentCopy.from_line, lines)
        if rest:
            raise ValueError("its last line has no end")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        hint = "Restore another point."
        raise IntegrityError(f"{file.path} is damaged: {error}", hint=hint, path=file.path) from None


def holds(file: ReadableFile | WritableFile, entry: MetadataEntry) -> bool:
    checksum = size = 0
    while piece := file.read(size, _PIECE):
        checksum, size = crc32(piece, checksum), size + len(piece)
    return (size, checksum) == (entry.size, entry.checksum)


def reason_of(error: Exception) -> str:
    """Return why something cannot be read; raise the error if it is one of writing."""
    if isinstance(error, DiskFull | DurabilityLost):
        raise error
    return error.message if isinstance(error, OndiskError) else str(error)


def measured(file: ReadableFile) -> tuple[int, int]:
    size = file.size()
    return size, checksum_of(file, size, range(0))
