"""Counts of the data of one index by period, or by the values of a field."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import chain
from math import isfinite, nan
from typing import Any, NamedTuple

from ondisk.datum import FieldType, Value, from_microseconds, microseconds, restored
from ondisk.index.field_values import checked
from ondisk.index.snapshot import Snapshot
from ondisk.index.sums import OF_INTERVAL, interval_of_sums
from ondisk.index.tables import begin_of, column_of, formatted
from ondisk.matcher import Expression
from ondisk.step import DAY

PERIODS = ("hour", "day", "month", "year")
NUMBERS = (FieldType.INTEGER, FieldType.REAL)

_OF_DAYS = ("day", "month", "year")
_UNITS: dict[str, int] = {"hour": DAY // 24, "day": DAY}
_FIRST = {"month": "%Y-%m-01", "year": "%Y-01-01"}
_SECOND = 1_000_000
_QUARTER, _CACHED = 15 * 60 * _SECOND, 100_000


class By(NamedTuple):
    """What groups are made by.

    Attributes:
        keys: one or several of: a period, a declared field, reftime.
        of: another declared field, of numbers or times, or `data.NAME`; None for none.
        kinds, kind: the types of the keys, and of the other field.
    """

    keys: tuple[str, ...]
    of: str | None
    zone: tzinfo
    kinds: tuple[FieldType, ...]
    kind: FieldType | None


@dataclass(frozen=True, slots=True)
class Group:
    """Counts of the data of one period, or with one value of a field.

    Attributes:
        key: the begin of the period, in its zone, or the value; None for data without the field. A tuple of them if
            the groups are by several.
        count: number of data.
        size: bytes of data, without padding.
        begin, end: their first and last reftime.
        min, max: the lowest and the highest value of another field in them; None if no datum has it, or none was named.
        mean: the mean of its values; None for times, and if a value is infinite.
    """

    key: Value | tuple[Value | None, ...] | None
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
        key: as many values as the groups have keys.
        total, number: the sum and the number of the values of the other field.
    """

    key: tuple[Any, ...]
    count: int
    size: int
    begin: int
    end: int
    min: Any = None
    max: Any = None
    total: float = 0.0
    number: int = 0

    def add(self, other: Part) -> None:
        self.count += other.count
        self.size += other.size
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        if other.number:
            self.min = other.min if not self.number else min(self.min, other.min)
            self.max = other.max if not self.number else max(self.max, other.max)
            self.total += other.total
            self.number += other.number

    def group(self, by: By) -> Group:
        """Return the group, with the values that the types of its keys and of the other field have."""
        least = most = mean = None
        if by.kind is not None and self.number:
            least, most = restored(self.min, by.kind), restored(self.max, by.kind)
            mean = self.total / self.number if by.kind in NUMBERS and isfinite(self.total) else None
        keys = (None if key is None else restored(key, kind) for key, kind in zip(self.key, by.kinds, strict=True))
        shown = [
            _in_zone(key, by.zone) if name in PERIODS and isinstance(key, datetime) else key
            for name, key in zip(by.keys, keys, strict=True)
        ]
        span = from_microseconds(self.begin), from_microseconds(self.end)
        return Group(shown[0] if len(shown) == 1 else (*shown,), self.count, self.size, *span, least, most, mean)


def _in_zone(begin: datetime, zone: tzinfo) -> datetime:
    with contextlib.suppress(OverflowError):  # before the year 1: as `Begins` counts it, in UTC
        return begin.astimezone(zone)
    return begin


