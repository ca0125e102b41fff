"""Steps: the time spans of segments.

    step      stem                       interval
    yearly    20/2007                    the year
    monthly   2007/07                    the month
    biweekly  2007/07-1 … 2007/07-2      days 1–15, 16–end
    weekly    2007/07-1 … 2007/07-5      days 1–7, 8–14, 15–21, 22–28, 29–end
    daily     2007/07-08                 the day
    hourly    2007/07-08T13              the hour
    sequence  0, 1, 2 …                  all of time

A segment's name is its stem and the extension of its format: `2007/07-08.vm2`. That of an archived segment begins with
its place: `.archive/last/2007/07-08.vm2`; its stem may be of any step. Intervals are half open and begin at
00:00 UTC, or at a full hour; the intervals of a step of time never overlap and leave no gap. Source: arkimet's ondisk2
datasets, which have no hourly step.

The segments of a sequence are numbered in the order in which they were begun, as in a Beats disk queue. Their names say
nothing about times: the index records the span of the data in each.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from enum import StrEnum
from itertools import groupby

from ondisk.named_tuple import NamedTuple

DAY = 86_400_000_000
"""Microseconds of a day."""

HOUR = DAY // 24

_EPOCH_DAY = date(1970, 1, 1).toordinal()
# Begin of each part of a month, as day of the month; the last part ends with the month.
_PARTS = {"biweekly": (1, 16), "weekly": (1, 8, 15, 22, 29)}


class Interval(NamedTuple):
    """A half-open interval: begin ≤ time < end, in microseconds since 1970-01-01T00:00:00Z; by default all of time."""

    begin: int = -(2**63)
    end: int = 2**63 - 1

    @property
    def is_empty(self) -> bool:
        return self.begin >= self.end

    def __contains__(self, time: int) -> bool:  # type: ignore[override]  # times are in it, not its parts
        return self.begin <= time < self.end

    def __and__(self, other: Interval) -> Interval:
        """Return the intersection; it is empty if they do not overlap."""
        return Interval(max(self.begin, other.begin), min(self.end, other.end))

    def __or__(self, other: Interval) -> Interval:
        return Interval(min(self.begin, other.begin), max(self.end, other.end))

    @classmethod
    def around(cls, reftimes: Collection[int]) -> Interval:
        """Return the shortest interval that contains some times; `NOTHING` without any."""
        return cls(min(reftimes), max(reftimes) + 1) if reftimes else NOTHING


ALWAYS = Interval()
NEVER = Interval(0, 0)
NOTHING = Interval(ALWAYS.end, ALWAYS.begin)
"""The interval of a segment of a sequence without data: `NOTHING | x` is x."""


def runs_of(unit: int, reftimes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive reftimes of one unit, in µs: its number since 1970, and how many they are."""
    if sorted(reftimes) != [*reftimes]:
        return [(number, len([*run])) for number, run in groupby(reftimes, unit.__rfloordiv__)]
    runs, begin = [], 0
    while begin < len(reftimes):  # mostly they are in order; then this is several times as fast
        number = reftimes[begin] // unit
        end = bisect_left(reftimes, (number + 1) * unit, begin)
        runs.append((number, end - begin))
        begin = end
    return runs


