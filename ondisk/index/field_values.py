"""Counts of the values of one field: how many data have each, the most frequent ones, the lowest and the highest."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from ondisk.datum import FieldType, Value, restored
from ondisk.index.snapshot import Snapshot
from ondisk.index.sums import OF_INTERVAL, interval_of_sums
from ondisk.index.tables import MISSING, column_of
from ondisk.matcher import Expression

Count: TypeAlias = tuple[Value | None, int]
"""A value, or None for data without the field, and the number of data that have it."""

_INTERNED = {FieldType.TEXT: str, FieldType.ITEM: str, FieldType.BYTES: bytes}
# The days come first: SQLite would look up the day of each value.
_OF_FIELD = f"day_sum CROSS JOIN value_count USING (segment, day) WHERE {OF_INTERVAL} AND field = ?"
_ORDERED = (FieldType.INTEGER, FieldType.REAL, FieldType.TIMESTAMP)


class FieldSummary(NamedTuple):
    """The values that data have in one field.

    Attributes:
        values: values, each with the number of data that have it; the most frequent first, equally frequent ones in
            order. Not all of them if more exist than were requested.
        distinct: number of different values, also of those that are not listed.
        missing: number of data without the field.
        min, max: the lowest and the highest value of an integer, real or timestamp field; else None.
    """

    values: list[tuple[Value, int]]
    distinct: int = 0
    missing: int = 0
    min: Value | None = None
    max: Value | None = None


def kind_of(snapshot: Snapshot, name: str) -> FieldType:
    return FieldType.TIMESTAMP if name == "reftime" else snapshot.columns.kinds[name]


def checked(snapshot: Snapshot, stored: Any, kind: FieldType) -> Any:
    """Return the value of a stored form; None for None.

    Raises:
        IndexCorrupt, OverflowError: ondisk writes no such value of this type.
    """
    if stored is None:
        return None
    if kind.interned and type(stored) is not _INTERNED[kind]:
        raise snapshot.corrupt(f"{stored!r} is a value of type {kind.value}")
    return restored(stored, kind)


def most_frequent(snapshot: Snapshot, tree: Expression, name: str, limit: int | None) -> FieldSummary:
    """Summarise the values of a field in the data that match.

    Cost: reads the counts in the sums of segments and days if these have them; else looks at all data that match, or at
        an index of the field if all match. SQLite counts the values in a file if they are many, so memory does not grow
        with them, but with those that are listed.
    """
    return _most_frequent(snapshot, name, limit, *_counted(snapshot, tree, name))


def most_frequent_of_sums(snapshot: Snapshot, tree: Expression, name: str, limit: int | None) -> FieldSummary | None:
    """Return what `most_frequent` returns, if the sums of segments and days have it; else None.

    Cost: reads these sums, never the rows of data.
    """
    interval = _interval_of_counts(snapshot, tree, name)
    return None if interval is None else _most_frequent(snapshot, name, limit, *_of_sums(interval, name))


def _most_frequent(
    snapshot: Snapshot, name: str, limit: int | None, counted: str, bound: Sequence[Any]
) -> FieldSummary:
    """Summarise the values of a field, which SQL counts."""
    kind = kind_of(snapshot, name)
    present, value = ("key != 0", "(SELECT value FROM value WHERE id = key)") if kind.interned else (
        "key IS NOT NULL", "key")  # fmt: skip
    span = "min(key), max(key)" if kind in _ORDERED else "NULL, NULL"
    missing = f"ifnull(sum(n) FILTER (WHERE NOT {present}), 0)"
    sql = (
        f"WITH counted (key, n) AS MATERIALIZED ({counted})"
        f" SELECT * FROM (SELECT count(*) FILTER (WHERE {present}), {missing}, {span} FROM counted) LEFT JOIN"
        f" (SELECT {value} AS value, n FROM counted WHERE {present} ORDER BY n DESC, value LIMIT ?)"
        f" ORDER BY n DESC, value"
    )
    rows = [*chain.from_iterable(snapshot.select(sql, (*bound, -1 if limit is None else limit)))]
    distinct, without, *bounds = rows[0][:4]
    values = [(checked(snapshot, stored, kind), count) for *_, stored, count in rows if count is not None]
    least, most = (checked(snapshot, stored, kind) for stored in bounds)
    return FieldSummary(values, distinct, without, least, most)


def _interval_of_counts(snapshot: Snapshot, tree: Expression, name: str) -> tuple[int, int] | None:
    """Return begin and end of an interval whose counts are those of the data that match; None if there is none."""
    interval = interval_of_sums(snapshot, tree)
    if interval is None or name not in snapshot.columns.counted:
        return None
    counted = f"SELECT ifnull(sum(value_count.count), 0) FROM {_OF_FIELD}"
    total = f"SELECT ifnull(sum(count), 0) FROM day_sum WHERE {OF_INTERVAL}"
    ((has_all,),) = snapshot.fetch(f"SELECT ({counted}) = ({total})", (*interval, name, *interval))
    return interval if has_all else None


def _counted(snapshot: Snapshot, tree: Expression, name: str) -> tuple[str, Sequence[Any]]:
    """Return the SQL, with its values, that selects each stored value and the number of data that match and have it."""
    interval = _interval_of_counts(snapshot, tree, name)
    if interval is not None:
        return _of_sums(interval, name)
    where, column = snapshot.where(tree), column_of(name)
    return f"SELECT {column} AS key, count(*) AS n FROM datum WHERE {where.sql} GROUP BY {column}", where.values


def _of_sums(interval: tuple[int, int], name: str) -> tuple[str, Sequence[Any]]:
    """Return the same SQL for an interval whose sums have the counts."""
    value = f"nullif(value, {MISSING})"
    return f"SELECT {value} AS key, sum(value_count.count) AS n FROM {_OF_FIELD} GROUP BY 1", (*interval, name)


def frequent(values: Iterable[tuple[Value, int]], limit: int | None) -> list[tuple[Value, int]]:
    """Return values and their counts, the most frequent first; up to `limit` of them."""

    def rank(each: tuple[Value, int]) -> Any:
        return -each[1], _comparable(each[0])

    return sorted(values, key=rank) if limit is None else heapq.nsmallest(limit, values, key=rank)


def _comparable(value: Any) -> tuple[bool, Any]:
    return value is not None, 0 if value is None else value.encode() if isinstance(value, str) else value
