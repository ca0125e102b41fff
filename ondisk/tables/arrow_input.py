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
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.config import DatasetConfig
from ondisk.datum import INTEGER_MAX, INTEGER_MIN, METADATA, FieldType, from_microseconds, microseconds
from ondisk.errors import InvalidInput, LimitExceeded, OndiskError, shown
from ondisk.formats import Batch, Format
from ondisk.formats.jsonl import JsonLines
from ondisk.json_values import format_time
from ondisk.table_options import REFTIME, TableOptions
from ondisk.tables.arrow_values import (
    EXACT,
    Read,
    converted,
    distinct,
    mappings,
    members,
    of_distinct,
    parts_of,
    plain,
    read,
    to_data,
)
from ondisk.tables.columns import DATA, check_names, no_column, roles_of
from ondisk.tables.index_to_arrow import TYPES
from ondisk.tables.table_input import Rows, batches_of, encoded
from ondisk.tables.times import Zone, of_value, readers, timestamp

_Reader: TypeAlias = Callable[[pa.Array], Read]
_Moments: TypeAlias = Callable[[pa.Array], list[int | str | None]]
"""Returns the moment of each row in microseconds since 1970, or why it has none; None for NULL."""

_MOMENT, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
_EARLIEST, _LATEST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
_UNITS = {"s": 1_000_000, "ms": 1000}  # microseconds
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


def opened(source: object) -> pa.RecordBatchReader:
    """Return the table that an object is; raise InvalidInput if it is not a table."""
    hint = "Pass a table of pyarrow, polars, pandas or DuckDB, or the path of a file of Parquet or Arrow."
    if not hasattr(source, "__arrow_c_stream__"):
        raise InvalidInput(f"append_arrow takes an object with __arrow_c_stream__, not {shown(source)}", hint=hint)
    with errors_of("the table"):
        return pa.RecordBatchReader.from_stream(source)


