"""Sums of the data of each segment and UTC day, which answer a summary without looking at the rows of the data.

    day_sum      segment, day since 1970: number of data, their bytes, their first and last reftime
    value_count  segment, day, field, value: number of data; `x''` is a missing value

Each transaction brings the sums of the segments that it changes up to date before it commits, so they are always exact.
A field with more than `MOST` values in a segment and day is not counted there: a row with the value '' says so.
`segment.summed` is the number of data in the sums of a segment; NULL: it has none, and a fix makes them.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from ondisk.datum import INTEGER_MAX, INTEGER_MIN
from ondisk.index.snapshot import Snapshot
from ondisk.index.tables import Columns
from ondisk.matcher import Expression, exact_interval
from ondisk.named_tuple import NamedTuple
from ondisk.step import DAY, runs_of

MOST = 1000
"""The highest number of values of a field that are counted in a segment and day."""

_MANY = 500  # tallies in memory
_ROWS = 1000
_SOME = 4096  # data whose values are counted before anybody asks whether there are too many

_Key: TypeAlias = tuple[int, int]
"""Segment and day."""

_ADD_DAY = (
    "INSERT INTO day_sum VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET count = count + excluded.count, size = size + excluded.size,"
    " first = min(first, excluded.first), last = max(last, excluded.last)"
)
_ADD_VALUE = "INSERT INTO value_count VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
_OF_FIELD = "FROM value_count WHERE segment = ? AND day = ? AND field = ?"
_AT_DAY = "FROM datum WHERE reftime >= ?1 AND reftime < ?2 AND segment = ?3 ORDER BY reftime"


class _Tally:
    """What a transaction adds to the sums of a segment and day; negative where it removes more.

    Attributes:
        values: field → value → number of data; None if there are too many values.
    """

    def __init__(self) -> None:
        self.count = self.size = 0
        self.first, self.last = INTEGER_MAX, INTEGER_MIN
        self.values: dict[str, dict[Any, int] | None] = {}


class Sums:
    """Brings the sums up to date with the rows that one transaction inserts and removes.

    Raises, in every method:
        sqlite3.Error: for the caller's `sqlite_errors`.

    Memory: some hundred tallies, each with up to `MOST` values of a field; and for a removal, a key for each segment
        and day.
    """

    def __init__(self, connection: sqlite3.Connection, columns: Columns) -> None:
        self._connection = connection
        names = columns.of_table["datum"]
        self._fields = {name: names.index(f"f_{name}") for name in columns.counted}
        self._columns = ", ".join(f"datum.{name}" for name in names)
        self._tallies: dict[_Key, _Tally] = {}
        self._reduced: set[_Key] = set()  # keys whose first or last datum may be gone
        self._changed: set[int] = set()  # segments
        self._moved: dict[int, int] = {}  # a segment whose data are now those of another one
        self._gone: set[int] = set()
        self._absent: set[int] = set()  # segments that get the data of one without sums

    def add(self, columns: Sequence[Sequence[Any]]) -> None:
        """Add rows of `datum` that were inserted, given as columns of one length."""
        self._count(columns, 1)

    def remove(self, columns: Sequence[Sequence[Any]]) -> None:
        """Subtract rows of `datum` that are removed before `save`, given as columns of one length."""
        self._count(columns, -1)

    def add_rows(self, select: str, values: Sequence[Any] = ()) -> None:
        """Add the rows with the seqs that a SELECT returns."""
        for columns in self._rows(select, values):
            self.add(columns)

    def remove_rows(self, select: str, values: Sequence[Any] = ()) -> None:
        """Subtract the rows with the seqs that a SELECT returns. Call it before they are removed."""
        for columns in self._rows(select, values):
            self.remove(columns)

    def move(self, old: int, new: int) -> None:
        """Let all data of a segment be those of its next generation. Call it before the old row is removed."""
        if old not in self._moved and not self._is_summed(old):
            self._absent.add(new)
        self._moved[old] = new

    def forget(self, segment: int) -> None:
        """Remove the sums of a segment that has no data any more."""
        self._gone.add(segment)

    def clear(self, segment: int) -> None:
        """Remove the sums of a segment whose rows are all removed now, and may be inserted again."""
        self._write_tallies()
        self._delete_sums(segment)
        self._connection.execute("UPDATE segment SET summed = 0 WHERE id = ?", (segment,))
        self._changed.add(segment)

    def count_again(self, segment: int, select: str) -> None:
        """Replace the sums of a segment by those of its rows, whose seqs a SELECT returns for its id."""
        self.clear(segment)
        self.add_rows(select, (segment,))

    def count_missing(self) -> None:
        """Make the sums of the segments that have none."""
        missing = [id_ for (id_,) in self._connection.execute("SELECT id FROM segment WHERE summed IS NULL")]
        if missing:
            for segment in missing:
                self._delete_sums(segment)
            self._connection.execute("UPDATE segment SET summed = 0 WHERE summed IS NULL")
            self.add_rows(
                "SELECT seq FROM datum WHERE segment IN (SELECT value FROM json_each(?))", (json.dumps(missing),)
            )
            self.save()

    def save(self) -> None:
        """Write the sums. Call it when all rows are as they will be committed."""
        self._write_tallies()
        for old, new in self._moved.items():
            self._add_sums_of(old, new)
        for segment in (*self._moved, *self._gone):
            self._delete_sums(segment)
        for segment, day in self._reduced:
            self._correct(self._moved.get(segment, segment), day)
        summed = "SELECT ifnull(sum(day_sum.count), 0) FROM day_sum WHERE day_sum.segment = segment.id"
        self._connection.executemany(
            f"UPDATE segment SET summed = ({summed}) WHERE id = ? AND summed IS NOT NULL",
            ((segment,) for segment in {*self._changed, *self._moved.values()}),
        )
        self._connection.executemany(
            "UPDATE segment SET summed = NULL WHERE id = ?", ((each,) for each in self._absent)
        )

    def _delete_sums(self, segment: int) -> None:
        for table in ("day_sum", "value_count"):
            self._connection.execute(f"DELETE FROM {table} WHERE segment = ?", (segment,))

    def _count(self, columns: Sequence[Sequence[Any]], sign: int) -> None:
        columns = _in_order_of_time(columns)
        _, reftimes, segments, _, sizes, *_ = columns
        for begin, end in _runs(reftimes, segments):
            key = segments[begin], reftimes[begin] // DAY
            tally = self._tallies.setdefault(key, _Tally())
            tally.count += sign * (end - begin)
            tally.size += sign * sum(sizes[begin:end])
            if sign > 0:
                tally.first, tally.last = min(reftimes[begin], tally.first), max(reftimes[end - 1], tally.last)
            else:
                self._reduced.add(key)
            for name, place in self._fields.items():
                counts = tally.values.setdefault(name, {})
                if counts is not None:
                    tally.values[name] = _counted(columns[place][begin:end], sign, counts)
        if len(self._tallies) > _MANY:
            self._write_tallies()

    def _rows(self, select: str, values: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._connection.execute(f"SELECT {self._columns} FROM datum WHERE seq IN ({select})", values)
        while rows := cursor.fetchmany(_ROWS):
            yield [*zip(*rows, strict=True)]

    def _write_tallies(self) -> None:
        tallies, self._tallies = self._tallies, {}
        for key, tally in tallies.items():
            if self._is_summed(key[0]):
                self._connection.execute(_ADD_DAY, (*key, tally.count, tally.size, tally.first, tally.last))
                for name, counts in tally.values.items():
                    self._add_values(key, name, counts)

    def _is_summed(self, segment: int) -> bool:
        """Return whether a segment has sums; a new one has them."""
        if segment not in self._changed:
            sql = "SELECT 1 FROM segment WHERE id = ? AND summed IS NULL"
            if self._connection.execute(sql, (segment,)).fetchone() is not None:
                return False
            self._changed.add(segment)
        return True

    def _add_values(self, key: _Key, name: str, counts: Mapping[Any, int] | None) -> None:
        """Add to the counts of the values of a field, unless there are too many of them, or will be."""
        execute, place = self._connection.execute, (*key, name)
        ((number, are_too_many),) = execute(f"SELECT count(*), ifnull(max(value = ''), 0) {_OF_FIELD}", place)
        if are_too_many:
            return
        if counts is not None:
            rows = ((*place, b"" if value is None else value, count) for value, count in counts.items() if count)
            self._connection.executemany(_ADD_VALUE, rows)
            if number + len(counts) > MOST:
                ((number,),) = execute(f"SELECT count(*) {_OF_FIELD}", place)
        if counts is None or number > MOST:
            execute(f"DELETE {_OF_FIELD}", place)
            execute("INSERT INTO value_count VALUES (?, ?, ?, '', 0)", place)

    def _add_sums_of(self, old: int, new: int) -> None:
        execute = self._connection.execute
        days = execute("SELECT day, count, size, first, last FROM day_sum WHERE segment = ?", (old,)).fetchall()
        for day, *sums in days:
            execute(_ADD_DAY, (new, day, *sums))
        rows = execute("SELECT day, field, value, count FROM value_count WHERE segment = ? ORDER BY day, field", (old,))
        for (day, name), some in groupby(rows.fetchall(), itemgetter(0, 1)):
            counts = {value: count for *_, value, count in some}
            self._add_values((new, day), name, None if "" in counts else counts)

    def _correct(self, segment: int, day: int) -> None:
        """Remove what is 0 from the sums of a segment and day, and find its first and its last datum again."""
        execute, key = self._connection.execute, (segment, day)
        if execute("DELETE FROM day_sum WHERE segment = ? AND day = ? AND count = 0", key).rowcount:
            execute("DELETE FROM value_count WHERE segment = ? AND day = ?", key)
            return
        execute("DELETE FROM value_count WHERE segment = ? AND day = ? AND count = 0 AND value <> ''", key)
        first, last = (f"(SELECT reftime {_AT_DAY} {order} LIMIT 1)" for order in ("", "DESC"))
        span = (day * DAY, (day + 1) * DAY)
        execute(
            f"UPDATE day_sum SET first = ifnull({first}, first), last = ifnull({last}, last)"
            " WHERE segment = ?3 AND day = ?4",
            (*span, *key),
        )


def _in_order_of_time(columns: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    reftimes = columns[1]
    if sorted(reftimes) == [*reftimes]:
        return columns
    order = sorted(range(len(reftimes)), key=reftimes.__getitem__)
    return [[*map(column.__getitem__, order)] for column in columns]


def _runs(reftimes: Sequence[int], segments: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of rows of one segment and day. The rows are in the order of their reftimes."""
    end = 0
    for _, count in runs_of(DAY, reftimes):
        begin, end = end, end + count
        of_day = segments[begin:end]
        if of_day.count(of_day[0]) == len(of_day):
            yield begin, end
        else:
            for _, run in groupby(range(begin, end), segments.__getitem__):
                first, *rest = run
                yield first, first + len(rest) + 1


