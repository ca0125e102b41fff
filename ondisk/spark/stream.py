"""Streams: `spark.readStream.format("ondisk").load(path)` yields the data that are appended, in the order of changes.

The position of a stream is an offset, which Spark keeps in its checkpoint as JSON:

    {"dataset": UUID, "seq": NUMBER, "match": TEXT}

The stream has yielded all data that match with numbers up to `seq`; with another match, it would have passed others.
(An offset without a match, of an older version, fits any.) A datum keeps its number until it is deleted, also in
another segment, and new data get higher numbers. So a stream yields data that are rewritten or moved only once.
A rebuilt index has another UUID, and its own numbers.

A batch is divided into ranges of numbers, the stretches. The data of a stretch are looked up when it is read: a segment
that was rewritten or moved after planning makes no difference, and data that were deleted since are skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ondisk.dataset.access import Opened
from ondisk.dataset.expression import expression
from ondisk.dataset.place_checks import check_data
from ondisk.dataset.query import Query, snapshot_of
from ondisk.errors import InvalidInput, MatchError, TokenExpired, shown
from ondisk.index import Snapshot, changes
from ondisk.matcher import Expression
from ondisk.spark.adbc import connect
from ondisk.spark.plan import ALL, IndexState, Limits, Partition, choice, evenly, index_state
from ondisk.spark.read import opened, read
from ondisk.spark.report import LOGGER, print_lines
from ondisk.spark.source import STREAM_OPTIONS, check_options, limits_of, number, path_of, read_columns, tree_of
from ondisk.tables.columns import DATA
from ondisk.tables.index_to_arrow import Column

_ROWS, _BYTES = 250_000, 32 * 1024 * 1024  # of a stretch
_SAMPLE = 16_384  # numbers that are looked up to divide a batch
_REMEDY = "Start the query with a new checkpoint: then it reads all data, also those that it has read before."

Offset: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Stretch(InputPartition):  # type: ignore[misc]
    """The data of a batch with numbers above `first`, up to `last`.

    Attributes:
        end: the offset at which the batch ends.
        tree: the condition for the data.
    """

    first: int
    last: int
    end: Offset
    tree: Expression


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches in one process on the driver's machine, which lives as long as the query; any worker reads them.

    Raises, in every method:
        TokenExpired: the offset belongs to another order of changes.
        InvalidInput: the offset belongs to a stream with another match.
        NeedsCheck: the index was lost and may not know all data.
        SegmentMissing: data of the batch are away, and are read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        check_options(options, STREAM_OPTIONS)
        self._path = path_of(options)
        self._limit = number(options, "maxDataPerTrigger", "data")
        rows, size = limits_of(options)
        self._limits = Limits(rows or _ROWS, size or _BYTES)
        self._target: int | None = None
        self._latest: Offset | None = None
        with opened(self._path, connect) as access:
            config = access.current().index.config
        self._columns: list[Column] = read_columns(options, schema, config)
        self._has_data = any(column.name == DATA for column in self._columns)
        self._tree = tree_of(options, config, self._path)
        self._match = options.get("tree", options.get("match", ""))
        self._config = config
        self._choice = choice(options)

    def initialOffset(self) -> Offset:  # noqa: N802
        with self._present() as (_, snapshot, state):
            return self._offset(snapshot, state, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._present() as (_, _, state):
            self._target = state.pinned.seq

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the offset at which the next batch ends.

        Cost: reads the index's rows of the data in the batch, and of those before and between them that do not match.
        """
        first = start["seq"]
        with self._present() as (_, snapshot, state):
            self._check(snapshot, state, start)
            last = state.pinned.seq
            self._latest = self._offset(snapshot, state, last)
            if self._target is not None:
                last = min(last, self._target)
            if isinstance(limit, ReadMaxRows):
                last = limited(state, snapshot, first, last, limit.max_rows)
            # The same position in another text would make a batch without data.
            return start if last <= first else self._offset(snapshot, state, last)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the last offset at the time of the last batch; the progress of a query shows it."""
        return self._latest

    def partitions(self, start: Offset, end: Offset) -> list[Stretch]:
        """Return the stretches of a batch.

        Cost: reads up to 16,384 rows of the index, at equal distances.
        """
        with self._present() as (_, snapshot, state):
            self._check(snapshot, state, end)
            bounds, rows = cuts(state, snapshot, start["seq"], end["seq"], self._limits, data=self._has_data)
        stretches = [Stretch(first, last, end, self._tree) for first, last in pairwise(bounds)]
        print_lines()
        changes, match = f"{start['seq'] + 1} to {end['seq']}", shown(self._match)
        pieces = f"{len(stretches)} partition{'s' * (len(stretches) != 1)}"
        LOGGER.info("%s: planned a batch of changes %s, match %s: %s, %s", self._path, changes, match, pieces, rows)
        return stretches

    def read(self, partition: Stretch) -> Iterator[pa.RecordBatch]:
        with self._present(partition.tree) as (current, snapshot, state):
            self._check(snapshot, state, partition.end)
            bounds = [partition.first, partition.last]
            if self._has_data:
                condition, values = f"{changes.BETWEEN} AND {state.sql}", [*bounds, *state.values]
                if places := check_data(snapshot, condition, values, complete=self._choice == ALL):
                    snapshot.leave_out(places)
                    state = stream_state(current, snapshot, partition.tree)
            yield from read(Partition(state, changes.BETWEEN, bounds), current, snapshot, self._columns)

    @contextlib.contextmanager
    def _present(self, tree: Expression | None = None) -> Iterator[tuple[Opened, Snapshot, IndexState]]:
        """Yield the dataset as it is now, during a block; `tree` replaces the condition of this reader."""
        with opened(self._path, connect) as access:
            access.check_trusted()
            current, query = access.current(), Query(self._tree if tree is None else tree)
            query.check(current.index)
            with snapshot_of(current, query, with_data=False) as (_, snapshot, resolved):
                yield current, snapshot, stream_state(current, snapshot, resolved)

    def _offset(self, snapshot: Snapshot, state: IndexState, seq: int) -> Offset:
        made = {"session": changes.session_at(snapshot, seq)} if seq else {}
        return {"dataset": state.pinned.uuid, "seq": seq, "match": self._match, **made}

    def _check(self, snapshot: Snapshot, state: IndexState, offset: Offset) -> None:
        """Raise if an offset belongs to another order of changes, or to a stream with another match."""
        now, why, session = state.pinned, "", changes.session_at(snapshot, offset["seq"])
        if offset["dataset"] != now.uuid:
            why = "its index was rebuilt, or this is another dataset"
        elif offset["seq"] > now.seq:
            last = f"its last change is {now.seq}, and the stream has read up to {offset['seq']}"
            why = f"an earlier state was restored: {last}"
        elif offset.get("session", session) != session:
            why = f"an earlier state was restored, and has another change {offset['seq']} now"
        if why:
            raise TokenExpired(f"the stream of {self._path} cannot continue: {why}", hint=_REMEDY, path=self._path)
        match = offset.get("match", self._match)
        if match != self._match and not self._is_same(match):
            message = f"the stream of {self._path} cannot continue: its checkpoint is that of a stream with the match"
            message += f" {shown(match)}, not {shown(self._match)}"
            raise InvalidInput(message, hint=f"Use the match of the checkpoint. Or: {_REMEDY}")

    def _is_same(self, match: str) -> bool:
        """Return whether another text has the meaning of the stream's match expression."""
        try:
            return expression(match, self._config, self._path) == self._tree
        except MatchError:  # the field no longer exists, for example
            return False


