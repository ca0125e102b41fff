"""What a query finds as a table of Arrow: batches of named columns, streamed.

Rows of an index, or of several one after the other, are read in columns if no datum has to be decoded for them. All
other tables are made of data, one by one.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.batched import batched
from ondisk.config import DatasetConfig
from ondisk.dataset.access import Opened
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.output_file import output_file
from ondisk.dataset.query import Query, Results, snapshot_of
from ondisk.dataset.read import DatasetReader
from ondisk.dataset.unreadable_data import Damaged, warn_of
from ondisk.datum import Datum, FieldType
from ondisk.errors import InvalidInput, shown
from ondisk.formats import find
from ondisk.index import Row, Snapshot
from ondisk.index.snapshot import ROWS as LIST
from ondisk.matcher import Expression
from ondisk.matcher.sort import Sort
from ondisk.table_options import REFTIME
from ondisk.tables.arrow_values import EXACT, DataToArrow, ValuesToArrow, sampled
from ondisk.tables.columns import (
    DATA,
    SAMPLE,
    Chosen,
    Complete,
    chosen,
    config_of,
    default_columns,
    ends,
    first_of,
    formats_of,
    kind_of,
    name_all,
    place_of,
)
from ondisk.tables.index_to_arrow import PLACE, ROWS, TYPES, RowsToArrow, all_columns, is_plain, with_data

if TYPE_CHECKING:
    from ondisk.dataset.merged import Merged

Columns: TypeAlias = Iterable[str] | Mapping[str, Any] | pa.Schema | None
"""The columns of a table: names; or names and types, which are those of Arrow or of fields; None for everything."""

Form: TypeAlias = Literal["parquet", "arrow"]

# Readers read whole groups of rows of Parquet, and skip whole groups. Memory holds one.
_GROUP_ROWS, _GROUP_BYTES = 1_000_000, 64 * 1024 * 1024
_BINARY = DataToArrow(pa.binary())
_BYTES = 16 * 1024 * 1024  # of data in a batch, or one datum


def from_index(opened: Opened, query: Query, columns: Columns) -> pa.RecordBatchReader | None:
    """Return what matches as a table; None if it cannot be read in columns. See `Dataset.to_arrow`."""
    batches = _from_index(opened, query, columns)
    schema = next(batches, None)
    return None if schema is None else pa.RecordBatchReader.from_batches(schema, batches)


def from_data(
    dataset: Dataset | Merged, query: Callable[[bool], Results[Datum]], columns: Columns, damaged: Damaged
) -> pa.RecordBatchReader:
    """Return what a query finds as a table, see `Dataset.to_arrow`. `query`: begins it, with the data or without."""
    batches = _from_data(dataset, query, columns, damaged)
    return pa.RecordBatchReader.from_batches(next(batches), batches)


def _from_index(opened: Opened, query: Query, columns: Columns) -> Iterator[Any]:
    """Yield the schema of a table, then its batches. The snapshot is taken before the schema, and ends at the end.

    Yield nothing if data have to be decoded.
    """
    config = opened.index.config
    names, types = _given(columns)
    wanted = None if names is None else chosen(names, config)
    with snapshot_of(opened, query) as (reader, snapshot, tree):
        is_bytes = find(config.format).raw and is_plain(_BINARY, reader, snapshot)
        if wanted is None:
            if not is_bytes or reader.has_undeclared(snapshot):
                return
            wanted = default_columns(config, None, [])
        table = _Table(wanted, types, config, [], is_bytes=is_bytes)
        if table.is_of_index(is_bytes=is_bytes):
            yield table.schema
            yield from _rows(reader, snapshot, tree, table, query.order(opened.index), query.limit)


def _from_data(
    dataset: Dataset | Merged, query: Callable[[bool], Results[Datum]], columns: Columns, damaged: Damaged
) -> Iterator[Any]:
    """Yield the schema of a table, then its batches. The query begins before the schema, with its first datum."""
    config, several = config_of(dataset), not isinstance(dataset, Dataset)
    names, types = _given(columns)
    wanted = None if names is None else chosen(names, config, several=several)
    is_sampled = wanted is None or any(not each.is_indexed and each.name not in types for each in wanted)
    with query(wanted is None or any(not each.is_indexed for each in wanted)) as found:
        sample, others = first_of(found, SAMPLE if is_sampled else 1), ends(dataset) if is_sampled else []
        complete = None
        if wanted is None:
            wanted = default_columns(config, sample, others, several=several)
            complete = Complete(wanted, config)
        known = sample or others if is_sampled else []
        is_bytes = all(find(name).raw for name in formats_of(dataset)) or (
            bool(known) and all(type(datum.data) is bytes for datum in known)
        )
        table = _Table(wanted, types, config, [*others, *sample], is_bytes=is_bytes, several=several)
        yield table.schema
        for some in batched(chain(sample, found), lambda datum: datum._place[3], _BYTES, ROWS):
            if complete is not None:
                complete.check(some)
            yield table.batch(table.from_data(some))
        if damaged == "skip" and found.skipped is not None and found.skipped.count:
            warn_of(found.skipped)


def _given(columns: Columns) -> tuple[Any, dict[str, pa.DataType]]:
    """Return the names, which `chosen` checks, and the types that a caller wants; None for everything."""
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


class _Table:
    """The columns of a table. `sample`: data whose values decide about types that are not given."""

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
        self._columns = columns
        known = all_columns(config, several=several)
        self.from_index = [known[each.name] for each in columns if each.is_indexed]
        self._untyped = set[str]()  # no datum of the sample has a value in them
        self._given = {name: field for name, kind in types.items() for field, each in TYPES.items() if each == kind}
        self._makers: dict[str, DataToArrow | ValuesToArrow] = {}
        kinds: list[pa.DataType] = []
        for each in columns:
            kind = types.get(each.name)
            if each.is_indexed:
                if kind not in (None, known[each.name].kind):
                    problem = f"the column {each.name} is {known[each.name].kind}, not {kind}"
                    raise InvalidInput(problem, hint="Cast it after reading.")
                kind = known[each.name].kind
            elif each.source == "content" and is_bytes:
                hint = f"Choose {DATA}, which holds the bytes."
                raise InvalidInput(f"there is no column {each.name}: data of {config.format} are bytes", hint=hint)
            elif each.source == "data":
                is_json = not is_bytes and all(type(datum.data) is not bytes for datum in sample)
                kind = kind or (pa.string() if is_json else pa.binary())
                self._makers[each.name] = DataToArrow(kind)
            else:
                values = each.values(sample)
                if kind is None and all(value is None for value in values):
                    self._untyped.add(each.name)
                kind = kind or sampled(values)
                self._makers[each.name] = ValuesToArrow(kind, each.name)
            kinds.append(kind)
        self.schema = pa.schema([(each.name, kind) for each, kind in zip(columns, kinds, strict=True)])

    def is_of_index(self, *, is_bytes: bool) -> bool:
        """Return whether the table has columns of the index only, and perhaps data that are bytes, as bytes."""
        made = {name: self.schema.field(name).type for name in self._makers}
        return not made or (is_bytes and made == {DATA: pa.binary()})

    def from_data(self, data: Sequence[Datum]) -> dict[str, pa.Array]:
        """Return the columns of some data by name; raise InvalidInput, with the location, if one is of another type."""
        made = {}
        for each in self._columns:
            kind = self.schema.field(each.name).type
            if each.source == "index" and each.key == REFTIME:
                made[each.name] = pa.array([datum._place[0] for datum in data], pa.int64()).cast(kind)
                continue
            values = each.values(data)
            if each.is_indexed:
                made[each.name] = pa.array(values, kind)
                continue
            try:
                if each.name in self._untyped:
                    _check_texts(values, each.name)
                made[each.name] = self._makers[each.name].make(values)
            except InvalidInput as error:
                place = error.context["position"]
                message = f"{place_of(data[place])}: {error.message}"
                is_real = type(values[place]) is float and kind == pa.int64()
                likely = kind_of(values[place]) if each.name in self._untyped or is_real else FieldType.TEXT
                hint = name_all(self.schema.names, self._given | {each.name: likely})
                raise InvalidInput(message, hint=hint, location=data[place].location) from None
        return made

    def batch(self, arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)


def _check_texts(values: Sequence[Any], name: str) -> None:
    """Raise unless all values are texts, lists or mappings: others would become text without notice."""
    for position, value in enumerate(values):
        if value is not None and kind_of(value) is not FieldType.TEXT:
            problem = (
                f"{name} is {shown(value)}, and the type of its column is not known: the first data have no value there"
            )
            raise InvalidInput(problem, position=position)


def _rows(
    reader: DatasetReader, snapshot: Snapshot, tree: Expression, table: _Table, order: Sort | None, limit: int | None
) -> Iterator[pa.RecordBatch]:
    has_data = DATA in table.schema.names
    selected: dict[str, pa.DataType] = dict.fromkeys(PLACE, pa.int64()) if has_data else {}
    for column in table.from_index:
        selected |= zip(column.sql(), column.stored(), strict=True)
    positions = {each: number for number, each in enumerate(selected)}
    converted = RowsToArrow(table.from_index, snapshot)

    def indexed(raw: pa.RecordBatch) -> dict[str, pa.Array]:
        arrays = [raw.columns[positions[each]] for column in table.from_index for each in column.sql()]
        return {each.name: array for each, array in zip(table.from_index, converted.convert(arrays), strict=True)}

    lists = snapshot.rows(tree, order, limit, select=", ".join(selected), count=LIST)
    for raw in _packed(lists, [*selected.values()], snapshot):
        if not has_data:
            yield table.batch(indexed(raw))
            continue
        for some, data in with_data(raw, _BINARY, reader, snapshot):
            yield table.batch({**indexed(some), DATA: data})


def _packed(lists: Iterator[list[Row]], kinds: Sequence[pa.DataType], snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """Yield rows as columns c0, c1 …; raise IndexCorrupt if a value is not of the type of its column.

    Pack a small list of rows at a time into bytes, 8 for each value: millions of rows pass here.
    """
    row = "".join("d" if kind == pa.float64() else "q" for kind in kinds)
    names = [f"c{number}" for number in range(len(kinds))]

    def pack(rows: list[Row]) -> bytes:
        try:
            return _packer(row, len(rows))(*chain.from_iterable(rows))
        except struct.error as error:
            raise snapshot.corrupt(f"a value of a row has another type: {error}") from None

    while pieces := [pack(rows) for rows in islice(lists, ROWS // LIST)]:  # frees the rows at once
        words = array("q", b"".join(pieces))
        columns = [words[number :: len(kinds)] for number in range(len(kinds))]
        arrays = [
            pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
            for kind, column in zip(kinds, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)


@lru_cache(maxsize=16)
def _packer(row: str, count: int) -> Callable[..., bytes]:
    """Return a function that packs the values of rows, 8 bytes each. `row`: `q` for each integer, `d` for each real."""
    return struct.Struct("=" + row * count).pack


def to_pandas(reader: pa.RecordBatchReader) -> Any:
    """Return the rows of a table as a DataFrame; raise InvalidInput if pandas would round integers."""
    table = reader.read_all()
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if column.null_count and pa.types.is_integer(column.type):
            least, most = pc.min_max(column).as_py().values()
            if least is not None and not -EXACT <= least <= most <= EXACT:
                problem = f"{name} has missing values and integers that pandas would round"
                hint = "Write to_arrow(…).read_all().to_pandas(types_mapper=pandas.ArrowDtype)."
                raise InvalidInput(problem, hint=hint)
    return table.to_pandas()


def write(reader: pa.RecordBatchReader, path: str | os.PathLike[str], form: Form, *, overwrite: bool = False) -> int:
    """Write a table to a file, and return its number of rows. Errors and durability are those of `output_file`."""
    with output_file(path, overwrite=overwrite) as file:
        return sum((_parquet if form == "parquet" else _arrow)(reader, _Sink(file.write)))


def parquet(reader: pa.RecordBatchReader) -> Iterator[bytes]:
    """Yield the file of Parquet that `write` writes, piece by piece.

    Memory: one group of rows.
    """
    held: list[bytes] = []
    for _ in _parquet(reader, _Sink(lambda _, content: held.append(bytes(content)))):
        yield from held
        held.clear()
    yield from held


def _parquet(reader: pa.RecordBatchReader, sink: _Sink) -> Iterator[int]:
    """Write a file; yield 0 when it has begun, then the number of rows of each part that was written."""
    import pyarrow.parquet as pq  # here, as it takes as long as all of pyarrow

    with _closing(pq.ParquetWriter(sink, reader.schema)) as writer:
        yield 0
        for table in _groups(reader):
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            yield table.num_rows


def _arrow(reader: pa.RecordBatchReader, sink: _Sink) -> Iterator[int]:
    """Write a file; yield the number of rows of each part that was written."""
    with _closing(pa.ipc.new_file(sink, reader.schema)) as writer:
        for batch in reader:
            writer.write_batch(batch)
            yield batch.num_rows


@contextlib.contextmanager
def _closing(writer: Any) -> Iterator[Any]:
    """Close a writer, which writes the end of its file, unless there was an error: then that is what is reported."""
    try:
        yield writer
    except BaseException:
        with contextlib.suppress(Exception):
            writer.close()
        raise
    writer.close()


def _groups(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


class _Sink(io.RawIOBase):
    """A file that pyarrow writes to. `take`: is called with each piece of the file, and its position before that."""

    def __init__(self, take: Callable[[int, memoryview], object]) -> None:
        self._take = take
        self._position = 0

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        self._take(self._position, view)
        self._position += len(view)
        return len(view)

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True
