"""Columns of a DataFrame: their names and types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ondisk.config import DatasetConfig
from ondisk.errors import InvalidInput
from ondisk.formats import find
from ondisk.tables.columns import DATA
from ondisk.tables.index_to_arrow import Column, all_columns

_VALUES = (
    *(ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
    *(StringType, BooleanType, BinaryType, TimestampType, NullType),
)
AS_JSON = "Use string, which holds JSON."


def schema_of(config: DatasetConfig, names: Sequence[str] | None, *, data: bool, several: bool = False) -> StructType:
    """Return the schema of a DataFrame with these columns, or all; raise InvalidInput if there is no such column."""
    known = all_columns(config, several=several)
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
            fields.append(StructField(name, spark_type(known[name])))
        else:
            raise InvalidInput(f"there is no column {name!r}", hint=_known(known))
    return StructType(fields)


def columns_of(config: DatasetConfig, schema: StructType, *, several: bool = False) -> list[Column]:
    """Return the columns of a schema, which a user may have written.

    Raises InvalidInput if one does not exist, has another type, is named twice or is declared NOT NULL.
    """
    known = all_columns(config, several=several)
    columns: list[Column] = []
    _check_promises(schema)
    for field in schema.fields:
        name = resolved(field.name, known)
        if any(each.name == name for each in columns):
            raise InvalidInput(f"the schema names the column {name} twice", hint="Name each column once.")
        if name == DATA:
            columns.append(Column(DATA, arrow_type(field.dataType, DATA, AS_JSON), label=field.name))
            continue
        if name is None:
            raise InvalidInput(f"there is no column {field.name!r}", hint=_known(known))
        column = replace(known[name], label=field.name)
        if spark_type(column) != field.dataType:
            wanted, given = spark_type(column).simpleString(), field.dataType.simpleString()
            raise InvalidInput(f"the column {field.name} is {wanted}, not {given}", hint="Cast it after loading.")
        columns.append(column)
    if not columns:
        raise InvalidInput("the schema has no columns", hint=_known(known))
    return columns


def _check_promises(kind: DataType, name: str = "") -> None:
    """Raise if a schema says NOT NULL, or names a column twice: Spark relies on it, and data may contradict it."""
    if isinstance(kind, StructType):
        names = [each.name for each in kind.fields]
        if len(set(names)) < len(names):
            twice = f"{name}.{max(names, key=names.count)}".removeprefix(".")
            raise InvalidInput(f"the schema names the column {twice} twice", hint="Name each column once.")
    for label, each, is_nullable in _parts(kind):
        full = f"{name}{label}".removeprefix(".")
        if not is_nullable:
            raise InvalidInput(f"the column {full} may be NULL", hint="Remove NOT NULL.")
        _check_promises(each, full)


def _parts(kind: DataType) -> list[tuple[str, DataType, bool]]:
    """Return the types in a type: what each adds to the name of a column, the type, and whether it may be NULL."""
    if isinstance(kind, StructType):
        return [(f".{each.name}", each.dataType, each.nullable) for each in kind.fields]
    if isinstance(kind, ArrayType):
        return [("[]", kind.elementType, kind.containsNull)]
    if isinstance(kind, MapType):
        return [(".key", kind.keyType, True), (".value", kind.valueType, kind.valueContainsNull)]
    return []


def resolved(name: str, known: Collection[str]) -> str | None:
    """Return the column that a name means, or None. All columns have lower case; as in Spark, that does not matter."""
    lower = name.lower()
    return lower if lower in known or lower == DATA else None


def _known(columns: Mapping[str, Column]) -> str:
    return f"The columns are {', '.join([*columns, DATA])}."


def spark_type(column: Column) -> DataType:
    """Return Spark's type of a column of the index."""
    return from_arrow_type(column.kind)


def arrow_type(kind: DataType, name: str, hint: str) -> pa.DataType:
    """Return the type of Arrow for a type of Spark; raise InvalidInput if data cannot have a part of this type."""
    _check_values(kind, name, hint)
    return to_arrow_type(kind, timezone="UTC")


def _check_values(kind: DataType, name: str, hint: str) -> None:
    if not isinstance(kind, (*_VALUES, StructType, ArrayType, MapType)):
        raise InvalidInput(f"the column {name} cannot be {kind.simpleString()}", hint=hint.replace("{name}", name))
    for label, each, _ in _parts(kind):
        _check_values(each, f"{name}{label}", hint)
