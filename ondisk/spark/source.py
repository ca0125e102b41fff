"""The data source `ondisk` of Spark: options, schema, and readers. All of it runs in Spark's Python workers."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.dataset.query import Parts, Question
from ondisk.errors import InvalidInput, StateError
from ondisk.filesystem import Directory
from ondisk.matcher import And, Everything, Expression, parse
from ondisk.spark.adbc import connect
from ondisk.spark.columns import DATA, Column, checked, chosen
from ondisk.spark.filters import pushed
from ondisk.spark.match_json import loads
from ondisk.spark.plan import Piece, part_of, pieces_of
from ondisk.spark.read import opened, read_later

OPTIONS = ("path", "match", "tree", "columns", "data", "data_schema", "pushdown", "maxDataPerTrigger")
_NOTED = 1024 * 1024  # bytes
_NEW = 50_000  # objects made before the collector looks for garbage: a batch makes as many
_REMEDY = (
    'Load it anew for each query: spark.read.format("ondisk").option("pushdown", "true").load(path); or leave the'
    " option out, and the filters to Spark."
)


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
        return chosen(config, wanted, data=flag(options, "data"), data_schema=options.get("data_schema"))


def reader(options: Mapping[str, str], schema: StructType, load: str) -> DataSourceReader:
    """Make the reader that the options ask for.

    Args:
        load: what tells one `load()` from another.
    """
    spare_collections()
    check_options(options, without=("maxDataPerTrigger",))
    kind = PushdownReader if flag(options, "pushdown") else Reader
    return kind(dict(options), schema, load)


class Reader(DataSourceReader):  # type: ignore[misc]
    """Plans once, in a worker on the driver's machine; then reads pieces of the plan, wherever Spark runs them.

    It has no `pushFilters`: Spark keeps one plan a load, so that filters of one query would be those of all others.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, load: str) -> None:
        self._options = options
        self._load = load
        with opened(path_of(options), connect) as access:
            self._columns: list[Column] = checked(access.current().index.config, schema)
        self._pushed: Expression = Everything()

    def partitions(self) -> list[InputPartition]:
        has_data = any(column.name == DATA for column in self._columns)
        with opened(path_of(self._options), connect) as access:
            tree = tree_of(self._options, access.current().index.config, self._pushed)
            return plan(access, tree, data=has_data)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        spare_collections()
        if isinstance(partition, Piece):  # Spark makes one of its own where there are none
            yield from read_later(partition, self._columns, connect)


class PushdownReader(Reader):
    """A reader to which Spark hands the filters of one query.

    Spark 4.3.0 keeps them for all later queries of the same load. What of that can be seen raises: other filters, and
    tasks of a second query. What is not seen: the unfiltered DataFrame in the very query that also filters it.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, load: str) -> None:
        super().__init__(options, schema, load)
        self._filters = "[]"

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        self._filters = json.dumps(sorted(map(repr, filters)))
        fields = {column.name: column.field for column in self._columns if column.field is not None}
        self._pushed, left = pushed(filters, fields)
        return left

    def partitions(self) -> list[InputPartition]:
        if not _is_first(f"filters-{self._load}", self._filters):
            message = "this DataFrame was loaded with pushdown, and asked with other filters before"
            raise StateError(f"{message}; Spark would mix them up", hint=_REMEDY)
        return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("spark.sql.execution.root.id")
        if not _is_first(f"query-{self._load}", str(query)):
            message = "this DataFrame was loaded with pushdown, and was asked before"
            raise StateError(f"{message}; Spark would give that answer again", hint=_REMEDY)
        yield from super().read(partition)


def plan(access: Access, tree: Expression, *, data: bool) -> list[InputPartition]:
    """Plan a question to a dataset and its archives, from one snapshot of each.

    Raises:
        NeedsCheck: an index was lost, and may not know all data; there is nobody who could be warned of that.
    """
    archives = Archives(access)
    try:
        archives.check_trusted()
        question = Question(tree)
        question.check(access.current().index)
        pieces: list[InputPartition] = []
        with Parts(access.current(), archives, question) as asked:
            for opened, snapshot, each in asked.each():
                part = part_of(opened, snapshot, each)
                pieces += pieces_of(part, snapshot, each, data=data)
        return pieces
    finally:
        archives.close()


def check_options(options: Mapping[str, str], without: Sequence[str] = ()) -> None:
    """Refuse options that there are not.

    Args:
        without: those that are not there for what is asked.
    """
    known = {name.lower(): name for name in OPTIONS if name not in without}
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        names = ", ".join(name for name in known.values() if name != "tree")
        raise InvalidInput(f"there is no option {unknown[0]!r} here", hint=f"The options are {names}.")


def tree_of(options: Mapping[str, str], config: DatasetConfig, *more: Expression) -> Expression:
    """Make one syntax tree of the options `match` and `tree`, and of others."""
    trees = [*more]
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


def _is_first(name: str, content: str) -> bool:
    """Note something for all processes of this application on this machine; tell whether nothing else was noted."""
    with Directory.open(SparkFiles.getRootDirectory()) as directory:
        place = f"ondisk-{name}"
        with contextlib.suppress(FileNotFoundError):
            return directory.read(place, _NOTED).decode() == content
        with contextlib.suppress(FileExistsError):
            directory.write_new(place, content.encode())
        return directory.read(place, _NOTED).decode() == content
