"""Frames: how segments of the Beats disk queue store events, and dir segments their entries, one after the other.

    u32 length | payload | u32 crc | u32 length

Little-endian. `length` is the size of the whole frame: the payload's size + 12. `crc` is the CRC-32 (IEEE, as in zlib)
of the first length and the payload. The second length makes it possible to walk backwards.

Source: elastic/beats, libbeat/publisher/queue/diskqueue: segments.go, checksum.go (all versions).
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from zlib_ng.zlib_ng import crc32

from ondisk.errors import FrameCorrupt, InvalidInput

OVERHEAD = 12
"""Bytes of a frame that are not its payload."""

BEGIN = 4
"""Where in a frame its payload begins."""

MAX_SIZE = 2**32 - 1
"""The largest frame that a length of 32 bits can describe."""

_LENGTH = struct.Struct("<I")
_FOOTER = struct.Struct("<II")
_FOOTER_SIZE = 8
_FOOTER_AND_LENGTH = struct.Struct("<III")
_LARGE = 8 * 1024  # from this many bytes on, a frame is not copied to compute its checksum


@dataclass(frozen=True, slots=True)
class FirstKey:
    """What follows the first byte of every payload, to find where frames begin after damage."""

    content: bytes | re.Pattern[bytes]  # bytes, or a pattern for at least one byte; it may look back at the first byte

    def find(self, data: bytes, begin: int = 0, end: int = sys.maxsize) -> int:
        """Return where it is in `data`, from an index on and before another; -1 if it is nowhere."""
        if isinstance(self.content, bytes):
            return data.find(self.content, begin, end)
        found = self.content.search(data, begin, end)
        return -1 if found is None else found.start()

    def count(self, data: bytes) -> int:
        content = self.content
        return data.count(content) if isinstance(content, bytes) else sum(1 for _ in content.finditer(data))


@dataclass(frozen=True, slots=True)
class Fault:
    offset: int  # logical offset of the first byte after the last whole frame
    reason: str  # what is wrong there, one line
    torn: bool  # the bytes end inside a frame, as after a crash or when only part of them was read yet


@dataclass(slots=True)
class Scan:
    end: int  # logical offset of the end of the last frame
    # the content of each frame; for large frames a view, not a copy
    payloads: list[bytes | memoryview] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # logical offset of each frame
    damage: Fault | None = None  # what is wrong after it; None if the bytes end there
    # the payloads were decrypted, and are not those of the frames any more
    decrypted: bool = field(default=False, init=False)
    _data: bytes | memoryview = b""
    _base: int = 0

    def frames(self, begin: int, end: int) -> list[bytes]:
        bounds = [offset - self._base for offset in (*self.offsets, self.end)[begin : end + 1]]
        return [bytes(self._data[start:stop]) for start, stop in pairwise(bounds)]


def encode(payloads: Sequence[bytes]) -> list[bytes]:
    """Return a frame for each payload; raise InvalidInput if one is empty, which Beats treats as damage, or large."""
    if not payloads:
        return []
    sizes = [size + OVERHEAD for size in map(len, payloads)]
    smallest, largest = min(sizes), max(sizes)
    for size in (smallest, largest):
        if not OVERHEAD < size <= MAX_SIZE:
            raise InvalidInput(f"a payload of {size - OVERHEAD} bytes does not fit into a frame")
    if largest >= _LARGE:
        return list(map(_encode, payloads, sizes))
    length, footer = _LENGTH.pack, _FOOTER.pack  # this runs for every datum that is appended
    return [
        (begin := length(size) + payload) + footer(crc32(begin), size)
        for payload, size in zip(payloads, sizes, strict=True)
    ]


def _encode(payload: bytes, size: int) -> bytes:
    begin = _LENGTH.pack(size)
    return b"".join((begin, payload, _FOOTER.pack(crc32(payload, crc32(begin)), size)))


def decode(frame: bytes) -> bytes | memoryview:
    """Return the payload of one whole frame, uncopied if it is large; raise FrameCorrupt if it is damaged."""
    size = len(frame)
    checked = (frame if size < _LARGE else memoryview(frame))[:-_FOOTER_SIZE]
    if size > OVERHEAD and frame[:4] == _LENGTH.pack(size) and frame[size - 8 :] == _FOOTER.pack(crc32(checked), size):
        return checked[4:]
    scanned = scan(frame, max_size=size)
    reason = scanned.damage.reason if scanned.damage else "the bytes are not exactly one frame"
    hint = "Restore the segment from a copy, if there is one; the other data can be read."
    raise FrameCorrupt(f"a frame of {len(frame)} bytes fails its checks: {reason}", hint=hint, reason=reason)


def decode_many(frames: Sequence[bytes]) -> Sequence[bytes | memoryview]:
    """Return the payloads of whole frames, in half the time of `scan`; FrameCorrupt has a `position`."""
    sizes = list(map(len, frames))
    is_large = max(sizes, default=0) >= _LARGE
    whole: Sequence[bytes | memoryview] = [memoryview(each) for each in frames] if is_large else frames
    checked = [each[:-_FOOTER_SIZE] for each in whole]
    footers = map(_FOOTER.pack, map(crc32, checked), sizes)  # the checksum includes the first length
    if min(sizes, default=0) > OVERHEAD and [each[-_FOOTER_SIZE:] for each in frames] == list(footers):
        return [each[4:] for each in checked]
    payloads: list[bytes | memoryview] = []
    for position, each in enumerate(frames):
        try:
            payloads.append(decode(each))
        except FrameCorrupt as error:
            error.context["position"] = position
            raise
    return payloads


def scan(data: bytes | memoryview, *, max_size: int, base: int = 0) -> Scan:
    """Return the frames in `data`, whose last may be cut, up to damage; `base`: offset of the first byte."""
    payloads: list[bytes | memoryview] = []
    offsets: list[int] = []
    # A footer and the length after it are unpacked together; only after the last footer there may be no length.
    unpack, unpack_footer = _FOOTER_AND_LENGTH.unpack_from, _FOOTER.unpack_from
    at, limit, size = 0, len(data), length(data)
    last, whole = limit - _LENGTH.size, memoryview(data)
    while OVERHEAD < size <= max_size and (end := at + size) <= limit:
        footer = end - _FOOTER_SIZE
        begin: bytes | memoryview = data[at:footer] if size < _LARGE else whole[at:footer]
        checksum, again, following = unpack(data, footer) if end <= last else (*unpack_footer(data, footer), 0)
        if again != size or crc32(begin) != checksum:
            break
        payloads.append(begin[4:])
        offsets.append(base + at)
        at, size = end, following
    fault = _fault(data, at, max_size) if at < limit else None
    damage = Fault(base + at, fault[0], fault[1]) if fault else None
    return Scan(base + at, payloads, offsets, damage, data, base)


def length(data: bytes | memoryview) -> int:
    """Return the first length of the frame at the beginning of `data`; 0 if `data` is too short for it."""
    return int(_LENGTH.unpack_from(data)[0]) if len(data) >= _LENGTH.size else 0


def has_two_lengths(data: bytes | memoryview, max_size: int) -> bool:
    """Return whether the frame at the beginning of `data` has the same length at both ends and can be skipped."""
    size = length(data)
    if not OVERHEAD < size <= min(len(data), max_size):
        return False
    return int(_LENGTH.unpack_from(data, size - _LENGTH.size)[0]) == size


def find_next(
    data: bytes, first_key: FirstKey, *, max_size: int, is_end: bool, believed: int, in_blocks: bool = False
) -> int | None:
    """Find the frame after a damaged one at the begin of `data`; None if these are too short to decide.

    The data of a damaged frame may themselves contain frames. These are not found if a length of the damaged frame is
    intact, or if a frame that contains them ends later in `data`.

    Args:
        is_end: nothing follows `data`.
        believed: consecutive whole frames that have so many bytes together are found. Fewer may be content of the
            damaged frame.
        in_blocks: no frame crosses the end of a block, so a frame that claims to end after `data` is damaged, not torn.

    Cost: linear; checksums of places that only look like frames are computed for at most four times the bytes.
    """
    left, claimed = len(data), length(data)
    if not OVERHEAD < claimed <= max_size:
        claimed = 0
    if has_two_lengths(data, max_size):
        return claimed if claimed < left or not is_end else None
    is_torn = is_end and claimed > left and not in_blocks
    # The length at its end may be damaged, and that at its begin be right.
    follows = claimed if (is_end and claimed == left) or (claimed < left and is_whole(data, claimed, max_size)) else 0
    first, chain, budget = None, 0, 4 * left
    begin = _next_begin(data, first_key, 1)
    while 0 < begin < (follows or left):
        before = length(data[begin - _LENGTH.size : begin])
        if before == begin:  # the length at the end of the damaged frame
            return begin
        if first is not None and OVERHEAD < before <= begin:
            if begin - before == chain:  # what ends here began where the chain ended
                return first
            if begin - before < first:  # what ends here contains the chain
                return begin
        after = begin + 1
        if (
            first is None
            and not follows
            and not is_torn
            and has_two_lengths(whole := memoryview(data)[begin:], max_size)
        ):
            budget -= length(whole)
            if budget >= 0 and is_whole(data, begin, max_size):
                first, after = begin, scan(whole, max_size=max_size, base=begin).end
                chain = after
                if chain - first >= believed or (is_end and chain == left):
                    return first
        begin = _next_begin(data, first_key, after)
    if is_end and (follows == left or length(data[-_LENGTH.size :]) == left):
        return None
    return follows or (first if is_end else None)


def _next_begin(data: bytes, first_key: FirstKey, at: int) -> int:
    """Return where the next frame may begin, from an index on; a negative number if there is no such place."""
    ahead = _LENGTH.size + 1
    found = first_key.find(data, at + ahead)
    return found - ahead if found >= 0 else -1


def find_whole(data: bytes, first_key: FirstKey, *, max_size: int) -> int | None:
    """Find a whole frame after damage; if there is none (None), `data` is a torn tail, which may be cut off.

    Walks back from the end by the trailing lengths. If the end is torn as well, searches for what follows the first
    byte of every payload. A frame that is part of the data of a torn frame is found, too: then the tail is kept,
    although it could be cut off.

    Cost: linear, except for a tail crafted to contain the beginnings of many frames.
    """
    begin = walk_back(data, max_size=max_size)
    if begin < len(data):
        return begin
    at = first_key.find(data)
    while at >= 0:
        frame = at - 1 - _LENGTH.size
        if frame >= 0 and is_whole(data, frame, max_size):
            return frame
        at = first_key.find(data, at + 1)
    return None


def walk_back(data: bytes, *, max_size: int) -> int:
    """Return where the whole frames at the end of `data` begin, by their trailing lengths; `len(data)` without any."""
    begin = len(data)
    while begin > OVERHEAD:
        (length,) = _LENGTH.unpack_from(data, begin - _LENGTH.size)
        if not OVERHEAD < length <= begin or not is_whole(data, begin - length, max_size):
            break
        begin -= length
    return begin


def is_whole(data: bytes, at: int, max_size: int) -> bool:
    return _fault(data, at, max_size) is None


def _fault(data: bytes | memoryview, at: int, max_size: int) -> tuple[str, bool] | None:
    """Return what is wrong with the frame at an index, and whether only its end is missing; None for a whole frame."""
    left = len(data) - at
    if left < _LENGTH.size:
        return f"it ends after {left} bytes of a frame's length", True
    (length,) = _LENGTH.unpack_from(data, at)
    if length <= OVERHEAD:
        return f"a frame's length cannot be {length}", False
    if length > max_size:
        return f"a frame's length, {length}, is more than the {max_size} allowed", False
    if length > left:
        return f"it ends after {left} of a frame's {length} bytes", True
    checksum, again = _FOOTER.unpack_from(data, at + length - _FOOTER_SIZE)
    if again != length:
        return f"a frame has the length {length} at its beginning and {again} at its end", False
    computed = crc32(memoryview(data)[at : at + length - _FOOTER_SIZE])
    if computed != checksum:
        return f"a frame's checksum is {computed:#010x}, but {checksum:#010x} is stored", False
    return None
