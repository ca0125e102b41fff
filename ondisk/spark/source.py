"""The data source `ondisk` of Spark: options, schema, and readers. All of it runs in Spark's Python workers."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.dataset.query import Query, Snapshots
from ondisk.errors import InvalidInput
from ondisk.matcher import And, Everything, Expression, parse
from ondisk.spark.adbc import connect
from ondisk.spark.columns import DATA, Column, columns_of, schema_of
from ondisk.spark.match_json import loads
from ondisk.spark.plan import Partition, index_state, partitions_of
from ondisk.spark.read import opened, read_later

OPTIONS = ("path", "match", "tree", "columns", "data", "maxDataPerTrigger")
_REMOVED = {
    "pushdown": (
        "it returned wrong rows where a DataFrame was used twice",
        'Use .option("match", "reftime: >=2026-11-19; area: VM2,101"), which the index answers.',
    ),
    "data_schema": (
        "Spark reads schemas itself",
        'Use .schema("reftime timestamp, data struct<wind: double, note: string>"), with all columns that you want.',
    ),
}
_PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
_NEW = 50_000  # objects made before the collector looks for garbage: a batch makes as many


@cache
def spare_collections() -> None:
    """Let a worker of Spark's look for garbage less often, and not among imports: 20 ms a task, and 6 % of its work.

    To be called in workers alone: the memory of a whole program is its own affair.
    """
    gc.freeze()
    gc.set_threshold(_NEW)


def schema(options: Mapping[str, str]) -> StructType:
    """Make the schema that the options ask for."""
    spare_collections()
    check_options(options)
    names = options.get("columns")
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    with opened(path_of(options), connect) as access:
        config = access.current().index.config
        return schema_of(config, wanted, data=flag(options, "data"))


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Make the reader that the options ask for."""
    spare_collections()
    check_options(options, without=("maxDataPerTrigger",))
    made = BatchReader(dict(options), schema)
    _ignore_filters(made)
    return made


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans once, in a worker on the driver's machine; then reads pieces of the plan, wherever Spark runs them.

    It has no `pushFilters`: Spark keeps one plan for each load, so the filters of one query would act on all others.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        with opened(path_of(options), connect) as access:
            self._columns: list[Column] = columns_of(access.current().index.config, schema)

    def partitions(self) -> list[InputPartition]:
        has_data = any(column.name == DATA for column in self._columns)
        with opened(path_of(self._options), connect) as access:
            return plan(access, tree_of(self._options, access.current().index.config), data=has_data)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_collections()
        if isinstance(partition, Partition):  # Spark makes a partition of its own where there are none
            yield from read_later(partition, self._columns, connect)


def _ignore_filters(reader: DataSourceReader) -> None:
    """Let Spark not decode the filters of this query: no reader of ours uses them.

    With `spark.sql.python.filterPushdown.enabled`, PySpark 4.3 decodes them for every reader, and fails at a time
    before year 1. It does so in a worker that may plan for another data source next, so decoding is put back.
    """
    worker: Any = next((sys.modules[name] for name in (_PLANNER, "__main__") if name in sys.modules), None)
    decode = getattr(worker, "deserializeFilter", None)
    if decode is None:
        return
    worker.deserializeFilter = lambda _: object()

    def none_of(filters: list[Any]) -> list[Any]:
        worker.deserializeFilter = decode
        del reader.pushFilters  # it would be sent to the executors
        return filters

    reader.pushFilters = none_of


def plan(access: Access, tree: Expression, *, data: bool) -> list[InputPartition]:
    """Plan a query of a dataset and its archives, from one snapshot of each.

    Raises:
        NeedsCheck: an index was lost, and may not know all data; there is nobody who could be warned of that.
    """
    archives = Archives(access)
    try:
        archives.check_trusted()
        query = Query(tree)
        query.check(access.current().index)
        partitions: list[InputPartition] = []
        with Snapshots(access.current(), archives, query) as snapshots:
            for opened, snapshot, each in snapshots.each():
                state = index_state(opened, snapshot, each)
                partitions += partitions_of(state, snapshot, each, data=data)
        return partitions
    finally:
        archives.close()


def check_options(options: Mapping[str, str], without: Sequence[str] = ()) -> None:
    """Refuse options that there are not.

    Args:
        without: those that are not there for what is asked.
    """
    known = {name.lower(): name for name in OPTIONS if name not in without}
    for name, (reason, hint) in _REMOVED.items():
        if name in map(str.lower, options):
            raise InvalidInput(f"the option {name} was removed: {reason}", hint=hint)
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        names = ", ".join(name for name in known.values() if name != "tree")
        raise InvalidInput(f"there is no option {unknown[0]!r} here", hint=f"The options are {names}.")


def tree_of(options: Mapping[str, str], config: DatasetConfig) -> Expression:
    """Make one syntax tree of the options `match` and `tree`."""
    trees: list[Expression] = []
    if "match" in options:
        trees.append(parse(options["match"], config.fields))
    if "tree" in options:
        trees.append(loads(options["tree"]))
    trees = [tree for tree in trees if tree != Everything()]
    return trees[0] if len(trees) == 1 else And(tuple(trees)) if trees else Everything()


def path_of(options: Mapping[str, str]) -> str:
    """Give the path of the dataset."""
    path = options.get("path")
    if not path:
        raise InvalidInput(
            "the path of the dataset is missing", hint='Give it to load, save or start, or as the option "path".'
        )
    return re.sub("^file:(//)?(?=/)", "", path)


def flag(options: Mapping[str, str], name: str) -> bool:
    """Tell whether an option is true."""
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"the option {name} is true or false, not {text!r}")
    return text == "true"
