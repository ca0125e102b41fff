"""Finding the next whole LZ4 block after damage, where nothing says where it begins.

A place is a block if its size fits, it can be decompressed, and whole frames are in it: they have checksums.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import lz4.block  # type: ignore[import-untyped]

from ondisk import frame

_SIZE_BYTES = 4
_STORED = 1 << 31
_END_MARK = bytes(4)
_FRAME_BEGIN = 5  # bytes of a frame before the first key
_AHEAD = range(_FRAME_BEGIN, 24)  # where the first key can be in a compressed block that begins with a frame
_SMALL = 64 * 1024  # the largest blocks of segments whose frames do not cross blocks
_NEXT = 3  # blocks after one, which show that it is one
_TRIED = 100  # places in a block that may be frames
_COST = 4096  # bytes; of decompressing what is not a block


def has_other_bytes(data: bytes, limit: int, first_key: bytes) -> bool:
    """Return whether the content of a block without compression ends with (the beginning of) other blocks.

    If its size is too large, it takes bytes of the blocks after it, and nothing else shows that. The segment has blocks
    of up to `limit` bytes, and no frame in two of them.
    """
    at, left = 0, len(data)
    while frame.OVERHEAD < (size := frame.length(data[at : at + 4])) <= left:
        at, left = at + size, left - size
        if left == 0:
            return False
        begin = at + _SIZE_BYTES
        if left < _SIZE_BYTES + _AHEAD.stop + len(first_key):  # no event is so small
            return True
        is_size = 0 < _word(data, at) & ~_STORED <= limit
        if is_size and data.find(first_key, begin + _AHEAD.start, begin + _AHEAD.stop + len(first_key)) >= 0:
            return True
    return False


class BlockSearch:
    """Searches bytes that follow damage for a whole block; see `frame.find_next`, which does so for frames.

    Args:
        checksum: bytes after each block.
        is_torn: the file ends inside the damaged block. Then it is probably the end of an interrupted append, whose
            data may contain blocks themselves: a block must directly follow, or lead to the end of the file.

    Attributes:
        window: how many bytes `find` needs, if the file has as many.
        kept: how many of the last bytes it needs again, if it has found nothing.
        is_exhausted: more bytes would take too long.
    """

    def __init__(self, limit: int, checksum: int, max_size: int, first_key: frame.FirstKey, *, is_torn: bool) -> None:
        self._limit = limit
        self._checksum = checksum
        self._max_size = max_size
        self._first_key = first_key
        self._is_torn = is_torn
        self.kept = _SIZE_BYTES + limit + checksum + len(_END_MARK)
        self.window = 3 * self.kept
        self._budget = 64 * 1024 * 1024

    @property
    def is_exhausted(self) -> bool:
        return self._budget < 0

    def find(self, raw: bytes, *, header: int, is_end: bool, is_first: bool) -> int | None:
        """Return the index of a block; `len(raw)` if all of `raw` is the damaged block; None without one.

        `header`: bytes of a damaged header at their beginning, which blocks follow. `is_end`: the file ends with them.
        `is_first`: they begin with the damaged block or header.
        """
        self._budget += 8 * len(raw)
        follows = (header or self._declared(raw)) if is_first else 0
        if follows and self._is_block(raw, follows, is_end=is_end):
            return follows
        first = None
        for at in self._places(raw):
            if self.is_exhausted or (first is not None and at > self.kept):
                break
            if self._is_chance(raw, at) or not self._has_frames(self._decompressed(raw, at)):
                continue
            # If all bytes before it are the damaged block, only the size of that is wrong.
            if not is_first or header or self._is_content(raw[_SIZE_BYTES : at - self._checksum]):
                return at
            if first is None and (not self._is_torn or self._leads_to_end(raw, at)):
                first = at
        return first

    def _is_chance(self, raw: bytes, at: int) -> bool:
        """Return whether a place may well look like a block by chance: any bytes can be a block without compression.

        If frames do not cross blocks, the frame that a block begins with shows that it is one. Else the next blocks do.
        """
        if self._limit <= _SMALL or not _word(raw, at) & _STORED:
            return False
        for _ in range(_NEXT):
            size = _word(raw, at) & ~_STORED
            at += _SIZE_BYTES + size + self._checksum
            if at + _SIZE_BYTES > len(raw) or raw[at : at + _SIZE_BYTES] == _END_MARK:
                return False
            if size > self._limit or not (_word(raw, at) & _STORED or self._decompressed(raw, at)):
                return True
        return False

    def _leads_to_end(self, raw: bytes, at: int) -> bool:
        """Return whether the sizes of blocks lead from an index to the end of the file."""
        while at < len(raw) and raw[at : at + _SIZE_BYTES] != _END_MARK:
            at += _SIZE_BYTES + (_word(raw, at) & ~_STORED) + self._checksum
        return len(raw) - at in (0, 4, 8)

    def _declared(self, raw: bytes) -> int:
        """Return where the damaged block ends according to its size; 0 if that is impossible."""
        size = _word(raw, 0) & ~_STORED
        return _SIZE_BYTES + size + self._checksum if 0 < size <= self._limit else 0

    def _is_block(self, raw: bytes, at: int, *, is_end: bool) -> bool:
        """Return whether a block, or the end of the blocks, is where one must be; it may have no whole frame."""
        left = len(raw) - at
        if is_end and (left == 0 or (left in (4, 8) and raw[at : at + 4] == _END_MARK)):
            return True
        data = self._decompressed(raw, at)
        if data is None:
            return False
        after = at + _SIZE_BYTES + (_word(raw, at) & ~_STORED) + self._checksum
        is_next = after == len(raw) or _word(raw, after) & ~_STORED <= self._limit
        return self._has_frames(data) or (is_next and not self._is_torn)

    def _places(self, raw: bytes) -> Iterator[int]:
        if self._limit > _SMALL:  # their frames may cross blocks
            highest = re.escape(bytes((self._limit >> 16,)))
            pattern = re.compile(rb"(?=(?!\x00{3}).." + rb"[\x00-" + highest + rb"][\x00\x80])", re.DOTALL)
            yield from (found.start() for found in pattern.finditer(raw, 1))
            return
        last, key = 0, self._first_key.find(raw)
        while key >= 0:
            end = key - _SIZE_BYTES - _AHEAD.start + 1
            for at in range(max(last + 1, key - _SIZE_BYTES - _AHEAD.stop), end):
                if raw[at + 2] <= _SMALL >> 16 and raw[at + 3] in b"\x00\x80":
                    yield at
            last = max(last, end - 1)
            key = self._first_key.find(raw, key + 1)

    def _decompressed(self, raw: bytes, at: int) -> bytes | None:
        word = _word(raw, at)
        size, begin = word & ~_STORED, at + _SIZE_BYTES
        if not 0 < size <= self._limit or begin + size + self._checksum > len(raw):
            return None
        self._budget -= _COST
        content = memoryview(raw)[begin : begin + size]
        return bytes(content) if word & _STORED else self._expanded(content)

    def _expanded(self, content: bytes | memoryview) -> bytes | None:
        try:
            data: bytes = lz4.block.decompress(content, uncompressed_size=self._limit)
        except lz4.block.LZ4BlockError:
            return None
        self._budget -= len(data)
        return data

    def _is_content(self, content: bytes) -> bool:
        if len(content) > self._limit:
            return False
        data = self._expanded(content)
        if self._limit > _SMALL:
            return self._has_frames(data)
        return any(each and frame.scan(each, max_size=self._max_size).damage is None for each in (data, content))

    def _has_frames(self, data: bytes | None) -> bool:
        """Return whether decompressed bytes begin with a frame that is larger than a block, or have whole frames."""
        if data is None:
            return False
        size = frame.length(data)
        is_begun = self._first_key.find(data, _FRAME_BEGIN, 2 * _FRAME_BEGIN + _AHEAD.stop) == _FRAME_BEGIN
        if is_begun and len(data) < size <= self._max_size:
            return True
        at = self._first_key.find(data)
        for _ in range(_TRIED):
            if at < 0:
                break
            if at >= _FRAME_BEGIN and frame.is_whole(data, at - _FRAME_BEGIN, self._max_size):
                return True
            at = self._first_key.find(data, at + 1)
        return False


def _word(raw: bytes, at: int) -> int:
    """Return the integer of 32 bits at an index; the highest one where there is none."""
    return int(struct.unpack_from("<I", raw, at)[0]) if at + _SIZE_BYTES <= len(raw) else 2**32 - 1
