from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ondisk.datum import microseconds
from ondisk.matcher.reftime import DISTANCES, Distance, Period, Unit, easter

TIME = datetime(2008, 2, 29, 13, 14, 15, 16, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "begin", "end"),
    [
        (Unit.YEAR, datetime(2008, 1, 1), datetime(2009, 1, 1)),
        (Unit.MONTH, datetime(2008, 2, 1), datetime(2008, 3, 1)),
        (Unit.DAY, datetime(2008, 2, 29), datetime(2008, 3, 1)),
        (Unit.HOUR, datetime(2008, 2, 29, 13), datetime(2008, 2, 29, 14)),
        (Unit.MINUTE, datetime(2008, 2, 29, 13, 14), datetime(2008, 2, 29, 13, 15)),
        (Unit.SECOND, datetime(2008, 2, 29, 13, 14, 15), datetime(2008, 2, 29, 13, 14, 16)),
    ],
)
def test_a_period_begins_and_ends_with_its_unit(unit, begin, end):
    period = Period.around(TIME, unit)
    assert period.begin == begin.replace(tzinfo=UTC)
    assert period.end == microseconds(end.replace(tzinfo=UTC))


def test_a_period_moves_by_months_before_seconds_and_takes_the_finer_unit():
    moved = Period.of(2008, 1, 31).moved(Distance(1, 3600, Unit.HOUR))
    assert moved == Period.of(2008, 2, 29, 1)
    assert Period.of(2008, 1, 1, 5).moved(DISTANCES["week"]) == Period.of(2008, 1, 8, 5)


def test_distances_add_up():
    assert DISTANCES["month"] * 2 + DISTANCES["minutes"] * 3 == Distance(2, 180, Unit.MINUTE)


@pytest.mark.parametrize(
    "distance", [DISTANCES["year"], DISTANCES["y"] * 10**30, DISTANCES["day"] * 366, DISTANCES["s"] * 10**30]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_move_out_of_the_calendar_overflows(distance, sign):
    edge = Period.of(9999, 12, 31) if sign > 0 else Period.of(1)
    with pytest.raises(OverflowError):
        edge.moved(distance * sign)


# Dates from tables of churches and almanacs, including the earliest and the latest possible.
@pytest.mark.parametrize(
    "day",
    ["1818-03-22", "1954-04-18", "1981-04-19", "2000-04-23", "2008-03-23", "2024-03-31", "1943-04-25", "2038-04-25"],
)
def test_easter_is_the_gregorian_sunday(day):
    assert easter(int(day[:4])) == Period.of(*map(int, day.split("-")))


def test_easter_is_a_sunday_after_the_equinox_in_every_year():
    days = [easter(year).begin for year in range(1, 10_000)]
    assert all(day.isoweekday() == 7 for day in days)
    assert all(timedelta(0) <= day - day.replace(month=3, day=22) <= timedelta(days=34) for day in days)
