"""The data source `ondisk`: its options, schema and reader. All of this runs in Spark's Python workers."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.expression import expression
from ondisk.dataset.merged import is_pattern, named
from ondisk.dataset.merged import paths_of as datasets_of
from ondisk.dataset.query import Query
from ondisk.errors import InvalidInput, OndiskError, shown
from ondisk.index.sums import Totals, interval_of_sums, totals
from ondisk.json_values import format_time
from ondisk.matcher import Everything, Expression
from ondisk.spark.adbc import connect
from ondisk.spark.columns import columns_of, schema_of
from ondisk.spark.groups import Groups, groups_of
from ondisk.spark.java_connector import METADATA, MOST_PARTS, OPTION, Pushed, room_beside
from ondisk.spark.match_json import loads
from ondisk.spark.pinned_state import Pinned
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
from ondisk.spark.read import later, opened, read
from ondisk.spark.report import LOGGER, print_lines
from ondisk.table_options import REFTIME
from ondisk.tables.columns import DATA, names_in, united
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
_INTERNAL = ("tree", "paths", "checkpointLocation", "queryName", OPTION)  # set by `index_frame`, Spark, or for streams
_FIELD_TYPES = {
    "bigint": "integer",
    "double": "real",
    "string": "text",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "binary": "bytes",
}
_CATALOG = "a catalog: spark.sql.catalog.NAME=ondisk.spark.OndiskCatalog, with NAME.root"
_OF_SPARK = frozenset({"provider", "owner", "comment", "external", "is_managed_location"})  # properties it adds itself
_NEW = 50_000  # new objects before the next garbage collection: as many as a batch creates


@cache
def spare_collections() -> None:
    """Collect garbage less often, and not among imported modules: saves 20 ms for each task, and 6 % of its work.

    Call it in Spark's workers only: other programs decide themselves about their memory.
    """
    gc.freeze()
    gc.set_threshold(_NEW)


def schema(options: Mapping[str, str]) -> StructType:
    """Return the schema that the options describe; or answer a question of the connector."""
    spare_collections()
    pushed = Pushed.of(options)
    if pushed.ask is not None:
        return _ANSWERS[pushed.ask](options, pushed)
    check_options(options, STREAM_OPTIONS)  # Spark calls this for both
    config, several = _config(options)
    return _schema(options, config, several=several)


@cache
def _note_that_where_reads_all() -> None:
    """Say it once in each of Spark's processes."""
    print_lines()
    LOGGER.warning(
        "where and select read all data, since Spark has no connector of ondisk, or another version of Spark than it"
        " knows. Start Spark with ondisk.spark.session(), or call ondisk.spark.register(spark)"
    )


def _config(options: Mapping[str, str], paths: Collection[str] | None = None) -> tuple[DatasetConfig, bool]:
    """Return the configuration that the columns come from, and whether several datasets are read."""
    found, several = paths_of(options)
    configs = {}
    for path in found if paths is None else paths:
        with opened(path, connect) as access:
            configs[path] = access.current().index.config
    return (united(configs), True) if several else (configs[found[0]], False)


def _schema(options: Mapping[str, str], config: DatasetConfig, *, several: bool, data: str = "false") -> StructType:
    """Return the schema that the options describe; `data` is the default of that option."""
    names = options.get("columns")
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    return schema_of(config, wanted, data=flag(options, "data", default=data), several=several)


def _loaded(options: Mapping[str, str], pushed: Pushed) -> StructType:
    """Return the schema of a load by the connector, with the state of the index as the answer.

    The column `data` costs nothing unless a query selects it, so it is there unless the options say otherwise.
    """
    check_options(options, (*STREAM_OPTIONS, OPTION))
    if (user := pushed.more.get("schema")) is not None:
        _check_alone(options)
        found = StructType.fromJson(user)
    config, several = _config(options)
    if user is None:
        found = _schema(options, config, several=several, data="false" if "columns" in options else "true")
    columns_of(config, found, several=several)
    paths, _ = paths_of(options)
    states, room, answer = {}, MOST_PARTS, {}
    for path in paths:
        with opened(path, connect) as access, access.current().index.snapshot() as snapshot:
            current = access.current()
            tree = tree_of(options, current.index.config, path)
            room = min(room, room_beside(tree))
            states[path] = Pinned.of(current, snapshot)
            if "describe" in pushed.more and not several:
                answer["properties"] = _properties(current.index.config, totals(snapshot, Everything()))
    return _answered(found, {"state": states, "room": room, **answer})


