"""Reading: rows of the index become data, neighbouring spans in one read."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import EPOCH, INTEGER_MAX, Datum, Location, Value, from_microseconds
from ondisk.errors import DatumNotFound, FrameCorrupt, IndexCorrupt, IntegrityError, InvalidInput, SegmentCorrupt
from ondisk.filesystem import Directory, ReadableFile
from ondisk.formats import Block, Format, find
from ondisk.formats.base import Loaded
from ondisk.index import RESTORE, Index, Key, Row, Segment, Snapshot
from ondisk.matcher import Expression, Sort
from ondisk.segments import ConcatReader, DirReader

_SPAN = 1024 * 1024  # an event may take 70 times its bytes, and all of a span are alive at once
_GAPS = 256 * 1024  # reading over so much that is not wanted costs less than another read for each datum
TAIL = 4
"""Bytes at the end of a datum that tell whether it ends there, see `Format.ends`."""
_segment_of, _offset_of, _size_of = itemgetter(1), itemgetter(2), itemgetter(3)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a dataset holds, or what of it matches.

    Attributes:
        count: data.
        size: bytes of data, without padding.
        begin: first reftime; None without data.
        end: last reftime; None without data.
        fields: declared field → its values and how many data have each, in order; None, for missing, first.
    """

    count: int
    size: int
    begin: datetime | None
    end: datetime | None
    fields: dict[str, list[tuple[Value | None, int]]] = field(default_factory=dict)


