"""Rows of the index as Arrow: the types of their columns, how they become arrays, and the data of these rows.

Data that are bytes are read as whole columns, without an object for each; the others one by one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.batched import batched
from ondisk.config import DatasetConfig
from ondisk.dataset.read import DatasetReader, misplaced
from ondisk.datum import INTEGER_MAX, FieldType, Location
from ondisk.errors import InvalidInput
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.tables.arrow_values import DataToArrow
from ondisk.tables.columns import DATASET, index_columns

TYPES: dict[FieldType, pa.DataType] = {
    FieldType.INTEGER: pa.int64(),
    FieldType.REAL: pa.float64(),
    FieldType.TEXT: pa.string(),
    FieldType.ITEM: pa.string(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.TIMESTAMP: pa.timestamp("us", "UTC"),
    FieldType.BYTES: pa.binary(),
}
"""The type of a column for each type of a field."""

PLACE = ("datum.segment", "datum.offset", "datum.size")
"""The first columns of each row of the index when the data are read, too."""

ROWS = 16_384  # maximum number of rows of a batch
_KEPT = 100_000  # values
_BYTES = 16 * 1024 * 1024  # of data in a batch, or one datum
_GAPS = 256 * 1024  # bytes between data that are read with them: costs less than another read
_PLACE = [(name, "ascending") for name in ("c0", "c1", "c2")]
_EVEN = pa.array(range(0, 2 * ROWS, 2), pa.int32())


@dataclass(frozen=True, slots=True)
class Column:
    name: str  # as `all_columns` has it
    kind: pa.DataType  # type
    # name and type of the field that it shows; None for dataset, segment, offset and size, and for the data
    field: tuple[str, FieldType] | None = None
    label: str | None = None  # in the table, if it has another name there
    # all rows have the same value, the only item: the path of their dataset, or None in a dataset without the field
    same: tuple[str | None] | None = None

    def of(self, config: DatasetConfig, dataset: str | None) -> Column:
        """Return the column for the rows of one dataset, whose path the column `dataset` shows, if there is one."""
        if self.field is None:
            return replace(self, same=(dataset,)) if self.name == DATASET else self
        is_absent = self.field[0] != "reftime" and self.field[0] not in config.fields
        return replace(self, same=(None,)) if is_absent else self

    def sql(self) -> list[str]:
        """Return the SQL expressions to select from `datum` for it; they are never NULL."""
        if self.same is not None:
            return ["datum.segment"]
        if self.field is None:
            return [f"datum.{self.name}"]
        name, kind = self.field
        if name == "reftime":
            return ["datum.reftime"]
        if kind.interned:
            return [f"datum.f_{name}"]
        nothing = "0.0" if kind is FieldType.REAL else "0"
        return [f"ifnull(datum.f_{name}, {nothing})", f"datum.f_{name} IS NULL"]

    def stored(self) -> list[pa.DataType]:
        """Return the types of what the expressions of `sql` select."""
        if self.same is not None or self.field is None or self.field[0] == "reftime" or self.field[1].interned:
            return [pa.int64()]
        return [pa.float64() if self.field[1] is FieldType.REAL else pa.int64(), pa.int64()]


def all_columns(config: DatasetConfig, *, several: bool = False) -> dict[str, Column]:
    """Return all columns of a dataset except the data, by name; `several` as in `index_columns`."""
    return {
        label: Column(label, TYPES[kind], None if name is None else (name, kind))
        for label, (name, kind) in index_columns(config, several=several).items()
    }


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(each.label or each.name, each.kind) for each in columns])


class RowsToArrow:
    """Turns rows that were selected from one snapshot of the index into columns of Arrow, but for the data."""

    def __init__(self, columns: Sequence[Column], snapshot: Snapshot) -> None:
        self._columns = columns
        self._snapshot = snapshot
        self._values: dict[int, bytes | None] = {0: None}

    def convert(self, raw: Sequence[pa.Array]) -> Iterator[pa.Array]:
        """Yield the columns of some rows; `raw` holds the values of all `Column.sql` expressions, in order."""
        selected = iter(raw)
        for column in self._columns:
            found = next(selected)
            kind = column.field[1] if column.field is not None else FieldType.INTEGER
            if column.same is not None:
                yield pa.repeat(pa.scalar(*column.same, column.kind), len(found))
            elif column.name == "segment" and column.field is None:
                yield self._names(found)
            elif kind.interned:
                yield self._interned(found, kind)
            elif column.field is None or column.field[0] == "reftime":
                yield _typed(found, kind)
            else:
                missing = pc.cast(next(selected), pa.bool_())
                yield pc.if_else(missing, pa.scalar(None, _typed(found, kind).type), _typed(found, kind))

    def _interned(self, ids: pa.Array, kind: FieldType) -> pa.Array:
        encoded = ids.dictionary_encode()
        values = pa.array(self._values_of(encoded.dictionary.to_pylist()), pa.binary())
        if kind.is_text:
            values = values.cast(pa.string())
        return values.take(encoded.indices)

    def _names(self, ids: pa.Array) -> pa.Array:
        encoded = ids.dictionary_encode()
        names = [self._snapshot.segment(id).name for id in encoded.dictionary.to_pylist()]
        return pa.array(names, pa.string()).take(encoded.indices)

    def _values_of(self, ids: list[int]) -> list[bytes | None]:
        values = self._values
        if len(values) > _KEPT:
            values.clear()
            values[0] = None
        unknown = [id for id in ids if id not in values]
        if unknown:
            sql = "SELECT id, CAST(value AS BLOB) FROM value WHERE id IN (SELECT value FROM json_each(?))"
            values.update(self._snapshot.connection.execute(sql, (json.dumps(unknown),)))
        try:
            return [values[id] for id in ids]
        except KeyError as error:
            raise self._snapshot.corrupt(f"the value {error} is missing") from None


def _typed(values: pa.Array, kind: FieldType) -> pa.Array:
    if kind is FieldType.TIMESTAMP:
        return values.cast(pa.timestamp("us", "UTC"))
    return values.cast(pa.bool_()) if kind is FieldType.BOOLEAN else values


def is_plain(column: DataToArrow, reader: DatasetReader, snapshot: Snapshot) -> bool:
    """Return whether no datum must be decoded; then nothing is compared with the index."""
    return column.is_binary and all(map(reader.has_bytes, segment_rows.formats(snapshot)))


def with_data(
    rows: pa.RecordBatch, column: DataToArrow, reader: DatasetReader, snapshot: Snapshot
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield rows with their data, in their order, in batches of limited size.

    Args:
        rows: their columns begin with c0, c1, c2: segment, offset and size; then c3, reftime, unless `is_plain`.

    Raises:
        SegmentMissing, SegmentCorrupt, FrameCorrupt, IndexCorrupt: data are not on disk as the index says.
        InvalidInput: a datum has another type than the column; names its location.

    Cost: 0.05 µs for a datum, beside reading its bytes; 100 times as much if it must be decoded.
    """
    for some in _cut(rows):
        if _in_order(some):
            yield some, _data_of(some, column, reader, snapshot)
        else:
            places = pc.sort_indices(some, sort_keys=_PLACE)
            data = _data_of(some.take(places), column, reader, snapshot)
            yield some, data.take(pc.sort_indices(places))


