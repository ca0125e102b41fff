"""Planning: one snapshot of the index becomes pieces of about equal work, which need no lock to be read.

A plan names the state it was made from, by the counters of the index; who reads a partition later leaves out what came
since, and refuses where something has gone since:

    seq          no number of a datum or a deletion was higher
    generation   no segment's id was higher

Data and segments get new numbers with every change, and rows never move from one segment's id to an older one. So the
rows of the plan are those with numbers up to these, if none was deleted and no segment of the partition was replaced.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import ceil
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql.datasource import InputPartition

from ondisk.dataset.access import Opened
from ondisk.errors import StateError
from ondisk.formats import find
from ondisk.index import Snapshot
from ondisk.index.where import without_functions
from ondisk.matcher import Expression, reftime_interval
from ondisk.step import Interval

SMALL = 10_000
"""Rows of an answer that are all looked at when it is planned."""

# Of one partition: rows of the index, and bytes of data, as many as Spark gives a task of its own file formats. A task
# takes 20 ms before its first row, which is a tenth of reading so much.
_ROWS, _BYTES = 500_000, 128 * 1024 * 1024
_MOST = 10_000  # pieces
_SAMPLE, _LARGEST_SAMPLE = 256, 65_536
_FOR_EACH = 16  # rows of a sample, for each partition that a segment is cut into

Position: TypeAlias = tuple[int, int]
"""Reftime and number of a datum: a place in the order of queries."""


class _Row(NamedTuple):
    reftime: int
    seq: int
    segment: int
    size: int


@dataclass(frozen=True, slots=True)
class IndexState:
    """A state of one index, that of the dataset or of one of its archives, and what is asked of it.

    Attributes:
        prefix: what the names of its segments begin with in answers.
        uuid, inode: of the index; another one has taken its place where one of them differs.
        seq, generation: its counters.
        segments: how many there are.
        sql, values: the condition.
    """

    path: str
    prefix: str
    uuid: str
    inode: int | None
    seq: int
    generation: int
    segments: int
    sql: str
    values: Sequence[Any]


class Partition(InputPartition):  # type: ignore[misc]
    """Data of a part that match: those between two places in the order of queries, or of appending.

    Attributes:
        sql, values: the condition that they are in this partition, and were there when it was planned.
        segments: their ids, of those that reach into it; None for all that there were.
        count: the data in it, where they were counted.
    """

    def __init__(
        self, state: IndexState, sql: str, values: Sequence[int], segments: tuple[int, ...] | None, count: int | None
    ) -> None:
        self.state = state
        self.sql = sql
        self.values = values
        self.segments = segments
        self.count = count

    @classmethod
    def between(
        cls,
        state: IndexState,
        begin: Position | None,
        end: Position | None,
        segments: tuple[int, ...],
        count: int | None,
    ) -> Partition:
        """Make the partition from one place in the order of queries to before another; None where it is open."""
        # These bounds first: SQLite takes the first of several for its index.
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
        # With a plus: else SQLite goes through all rows by their numbers where the time is open on one side.
        return cls(state, " AND ".join([*terms, "+datum.seq <= ?"]), [*values, state.seq], segments, count)


def index_state(opened: Opened, snapshot: Snapshot, tree: Expression) -> IndexState:
    """Describe the state that a snapshot is of, and the condition, which is resolved in it."""
    directory, known = opened.index.directory, snapshot.dataset()
    where = snapshot.where(without_functions(tree, snapshot.columns, snapshot.connection))
    return IndexState(
        str(directory.path),
        opened.reader.prefix,
        str(known["uuid"]),
        opened.index.inode,
        known["seq"],
        known["generation"],
        snapshot.segments(),
        where.sql,
        list(where.values),
    )


def partitions_of(state: IndexState, snapshot: Snapshot, tree: Expression, *, data: bool) -> list[Partition]:
    """Cut what matches into pieces.

    Args:
        data: the data are read, too, so their bytes count.

    Cost: looks for up to `SMALL` rows that match, at all segments, and at some rows of those that are cut. Where no
        index helps, rows are looked for in all of the asked time.
    """
    sql = f"SELECT datum.reftime, datum.seq, datum.segment, datum.size FROM datum WHERE {state.sql} LIMIT {SMALL + 1}"
    found = snapshot.connection.execute(sql, state.values).fetchall()
    if len(found) <= SMALL:
        return [*_counted(state, sorted(map(_Row._make, found)), data=data)]
    segments = _Segments(snapshot, state, reftime_interval(tree), data=data)
    if _is_scan(state, snapshot):  # then the table itself, in its own order, is read fastest
        bounds = pairwise([0, *segments.numbers(), state.seq])
        sql = "datum.seq > ? AND datum.seq <= ?"
        return [Partition(state, sql, [first, last], None, None) for first, last in bounds]
    positions: list[Position | None] = [None, *segments.positions(), None]
    return [
        Partition.between(state, begin, end, segments.between(begin, end), None) for begin, end in pairwise(positions)
    ]


def _is_scan(state: IndexState, snapshot: Snapshot) -> bool:
    """Tell whether SQLite looks at all rows to find what matches."""
    sql = f"EXPLAIN QUERY PLAN SELECT datum.size FROM datum WHERE {state.sql}"
    return any(str(row[3]).startswith("SCAN datum") for row in snapshot.connection.execute(sql, state.values))


def _counted(state: IndexState, found: list[_Row], *, data: bool) -> Iterator[Partition]:
    """Cut few rows, all of which are known, where their bytes are enough for a partition."""
    runs: list[list[_Row]] = []
    size = _BYTES
    for row in found:
        if size >= _BYTES:
            runs.append([])
            size = 0
        runs[-1].append(row)
        size += row.size if data else 0
    starts: list[Position | None] = [run[0][:2] for run in runs]
    for run, (begin, end) in zip(runs, pairwise([*starts, None]), strict=True):
        yield Partition.between(state, begin, end, tuple(sorted({row.segment for row in run})), len(run))


class _Segments:
    """The segments that can hold what matches, and where to cut so that each partition is about as much work."""

    def __init__(self, snapshot: Snapshot, state: IndexState, interval: Interval, *, data: bool) -> None:
        self._snapshot = snapshot
        self._state = state
        self._interval = interval
        self._data = data
        sample = self._sample(_SAMPLE)
        mean = max(1.0, sum(row.size for row in sample) / max(1, len(sample)))
        sql = 'SELECT "begin", "end", id, length, format FROM segment ORDER BY "begin", id'
        self._all: list[tuple[int, int, int, float]] = [
            (begin, end, id_, length * mean if find(format).is_dir else length)  # of a folder, its files are counted
            for begin, end, id_, length, format in snapshot.connection.execute(sql)
            if not (interval & Interval(begin, end)).is_empty
        ]
        self._unit = 1 / (1 / (_ROWS * mean) + data / _BYTES)  # bytes that are one partition
        self._unit = max(self._unit, sum(map(self._bytes, self._all)) / _MOST)

    def positions(self) -> Iterator[Position]:
        """Give where to cut, in order."""
        filled = 0.0
        for begin, group in groupby(self._all, lambda each: each[0]):
            segments = [*group]
            size = sum(map(self._bytes, segments)) / self._unit
            if filled > 0 and filled + size > 1:
                yield begin, 0
                filled = 0.0
            if size <= 1.5:
                filled += size
                continue
            parts = ceil(size)
            yield from self._inside(begin, max(segment[1] for segment in segments), parts)
            filled = size / parts

    def numbers(self) -> Iterator[int]:
        """Give the numbers of data behind which to cut, in order."""
        parts = round(sum(map(self._bytes, self._all)) / self._unit)
        sample = self._sample(min(_FOR_EACH * parts, _LARGEST_SAMPLE)) if parts > 1 else []
        weights = [*accumulate(row.size * self._data / _BYTES + 1 / _ROWS for row in sample)]
        last = 0
        for number in range(1, parts):
            if not sample:
                return
            at = sample[bisect_left(weights, weights[-1] * number / parts)].seq
            if at > last:
                yield at
                last = at

    def between(self, begin: Position | None, end: Position | None) -> tuple[int, ...]:
        """Give the ids of the segments that reach into a partition."""
        return tuple(
            id_
            for first, last, id_, _ in self._all
            if (end is None or first <= end[0]) and (begin is None or last > begin[0])
        )

    def _bytes(self, segment: tuple[int, int, int, float]) -> float:
        """Estimate how many bytes of a segment are asked for."""
        begin, end, _, length = segment
        requested = self._interval & Interval(begin, end)
        return length * (requested.end - requested.begin) / (end - begin)

    def _inside(self, begin: int, end: int, parts: int) -> Iterator[Position]:
        """Cut segments into parts of about equal numbers of data."""
        requested = self._interval & Interval(begin, end)
        size = _SAMPLE
        while True:
            rows = sorted(row[:2] for row in self._sample(size) if row.reftime in requested)
            if len(rows) >= _FOR_EACH * parts or size >= _LARGEST_SAMPLE:
                break
            size *= 4
        last = (begin, 0)
        for number in range(1, parts):
            position = rows[len(rows) * number // parts] if rows else last
            if position > last:
                yield position
                last = position

    def _sample(self, size: int) -> list[_Row]:
        """Give about so many rows of the index, at equal distances in the order of appending."""
        step = max(1, self._state.seq // size)
        sql = (
            "SELECT datum.reftime, datum.seq, datum.segment, datum.size"
            " FROM json_each(?) JOIN datum ON datum.seq = json_each.value"
        )
        seqs = json.dumps([*range(1, self._state.seq + 1, step)])
        return [*map(_Row._make, self._snapshot.connection.execute(sql, (seqs,)))]


def condition_of(partition: Partition, snapshot: Snapshot) -> tuple[str, list[Any]]:
    """Write as SQL what is in a partition, whatever came to the index since."""
    state = partition.state
    terms, values = [partition.sql], [*partition.values]
    sql = "SELECT 1 FROM segment WHERE id > ? LIMIT 1"
    if snapshot.connection.execute(sql, (state.generation,)).fetchone() is not None:
        # What is moved from an archive, or to it, has old numbers. Asked only then: no index has the segment.
        terms.append("datum.segment <= ?")
        values.append(state.generation)
    return " AND ".join([*terms, state.sql]), [*values, *state.values]


def check_unchanged(partition: Partition, opened: Opened, snapshot: Snapshot) -> None:
    """Refuse to read a partition of which something has gone since it was planned.

    Raises:
        StateError: it has, or may have.
    """
    state, known = partition.state, snapshot.dataset()
    if (str(known["uuid"]), opened.index.inode) != (state.uuid, state.inode):
        raise changed(state, "its index was made anew")
    value: int | str
    if partition.segments is None:
        wanted, value = state.segments, state.generation
        sql = "SELECT count(*) FROM segment WHERE id <= ?"
    else:
        wanted, value = len(partition.segments), json.dumps(partition.segments)
        sql = "SELECT count(*) FROM segment WHERE id IN (SELECT value FROM json_each(?))"
    ((count,),) = snapshot.connection.execute(sql, (value,))
    if count < wanted:
        raise changed(state, "segments were repacked, archived or removed")
    if partition.count is None:  # else it is counted
        sql = "SELECT 1 FROM deletion WHERE seq > ? AND datum <= ? LIMIT 1"
        if snapshot.connection.execute(sql, (state.seq, state.seq)).fetchone() is not None:
            raise changed(state, "data were deleted or replaced")


def changed(state: IndexState, what: str) -> StateError:
    """Say that a partition cannot be read any more."""
    hint = "Load the DataFrame again: spark.read.format('ondisk').load(…), or dataset.index_frame(…)."
    return StateError(f"{state.path} has changed since this DataFrame was planned: {what}", hint=hint, path=state.path)