def _counted(values: Sequence[Any], sign: int, counts: dict[Any, int]) -> dict[Any, int] | None:
    """Add values to counts, or subtract them; return the counts, None if there are too many values."""
    found: Counter[Any] = Counter()
    for begin in range(0, len(values), _SOME):
        found.update(values[begin : begin + _SOME])
        if len(found) > MOST:
            return None
    for value, count in found.items():
        counts[value] = counts.get(value, 0) + sign * count
    return counts if len(counts) <= MOST else None


OF_INTERVAL = "day_sum.first >= ? AND day_sum.last < ?"
"""The SQL that selects the sums of an interval that `interval_of_sums` has returned."""


class Totals(NamedTuple):
    """How many data, their bytes, and their first and last reftime (microseconds; None without data)."""

    count: int  # type: ignore[assignment]  # not the method of tuples
    size: int
    begin: int | None
    end: int | None


def totals(snapshot: Snapshot, tree: Expression) -> Totals:
    """Aggregate the data that match.

    Cost: reads the sums of each segment and day, or the rows of all data that match.
    """
    interval = interval_of_sums(snapshot, tree)
    if interval is not None:
        columns = "ifnull(sum(count), 0), ifnull(sum(size), 0), min(first), max(last)"
        sql = f"SELECT {columns} FROM day_sum WHERE {OF_INTERVAL}"
        return Totals(*snapshot.fetch(sql, interval)[0])
    where = snapshot.where(tree)
    sql = f"SELECT count(*), ifnull(sum(size), 0), min(reftime), max(reftime) FROM datum WHERE {where.sql}"
    return Totals(*snapshot.fetch(sql, where.values)[0])