class Step(StrEnum):
    """The time span of a segment, as `dataset.toml` names it."""

    DAILY = "daily"
    WEEKLY = "weekly"
    BIWEEKLY = "biweekly"
    MONTHLY = "monthly"
    YEARLY = "yearly"
    HOURLY = "hourly"
    SEQUENCE = "sequence"

    @property
    def unit(self) -> int:
        """An hour or a day, in microseconds: the longest time whose data are always in one segment."""
        return HOUR if self is Step.HOURLY else DAY

    def stem(self, reftime: int) -> str:
        """Return the name, without extension, of the segment for a reftime (microseconds)."""
        return self.stem_of(reftime // self.unit)

    def stem_of(self, number: int) -> str:
        """Return the name, without extension, of the segment for a `unit`, counted from 1970-01-01."""
        day, hour = divmod(number, 24) if self is Step.HOURLY else (number, 0)
        on = date.fromordinal(day + _EPOCH_DAY)
        match self:
            case Step.HOURLY:
                return f"{on.year:04}/{on.month:02}-{on.day:02}T{hour:02}"
            case Step.DAILY:
                return f"{on.year:04}/{on.month:02}-{on.day:02}"
            case Step.MONTHLY:
                return f"{on.year:04}/{on.month:02}"
            case Step.YEARLY:
                return f"{on.year // 100:02}/{on.year:04}"
            case Step.WEEKLY | Step.BIWEEKLY:
                part = sum(begin <= on.day for begin in _PARTS[self])
                return f"{on.year:04}/{on.month:02}-{part}"
            case Step.SEQUENCE:
                raise ValueError("a time does not name a segment of a sequence")

    def interval(self, stem: str) -> Interval | None:
        """Return the times that data in a segment with this stem may have, or None if it is not a stem of this step."""
        if self is Step.SEQUENCE:
            return None if number_of(stem) is None else ALWAYS
        parsed = re.fullmatch(_STEMS[self], stem)
        if parsed is None:
            return None
        numbers = [int(group) for group in parsed.groups()]
        try:
            begin, end = (day * DAY for day in self._days(*numbers[:3]))
        except ValueError:  # a month 13, a 30 February, the year 0
            return None
        if self is Step.HOURLY:
            begin += numbers[3] * HOUR
            end = begin + HOUR
        return Interval(begin, end)

    def _days(self, first: int, second: int, third: int = 1) -> tuple[int, int]:
        """Return the first day and the day after the last, counted from 1970-01-01."""
        match self:
            case Step.DAILY | Step.HOURLY:
                begin = _day(first, second, third)
                return begin, begin + 1
            case Step.MONTHLY:
                return _day(first, second, 1), _next_month(first, second)
            case Step.YEARLY:
                if second // 100 != first:
                    raise ValueError("the century is not the year's")
                return _day(second, 1, 1), _next_month(second, 12)
            case Step.WEEKLY | Step.BIWEEKLY:
                parts = _PARTS[self]
                begin = _day(first, second, parts[third - 1])
                if third == len(parts):
                    return begin, _next_month(first, second)
                return begin, begin + parts[third] - parts[third - 1]
            case Step.SEQUENCE:
                raise ValueError("a number is no time")


# Compiled when used: that takes long, and a dataset has one step.
_STEMS = {
    Step.DAILY: r"([0-9]{4})/([0-9]{2})-([0-9]{2})",
    Step.HOURLY: r"([0-9]{4})/([0-9]{2})-([0-9]{2})T([01][0-9]|2[0-3])",
    Step.WEEKLY: r"([0-9]{4})/([0-9]{2})-([1-5])",
    Step.BIWEEKLY: r"([0-9]{4})/([0-9]{2})-([12])",
    Step.MONTHLY: r"([0-9]{4})/([0-9]{2})",
    Step.YEARLY: r"([0-9]{2})/([0-9]{4})",
}


_NUMBER = r"0|[1-9][0-9]{0,19}"
_MOST = 2**64  # Beats parses the number as an unsigned integer of 64 bits


def number_of(stem: str) -> int | None:
    """Return the number that is the stem of a segment of a sequence; None if the stem is not one."""
    return number if re.fullmatch(_NUMBER, stem) and (number := int(stem)) < _MOST else None


ARCHIVE = ".archive"
"""The folder whose folders are the places of archived segments."""
LAST = f"{ARCHIVE}/last/"
"""The place to which repack moves segments."""


def place_of(segment: str) -> str:
    """Return the place of a segment: `.archive/NAME/`, or "" for the dataset's own folders."""
    if not segment.startswith(f"{ARCHIVE}/"):
        return ""
    archive, name, *_ = segment.split("/", 2)
    return f"{archive}/{name}/"


def is_place(name: str) -> bool:
    """Return whether a name is that of a place, without the last slash, and not that of a segment."""
    return place_of(f"{name}/") == f"{name}/"


def inner_of(segment: str) -> str:
    """Return the name of a segment within its place."""
    return segment.removeprefix(place_of(segment))


def as_given(names: Iterable[str]) -> list[str]:
    """Return names of segments that a user has given, each once, without the slash that shells add to a folder."""
    return [*dict.fromkeys(each.rstrip("/") for each in names)]


def in_order(segment: str) -> tuple[bool, bool, int, str]:
    """Return the key that sorts names of segments: the dataset's own, those of `last`, others; by number or name."""
    stem, place = inner_of(segment).partition(".")[0], place_of(segment)
    return place != "", place != LAST, (len(stem) if stem.isdecimal() else 0), segment


def interval_of(segment: str, step: Step) -> Interval | None:
    """Return the times of a segment by its name, which, if archived, may fit another step than this; else None."""
    stem = inner_of(segment).rpartition(".")[0]
    steps = [step, *Step] if place_of(segment) else [step]
    return next((found for each in steps if (found := each.interval(stem))), None)


def days_ago(days: int, now: float | None = None) -> int:
    """Return the begin of the day `days` before today, or before `now` in seconds, in UTC, as microseconds."""
    return (int(time.time() if now is None else now) * 1_000_000 // DAY - days) * DAY


def _day(year: int, month: int, day: int) -> int:
    return date(year, month, day).toordinal() - _EPOCH_DAY


def _next_month(year: int, month: int) -> int:
    if (year, month) == (9999, 12):
        return date.max.toordinal() + 1 - _EPOCH_DAY
    return _day(year + month // 12, month % 12 + 1, 1)
