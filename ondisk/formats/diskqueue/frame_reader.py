"""Reading the frames of a segment from its beginning to its end or to damage, some at a time; batches of their data.

An import begins where an earlier one stopped. That place is found again, or it is noticed that the segment is another
one now.

Memory: some tens of kilobytes; a megabyte if frames are large; the size of one frame if that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ondisk import frame
from ondisk.errors import SegmentCorrupt
from ondisk.formats.base import BATCH_BYTES, Batch, FileStream, Readable
from ondisk.formats.diskqueue import blocks
from ondisk.formats.diskqueue.draft_versions import events
from ondisk.formats.diskqueue.encryption import Frames
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.payload import Kind, first_key, kind_of
from ondisk.segment import Block, Damage, SegmentFile

if TYPE_CHECKING:
    from ondisk.formats.diskqueue.seg import Seg

Add: TypeAlias = Callable[[Batch, frame.Scan, int, int], int]
"""Adds some of the frames of a scan to a batch, and returns their size in bytes."""

Walked: TypeAlias = Literal["exact", "short", "across", "damaged"]

_PASSED = 100_000  # limit for damaged places to skip in one file
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
        keeps_blocks: for `take_blocks`.
        opener: decrypts the payloads of frames; None if they are plain.

    Attributes:
        count: number of whole frames that were read.
        passed: number of damaged places that were passed.
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
        keeps_blocks: bool = False,
        opener: Frames | None = None,
    ) -> None:
        self._stream = stream
        self._opener = opener
        self.header = header
        self._first_key = first_key(header)
        self._max_size = max_size
        self._blocks = blocks.BlockReader(stream, position, offset, first_key(header)) if header.compressed else None
        self._iterator = iter(self._blocks or ())
        self._missing = 0  # minimum of bytes to read next
        pieces = iter(lambda: stream.read(min(max(_CHUNK, self._missing), _LARGE_CHUNK)), b"")
        self._pieces = pieces if self._blocks is None else self._of_blocks()
        self._kept: list[Block] | None = [] if keeps_blocks else None
        self._shift = position - offset
        self._starts: dict[int, int] = {}  # offset → position of the blocks whose frames were not returned yet
        self._read_into: Callable[[memoryview], int] | None = getattr(stream, "readinto", None)
        self._buffer = memoryview(b"")
        self._held: bytes | memoryview = b""
        self._corrupt: tuple[int, str, bool] | None = None  # position, reason, torn: of a damaged block
        self._dropped = 0  # bytes after the last whole frame that are not held any more
        self._searched = 0
        self._in_blocks = False
        self._is_over = False  # what follows is only counted: no frame is read from it
        self.offset = offset
        self.count = self.passed = 0
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

    def with_damage(self, is_end: Callable[[frame.Fault], bool]) -> Iterator[frame.Scan | Damage]:
        """Yield all frames, and the damage between them.

        `is_end`: whether what is called damage, and nothing whole follows, is only the end of what was written.
        """
        while True:
            yield from self
            if (fault := self.damage) is None:
                return
            skipped = self.skip() if self.passed < _PASSED else 0
            if not skipped and is_end(fault):
                return
            self.passed += 1
            yield Damage(fault.offset, skipped or self.left(), fault.reason)
            if not skipped:
                return

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

    def take_blocks(self) -> list[Block]:
        """Return the blocks that begin before the end of the last whole frame, each once."""
        assert self._kept is not None
        read = [block for block in self._kept if block.offset < self.offset]
        del self._kept[: len(read)]
        return read

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
        return not self._in_blocks and (not self.header.draft if self._blocks is None else self._blocks.in_place)

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

    def _of_blocks(self) -> Iterator[bytes]:
        try:
            for block in self._iterator:
                if not self._is_over or block.offset == self.offset:
                    self._starts[block.offset] = block.position
                if not self._is_over and self._kept is not None and block.data:  # else two begin at one offset
                    self._kept.append(Block(block.offset, block.position, block.stored_size))
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


@dataclass(frozen=True, slots=True)
class Place:
    """How far a segment was read, and how it is recognised: by its first frame and the last one that was read."""

    offset: int = 0  # logical offset of what follows; 0: nothing was read, not even the header
    frames: int = 0  # the number of whole frames before it
    first: int = 0  # the checksum of the first of them
    begin: int = 0  # where the first one ends
    last: int = 0  # where the last one begins
    end: int = 0  # where the last one ends; less than `offset` if damage follows it
    checksum: int = 0  # of the last one
    size: int = 0  # of the file, if all of it was read and its program had finished it; else 0

    def after(self, scanned: frame.Scan, begin: int, end: int) -> Place:
        """Return the place after frames `begin` to `end` - 1 of a scan; it is before them."""
        if begin == end:
            return self
        bounds = (*scanned.offsets, scanned.end)
        frames, offset = self.frames + end - begin, bounds[end]
        first, ends = (self.first, self.begin) if self.frames else (_checksum(scanned, begin), bounds[begin + 1])
        return Place(offset, frames, first, ends, bounds[end - 1], offset, _checksum(scanned, end - 1))


def batches(
    frames: FrameReader, add: Add, batch_size: int, place: Place, *, growing: bool = False, counted: int = 0
) -> Iterator[tuple[Batch, Place]]:
    """Yield the data of frames, unchanged; skip damage. With each batch comes the place after it.

    Args:
        place: what was read before. Frames and damage before its offset are not part of the batches.
        growing: another program may still write the file, so an incomplete last frame is not damage.
        counted: the number of frames in the header; the last batch says if fewer are whole.
    """
    batch, weight = Batch(), 0
    for found in frames.with_damage(lambda fault: growing and (fault.torn or frames.has_zeros())):
        if isinstance(found, Damage):
            if (end := found.offset + found.size) > place.offset:
                batch.damage.append(found)
                place = replace(place, offset=end)
            continue
        at = 0
        while at < len(found.payloads):
            end = min(at + batch_size - len(batch), len(found.payloads))
            weight += add(batch, found, at, end)
            place = place.after(found, at, end)
            at = end
            if len(batch) >= batch_size or weight >= BATCH_BYTES:
                yield batch, place
                batch, weight = Batch(), 0
    if counted > place.frames:
        batch.notes.append(f"its header counts {counted} frames, {place.frames} are whole")
        batch.missing = max(0, counted - place.frames - frames.passed)
    if len(batch) or batch.damage or batch.notes:
        yield batch, place


def walk(frames: FrameReader, limit: int) -> tuple[Place, Walked]:
    """Read frames up to a logical offset; return the place after the last one, and what is between the two."""
    place = Place(frames.offset)
    while frames.offset < limit:
        for scanned in frames.until(limit):
            place = place.after(scanned, 0, len(scanned.payloads))
        if frames.damage is None or frames.offset >= limit:
            break
        torn = frames.damage.torn
        if not frames.skip():
            return place, "short" if torn else "damaged"
    if place.end == limit:
        return place, "exact"
    if frames.offset >= limit:
        return place, "damaged"
    return place, "short" if next(iter(frames), None) is None else "across"


def resumed(format: Seg, file: SegmentFile, place: Place) -> tuple[FrameReader, Place, str | None]:
    """Return a reader of what follows a place, the place that it begins at, and a remark if that is another one.

    Cost: reads two frames; the whole segment up to the place if it is compressed or encrypted, or was changed.
    """
    frames = format.frames(FileStream(file, 0))
    if not place.frames:
        return frames, place, None
    header = frames.header
    seekable = not (header.compressed or header.encrypted)
    if seekable and is_known(format, file, place):
        return _at(format, file, frames, place.offset), place, None
    walked, how = walk(frames, place.end)
    if how == "exact" and (walked.last, walked.checksum) == (place.last, place.checksum):
        return frames, place, None
    if walked.first == place.first and how == "damaged":
        remark = f"it was damaged before byte {place.end} after an import had read it"
        return _at(format, file, frames, place.offset) if seekable else frames, place, remark
    if walked.first == place.first and how == "short":
        remark = f"it was cut at byte {walked.end} after an import had read it up to byte {place.end}"
        return *resumed(format, file, walked)[:2], remark
    remark = "it was replaced after an import had read it, and is imported from its beginning"
    return format.frames(FileStream(file, 0)), Place(), remark


def is_known(format: Seg, file: SegmentFile, place: Place) -> bool:
    """Return whether the segment has the first frame of a place, and its last one if that can be read alone."""
    if not begins_like(format, file, place):
        return False
    frames = format.frames(FileStream(file, 0))
    if frames.header.compressed or frames.header.encrypted:
        return True
    last, how = walk(_at(format, file, frames, place.last), place.end)
    return how == "exact" and (last.last, last.checksum) == (place.last, place.checksum)


def begins_like(format: Seg, file: SegmentFile, place: Place) -> bool:
    """Return whether the segment has the first frame of a place."""
    walked, _ = walk(format.frames(FileStream(file, 0)), place.begin)
    return (walked.first, walked.begin) == (place.first, place.begin)


def _at(format: Seg, file: SegmentFile, frames: FrameReader, offset: int) -> FrameReader:
    header = frames.header
    stream = FileStream(file, offset + header.size - header.logical_size)
    return format.frames_at(stream, header, offset)


def _checksum(scanned: frame.Scan, at: int) -> int:
    (content,) = scanned.frames(at, at + 1)
    return int.from_bytes(content[-8:-4], "little")
