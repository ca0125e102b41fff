"""Planning: a snapshot of the index becomes partitions of about equal work, which are read without a lock.

Who reads a partition later ignores what was added since, and raises an error if something was removed since: see
`ondisk.spark.pinned_state`.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from math import ceil
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql.datasource import InputPartition

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.place_checks import check_known
from ondisk.dataset.query import Query, snapshot_of
from ondisk.errors import InvalidInput, shown
from ondisk.index import Snapshot
from ondisk.index.where import without_functions
from ondisk.matcher import Expression, reftime_interval
from ondisk.spark.pinned_state import Pinned
from ondisk.step import Interval

OPTION = "archives"
"""The option: whether data in a folder of the archive that is offline are an error, or left out.

A worker cannot warn the user that rows are missing, as a query of the library does. So the default is an error.
"""

ALL, AVAILABLE = "all", "available"

SMALL = 10_000
"""A result of up to so many rows is planned from all its rows."""

_WITHOUT = 'To read the rest without these data, use .option("archives", "available"), or archives="available".'
# Of one partition: rows of the index, and bytes of data, as in a task of Spark's own file formats. A task takes 20 ms
# before its first row, a tenth of the time to read so much.
_ROWS, _BYTES = 500_000, 128 * 1024 * 1024
_MOST = 10_000  # partitions
_SAMPLE, _LARGEST_SAMPLE = 256, 65_536
_FOR_EACH = 16  # rows of a sample for each partition of a day


class Limits(NamedTuple):
    """The most rows of the index, and bytes of data, of one partition; both are about, unless the rows are few."""

    rows: int
    bytes: int

    @classmethod
    def of(cls, rows: int | None, bytes: int | None) -> Limits:
        """Return limits; None for the default."""
        return cls(_ROWS if rows is None else rows, _BYTES if bytes is None else bytes)


Position: TypeAlias = tuple[int, int]
"""Reftime and number of a datum: a position in the order of queries."""


class _Row(NamedTuple):
    reftime: int
    seq: int
    size: int


@dataclass(frozen=True, slots=True)
class IndexState:
    """The state of an index, and the condition of the query.

    Attributes:
        pinned: the state.
        sql, values: the condition.
        segments: how many it has, and the highest id, if the condition leaves out some that are offline.
        dataset: the path that the column `dataset` shows; None without that column.
    """

    path: str
    pinned: Pinned
    sql: str
    values: Sequence[Any]
    segments: tuple[int, int] | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """The data of one index that match, between two positions in the order of queries or of appending.

    Attributes:
        sql, values: the condition that a datum is in this partition and in the plan.
        count: number of its data, if they were counted.
        estimate: else, about how many data it looks at.
        bytes: of its data, if they are read; about, unless they were counted.
    """

    state: IndexState
    sql: str
    values: Sequence[int]
    count: int | None = None
    estimate: int = 0
    bytes: int = 0

    @classmethod
    def between(
        cls, state: IndexState, begin: Position | None, end: Position | None, count: int | None = None
    ) -> Partition:
        """Return the partition from `begin` to before `end` in the order of queries; None is open."""
        # These bounds come first: of several, SQLite uses the first one for its index.
        terms: list[str] = []
        values: list[int] = []
        if begin is not None:
            terms.append("datum.reftime >= ?")
            values.append(begin[0])
            if begin[1]:
                terms.append("NOT (datum.reftime = ? AND datum.seq < ?)")
                values += begin
        if end is not None:
            terms.append("datum.reftime <= ? AND NOT (datum.reftime = ? AND datum.seq >= ?)")
            values += [end[0], *end]
        # With a plus: else SQLite scans all rows by number if the time is open on one side.
        return cls(state, " AND ".join([*terms, "+datum.seq <= ?"]), [*values, state.pinned.last], count)

    def condition(self) -> tuple[str, list[Any]]:
        """Return the condition for its rows, with those of the query."""
        return f"{self.sql} AND {self.state.sql}", [*self.values, *self.state.values]


@dataclass(frozen=True)
class Joined(InputPartition):  # type: ignore[misc]
    """Partitions that one task reads: a large one, or some of several datasets."""

    partitions: tuple[Partition, ...]


def joined(partitions: Sequence[Partition], limits: Limits) -> list[Joined]:
    """Join neighbouring partitions whose rows were counted, while they are within the limits of one: most are small."""
    runs: list[list[Partition]] = []
    rows = size = 0
    for each in partitions:
        rows, size = rows + (each.count or 0), size + each.bytes
        is_small = each.count is not None and rows <= limits.rows and size <= limits.bytes
        if runs and is_small and runs[-1][-1].count is not None:
            runs[-1].append(each)
        else:
            runs.append([each])
            rows, size = each.count or 0, each.bytes
    return [Joined(tuple(run)) for run in runs]


@contextlib.contextmanager
def reading(access: Access, query: Query, *, data: bool) -> Iterator[tuple[Snapshot, Expression]]:
    """Yield a snapshot to plan from, and the syntax tree of the condition.

    Raises:
        NeedsCheck: the index was lost and may not know all data; a worker cannot warn the user.
        SegmentMissing: data that may match are away, and are read; or the index does not know them, since it was lost.
    """
    access.check_trusted()
    opened = access.current()
    query.check(opened.index)
    with snapshot_of(opened, query, with_data=data) as (_, snapshot, tree):
        if not data:  # the command warns of these, which a worker cannot
            check_known(snapshot, reftime_interval(tree), complete=query.complete)
        yield snapshot, tree


def index_state(opened: Opened, snapshot: Snapshot, tree: Expression, pinned: Pinned | None = None) -> IndexState:
    """Return the state of the index in a snapshot, or an earlier one, with the condition as SQL for that index."""
    now = Pinned.of(opened, snapshot)
    pinned = pinned or now
    where = snapshot.where(without_functions(tree, snapshot.columns, snapshot.connection))
    is_all = pinned.seq == pinned.last == now.last  # then partitions leave out what is newer, by its number
    sql = where.sql if is_all else f"{pinned.has('datum.seq')} AND ({where.sql})"
    segments = (snapshot.segments(), snapshot.dataset()["generation"]) if snapshot.left_out else None
    return IndexState(str(opened.index.directory.path), pinned, sql, list(where.values), segments)


def partitions_of(
    state: IndexState,
    snapshot: Snapshot,
    tree: Expression,
    *,
    data: bool,
    limits: Limits | None = None,
    limit: int | None = None,
    is_open: bool = False,
) -> list[Partition]:
    """Return partitions with all that matches.

    Args:
        data: the data are read, too, so their bytes count.
        limit: how many rows suffice; None: all are needed.
        is_open: rows that the snapshot does not have are in a partition, too, wherever they are in the order.

    Cost: looks for up to `SMALL` rows that match, and reads the sums of all days, and a sample of the rows of data.
        Without an index for the condition, it looks at all rows in the requested time.
    """
    limits = limits or Limits.of(None, None)
    sql = f"SELECT datum.reftime, datum.seq, datum.size FROM datum WHERE {state.sql} LIMIT ?"
    if limit is not None and limit <= min(SMALL, limits.rows):
        some = [*map(_Row._make, snapshot.connection.execute(sql, [*state.values, limit]))]
        size = sum(row.size for row in some) if data else 0
        if len(some) == limit and size <= limits.bytes:
            return [replace(Partition.between(state, None, None, limit), bytes=size)]
    if not is_open:
        found = snapshot.connection.execute(sql, [*state.values, SMALL + 1]).fetchall()
        if len(found) <= SMALL:
            return [*_counted(state, sorted(map(_Row._make, found)), limits, data=data)]
    days = _Days(snapshot, state, reftime_interval(tree), limits, data=data)
    if _is_scan(state, snapshot):  # then reading the table in its own order is fastest
        bounds = pairwise([0, *days.numbers(), state.pinned.last])
        sql = "datum.seq > ? AND datum.seq <= ?"
        partitions = [Partition(state, sql, [first, last]) for first, last in bounds]
    else:
        positions: list[Position | None] = [None, *days.positions(), None]
        partitions = [Partition.between(state, begin, end) for begin, end in pairwise(positions)]
    number, length = len(partitions), days.bytes if data else 0
    return [replace(each, estimate=days.rows // number, bytes=length // number) for each in partitions]


def size_of(partitions: Sequence[Partition], tasks: int | None = None) -> str:
    """Return the number of partitions, or of tasks, and of their rows, in words."""
    counts = [each.count for each in partitions if each.count is not None]
    number = len(partitions) if tasks is None else tasks
    pieces = f"{number} partition{'s' * (number != 1)}"
    if len(counts) == len(partitions):
        return f"{pieces}, {sum(counts)} rows (counted)"
    rows = sum(counts) + sum(each.estimate for each in partitions)
    return f"{pieces}, up to about {rows} rows (estimated)"


def _is_scan(state: IndexState, snapshot: Snapshot) -> bool:
    """Return whether SQLite scans the whole table for the condition."""
    sql = f"EXPLAIN QUERY PLAN SELECT datum.size FROM datum WHERE {state.sql}"
    return any(str(row[3]).startswith("SCAN datum") for row in snapshot.connection.execute(sql, state.values))


def _counted(state: IndexState, found: list[_Row], limits: Limits, *, data: bool) -> Iterator[Partition]:
    """Yield partitions of a small result, each with the rows and bytes of one partition."""
    before = accumulate((row.size if data else 0 for row in found), initial=0)
    places = ((number // limits.rows, size // limits.bytes) for number, size in enumerate(before))
    runs = [[row for row, _ in run] for _, run in groupby(zip(found, places, strict=False), lambda each: each[1])]
    starts: list[Position | None] = [run[0][:2] for run in runs]
    for run, (begin, end) in zip(runs, pairwise([*starts, None]), strict=True):
        size = sum(row.size for row in run) if data else 0
        yield replace(Partition.between(state, begin, end, len(run)), bytes=size)


def evenly(weights: Sequence[float], parts: int) -> list[int]:
    """Return the places of those elements, but the last one, after which parts of about equal weight end."""
    sums = [*accumulate(weights)]
    places = {bisect_left(sums, sums[-1] * number / parts) for number in range(1, parts)} if sums else set[int]()
    return sorted(place for place in places if place + 1 < len(weights))


class _Days:
    """The bounds of partitions of about equal work, from the sums of segments and days.

    Attributes:
        rows, bytes: about how many data there are in the requested time, and their bytes.
    """

    def __init__(
        self, snapshot: Snapshot, state: IndexState, interval: Interval, limits: Limits, *, data: bool
    ) -> None:
        self._snapshot = snapshot
        self._state = state
        self._interval = interval
        self._data = data
        self._limits = limits
        self._all: list[tuple[int, int, float]] = []  # first and last reftime, and the work, in partitions
        rows = length = 0.0
        sql = "SELECT first, last, count, size FROM day_sum ORDER BY first"
        for first, last, count, size in snapshot.connection.execute(sql):
            requested = interval & Interval(first, last + 1)
            if not requested.is_empty:
                share = (requested.end - requested.begin) / (last + 1 - first)
                rows, length = rows + share * count, length + share * size
                self._all.append((first, last, share * self._work(count, size)))
        self.rows, self.bytes = round(rows), round(length)
        whole = sum(work for _, _, work in self._all)
        self._most = max(1.0, whole / _MOST)  # the work of a partition
        self._parts = round(whole / self._most)

    def _work(self, count: int, size: int) -> float:
        return count / self._limits.rows + size * self._data / self._limits.bytes

    def positions(self) -> list[Position]:
        """Return the bounds between partitions, in order; the days of several segments may overlap."""
        return sorted({*self._positions()})

    def _positions(self) -> Iterator[Position]:
        filled = 0.0
        for first, last, work in self._all:
            size = work / self._most
            if filled > 0 and filled + size > 1:
                yield first, 0
                filled = 0.0
            if size <= 1.5:
                filled += size
                continue
            parts = ceil(size)
            yield from self._inside(first, last, parts)
            filled = size / parts

    def numbers(self) -> list[int]:
        """Return the numbers of data after which partitions end, in order."""
        sample = self._sample(min(_FOR_EACH * self._parts, _LARGEST_SAMPLE)) if self._parts > 1 else []
        return [sample[at].seq for at in evenly([self._work(1, row.size) for row in sample], self._parts)]

    def _inside(self, first: int, last: int, parts: int) -> list[Position]:
        """Return bounds between two reftimes, for parts with about equal numbers of data."""
        requested = self._interval & Interval(first, last + 1)
        size = _SAMPLE
        while True:
            rows = sorted(row[:2] for row in self._sample(size) if row.reftime in requested)
            if len(rows) >= _FOR_EACH * parts or size >= _LARGEST_SAMPLE:
                break
            size *= 4
        return [rows[at] for at in evenly([1.0] * len(rows), parts)]

    def _sample(self, size: int) -> list[_Row]:
        """Return about so many rows of the index, at equal distances in the order of appending."""
        step = max(1, self._state.pinned.seq // size)
        sql = "SELECT datum.reftime, datum.seq, datum.size FROM json_each(?) JOIN datum ON datum.seq = json_each.value"
        seqs = json.dumps([*range(1, self._state.pinned.seq + 1, step)])
        return [*map(_Row._make, self._snapshot.connection.execute(sql, (seqs,)))]


def choice(options: Mapping[str, str]) -> str:
    """Return the value of the option `archives`, or its default."""
    text = str(options.get(OPTION, ALL))
    if text.lower() not in (ALL, AVAILABLE):
        raise InvalidInput(f"archives must be {ALL} or {AVAILABLE}, not {shown(text)}", hint=_WITHOUT)
    return text.lower()