def _properties(config: DatasetConfig, found: Totals) -> dict[str, str]:
    """Return what DESCRIBE TABLE EXTENDED shows of a dataset."""
    described = {"format": config.format, "step": str(config.step), "unique": ", ".join(config.unique)}
    described |= {"index": ", ".join(config.index), "rows": str(found.count), "bytes": str(found.size)}
    for name, time in (("first", found.begin), ("last", found.end)):
        described[name] = "" if time is None else format_time(time)
    return described


def _created(options: Mapping[str, str], pushed: Pushed) -> StructType:
    """Create a dataset for CREATE TABLE. Its properties are the keys of `dataset.toml`."""
    given = {name.lower(): value for name, value in pushed.more["properties"].items()}
    if "location" in given:
        raise InvalidInput("the name of a table is its place below the root of the catalog", hint="Leave out LOCATION.")
    for name in ("format", "step"):
        if name not in given:
            hint = "Add TBLPROPERTIES (format = 'jsonl', step = 'daily'), for example."
            raise InvalidInput(f"the table property {name} is missing", hint=hint)
    own = {name: value for name, value in given.items() if name not in _OF_SPARK and not name.startswith("option.")}
    columns = {column.lower(): kind for column, kind in pushed.more["columns"].items()}
    # A SELECT that creates a table and lacks one of them would fail when the dataset is there already.
    if columns.pop(REFTIME, None) != "timestamp" or DATA not in columns:
        hint = f"Declare {REFTIME}, the time of each datum, and {DATA}; a SELECT that creates a table needs both, too."
        raise InvalidInput(f"a table has a column {REFTIME} TIMESTAMP and a column {DATA} STRING or BINARY", hint=hint)
    if columns.pop(DATA) not in ("string", "binary"):
        hint = "Its text is JSON: give its schema when you read, spark.read.schema(…), or use get_json_object."
        raise InvalidInput(f"the column {DATA} is STRING, or BINARY", hint=hint)
    for name, kind in columns.items():
        if kind not in _FIELD_TYPES:
            hint = f"The types are {', '.join(_FIELD_TYPES)}; {REFTIME} is timestamp."
            raise InvalidInput(f"the column {name} cannot be {kind}", hint=hint)
    fields = {name: _FIELD_TYPES[kind] for name, kind in columns.items()}
    config: Any = {"fields": fields} | {name: _value_of_key(name, value) for name, value in own.items()}
    Dataset.create(options["path"], config).close()
    return StructType().add("created", LongType())


def _value_of_key(key: str, text: str) -> Any:
    """Return what a table property means as the value of a key of `dataset.toml`."""
    if key in ("unique", "index", "maintain_archives"):
        return names_in(text)
    with contextlib.suppress(ValueError):
        if type(value := json.loads(text)) in (int, float, bool):
            return value
    return text


def _deleted(options: Mapping[str, str], pushed: Pushed) -> StructType:
    """Delete what DELETE FROM names. Each question closes its index, so no other SQLite library has one open here."""
    with Dataset.open(options["path"]) as dataset:
        dataset.delete(pushed.tree(Everything(), dataset.config))
    return StructType().add("deleted", LongType())


def _estimated(options: Mapping[str, str], pushed: Pushed) -> StructType:
    """Return about how many rows a query reads, and how many bytes of data."""
    planned = BatchReader(options, StructType.fromJson(pushed.more["schema"])).planned()
    rows = sum(each.estimate if each.count is None else each.count for each in planned)
    answer = {"rows": rows, "bytes": sum(each.bytes for each in planned)}
    return _answered(StructType().add("rows", LongType()), answer)


