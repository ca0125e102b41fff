"""The data source `ondisk`: its options, schema and reader. All of this runs in Spark's Python workers."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ondisk.config import DatasetConfig
from ondisk.dataset import merged_paths
from ondisk.dataset.access import Access
from ondisk.dataset.expression import expression
from ondisk.dataset.merged import named
from ondisk.dataset.query import Query
from ondisk.errors import InvalidInput, OndiskError, shown
from ondisk.matcher import Expression
from ondisk.spark.adbc import connect
from ondisk.spark.columns import columns_of, schema_of
from ondisk.spark.match_json import loads
from ondisk.spark.plan import (
    ALL,
    Joined,
    Limits,
    Partition,
    choice,
    index_state,
    joined,
    partitions_of,
    reading,
    size_of,
)
from ondisk.spark.read import opened, read_later
from ondisk.spark.report import LOGGER, print_lines
from ondisk.tables.columns import DATA, united
from ondisk.tables.index_to_arrow import Column

OPTIONS = (
    "path",
    "paths",
    "match",
    "tree",
    "columns",
    "data",
    "archives",
    "maxRowsPerPartition",
    "maxBytesPerPartition",
)
STREAM_OPTIONS = (*OPTIONS, "maxDataPerTrigger")
_INTERNAL = ("tree", "paths", "checkpointLocation", "queryName")  # set by `index_frame`, by Spark, or for streams
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
_NEW = 50_000  # new objects before the next garbage collection: as many as a batch creates


@cache
def spare_collections() -> None:
    """Collect garbage less often, and not among imported modules: saves 20 ms for each task, and 6 % of its work.

    Call it in Spark's workers only: other programs decide themselves about their memory.
    """
    gc.freeze()
    gc.set_threshold(_NEW)


def schema(options: Mapping[str, str]) -> StructType:
    """Return the schema that the options describe."""
    spare_collections()
    check_options(options, STREAM_OPTIONS)  # Spark calls this for both
    config, several = _config(options)
    return _schema(options, config, several=several)


def _config(options: Mapping[str, str]) -> tuple[DatasetConfig, bool]:
    """Return the configuration that the columns come from, and whether several datasets are read."""
    paths, several = paths_of(options)
    configs = {}
    for path in paths:
        with opened(path, connect) as access:
            configs[path] = access.current().index.config
    return (united(configs), True) if several else (configs[paths[0]], False)


def _schema(options: Mapping[str, str], config: DatasetConfig, *, several: bool) -> StructType:
    names = options.get("columns")
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    return schema_of(config, wanted, data=flag(options, "data"), several=several)


def read_columns(
    options: Mapping[str, str], schema: StructType, config: DatasetConfig, *, several: bool = False
) -> list[Column]:
    """Return the columns to read.

    Args:
        schema: that of the options, or of the user.
        several: as in `all_columns`.

    Raises:
        InvalidInput: there are both; or the schema has a column that cannot be read.
    """
    given = [name for name in ("columns", "data") if name in options]
    if given and schema != _schema(options, config, several=several):
        hint = "Name all columns in the schema, also data; or remove the schema."
        raise InvalidInput(f"the option {given[0]} is of no use beside a schema", hint=hint)
    return columns_of(config, schema, several=several)


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader that the options describe."""
    spare_collections()
    check_options(options, OPTIONS)
    made = BatchReader(options, schema)
    _ignore_filters(made)
    return made


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans once, in a worker on the driver's machine; then reads partitions of the plan, wherever Spark runs them.

    It has no `pushFilters`: Spark keeps one plan for each load, so the filters of one query would act on all others.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        config, several = _config(options)
        self._columns: list[Column] = read_columns(options, schema, config, several=several)
        choice(options)
        self._limits = Limits.of(*limits_of(options))

    def partitions(self) -> list[Partition] | list[Joined]:
        paths, several = paths_of(self._options)
        planned = [each for path in paths for each in self._planned(path, several=several)]
        tasks = joined(planned, self._limits) if several else planned
        print_lines()
        match = self._options.get("match", self._options.get("tree", ""))
        what = f"{len(paths)} datasets" if several else str(Path(paths[0]).absolute())
        LOGGER.info("%s: planned a read, match %s: %s", what, shown(match), size_of(planned, len(tasks)))
        return tasks

    def _planned(self, path: str, *, several: bool) -> list[Partition]:
        has_data = any(column.name == DATA for column in self._columns)
        try:
            with opened(path, connect) as access:
                tree = tree_of(self._options, access.current().index.config, path)
                found = plan(access, tree, choice(self._options), data=has_data, limits=self._limits)
        except OndiskError as error:
            if several:
                named(error, path)
            raise
        return [replace(each, state=replace(each.state, dataset=path)) for each in found] if several else found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_collections()
        if isinstance(partition, Joined):
            for each in partition.partitions:
                try:
                    yield from read_later(each, self._columns, connect)
                except OndiskError as error:
                    named(error, each.state.dataset or each.state.path)
                    raise
        elif isinstance(partition, Partition):  # without any, Spark adds one of its own
            yield from read_later(partition, self._columns, connect)


