"""Show that data which a rescan has found in a changed file still have the bytes that were committed.

A rescan knows a datum by its reftime, metadata and size. These do not change when an editor changes a digit, or when
somebody restores a file from before a datum was replaced. The index has no checksum of a single datum, but one of all
committed bytes. So the data that were found are read in the order of the old file, and their checksum is compared. It
is also equal if the same data are in another order, or between others, as in a file from before a repack.

Bytes between the data, such as those of deleted data, are read from after the datum before them. Blocks of a compressed
segment are compressed again; another version of LZ4 may compress the same data to other bytes. A repack encrypts data
to other bytes. In these three cases the checksum may differ although all data are the same: one datum too many is
counted as lost, never one too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from itertools import chain, pairwise
from typing import TypeAlias

from ondisk.formats import Format
from ondisk.index import Segment
from ondisk.index.rows_set_aside import Aside, Place
from ondisk.index.transaction import Transaction
from ondisk.segment import Block, End, SegmentFile
from ondisk.segments.file_facts import add_to_checksum

_PIECE = 128 * 1024
_KEPT = 64  # blocks in memory

Read: TypeAlias = Callable[[int, int], bytes]
"""Returns decompressed bytes of a segment, by offset and size, or fewer; none at the end."""


def have_old_bytes(
    aside: Aside, transaction: Transaction, format: Format, old: Segment, new: Segment, file: SegmentFile
) -> bool:
    """Return whether the data of a segment, all of which were found again, have the bytes that were committed.

    Args:
        old: the segment before, with a checksum.
        new: the segment that was read; the transaction has its blocks.

    Cost: reads the file once. Some megabytes of memory.
    """
    checksum = position = 0
    with closing(aside.places()) as places, closing(aside.blocks()) as blocks:
        read = BlockCache(transaction, format, new, file).read if new.end.compressed else file.read
        lay = _packed if old.end.compressed else _plain
        head = _head(format, old.end, new.end, file)
        for piece in lay(format, old.end, head, places, blocks, read):
            checksum = add_to_checksum(piece, position, format.mutable, checksum)
            position += len(piece)
    return (position, checksum) == (old.end.size, old.facts.checksum)


def _head(format: Format, old: End, new: End, file: SegmentFile) -> Callable[[int], bytes]:
    """Return a function that returns the first bytes of the old file, before its data."""
    begun = format.begin()
    if old.compressed != new.compressed and begun.end.compressed == old.compressed:
        return lambda size: begun.content[:size]
    return lambda size: file.read(0, size)


def _plain(
    format: Format, end: End, head: Callable[[int], bytes], places: Iterable[Place], _: Iterable[Block], read: Read
) -> Iterator[bytes]:
    """Yield the bytes of the old file, which had no blocks."""
    first = head(format.first_offset(end))
    yield first
    yield from _in_old_order(places, len(first), end.length, read)


def _packed(
    format: Format, end: End, head: Callable[[int], bytes], places: Iterable[Place], blocks: Iterable[Block], read: Read
) -> Iterator[bytes]:
    """Yield the bytes of the old file, block by block, up to the first that has another size now."""
    pieces: Iterator[bytes] | None = None
    held = b""
    for block, following in pairwise(chain(blocks, [Block(end.length, end.size, 0)])):
        if pieces is None:
            yield head(block.position)
            pieces = _in_old_order(places, block.offset, end.length, read)
        size = following.offset - block.offset
        while len(held) < size and (piece := next(pieces, b"")):
            held += piece
        stored, held = format.packed(held[:size]), held[size:]
        if len(stored) != block.stored:
            return
        yield stored


def _in_old_order(places: Iterable[Place], begin: int, end: int, read: Read) -> Iterator[bytes]:
    """Yield decompressed bytes in the order of the old file, from an offset to another, or fewer."""
    at, shift = begin, 0
    for offset, found in chain(places, [(end, -1)]):  # no datum is moved so far
        if found - offset == shift:
            continue
        while at < offset:
            if not (piece := read(at + shift, min(_PIECE, offset - at))):
                return
            yield piece
            at += len(piece)
        shift = found - offset


class BlockCache:
    """Reads the decompressed bytes of a segment from its blocks."""

    def __init__(self, transaction: Transaction, format: Format, segment: Segment, file: SegmentFile) -> None:
        self._transaction = transaction
        self._format = format
        self._segment = segment
        self._file = file
        self._unpacked = lru_cache(_KEPT)(self._unpack)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset, up to the end of their block."""
        block = self._transaction.block_at(self._segment, offset)
        if block is None:
            return b""
        begin = offset - block.offset
        return self._unpacked(block)[begin : begin + size]

    def _unpack(self, block: Block) -> bytes:
        return self._format.unpack(memoryview(self._file.read(block.position, block.stored)))
