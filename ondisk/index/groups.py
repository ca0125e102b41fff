"""Counts of the data of one index by period, or by the values of a field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, starmap
from math import isfinite, nan
from typing import Any

from ondisk.datum import FieldType, Value, from_microseconds, microseconds, restored
from ondisk.index.columns import column_of
from ondisk.index.field_values import checked, kind_of
from ondisk.index.snapshot import Snapshot
from ondisk.index.totals import OF_INTERVAL, interval_of_sums
from ondisk.matcher import Expression
from ondisk.step import DAY

PERIODS = ("hour", "day", "month", "year")
NUMBERS = (FieldType.INTEGER, FieldType.REAL)

_OF_DAYS = ("day", "month", "year")
_UNITS: dict[str, int] = {"hour": DAY // 24, "day": DAY}
_FIRST = {"month": "%Y-%m-01", "year": "%Y-01-01"}
_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """Counts of the data of one period, or with one value of a field.

    Attributes:
        key: the begin of the period, or the value; None for data without the field.
        count: number of data.
        size: bytes of data, without padding.
        begin, end: their first and last reftime.
        min, max: the lowest and the highest value of another field in them; None if no datum has it, or none was named.
        mean: the mean of its values; None for times, and if a value is infinite.
    """

    key: Value | None
    count: int
    size: int
    begin: datetime
    end: datetime
    min: Value | None = None
    max: Value | None = None
    mean: float | None = None


@dataclass(slots=True)
class Part:
    """What one index, or one datum, adds to a group; times are microseconds, values those that are stored.

    Attributes:
        total, number: the sum and the number of the values of the other field.
    """

    key: Any
    count: int
    size: int
    begin: int
    end: int
    min: Any = None
    max: Any = None
    total: float = 0.0
    number: int = 0

    def add(self, other: Part) -> None:
        """Add another part of the same group."""
        self.count += other.count
        self.size += other.size
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        if other.number:
            self.min = other.min if not self.number else min(self.min, other.min)
            self.max = other.max if not self.number else max(self.max, other.max)
            self.total += other.total
            self.number += other.number

    def group(self, key: FieldType, of: FieldType | None) -> Group:
        """Return the group, with the values that the types of its key and of the other field have."""
        least = most = mean = None
        if of is not None and self.number:
            least, most = restored(self.min, of), restored(self.max, of)
            mean = self.total / self.number if of in NUMBERS and isfinite(self.total) else None
        value = None if self.key is None else restored(self.key, key)
        span = from_microseconds(self.begin), from_microseconds(self.end)
        return Group(value, self.count, self.size, *span, least, most, mean)


def begin_of(period: str, reftime: int) -> int:
    """Return the begin of the period that contains a reftime, both in microseconds since 1970."""
    if period in _UNITS:
        return reftime - reftime % _UNITS[period]
    first = from_microseconds(reftime).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return microseconds(first if period == "month" else first.replace(month=1))


def grouped(snapshot: Snapshot, tree: Expression, by: str, of: str | None) -> Iterator[Part]:
    """Yield the parts of the groups of the data that match, in the order of their keys; a missing one comes first.

    Args:
        by: a period, or a declared field, or reftime.
        of: another declared field, of numbers or times; None for none.

    Cost: of days, months and years without another field, reads the sums of segments and days if these suffice; else
        looks at all data that match, once. SQLite sorts the keys, in a file if they are many.
    """
    interval = interval_of_sums(snapshot, tree) if by in _OF_DAYS and of is None else None
    if interval is not None:
        sql = (
            f"SELECT {_key(by)} AS key, sum(count), sum(size), min(first), max(last)"
            f" FROM (SELECT day * {DAY} AS reftime, * FROM day_sum WHERE {OF_INTERVAL}) GROUP BY 1 ORDER BY 1"
        )
        for part in starmap(Part, chain.from_iterable(snapshot.select(sql, interval))):
            _check(snapshot, part, FieldType.TIMESTAMP)
            yield part
        return
    where, value = snapshot.where(tree), "NULL" if of is None else column_of(of)
    kind = FieldType.TIMESTAMP if by in PERIODS else kind_of(snapshot, by)
    sql = (
        f"SELECT {_key(by)} AS key, count(*) AS n, sum(size) AS size, min(reftime) AS first, max(reftime) AS last,"
        f" min({value}) AS least, max({value}) AS most, total({value}) AS total, count({value}) AS number"
        f" FROM datum WHERE {where.sql} GROUP BY 1"
    )
    if kind.interned:
        columns = "n, size, first, last, least, most, total, number"
        sql = f"SELECT value.value AS key, {columns} FROM ({sql}) AS counted LEFT JOIN value ON value.id = counted.key"
    for row in chain.from_iterable(snapshot.select(f"{sql} ORDER BY 1", where.values)):
        part = Part(*row)
        if row[7] is None:  # SQLite's form of inf - inf
            part.total = nan
        _check(snapshot, part, kind)
        yield part


def _check(snapshot: Snapshot, part: Part, kind: FieldType) -> None:
    """Raise here, where it is the error of this index, if a group has a key or a time that ondisk never writes."""
    checked(snapshot, part.key, kind)
    for time in (part.begin, part.end):
        checked(snapshot, time, FieldType.TIMESTAMP)


def _key(by: str) -> str:
    """Return the SQL for the key of a datum: the begin of its period, in microseconds, or the value of its field."""
    if by in _UNITS:
        unit = _UNITS[by]
        return f"reftime - ((reftime % {unit}) + {unit}) % {unit}"  # SQLite's % has the sign of the number
    if by in _FIRST:
        second = f"(reftime - ((reftime % {_SECOND}) + {_SECOND}) % {_SECOND}) / {_SECOND}"
        return f"strftime('%s', strftime('{_FIRST[by]}', {second}, 'unixepoch')) * {_SECOND}"
    return column_of(by)