@contextlib.contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Turn what pyarrow raises about a table into LimitExceeded or InvalidInput, for the length of the block."""
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


def of_file(file: Any) -> pa.RecordBatchReader:
    """Return the table in a file that can seek; raise InvalidInput if it is none, LimitExceeded if it is too large."""
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    with errors_of("the file"):
        if head.startswith(b"PAR1"):
            return _parquet(file)
        if head.startswith(b"ARROW1"):
            found = pa.ipc.open_file(file)
            batches = (found.get_batch(number) for number in range(found.num_record_batches))
            return pa.RecordBatchReader.from_batches(found.schema, batches)
        if head.startswith(b"\xff\xff\xff\xff"):
            return pa.ipc.open_stream(file)
    if head.startswith(b"FEA1"):
        hint = "Write it again with version=2, or as Parquet."
        raise InvalidInput("the file is of Feather, version 1, which is not read", hint=hint)
    raise InvalidInput("it is not a file of Parquet or Arrow", hint="Choose another --format, or none.")


def _parquet(file: Any) -> pa.RecordBatchReader:
    import pyarrow.parquet as pq  # here, as it takes as long as all of pyarrow

    opened = partial(
        pq.ParquetFile,
        file,
        pre_buffer=False,
        thrift_string_size_limit=_TEXTS,
        thrift_container_size_limit=_PARTS,
        coerce_int96_timestamp_unit="us",  # in nanoseconds, times outside of 1677 to 2262 would be others
    )
    found = opened()
    largest = _checked(found.metadata)
    weight = 1 + sum(row_bytes for row_bytes, _ in largest.values())
    count = int(max(1, min(_TOGETHER, _DECODED // weight)))
    shared = [path for path, (_, most) in largest.items() if most * count > _SHARED]
    if shared:  # rows may share texts: read these only once
        file.seek(0)
        found = opened(read_dictionary=shared)
    return pa.RecordBatchReader.from_batches(found.schema_arrow, found.iter_batches(batch_size=count))


def _checked(metadata: Any) -> dict[str, tuple[float, int]]:
    """Return path of a column → bytes of a row, and the most of one; raise LimitExceeded if it is far too large."""
    largest: dict[str, tuple[float, int]] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            stored, size = column.total_compressed_size, column.total_uncompressed_size
            if size > _LARGE and size > _RATIO * max(stored, 1):
                problem = f"the file says that {column.path_in_schema} has {size} bytes, in {stored} bytes of the file"
                raise LimitExceeded(problem, hint="Is it the right file? If so, write it again without compression.")
            is_text = column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
            each, most = largest.get(column.path_in_schema, (0.0, 0))
            row = max(size, 0) / max(group.num_rows, 1)
            largest[column.path_in_schema] = max(each, row), max(most, size) if is_text else most
    return largest


def batches(
    reader: pa.RecordBatchReader,
    config: DatasetConfig,
    format: Format,
    options: TableOptions,
    batch_size: int,
    name: str = "the table",
) -> Iterator[Batch]:
    """Return the rows of a table as data, in batches of at most `batch_size` data or `BATCH_BYTES`.

    Raises:
        InvalidInput: a column does not exist, or has a type that cannot be stored; or the table cannot be read.
        LimitExceeded: a value is longer than `max_datum_size`, or the table needs too much memory.
    """
    options.refuse_those_of_csv("a table of Arrow or Parquet")
    with errors_of(name):  # names of columns may be other than UTF-8
        table = TableToData(reader.schema, config, format, options)

    def tables() -> Iterator[Rows]:
        first = 1
        for some in reader:
            for rows in _slices(some, config.max_datum_size, batch_size):
                yield table.read(rows, format, first)
                first += rows.num_rows

    def found() -> Iterator[Batch]:
        with errors_of(name):
            yield from batches_of(tables(), options, "row", batch_size)

    return found()


def _slices(rows: pa.RecordBatch, longest: int, batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in slices that fit into memory when decoded; raise LimitExceeded if what they share does not."""
    rows.validate(full=True)  # what a hostile table says about its own memory
    rows = pa.RecordBatch.from_arrays([*map(_without_views, rows.columns)], rows.schema.names)
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
    """Turns the rows of tables with one schema into data. It is sent to processes of Spark, so it holds no format."""

    def __init__(self, schema: pa.Schema, config: DatasetConfig, format: Format, options: TableOptions) -> None:
        names, kinds = schema.names, dict(zip(schema.names, schema.types, strict=True))
        check_names(names)
        self._time = time = REFTIME if options.time is None else options.time
        if time not in names:
            raise no_column(time, names, _hint(schema))
        self._zone = None if options.tz is None else Zone(options.tz)
        self._times, self._iso = readers(options)
        declared = (METADATA, time, *(METADATA + name for name in config.fields))
        undeclared = [name for name in names if name.startswith(METADATA) and name not in declared]
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
        self._moments = self._moments_of(time, kinds[time], self._times.__getitem__)
        self._readers: dict[str, _Reader] = {}
        for field, name in roles.fields.items():
            self._readers[name] = self._field(name, kinds[name], config.fields[field])
        for name in [*undeclared, *roles.content.values()]:
            self._readers[name] = self._value(name, kinds[name])
        self._content = roles.content
        self._kind = None if whole is None else _normal(kinds[whole])
        self._convert = None if whole is None else to_data(self._kind, is_raw=format.raw)
        self._series = roles.series(config)
        self._metadata = [*roles.fields.items(), *((name.removeprefix(METADATA), name) for name in undeclared)]

    def read(self, rows: pa.RecordBatch, format: Format, first: int = 1) -> Rows:
        """Return rows, to be data of a format. `first`: the number of the first one in its table."""
        times = self._times_of(rows)

        def series() -> list[list[Any]]:
            return [converted(_decoded(rows.column(name)), None)[0] for name in self._series]

        numbers, encode = range(first, first + len(times)), partial(self._encoded, rows, times, format)
        return Rows(numbers, times, encode, series, lambda: int(rows.nbytes))

    def _encoded(self, rows: pa.RecordBatch, times: list[int | str], format: Format) -> Batch:
        refused: dict[int, str] = {}
        columns: dict[str, Read] = {}
        for name, reader in self._readers.items():
            columns[name] = found = reader(_decoded(rows.column(name)))
            for place, reason in found.refused.items():
                refused.setdefault(place, f"column {shown(name)}: {reason}")
        data, wrong, encode = self._content_of(rows, columns, format)
        return encoded((times, self._metadata_of(columns, len(times)), data), wrong | refused, encode)

    def _times_of(self, rows: pa.RecordBatch) -> list[int | str]:
        """Return the moment of each row, or why it has none that Python has."""
        times = self._moments(_decoded(rows.column(self._time)))
        if {*map(type, times)} <= {int} and (not times or (min(times) >= _EARLIEST and max(times) <= _LATEST)):  # type: ignore[type-var, operator]
            return times  # type: ignore[return-value]  # none is None
        found: list[int | str] = []
        for time in times:
            if isinstance(time, str):
                found.append(of_value(f"column {shown(self._time)}", time))
            elif time is None:
                found.append(f"{self._time} is NULL")
            else:
                why = _outside(time)
                found.append(f"{self._time} is {why}" if why else time)
        return found

    def _metadata_of(self, columns: Mapping[str, Read], count: int) -> list[dict[str, Any]]:
        """Return the metadata of rows; equal ones share a mapping."""
        combined: list[tuple[Any, ...]] = [()]
        codes = pa.repeat(pa.scalar(0, pa.int64()), count)
        for _, name in self._metadata:
            found = columns[name]
            values, indices = [*found.values, None], found.indices.cast(pa.int64()).fill_null(len(found.values))
            both = pc.add(pc.multiply(codes, pa.scalar(len(values), pa.int64())), indices).dictionary_encode()
            pairs = (divmod(each, len(values)) for each in both.dictionary.to_pylist())
            combined = [(*combined[before], values[each]) for before, each in pairs]
            codes = both.indices.cast(pa.int64())
        rows = (zip(self._metadata, each, strict=True) for each in combined)
        made = [{key: value for (key, _), value in row if value is not None} for row in rows]
        return [*map(made.__getitem__, codes.to_pylist())]

    def _content_of(
        self, rows: pa.RecordBatch, columns: Mapping[str, Read], format: Format
    ) -> tuple[Sequence[Any], dict[int, str], Callable[..., Batch]]:
        """Return the content of rows, row → reason of those that have a wrong one, and what encodes it."""
        parts, missing = [(key, columns[name]) for key, name in self._content.items()], []
        if self._kind is not None:
            whole = _decoded(rows.column(DATA)).cast(options=_truncating(self._kind))
            if not types.is_struct(self._kind) or not self._kind.num_fields:
                return *converted(whole, self._convert), format.encode_columns
            parts, missing = parts_of(whole), pc.indices_nonzero(whole.is_null()).to_pylist()
        if parts and isinstance(format, JsonLines) and format.takes_members([key for key, _ in parts]):
            return *members(parts, rows.num_rows, format.config.max_depth - 1), format.encode_members
        data, refused = mappings(parts) if parts else ([None] * rows.num_rows, {})
        for place in missing:
            data[place] = None
        return data, refused, format.encode_columns

    def _moments_of(self, name: str, kind: pa.DataType, moment_of: Callable[[str], int | str]) -> _Moments:
        """Return a function that reads the times of a column. `moment_of`: reads the moment of a text."""
        value = _normal(kind)
        if types.is_string(value):
            return lambda array: [text if text is None else moment_of(text) for text in converted(array, None)[0]]
        if types.is_null(value):
            return lambda array: [None] * len(array)
        if not types.is_timestamp(value) and not types.is_date(value):
            hint = "Cast it to a timestamp, or name another column as time (--time)."
            raise InvalidInput(f"the column {shown(name)} is {kind}, not a time", hint=hint)
        if types.is_timestamp(value) and value.tz is not None:
            return _microseconds
        if self._zone is None:
            hint = "Pass their zone as tz (--tz), such as UTC or Europe/Rome."
            raise InvalidInput(f"the times of the column {shown(name)} have no zone", hint=hint)
        return partial(_local, zone=self._zone)

    def _field(self, name: str, kind: pa.DataType, field: FieldType) -> _Reader:
        if field is FieldType.TIMESTAMP:
            moment_of = partial(timestamp, times=self._times, others=self._iso)
            return partial(_read_times, moments_of=self._moments_of(name, kind, moment_of), time_of=from_microseconds)
        value, target = _normal(kind), TYPES[field]
        if value == target or types.is_null(value):
            return lambda array: read(array.cast(target), None)
        if field in _NUMBERS and (types.is_integer(value) or types.is_floating(value)):
            return lambda array: read(array, _NUMBERS[field])
        hint = f"Cast it to {target}."
        raise InvalidInput(f"the column {shown(name)} is {kind}, the field is declared {field}", hint=hint)

    def _value(self, name: str, kind: pa.DataType) -> _Reader:
        """Return a function that reads a column of the content, or of undeclared metadata."""
        value = _normal(kind)
        if types.is_timestamp(value) and (value.tz is not None or self._zone is not None):
            return partial(_read_times, moments_of=self._moments_of(name, kind, str), time_of=format_time)
        if types.is_timestamp(value) or types.is_date(value) or types.is_time(value):
            return lambda array: read(_without_nanoseconds(array), methodcaller("isoformat"))
        convert = plain(value, name)
        return lambda array: read(array.cast(options=_truncating(value)), convert)


