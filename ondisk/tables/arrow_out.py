"""A dataset as Arrow: what matches, as the batches of a table, streamed from one snapshot."""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeAlias

import pyarrow as pa

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Opened
from ondisk.dataset.query import Query, Reading
from ondisk.datum import Datum, FieldType
from ondisk.errors import InvalidInput, shown
from ondisk.formats import find
from ondisk.index import Row, Snapshot
from ondisk.index.snapshot import ROWS as LIST
from ondisk.matcher import Expression
from ondisk.matcher.sort import Sort
from ondisk.tables.arrow_bytes import ROWS, is_plain, with_data
from ondisk.tables.arrow_columns import PLACE, TYPES, RowsToArrow, all_columns
from ondisk.tables.arrow_data import DataToArrow, ValuesToArrow, sampled
from ondisk.tables.columns import (
    DATA,
    SAMPLE,
    Chosen,
    Complete,
    chosen,
    default_columns,
    ends_of,
    first_of,
    kind_of,
    name_all,
    place_of,
)

Columns: TypeAlias = Iterable[str] | Mapping[str, Any] | pa.Schema | None
"""The columns of a table: names; or names and types, which are those of Arrow or of fields; None for everything."""

_BINARY = DataToArrow(pa.binary())
_BYTES = 16 * 1024 * 1024  # of data that are decoded together, or one datum


def to_arrow(opened: Opened, query: Query, columns: Columns) -> pa.RecordBatchReader:
    """Return what matches as a table; see `Dataset.to_arrow`."""
    batches = _batches(opened, query, columns)
    schema = next(batches)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _batches(opened: Opened, query: Query, columns: Columns) -> Iterator[Any]:
    """Yield the schema of a table, then its batches. The snapshot is taken before the schema, and ends at the end."""
    config = opened.index.config
    names, types = given(columns)
    wanted = None if names is None else chosen(names, config)
    with Reading(opened, query) as (reader, snapshot, tree):
        order = query.order(opened.index)
        is_bytes = find(config.format).raw and is_plain(_BINARY, reader, snapshot)
        is_known = is_bytes and not reader.has_undeclared(snapshot)
        is_wanted = not is_known and needs_sample(wanted, types)
        sample: list[Datum] | None = None
        ends: list[Datum] = []
        if is_wanted:
            most = SAMPLE if query.limit is None else min(SAMPLE, query.limit)
            with contextlib.closing(reader.query(snapshot, tree, order, most, with_data=True)) as lists:
                sample, ends = first_of(chain.from_iterable(lists), most), ends_of(opened)
        complete = None
        if wanted is None:
            wanted = default_columns(config, sample, ends)
            complete = None if sample is None else Complete(wanted, config)
        table = Table(wanted, types, config, [*ends, *(sample or [])], is_bytes=is_bytes)
        yield table.schema
        yield from _Part(opened, snapshot, tree, table, order, query.limit, complete).stream()


def given(columns: Columns) -> tuple[Any, dict[str, pa.DataType]]:
    """Return the names, which `chosen` checks, and the types of columns that a caller wants; None for everything.

    Raises:
        InvalidInput: a type is not one.
    """
    if columns is None:
        return None, {}
    if isinstance(columns, pa.Schema):
        return columns.names, {each.name: each.type for each in columns}
    if isinstance(columns, Mapping):
        return [*columns], {name: _type(name, kind) for name, kind in columns.items() if kind is not None}
    return columns if isinstance(columns, str | bytes) else [*columns], {}


