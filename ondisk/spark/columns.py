"""Columns of a DataFrame: their names and types, and how rows of the index become Arrow."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType
from ondisk.errors import InvalidInput
from ondisk.formats import find
from ondisk.index import Snapshot

DATA = "data"
_PLACE = {"segment": StringType(), "offset": LongType(), "size": LongType()}
_TAKEN = {*_PLACE, DATA}
_TYPES: dict[FieldType, DataType] = {
    FieldType.INTEGER: LongType(),
    FieldType.REAL: DoubleType(),
    FieldType.TEXT: StringType(),
    FieldType.BOOLEAN: BooleanType(),
    FieldType.TIMESTAMP: TimestampType(),
    FieldType.BYTES: BinaryType(),
}
_KEPT = 100_000  # values
PLACE = ("datum.segment", "datum.offset", "datum.size")
"""The first columns of each row of the index when the data are read, too."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: as `all_columns` has it.
        kind: Spark's type.
        field: name and type of the field that it shows; None for segment, offset and size, and for the data.
        label: in the DataFrame, if a schema of the user writes it otherwise.
    """

    name: str
    kind: DataType
    field: tuple[str, FieldType] | None = None
    label: str | None = None

    def sql(self) -> list[str]:
        """Return the SQL expressions to select from `datum` for it; they are never NULL."""
        if self.field is None:
            return [f"datum.{self.name}"]
        name, kind = self.field
        if name == "reftime":
            return ["datum.reftime"]
        if kind.interned:
            return [f"datum.f_{name}"]
        nothing = "0.0" if kind is FieldType.REAL else "0"
        return [f"ifnull(datum.f_{name}, {nothing})", f"datum.f_{name} IS NULL"]


def all_columns(config: DatasetConfig) -> dict[str, Column]:
    """Return all columns of a dataset except the data, by name: reftime, the declared fields, segment, offset, size.

    A field with the name of another column becomes `f_NAME`, as in the index.
    """
    columns = [Column("reftime", TimestampType(), ("reftime", FieldType.TIMESTAMP))]
    for name, kind in config.fields.items():
        label = name
        while label in _TAKEN or (label != name and label in config.fields):
            label = f"f_{label}"
        columns.append(Column(label, _TYPES[kind], (name, kind)))
    columns += [Column(name, kind) for name, kind in _PLACE.items()]
    return {column.name: column for column in columns}


def schema_of(config: DatasetConfig, names: Sequence[str] | None, *, data: bool) -> StructType:
    """Return the schema of a DataFrame with these columns.

    Args:
        names: None for all columns.
        data: add the column of the data.

    Raises:
        InvalidInput: there is no such column.
    """
    known = all_columns(config)
    wanted = [*known] if names is None else [resolved(name, known) or name for name in names]
    if data and DATA not in wanted:
        wanted.append(DATA)
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidInput("columns must name at least one column, and each only once", hint=_known(known))
    fields = []
    for name in wanted:
        if name == DATA:
            fields.append(StructField(DATA, BinaryType() if find(config.format).raw else StringType()))
        elif name in known:
            fields.append(StructField(name, known[name].kind))
        else:
            raise InvalidInput(f"there is no column {name!r}", hint=_known(known))
    return StructType(fields)


def columns_of(config: DatasetConfig, schema: StructType) -> list[Column]:
    """Return the columns of a schema, which a user may have written.

    Raises:
        InvalidInput: a column does not exist, has another type, is named twice or is declared NOT NULL.
    """
    known = all_columns(config)
    columns: list[Column] = []
    _check_promises(schema)
    for field in schema.fields:
        name = resolved(field.name, known)
        if any(each.name == name for each in columns):
            raise InvalidInput(f"the schema names the column {name} twice", hint="Name each column once.")
        if name == DATA:
            columns.append(Column(DATA, field.dataType, label=field.name))
            continue
        if name is None:
            raise InvalidInput(f"there is no column {field.name!r}", hint=_known(known))
        column = replace(known[name], label=field.name)
        if column.kind != field.dataType:
            wanted, given = column.kind.simpleString(), field.dataType.simpleString()
            raise InvalidInput(f"the column {field.name} is {wanted}, not {given}", hint="Cast it after loading.")
        columns.append(column)
    if not columns:
        raise InvalidInput("the schema has no columns", hint=_known(known))
    return columns


def _check_promises(kind: DataType, name: str = "") -> None:
    """Raise if a schema says NOT NULL, or names a column twice: Spark relies on schemas, and data may contradict them.

    Raises:
        InvalidInput: names the column.
    """
    inner = []
    if isinstance(kind, StructType):
        names = [each.name for each in kind.fields]
        if len(set(names)) < len(names):
            twice = max(names, key=names.count)
            raise InvalidInput(f"the schema names the column {name}{twice} twice", hint="Name each column once.")
        inner = [(each.name, each.dataType, each.nullable) for each in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [("[]", kind.elementType, kind.containsNull)]
    elif isinstance(kind, MapType):
        inner = [("value", kind.valueType, kind.valueContainsNull)]
    for label, each, is_nullable in inner:
        if not is_nullable:
            raise InvalidInput(f"the column {name}{label} may be NULL", hint="Remove NOT NULL.")
        _check_promises(each, f"{name}{label}.")


def resolved(name: str, known: Collection[str]) -> str | None:
    """Return the column that a name means, or None. All columns have lower case; as in Spark, that does not matter.

    Args:
        known: the names of all columns but the data.
    """
    lower = name.lower()
    return lower if lower in known or lower == DATA else None


def _known(columns: Mapping[str, Column]) -> str:
    return f"The columns are {', '.join([*columns, DATA])}."


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of the batches that Spark expects for these columns."""
    return pa.schema([pa.field(each.label or each.name, to_arrow_type(each.kind, timezone="UTC")) for each in columns])


