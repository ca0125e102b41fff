"""LZ4: the blocks of a segment's frame stream, read one by one, and written so that a segment can grow.

    04 22 4D 18 | 60 40 82 | block … | (00 00 00 00 when sealed)          a block: u32 size | bytes

`size` is the number of stored bytes; bit 31 is set if they are not compressed, because compression would not make them
smaller. This is one LZ4 frame of independent blocks of at most 64 KiB, without checksums: the disk queue's frames in
the blocks have their own. So any block can be decoded alone, and blocks can be appended after a reopen. A frame of the
disk queue never crosses into the next block, unless it is larger than a block: then it fills consecutive blocks alone.

Readers also accept: blocks of up to 4 MiB, linked blocks, content and block checksums (skipped), a content size
(ignored), a missing end mark, skippable frames, several frames in a row, and the eight bytes that the LZ4 library of
Beats in 2022 writes for an empty segment.

Source: LZ4 frame format 1.6.4 and block format; github.com/pierrec/lz4 4.1.15 and 4.1.21, which Beats writes with.
"""

from __future__ import annotations

import contextlib
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import lz4.block  # type: ignore[import-untyped]
import lz4.frame  # type: ignore[import-untyped]

from ondisk.errors import SegmentCorrupt
from ondisk.formats.base import Readable, read_fully
from ondisk.formats.diskqueue.block_search import BlockSearch, has_other_bytes
from ondisk.frame import FirstKey

BLOCK_SIZE = 32 * 1024
"""Maximum of decompressed bytes that ondisk writes to a block: 1 % more space than with 64 KiB, but reading one datum
takes half the time."""

MAX_BLOCK_SIZE = 64 * 1024
"""Maximum of decompressed bytes that the header of ondisk's LZ4 frame allows in a block."""

LARGEST_BLOCK_SIZE = 4 * 1024 * 1024
"""Maximum of decompressed bytes in a block of any LZ4 frame. Beats writes such frames; its blocks are as large as what
it writes at once."""

FRAME_HEADER = bytes.fromhex("04224d18 60 40 82")
"""The beginning of the LZ4 frame that ondisk writes, directly after the segment's header."""

END_MARK = bytes(4)
BEGIN_SIZE = 8

_U32 = struct.Struct("<I")
_STORED = 1 << 31
_SIZE = re.compile(rb"(?=..[\x00\x01][\x00\x80])", re.DOTALL)  # the size of a block of up to 64 KiB
_MAGIC = 0x184D2204
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_EMPTY = bytes.fromhex("00000000 055dcc02")  # an end mark and the checksum of no content, without a header
_DICTIONARY, _CONTENT_SIZE = 0x01, 0x08  # bits of the frame's flags
_WINDOW = 64 * 1024  # how far back a linked block refers
_SKIP = 1024 * 1024
_CHECKSUM = 4
_MANY, _BYTES_EACH = 100_000, 32  # frames and blocks may have fewer bytes each before the file is refused
_OWN: dict[str, Any] = lz4.frame.get_frame_info(FRAME_HEADER)
_BEATS_HEADER = bytes.fromhex("04224d18 6470b9")
_BEATS: dict[str, Any] = lz4.frame.get_frame_info(_BEATS_HEADER)


class Packed(NamedTuple):
    offset: int  # logical offset of its first byte
    size: int  # decompressed bytes in it
    stored: bytes  # the bytes for the file, including the block's size


class ReadBlock(NamedTuple):
    position: int  # of its size in the file
    stored_size: int  # bytes that it occupies in the file, including its size (and checksum)
    offset: int  # logical offset of its first byte
    data: bytes  # its decompressed bytes


def begins_frame(begin: bytes) -> bool:
    """Return whether an LZ4 frame, or what Beats wrote for an empty one, begins with these `BEGIN_SIZE` bytes."""
    magic = int.from_bytes(begin[:4], "little")
    return magic == _MAGIC or magic in _SKIPPABLE or begin == _EMPTY