def stream_state(opened: Opened, snapshot: Snapshot, tree: Expression) -> IndexState:
    """Return the state of the index. With a plus, SQLite uses no index of fields: a batch has few numbers."""
    state = index_state(opened, snapshot, tree)
    return replace(state, sql=f"+({state.sql})")


def limited(state: IndexState, snapshot: Snapshot, first: int, last: int, count: int) -> int:
    """Return the number, up to `last`, with which so many data after `first` are complete."""
    sql = f"SELECT datum.seq FROM datum WHERE {changes.BETWEEN} AND {state.sql} ORDER BY datum.seq LIMIT ?"
    found = snapshot.connection.execute(sql, [first, last, *state.values, count]).fetchall()
    return last if len(found) < count else int(found[-1][0])


def cuts(
    state: IndexState, snapshot: Snapshot, first: int, last: int, limits: Limits, *, data: bool
) -> tuple[list[int], str]:
    """Return the bounds of stretches of about equal work, empty if there are no data; and the number of rows."""
    step, sample = changes.sample(snapshot, state.sql, state.values, first, last, _SAMPLE)
    rows = f"{len(sample)} rows (counted)" if step == 1 else f"about {step * len(sample)} rows (estimated)"
    if step == 1 and not sample:
        return [], rows
    sample.sort()
    weights = [step * (size * data / limits.bytes + 1 / limits.rows) for _, size in sample]
    return [first, *(sample[at][0] for at in evenly(weights, ceil(sum(weights)))), last], rows