def _ignore_filters(reader: DataSourceReader) -> None:
    """Keep PySpark from decoding the filters of a query, which a `BatchReader` does not use.

    With `spark.sql.python.filterPushdown.enabled`, PySpark 4.3 decodes them for every reader, and fails at a time
    before year 1. Its worker may plan for another data source next, so the function is restored after the query.
    """
    worker: Any = next((sys.modules[name] for name in (_PLANNER, "__main__") if name in sys.modules), None)
    decode = getattr(worker, "deserializeFilter", None)
    if decode is None:
        return
    worker.deserializeFilter = lambda _: object()

    def none_of(filters: list[Any]) -> list[Any]:
        worker.deserializeFilter = decode
        del reader.pushFilters  # so that it is not sent to executors
        return filters

    reader.pushFilters = none_of


def plan(
    access: Access, tree: Expression, needed: str = ALL, *, data: bool, limits: Limits | None = None
) -> list[Partition]:
    """Return partitions with all that matches in a dataset, from one snapshot.

    Args:
        needed: whether data that are offline are an error, see `ondisk.spark.plan`.
        limits: of a partition; None for the default.

    Raises:
        NeedsCheck: the index was lost and may not know all data; a worker cannot warn the user.
        SegmentMissing: data that may match are away, and are read; or the index does not know them, since it was lost.
    """
    access.check_trusted()
    opened, query = access.current(), Query(tree, complete=needed == ALL)
    query.check(opened.index)
    with reading(opened, query, data=data) as (snapshot, each):
        state = index_state(opened, snapshot, each)
        return partitions_of(state, snapshot, each, data=data, limits=limits)


def check_options(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise unless all options are known."""
    if "location" in options:  # set by Spark
        hint = "Use CREATE TEMPORARY VIEW name USING ondisk OPTIONS (path '…')."
        raise InvalidInput("a dataset cannot be a table of Spark's catalog: CREATE TABLE stores nothing", hint=hint)
    for name, (reason, hint) in _REMOVED.items():
        if name in map(str.lower, options):
            raise InvalidInput(f"the option {name} was removed: {reason}", hint=hint)
    if "damaged" in map(str.lower, options):
        hint = "`ondisk query DATASET MATCH --skip-damaged --parquet FILE` writes what can be read."
        raise InvalidInput("Spark cannot leave out damaged data: nobody would see what is missing", hint=hint)
    unknown = sorted(name for name in options if name.lower() not in map(str.lower, known))
    if unknown:
        names = ", ".join(name for name in known if name not in _INTERNAL)
        raise InvalidInput(f"unknown option {unknown[0]!r}", hint=f"The options are {names}.")


def tree_of(options: Mapping[str, str], config: DatasetConfig, path: str) -> Expression:
    """Return the syntax tree of the option `match`, for a dataset, or of `tree`, which `index_frame` sets."""
    return loads(options["tree"]) if "tree" in options else expression(options.get("match", ""), config, path)


def paths_of(options: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the paths of the datasets to read, and whether they are several: a list, or those of a pattern.

    Raises:
        InvalidInput: a path is missing, or is not on a local filesystem.
        DatasetNotFound: a pattern matches no dataset, or a path in a list contains none.
    """
    if "paths" in options:  # set by Spark
        return merged_paths.paths_of([_local(path) for path in json.loads(options["paths"])]), True
    path = path_of(options)
    return (merged_paths.paths_of(path), True) if merged_paths.is_pattern(path) else ([path], False)


def path_of(options: Mapping[str, str]) -> str:
    """Return the path of the dataset."""
    path = options.get("path")
    if not path:
        raise InvalidInput(
            "the path of the dataset is missing",
            hint="Pass it to load, save or start. ondisk has no tables: for SQL, create a temporary view with a path.",
        )
    return _local(path)


def _local(path: str) -> str:
    """Return a path on this machine that a user may have written with `file:`."""
    path = re.sub("^file:(//(localhost)?(?=/)|(?=/[^/]))", "", path)
    if re.match("[A-Za-z][A-Za-z0-9+.-]*:/", path):
        hint = "Mount it at the same path on all machines and pass that path; or use another format, such as Parquet."
        raise InvalidInput(f"{shown(path)} is not on a local or mounted filesystem, as a dataset must be", hint=hint)
    if path.startswith("~") and not os.path.exists(path):  # noqa: PTH110
        hint = f"Pass {shown(os.path.expanduser(path))}, for example."  # noqa: PTH111
        raise InvalidInput(f"the path {shown(path)} begins with ~, which only a shell replaces", hint=hint)
    return path


def limits_of(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the most rows and bytes of a partition that the options set; None where they do not."""
    return number(options, "maxRowsPerPartition", "rows"), number(options, "maxBytesPerPartition", "bytes")


def number(options: Mapping[str, str], name: str, unit: str) -> int | None:
    """Return the value of an option that is a number of 1 or more; None if it is not set."""
    text = options.get(name)
    if text is None:
        return None
    if not re.fullmatch("0*[1-9][0-9]{0,17}", text):
        raise InvalidInput(f"the option {name} must be a number of {unit}, 1 or more, not {shown(text)}")
    return int(text)


def flag(options: Mapping[str, str], name: str, *, default: str = "false") -> bool:
    """Return the value of an option that is true or false."""
    text = options.get(name, default).lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"the option {name} must be true or false, not {text!r}")
    return text == "true"