class Reader:
    """Reads data of one index: its segments' files, and their formats.

    Args:
        prefix: what the names of segments begin with in the data that it gives: `.archive/last/` for the archive.
    """

    def __init__(self, directory: Directory, config: DatasetConfig, prefix: str = "") -> None:
        self.prefix = prefix
        self._files = ConcatReader(directory)
        self._directories = DirReader(directory)
        self._config = config
        self._formats: dict[str, Format] = {}

    def close(self) -> None:
        self._files.close()
        self._directories.close()

    def query(
        self, snapshot: Snapshot, tree: Expression, sort: Sort | None, limit: int | None, *, with_data: bool
    ) -> Generator[list[Datum], None, None]:
        """Give what matches, in order, in lists."""
        for rows in snapshot.rows(tree, sort, limit):
            for run in _runs(rows):
                if with_data:
                    yield from self._with_data(snapshot, run)
                else:
                    yield _without_data(snapshot, run, self.prefix)

    def payloads(
        self, snapshot: Snapshot, tree: Expression, sort: Sort | None, limit: int | None
    ) -> Iterator[tuple[Format, Row, bytes]]:
        """Give format, row and bytes, with their padding, of what matches, in order."""
        for rows in snapshot.rows(tree, sort, limit):
            for run in _runs(rows):
                format = self._format(snapshot.segment(run[0][1]).format)
                padding = format.padding
                for base, content, part in self._spans(snapshot, run):
                    for row in part:
                        yield format, row, content[row[2] - base : row[2] - base + row[3]] + padding

    def contents(self, snapshot: Snapshot, rows: list[Row]) -> Iterator[bytes]:
        """Give the bytes of rows of one segment, without padding, to be written elsewhere.

        Raises:
            SegmentCorrupt: no datum ends where the index says that one does.
        """
        segment = snapshot.segment(rows[0][1])
        format = self._format(segment.format)
        padding = len(format.padding)
        if padding:
            rows = [(*row[:3], row[3] + padding) for row in rows]
        for base, content, part in self._spans(snapshot, rows):
            for row in part:
                begin, size = row[2] - base, row[3]
                check_end(format, segment, row[2], size, content[max(begin, begin + size - TAIL) : begin + size])
                yield content[begin : begin + size - padding]

    def data(self, snapshot: Snapshot, rows: list[Row]) -> Iterator[list[Any]]:
        """Give what rows of one segment hold, as `Datum.data`, some at a time; the rows need no declared fields.

        Raises:
            SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: it is not on disk as the index says.
        """
        segment = snapshot.segment(rows[0][1])
        format, name = self._format(segment.format), self.prefix + segment.name
        for base, content, part in self._spans(snapshot, rows):
            payloads = [content[row[2] - base : row[2] - base + row[3]] for row in part]
            if format.raw:
                yield payloads
                continue
            yield [*_loaded(name, part, format, payloads).data]

    def file_of(self, segment: Segment) -> ReadableFile:
        """Open the file that holds a segment.

        Raises:
            SegmentMissing: it is not on disk.
        """
        return self._files.file_of(segment.id, segment.name)

    def forget(self, generation: int) -> None:
        """Close the file of a generation of a segment, whose name was removed."""
        self._files.forget(generation)

    def look_up(self, index: Index, key: Key) -> list[Datum] | None:
        """Read the at most one datum that a whole unique key names; None where only a query can tell."""
        found = index.look_up(key)
        if found is None:
            return None
        data = []
        for row, segment, metadata in found:
            if segment.end.compressed:
                return None  # only a snapshot knows its blocks
            # Without a snapshot a repack may take the file away before it is opened, but not once it is open.
            payload = self._files.read_open(segment.id, row[2], row[3])
            if payload is None:
                return None
            data.append(self._one(segment, metadata, row, payload))
        return data

    def read(self, snapshot: Snapshot, location: Location) -> Datum:
        """Read the datum at a location.

        Raises:
            DatumNotFound: none stands there; after a repack a datum has another location.
        """
        segment = snapshot.segment_named(location.segment)
        if segment is not None and self._format(segment.format).is_dir:
            is_place = 0 <= location.offset < segment.end.length and 0 <= location.size <= INTEGER_MAX
            row = snapshot.row_at(segment, location.offset, location.size) if is_place else None
            if row is not None:
                payload = self._directories.read(segment.name, location.offset, location.size)
                return self._one(segment, snapshot.metadata(row[4:]), row, payload)
        elif (
            segment is not None and location.offset >= 0 and 0 <= location.size <= segment.end.length - location.offset
        ):
            format, place = self._format(segment.format), (location.offset, location.size)
            payload = b""
            try:
                payload = self.content(snapshot, segment, *place)
                row = snapshot.row_at(segment, *place, format.describe(payload))
            except IntegrityError as error:
                row = snapshot.row_at(segment, *place)
                if row is not None and not isinstance(error, FrameCorrupt):
                    raise
            if row is not None:
                return self._one(segment, snapshot.metadata(row[4:]), row, payload)
        hint = "It was deleted, replaced or moved by a repack: query for it again."
        raise DatumNotFound(f"no datum stands at {location}", hint=hint, location=location)

    def _with_data(self, snapshot: Snapshot, run: list[Row]) -> Iterator[list[Datum]]:
        """Read rows of one segment; what stands before damage is given, then the error."""
        segment = snapshot.segment(run[0][1])
        format = self._format(segment.format)
        try:
            for base, content, rows in self._spans(snapshot, run):
                data = _made(snapshot, rows, content, base, self.prefix)
                if format.undeclared or not format.raw:
                    self._decode(segment, data, rows, format)
                yield data
                run = run[len(rows) :]
        except (FrameCorrupt, SegmentCorrupt):
            if len(run) == 1:
                raise
            half = len(run) // 2
            yield from self._with_data(snapshot, run[:half])
            yield from self._with_data(snapshot, run[half:])

    def _one(self, segment: Segment, metadata: Mapping[str, Any], row: Row, payload: bytes) -> Datum:
        """Make the datum of one row and its bytes."""
        format = self._format(segment.format)
        datum = Datum.stored(from_microseconds(row[0]), metadata, payload, self.prefix + segment.name, row)
        if format.undeclared or not format.raw:
            self._decode(segment, [datum], [row], format)
        return datum

    def _decode(self, segment: Segment, data: list[Datum], rows: list[Row], format: Format) -> None:
        """Turn the bytes of data into what they hold, or add what stands beside them."""
        name = self.prefix + segment.name
        if format.is_dir:
            _fill(
                name, data, rows, format, [self._directories.beside(segment.id, segment.name, row[2]) for row in rows]
            )
        else:
            _fill(name, data, rows, format, [datum.data for datum in data])

    def _spans(self, snapshot: Snapshot, run: list[Row]) -> Iterator[tuple[int, bytes, list[Row]]]:
        """Read the bytes of rows, in as few reads as is worth it: (offset of the bytes, the bytes, their rows)."""
        segment = snapshot.segment(run[0][1])
        begin = min(map(_offset_of, run))
        if begin >= 0 and self._format(segment.format).is_dir:
            for row in run:
                yield row[2], self._directories.read(segment.name, row[2], row[3]), [row]
            return
        last = max(run, key=_offset_of)
        size = last[2] + last[3] - begin
        wanted = sum(map(_size_of, run))
        if wanted > size or min(map(_size_of, run)) < 0 or begin < 0 or begin + size > INTEGER_MAX:
            raise misplaced(segment, begin)
        if len(run) > 1 and (size > _SPAN or size > 2 * wanted + _GAPS):
            half = len(run) // 2
            yield from self._spans(snapshot, run[:half])
            yield from self._spans(snapshot, run[half:])
            return
        yield begin, self.content(snapshot, segment, begin, size), run

    def has_bytes(self, name: str) -> bool:
        """Tell whether data of a format are the bytes between their places in a segment, as they stand there."""
        format = self._format(name)
        return format.raw and not format.is_dir

    def content(self, snapshot: Snapshot, segment: Segment, begin: int, size: int) -> bytes:
        """Read decompressed bytes of a segment, which is no directory.

        Raises:
            SegmentMissing, SegmentCorrupt, IndexCorrupt: they are not on disk as the index says.
        """
        if not segment.end.compressed:
            return self._files.read(segment.id, lambda _: segment.name, begin, size)
        format = self._format(segment.format)
        blocks = snapshot.blocks(segment.id, begin, begin + size)
        first, last = blocks[0], blocks[-1]
        if begin + size > last.offset + format.block_size:  # before memory is taken for it
            raise _no_blocks(segment, begin + size)
        position = first.position
        stored = self._files.read(segment.id, lambda _: segment.name, position, last.position + last.stored - position)
        view = memoryview(stored)
        if first is last:
            content = _unpacked(format, segment, first, view)
        else:
            pieces, offset = [], first.offset
            for block in blocks:
                if block.offset != offset:
                    raise _no_blocks(segment, block.offset)
                at = block.position - position
                pieces.append(_unpacked(format, segment, block, view[at : at + block.stored]))
                offset += len(pieces[-1])
            content = b"".join(pieces)
        content = content[begin - first.offset : begin - first.offset + size]
        if len(content) < size:
            raise _no_blocks(segment, begin + size)
        return content

    def _format(self, name: str) -> Format:
        format = self._formats.get(name)
        if format is None:
            format = self._formats[name] = find(name)(self._config)
        return format


