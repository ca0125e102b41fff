"""Properties of every step and every time, checked against the calendar."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import STEPS_OF_TIME

from ondisk.datum import from_microseconds, microseconds
from ondisk.step import DAY, Step

steps = st.sampled_from(STEPS_OF_TIME)
times = st.datetimes(datetime(1900, 1, 1), datetime(2200, 12, 31, 23, 59, 59, 999_999), timezones=st.just(UTC))
CENTURIES = (date(1900, 1, 1), date(2201, 1, 1))


def whole(step: Step, reftime: int):
    """Return the interval of the segment of a reftime."""
    interval = step.interval(step.stem(reftime))
    assert interval is not None, "a step can read the name that it wrote"
    return interval


def expected(step: Step, on: date) -> tuple[date, date]:
    """Return the first day and the day after the last of the segment of a day, by the calendar alone."""
    last = monthrange(on.year, on.month)[1]
    match step:
        case Step.DAILY | Step.HOURLY:
            first, final = on, on
        case Step.WEEKLY:
            first = on.replace(day=(on.day - 1) // 7 * 7 + 1)
            final = on.replace(day=min(first.day + 6, last))
        case Step.BIWEEKLY:
            first, final = (
                (on.replace(day=1), on.replace(day=15)) if on.day < 16 else (on.replace(day=16), on.replace(day=last))
            )
        case Step.MONTHLY:
            first, final = on.replace(day=1), on.replace(day=last)
        case Step.YEARLY:
            first, final = date(on.year, 1, 1), date(on.year, 12, 31)
    return first, final + timedelta(days=1)


@given(steps, times)
@example(Step.WEEKLY, datetime(2023, 2, 28, 23, 59, 59, 999_999, UTC))
@example(Step.WEEKLY, datetime(2024, 2, 29, tzinfo=UTC))
@example(Step.BIWEEKLY, datetime(1900, 2, 28, 12, tzinfo=UTC))
@example(Step.DAILY, datetime(2000, 2, 29, tzinfo=UTC))
@example(Step.YEARLY, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
def test_every_time_lies_in_the_segment_that_is_named_for_it(step, time):
    interval = whole(step, microseconds(time))
    first, behind = (datetime(on.year, on.month, on.day, tzinfo=UTC) for on in expected(step, time.date()))
    if step is Step.HOURLY:
        first = time.replace(minute=0, second=0, microsecond=0)
        behind = first + timedelta(hours=1)
    assert (from_microseconds(interval.begin), from_microseconds(interval.end)) == (first, behind)
    assert interval.begin <= microseconds(time) < interval.end


@given(steps, times)
def test_a_name_read_back_is_the_same_name(step, time):
    stem = step.stem(microseconds(time))
    interval = step.interval(stem)
    assert step.stem(interval.begin) == stem
    assert step.stem(interval.end - 1) == stem


@given(steps, times)
def test_neighbouring_segments_meet_without_gap_or_overlap(step, time):
    interval = whole(step, microseconds(time))
    assert whole(step, interval.end).begin == interval.end
    assert whole(step, interval.begin - 1).end == interval.begin


@given(steps, times, times)
def test_two_times_share_a_segment_or_their_segments_are_disjoint(step, one, other):
    first, second = whole(step, microseconds(one)), whole(step, microseconds(other))
    same_name = step.stem(microseconds(one)) == step.stem(microseconds(other))
    assert same_name is (first == second)
    assert same_name or first.end <= second.begin or second.end <= first.begin


@pytest.mark.check
@pytest.mark.parametrize("step", STEPS_OF_TIME)
def test_three_centuries_are_covered_day_by_day(step):
    first, behind = ((each - date(1970, 1, 1)).days for each in CENTURIES)
    begins = {}
    a_day = DAY // step.unit
    if step is Step.HOURLY:  # one century would take minutes
        first, behind = behind - 1000, behind
    first, behind = first * a_day, behind * a_day
    for unit in range(first, behind):
        begins.setdefault(step.stem_of(unit), unit)
    stems = list(begins)
    for stem, following in zip(stems, [*stems[1:], None], strict=True):
        interval = step.interval(stem)
        end = behind if following is None else begins[following]
        assert (interval.begin, interval.end) == (begins[stem] * step.unit, end * step.unit)
    years = CENTURIES[1].year - CENTURIES[0].year
    short_februaries = sum(monthrange(year, 2)[1] == 28 for year in range(CENTURIES[0].year, CENTURIES[1].year))
    counts = {"hourly": behind - first, "daily": behind - first, "weekly": years * 60 - short_februaries,
              "biweekly": years * 24, "monthly": years * 12, "yearly": years}  # fmt: skip
    assert len(stems) == counts[step]


@given(steps, st.text() | st.from_regex(r"[0-9]{1,5}/[0-9]{1,4}(-[0-9]{1,2})?(T[0-9]{1,2})?", fullmatch=True))
def test_any_other_name_is_that_of_no_segment(step, text):
    interval = step.interval(text)
    assert interval is None or step.stem(interval.begin) == text