def _summed(options: Mapping[str, str], pushed: Pushed) -> StructType:
    """Return count, first and last reftime of what a query reads; None unless sums of segments and days tell them."""
    found, states = [], pushed.state or {}
    with contextlib.suppress(OndiskError):  # the query itself names the error
        several = _config(options, states)[0] if paths_of(options)[1] else None
        for path, pinned in states.items():
            with opened(path, connect) as access:
                config = access.current().index.config
                tree = pushed.tree(tree_of(options, config, path), config, several, path)
                query = Query(tree, complete=choice(options) == ALL)
                with reading(access, query, data=False) as (snapshot, each):
                    is_present = pinned == Pinned.of(access.current(), snapshot)
                    if is_present and interval_of_sums(snapshot, each) is not None:
                        found.append(totals(snapshot, each))
    answer: dict[str, int | None] | None = None
    if len(found) == len(states):
        times = [(each.begin, each.end) for each in found if each.begin is not None and each.end is not None]
        answer = {"count": sum(each.count for each in found)}
        answer["min"] = min((begin for begin, _ in times), default=None)
        answer["max"] = max((end for _, end in times), default=None)
    return _answered(StructType().add("count", LongType()), {"sums": answer})


def _answered(schema: StructType, answer: Mapping[str, Any]) -> StructType:
    """Return a schema with an answer in the metadata of its first column."""
    first, *others = schema.fields
    return StructType([StructField(first.name, first.dataType, True, {METADATA: json.dumps(answer)}), *others])


_ANSWERS: dict[str, Callable[[Mapping[str, str], Pushed], StructType]] = {
    "load": _loaded,
    "estimate": _estimated,
    "sums": _summed,
    "create": _created,
    "delete": _deleted,
}


def read_columns(
    options: Mapping[str, str], schema: StructType, config: DatasetConfig, *, several: bool = False
) -> list[Column]:
    """Return the columns to read: the schema is that of the options, or of the user; raise InvalidInput of both."""
    # With the connector, the options describe one with data or without.
    described = (_schema(options, config, several=several, data=data) for data in ("false", "true"))
    if schema not in described:
        _check_alone(options)
    return columns_of(config, schema, several=several)


