"""Rewriting a segment: its data in another file, without holes and in query order; by who commits that, or for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, starmap
from struct import Struct
from typing import Protocol
from zlib import crc32

from ondisk.dataset.access import Access
from ondisk.dataset.read import TAIL, DatasetReader, check_end
from ondisk.errors import SegmentMissing, StateError
from ondisk.filesystem import Directory, ReadableFile, WritableFile
from ondisk.formats import Format
from ondisk.index import Row, Segment, Snapshot, Transaction, segment_rows
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.known import known_of
from ondisk.segment import Block, End
from ondisk.segments import SegmentWriter
from ondisk.staging.jobs import Changed, create_staged

_PIECE = 4 * 1024 * 1024  # bytes that are laid together
_WORTH_COPYING = 10 * 1024  # bytes of a span; smaller ones are read together and written together
_RECORD = Struct("<3q")
_RECORDS = 8192 * _RECORD.size  # bytes of them that are read together


class Places(Protocol):
    """What is told where the data of a segment stand in another file."""

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Take seq, offset before, and offset then, of some data."""

    def save_blocks(self, blocks: Iterable[Block]) -> None:
        """Take some blocks, where the file is compressed."""


class InIndex:
    """Tells the index, in its next generation of a segment.

    Attributes:
        count: data that stood where they were said to stand before.
    """

    def __init__(self, transaction: Transaction, old: Segment, new: Segment) -> None:
        self._transaction = transaction
        self._old = old
        self._new = new
        self.count = 0

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        self.count += self._transaction.relocate(self._old, self._new, places)

    def save_blocks(self, blocks: Iterable[Block]) -> None:
        self._transaction.save_blocks(self._new, blocks)


class _InFiles:
    """Tells it to two files, for `Written`."""

    def __init__(self, places: WritableFile, blocks: WritableFile) -> None:
        self._places = places
        self._blocks = blocks
        self._ends = {places: 0, blocks: 0}
        self._checksums = {places: 0, blocks: 0}

    @property
    def checksums(self) -> tuple[int, int]:
        """The CRC-32 of all that was told, of places and of blocks."""
        return self._checksums[self._places], self._checksums[self._blocks]

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        self._write(self._places, places)

    def save_blocks(self, blocks: Iterable[Block]) -> None:
        self._write(self._blocks, blocks)

    def _write(self, file: WritableFile, records: Iterable[tuple[int, int, int]]) -> None:
        content = b"".join(starmap(_RECORD.pack, records))
        file.write(self._ends[file], content)
        self._ends[file] += len(content)
        self._checksums[file] = crc32(content, self._checksums[file])


@dataclass(frozen=True, slots=True)
class Written:
    """What a segment is to become, in files of a process that does not commit it.

        FILE           the bytes
        FILE.places    of each datum: seq, offset before, offset then; three times 8 bytes, little-endian
        FILE.blocks    of each block: offset, position, bytes; likewise

    Attributes:
        file: its name in the dataset.
        end: where the segment ends then.
        size: bytes of the file.
        checksums: the CRC-32 of FILE.places, and of FILE.blocks.
    """

    file: str
    end: End
    size: int
    checksums: tuple[int, int]

    @classmethod
    def write(cls, access: Access, name: str, file: str) -> Written:
        """Write them.

        Raises:
            StateError: the index knows no data of the segment, or it is none of one file; or the directory for them is
                gone.
            SegmentMissing, SegmentCorrupt, IndexCorrupt: the data are not on disk as the index says.

        Locks: none; who commits sees whether the segment has changed meanwhile.
        """
        opened, directory = access.current(), access.directory
        with contextlib.ExitStack() as stack:
            snapshot = stack.enter_context(opened.index.snapshot())
            known = known_of(access, snapshot, name, None)
            if known is None or not known.count or access.format(known.segment.format).is_dir:
                raise StateError(f"{name} is no segment that can be rewritten")
            staged, of_places, of_blocks = (
                stack.enter_context(create_staged(directory, each))
                for each in (file, f"{file}.places", f"{file}.blocks")
            )
            # Its file, once it is open, is there whatever others do; so they need not wait for this.
            opened.reader.file_of(known.segment)
            snapshot.set_apart(known.segment)
            format = access.format(known.segment.format)
            told = _InFiles(of_places, of_blocks)
            end = lay(format, snapshot, opened.reader, known, staged, told)
            return cls(file, end, staged.stat().st_size, told.checksums)

    def tell(self, directory: Directory, told: InIndex, count: int) -> None:
        """Tell the index where the data stand then.

        Args:
            count: data that the segment has now.

        Raises:
            Changed: they are not those that were written, or the files are not there, or not whole.
        """
        found = directory.stat(self.file)
        if found is None or found.st_size != self.size:
            raise Changed
        records = 0
        of_places, of_blocks = self.checksums
        for each in _records(directory, f"{self.file}.places", of_places):
            records += len(each)
            told.place(each)
        if not records == told.count == count:
            raise Changed
        for each in _records(directory, f"{self.file}.blocks", of_blocks):
            told.save_blocks(starmap(Block, each))

    def discard(self, directory: Directory) -> None:
        """Remove the files that are still there."""
        for each in (self.file, f"{self.file}.places", f"{self.file}.blocks"):
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(each)


