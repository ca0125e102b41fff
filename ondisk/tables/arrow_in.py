"""Tables of Arrow in: their columns become the reftime, the metadata and the content of data.

    reftime, or the column that is named        the reference time
    station, or f_NAME                          a declared field
    metadata.sensor                             metadata that no field declares
    data                                        the whole content: bytes, JSON, or a mapping
    data.temperature, and all others            keys of the content

So a table that `ondisk.tables.arrow_output` made becomes the same data again. NULL is omitted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.config import DatasetConfig
from ondisk.datum import CONTENT, METADATA, FieldType
from ondisk.errors import InvalidInput, LimitExceeded, OndiskError, shown
from ondisk.formats import Batch, Format
from ondisk.table_options import REFTIME, TableOptions
from ondisk.tables.ambiguous import Answers, decided, fields_of_series
from ondisk.tables.arrow_rows import RowsToData, with_refused
from ondisk.tables.arrow_values import ArrowToData, converted, distinct, plain
from ondisk.tables.batches import joined
from ondisk.tables.columns import DATA, PLACE, index_columns
from ondisk.tables.csv_input import field_name
from ondisk.tables.index_to_arrow import TYPES
from ondisk.tables.times import Times, Zone, of_reftime, of_value

_Converted: TypeAlias = tuple[pa.Array, dict[int, str]]
_Convert: TypeAlias = Callable[[pa.Array], _Converted]

_MOMENT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_TOGETHER = 65_536  # rows
_DECODED = 64 * 1024 * 1024  # bytes of rows that are decoded together, or one row
_RATIO, _POINTER = 16, 8  # of what a nested column needs to its bytes; bytes of a NULL in a list of Python
_NAMED = 20  # columns in a message
types = pa.types
_BYTES = (
    *(types.is_string, types.is_large_string, types.is_string_view),
    *(types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view),
)


def opened(source: object) -> pa.RecordBatchReader:
    """Return the table that an object is.

    Raises:
        InvalidInput: it is not a table.
    """
    hint = "Pass a table of pyarrow, polars, pandas or DuckDB, or the path of a file of Parquet or Arrow."
    if not hasattr(source, "__arrow_c_stream__"):
        raise InvalidInput(f"append_arrow takes an object with __arrow_c_stream__, not {shown(source)}", hint=hint)
    with errors_of("the table"):
        return pa.RecordBatchReader.from_stream(source)


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Turn what pyarrow raises about a table into errors of ondisk, for the length of the block.

    Args:
        name: of the table, for the error.

    Raises:
        LimitExceeded: it needs too much memory.
        InvalidInput: it cannot be read.
    """
    try:
        yield
    except OndiskError:
        raise
    except MemoryError as error:
        hint = "Is it the right file? If so, write it again with smaller groups of rows."
        raise LimitExceeded(f"{name} needs too much memory: {error}", hint=hint) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).partition(". Detail: Python exception")[0].split())[:500]
        raise InvalidInput(f"{name} cannot be read: {reason}", hint="Is it whole? Write it again.") from error


def batches(
    reader: pa.RecordBatchReader,
    config: DatasetConfig,
    format: Format,
    options: TableOptions,
    batch_size: int,
    name: str = "the table",
) -> Iterator[Batch]:
    """Return the rows of a table as data, in batches of at most `batch_size` data or `BATCH_BYTES`.

    Args:
        reader: has a `schema`, and yields batches of rows.
        format: encodes the data.
        name: of the table, for errors.

    Raises:
        InvalidInput: a column does not exist, or has a type that cannot be stored; or the table cannot be read.
        LimitExceeded: a value is longer than `max_datum_size`, or the table needs too much memory.
    """
    options.refuse_those_of_csv("a table of Arrow or Parquet")
    with errors_of(name):  # names of columns may be other than UTF-8
        table = TableToData(reader.schema, config, format, options)
    pieces = decided(_pieces(reader, config.max_datum_size, batch_size), table, options)
    return joined(_parsed(pieces, table, format, name), batch_size)


def _pieces(reader: pa.RecordBatchReader, longest: int, batch_size: int) -> Iterator[pa.RecordBatch]:
    for rows in reader:
        rows.validate(full=True)  # what a hostile table says about its own memory
        yield from _slices(rows, longest, batch_size)


def _parsed(
    pieces: Iterator[tuple[pa.RecordBatch, Answers]], table: TableToData, format: Format, name: str
) -> Iterator[Batch]:
    before = 0
    while True:
        with errors_of(name):
            if (piece := next(pieces, None)) is None:
                return
            batch = table.encode(*piece, format)
        batch.refused = [(place, f"row {before + place + 1}: {reason}") for place, reason in batch.refused]
        before += piece[0].num_rows
        yield batch


