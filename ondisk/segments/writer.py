"""Write data to the file of one concat segment, for appends, staged data, repacks, merges and fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ondisk.filesystem import ReadableFile, WritableFile
from ondisk.segment import Block, End, Facts, Laid, Layout, Sealer
from ondisk.segments.facts import add_to_checksum, checksum_of, facts_of, tail_of

_PIECE = 1024 * 1024  # bytes that are laid together: fewer take more writes, and more leave the processor's cache


class SegmentWriter:
    """Writes data one after the other to the file of one concat segment.

        header | data | data | … | end mark

    `add` and `copy` continue at `end`. `finish` then updates the header; `seal` also writes the end mark and syncs. The
    data of an encrypted segment are encrypted right before they are written. It has no end mark: the next append would
    write other data to the same place of the keystream.

    Args:
        layout: the segment's format.
        file: the file to write to.
        name: of the segment.
        start: the end of the existing data, and the bytes to write before new data; None for a new segment.
        checksum: of the bytes before those of `start`, as in `Facts`; None if unknown.
        base: in a file of staged data: the position in the file where this segment's data begin. No header is written
            there.
        sealer: what encrypts a segment that is continued, or a file without a header.
        save_blocks: called with the new blocks, if the segment is compressed.

    Attributes:
        end: the present end of the segment.

    Durability: none, until `seal` syncs the file, or the caller does. A crash before that leaves bytes after the
        committed end, or an incomplete new file.
    """

    def __init__(
        self,
        layout: Layout,
        file: WritableFile,
        name: str,
        start: Laid | None = None,
        *,
        checksum: int | None = 0,
        base: int | None = None,
        sealer: Sealer | None = None,
        save_blocks: Callable[[Sequence[Block]], object] = lambda _: None,
    ) -> None:
        start = layout.begin() if start is None else start
        self._layout = layout
        self._file = file
        self._base = base or 0
        self._save_blocks = save_blocks
        self._checksum = checksum
        self.end: End = start.end
        position = start.end.size - len(start.content)
        if base is None and not position:
            sealer = layout.new_sealer(start.content, name)
        self._sealer = sealer
        if start.content:
            self._write(position, start.content)
        if start.blocks:
            save_blocks(start.blocks)

    def add(self, payloads: Sequence[bytes], beside: Sequence[bytes] = ()) -> None:
        """Write data at the end; the offset of the first datum is `end.length`.

        Args:
            payloads: the bytes of each datum, without padding.
            beside: ignored; exists because dir segments store metadata separately.
        """
        count, size = len(payloads), sum(map(len, payloads))
        # In a compressed segment, each piece would end a block early.
        together = max(1, count if self.end.compressed else _PIECE * count // max(1, size))
        for begin in range(0, count, together):
            laid = self._layout.lay(payloads[begin : begin + together], self.end)
            self._write(self.end.size, laid.content)
            if laid.blocks:
                self._save_blocks(laid.blocks)
            self.end = laid.end

    def copy(
        self,
        source: ReadableFile,
        begin: int,
        size: int,
        *,
        count: int,
        length: int | None = None,
        blocks: Iterable[Block] = (),
        sealer: Sealer | None = None,
    ) -> None:
        """Copy `size` bytes of data from a file that stores them in the same form as this segment, padding included.

        Args:
            begin: the position of the bytes in the file.
            count: the number of data in them.
            length: the number of decompressed bytes, if they are compressed.
            blocks: the blocks in them; their offsets and positions count from `begin`.
            sealer: what decrypts the file; None if it is plain.

        Raises:
            EOFError: the file ends before the last of the bytes.
        """
        end = self.end
        if self._sealer is not None or sealer is not None:
            content = source.read(begin, size)
            if len(content) < size:
                raise EOFError(f"{source.path} ends at byte {begin + len(content)}")
            self._write(end.size, content if sealer is None else sealer.unseal(begin, content))
        else:
            self._copy(source, begin, size)
        if moved := [Block(end.length + each.offset, end.size + each.position, each.stored) for each in blocks]:
            self._save_blocks(moved)
        counted = 0 if self._layout.patch(end) is None else count
        self.end = end._replace(
            size=end.size + size,
            length=end.length + (size if length is None else length),
            count=end.count + counted,
        )

    def _copy(self, source: ReadableFile, begin: int, size: int) -> None:
        """Copy bytes to the end as they are."""
        self._file.copy(source, begin, size, self._base + self.end.size)
        if self._checksum is not None:
            copied = self._base + self.end.size
            self._checksum = checksum_of(self._file, copied + size, range(0), copied, self._checksum)

    @property
    def may_repeat(self) -> bool:
        """Whether other bytes may be written to the same places later: not if both would have the same keystream."""
        return self._sealer is None or self._sealer.is_framed

    def finish(self) -> End:
        """Update the header, and return the end of the segment."""
        patch = self._layout.patch(self.end)
        if patch is not None:
            self._file.write(self._base + patch.position, patch.content)
        return self.end

    def facts(self, *, is_touched: bool = False) -> Facts:
        """Return the facts of the segment so far. The caller has synced the file.

        Args:
            is_touched: another program had changed the file before.
        """
        tail = tail_of(self._file, self.end.size, self._layout.mutable)
        return facts_of(self._file.stat(), tail, self._checksum, is_touched=is_touched)

    def _write(self, position: int, content: bytes) -> None:
        if self._sealer is not None:
            content = self._sealer.seal(self._base + position, content)
        self._file.write(self._base + position, content)
        if self._checksum is not None:
            self._checksum = add_to_checksum(content, position, self._layout.mutable, self._checksum)

    def seal(self) -> End:
        """Update the header, write the end mark, sync the file, and return the end of the segment."""
        end = self.finish()
        if mark := self._layout.seal(end):
            self._file.write(self._base + end.size, mark)
        self._file.sync()
        return end