def _data_of(rows: pa.RecordBatch, column: DataToArrow, reader: DatasetReader, snapshot: Snapshot) -> pa.Array:
    """Return the data of rows that are in the order of their data on disk."""
    runs = pc.run_end_encode(rows.column("c0"))
    begin = 0
    arrays: list[pa.Array] = []
    for end, id in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        run, segment = rows.slice(begin, end - begin), snapshot.segment(id)
        if column.is_binary and reader.has_bytes(segment.format):
            arrays += _bytes(run.column("c1"), run.column("c2"), segment, reader, snapshot)
        else:
            arrays.append(_decoded(run, column, segment, reader, snapshot))
        begin = end
    return pa.concat_arrays(arrays)


def _in_order(rows: pa.RecordBatch) -> bool:
    """Return whether rows are sorted by segment and offset; this takes a sixth of the time of sorting."""
    segments, offsets = rows.column("c0"), rows.column("c1")
    is_later = pc.greater(offsets[1:], offsets[:-1])
    is_next = pc.and_(pc.equal(segments[1:], segments[:-1]), is_later)
    return bool(pc.all(pc.or_(pc.greater(segments[1:], segments[:-1]), is_next)).as_py())


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if pc.sum(rows.column("c2")).as_py() <= _BYTES:
        yield rows
        return
    sizes = rows.column("c2").to_pylist()
    for some in batched(range(len(sizes)), sizes.__getitem__, _BYTES):
        yield rows.slice(some[0], len(some))


def _bytes(
    offsets: pa.Array, sizes: pa.Array, segment: Segment, reader: DatasetReader, snapshot: Snapshot
) -> Iterator[pa.Array]:
    """Yield the data of rows of one segment, with few reads: gaps are read, too, unless they are large."""
    begin, count = offsets[0].as_py(), len(offsets)
    size = offsets[-1].as_py() + sizes[-1].as_py() - begin
    if count > 1 and size > 2 * pc.sum(sizes).as_py() + _GAPS:
        half = count // 2
        for each in (slice(None, half), slice(half, None)):
            yield from _bytes(offsets[each], sizes[each], segment, reader, snapshot)
        return
    smallest, largest = pc.min_max(sizes).as_py().values()
    if smallest < 0 or largest > size or begin < 0 or begin + size > INTEGER_MAX:
        raise misplaced(snapshot, segment, begin)
    content = reader.content(snapshot, segment, begin, size)
    begins = pc.subtract(offsets, pa.scalar(begin, pa.int64())).cast(pa.int32())
    ends = pc.add(begins, sizes.cast(pa.int32()))
    # Arrow would not check that they stay inside the content.
    if pc.any(pc.greater(ends[:-1], begins[1:])).as_py():
        raise misplaced(snapshot, segment, begin)
    # An array of data and gaps, alternating; then every second element.
    places = array("i", bytes(8 * count))
    places[::2], places[1::2] = _integers(begins), _integers(ends)
    both = [None, pa.py_buffer(places), pa.py_buffer(content)]
    yield pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, both).take(_EVEN[:count])


def _integers(numbers: pa.Array) -> array[int]:
    found = array("i")
    found.frombytes(numbers.buffers()[1][: 4 * len(numbers)])
    return found


def _decoded(
    rows: pa.RecordBatch, column: DataToArrow, segment: Segment, reader: DatasetReader, snapshot: Snapshot
) -> pa.Array:
    segments, offsets, sizes, reftimes = (each.to_pylist() for each in rows.columns[:4])
    places = [*zip(reftimes, segments, offsets, sizes, strict=True)]
    data = [datum for some in reader.data(snapshot, places) for datum in some]
    try:
        return column.make(data)
    except InvalidInput as error:
        location = Location.of(segment.name, places[error.context["position"]])
        raise InvalidInput(f"{location}: {error.message}", hint=error.hint, location=location) from None