def check_end(format: Format, segment: Segment, offset: int, size: int, tail: bytes) -> None:
    """Refuse a datum that does not end where the index says, before something is written without its other bytes.

    Args:
        size: its padding included.
        tail: its last `TAIL` bytes.
    """
    if not format.ends(tail, size):
        message = f"no datum of {size} bytes stands at byte {offset} of {segment.name!r}, as the index says"
        raise SegmentCorrupt(message, hint=RESTORE, segment=segment.name)


def _fill(name: str, data: list[Datum], rows: list[Row], format: Format, payloads: list[bytes]) -> None:
    """Give data what their bytes hold, or what stands beside them."""
    loaded = _loaded(name, rows, format, payloads)
    if not format.raw:
        for datum, content in zip(data, loaded.data, strict=True):
            datum.data = content
    if loaded.undeclared is not None:
        for datum, undeclared in zip(data, loaded.undeclared, strict=True):
            if undeclared:
                datum.metadata = {**undeclared, **datum.metadata}


def _loaded(name: str, rows: list[Row], format: Format, payloads: list[bytes]) -> Loaded:
    """Read what the bytes of rows of one segment hold, or what stands beside them."""
    try:
        loaded = format.load(payloads)
    except FrameCorrupt as error:
        raise _located(error, name, rows[error.context["position"]]) from None
    if loaded.reftimes is not None and loaded.reftimes != [row[0] for row in rows]:
        row, reftime = next(pair for pair in zip(rows, loaded.reftimes, strict=True) if pair[0][0] != pair[1])
        problem = f"it is a datum of {from_microseconds(reftime)}, the index says {from_microseconds(row[0])}"
        raise _located(FrameCorrupt(problem), name, row)
    return loaded