def pack(frames: Sequence[bytes], offset: int) -> list[Packed]:
    """Return new blocks of whole frames, the first at a logical offset; the next call begins another block."""
    blocks: list[Packed] = []
    ends = list(accumulate(map(len, frames), initial=0))
    first = 0
    while first < len(frames):
        begin = ends[first]
        last = bisect_right(ends, begin + BLOCK_SIZE) - 1
        if last == first:  # larger than a block
            last = first + 1
        data = b"".join(frames[first:last])
        for at in range(0, len(data), BLOCK_SIZE):
            piece = data[at : at + BLOCK_SIZE]
            blocks.append(Packed(offset + begin + at, len(piece), compress(piece)))
        first = last
    return blocks


def unpack(stored: bytes | memoryview, *, max_size: int = MAX_BLOCK_SIZE) -> bytes:
    """Return the decompressed bytes of one independent block with its size; raise SegmentCorrupt."""
    word = _U32.unpack_from(stored)[0] if len(stored) > _U32.size else 0
    if word & ~_STORED != len(stored) - _U32.size:
        reason = f"its size says {word & ~_STORED} bytes, but there are {len(stored)} including the size"
        raise SegmentCorrupt(f"not a block: {reason}", reason=reason)
    content = stored[_U32.size :]
    try:
        try:
            return _decompress(content, word, min(max_size, MAX_BLOCK_SIZE))
        except lz4.block.LZ4BlockError:
            if max_size <= MAX_BLOCK_SIZE:
                raise
            # Only now: to take memory for a larger block takes longer than to decompress most.
            return _decompress(content, word, max_size)
    except lz4.block.LZ4BlockError as error:
        raise SegmentCorrupt(f"not a block: {error}", reason=str(error)) from None


def find_whole(tail: bytes) -> Iterator[bytes]:
    """Yield the data of blocks that may be in bytes; the first may be whole except for its size. Cost: linear."""
    with contextlib.suppress(lz4.block.LZ4BlockError):
        yield _decompress(tail[_U32.size :], 0, MAX_BLOCK_SIZE)
    for found in _SIZE.finditer(tail):
        at = found.start()
        size = _U32.unpack_from(tail, at)[0] & ~_STORED
        if 0 < size <= MAX_BLOCK_SIZE and at + _U32.size + size <= len(tail):
            with contextlib.suppress(SegmentCorrupt):
                yield unpack(tail[at : at + _U32.size + size])


def _closest(begin: bytes) -> dict[str, Any]:
    """Return what a damaged header of an LZ4 frame meant: that of ondisk, or that of Beats."""
    own, beats = (
        sum((one ^ other).bit_count() for one, other in zip(begin, header, strict=False))
        for header in (FRAME_HEADER, _BEATS_HEADER)
    )
    return _OWN if own <= beats else _BEATS


def compress(data: bytes) -> bytes:
    """Return a block as stored: its size and its bytes, without compression if that would make it larger."""
    compressed: bytes = lz4.block.compress(data, store_size=False)
    if len(compressed) < len(data):
        return _U32.pack(len(compressed)) + compressed
    return _U32.pack(len(data) | _STORED) + data


def _decompress(content: bytes | memoryview, word: int, limit: int, window: bytes = b"") -> bytes:
    if word & _STORED:
        return bytes(content)
    data: bytes = lz4.block.decompress(content, uncompressed_size=limit, dict=window)
    return data


