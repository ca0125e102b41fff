"""Columns of the index as Arrow: their types, and how rows become arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType
from ondisk.index import Snapshot
from ondisk.tables.columns import DATASET, index_columns

TYPES: dict[FieldType, pa.DataType] = {
    FieldType.INTEGER: pa.int64(),
    FieldType.REAL: pa.float64(),
    FieldType.TEXT: pa.string(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.TIMESTAMP: pa.timestamp("us", "UTC"),
    FieldType.BYTES: pa.binary(),
}
"""The type of a column for each type of a field."""

PLACE = ("datum.segment", "datum.offset", "datum.size")
"""The first columns of each row of the index when the data are read, too."""

_KEPT = 100_000  # values


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: as `all_columns` has it.
        kind: type.
        field: name and type of the field that it shows; None for dataset, segment, offset and size, and for the data.
        label: in the table, if it has another name there.
        same: all rows have the same value, the only item: the path of their dataset, or None in a dataset without the
            field.
    """

    name: str
    kind: pa.DataType
    field: tuple[str, FieldType] | None = None
    label: str | None = None
    same: tuple[str | None] | None = None

    def of(self, config: DatasetConfig, dataset: str | None) -> Column:
        """Return the column for the rows of one dataset.

        Args:
            dataset: the path that the column `dataset` shows; None without that column.
        """
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
    """Return all columns of a dataset except the data, by name: reftime, the declared fields, segment, offset, size.

    Args:
        several: as in `index_columns`.
    """
    return {
        label: Column(label, TYPES[kind], None if name is None else (name, kind))
        for label, (name, kind) in index_columns(config, several=several).items()
    }


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of a table with these columns."""
    return pa.schema([pa.field(each.label or each.name, each.kind) for each in columns])


class RowsToArrow:
    """Turns rows that were selected from the index into columns of Arrow. For one snapshot.

    Args:
        columns: without the column of the data.
    """

    def __init__(self, columns: Sequence[Column], snapshot: Snapshot) -> None:
        self._columns = columns
        self._snapshot = snapshot
        self._values: dict[int, bytes | None] = {0: None}

    def convert(self, raw: Sequence[pa.Array]) -> Iterator[pa.Array]:
        """Yield the columns of some rows; `raw` holds the values of all `Column.sql` expressions, in order."""
        selected = iter(raw)
        for column in self._columns:
            array = next(selected)
            kind = column.field[1] if column.field is not None else FieldType.INTEGER
            if column.same is not None:
                yield pa.repeat(pa.scalar(*column.same, column.kind), len(array))
            elif column.name == "segment" and column.field is None:
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


def _typed(array: pa.Array, kind: FieldType) -> pa.Array:
    if kind is FieldType.TIMESTAMP:
        return array.cast(pa.timestamp("us", "UTC"))
    return array.cast(pa.bool_()) if kind is FieldType.BOOLEAN else array
