"""The new file of a segment that is rewritten: its data in query order, next to each other."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from ondisk.dataset.access import Access
from ondisk.dataset.read import DatasetReader
from ondisk.errors import IntegrityError, StateError
from ondisk.filesystem import Directory, WritableFile
from ondisk.formats import Format
from ondisk.index import Row, Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.observe import known_of
from ondisk.segment import Block, End, Facts, Laid
from ondisk.segments.concat_writer import SegmentWriter
from ondisk.segments.file_facts import CheckedReading
from ondisk.staging.jobs import Changed, create_staged
from ondisk.staging.rows import StagedFile, StagedRows

_PIECE = 4 * 1024 * 1024  # bytes that are laid together


class IndexPlaces:
    """Saves where the data of a segment are in its next generation, as `StagedRows` does in a file."""

    def __init__(self, transaction: Transaction, old: Segment, new: Segment) -> None:
        self._transaction = transaction
        self._old = old
        self._new = new

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Save seq, old offset and new offset of some data."""
        self._transaction.relocate(self._old, self._new, places)

    def resize(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Save seq and new size of data that have another one now, after `place`."""
        self._transaction.resize(self._new, sizes)

    def save_blocks(self, blocks: Iterable[Block]) -> None:
        """Save some blocks, if the file is compressed."""
        self._transaction.save_blocks(self._new, blocks)


class MergedPlaces(IndexPlaces):
    """The same for the data of several segments."""

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        self._transaction.set_places((self._new.id, offset, seq) for seq, _, offset in places)


@dataclass(frozen=True, slots=True)
class Written:
    """What a segment is to become, written by a process that does not commit it."""

    file: str  # name of the new segment file, in the dataset's directory
    end: End  # where the segment ends in it
    facts: Facts  # of the file; they stay when it is renamed
    size: int  # bytes of it
    rows: StagedFile  # the file with the new places of the data, and the blocks

    @classmethod
    def write(cls, access: Access, name: str, file: str) -> Written:
        """Write the new segment file, and `file`.rows.

        Raises:
            StateError: the index has no data of the segment, or it is not one file; or the directory for `file` was
                removed.
            SegmentMissing, SegmentCorrupt, IndexCorrupt: the data are not on disk as the index says.

        Locks: none; the process that commits sees whether the segment has changed meanwhile.
        """
        opened, directory = access.current(), access.directory
        with contextlib.ExitStack() as stack:
            snapshot = stack.enter_context(opened.index.snapshot())
            known = known_of(access, snapshot, name, None)
            if known is None or not known.rows.count or access.format(known.segment.format).is_dir:
                raise StateError(f"the segment {name} cannot be rewritten")
            staged = stack.enter_context(create_staged(directory, file))
            rows = stack.enter_context(StagedRows(directory, f"{file}.rows", access.config.fields))
            opened.reader.file_of(known.segment)  # once it is open, a repack cannot take it away
            snapshot.set_apart(known.segment)
            format = access.format(known.segment.format)
            pieces = partial(pieces_to_write, snapshot, known)
            end, facts = lay(format, snapshot, opened.reader, [known.segment], pieces, staged, rows)
            rows.finish()
            return cls(file, end, facts, staged.stat().st_size, StagedFile.of(directory, f"{file}.rows"))

    def save(self, directory: Directory, transaction: Transaction, old: Segment, new: Segment, count: int) -> None:
        """Save the new places of the data in the index.

        Raises:
            Changed: the segment's data have changed since, or a file is missing or damaged.
        """
        found = directory.stat(self.file)
        if found is None or found.st_size != self.size:
            raise Changed
        self.rows.verify(directory)
        if transaction.relocate_staged(old, new, directory.held(self.rows.name)) != count:
            raise Changed

    def discard(self, directory: Directory) -> None:
        """Remove the files that are still there."""
        self.rows.discard(directory)
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(self.file)


def lay(
    format: Format,
    snapshot: Snapshot,
    reader: DatasetReader,
    segments: Sequence[Segment],
    pieces: Callable[[], Iterator[list[Row]]],
    staged: WritableFile,
    places: IndexPlaces | StagedRows,
) -> tuple[End, Facts]:
    """Write the data of segments to another file next to each other.

    Args:
        pieces: returns reftime, segment, offset, size and seq of the data in their new order, some at a time.

    Returns:
        Where the segment ends, and the facts of the file.

    Raises:
        SegmentCorrupt: a segment's committed bytes do not have their checksum, or cannot be read.

    Durability: the file is synced.
    """
    checked = {each.id: CheckedReading(reader.file_of(each), each.committed(format.mutable)) for each in segments}
    ends = [each.end for each in segments]

    def read(rows: list[Row]) -> list[bytes]:
        if len(segments) == 1:
            return [*reader.contents(snapshot, rows, checked[segments[0].id].add)]
        of = {id_: [row for row in rows if row[1] == id_] for id_ in checked}
        contents = {id_: reader.contents(snapshot, some, checked[id_].add) for id_, some in of.items() if some}
        return [next(contents[row[1]]) for row in rows]

    def check(cause: Exception | None = None) -> None:
        for each in segments:
            if checked[each.id].is_whole() is False:
                raise reader.wrong_checksum(each) from cause

    start = start_for(format, ends, map(read, pieces()))
    writer = SegmentWriter(format, staged, segments[0].name, start, save_blocks=places.save_blocks)
    try:
        for rows in pieces():
            offset, payloads = writer.end.length, read(rows)
            if any(end.kind != writer.end.kind for end in ends):
                payloads, _ = format.refit(payloads, writer.end.kind)
            writer.add(payloads)
            seqs, sizes = [row[4] for row in rows], [*map(len, payloads)]
            offsets = accumulate(format.extents(sizes), initial=offset)
            places.place(zip(seqs, [row[2] for row in rows], offsets, strict=False))
            if sizes != [row[3] for row in rows]:
                places.resize(zip(seqs, sizes, strict=True))
    except IntegrityError as error:
        check(error)
        raise
    check()
    return writer.seal(), writer.facts()


def start_for(format: Format, ends: Sequence[End], data: Iterable[Sequence[bytes]]) -> Laid:
    """Return the first bytes of a segment that gets the data of others.

    It is stored as configured if segments of that kind can hold all data; otherwise in a way that can hold any.

    Args:
        data: all their data; read only if one of them is of another kind.
    """
    start = format.begin()
    if all(end.kind == start.end.kind for end in ends):
        return start
    if any(format.refit(some, start.end.kind)[1] for some in data):
        return format.begin_for_all()
    return start


def pieces_to_write(snapshot: Snapshot, known: Known) -> Iterator[list[Row]]:
    """Yield the rows of a segment's data in their new order, some MiB at a time."""
    for rows in segment_rows.in_order_to_write(snapshot, known.segment, known.rows.begin, known.rows.end):
        ends = [*accumulate(row[3] for row in rows)]
        begin = 0
        while begin < len(rows):
            before = ends[begin - 1] if begin else 0
            end = max(begin + 1, bisect_left(ends, before + _PIECE))
            yield rows[begin:end]
            begin = end
