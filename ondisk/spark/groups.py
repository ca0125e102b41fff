"""Counts, and the lowest and highest values of columns, of the rows of a partition, answered from the index.

Spark adds up those of the partitions. So a partition without rows counts 0, and does not return nothing: the sum of
nothing would be NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Opened
from ondisk.datum import FieldType
from ondisk.index import Snapshot
from ondisk.spark.plan import Partition
from ondisk.spark.read import batches
from ondisk.tables.index_to_arrow import Column, RowsToArrow, all_columns


@dataclass(frozen=True)
class Groups:
    """What to return of each group of rows.

    Attributes:
        keys: the columns whose values make a group; none for one group of all rows.
        functions: `count`, `min` or `max`, of a column; None for all rows.
        schema: of the result.
    """

    keys: Sequence[Column]
    functions: Sequence[tuple[str, Column | None]]
    schema: pa.Schema

    def read(self, partition: Partition, opened: Opened, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        config, dataset = opened.index.config, partition.state.dataset
        keys = [column.of(config, dataset) for column in self.keys]
        selected = [each for column in keys for each in column.sql()]
        by = ", ".join(map(str, range(1, len(selected) + 1)))
        functions = [(name, None if of is None else of.of(config, dataset)) for name, of in self.functions]
        for name, of in functions:
            selected += _sql(name, of)
        where, values = partition.condition()
        named = ", ".join(f"{each} AS c{number}" for number, each in enumerate([*selected, "count(*)"]))
        sql = f"SELECT {named} FROM datum WHERE {where}" + f" GROUP BY {by}" * bool(by)
        rows_to_arrow = RowsToArrow(keys, snapshot)
        for batch in batches(snapshot.connection, sql, values):
            found = batch.filter(pc.greater(batch.columns[-1], 0))
            if found.num_rows:
                raw = iter(found.columns)
                arrays = [*rows_to_arrow.convert([next(raw) for column in keys for _ in column.sql()])]
                arrays += [_value(raw, name, of, found.num_rows) for name, of in functions]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def nothing(self) -> Iterator[pa.RecordBatch]:
        """Yield the result without any rows."""
        if not self.keys:
            values = [0 if name == "count" else None for name, _ in self.functions]
            arrays = [pa.array([value], kind) for value, kind in zip(values, self.schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def groups_of(given: Mapping[str, Any], config: DatasetConfig, schema: StructType, *, several: bool) -> Groups:
    """Return what the connector asks for, see `ondisk.spark.java_connector`; `schema` is that of the result."""
    known = all_columns(config, several=several)
    functions = [(name, None if of is None else known[of.lower()]) for name, of in given["functions"]]
    return Groups([known[name.lower()] for name in given["group"]], functions, to_arrow_schema(schema, timezone="UTC"))


def _is_of_reftime(of: Column | None) -> bool:
    return of is None or (of.field is not None and of.field[0] == "reftime")


def _sql(name: str, of: Column | None) -> list[str]:
    """Return the SQL expressions of a function; as those of a `Column`, they are never NULL."""
    if name == "count" and _is_of_reftime(of):
        return ["count(*)"]
    assert of is not None
    if of.same is not None:
        return ["0"]
    assert of.field is not None
    field, kind = of.field
    column = "datum.reftime" if field == "reftime" else f"datum.f_{field}"
    if name == "count":
        return [f"ifnull(sum({column} != 0), 0)" if kind.interned else f"count({column})"]
    nothing = "0.0" if kind is FieldType.REAL else "0"
    return [f"ifnull({name}({column}), {nothing})", f"{name}({column}) IS NULL"]


def _value(raw: Iterator[Any], name: str, of: Column | None, rows: int) -> pa.Array:
    if name == "count" or of is None:
        return next(raw)
    if of.same is not None:
        next(raw)
        return pa.nulls(rows, of.kind)
    value, missing = next(raw), pc.cast(next(raw), pa.bool_())
    found = value.cast(pa.timestamp("us", "UTC")) if of.kind == pa.timestamp("us", "UTC") else value.cast(of.kind)
    return pc.if_else(missing, pa.scalar(None, of.kind), found)
