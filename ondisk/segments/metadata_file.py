"""`.metadata` of a dir segment: one entry for each file, see `ondisk.segments.dir`."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import NamedTuple

from ondisk import frame
from ondisk.errors import FrameCorrupt, SegmentCorrupt
from ondisk.filesystem import Directory, ReadableFile
from ondisk.segment import End

METADATA, NEW_METADATA = ".metadata", ".metadata.new"

_BEGIN = struct.Struct("<QQI")
_LONGEST = 2 * 1024 * 1024  # bytes of an entry
_ENTRIES = 64 * 1024  # bytes of entries that are read together; each damaged entry copies the rest of them


class MetadataEntry(NamedTuple):
    """The entry of one file in `.metadata`.

    Attributes:
        size: bytes of the file.
        checksum: CRC-32 of the file.
        beside: reftime and metadata, as the format wrote them.
    """

    size: int
    checksum: int
    beside: bytes


def encode_entry(number: int, size: int, checksum: int, beside: bytes) -> bytes:
    """Return the content of a file's entry."""
    return _BEGIN.pack(number, size, checksum) + beside


class MetadataFile:
    """The `.metadata` of one segment: reads entries by the number of their file. Threads may share it.

    Iterates over these numbers.

    Attributes:
        end: position after the last entry.
        damage: what is wrong after that; None if the file ends there.
        skipped: a damaged entry before that was skipped.

    Memory: a few numbers for each entry.
    """

    def __init__(self, file: ReadableFile) -> None:
        self.end = 0
        self.damage: frame.Fault | None = None
        self.skipped = False
        self._file = file
        self._spans: dict[int, tuple[int, int, int]] = {}  # number → position and size of the entry, checksum
        self._lock = threading.Lock()
        self.read_on()

    @classmethod
    def of(cls, folder: Directory, name: str = METADATA) -> MetadataFile | None:
        """Open the `.metadata` of a segment; return None if it does not exist."""
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
        """Return the entry of a file as a frame."""
        position, size, _ = self._spans[number]
        return self._file.read(position, size)

    def has_size(self, number: int, size: int) -> bool:
        """Return whether there is an entry for a file of this size."""
        try:
            return number in self and self.get(number).size == size
        except FrameCorrupt:
            return False

    def checksum(self, number: int) -> int:
        """Return the CRC-32 of a file. It was verified when `.metadata` was read."""
        return self._spans[number][2]

    def get(self, number: int) -> MetadataEntry:
        """Return the entry of a file.

        Raises:
            KeyError: it does not exist.
            FrameCorrupt: it is damaged.
        """
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
    """Return the position in `.metadata` for the next entry; anything after that is a torn entry.

    Raises:
        SegmentCorrupt: it is damaged in another way.
    """
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
        hint=f"Restore {METADATA} from a backup.",
        segment=name,
    )


def _is_end_of_entry(file: ReadableFile, position: int) -> bool:
    size = frame.length(file.read(position - 4, 4)) if position >= frame.OVERHEAD else 0
    if not frame.OVERHEAD < size <= min(position, _LONGEST):
        return False
    return frame.walk_back(file.read(position - size, size), max_size=_LONGEST) == 0
