"""Reading: rows of the index become data, neighbouring spans in one read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from ondisk.config import DatasetConfig
from ondisk.datum import Datum, Location, Value, from_microseconds
from ondisk.errors import DatumNotFound, FrameCorrupt, InvalidInput
from ondisk.filesystem import Directory
from ondisk.formats import Format, find
from ondisk.index import Row, Snapshot
from ondisk.matcher import Expression, Sort
from ondisk.segments import ConcatReader

_SPAN = 8 * 1024 * 1024
_GAPS = 64 * 1024
_segment_of = itemgetter(1)


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
    ) -> Iterator[Datum]:
        """Give what matches, in order."""
        for rows in snapshot.rows(tree, sort, limit):
            for generation, run in groupby(rows, _segment_of):
                if with_data:
                    yield from self._with_data(snapshot, generation, list(run))
                else:
                    yield from self._without_data(snapshot, generation, run)

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
                return next(self._with_data(snapshot, segment.id, [row]))
        hint = "It was deleted, replaced or moved by a repack: query for it again."
        raise DatumNotFound(f"no datum stands at {location}", hint=hint, location=location)

    def _with_data(self, snapshot: Snapshot, generation: int, run: list[Row]) -> Iterator[Datum]:
        """Read rows of one segment."""
        segment = snapshot.segment(generation)
        format, name = self._format(segment.format), segment.name
        metadata_of, undeclared, decode = snapshot.metadata, format.undeclared, format.decode
        reftime, time = None, None
        for base, content, rows in self._spans(snapshot, generation, run):
            for row in rows:
                if row[0] != reftime:
                    reftime = row[0]
                    time = from_microseconds(reftime)
                start = row[2] - base
                payload = content[start : start + row[3]]
                metadata = metadata_of(row[4:])
                if undeclared:
                    metadata = {**format.describe(payload)[1], **metadata}
                yield Datum.stored(time, metadata, decode(payload), name, row[2], row[3])  # type: ignore[arg-type]

    def _without_data(self, snapshot: Snapshot, generation: int, run: Iterator[Row]) -> Iterator[Datum]:
        name = snapshot.segment(generation).name
        for row in run:
            yield Datum.stored(from_microseconds(row[0]), snapshot.metadata(row[4:]), None, name, row[2], row[3])

    def _spans(self, snapshot: Snapshot, generation: int, run: list[Row]) -> Iterator[tuple[int, bytes, list[Row]]]:
        """Read the bytes of rows, in as few reads as is worth it: (offset of the bytes, the bytes, their rows)."""
        begin = min(row[2] for row in run)
        end = max(row[2] + row[3] for row in run)
        wanted = sum(row[3] for row in run)
        if len(run) > 1 and (end - begin > _SPAN or end - begin > 2 * wanted + _GAPS):
            half = len(run) // 2
            yield from self._spans(snapshot, generation, run[:half])
            yield from self._spans(snapshot, generation, run[half:])
            return
        content = self._files.read(generation, lambda each: snapshot.segment(each).name, begin, end - begin)
        yield begin, content, run

    def _format(self, name: str) -> Format:
        format = self._formats.get(name)
        if format is None:
            format = self._formats[name] = find(name)(self._config)
        return format


def check_limit(limit: int | None) -> None:
    """Refuse a limit that is no count.

    Raises:
        InvalidInput: it is no whole number of 0 or more.
    """
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidInput(f"limit must be a whole number of 0 or more, not {limit!r}")