def _records(directory: Directory, name: str, checksum: int) -> Iterator[list[tuple[int, int, int]]]:
    try:
        file = directory.open_to_read(name)
    except FileNotFoundError:
        raise Changed from None
    position = found = 0
    while content := file.read(position, _RECORDS):
        position += len(content)
        found = crc32(content, found)
        if len(content) % _RECORD.size:
            raise Changed
        yield [*_RECORD.iter_unpack(content)]
    if found != checksum:
        raise Changed


def lay(
    format: Format, snapshot: Snapshot, reader: DatasetReader, known: Known, staged: WritableFile, told: Places
) -> End:
    """Write the data of a segment to another file, without holes and in query order.

    Args:
        told: receives the new place of each datum.

    Returns:
        Where the segment ends.

    Durability: the file is synced.
    """
    return _Laying(format, snapshot, reader, known, staged, told).lay()


class _Laying:
    """The writing of one segment's data to another file."""

    def __init__(
        self,
        format: Format,
        snapshot: Snapshot,
        reader: DatasetReader,
        known: Known,
        staged: WritableFile,
        told: Places,
    ) -> None:
        self._format = format
        self._snapshot = snapshot
        self._reader = reader
        self._known = known
        self._old = known.segment
        self._writer = SegmentWriter(format, staged, save_blocks=told.save_blocks)
        self._told = told

    def lay(self) -> End:
        """Write all of them, and return where they end."""
        writer = self._writer
        is_compressed = writer.end.compressed or self._old.end.compressed
        source = None if is_compressed else self._reader.file_of(self._old)
        for rows in _pieces(self._snapshot, self._known):
            offset = writer.end.length
            spans = [] if source is None else self._spans(rows)
            if source is not None and sum(row[3] for _, row in rows) > _WORTH_COPYING * len(spans):
                self._check_ends(source, rows, spans)
                self._copy(source, spans, len(rows))
            else:
                writer.add([*self._reader.contents(self._snapshot, [row for _, row in rows])])
            self._place(rows, offset)
        return writer.seal()

    def _spans(self, rows: list[tuple[int, Row]]) -> list[tuple[int, int]]:
        """Join data that stand one behind the other already, padding included: (begin, size)."""
        padding = len(self._format.padding)
        spans: list[tuple[int, int]] = []
        for _, row in rows:
            begin, size = row[2], row[3] + padding
            if spans and sum(spans[-1]) == begin:
                begin, size = spans[-1][0], spans[-1][1] + size
                spans.pop()
            spans.append((begin, size))
        return spans

    def _check_ends(self, source: ReadableFile, rows: list[tuple[int, Row]], spans: list[tuple[int, int]]) -> None:
        """Refuse to copy what does not end with a datum: inside of a span, each ends where the next one begins."""
        padding, ends = len(self._format.padding), {sum(span) for span in spans}
        for _, row in rows:
            size = row[3] + padding
            if row[2] + size in ends:
                length = min(size, TAIL)
                tail = source.read(row[2] + size - length, length)
                check_end(self._format, self._old, row[2], size, tail)

    def _copy(self, source: ReadableFile, spans: list[tuple[int, int]], count: int) -> None:
        try:
            self._writer.copy(source, spans, count=count)
        except EOFError as error:
            raise SegmentMissing(str(error), segment=self._old.name) from error

    def _place(self, rows: list[tuple[int, Row]], offset: int) -> None:
        """Report the places of data that are at an offset, one after the other."""
        extents = self._format.extents(row[3] for _, row in rows)
        offsets = accumulate(extents, initial=offset)
        self._told.place((seq, row[2], at) for (seq, row), at in zip(rows, offsets, strict=False))


def _pieces(snapshot: Snapshot, known: Known) -> Iterator[list[tuple[int, Row]]]:
    """Give a segment's data in query order: seq and row, some MiB at a time."""
    piece: list[tuple[int, Row]] = []
    weight = 0
    for rows in segment_rows.in_order_of_query(snapshot, known.segment, known.begin, known.end):
        for each in rows:
            piece.append(each)
            weight += each[1][3]
            if weight >= _PIECE:
                yield piece
                piece, weight = [], 0
    if piece:
        yield piece