def _truncating(kind: pa.DataType) -> pc.CastOptions:
    """Return how values are cast to a type: times lose their nanoseconds, and none becomes another one."""
    return pc.CastOptions(target_type=kind, allow_time_truncate=True)


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


def _without_views(column: pa.Array) -> pa.Array:
    """Return a column without a dictionary of views, which Arrow does not decode: polars has them in Categorical."""
    kind = column.type
    if not types.is_dictionary(kind) or kind.value_type not in (pa.string_view(), pa.binary_view()):
        return column
    views, first = column.dictionary, 4 * column.dictionary.offset  # 16 bytes each, which begin with the length
    if views.null_count:  # these may have any length
        raise InvalidInput("it has categories that are null", hint="Write it again without these, or as Parquet.")
    size = sum(memoryview(views.buffers()[1]).cast("i")[first : first + 4 * len(views) : 4])
    if size > max(_DECODED, _NESTED_RATIO * views.nbytes):  # they may share texts
        hint = "Is it the right file? If so, write it again without categories."
        raise LimitExceeded(f"categories of {views.nbytes} bytes would need {size} when they are read", hint=hint)
    return column.cast(pa.dictionary(kind.index_type, _normal(kind.value_type), kind.ordered))


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _BYTES)


def _decoded(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if types.is_dictionary(array.type) else array


def _without_nanoseconds(array: pa.Array) -> pa.Array:
    """Return times without the digits that times of Python do not have."""
    if not types.is_timestamp(array.type) or array.type.unit != "ns":
        return array
    count = array.view(pa.int64())
    whole = pc.divide(count, 1000)  # towards 1970
    whole = pc.subtract(whole, pc.greater(pc.multiply(whole, 1000), count).cast(pa.int64()))
    return whole.view(pa.timestamp("us", array.type.tz))


def _microseconds(array: pa.Array) -> list[Any]:
    """Return the microseconds since 1970 of timestamps and dates, also of those that are far away."""
    kind = array.type
    counts = _without_nanoseconds(array).cast(pa.int32() if types.is_date32(kind) else pa.int64()).to_pylist()
    unit = 24 * 3600 * 10**6 if types.is_date32(kind) else _UNITS.get(getattr(kind, "unit", "ms"), 1)
    return counts if unit == 1 else [None if each is None else each * unit for each in counts]


def _local(array: pa.Array, zone: Zone) -> list[int | str | None]:
    """Return the moments of times without a zone, and of dates: their first moment."""
    found: list[int | str | None] = []
    for place, local in enumerate(_microseconds(array)):
        moment = None if local is None else zone.utc(local)
        found.append(of_value(_shown(array, place), moment) if isinstance(moment, str) else moment)
    return found


def _shown(array: pa.Array, place: int) -> str:
    try:
        return shown(array[place].as_py().isoformat())
    except (OverflowError, ValueError):
        return "a time"


def _read_times(array: pa.Array, moments_of: _Moments, time_of: Callable[[int], Any]) -> Read:
    """Return a column of times. `time_of`: returns the value of a datum for a moment."""
    dictionary, indices = distinct(array)
    values, wrong = list[Any](), dict[int, str]()
    for place, moment in enumerate(moments_of(dictionary)):
        if why := moment if isinstance(moment, str) else _outside(moment):
            wrong[place] = why
        values.append(time_of(moment) if isinstance(moment, int) and not why else None)
    return of_distinct(values, wrong, indices)


def _outside(moment: int | None) -> str:
    if moment is None or _EARLIEST <= moment <= _LATEST:
        return ""
    return f"{moment} µs from 1970, which is outside the years 1 to 9999"


def _integer(value: float) -> int:
    if not (type(value) is int or value.is_integer()) or not INTEGER_MIN <= value <= INTEGER_MAX:
        raise InvalidInput(f"{shown(value)} is not integer")
    return int(value)


def _real(value: float) -> float:
    if type(value) is int and not -EXACT <= value <= EXACT:
        raise InvalidInput(f"{shown(value)} is not real")
    return float(value)


_NUMBERS: dict[FieldType, Callable[[Any], Any]] = {FieldType.INTEGER: _integer, FieldType.REAL: _real}


def _hint(schema: pa.Schema) -> str:
    times = [each.name for each in schema if types.is_timestamp(each.type) or types.is_date(each.type)]
    which = f": {shown(times[0])}" if len(times) == 1 else ""
    return f"Pass the name of the column with the time as time (--time){which}."
