"""Writing DataFrames and streams: tasks stage their rows, and one commit stores them all; see `ondisk.staging.stage`.

Each attempt of a task stages under its own name; the commit stores what Spark reports as done. The commit of a batch of
a stream also stores a mark with the query and the batch, so that a batch that was committed before is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    FloatType,
    IntegerType,
    NullType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimeType,
)

from ondisk.config import DatasetConfig
from ondisk.dataset.append import AppendResult, refuse_old
from ondisk.dataset.auxiliary_files import check_takes_data, open_directory, read_config
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.expression import expression
from ondisk.datum import CONTENT, FieldType, restored
from ondisk.errors import DatasetNotFound, InvalidInput, counted, shown
from ondisk.formats import Batch, Format, find
from ondisk.formats.base import BATCH_BYTES, BATCH_SIZE
from ondisk.index.import_log import Mark
from ondisk.index.transaction import Transaction
from ondisk.index.where import check_declared
from ondisk.matcher import And, Compare, Everything, Expression, Values, matches
from ondisk.spark.columns import arrow_type, resolved, spark_type
from ondisk.spark.java_connector import OPTION as CONNECTOR
from ondisk.spark.java_connector import Pushed
from ondisk.spark.report import LOGGER, WriteReport, print_lines
from ondisk.spark.source import check_options, flag, path_of, spare_collections
from ondisk.staging.jobs import remove
from ondisk.staging.stage import FinishedStage, Stage
from ondisk.table_options import REFTIME, TableOptions
from ondisk.tables.arrow_input import TableToData
from ondisk.tables.columns import DATA, PLACE
from ondisk.tables.index_to_arrow import Column, all_columns

OPTIONS = ("path", "on_duplicate")
CHECKED = "constraintCheck"
_ON_DUPLICATE = ("skip", "fail")
_WIDENED = {pa.int64(): (ByteType, ShortType, IntegerType), pa.float64(): (FloatType,)}
_TEXTS = (DateType, TimestampNTZType, TimeType)  # what these become in a content
_HINT = (
    "Filter the rows, or widen the match."
    f' With .option("{CHECKED}", "false") such rows are stored, too, beside what is there.'
)
_CAST = "Cast {name} to another type, such as string."
_CORRECT = "Remove or correct such rows before writing; nothing was stored."


@dataclass(frozen=True)
class _Message(WriterCommitMessage):  # type: ignore[misc]
    """What a task has staged."""

    job: str
    query: str | None  # the id of the streaming query; None for a DataFrame
    staged: FinishedStage | None  # None if the task had no rows


class _Stager:
    """Stages rows. Created on the driver's machine; tasks write wherever Spark runs them."""

    def __init__(self, options: Mapping[str, str], schema: StructType, known: Sequence[str]) -> None:
        check_options(options, known)
        self._path = path = path_of(options)
        self._on_duplicate: Any = options.get("on_duplicate", "skip").lower()
        if self._on_duplicate not in _ON_DUPLICATE:
            raise InvalidInput(f"the option on_duplicate must be skip or fail, not {self._on_duplicate!r}")
        with open_directory(path) as directory:
            self._config = read_config(directory)
        check_takes_data(path, self._config)  # before the tasks
        self._rows = _Rows(self._config, schema)
        self._constraint: Constraint | None = None
        self._job = uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        spare_collections()
        context = TaskContext.get()
        assert context is not None
        message = _Message(self._job, context.getLocalProperty("sql.streaming.queryId"), None)
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None:
            return message
        format = find(self._config.format)(self._config)
        with _directory_of(self._path) as directory, Stage(directory, self._config, self._job, _name(context)) as stage:
            whole, size = Batch(), 0
            for rows in chain([first], iterator):
                batch = self._rows.encode(rows, format)
                self._check(batch)
                whole.extend(batch)
                size += sum(map(len, batch.payloads))
                if len(whole) >= BATCH_SIZE or size >= BATCH_BYTES:
                    stage.add(whole, format)
                    whole, size = Batch(), 0
            stage.add(whole, format)
            return replace(message, staged=stage.finish())

    def _store(
        self,
        job: str,
        staged: Sequence[FinishedStage],
        *,
        overwrite: Expression | None = None,
        query: str | None = None,
        batch: int | None = None,
    ) -> None:
        """Store all that the tasks have staged, and report what was done."""
        print_lines()
        reports: list[WriteReport] = []

        def record(transaction: Transaction, result: AppendResult) -> None:
            reports.append(WriteReport.of(result, query, batch))
            reports[0].save(transaction)

        with Dataset.open(self._path) as dataset:
            dataset.append_staged(job, staged, on_duplicate=self._on_duplicate, overwrite=overwrite, record=record)
        for report in reports:
            report.log(self._path)
        if not reports:
            LOGGER.info("%s: batch %s of query %s was stored before and is skipped", self._path, batch, query)

    def _check(self, batch: Batch) -> None:
        """Raise unless all rows of a batch can be stored: Spark cannot report skipped rows."""
        refuse_old(batch, self._config)
        if batch.refused:
            message = f"{counted(len(batch.refused), 'row')} cannot be stored, the first: {batch.refused[0][1]}"
            raise InvalidInput(message, hint=_CORRECT)
        if self._constraint is not None:
            self._constraint.check(batch)


