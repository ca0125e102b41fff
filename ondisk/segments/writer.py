"""Write data to the file of one segment: the only code that does so, for appends, commits, repacks and fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ondisk.filesystem import ReadableFile, WritableFile
from ondisk.segment import Block, End, Laid, Layout


class SegmentWriter:
    """Writes data one after the other to the file of one segment.

        header | data | data | … | end mark

    `add` and `copy` continue at `end`. `finish` then updates the header; `seal` also writes the end mark and syncs.

    Args:
        layout: the segment's format.
        file: where the segment is written.
        start: where it continues, and what to write before new data; None for a new segment.
        base: position in the file of the segment's first byte.
        save_blocks: called with new blocks, of a compressed segment.

    Attributes:
        end: where the segment ends now.
    """

    def __init__(
        self,
        layout: Layout,
        file: WritableFile,
        start: Laid | None = None,
        *,
        base: int = 0,
        save_blocks: Callable[[Sequence[Block]], object] = lambda _: None,
    ) -> None:
        start = layout.begin() if start is None else start
        self._layout = layout
        self._file = file
        self._base = base
        self._save_blocks = save_blocks
        self.end: End = start.end
        if start.content:
            file.write(base + start.end.size - len(start.content), start.content)
        if start.blocks:
            save_blocks(start.blocks)

    def add(self, payloads: Sequence[bytes], beside: Sequence[bytes] = ()) -> None:
        """Write data; the first one's offset is `end.length`.

        Args:
            payloads: their bytes, without padding.
            beside: ignored; only dir segments store metadata.
        """
        laid = self._layout.lay(payloads, self.end)
        self._file.write(self._base + self.end.size, laid.content)
        if laid.blocks:
            self._save_blocks(laid.blocks)
        self.end = laid.end

    def copy(
        self,
        source: ReadableFile,
        spans: Iterable[tuple[int, int]],
        *,
        count: int,
        length: int | None = None,
        blocks: Iterable[Block] = (),
    ) -> None:
        """Copy data from a file that contains them as this segment stores them, padding included.

        Args:
            spans: (position, size) in the file.
            count: number of data in the spans.
            length: decompressed bytes of the spans, if they are compressed.
            blocks: the blocks in the spans; their offsets and positions count from the first span.

        Raises:
            EOFError: the file ends before a span does.
        """
        spans, end = [*spans], self.end
        size = sum(size for _, size in spans)
        if len(spans) == 1:
            self._file.copy(source, *spans[0], self._base + end.size)
        else:
            self._file.copy_spans(source, spans, self._base + end.size)
        if moved := [Block(end.length + each.offset, end.size + each.position, each.stored) for each in blocks]:
            self._save_blocks(moved)
        counted = 0 if self._layout.patch(end) is None else count
        self.end = replace(
            end,
            size=end.size + size,
            length=end.length + (size if length is None else length),
            count=end.count + counted,
        )

    def finish(self) -> End:
        """Update the header, and return where the segment ends."""
        patch = self._layout.patch(self.end)
        if patch is not None:
            self._file.write(self._base + patch.position, patch.content)
        return self.end

    def seal(self) -> End:
        """Finish a complete segment: write its end mark, sync the file, and return where the segment ends."""
        end = self.finish()
        if mark := self._layout.seal(end):
            self._file.write(self._base + end.size, mark)
        self._file.sync()
        return end
