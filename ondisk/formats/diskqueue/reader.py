"""Reading a segment from its begin to its end, or to damage: its frames, some at a time.

Memory: some tens of kilobytes; a megabyte where frames are large; one frame, where that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ondisk.errors import SegmentCorrupt
from ondisk.formats.base import Block, Readable
from ondisk.formats.diskqueue import blocks, frame
from ondisk.formats.diskqueue.header import Header

_TOGETHER, _LARGE_CHUNK = 16, 1024 * 1024  # frames that are larger are read so many together, up to so many bytes
_CHUNK = 32 * 1024  # bytes; with more, the garbage collector walks all that are alive again and again


class FrameReader:
    """Reads the frames that a stream holds behind the header of its segment.

    The payloads of large ones are views, good until reading goes on: their bytes come into one buffer, again and again.

    Args:
        stream: where to read on; large frames are read faster where it has `readinto`, as a `BufferedReader` has.
        header: the segment's.
        max_size: frames longer than this are damage.
        position: where the stream stands in the file; where it is compressed, an LZ4 frame begins there.
        offset: logical offset of the first frame.
        found: gets the blocks that were read; None where nobody wants them.

    Attributes:
        offset: logical offset behind the last whole frame that was read.
        count: whole frames that were read.
        damage: what ended an iteration; None at the end of the stream.
        continuable: what is written at `position` goes on with the segment.
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
    ) -> None:
        self._stream = stream
        self._max_size = max_size
        self._blocks = blocks.BlockReader(stream, position, offset, passing=True) if header.compressed else None
        self._iterator = iter(self._blocks or ())
        self._pieces = self._of_stream() if self._blocks is None else self._of_blocks()
        self._found = found
        self._shift = position - offset
        self._starts: dict[int, int] = {}  # offset → position of the blocks that hold what is not yet read
        self._read_into: Callable[[memoryview], int] | None = getattr(stream, "readinto", None)
        self._buffer = memoryview(b"")
        self._held: bytes | memoryview = b""
        self._missing = 0  # bytes that are to be read, at least
        self._corrupt: tuple[int, str, bool] | None = None  # position, reason, torn: of what is no whole block
        self._passed = 0  # bytes of a block that was no whole one, and behind which reading can go on
        self.offset = offset
        self.count = 0
        self.damage: frame.Fault | None = None

    def __iter__(self) -> Iterator[frame.Scan]:
        """Read frames until the end, or damage; after `skip`, iterate again."""
        self.damage = None
        wanted = 0  # what was held when a frame was skipped may be whole frames
        while True:
            ended = not self._fill(wanted)
            scanned = frame.scan(self._held, max_size=self._max_size, base=self.offset)
            self._held = self._held[scanned.end - self.offset :]
            self.offset = scanned.end
            self.count += len(scanned.payloads)
            self._starts = {offset: position for offset, position in self._starts.items() if offset >= self.offset}
            if scanned.payloads:
                yield scanned
            damage = scanned.damage
            if ended or (damage is not None and not damage.torn):
                in_frame = damage is not None and not damage.torn
                self.damage = damage if in_frame else self._of_block() or damage
                return
            length = frame.length(self._held)
            wanted = max(_CHUNK, length, min(_TOGETHER * length, _LARGE_CHUNK))

    def skip(self) -> int:
        """Go on behind a frame whose lengths are right and whose content is damaged, or behind a damaged block.

        Returns:
            How many bytes were skipped; 0 where it cannot be told where the next frame begins.
        """
        if self._passed:
            passed, self._passed, self._corrupt = self._passed + len(self._held), 0, None
            self._pieces = self._of_blocks()
            self.offset += len(self._held)
            self._held = b""
            return passed
        size = frame.length(self._held)
        if self.damage is None or self.damage.torn or not frame.has_two_lengths(self._held, self._max_size):
            return 0
        self._held = self._held[size:]
        self.offset += size
        return size

    def position(self) -> int | None:
        """Give the position in the file of what follows the last whole frame; None where it is inside of a block."""
        if self._blocks is None:
            return self.offset + self._shift
        return self._blocks.position if self._blocks.offset == self.offset else self._starts.get(self.offset)

    @property
    def continuable(self) -> bool:
        return self._blocks is None or self._blocks.continuable

    @property
    def sealed_at(self) -> int | None:
        """Where the end mark of a segment stands that ondisk may go on with; None without one."""
        return self._blocks.sealed_at if self._blocks is not None and self._blocks.own else None

    @property
    def is_plain(self) -> bool:
        return self._blocks is None

    def left(self) -> int:
        """Read on to the end of the file, and count the bytes behind the last whole frame."""
        size = len(self._held) + sum(map(len, self._pieces)) + self._passed
        if self._blocks is not None:
            size += self._blocks.behind
        while piece := self._stream.read(_CHUNK):  # behind a block that is damaged
            size += len(piece)
        return size

    def rest(self, limit: int) -> bytes | None:
        """Read what there is behind the last whole frame; None where it is more than `limit` bytes."""
        while len(self._held) <= limit:
            if not self._fill(2 * len(self._held) + _CHUNK):
                return bytes(self._held)
        return None

    def _fill(self, wanted: int) -> bool:
        """Hold at least `wanted` bytes; tell whether there may be more."""
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
        """Do as `_fill`, without new memory and copies, which take longer than reading does."""
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
                if block.problem is not None:
                    self._corrupt = block.position, block.problem, False
                    self._passed = block.stored_size
                    return
                self._starts[block.offset] = block.position
                if self._found is not None:
                    self._found.append(Block(block.offset, block.position, block.stored_size))
                if block.data:
                    yield block.data
        except SegmentCorrupt as error:
            self._corrupt = error.context["offset"], error.context["reason"], error.context["torn"]

    def _of_block(self) -> frame.Fault | None:
        """Tell of damage that is not in a frame but in a block."""
        if self._corrupt is None:
            return None
        position, reason, torn = self._corrupt
        reason = f"at byte {position} of the compressed file, {reason}"
        return frame.Fault(self.offset, reason, torn)
