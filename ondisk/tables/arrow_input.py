"""Tables of Arrow in: their columns become the reftime, the metadata and the content of data.

    reftime, or the column that is named        the reference time
    station, or f_NAME                          a declared field
    metadata.sensor                             metadata that no field declares
    data                                        the whole content: bytes, JSON, or a mapping
    data.temperature, and all others            keys of the content

So a table that `ondisk.tables.arrow_output` made becomes the same data again. NULL is omitted.

Files of Parquet and Arrow, with Feather of version 2, are recognised by their first bytes. They are read in bounded
memory, whatever they say about themselves: columns that are far larger than their bytes in the file, and texts that
many rows share, are found before memory is allocated for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.config import DatasetConfig
from ondisk.datum import METADATA, FieldType, from_microseconds, microseconds
from ondisk.errors import InvalidInput, LimitExceeded, OndiskError, shown
from ondisk.formats import Batch, Format
from ondisk.formats.base import TakesMembers
from ondisk.table_options import REFTIME, TableOptions
from ondisk.tables.arrow_values import ArrowToData, converted, distinct, mappings, members, plain, read
from ondisk.tables.columns import DATA, check_names, no_column, roles_of
from ondisk.tables.index_to_arrow import TYPES
from ondisk.tables.table_input import Answers, decided, encoded, joined, numbered
from ondisk.tables.times import Zone, of_reftime, of_value, readers, timestamp

_Converted: TypeAlias = tuple[pa.Array, dict[int, str]]
_Convert: TypeAlias = Callable[[pa.Array], _Converted]

_MOMENT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_EARLIEST, _LATEST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
_TOGETHER = 65_536  # rows
_DECODED = 64 * 1024 * 1024  # bytes of rows that are decoded together, or one row
_NESTED_RATIO, _POINTER = 16, 8  # of what a nested column needs to its bytes; bytes of a NULL in a list of Python
# Of what a file says about a column of a group of rows.
_LARGE, _RATIO = 256 * 1024 * 1024, 1_000  # bytes; more than this many times its bytes in the file
_TEXTS, _PARTS = 64 * 1024 * 1024, 1_000_000  # bytes of a text, and entries of a list, in the description
_SHARED = 1024 * 1024 * 1024  # bytes of a column, if each row had all of its distinct texts
types = pa.types
_BYTES = (
    *(types.is_string, types.is_large_string, types.is_string_view),
    *(types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table in a file: its schema, and its rows, which can be read once."""

    schema: pa.Schema
    rows: Iterator[pa.RecordBatch]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.rows


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


def of_file(file: Any) -> Table:
    """Return the table in a file.

    Args:
        file: a file object of bytes that can seek.

    Raises:
        InvalidInput: it is not a file of Parquet or Arrow, or is damaged.
        LimitExceeded: it says that a column is far larger than the file.
    """
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    with errors_of("the file"):
        if head.startswith(b"PAR1"):
            return _parquet(file)
        if head.startswith(b"ARROW1"):
            found = pa.ipc.open_file(file)
            return Table(found.schema, (found.get_batch(number) for number in range(found.num_record_batches)))
        if head.startswith(b"\xff\xff\xff\xff"):
            reader = pa.ipc.open_stream(file)
            return Table(reader.schema, iter(reader))
    if head.startswith(b"FEA1"):
        hint = "Write it again with version=2, or as Parquet."
        raise InvalidInput("the file is of Feather, version 1, which is not read", hint=hint)
    raise InvalidInput("it is not a file of Parquet or Arrow", hint="Choose another --format, or none.")