def _slices(rows: pa.RecordBatch, longest: int, batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in slices that fit into memory when they are decoded.

    Raises:
        LimitExceeded: a value that many rows share is longer than a datum may be, or is inside of lists and structs.
    """
    weight = 1
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        weight += len(name) + len(str(column.type))  # each datum has the names of its keys
        size = _decoded_size(column)
        weight += size // max(rows.num_rows, 1)
        if types.is_dictionary(column.type) and _is_bytes(column.type.value_type):
            most = size // max(rows.num_rows, 1)
            if most > longest:
                problem = f"column {shown(name)} has a value of {most} bytes, more than max_datum_size, {longest}"
                raise LimitExceeded(problem, hint="Is it the right file? If so, raise max_datum_size in dataset.toml.")
        elif types.is_nested(column.type) and size > max(_DECODED, _RATIO * column.nbytes):
            problem = (
                f"column {shown(name)} has {column.nbytes} bytes in the table, and would need {size} when it is read"
            )
            hint = "Is it the right file? If so, write it again without dictionaries in lists and structs."
            raise LimitExceeded(problem, hint=hint)
    count = max(1, min(_TOGETHER, batch_size, _DECODED // weight))
    for begin in range(0, rows.num_rows, count):
        yield rows.slice(begin, count)


def _decoded_size(column: pa.Array) -> int:
    """Return how many bytes the values of a column need at most, with what rows share counted for each."""
    kind = column.type
    if types.is_dictionary(kind):
        shared = column.dictionary
        most = pc.max(pc.binary_length(shared)).as_py() if _is_bytes(kind.value_type) else _decoded_size(shared)
        return len(column) * (most or 0)
    if types.is_struct(kind):
        return sum(map(_decoded_size, column.flatten()))
    if types.is_map(kind):  # it has a method flatten, which fails
        return _decoded_size(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if types.is_nested(kind) and hasattr(column, "flatten"):
        return _decoded_size(column.flatten())
    return _POINTER * len(column) if types.is_null(kind) else int(column.nbytes)


class TableToData:
    """Turns the rows of tables with one schema into data.

    Args:
        schema: names and types of the columns.
        format: of the dataset.

    Raises:
        InvalidInput: a column does not exist, or has a type that cannot be stored.
    """

    def __init__(self, schema: pa.Schema, config: DatasetConfig, format: Format, options: TableOptions) -> None:
        _check_names(schema.names)
        self._time = time = REFTIME if options.time is None else options.time
        if time not in schema.names:
            raise _no_time(time, schema)
        self._zone = None if options.tz is None else Zone(options.tz)
        self._times = Times(options.time_format, self._zone)
        labels = {label: name for label, (name, _) in index_columns(config).items() if label not in PLACE}
        self._converts: list[tuple[str, _Convert]] = []
        fields: dict[str, tuple[FieldType | None, str]] = {}
        self._content: dict[str, str] = {}
        whole: str | None = None
        for column in schema:
            name, kind = column.name, column.type
            field = labels.get(name) or field_name(name)
            if name == time:
                self._converts.append((name, self._moment(name, kind)))
            elif name.startswith(METADATA) and name.removeprefix(METADATA) not in ("", *config.fields):
                self._claim(fields, name.removeprefix(METADATA), name)
                fields[name.removeprefix(METADATA)] = (None, name)
                self._converts.append((name, self._value(name, kind)))
            elif name == DATA:
                whole = name
                self._converts.append((name, self._value(name, kind)))
            elif field in config.fields and not name.startswith(CONTENT):
                self._claim(fields, field, name)
                fields[field] = (config.fields[field], name)
                self._converts.append((name, self._field(name, kind, config.fields[field])))
            else:
                key = name.removeprefix(CONTENT) or name
                self._claim(self._content, key, name)
                self._content[key] = name
                self._converts.append((name, self._value(name, kind)))
        if REFTIME in self._content:
            hint = f"Rename it, or remove it; the reftime is {shown(time)}."
            raise InvalidInput(f"a column of the content cannot be called {REFTIME}", hint=hint)
        if whole is not None and self._content:
            hint = "Drop one of them."
            raise InvalidInput(
                f"{DATA} is the whole content, and {next(iter(self._content.values()))} a part", hint=hint
            )
        if format.raw and whole is None:
            others = f"; {shown(next(iter(self._content.values())))} cannot be stored" if self._content else ""
            problem = f"the column {DATA} is missing, the bytes of {format.name}{others}"
            raise InvalidInput(problem, hint='Rename the column of the bytes; or use format = "seg" or "jsonl".')
        data = None
        if whole is not None:
            data = whole, ArrowToData(_normal(schema.field(whole).type), is_raw=format.raw)
        elif self._content:
            kinds = [(key, self._stored(schema.field(name).type)) for key, name in self._content.items()]
            data = DATA, ArrowToData(pa.struct(kinds), is_raw=False)
        self._series = [fields[name][1] for name in fields_of_series(config) if name in fields]
        named = [(name, kind, label) for name, (kind, label) in fields.items()]
        self._rows = RowsToData(time, named, data)

    @staticmethod
    def _claim(taken: Mapping[str, Any], key: str, name: str) -> None:
        if key in taken:
            raise InvalidInput(f"two columns are {shown(key)}, one of them {shown(name)}", hint="Rename one of them.")

    def times(self, rows: pa.RecordBatch) -> list[int | str | None]:
        """Return the time of each row, or why it has none; None for NULL."""
        found, wrong = dict(self._converts)[self._time](rows.column(self._time))
        return [wrong.get(place, time) for place, time in enumerate(found.cast(pa.int64()).to_pylist())]

    def series(self, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        """Return the values of each row that distinguish the series."""
        columns = [converted(_decoded(rows.column(name)), None)[0] for name in self._series]
        return zip(*columns, strict=True) if columns else [()] * rows.num_rows

    def size(self, rows: pa.RecordBatch) -> int:
        """Return the bytes of rows."""
        return int(rows.nbytes)

    def encode(self, rows: pa.RecordBatch, answers: Answers, format: Format) -> Batch:
        """Return rows as data of a format; refuse those that cannot be stored.

        Args:
            answers: what is decided about times that occur twice.

        Raises:
            InvalidInput: a string is not UTF-8.
        """
        refused: dict[int, str] = {}
        arrays: dict[str, pa.Array] = {}
        for name, convert in self._converts:
            arrays[name], wrong = convert(rows.column(name))
            if answers and name == self._time:
                arrays[name], wrong = _answered(arrays[name], wrong, answers)
            for place, reason in wrong.items():
                why = of_reftime(reason) if name == self._time else reason
                refused.setdefault(place, f"column {shown(name)}: {why}")
        if self._content:
            content = [arrays.pop(name) for name in self._content.values()]
            arrays[DATA] = pa.StructArray.from_arrays(content, names=[*self._content])
        table = pa.RecordBatch.from_pydict(arrays)
        if not refused:
            return self._rows.encode(table, format)
        kept = [place for place in range(rows.num_rows) if place not in refused]
        batch = self._rows.encode(table.take(pa.array(kept, pa.int64())), format) if kept else Batch()
        return with_refused(batch, kept, refused)

    def _moment(self, name: str, kind: pa.DataType) -> _Convert:
        """Return a function that makes a column a timestamp in microseconds, UTC."""
        value = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_timestamp(value) and value.tz is not None:
            return _moments
        if types.is_timestamp(value) or types.is_date(value):
            if self._zone is None:
                hint = "Pass their zone as tz (--tz), such as UTC or Europe/Rome."
                raise InvalidInput(f"the times of the column {shown(name)} have no zone", hint=hint)
            return partial(_local, zone=self._zone)
        if types.is_string(_normal(value)):
            return lambda array: _of_distinct(_decoded(array), self._times.__getitem__)
        if types.is_null(value):
            return lambda array: (pa.nulls(len(array), _MOMENT), {})
        hint = "Cast it to a timestamp, or name another column as time (--time)."
        raise InvalidInput(f"the column {shown(name)} is {kind}, not a time", hint=hint)

    def _field(self, name: str, kind: pa.DataType, field: FieldType) -> _Convert:
        """Return a function that converts a column to the type of a field."""
        if field is FieldType.TIMESTAMP:
            return self._moment(name, kind)
        value = _normal(kind)
        target = TYPES[field]
        is_number = types.is_integer(value) or types.is_floating(value)
        if value == target or types.is_null(value) or (field in (FieldType.INTEGER, FieldType.REAL) and is_number):
            return partial(_cast, target=target, what=f"not {field}")
        hint = f"Cast it to {target}."
        raise InvalidInput(f"the column {shown(name)} is {kind}, the field is declared {field}", hint=hint)

    def _stored(self, kind: pa.DataType) -> pa.DataType:
        """Return the type of a column of content after its conversion."""
        normal = _normal(kind)
        if types.is_timestamp(normal) and normal.tz is None:
            return _MOMENT if self._zone is not None else pa.string()
        return pa.string() if types.is_date(normal) or types.is_time(normal) else normal

    def _value(self, name: str, kind: pa.DataType) -> _Convert:
        """Return a function that makes a column one of content, or of undeclared metadata."""
        normal = _normal(kind)
        plain(self._stored(kind), name)
        if types.is_timestamp(normal):
            if normal.tz is not None:
                return _moments
            return _iso if self._zone is None else partial(_local, zone=self._zone)
        if types.is_date(normal) or types.is_time(normal):
            return _iso
        return partial(_cast, target=normal, what=f"not {normal}")


def _normal(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of a type are read: of several types with the same values, one."""
    if types.is_dictionary(kind):
        return _normal(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if _is_bytes(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return _LOCAL if kind.tz is None else _MOMENT
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_normal(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(each.name, _normal(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.map_(_normal(kind.key_type), _normal(kind.item_type))
    return kind


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES)


def _decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if types.is_dictionary(array.type) else array


def _cast(array: pa.Array, target: pa.DataType, what: str) -> _Converted:
    """Return a column as another type; refuse values that it does not have."""
    array = _decoded(array)
    if array.type == target:
        return array, {}
    if types.is_nested(target):
        return array.cast(target, safe=False), {}
    found, wrong = _cast_each(array, target, 0)
    return found, {place: f"{_shown(array, place)} is {what}" for place in wrong}


def _cast_each(array: pa.Array, target: pa.DataType, begin: int) -> tuple[pa.Array, list[int]]:
    """Return a column as another type, with NULL for values that it does not have, and the positions of these."""
    try:
        return array.cast(target), []
    except pa.ArrowInvalid:
        if len(array) == 1:
            return pa.nulls(1, target), [begin]
    half = len(array) // 2
    first, wrong = _cast_each(array[:half], target, begin)
    second, more = _cast_each(array[half:], target, begin + half)
    return pa.concat_arrays([first, second]), wrong + more


def _moments(array: pa.Array) -> _Converted:
    """Return timestamps in microseconds, UTC; finer digits are cut off."""
    array = _decoded(array)
    return _microseconds(array, _MOMENT)


def _microseconds(array: pa.Array, target: pa.DataType) -> _Converted:
    if types.is_timestamp(array.type) and array.type.unit in ("ns", "us"):
        return array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(target), {}
    return _cast(array, target, "outside the years 1 to 9999")


def _local(array: pa.Array, zone: Zone) -> _Converted:
    """Return the moments of times without a zone, and of dates: their first moment."""
    local, refused = _microseconds(_decoded(array), _LOCAL)
    moments, wrong = _of_distinct(local.cast(pa.int64()), zone.utc)
    return moments, {place: of_value(_shown(array, place), why) for place, why in wrong.items()} | refused


def _of_distinct(array: pa.Array, read: Callable[[Any], int | str]) -> _Converted:
    """Return the moments of values.

    Args:
        read: returns the moment of a value, or why it has none.
    """
    dictionary, indices = distinct(array)
    found = [*map(read, dictionary.to_pylist())]
    wrong = {index: why for index, why in enumerate(found) if isinstance(why, str)}
    moments = pa.array([None if isinstance(each, str) else each for each in found], pa.int64())
    places = enumerate(indices.to_pylist() if wrong else ())
    return moments.take(indices).cast(_MOMENT), {place: wrong[index] for place, index in places if index in wrong}


def _answered(array: pa.Array, refused: dict[int, str], answers: Answers) -> _Converted:
    """Return moments with those that were decided for local times that occur twice."""
    moments = array.cast(pa.int64()).to_pylist()
    for place, answer in answers.items():
        if isinstance(answer, int):
            moments[place] = answer
            del refused[place]
        else:
            refused[place] = answer
    return pa.array(moments, pa.int64()).cast(_MOMENT), refused


def _iso(array: pa.Array) -> _Converted:
    """Return dates, times of day and times without a zone as ISO 8601 text."""
    array = _decoded(array)
    refused: dict[int, str] = {}
    if types.is_timestamp(array.type):
        array, refused = _microseconds(array, _LOCAL)
    texts: list[str | None] = []
    for place in range(len(array)):
        try:
            value = array[place].as_py()
        except (OverflowError, ValueError):
            refused[place] = "it is outside the years 1 to 9999"
            value = None
        texts.append(None if value is None else value.isoformat())
    return pa.array(texts, pa.string()), refused


def _shown(array: pa.Array, place: int) -> str:
    """Return a value for a message."""
    try:
        value = array[place].as_py()
    except (OverflowError, ValueError):
        return "a time"
    return shown(value.isoformat() if hasattr(value, "isoformat") else value)


def _check_names(names: list[str]) -> None:
    """Raise unless each column has a name of its own."""
    places: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if name in places:
            problem = f"two columns have the name {shown(name)}: {places[name]} and {place}"
            raise InvalidInput(problem, hint="Rename one of them.")
        places[name] = place


def _no_time(wanted: str, schema: pa.Schema) -> InvalidInput:
    listed = ", ".join(map(shown, schema.names[:_NAMED])) + ", …" * (len(schema.names) > _NAMED)
    times = [each.name for each in schema if types.is_timestamp(each.type) or types.is_date(each.type)]
    which = f": {shown(times[0])}" if len(times) == 1 else ""
    hint = f"Pass the name of the column with the time as time (--time){which}."
    return InvalidInput(f"there is no column {shown(wanted)}; the columns are {listed}", hint=hint)
