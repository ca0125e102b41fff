"""The calendar shows each period between the first and the last datum, and which have no data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.server.pages.calendar import LEVELS, calendar, unit_of

BEGIN = datetime(2026, 11, 28, 23, tzinfo=UTC)


def test_days_without_data_are_seen_and_listed():
    counts = [(BEGIN.replace(hour=0), 5), (datetime(2026, 12, 3, tzinfo=UTC), 100)]
    found = calendar("day", BEGIN, datetime(2026, 12, 3, 1, tzinfo=UTC), counts)
    assert [row.name for row in found.rows] == ["2026-11", "2026-12"]
    assert (found.gaps, found.gap_count) == (["2026-11-29 to 2026-12-02"], 4)
    november, december = (row.cells for row in found.rows)
    assert [cell and cell[:] for cell in november[26:]] == [
        None,
        ("2026-11-28", 5, 1, 0),
        ("2026-11-29", 0, 0, 1),
        ("2026-11-30", 0, 0, 1),
        None,
    ]
    assert december[2] == ("2026-12-03", 100, LEVELS, 0)
    assert december[3] is None


@pytest.mark.parametrize(
    ("days", "unit"), [(0, "day"), (800, "day"), (802, "month"), (365 * 50, "month"), (365 * 70, "year")]
)
def test_a_cell_is_a_day_a_month_or_a_year_by_the_span(days, unit):
    end = BEGIN + timedelta(days)
    assert unit_of(BEGIN, end) == unit
    found = calendar(unit, BEGIN, end, [(BEGIN, 1), (end, 1)])
    assert sum(cell is not None for row in found.rows for cell in row.cells) <= 801


def test_a_missing_day_is_seen_in_a_calendar_of_months():
    first = datetime(2024, 1, 1, tzinfo=UTC)
    counts = [(first + timedelta(day), 10) for day in range(1000) if day not in (64, 65, 200)]
    found = calendar("month", first, first + timedelta(999), counts)
    cells = {cell.name: cell for row in found.rows for cell in row.cells if cell}
    assert (cells["2024-03"].missing, cells["2024-07"].missing, cells["2024-04"].missing) == (2, 1, 0)
    assert (found.part, found.gaps) == ("day", ["2024-03-05 to 2024-03-06", "2024-07-19"])


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 10**6)), min_size=1, unique_by=lambda each: each[0]))
def test_every_day_is_a_cell_with_its_count(days):
    first = BEGIN.replace(hour=0)
    counts = {(first + timedelta(day)): count for day, count in sorted(days)}
    found = calendar("day", min(counts), max(counts), counts.items())
    cells = [cell for row in found.rows for cell in row.cells if cell is not None]
    assert {cell.name: cell.count for cell in cells if cell.count} == {
        day.date().isoformat(): count for day, count in counts.items()
    }
    assert [cell.name for cell in cells] == sorted(cell.name for cell in cells)
    assert all((cell.level > 0) == (cell.count > 0) and cell.level <= LEVELS for cell in cells)


def test_one_period_with_very_many_data_leaves_the_others_visible():
    counts = [(BEGIN.replace(hour=0) + timedelta(day), 10**6 if day == 7 else 10 * (1 + day % 2)) for day in range(50)]
    found = calendar("day", BEGIN, BEGIN + timedelta(49), counts)
    assert {cell.level for row in found.rows for cell in row.cells if cell} == {2, LEVELS}


def test_the_whole_range_of_times_has_a_calendar():
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
    found = calendar(unit_of(first, last), first, last, [(last, 1)])
    assert found.unit == "year"
    assert found.rows[-1].name == "9990"