def _parquet(file: Any) -> Table:
    import pyarrow.parquet as pq  # here, as it takes as long as all of pyarrow

    limits = {"thrift_string_size_limit": _TEXTS, "thrift_container_size_limit": _PARTS}
    found = pq.ParquetFile(file, pre_buffer=False, **limits)
    largest = _checked(found.metadata)
    weight = 1 + sum(row_bytes for row_bytes, _ in largest.values())
    count = int(max(1, min(_TOGETHER, _DECODED // weight)))
    shared = [path for path, (_, most) in largest.items() if most * count > _SHARED]
    if shared:  # rows may share texts: read these only once
        file.seek(0)
        found = pq.ParquetFile(file, pre_buffer=False, read_dictionary=shared, **limits)
    return Table(found.schema_arrow, found.iter_batches(batch_size=count))


def _checked(metadata: Any) -> dict[str, tuple[float, int]]:
    """Check what a file of Parquet says about its columns.

    Returns:
        Path of a column → bytes of a row, and the most bytes that one row can have.

    Raises:
        LimitExceeded: a column is far larger than its bytes in the file.
    """
    largest: dict[str, tuple[float, int]] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            stored, size = column.total_compressed_size, column.total_uncompressed_size
            if size > _LARGE and size > _RATIO * max(stored, 1):
                problem = f"the file says that {column.path_in_schema} has {size} bytes, in {stored} bytes of the file"
                hint = "Is it the right file? If so, write it again without compression."
                raise LimitExceeded(problem, hint=hint)
            is_text = column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
            each, most = largest.get(column.path_in_schema, (0.0, 0))
            row = max(size, 0) / max(group.num_rows, 1)
            largest[column.path_in_schema] = max(each, row), max(most, size) if is_text else most
    return largest


def batches(
    reader: pa.RecordBatchReader | Table,
    config: DatasetConfig,
    format: Format,
    options: TableOptions,
    batch_size: int,
    name: str = "the table",
) -> Iterator[Batch]:
    """Return the rows of a table as data, in batches of at most `batch_size` data or `BATCH_BYTES`.

    Args:
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
    return joined(_parsed(pieces, table, name), batch_size)


def _pieces(reader: Iterable[pa.RecordBatch], longest: int, batch_size: int) -> Iterator[pa.RecordBatch]:
    for rows in reader:
        rows.validate(full=True)  # what a hostile table says about its own memory
        yield from _slices(rows, longest, batch_size)


def _parsed(pieces: Iterator[tuple[pa.RecordBatch, Answers]], table: TableToData, name: str) -> Iterator[Batch]:
    before = 0
    while True:
        with errors_of(name):
            if (piece := next(pieces, None)) is None:
                return
            batch = table.encode(*piece)
        count = piece[0].num_rows
        yield numbered(batch, range(before + 1, before + count + 1), {}, "row")
        before += count


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
        elif types.is_nested(column.type) and size > max(_DECODED, _NESTED_RATIO * column.nbytes):
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
    """Turns the rows of tables with one schema into data of a format.

    Args:
        schema: names and types of the columns.

    Raises:
        InvalidInput: a column does not exist, or has a type that cannot be stored.
    """

    def __init__(self, schema: pa.Schema, config: DatasetConfig, format: Format, options: TableOptions) -> None:
        self._format = format
        names, kinds = schema.names, dict(zip(schema.names, schema.types, strict=True))
        check_names(names)
        self._time = time = REFTIME if options.time is None else options.time
        if time not in names:
            raise no_column(time, names, _hint(schema))
        self._zone = None if options.tz is None else Zone(options.tz)
        self._times, self._iso = readers(options)
        undeclared = [name for name in names if _is_undeclared(name, config) and name != time]
        whole = DATA if DATA in names and time != DATA else None
        special = {*undeclared, whole}
        roles = roles_of([name for name in names if name not in special], time, config)
        first = next(iter(roles.content.values()), None)
        if whole is not None and first is not None:
            raise InvalidInput(f"{DATA} is the whole content, and {first} a part", hint="Drop one of them.")
        if format.raw and whole is None:
            others = f"; {shown(first)} cannot be stored" if first is not None else ""
            problem = f"the column {DATA} is missing, the bytes of {format.name}{others}"
            raise InvalidInput(problem, hint='Rename the column of the bytes; or use format = "seg" or "jsonl".')
        self._converts: dict[str, _Convert] = {time: self._moment(time, kinds[time], self._times.__getitem__)}
        for field, name in roles.fields.items():
            self._converts[name] = self._field(name, kinds[name], config.fields[field])
        for name in [*undeclared, *roles.content.values(), *([] if whole is None else [whole])]:
            self._converts[name] = self._value(name, kinds[name])
        self._content = roles.content
        self._whole = None if whole is None else ArrowToData(_normal(kinds[whole]), is_raw=format.raw)
        self._series = roles.series(config)
        self._metadata: list[tuple[str, FieldType | None, str]] = [
            *((field, config.fields[field], name) for field, name in roles.fields.items()),
            *((name.removeprefix(METADATA), None, name) for name in undeclared),
        ]

    def times(self, rows: pa.RecordBatch) -> list[int | str | None]:
        found, wrong = self._converts[self._time](rows.column(self._time))
        return [wrong.get(place, time) for place, time in enumerate(found.cast(pa.int64()).to_pylist())]

    def series(self, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
        columns = [converted(_decoded(rows.column(name)), None)[0] for name in self._series]
        return zip(*columns, strict=True) if columns else [()] * rows.num_rows

    def size(self, rows: pa.RecordBatch) -> int:
        return int(rows.nbytes)

    def encode(self, rows: pa.RecordBatch, answers: Answers) -> Batch:
        try:
            return self._encoded(rows, answers)
        except UnicodeDecodeError as error:  # a string of Spark may contain any bytes
            raise InvalidInput(f"a string is not UTF-8: {error}", hint="Remove or correct it.") from None

    def _encoded(self, rows: pa.RecordBatch, answers: Answers) -> Batch:
        times = self.times(rows)
        for place, answer in answers.items():
            times[place] = answer
        refused = self._without_time(times)
        arrays: dict[str, pa.Array] = {}
        for name, convert in self._converts.items():
            arrays[name], wrong = convert(rows.column(name)) if name != self._time else (None, {})
            for place, reason in wrong.items():
                refused.setdefault(place, f"column {shown(name)}: {reason}")
        metadata, wrong = self._metadata_of(arrays, rows.num_rows)
        data, also, encode = self._content_of(arrays, rows.num_rows)
        return encoded((times, metadata, data), also | wrong | refused, encode)

    def _without_time(self, times: Sequence[int | str | None]) -> dict[int, str]:
        """Return place → reason of rows without a reftime that Python has."""
        if {*map(type, times)} <= {int} and (not times or (min(times) >= _EARLIEST and max(times) <= _LATEST)):  # type: ignore[type-var, operator]
            return {}
        refused: dict[int, str] = {}
        for place, time in enumerate(times):
            if isinstance(time, str):
                refused[place] = f"column {shown(self._time)}: {of_reftime(time)}"
            elif time is None:
                refused[place] = f"{self._time} is NULL"
            else:
                try:
                    _time_of(self._time, time)
                except InvalidInput as error:
                    refused[place] = error.message
        return refused

    def _metadata_of(self, arrays: Mapping[str, pa.Array], count: int) -> tuple[list[dict[str, Any]], dict[int, str]]:
        """Return the metadata of rows, and place → reason of those with wrong ones; equal ones share a mapping."""
        refused: dict[int, str] = {}
        combined: list[tuple[Any, ...]] = [()]
        codes: pa.Array | None = None
        for name, kind, column in self._metadata:
            array = arrays[column]
            if kind is FieldType.TIMESTAMP:
                found = read(array.cast(pa.int64()), partial(_time_of, name))
            else:
                found = read(array, plain(array.type, name) if kind is None else None)
            refused |= found.refused
            values, indices = [*found.values, None], found.indices.cast(pa.int64()).fill_null(len(found.values))
            if codes is not None:
                indices = pc.add(pc.multiply(codes, pa.scalar(len(values), pa.int64())), indices)
            distinct = indices.dictionary_encode()
            pairs = (divmod(each, len(values)) for each in distinct.dictionary.to_pylist())
            combined = [(*combined[before], values[each]) for before, each in pairs]
            codes = distinct.indices.cast(pa.int64())
        names = [name for name, _, _ in self._metadata]
        made = [
            {name: value for name, value in zip(names, each, strict=True) if value is not None} for each in combined
        ]
        return made * count if codes is None else [*map(made.__getitem__, codes.to_pylist())], refused

    def _content_of(
        self, arrays: Mapping[str, pa.Array], count: int
    ) -> tuple[Sequence[Any], dict[int, str], Callable[..., Batch]]:
        """Return the content of rows, place → reason of those that have a wrong one, and what encodes it."""
        format = self._format
        named = [(key, arrays[name]) for key, name in self._content.items()]
        if self._whole is not None and self._whole.keys is not None:
            named = [*zip(self._whole.keys, arrays[DATA].flatten(), strict=True)]
        if named and isinstance(format, TakesMembers) and format.takes_members([key for key, _ in named]):
            return *members(named, count, format.config.max_depth - 1), format.encode_members
        if self._whole is not None:
            return *self._whole.read(arrays[DATA]), format.encode_columns
        if named:
            return *mappings(named), format.encode_columns
        return [None] * count, {}, format.encode_columns

    def _moment(self, name: str, kind: pa.DataType, moment_of: Callable[[str], int | str]) -> _Convert:
        """Return a function that makes a column a timestamp in microseconds, UTC.

        Args:
            moment_of: as in `_of_distinct`, for texts.
        """
        value = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_timestamp(value) and value.tz is not None:
            return _moments
        if types.is_timestamp(value) or types.is_date(value):
            if self._zone is None:
                hint = "Pass their zone as tz (--tz), such as UTC or Europe/Rome."
                raise InvalidInput(f"the times of the column {shown(name)} have no zone", hint=hint)
            return partial(_local, zone=self._zone)
        if types.is_string(_normal(value)):
            return lambda array: _of_distinct(_decoded(array), moment_of)
        if types.is_null(value):
            return lambda array: (pa.nulls(len(array), _MOMENT), {})
        hint = "Cast it to a timestamp, or name another column as time (--time)."
        raise InvalidInput(f"the column {shown(name)} is {kind}, not a time", hint=hint)

    def _field(self, name: str, kind: pa.DataType, field: FieldType) -> _Convert:
        """Return a function that converts a column to the type of a field."""
        if field is FieldType.TIMESTAMP:
            return self._moment(name, kind, partial(timestamp, times=self._times, others=self._iso))
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


def _of_distinct(array: pa.Array, moment_of: Callable[[Any], int | str]) -> _Converted:
    """Return the moments of values.

    Args:
        moment_of: returns the moment of a value, or why it has none.
    """
    dictionary, indices = distinct(array)
    found = [*map(moment_of, dictionary.to_pylist())]
    wrong = {index: why for index, why in enumerate(found) if isinstance(why, str)}
    moments = pa.array([None if isinstance(each, str) else each for each in found], pa.int64())
    places = enumerate(indices.to_pylist() if wrong else ())
    return moments.take(indices).cast(_MOMENT), {place: wrong[index] for place, index in places if index in wrong}


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


def _time_of(name: str, count: int) -> datetime:
    """Return the time that a column has in a row, from its microseconds since 1970."""
    if not _EARLIEST <= count <= _LATEST:
        raise InvalidInput(f"{name} is {count} µs from 1970, which is outside the years 1 to 9999")
    return from_microseconds(count)


def _is_undeclared(name: str, config: DatasetConfig) -> bool:
    """Return whether a column is metadata that no field declares."""
    return name.startswith(METADATA) and name.removeprefix(METADATA) not in ("", *config.fields)


def _hint(schema: pa.Schema) -> str:
    """Return what to do about a table without the column of the reftime."""
    times = [each.name for each in schema if types.is_timestamp(each.type) or types.is_date(each.type)]
    which = f": {shown(times[0])}" if len(times) == 1 else ""
    return f"Pass the name of the column with the time as time (--time){which}."
