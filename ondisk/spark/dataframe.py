"""The index as a DataFrame: the driver reads a small result itself, a large one is a load of the data source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ondisk.dataset.access import Access
from ondisk.dataset.query import Match, Query
from ondisk.errors import InvalidInput, shown
from ondisk.matcher import Everything
from ondisk.spark.columns import columns_of, schema_of
from ondisk.spark.match_json import dumps
from ondisk.spark.plan import ALL, OPTION, SMALL, choice, index_state, partitions_of, reading
from ondisk.spark.read import read
from ondisk.spark.report import LOGGER
from ondisk.tables.columns import DATA
from ondisk.tables.index_to_arrow import arrow_schema

_BYTES = 32 * 1024 * 1024  # bytes of data; Spark sends up to 48 MiB with the plan of a query


def index_frame(
    access: Access,
    spark: SparkSession,
    match: Match,
    columns: Sequence[str] | None,
    *,
    data: bool,
    needed: str = ALL,
) -> DataFrame:
    """Return what matches now as a DataFrame; raise as a query, and as `reading`.

    Cost: reads up to 10,000 rows, with up to 32 MiB of data, without a Spark job. A larger result costs this look-up,
        then Spark reads all of it.
    """
    if isinstance(columns, str):
        hint = f"Write {re.split(', *', columns)}."
        raise InvalidInput(f"columns is a list of names, not {shown(columns)}", hint=hint)
    needed = choice({OPTION: needed})
    current = access.current()
    schema = schema_of(current.index.config, columns, data=data)
    names = schema.fieldNames()
    wanted = columns_of(current.index.config, schema)
    query = Query(match, complete=needed == ALL)
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    with reading(access, query, data=DATA in names) as (snapshot, tree):
        state = index_state(current, snapshot, tree)
        for partition in partitions_of(state, snapshot, tree, data=DATA in names):
            if partition.count is None or rows + partition.count > SMALL:
                return _loaded(access, spark, query, names, needed)
            for batch in read(partition, current, snapshot, wanted):
                batches.append(batch)
                rows += batch.num_rows
                size += batch.nbytes if DATA in names else 0
                if size > _BYTES:
                    return _loaded(access, spark, query, names, needed)
    LOGGER.info("%s: read, match %s: %d rows (counted)", access.path, shown("" if match is None else match), rows)
    table = pa.Table.from_batches(batches, schema=arrow_schema(wanted))
    return spark.createDataFrame(table, schema=schema)


def _loaded(access: Access, spark: SparkSession, query: Query, names: list[str], needed: str) -> DataFrame:
    source: Any = spark.read.format("ondisk").option("columns", ",".join(names)).option(OPTION, needed)
    tree = query.tree(access.current().index)
    if tree != Everything():
        source = source.option("tree", dumps(tree))
    return source.load(str(access.path))
