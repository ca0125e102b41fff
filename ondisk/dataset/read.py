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
from ondisk.errors import DatumNotFound, FrameCorrupt, IndexCorrupt, InvalidInput
from ondisk.filesystem import Directory
from ondisk.formats import Format, find
from ondisk.index import RESTORE, Index, Key, Row, Segment, Snapshot
from ondisk.matcher import Expression, Sort
from ondisk.segments import ConcatReader

_SPAN = 8 * 1024 * 1024
_GAPS = 256 * 1024  # reading over so much that is not wanted costs less than another read for each datum
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
    """Reads data of one index: its segments' files, and their formats."""

    def __init__(self, directory: Directory, config: DatasetConfig) -> None:
        self._files = ConcatReader(directory)
        self._config = config
        self._formats: dict[str, Format] = {}

    def close(self) -> None:
        self._files.close()

    def query(
        self, snapshot: Snapshot, tree: Expression, sort: Sort | None, limit: int | None, *, with_data: bool
    ) -> Generator[list[Datum], None, None]:
        """Give what matches, in order, in lists."""
        for rows in snapshot.rows(tree, sort, limit):
            for run in _runs(rows):
                if with_data:
                    yield from self._with_data(snapshot, run)
                else:
                    yield _without_data(snapshot, run)

    def payloads(self, snapshot: Snapshot, tree: Expression, sort: Sort | None, limit: int | None) -> Iterator[bytes]:
        """Give the bytes of what matches, in order, with their padding."""
        for rows in snapshot.rows(tree, sort, limit):
            for run in _runs(rows):
                padding = self._format(snapshot.segment(run[0][1]).format).padding
                for base, content, part in self._spans(snapshot, run):
                    for row in part:
                        yield content[row[2] - base : row[2] - base + row[3]] + padding

    def look_up(self, index: Index, key: Key) -> list[Datum] | None:
        """Read the at most one datum that a whole unique key names; None where only a query can tell."""
        found = index.look_up(key)
        return None if found is None else [self._one(segment, metadata, row) for row, segment, metadata in found]

    def read(self, snapshot: Snapshot, location: Location) -> Datum:
        """Read the datum at a location.

        Raises:
            DatumNotFound: none stands there; after a repack a datum has another location.
        """
        segment = snapshot.segment_named(location.segment)
        if segment is not None and location.offset >= 0 and 0 <= location.size <= segment.size - location.offset:
            payload = self._files.read(segment.id, lambda _: segment.name, location.offset, location.size)
            try:
                reftime, _ = self._format(segment.format).describe(payload)
            except FrameCorrupt:
                row = snapshot.row_at(segment, location.offset, location.size, None)
            else:
                row = snapshot.row_at(segment, location.offset, location.size, reftime)
            if row is not None:
                return self._one(segment, snapshot.metadata(row[4:]), row)
        hint = "It was deleted, replaced or moved by a repack: query for it again."
        raise DatumNotFound(f"no datum stands at {location}", hint=hint, location=location)

    def _with_data(self, snapshot: Snapshot, run: list[Row]) -> Iterator[list[Datum]]:
        """Read rows of one segment."""
        format = self._format(snapshot.segment(run[0][1]).format)
        for base, content, rows in self._spans(snapshot, run):
            data = _made(snapshot, rows, content, base)
            for datum in data if format.undeclared or not format.raw else ():
                try:
                    if format.undeclared:
                        datum.metadata = {**format.describe(datum.data)[1], **datum.metadata}
                    datum.data = format.decode(datum.data)
                except FrameCorrupt as error:
                    raise _located(error, datum.location) from None
            yield data

    def _one(self, segment: Segment, metadata: Mapping[str, Any], row: Row) -> Datum:
        """Read one row."""
        format = self._format(segment.format)
        payload = self._files.read(segment.id, lambda _: segment.name, row[2], row[3])
        try:
            if format.undeclared:
                metadata = {**format.describe(payload)[1], **metadata}
            data = payload if format.raw else format.decode(payload)
        except FrameCorrupt as error:
            raise _located(error, Location(segment.name, row[2], row[3])) from None
        return Datum.stored(from_microseconds(row[0]), metadata, data, segment.name, row)

    def _spans(self, snapshot: Snapshot, run: list[Row]) -> Iterator[tuple[int, bytes, list[Row]]]:
        """Read the bytes of rows, in as few reads as is worth it: (offset of the bytes, the bytes, their rows)."""
        begin = min(map(_offset_of, run))
        last = max(run, key=_offset_of)
        size = last[2] + last[3] - begin
        wanted = sum(map(_size_of, run))
        if wanted > size or min(map(_size_of, run)) < 0:
            name = snapshot.segment(run[0][1]).name
            raise IndexCorrupt(
                f"the index is damaged: its data of {name!r} overlap near byte {begin}",
                hint=RESTORE,
                segment=name,
            )
        if len(run) > 1 and (size > _SPAN or size > 2 * wanted + _GAPS):
            half = len(run) // 2
            yield from self._spans(snapshot, run[:half])
            yield from self._spans(snapshot, run[half:])
            return
        yield begin, self._files.read(run[0][1], lambda id_: snapshot.segment(id_).name, begin, size), run

    def _format(self, name: str) -> Format:
        format = self._formats.get(name)
        if format is None:
            format = self._formats[name] = find(name)(self._config)
        return format


def _located(error: FrameCorrupt, location: Location | None) -> FrameCorrupt:
    """Say where the bytes stand that are no datum."""
    hint = "Restore the segment from a backup, or delete the datum by its location."
    return FrameCorrupt(f"{location}: {error.message}", hint=hint, location=location)


def _runs(rows: list[Row]) -> Iterator[list[Row]]:
    """Cut rows into runs of one segment each; in time order too, segments of two formats take turns."""
    if len(set(map(_segment_of, rows))) == 1:
        yield rows
        return
    for _, run in groupby(rows, _segment_of):
        yield list(run)


def _without_data(snapshot: Snapshot, rows: list[Row]) -> list[Datum]:
    """Make the data of rows of one segment from the index alone."""
    segment = snapshot.segment(rows[0][1]).name
    return [Datum.stored(from_microseconds(row[0]), snapshot.metadata(row[4:]), None, segment, row) for row in rows]


def _made(snapshot: Snapshot, rows: list[Row], content: bytes, base: int) -> list[Datum]:
    """Make the data of rows of one segment; `data` are their bytes in `content`, which begins at `base`.

    Run a million times a query: what a call would cost is written out, and what repeats is made once.
    """
    new, known = Datum.__new__, snapshot.known_metadata
    segment = snapshot.segment(rows[0][1]).name
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
