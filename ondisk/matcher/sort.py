"""Sort orders: `reftime,-level`, or by the fields within each `day:station,reftime`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ondisk.datum import Datum, FieldType
from ondisk.errors import MatchError
from ondisk.matcher.parsing import known_fields

SortInterval: TypeAlias = Literal["minute", "hour", "day", "month", "year"]
_LENGTHS: dict[SortInterval, int] = {"year": 1, "month": 2, "day": 3, "hour": 4, "minute": 5}  # of a time's parts
_INTERVALS: dict[str, SortInterval] = {name: name for name in get_args(SortInterval)}


@dataclass(frozen=True, slots=True)
class SortKey:
    """One field to sort by. Missing values come first; descending turns the whole order round, so they come last."""

    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort order. What is equal in it stands in order of reftime, then of appending.

    Attributes:
        interval: sort by the reftime cut to this first, ascending; None leaves that out.
        keys: then by these, the first is the most significant.
    """

    interval: SortInterval | None
    keys: tuple[SortKey, ...]

    def key_of(self, datum: Datum) -> tuple[Any, ...]:
        """Give what a datum is sorted by, to merge data that are sorted already."""
        parts: list[Any] = []
        if self.interval is not None:
            parts.append(datum.reftime.timetuple()[: _LENGTHS[self.interval]])
        for key in self.keys:
            value = datum.reftime if key.field == "reftime" else datum.metadata.get(key.field)
            part = (value is not None, value.encode() if isinstance(value, str) else value)
            parts.append(_Descending(part) if key.descending else part)
        return (*parts, datum.reftime)


@dataclass(frozen=True, slots=True)
class _Descending:
    """A value that is sorted the other way round."""

    value: tuple[bool, Any]

    def __lt__(self, other: _Descending) -> bool:
        return other.value < self.value


def parse_sort(text: str, fields: Mapping[str, FieldType]) -> Sort:
    """Read a sort order, `[minute|hour|day|month|year:]field,-field…`; `-` sorts descending.

    Args:
        text: the order; names are read without regard to case.
        fields: the declared fields, name → type. `reftime` is always known.

    Raises:
        MatchError: no field is named, or an unknown field or interval, or a field twice.
    """
    prefix, colon, names = text.rpartition(":")
    keys = tuple(_key(name, text, fields) for name in names.split(","))
    seen = [key.field for key in keys]
    for field in seen:
        if seen.count(field) > 1:
            raise MatchError(
                f"sort order {text!r} names {field} twice", hint="The first alone decides; leave the other out."
            )
    return Sort(_interval(prefix, text) if colon else None, keys)


def _interval(prefix: str, text: str) -> SortInterval:
    interval = _INTERVALS.get(prefix.strip().lower())
    if interval is None:
        raise MatchError(
            f"sort order {text!r} begins with {prefix!r}, which is no interval",
            hint=f"The intervals are {', '.join(_INTERVALS)}.",
        )
    return interval


def _key(name: str, text: str, fields: Mapping[str, FieldType]) -> SortKey:
    name = name.strip().lower()
    field = name.removeprefix("-").strip()
    if field != "reftime" and field not in fields:
        problem = f"there is no field {field!r}" if field else "a field is missing"
        hint = known_fields(field, sorted({"reftime", *fields}))
        raise MatchError(f"{problem} in sort order {text!r}", hint=hint)
    return SortKey(field, descending=name.startswith("-"))