class Writer(_Stager, DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one DataFrame."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, (*OPTIONS, "match", CHECKED, CONNECTOR))
        match = options.get("match")
        pushed = Pushed.of(options)
        if overwrite and match is None and not pushed.is_present:
            hint = 'Use .option("match", "reftime: =2026-11-20"), for example; "" matches everything.'
            raise InvalidInput("the mode overwrite needs the option match, which selects what to replace", hint=hint)
        for name in ("match", CHECKED):
            if not overwrite and name in options:
                raise InvalidInput(f"the option {name} is for the mode overwrite only", hint="Remove it to append.")
        # Parsed once: `now` is the same in all tasks and in the commit.
        self._replaced: Expression | None = None
        if pushed.is_present:  # of a table in a catalog
            self._replaced = pushed.tree(Everything(), self._config)
        elif match is not None:
            self._replaced = expression(match, self._config, self._path)
        if self._replaced is not None:
            check_declared(self._replaced)
        if self._replaced is not None and flag(options, CHECKED, default="true"):
            text = "the condition" if match is None else shown(match)
            self._constraint = Constraint(self._replaced, text, self._config)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Store all that the tasks have staged."""
        staged = [each.staged for each in messages if isinstance(each, _Message) and each.staged is not None]
        self._store(self._job, staged, overwrite=self._replaced)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove all that the tasks have staged."""
        with open_directory(self._path) as directory:
            remove(directory, self._job)


class StreamWriter(_Stager, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the batches of one query. Spark creates another one to commit: the messages tell what was staged."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, (*OPTIONS, "checkpointLocation", "queryName"))
        if overwrite:
            hint = 'Use outputMode("append").'
            raise InvalidInput("the output mode complete would replace what was written before", hint=hint)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Store a batch, unless it was stored before; a batch without rows needs no mark."""
        job, query, staged = "", None, []
        for each in messages:
            if isinstance(each, _Message) and each.staged is not None:
                assert each.query is not None, "Spark passes the id of the query to its tasks"
                job, query = each.job, each.query
                staged.append(replace(each.staged, mark=Mark(f"query {query}", batchId)))
        if staged:
            self._store(job, staged, query=query, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove all that the tasks have staged."""
        with open_directory(self._path) as directory:
            for job in {each.job for each in messages if isinstance(each, _Message)}:
                remove(directory, job)


def _name(context: TaskContext) -> str:
    return f"{context.partitionId()}-{context.taskAttemptId()}"


def _directory_of(path: str) -> Any:
    try:
        return open_directory(path)
    except DatasetNotFound as error:
        hint = "Mount the dataset at the same path on all machines."
        raise DatasetNotFound(f"{error.message} on a machine where a task of Spark runs", hint=hint) from None


class _Rows:
    """Turns rows of Spark into data, as rows of a table of Arrow.

    Only the names of declared columns may have any case, and their types must be exact. Rows of a load may have the
    location of each datum, beside its `data`: that of the new one is another.

    Raises:
        InvalidInput: a column cannot be stored, or has another type; or a required column is missing.
    """

    def __init__(self, config: DatasetConfig, schema: StructType) -> None:
        known = {name: each for name, each in all_columns(config).items() if name not in PLACE}
        columns: list[tuple[str, pa.DataType]] = []
        self._positions: list[int] = []
        is_load = {*PLACE, DATA} <= {*schema.names}
        for position, field in enumerate(schema.fields):
            name = resolved(field.name, known) or field.name
            if name in known:
                _check_type(known[name], field.dataType)
            elif is_load and name in PLACE:
                continue
            elif name.lower() in PLACE:  # the content would contain where the datum was stored before
                hint = f"Drop it, or rename it: the columns are {', '.join([*known, DATA])} and {CONTENT}KEY."
                raise InvalidInput(f"the dataset has no column {name!r} that can be written", hint=hint)
            columns.append((name, _type_of(field)))
            self._positions.append(position)
        self._names = [name for name, _ in columns]
        if REFTIME not in self._names:
            raise InvalidInput(f"the column {REFTIME} is missing", hint="Every datum needs it.")
        self._table = TableToData(pa.schema(columns), config, find(config.format)(config), TableOptions())

    def encode(self, rows: pa.RecordBatch, format: Format) -> Batch:
        """Return rows as data of a format."""
        return self._table.read(rows.select(self._positions).rename_columns(self._names), format).encode()


def _type_of(field: StructField) -> pa.DataType:
    if isinstance(field.dataType, _TEXTS):
        return to_arrow_type(field.dataType)
    return arrow_type(field.dataType, field.name, _CAST)


def _check_type(column: Column, given: DataType) -> None:
    if spark_type(column) == given or isinstance(given, (*_WIDENED.get(column.kind, ()), NullType)):
        return
    wanted = spark_type(column).simpleString()
    hint = f"Cast it: col({column.name!r}).cast({wanted!r})."
    raise InvalidInput(f"the column {column.name} is {wanted}, not {given.simpleString()}", hint=hint)


class Constraint:
    """Checks, in each task, that the rows of an overwrite match what it replaces, as Delta's `replaceWhere` does."""

    def __init__(self, tree: Expression, match: str, config: DatasetConfig) -> None:
        self._tree, self._match = tree, match
        self._fields = config.fields
        children = tree.children if isinstance(tree, And) else (tree,)
        # The times that match a comparison are an interval: if the first and the last time match, all do.
        self._times = And(tuple(each for each in children if isinstance(each, Compare) and each.field == "reftime"))
        self._rest = And(tuple(each for each in children if each not in (*self._times.children, Everything())))

    def check(self, batch: Batch) -> None:
        """Raise unless all data of a batch match.

        Cost: one evaluation for each metadata mapping that data share; one for each datum if times of day matter.
        """
        if not batch.reftimes:
            return
        ends = (min(batch.reftimes), max(batch.reftimes))
        are_inside = all(matches(self._times, {"reftime": time}.get) for time in ends)
        tree = self._rest if are_inside else self._tree
        if tree == And(()):
            return
        known: set[int] = set()
        for reftime, metadata in zip(batch.reftimes, batch.metadata, strict=True):
            if id(metadata) not in known:
                values = Values(reftime, metadata)
                if not matches(tree, values):
                    self._refuse(reftime, metadata)
                if not values.reftime_read:
                    known.add(id(metadata))

    def _refuse(self, reftime: int, metadata: Mapping[str, Any]) -> NoReturn:
        kinds = {"reftime": FieldType.TIMESTAMP, **self._fields}
        values = {"reftime": reftime, **metadata}
        row = ", ".join(f"{name} {_text(restored(values[name], kinds[name]))}" for name in kinds if name in values)
        message = f"the row with {row} does not match {self._match}, which the write overwrites"
        raise InvalidInput(f"{message}; nothing was stored", hint=_HINT)


def _text(value: Any) -> str:
    return shown(value) if isinstance(value, str | bytes) else str(value)