def _check_alone(options: Mapping[str, str]) -> None:
    """Raise if there are options beside a schema that describe one."""
    for name in ("columns", "data"):
        if name in options:
            hint = "Name all columns in the schema, also data; or remove the schema."
            raise InvalidInput(f"the option {name} is of no use beside a schema", hint=hint)


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader that the options describe."""
    spare_collections()
    if OPTION not in options:
        _note_that_where_reads_all()
    check_options(options, (*OPTIONS, OPTION))
    return BatchReader(options, schema)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans in a worker on the driver's machine; then reads partitions of the plan, wherever Spark runs them.

    It has no `pushFilters`: Spark keeps one plan of Python for each load, so the filters of one query would act on all
    others. The connector creates a reader for each query, and hands over the filters by an option.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._pushed = pushed = Pushed.of(options)
        paths, several = paths_of(options)
        self._paths = paths if pushed.state is None else [*pushed.state]
        choice(options)
        self._limits = Limits.of(*limits_of(options))
        self._columns: list[Column] = []
        self._groups: Groups | None = None
        with contextlib.ExitStack() as stack:
            # Opened once for the columns and the plan, as each query does both.
            self._access = None if several else stack.enter_context(opened(paths[0], connect))
            config = _config(options, self._paths)[0] if self._access is None else self._access.current().index.config
            self._several = config if several else None
            if pushed.aggregate is not None:
                self._groups = groups_of(pushed.aggregate, config, schema, several=several)
            elif pushed.is_present:
                self._columns = columns_of(config, schema, several=several)
            else:
                self._columns = read_columns(options, schema, config, several=several)
            self._open = stack.pop_all()

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors need."""
        return {name: value for name, value in vars(self).items() if name not in ("_open", "_access")}

    def partitions(self) -> list[Joined]:
        planned = self._needed(self.planned())
        tasks = joined(planned, self._limits)
        print_lines()
        match = self._options.get("match", self._options.get("tree", ""))
        what = f"{len(self._paths)} datasets" if self._several is not None else str(Path(self._paths[0]).absolute())
        LOGGER.debug("%s: planned a read, match %s: %s", what, shown(match), size_of(planned, len(tasks)))
        return tasks

    def _needed(self, planned: list[Partition]) -> list[Partition]:
        """Return as many partitions as the limit of the query needs."""
        rows, limit = 0, self._pushed.limit
        for number, each in enumerate(planned):
            if limit is not None and rows >= limit:
                return planned[:number]
            rows += each.count or 0
        return planned

    def planned(self) -> list[Partition]:
        """Return the partitions of the query, in each dataset."""
        with self._open:
            return [each for path in self._paths for each in self._planned(path)]

    def _planned(self, path: str) -> list[Partition]:
        pushed = self._pushed
        with self._naming(path), contextlib.ExitStack() as stack:
            access = self._access or stack.enter_context(opened(path, connect))
            config = access.current().index.config
            tree = pushed.tree(tree_of(self._options, config, path), config, self._several, path)
            data = any(column.name == DATA for column in self._columns)
            pinned = None if pushed.state is None else pushed.state[path]
            needed = choice(self._options)
            found = plan(access, tree, needed, data=data, limits=self._limits, pinned=pinned, limit=pushed.limit)
        if self._several is not None:
            return [replace(each, state=replace(each.state, dataset=path)) for each in found]
        return found

    @contextlib.contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Name the dataset in errors of the block, if there are several."""
        try:
            yield
        except OndiskError as error:
            if self._several is not None:
                named(error, path)
            raise

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_collections()
        rows = partial(read, columns=self._columns, limit=self._pushed.limit)
        count = 0
        for each in partition.partitions if isinstance(partition, Joined) else ():  # Spark adds one if there are none
            with self._naming(each.state.dataset or each.state.path):
                for batch in later(each, rows if self._groups is None else self._groups.read, connect):
                    count += batch.num_rows
                    yield batch
        if self._groups is not None and not count:
            yield from self._groups.nothing()


def plan(
    access: Access,
    tree: Expression,
    needed: str = ALL,
    *,
    data: bool,
    limits: Limits | None = None,
    pinned: Pinned | None = None,
    limit: int | None = None,
) -> list[Partition]:
    """Return partitions with all that matches in a dataset, from one snapshot: the rows of the pinned state, if any.

    Raises as `reading`; and StateError if rows of the pinned state were deleted since.
    """
    with reading(access, Query(tree, complete=needed == ALL), data=data) as (snapshot, each):
        opened = access.current()
        is_open = pinned is not None and bool(pinned.kept(opened, snapshot))
        state = index_state(opened, snapshot, each, pinned)
        return partitions_of(state, snapshot, each, data=data, limits=limits, limit=limit, is_open=is_open)


def check_options(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise unless all options are known."""
    if "location" in options:  # set by Spark
        hint = f"Use CREATE TEMPORARY VIEW name USING ondisk OPTIONS (path '…'), or {_CATALOG}."
        raise InvalidInput("a dataset cannot be a table of Spark's catalog: CREATE TABLE stores nothing", hint=hint)
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
    """Return the paths of the datasets to read, and whether they are several: a list, or those of a pattern."""
    if "paths" in options:  # set by Spark
        return datasets_of([_local(path) for path in json.loads(options["paths"])]), True
    path = path_of(options)
    return (datasets_of(path), True) if is_pattern(path) else ([path], False)


def path_of(options: Mapping[str, str]) -> str:
    """Return the path of the dataset."""
    path = options.get("path")
    if not path:
        raise InvalidInput(
            "the path of the dataset is missing",
            hint=f"Pass it to load, save or start. For SQL, create a temporary view with a path, or use {_CATALOG}.",
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