def _type(name: str, kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    with contextlib.suppress(ValueError):
        return TYPES[FieldType(kind)]
    hint = f"Pass one of {', '.join(FieldType)}; or a type of pyarrow, such as pyarrow.float64()."
    raise InvalidInput(f"the column {name} cannot have the type {shown(kind)}", hint=hint)


def needs_sample(wanted: Sequence[Chosen] | None, types: Mapping[str, pa.DataType]) -> bool:
    """Return whether some data have to be looked at, to find columns or types that the caller has not given."""
    return wanted is None or any(each.source != "index" and each.name not in types for each in wanted)


class Table:
    """The columns of a table, and what has to be read for them.

    Args:
        several: as in `all_columns`.

    Attributes:
        columns: in order.
        schema: their names and types.
        from_index: those of the index, as columns of Arrow.
        has_data: data have to be read.
        is_decoded: data must also be decoded, because a column needs more than their bytes.
        selected: SQL expression → Arrow type of what to select from the index. If data are read as bytes, segment,
            offset and size come first.

    Raises:
        InvalidInput: a column of the index has another type than the caller wants, a type cannot have such values, or
            a key of the content is a column although all data are bytes.
    """

    def __init__(
        self,
        columns: Sequence[Chosen],
        types: Mapping[str, pa.DataType],
        config: DatasetConfig,
        sample: Sequence[Datum],
        *,
        is_bytes: bool,
        several: bool = False,
    ) -> None:
        self.columns = columns
        known = all_columns(config, several=several)
        kinds: list[pa.DataType] = []
        self._untyped = set[str]()  # no datum of the sample has a value in them
        self._given = {name: field for name, kind in types.items() for field, each in TYPES.items() if each == kind}
        for each in columns:
            if each.source == "index":
                kind = known[each.key].kind
                if (given := types.get(each.name, kind)) != kind:
                    hint = "Cast it after reading."
                    raise InvalidInput(f"the column {each.name} is {kind}, not {given}", hint=hint)
            elif each.source == "content" and is_bytes:
                hint = f"Choose {DATA}, which holds the bytes."
                raise InvalidInput(f"there is no column {each.name}: data of {config.format} are bytes", hint=hint)
            elif each.source == "data":
                is_json = not is_bytes and all(type(datum.data) is not bytes for datum in sample)
                kind = types.get(each.name, pa.string() if is_json else pa.binary())
            else:
                values = _values(each, sample)
                kind = types.get(each.name) or sampled(values)
                if each.name not in types and all(value is None for value in values):
                    self._untyped.add(each.name)
            kinds.append(kind)
        self.schema = pa.schema([(each.name, kind) for each, kind in zip(columns, kinds, strict=True)])
        self.from_index = [known[each.key] for each in columns if each.source == "index"]
        sources = {each.source for each in columns}
        self.has_data = sources != {"index"}
        is_json = DATA in self.schema.names and self.schema.field(DATA).type != pa.binary()
        self.is_decoded = self.has_data and (not is_bytes or is_json or "metadata" in sources)
        self.selected: dict[str, pa.DataType] = {}
        if self.has_data and not self.is_decoded:
            self.selected |= dict.fromkeys(PLACE, pa.int64())
        for column in self.from_index:
            self.selected |= zip(column.sql(), column.stored(), strict=True)
        self._makers: dict[str, DataToArrow | ValuesToArrow] = {}
        for each, kind in zip(columns, kinds, strict=True):
            if each.source == "data":
                self._makers[each.name] = DataToArrow(kind)
            elif each.source != "index":
                self._makers[each.name] = ValuesToArrow(kind, each.name)

    def from_data(self, data: Sequence[Datum]) -> dict[str, pa.Array]:
        """Return the columns of data that were decoded.

        Raises:
            InvalidInput: a value is not of the type of its column; names the datum's location.
        """
        made = {}
        for each in self.columns:
            if (maker := self._makers.get(each.name)) is None:
                continue
            values = _values(each, data)
            try:
                if each.name in self._untyped:
                    _check_texts(values, each.name)
                made[each.name] = maker.make(values)
            except InvalidInput as error:
                place = error.context["position"]
                message = f"{place_of(data[place])}: {error.message}"
                is_real = type(values[place]) is float and self.schema.field(each.name).type == pa.int64()
                kind = kind_of(values[place]) if each.name in self._untyped or is_real else FieldType.TEXT
                hint = name_all(self.schema.names, self._given | {each.name: kind})
                raise InvalidInput(message, hint=hint, location=data[place].location) from None
        return made

    def batch(self, arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return a batch of the table from its columns by name."""
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)


def _check_texts(values: Sequence[Any], name: str) -> None:
    """Raise unless all values are texts, lists or mappings: others would become text without notice.

    Raises:
        InvalidInput: one is a number, boolean, time or bytes; `position` in the error's context says which.
    """
    for position, value in enumerate(values):
        if value is not None and kind_of(value) is not FieldType.TEXT:
            problem = (
                f"{name} is {shown(value)}, and the type of its column is not known: the first data have no value there"
            )
            raise InvalidInput(problem, position=position)


def _values(column: Chosen, data: Sequence[Datum]) -> list[Any]:
    """Return the values of a column that the index does not have."""
    key = column.key
    if column.source == "data":
        return [datum.data for datum in data]
    if column.source == "metadata":
        return [datum.metadata.get(key) for datum in data]
    return [datum.data.get(key) if isinstance(datum.data, Mapping) else None for datum in data]


class _Part:
    """The rows of one index that match, and how they become batches.

    Args:
        complete: checks that no column is missing; None if the caller chose them.
    """

    def __init__(
        self,
        opened: Opened,
        snapshot: Snapshot,
        tree: Expression,
        table: Table,
        order: Sort | None,
        limit: int | None,
        complete: Complete | None,
    ) -> None:
        self._reader = opened.reader
        self._snapshot = snapshot
        self._table = table
        self._complete = complete
        self._keys = 4 + len(snapshot.columns.kinds) if table.is_decoded else 0  # columns of a `Row`
        select = [snapshot.columns.row] * bool(self._keys) + [*table.selected]
        self._query = tree, order, limit, ", ".join(select)
        self._index = RowsToArrow(table.from_index, snapshot)
        self._positions = {each: number for number, each in enumerate(table.selected)}

    def rows(self) -> Iterator[list[Row]]:
        """Yield the rows in order, some at a time."""
        tree, order, limit, select = self._query
        return self._snapshot.rows(tree, order, limit, select=select, count=ROWS)

    def stream(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, as batches."""
        if self._table.is_decoded:
            for rows in self.rows():
                yield from self.batches(rows)
            return
        for raw in self._packed():
            yield from self._finished(raw)

    def batches(self, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        """Yield batches with the data of rows, in their order."""
        table = self._table
        if not rows:
            return
        if table.is_decoded:
            for some in _cut(rows):
                data = [*chain.from_iterable(self._reader.rows(self._snapshot, [row[: self._keys] for row in some]))]
                if self._complete is not None:
                    self._complete.check(data)
                yield table.batch(self._indexed(self._raw(some)) | table.from_data(data))
            return
        yield from self._finished(self._raw(rows))

    def _finished(self, raw: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield batches from what was selected, for data that need not be decoded."""
        if not self._table.has_data:
            yield self._table.batch(self._indexed(raw))
            return
        for some, data in with_data(raw, _BINARY, self._reader, self._snapshot, in_order=True):
            yield self._table.batch({**self._indexed(some), DATA: data})

    def _raw(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return what was selected for the table, which follows the keys, as columns c0, c1 …"""
        values = [*zip(*rows, strict=True)][self._keys :]
        arrays = [pa.array(each, kind) for each, kind in zip(values, self._table.selected.values(), strict=True)]
        return _numbered(arrays)

    def _packed(self) -> Iterator[pa.RecordBatch]:
        """Yield what was selected for the table as columns c0, c1 …, for rows without keys.

        Pack a small list of rows at a time into bytes, 8 for each value: millions of rows pass here.

        Raises:
            IndexCorrupt: a value is not of the type of its column.
        """
        tree, order, limit, select = self._query
        kinds = [*self._table.selected.values()]
        row = "".join("d" if kind == pa.float64() else "q" for kind in kinds)
        lists = self._snapshot.rows(tree, order, limit, select=select, count=LIST)
        while pieces := [self._pack(row, rows) for rows in islice(lists, ROWS // LIST)]:
            words = array("q", b"".join(pieces))
            columns = [words[number :: len(kinds)] for number in range(len(kinds))]
            yield _numbered(
                [
                    pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
                    for kind, column in zip(kinds, columns, strict=True)
                ]
            )

    def _pack(self, row: str, rows: Sequence[Row]) -> bytes:
        try:
            return _packer(row, len(rows))(*chain.from_iterable(rows))
        except struct.error as error:
            raise self._snapshot.corrupt(f"a value of a row has another type: {error}") from None

    def _indexed(self, raw: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = self._table.from_index
        selected = [raw.columns[self._positions[each]] for column in columns for each in column.sql()]
        return {column.name: array for column, array in zip(columns, self._index.convert(selected), strict=True)}


def _numbered(arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, [f"c{number}" for number in range(len(arrays))])


@lru_cache(maxsize=16)
def _packer(row: str, count: int) -> Callable[..., bytes]:
    """Return a function that packs the values of rows, 8 bytes each.

    Args:
        row: `q` for each integer of a row, and `d` for each real.
    """
    return struct.Struct("=" + row * count).pack


def _cut(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield rows, as `Snapshot.rows` has them, in slices of a limited number of bytes."""
    begin = total = 0
    for end, row in enumerate(rows):
        if end > begin and total + row[3] > _BYTES:
            yield rows[begin:end]
            begin, total = end, 0
        total += row[3]
    yield rows[begin:]
