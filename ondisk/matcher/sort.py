"""Sort orders: `reftime,-level`, or `day:station,reftime`, which sorts by the fields within each day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ondisk.datum import METADATA, Datum, FieldType, from_microseconds, microseconds
from ondisk.errors import MatchError, shown
from ondisk.matcher import Compare, Expression
from ondisk.matcher.fragments import known_fields
from ondisk.step import Interval

SortInterval: TypeAlias = Literal["minute", "hour", "day", "month", "year"]
_LENGTHS: dict[SortInterval, int] = {"year": 1, "month": 2, "day": 3, "hour": 4, "minute": 5}  # of a time's parts
_FIRST, _LAST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
_INTERVALS: dict[str, SortInterval] = {name: name for name in get_args(SortInterval)}


class SortKey(NamedTuple):
    """One field to sort by. Missing values come first, or last if descending."""

    field: str
    descending: bool = False


class Sort(NamedTuple):
    """A sort order. Data that are equal in it are in order of reftime, then in the order they were appended."""

    interval: SortInterval | None  # sort by the reftime truncated to this first, ascending; None skips this
    keys: tuple[SortKey, ...]  # then sort by these, the most significant first

    def key_of(self, datum: Datum) -> tuple[Any, ...]:
        parts: list[Any] = []
        if self.interval is not None:
            parts.append(datum.reftime.timetuple()[: _LENGTHS[self.interval]])
        for key in self.keys:
            value = datum.reftime if key.field == "reftime" else datum.metadata.get(key.field)
            part = (value is not None, value.encode() if isinstance(value, str) else value)
            parts.append(_Descending(part) if key.descending else part)
        return (*parts, datum.reftime)

    @property
    def is_by_time(self) -> bool:
        """Whether data are in order of reftime first, ascending or descending."""
        return self.interval is None and self.keys[0].field == "reftime"

    def begin(self, times: Interval) -> int:
        """Return the first reftime of an interval in this order, microseconds; only if it `is_by_time`."""
        return times.end - 1 if self.keys[0].descending else times.begin

    def bound(self, times: Interval) -> tuple[Any, ...]:
        """Return a sort key that no datum with a reftime in an interval precedes."""
        if not self.is_by_time or not _FIRST <= self.begin(times) <= _LAST:
            return ()
        part = (True, from_microseconds(self.begin(times)))
        return (_Descending(part) if self.keys[0].descending else part,)

    def since(self, time: int) -> Expression:
        """Return the condition of the data that do not precede a reftime, microseconds; only if it `is_by_time`."""
        return Compare("reftime", "<=" if self.keys[0].descending else ">=", time)


@dataclass(frozen=True, slots=True)
class _Descending:
    value: tuple[bool, Any]

    def __lt__(self, other: _Descending) -> bool:
        return other.value < self.value


def parse_sort(text: object, fields: Mapping[str, FieldType]) -> Sort:
    """Return the sort order `[minute|hour|day|month|year:]field,-field…`; `-` sorts descending; or raise MatchError."""
    if not isinstance(text, str):
        raise MatchError(f"sort must be a text, not {shown(text)}", hint='Write for example "day:station,-level".')
    prefix, colon, names = text.rpartition(":")
    keys = tuple(_key(name, text, fields) for name in names.split(","))
    seen = [key.field for key in keys]
    for field in seen:
        if seen.count(field) > 1:
            raise MatchError(
                f"sort order {shown(text)} names {field} twice", hint="Remove the second: it would have no effect."
            )
    return Sort(_interval(prefix, text) if colon else None, keys)


def _interval(prefix: str, text: str) -> SortInterval:
    interval = _INTERVALS.get(prefix.strip().lower())
    if interval is None:
        raise MatchError(
            f"sort order {shown(text)} begins with {shown(prefix)}, which is not an interval",
            hint=f"The intervals are {', '.join(_INTERVALS)}.",
        )
    return interval


def _key(name: str, text: str, fields: Mapping[str, FieldType]) -> SortKey:
    name = name.strip().lower()
    field = name.removeprefix("-").strip()
    if field != "reftime" and field not in fields:
        problem = f"there is no field {shown(field)}" if field else "a field is missing"
        if field.startswith(METADATA):
            problem = f"{shown(field)} is not declared, and only declared fields can be sorted by; it occurs"
        hint = known_fields(field, sorted({"reftime", *fields}))
        raise MatchError(f"{problem} in sort order {shown(text)}", hint=hint)
    return SortKey(field, descending=name.startswith("-"))
