"""Periods of the calendar (a year, a month … a second) and distances such as `2 months`, which move them. All UTC."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from ondisk.datum import microseconds

DAY_SECONDS = 86400
_END_OF_TIME = microseconds(datetime.max.replace(tzinfo=UTC)) + 1


class Unit(IntEnum):
    """The precision of a time; a larger number is finer."""

    YEAR = 0
    MONTH = 1
    DAY = 2
    HOUR = 3
    MINUTE = 4
    SECOND = 5


class Distance(NamedTuple):
    """The distance between two times, such as `2 months 3 days`. Months differ in length, so they are counted apart."""

    months: int  # whole months, added before the seconds
    seconds: int  # whole seconds
    unit: Unit  # the finest unit in it

    def __add__(self, other: Distance) -> Distance:  # type: ignore[override]  # not that of tuples
        return Distance(self.months + other.months, self.seconds + other.seconds, max(self.unit, other.unit))

    def __mul__(self, count: int) -> Distance:  # type: ignore[override]
        return Distance(self.months * count, self.seconds * count, self.unit)


_YEAR = Distance(12, 0, Unit.YEAR)
_MONTH = Distance(1, 0, Unit.MONTH)
_WEEK = Distance(0, 7 * DAY_SECONDS, Unit.DAY)  # seven days: no day of the week is defined as the first
_DAY = Distance(0, DAY_SECONDS, Unit.DAY)
_HOUR = Distance(0, 3600, Unit.HOUR)
_MINUTE = Distance(0, 60, Unit.MINUTE)
_SECOND = Distance(0, 1, Unit.SECOND)
_ONE = (_YEAR, _MONTH, _DAY, _HOUR, _MINUTE, _SECOND)

DISTANCES: Mapping[str, Distance] = MappingProxyType(
    {
        **dict.fromkeys(("y", "year", "years"), _YEAR),
        **dict.fromkeys(("month", "months"), _MONTH),
        **dict.fromkeys(("w", "week", "weeks"), _WEEK),
        **dict.fromkeys(("d", "day", "days"), _DAY),
        **dict.fromkeys(("h", "hour", "hours"), _HOUR),
        **dict.fromkeys(("m", "min", "minute", "minutes"), _MINUTE),
        **dict.fromkeys(("s", "sec", "second", "seconds"), _SECOND),
    }
)
"""Every name of a unit → the distance of one."""


class Period(NamedTuple):
    """One whole year, month, day, hour, minute or second."""

    begin: datetime  # its first moment, UTC
    unit: Unit  # its length

    @classmethod
    def of(cls, *numbers: int) -> Period:
        """Return the period of year, month, day …, as precise as they are; raise ValueError without such a date."""
        return cls(_at(*numbers), Unit(len(numbers) - 1))

    @classmethod
    def around(cls, time: datetime, unit: Unit) -> Period:
        """Return the period of this length that contains a UTC time."""
        return cls.of(*time.timetuple()[: unit + 1])

    @property
    def end(self) -> int:
        """The first moment after it, microseconds since 1970; also after the year 9999, the last of `datetime`."""
        try:
            return microseconds(self.moved(_ONE[self.unit]).begin)
        except OverflowError:
            return _END_OF_TIME

    @property
    def time_of_day(self) -> int:
        """Seconds from midnight to its beginning."""
        return self.begin.hour * 3600 + self.begin.minute * 60 + self.begin.second

    def moved(self, distance: Distance) -> Period:
        """Return the period moved by months, then by seconds, with the finer precision of the two.

        A day that does not exist becomes the last of the month: one month after 31 January is the end of February.

        Raises:
            OverflowError: the result is outside the years 1 to 9999.
        """
        year, month = divmod(self.begin.year * 12 + self.begin.month - 1 + distance.months, 12)
        if not 1 <= year <= 9999:
            raise OverflowError("year is out of range")
        day = min(self.begin.day, monthrange(year, month + 1)[1])
        begin = self.begin.replace(year=year, month=month + 1, day=day) + timedelta(seconds=distance.seconds)
        return Period(begin, max(self.unit, distance.unit))


def easter(year: int) -> Period:
    """Return Easter Sunday (Gregorian: Nature, 20 April 1876); raise ValueError outside of 1 to 9999."""
    golden, century, of_century = year % 19, year // 100, year % 100
    moon_correction = (century - (century + 8) // 25 + 1) // 3
    epact = (19 * golden + century - century // 4 - moon_correction + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (of_century // 4) - epact - of_century % 4) % 7
    late = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * late + 114, 31)
    return Period.of(year, month, day + 1)


def _at(year: int, month: int = 1, day: int = 1, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
