"""The calendar of a dataset: how many data each day, month or year has, and which have none."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple, TypeAlias

LEVELS = 4
"""The number of shades; a period without data has none."""

_MOST_DAYS, _MOST_MONTHS, _MOST_YEARS = 800, 720, 2000
_LISTED = 60
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Unit: TypeAlias = Literal["day", "month", "year"]


class Cell(NamedTuple):
    """A period.

    Attributes:
        name: as a match expression and a page write it: 2026-11-20, 2026-11 or 2026.
        count: of its data.
        level: 0 without data, 1 for few, up to `LEVELS`.
    """

    name: str
    count: int  # type: ignore[assignment]  # not the method of tuples
    level: int


class Row(NamedTuple):
    """The periods of a month, a year or ten years; None where a column is outside of the dataset, or no such day."""

    name: str
    cells: list[Cell | None]


class Calendar(NamedTuple):
    """A table of periods.

    Attributes:
        unit: what a cell is.
        columns: the heads of the columns.
        most: the count from which on a period has the darkest shade.
        gaps: periods without data between the first and the last, as `name` or `first to last`.
        gap_count: the number of periods without data; also of those that `gaps` does not list.
    """

    unit: Unit
    columns: list[str]
    rows: list[Row]
    most: int
    gaps: list[str]
    gap_count: int


def unit_of(begin: datetime, end: datetime) -> Unit:
    """Return what a cell is in the calendar of a time span."""
    if (end - begin).days <= _MOST_DAYS:
        return "day"
    return "month" if (end.year - begin.year + 1) * 12 <= _MOST_MONTHS else "year"


def calendar(unit: Unit, begin: datetime, end: datetime, counts: Iterable[tuple[datetime, int]]) -> Calendar:
    """Return the calendar from the first to the last datum.

    Args:
        counts: the begin of each period that has data, in UTC, and their number.
    """
    known = {_name(unit, key.astimezone(UTC).date()): count for key, count in counts}
    first, last = begin.astimezone(UTC).date(), end.astimezone(UTC).date()
    if unit == "year":
        first = max(first, date(max(1, last.year - _MOST_YEARS), 1, 1))
    # A tenth of the periods has the darkest shade: one with a hundred times as many leaves the others visible.
    in_order = sorted(known.values())
    most = in_order[len(in_order) * 9 // 10] if in_order else 0
    rows: dict[str, list[Cell | None]] = {}
    columns = {
        "day": [str(day) for day in range(1, 32)],
        "month": [*_MONTHS],
        "year": [f"…{digit}" for digit in range(10)],
    }[unit]
    empty: list[list[str]] = []  # runs of periods without data
    was_empty = False
    for each in _periods(unit, first, last):
        name = _name(unit, each)
        row, column = _place(unit, each)
        count = known.get(name, 0)
        level = min(LEVELS, 1 + (LEVELS * count - 1) // most if most else 1) if count else 0
        rows.setdefault(row, [None] * len(columns))[column] = Cell(name, count, level)
        if not count:
            if was_empty:
                empty[-1][1:] = [name]
            else:
                empty.append([name])
        was_empty = not count
    gaps = [" to ".join(run) for run in empty[:_LISTED]]
    cells = (cell for row in rows.values() for cell in row)
    gap_count = sum(cell is not None and not cell.count for cell in cells)
    return Calendar(unit, columns, [Row(name, row) for name, row in rows.items()], most, gaps, gap_count)


def _name(unit: Unit, day: date) -> str:
    return day.isoformat()[: {"day": 10, "month": 7, "year": 4}[unit]]


def _place(unit: Unit, day: date) -> tuple[str, int]:
    """Return the name of the row of a period, and its column."""
    if unit == "day":
        return day.isoformat()[:7], day.day - 1
    if unit == "month":
        return day.isoformat()[:4], day.month - 1
    return f"{day.year // 10:03}0", day.year % 10


def _periods(unit: Unit, first: date, last: date) -> Iterable[date]:
    """Yield a day of each period."""
    if unit == "day":
        yield from (first + timedelta(number) for number in range((last - first).days + 1))
    elif unit == "month":
        for number in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
            yield date(number // 12, number % 12 + 1, 1)
    else:
        yield from (date(year, 1, 1) for year in range(first.year, last.year + 1))