class RowsToArrow:
    """Turns rows that were selected from the index into columns of Arrow. For one snapshot.

    Args:
        columns: without the column of the data.
    """

    def __init__(self, columns: Sequence[Column], snapshot: Snapshot, prefix: str) -> None:
        self._columns = columns
        self._snapshot = snapshot
        self._prefix = prefix
        self._values: dict[int, bytes | None] = {0: None}

    def convert(self, raw: Sequence[pa.Array]) -> Iterator[pa.Array]:
        """Yield the columns of some rows; `raw` holds the values of all `Column.sql` expressions, in order."""
        selected = iter(raw)
        for column in self._columns:
            array = next(selected)
            kind = column.field[1] if column.field is not None else FieldType.INTEGER
            if column.name == "segment" and column.field is None:
                yield self._names(array)
            elif kind.interned:
                yield self._interned(array, kind)
            elif column.field is None or column.field[0] == "reftime":
                yield _typed(array, kind)
            else:
                missing = pc.cast(next(selected), pa.bool_())
                yield pc.if_else(missing, pa.scalar(None, _typed(array, kind).type), _typed(array, kind))

    def _interned(self, ids: pa.Array, kind: FieldType) -> pa.Array:
        encoded = ids.dictionary_encode()
        values = pa.array(self._values_of(encoded.dictionary.to_pylist()), pa.binary())
        if kind is FieldType.TEXT:
            values = values.cast(pa.string())
        return values.take(encoded.indices)

    def _names(self, ids: pa.Array) -> pa.Array:
        encoded = ids.dictionary_encode()
        names = [self._prefix + self._snapshot.segment(id).name for id in encoded.dictionary.to_pylist()]
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


def _typed(array: pa.Array, kind: FieldType) -> pa.Array:
    if kind is FieldType.TIMESTAMP:
        return array.cast(pa.timestamp("us", "UTC"))
    return array.cast(pa.bool_()) if kind is FieldType.BOOLEAN else array
