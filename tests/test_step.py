from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ondisk import Step
from ondisk.datum import from_microseconds, microseconds
from ondisk.step import DAY, Interval, days_ago, runs_of

# From dataset.md and arkimet's ondisk2: the name of a time's segment, for each step.
NAMES = {
    "2007-07-08T13:00:00": {
        "hourly": "2007/07-08T13",
        "daily": "2007/07-08",
        "weekly": "2007/07-2",
        "biweekly": "2007/07-1",
        "monthly": "2007/07",
        "yearly": "20/2007",
    },
    "2007-07-07T23:59:59": {
        "hourly": "2007/07-07T23",
        "daily": "2007/07-07",
        "weekly": "2007/07-1",
        "biweekly": "2007/07-1",
        "monthly": "2007/07",
        "yearly": "20/2007",
    },
    "2007-07-15T23:59:59": {"weekly": "2007/07-3", "biweekly": "2007/07-1"},
    "2007-07-16T00:00:00": {"weekly": "2007/07-3", "biweekly": "2007/07-2"},
    "2007-07-29T00:00:00": {"weekly": "2007/07-5", "biweekly": "2007/07-2"},
    "2024-02-29T12:00:00": {"daily": "2024/02-29", "weekly": "2024/02-5", "biweekly": "2024/02-2"},
    "2023-02-28T12:00:00": {"daily": "2023/02-28", "weekly": "2023/02-4", "biweekly": "2023/02-2"},
    "1999-12-31T23:59:59": {"daily": "1999/12-31", "monthly": "1999/12", "yearly": "19/1999"},
    "2000-01-01T00:00:00": {"daily": "2000/01-01", "monthly": "2000/01", "yearly": "20/2000"},
    "0001-01-01T00:59:59": {"hourly": "0001/01-01T00"},
    "0001-01-01T00:00:00": {
        "daily": "0001/01-01",
        "weekly": "0001/01-1",
        "monthly": "0001/01",
        "yearly": "00/0001",
    },
    "9999-12-31T23:59:59": {
        "hourly": "9999/12-31T23",
        "daily": "9999/12-31",
        "weekly": "9999/12-5",
        "biweekly": "9999/12-2",
        "monthly": "9999/12",
        "yearly": "99/9999",
    },
}


@pytest.mark.parametrize(
    ("time", "step", "stem"), [(time, step, stem) for time, names in NAMES.items() for step, stem in names.items()]
)
def test_segments_are_named_as_arkimet_names_them(time, step, stem):
    reftime = microseconds(datetime.fromisoformat(time).replace(tzinfo=UTC))
    assert Step(step).stem(reftime) == stem
    interval = Step(step).interval(stem)
    assert interval.begin <= reftime < interval.end


@pytest.mark.parametrize("step", ["hourly", "daily"])
def test_runs_are_the_same_in_and_out_of_order(step):
    unit = Step(step).unit
    times = [-1, 0, 1, unit - 1, unit, 5 * unit]
    assert runs_of(unit, times) == [(-1, 1), (0, 3), (1, 1), (5, 1)]
    assert runs_of(unit, [0, -1, 1, 2]) == [(0, 1), (-1, 1), (0, 2)]


def test_the_last_microsecond_of_a_day_is_of_that_day():
    reftime = microseconds(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
    assert Step.DAILY.stem(reftime) == "1969/12-31"
    assert Step.DAILY.stem(reftime + 1) == "1970/01-01"


@pytest.mark.parametrize(
    ("step", "stem", "begin", "end"),
    [
        ("daily", "2024/02-29", "2024-02-29", "2024-03-01"),
        ("hourly", "2024/02-29T00", "2024-02-29", "2024-02-29"),
        ("hourly", "2024/02-29T23", "2024-02-29", "2024-03-01"),
        ("weekly", "2024/02-5", "2024-02-29", "2024-03-01"),
        ("weekly", "2007/07-4", "2007-07-22", "2007-07-29"),
        ("weekly", "2007/12-5", "2007-12-29", "2008-01-01"),
        ("biweekly", "2007/07-1", "2007-07-01", "2007-07-16"),
        ("biweekly", "2007/12-2", "2007-12-16", "2008-01-01"),
        ("monthly", "2007/12", "2007-12-01", "2008-01-01"),
        ("yearly", "20/2000", "2000-01-01", "2001-01-01"),
        ("yearly", "19/1900", "1900-01-01", "1901-01-01"),
    ],
)
def test_a_name_has_its_interval(step, stem, begin, end):
    interval = Step(step).interval(stem)
    assert f"{from_microseconds(interval.begin):%Y-%m-%d}" == begin
    assert f"{from_microseconds(interval.end):%Y-%m-%d}" == end


@pytest.mark.parametrize(
    ("step", "stem"),
    [
        ("daily", "2023/02-29"),
        ("daily", "2007/13-01"),
        ("daily", "2007/00-01"),
        ("daily", "0000/01-01"),
        ("daily", "2007/7-8"),
        ("daily", "2007/07-08 "),
        ("daily", "2007/07-08\n"),
        ("daily", "x2007/07-08"),
        ("daily", "../2007/07-08"),
        ("daily", "2007/07"),
        ("daily", "2007/07-08T13"),
        ("hourly", "2007/07-08"),
        ("hourly", "2007/07-08T24"),
        ("hourly", "2007/07-08t13"),
        ("hourly", "2007/07-08T3"),
        ("hourly", "2007/02-29T13"),
        ("daily", "\u0662\u0660\u0660\u0667/07-08"),
        ("weekly", "2023/02-5"),
        ("weekly", "2007/07-6"),
        ("weekly", "2007/07-0"),
        ("biweekly", "2007/07-3"),
        ("monthly", "2007/13"),
        ("yearly", "19/2007"),
        ("yearly", "20/20070"),
        ("yearly", "00/0000"),
        *((step, "") for step in Step),
    ],
)
def test_a_name_of_no_step_has_no_interval(step, stem):
    assert Step(step).interval(stem) is None


def test_an_interval_contains_its_begin_and_not_its_end():
    assert [time for time in range(-1, 4) if time in Interval(0, 3)] == [0, 1, 2]


@pytest.mark.parametrize("seconds", [0, 1, 86_399.9])
def test_ages_count_whole_days_in_utc(seconds):
    now = 20_000 * 86_400 + seconds
    assert [days_ago(days, now) for days in (0, 1, 30)] == [20_000 * DAY, 19_999 * DAY, 19_970 * DAY]
