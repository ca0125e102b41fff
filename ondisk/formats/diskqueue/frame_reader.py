"""Reading the frames of a segment from its beginning to its end or to damage, some at a time.

Memory: some tens of kilobytes; a megabyte if frames are large; the size of one frame if that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ondisk import frame
from ondisk.errors import SegmentCorrupt
from ondisk.formats.base import BATCH_BYTES, Readable
from ondisk.formats.diskqueue import blocks
from ondisk.formats.diskqueue.drafts import events
from ondisk.formats.diskqueue.encryption import Frames
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.payload import Kind, first_key, kind_of
from ondisk.segment import Block

_TOGETHER, _LARGE_CHUNK = 16, 1024 * 1024  # maximum of large frames, and of their bytes, read at once
_SEARCHED = 4 * 1024  # bytes after damage that are searched first
_BELIEVED = 8 * 1024 * 1024  # frames in a row of so many bytes are not in the data of another frame
_MUCH = 1024 * 1024 * 1024  # bytes that may be searched in any file
_PLACE = 16 * 1024  # bytes that are searched in the time that a place takes where a frame may begin
_LONGEST_KEY = 32  # bytes of a first key
_CHUNK = 32 * 1024  # bytes; with larger chunks the garbage collector visits many living objects again and again


class FrameReader:
    """Reads frames from a stream, which begins after the header of a segment.

    Payloads of large frames are views, valid until the next frames are read: they share one buffer.

    Args:
        stream: the bytes; large frames are read faster if it has `readinto`, as a `BufferedReader` has.
        max_size: longer frames are damage.
        position: of the stream's first byte in the file; in a compressed segment, an LZ4 frame begins there.
        offset: logical offset of the first frame; as an attribute, of the end of the last whole one that was read.
        found: a list that collects the blocks that were read; None if they are not needed.
        opener: decrypts the payloads of frames; None if they are plain.

    Attributes:
        count: number of whole frames that were read.
        damage: what ended the iteration; None at the end of the stream.
        continuable: an append at `position` continues the segment.
    """

    def __init__(
        self,
        stream: Readable,
        header: Header,
        *,
        max_size: int,
        position: int,
        offset: int,
        found: list[Block] | None = None,
        opener: Frames | None = None,
    ) -> None:
        self._stream = stream
        self._opener = opener
        self.header = header
        self._first_key = first_key(header)
        self._max_size = max_size
        self._blocks = blocks.BlockReader(stream, position, offset, first_key(header)) if header.compressed else None
        self._iterator = iter(self._blocks or ())
        self._pieces = self._of_stream() if self._blocks is None else self._of_blocks()
        self._found = found
        self._shift = position - offset
        self._starts: dict[int, int] = {}  # offset → position of the blocks whose frames were not returned yet
        self._read_into: Callable[[memoryview], int] | None = getattr(stream, "readinto", None)
        self._buffer = memoryview(b"")
        self._held: bytes | memoryview = b""
        self._missing = 0  # minimum of bytes to read next
        self._corrupt: tuple[int, str, bool] | None = None  # position, reason, torn: of a damaged block
        self._dropped = 0  # bytes after the last whole frame that are not held any more
        self._searched = 0
        self._in_blocks = False
        self._is_over = False  # what follows is only counted: no frame is read from it
        self.offset = offset
        self.count = 0
        self.damage: frame.Fault | None = None

    def __iter__(self) -> Iterator[frame.Scan]:
        """Yield frames until the end or damage; after `skip`, iterate again."""
        return self.until(None)

    def until(self, limit: int | None) -> Iterator[frame.Scan]:
        """Yield the frames that end up to a logical offset; then iterate to read those after them."""
        self.damage = None
        wanted = 0  # bytes that were read before a skip may contain whole frames
        while limit is None or self.offset < limit:
            ended = not self._fill(wanted)
            held = self._held if limit is None else memoryview(self._held)[: limit - self.offset]
            scanned = frame.scan(held, max_size=self._max_size, base=self.offset)
            is_limit = len(held) < len(self._held)
            self._held = memoryview(self._held)[scanned.end - self.offset :]
            self.offset = scanned.end
            self.count += len(scanned.payloads)
            self._starts = {offset: position for offset, position in self._starts.items() if offset >= self.offset}
            if scanned.payloads:
                if self.header.draft and not self.header.compressed:
                    plain = events(scanned.payloads, self._max_size)
                    scanned.payloads, scanned.decrypted = plain, plain != scanned.payloads
                    self._in_blocks |= scanned.decrypted
                if self._opener is not None:
                    scanned.payloads = self._opener.events(scanned.offsets, scanned.payloads)
                    scanned.decrypted = True
                if self.header.version == 1 and kind_of(scanned.payloads[0]) is Kind.JSON:
                    self._first_key = first_key(Header(0))  # of a version 1 that was never released
                yield scanned
            damage = scanned.damage
            if is_limit and (damage is None or damage.torn):
                return  # a frame that crosses the limit is not damage
            if ended or (damage is not None and not damage.torn):
                in_frame = damage is not None and not damage.torn
                self.damage = damage if in_frame else self._of_block() or damage
                return
            length = frame.length(self._held)
            least = _CHUNK if self._blocks is None else _CHUNK // 2  # no more than a block of ondisk
            wanted = max(least, length, min(_TOGETHER * length, _LARGE_CHUNK))

    def skip(self) -> int:
        """Skip damage, up to the next whole frame or block; return the bytes skipped; 0 if nothing whole follows.

        Memory: some megabytes, or the size of the largest frame allowed if it takes as much to tell the frames of the
            segment from those in the data of a damaged frame.
        Cost: linear. After much damage, less is read to tell them apart.
        """
        return self._skip_frame() or self._skip_block()

    def _skip_frame(self) -> int:
        wanted, believed = _SEARCHED, _BELIEVED if self._searched < _MUCH + 32 * self.offset else 0
        in_blocks = self._blocks is not None and self._blocks.own
        while True:
            ended = not self._fill(wanted)
            if wanted < min(len(self._held), _LARGE_CHUNK):
                data, ended = bytes(self._held[:wanted]), False
            else:
                data = bytes(self._held)  # many bytes are not copied
            if believed:
                self._searched += len(data) + _PLACE * self._first_key.count(data)
            found = frame.find_next(
                data, self._first_key, max_size=self._max_size, is_end=ended, believed=believed, in_blocks=in_blocks
            )
            if found is not None:
                break
            if ended or len(data) > self._max_size + BATCH_BYTES:
                return 0
            if len(data) > _BELIEVED and self._first_key.find(data) < 0:
                self._drop(len(data) - _LONGEST_KEY - frame.OVERHEAD)
                wanted = _BELIEVED
            else:
                wanted = min(4 * len(data), self._max_size + BATCH_BYTES + 1)
        skipped, self._dropped = self._dropped + found, 0
        self._held = memoryview(self._held)[found:]
        self.offset += skipped
        return skipped

    def _drop(self, count: int) -> None:
        """Forget held bytes in which no frame begins, and the blocks that begin in them."""
        self._held, self._dropped = bytes(self._held[count:]), self._dropped + count
        kept = self.offset + self._dropped
        self._starts = {at: position for at, position in self._starts.items() if at == self.offset or at >= kept}

    def _skip_block(self) -> int:
        skipped = self._blocks.find_next(self._max_size) if self._blocks is not None and self._corrupt else 0
        if not skipped:
            return 0
        assert self._blocks is not None
        begun = self._dropped + len(self._held)
        self.offset += begun
        self._held, self._dropped, self._corrupt = b"", 0, None
        self._iterator = iter(self._blocks)
        self._pieces = self._of_blocks()
        return skipped + begun

    def position(self) -> int | None:
        """Return the position in the file of the end of the last whole frame; None if it is inside a block."""
        if self._blocks is None:
            return self.offset + self._shift
        return self._blocks.position if self._blocks.offset == self.offset else self._starts.get(self.offset)

    @property
    def continuable(self) -> bool:
        return self._blocks is None or self._blocks.continuable

    @property
    def in_place(self) -> bool:
        """Whether the data can be read in place: each block alone; no event is a block of its own, as in a draft."""
        return not self._in_blocks and (self._blocks is None or self._blocks.in_place)

    @property
    def sealed_at(self) -> int | None:
        """Position of the end mark, if ondisk can append to this segment; None without an end mark."""
        return self._blocks.sealed_at if self._blocks is not None and self._blocks.own else None

    def has_zeros(self) -> bool:
        """Return whether only zeros follow the last whole frame, where a power cut left them or a writer comes."""
        return self.is_plain and not self._dropped and not any(self._held)

    @property
    def is_plain(self) -> bool:
        return self._blocks is None

    def left(self) -> int:
        """Read to the end of the file and return the number of bytes after the last whole frame."""
        self._is_over = True
        size = self._dropped + len(self._held) + sum(map(len, self._pieces))
        if self._blocks is not None:
            size += self._blocks.unfinished
        while piece := self._stream.read(_CHUNK):  # after a damaged block
            size += len(piece)
        return size

    def rest(self, limit: int) -> bytes | None:
        """Return the bytes after the last whole frame; None if there are more than `limit`."""
        if self._dropped:
            return None
        self._is_over = True
        while len(self._held) <= limit:
            if not self._fill(2 * len(self._held) + _CHUNK):
                return bytes(self._held)
        return None

    def _fill(self, wanted: int) -> bool:
        """Read until `wanted` bytes are held; return whether there may be more."""
        if self.is_plain and self._read_into is not None and _CHUNK < wanted <= _LARGE_CHUNK:
            return self._fill_buffer(wanted, self._read_into)
        pieces, size = [self._held], len(self._held)
        more = True
        while more and size < wanted:
            self._missing = wanted - size
            piece = next(self._pieces, b"")
            more = bool(piece)
            pieces.append(piece)
            size += len(piece)
        whole = [piece for piece in pieces if piece]
        self._held = whole[0] if len(whole) == 1 else b"".join(whole)
        return more

    def _fill_buffer(self, wanted: int, read_into: Callable[[memoryview], int]) -> bool:
        """Do the same as `_fill` without new memory and copies, which would take longer than reading."""
        if not self._buffer:
            self._buffer = memoryview(bytearray(_LARGE_CHUNK))
        size = len(self._held)
        if size >= wanted:
            return True
        self._buffer[:size] = self._held
        while size < wanted and (count := read_into(self._buffer[size:wanted])):
            size += count
        self._held = self._buffer[:size]
        return size >= wanted

    def _of_stream(self) -> Iterator[bytes]:
        while piece := self._stream.read(min(max(_CHUNK, self._missing), _LARGE_CHUNK)):
            yield piece

    def _of_blocks(self) -> Iterator[bytes]:
        try:
            for block in self._iterator:
                if not self._is_over or block.offset == self.offset:
                    self._starts[block.offset] = block.position
                if not self._is_over and self._found is not None:
                    self._found.append(Block(block.offset, block.position, block.stored_size))
                if block.data:
                    yield block.data
        except SegmentCorrupt as error:
            self._corrupt = error.context["offset"], error.context["reason"], error.context["torn"]

    def _of_block(self) -> frame.Fault | None:
        """Return the damage of a block as that of a frame; None if no block is damaged."""
        if self._corrupt is None:
            return None
        position, reason, torn = self._corrupt
        reason = f"at byte {position} of the compressed file, {reason}"
        return frame.Fault(self.offset, reason, torn)