def interval_of_sums(snapshot: Snapshot, tree: Expression) -> tuple[int, int] | None:
    """Return begin and end of an interval whose sums are those of the data that match; None if there is none.

    A condition on something else than the reftime has none, nor an interval that divides the data of a segment and day.
    """
    interval = exact_interval(tree)
    if interval is None or snapshot.left_out:
        return None
    bounds = interval.begin, interval.end
    sql = (
        "SELECT EXISTS (SELECT 1 FROM segment WHERE summed IS NULL) OR EXISTS (SELECT 1 FROM day_sum"
        " WHERE first < ?2 AND last >= ?1 AND (first < ?1 OR last >= ?2))"
    )
    ((must_count,),) = snapshot.fetch(sql, bounds)
    return None if must_count else bounds


def wrong_sums(snapshot: Snapshot) -> list[int]:
    """Return the ids of segments whose sums are absent, or are not those of their rows, as after an edit of the index.

    The index may know no segment of such an id.

    Cost: adds up all rows; if the totals differ, those of each segment, too.
    """
    rows, sums = "count(*), ifnull(sum(size), 0) FROM datum", "ifnull(sum(count), 0), ifnull(sum(size), 0) FROM day_sum"
    absent = "SELECT id FROM segment WHERE summed IS NULL"
    if snapshot.fetch(f"SELECT (SELECT {rows}) IS (SELECT {sums})") == [(1,)]:
        return [id_ for (id_,) in snapshot.fetch(absent)]
    each_rows, each_sums = (f"SELECT segment, {each} GROUP BY segment" for each in (rows, sums))
    differing = " UNION ALL ".join(
        f"SELECT segment FROM ({one} EXCEPT {other})" for one, other in ((each_rows, each_sums), (each_sums, each_rows))
    )
    return [id_ for (id_,) in snapshot.fetch(f"{differing} UNION {absent}")]