def _unpacked(format: Format, segment: Segment, block: Block, stored: memoryview) -> bytes:
    """Decompress one block, or say where it stands that is none."""
    try:
        return format.unpack(stored)
    except SegmentCorrupt as error:
        hint = "Restore the segment from a backup; the data in its other blocks can be read."
        message = f"{segment.name}, at byte {block.position} of the file: {error.message}"
        raise SegmentCorrupt(message, hint=hint, segment=segment.name, position=block.position) from None


def misplaced(segment: Segment, begin: int) -> IndexCorrupt:
    """Say that the index has several data in one place, or one where none can be."""
    message = f"the index is damaged: its data of {segment.name!r} cannot stand near byte {begin}"
    return IndexCorrupt(message, hint=RESTORE, segment=segment.name)


def _no_blocks(segment: Segment, offset: int) -> IndexCorrupt:
    message = f"the index is damaged: its blocks of {segment.name!r} are not those of the file near byte {offset}"
    return IndexCorrupt(message, hint=RESTORE, segment=segment.name)


def _located(error: FrameCorrupt, name: str, row: Row) -> FrameCorrupt:
    """Say where the bytes stand that are no datum."""
    location = Location(name, row[2], row[3])
    hint = "Restore the segment from a backup, or delete the datum by its location."
    return FrameCorrupt(f"{location}: {error.message}", hint=hint, location=location)


def _runs(rows: list[Row]) -> Iterator[list[Row]]:
    """Cut rows into runs of one segment each; in time order too, segments of two formats take turns."""
    if len(set(map(_segment_of, rows))) == 1:
        yield rows
        return
    for _, run in groupby(rows, _segment_of):
        yield list(run)


def _without_data(snapshot: Snapshot, rows: list[Row], prefix: str) -> list[Datum]:
    """Make the data of rows of one segment from the index alone."""
    segment = prefix + snapshot.segment(rows[0][1]).name
    return [Datum.stored(from_microseconds(row[0]), snapshot.metadata(row[4:]), None, segment, row) for row in rows]


def _made(snapshot: Snapshot, rows: list[Row], content: bytes, base: int, prefix: str) -> list[Datum]:
    """Make the data of rows of one segment; `data` are their bytes in `content`, which begins at `base`.

    Run a million times a query: what a call would cost is written out, and what repeats is made once.
    """
    new, known = Datum.__new__, snapshot.known_metadata
    segment = prefix + snapshot.segment(rows[0][1]).name
    reftime, time = None, EPOCH
    data = []
    for row in rows:
        datum = new(Datum)
        if row[0] != reftime:
            reftime = row[0]
            time = from_microseconds(row[0])
        datum.reftime = time
        try:
            datum.metadata = known[row[4:]]
        except KeyError:
            datum.metadata = snapshot.metadata(row[4:])
        start = row[2] - base
        datum.data = content[start : start + row[3]]
        datum._segment = segment
        datum._place = row
        data.append(datum)
    return data


def check_limit(limit: int | None) -> None:
    """Refuse a limit that is no count.

    Raises:
        InvalidInput: it is no whole number of 0 or more.
    """
    if limit is not None and (type(limit) is not int or not 0 <= limit <= INTEGER_MAX):
        hint = "Leave it out to have all."
        raise InvalidInput(f"limit must be a whole number of 0 or more, not {limit!r}", hint=hint)