class BlockReader:
    """Reads the blocks of a segment from a stream, which begins after the segment's header.

    Iterating yields every whole block before damage, then raises SegmentCorrupt. The error's context has the `offset`
    in the file, the `reason`, and `torn`: the file ends too early, as after a crash. After `find_next`, iterate again.

    Args:
        stream: the bytes; only read forwards.
        position: of the stream's first byte in the file.
        first_key: what follows the first byte of every payload.
        offset: logical offset of the first block. What cannot be decompressed does not count in later offsets.

    Attributes:
        unfinished: bytes that were read after `position`, of an incomplete or damaged block or header.

    Memory: one block, compressed and decompressed, and 64 KiB if blocks are linked. Sizes are checked before use.
    """

    def __init__(self, stream: Readable, position: int, offset: int, first_key: FirstKey) -> None:
        self._stream = stream
        self._first_key = first_key
        self._pending = memoryview(b"")  # bytes of the stream that are read again
        self._since: list[bytes] = []  # what was read after `position`
        self._info: dict[str, Any] | None = None  # of the LZ4 frame that is being read
        self._is_torn = False
        self._dropped = 0  # bytes that were read after `position` and forgotten
        self._owed = 0  # bytes that complete a frame which is larger than a block
        self._count = 0  # LZ4 frames and blocks that were read
        self._begin = position
        self.position = position  # end, in the file, of the blocks that were read whole
        self.offset = offset  # logical offset of that end
        self.own = False  # the LZ4 frame has the header that ondisk writes
        self.sealed_at: int | None = None  # position of the first end mark in the file; None if it was not reached
        self.in_place = True  # each block so far can be read alone, with `unpack`

    @property
    def unfinished(self) -> int:
        return self._dropped + sum(map(len, self._since)) + len(self._pending)

    @property
    def continuable(self) -> bool:
        """Whether blocks can be appended at `position`."""
        return self.own and self.sealed_at is None

    def __iter__(self) -> Iterator[ReadBlock]:
        if self._info is not None:
            yield from self._blocks(self._info)
        while begin := self._read(_U32.size):
            magic = self._number(begin, "the beginning of an LZ4 frame")
            if magic == _MAGIC:
                yield from self._blocks(self._begin_frame(begin))
            elif magic in _SKIPPABLE:
                self._skip(begin)
            elif begin == _EMPTY[:4] and self.position == self._begin:
                self._read_empty(begin)
            else:
                raise self._damaged(f"no LZ4 frame begins with {begin.hex(' ')}")

    def find_next(self, max_size: int) -> int:
        """Find the next whole block after damage, in linear time; return the bytes that are skipped, or 0."""
        if self._are_too_many():
            return 0
        raw = b"".join((*self._since, self._pending))
        info = _closest(raw) if self._info is None else self._info
        if info["block_linked"] or self._dropped:
            return 0
        header = 0 if self._info is not None or self.sealed_at is not None else len(FRAME_HEADER)
        checksum = _CHECKSUM if info["block_checksum"] else 0
        search = BlockSearch(info["block_size"], checksum, max_size, self._first_key, is_torn=self._is_torn)
        skipped = 0
        while True:
            raw += read_fully(self._stream, search.window - len(raw))
            is_end = len(raw) < search.window
            found = search.find(raw, header=header, is_end=is_end, is_first=not skipped)
            if found is not None or is_end or search.is_exhausted:
                break
            skipped += len(raw) - search.kept
            raw = raw[-search.kept :]
        self._since, self._pending = [], memoryview(raw if found is None else raw[found:])
        if found is None:
            self._dropped = skipped
            return 0
        if header:
            self.own = self.position == self._begin and info is _OWN
        self._info, self.sealed_at, self._owed = info, None, 0
        self.position += skipped + found
        return skipped + found

    def _begin_frame(self, magic: bytes) -> dict[str, Any]:
        header = magic + self._descriptor(magic)
        if header[4] & _DICTIONARY:
            raise self._damaged("an LZ4 frame needs a dictionary, which no segment has")
        try:
            info: dict[str, Any] = lz4.frame.get_frame_info(header)
        except RuntimeError as error:
            raise self._damaged(f"not a header of an LZ4 frame: {error}") from None
        self._info = info
        self.own = self.position == self._begin and header == FRAME_HEADER
        self.in_place &= not (info["block_linked"] or info["block_checksum"])
        self._advance(len(header))
        return info

    def _blocks(self, info: dict[str, Any]) -> Iterator[ReadBlock]:
        window = b""
        while size := self._read(_U32.size):
            word = self._number(size, "the size of a block")
            if word == 0:
                self._info = None
                self._end(_U32.size + len(self._read(4 if info["content_checksum"] else 0)))
                return
            block = self._block(word, info, window)
            yield block
            if info["block_linked"]:
                window = (window + block.data)[-_WINDOW:]

    def _descriptor(self, magic: bytes) -> bytes:
        """Return the bytes between the magic number and the first block."""
        flags = self._read_all(2, len(magic), "the header of an LZ4 frame")
        size = 1 + 8 * bool(flags[0] & _CONTENT_SIZE) + 4 * bool(flags[0] & _DICTIONARY)
        return flags + self._read_all(size, len(magic) + len(flags), "the header of an LZ4 frame")

    def _block(self, word: int, info: dict[str, Any], window: bytes) -> ReadBlock:
        size, limit = word & ~_STORED, info["block_size"]
        if size > limit:
            raise self._damaged(f"a block's size, {size}, is more than the {limit} that the LZ4 frame allows")
        checksum = 4 if info["block_checksum"] else 0
        content = self._read_all(size + checksum, _U32.size, f"a block of {size} bytes")
        try:
            data = _decompress(content[:size], word, limit, window)
        except lz4.block.LZ4BlockError as error:
            raise self._damaged("a block cannot be decompressed") from error
        key = self._first_key.content  # one that is a pattern is not certain enough
        is_suspect = self.own and self._begins_with_frame(data) and word & _STORED
        if is_suspect and isinstance(key, bytes) and has_other_bytes(data, limit, key):
            raise self._damaged(f"a block cannot have {size} bytes: its frames end before")
        block = ReadBlock(self.position, _U32.size + len(content), self.offset, data)
        self._advance(block.stored_size)
        self.offset += len(data)
        return block

    def _begins_with_frame(self, data: bytes) -> bool:
        """Return whether a block of ondisk begins with a frame; otherwise it continues a large one."""
        if self._owed:
            self._owed = max(0, self._owed - len(data))
            return False
        if len(data) == BLOCK_SIZE and (size := int.from_bytes(data[:4], "little")) > len(data):
            self._owed = size - len(data)
        return True

    def _end(self, size: int) -> None:
        if self.sealed_at is None:
            self.sealed_at = self.position
        self._advance(size)

    def _advance(self, size: int) -> None:
        self.position += size
        self._since.clear()
        self._dropped = 0
        self._count += 1

    def _are_too_many(self) -> bool:
        """Return whether there are so many frames and blocks in so few bytes that reading the rest would take long."""
        return (self._count - _MANY) * _BYTES_EACH > self.position

    def _skip(self, begin: bytes) -> None:
        left = self._number(self._read_all(_U32.size, len(begin), "a skippable frame"), "a skippable frame")
        size = len(begin) + _U32.size + left
        while left:
            left -= len(self._read_all(min(left, _SKIP), size - left, "a skippable frame"))
            self._dropped += sum(map(len, self._since))
            self._since.clear()
        self._advance(size)

    def _read_empty(self, begin: bytes) -> None:
        checksum = self._read(len(_EMPTY) - len(begin))
        if not _EMPTY.startswith(begin + checksum):
            raise self._damaged(f"no LZ4 frame begins with {(begin + checksum).hex(' ')}")
        self._end(len(begin + checksum))

    def _number(self, raw: bytes, what: str) -> int:
        """Return the number that a frame, a block or its size begins with; raise if there were too many of them."""
        if self._are_too_many():
            raise self._damaged(f"{self._count} LZ4 frames and blocks have fewer than {_BYTES_EACH} bytes each")
        if len(raw) < _U32.size:
            raise self._damaged(f"the file ends inside {what}", torn=True)
        return int.from_bytes(raw, "little")

    def _read_all(self, size: int, before: int, what: str) -> bytes:
        """Return exactly `size` bytes; `before` bytes of the same item have been read already."""
        raw = self._read(size)
        if len(raw) < size:
            raise self._damaged(f"the file ends inside {what}, after {before + len(raw)} bytes", torn=True)
        return raw

    def _read(self, size: int) -> bytes:
        piece = b""
        if self._pending:
            piece = bytes(self._pending[:size])
            self._pending = self._pending[size:]
        if len(piece) < size:
            piece += read_fully(self._stream, size - len(piece))
        self._since.append(piece)
        return piece

    def _damaged(self, reason: str, *, torn: bool = False) -> SegmentCorrupt:
        self._is_torn = torn
        return SegmentCorrupt(
            f"damage at byte {self.position} of the file: {reason}",
            hint="The data before it were read. Restore the segment from a copy, if there is one.",
            offset=self.position,
            reason=reason,
            torn=torn,
        )