class Begins(dict[int, int | None]):
    """Quarters of an hour since 1970 → the begin of the period that contains all of them, or None."""

    def __init__(self, period: str, zone: tzinfo) -> None:
        super().__init__()
        self._period = period
        self._zone = zone

    def of(self, reftime: int) -> int:
        """Return the begin of the period that contains a reftime, both in microseconds since 1970."""
        begin = self[reftime // _QUARTER]
        return self._begin(reftime) if begin is None else begin

    def __missing__(self, quarter: int) -> int | None:
        if len(self) >= _CACHED:
            self.clear()
        begin = self._begin(quarter * _QUARTER)
        self[quarter] = found = begin if begin == self._begin((quarter + 1) * _QUARTER - 1) else None
        return found

    def _begin(self, reftime: int) -> int:
        try:
            local = from_microseconds(reftime).astimezone(self._zone).replace(minute=0, second=0, microsecond=0)
            if self._period != "hour":
                local = local.replace(hour=0, fold=0)
            if self._period in ("month", "year"):
                local = local.replace(day=1)
            return microseconds((local.replace(month=1) if self._period == "year" else local).astimezone(UTC))
        except OverflowError:  # the first or last day that there is, and a damaged reftime: the day in UTC
            return reftime - reftime % DAY


def grouped(snapshot: Snapshot, tree: Expression, by: By) -> Iterator[Part]:
    """Yield the parts of the groups of the data that match, in the order of their keys; a missing one comes first.

    Cost: of days, months and years in UTC without another field, reads the sums of segments and days if these suffice;
        else looks at all data that match, once. SQLite sorts the keys, in a file if they are many.
    """
    is_of_days = by.keys[0] in _OF_DAYS and len(by.keys) == 1 and by.of is None and by.zone is UTC
    interval = interval_of_sums(snapshot, tree) if is_of_days else None
    if interval is not None:
        sql = (
            f"SELECT {_key(by.keys[0])} AS key, sum(count), sum(size), min(first), max(last)"
            f" FROM (SELECT day * {DAY} AS reftime, * FROM day_sum WHERE {OF_INTERVAL}) GROUP BY 1 ORDER BY 1"
        )
        for key, *counts in chain.from_iterable(snapshot.select(sql, interval)):
            part = Part((key,), *counts)
            _check(snapshot, part, by)
            yield part
        return
    if by.zone is not UTC:
        for name in PERIODS:
            snapshot.connection.create_function(f"{name}_begin", 1, Begins(name, by.zone).of, deterministic=True)
    where, value = snapshot.where(tree), "NULL" if by.of is None else column_of(by.of)
    numbers = ", ".join(str(number + 1) for number in range(len(by.kinds)))
    keys = ", ".join(f"{_key(key, by.zone)} AS key{number}" for number, key in enumerate(by.keys))
    sql = (
        f"SELECT {keys}, count(*) AS n, sum(size) AS size, min(reftime) AS first, max(reftime) AS last,"
        f" min({value}) AS least, max({value}) AS most, total({value}) AS total, count({value}) AS number"
        f" FROM datum WHERE {where.sql} GROUP BY {numbers}"
    )
    if any(kind.interned for kind in by.kinds):
        keys = ", ".join(f"v{at}.value" if kind.interned else f"key{at}" for at, kind in enumerate(by.kinds))
        joins = (f"LEFT JOIN value AS v{at} ON v{at}.id = key{at}" for at, kind in enumerate(by.kinds) if kind.interned)
        sql = (
            f"SELECT {keys}, n, size, first, last, least, most, total, number FROM ({sql}) AS counted {' '.join(joins)}"
        )
    for row in chain.from_iterable(snapshot.select(f"{sql} ORDER BY {numbers}", where.values)):
        part = Part(row[: len(by.kinds)], *row[len(by.kinds) :])
        if row[-2] is None:  # SQLite's form of inf - inf
            part.total = nan
        _check(snapshot, part, by)
        yield part


def _check(snapshot: Snapshot, part: Part, by: By) -> None:
    """Raise here, where it is the error of this index, if a group has a key or a time that ondisk never writes."""
    for key, kind in zip(part.key, by.kinds, strict=True):
        checked(snapshot, key, kind)
    for time in (part.begin, part.end):
        checked(snapshot, time, FieldType.TIMESTAMP)


def _key(by: str, zone: tzinfo = UTC) -> str:
    """Return the SQL for the key of a datum: the begin of its period, in microseconds, or the value of its field."""
    if by in PERIODS and zone is not UTC:
        return f"{by}_begin(reftime)"
    if by in _UNITS:
        return begin_of("reftime", _UNITS[by])
    if by in _FIRST:
        return f"strftime('%s', {formatted('reftime', _FIRST[by])}) * {_SECOND}"
    return column_of(by)
