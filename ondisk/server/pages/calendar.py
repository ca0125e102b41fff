"""The calendar of a dataset: how many data each day, month or year has, and which have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

LEVELS = 4  # the number of shades; a period without data has none
_MOST_DAYS, _MOST_MONTHS, _MOST_YEARS = 800, 720, 2000
_LISTED = 60
_LENGTHS = {"day": 10, "month": 7, "year": 4}  # of the names of periods
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Unit: TypeAlias = Literal["day", "month", "year"]


class Cell(NamedTuple):
    name: str  # as a match expression and a page write it: 2026-11-20, 2026-11 or 2026
    # of its data
    count: int  # type: ignore[assignment]  # not the method of tuples
    level: int  # 0 without data, 1 for few, up to `LEVELS`
    missing: int = 0  # how many of its parts have no data: the days of a month, the months of a year


class Row(NamedTuple):
    """The periods of a month, a year or ten years; None where a column is outside of the dataset, or no such day."""

    name: str
    cells: list[Cell | None]


class Calendar(NamedTuple):
    unit: Unit  # what a cell is
    part: Unit  # the shortest periods that are counted: days, or months if the cells are years
    columns: list[str]  # the heads of the columns
    rows: list[Row]
    most: int  # the count from which on a period has the darkest shade
    gaps: list[str]  # parts without data between the first and the last, as `name` or `first to last`
    gap_count: int  # the number of parts without data; also of those that `gaps` does not list


def unit_of(begin: datetime, end: datetime) -> Unit:
    """Return what a cell is in the calendar of a time span."""
    if (end - begin).days <= _MOST_DAYS:
        return "day"
    return "month" if (end.year - begin.year + 1) * 12 <= _MOST_MONTHS else "year"


def part_of(unit: Unit) -> Unit:
    """Return which periods must be counted for a calendar: a missing day is seen in a calendar of months, too."""
    return "month" if unit == "year" else "day"


def calendar(unit: Unit, begin: datetime, end: datetime, counts: Iterable[tuple[datetime, int]]) -> Calendar:
    """Return the calendar from the first to the last datum. `counts`: begin of each part that has data, and number."""
    part = part_of(unit)
    known = {key.astimezone(UTC).date().isoformat()[: _LENGTHS[part]]: count for key, count in counts}
    first, last = begin.astimezone(UTC).date(), end.astimezone(UTC).date()
    if unit == "year":
        first = max(first, date(max(1, last.year - _MOST_YEARS), 1, 1))
    totals: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    gaps: list[str] = []
    for has_data, run in groupby(_names(part, first, last), known.__contains__):
        names = [*run]
        for name in names:
            whole = name[: _LENGTHS[unit]]
            totals[whole] += known.get(name, 0)
            missing[whole] += not has_data
        if not has_data:
            gaps.append(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}")
    # A tenth of the periods has the darkest shade: one with a hundred times as many leaves the others visible.
    in_order = sorted(count for count in totals.values() if count)
    most = in_order[len(in_order) * 9 // 10] if in_order else 1
    columns = {
        "day": [str(day) for day in range(1, 32)],
        "month": [*_MONTHS],
        "year": [f"…{digit}" for digit in range(10)],
    }[unit]
    rows: dict[str, list[Cell | None]] = {}
    for name in _names(unit, first, last):
        row, column = _place(name)
        count = totals[name]
        level = min(LEVELS, 1 + (LEVELS * count - 1) // most) if count else 0
        rows.setdefault(row, [None] * len(columns))[column] = Cell(name, count, level, missing[name])
    found = [Row(name, cells) for name, cells in rows.items()]
    return Calendar(unit, part, columns, found, most, gaps[:_LISTED], missing.total())


def _place(name: str) -> tuple[str, int]:
    if len(name) == _LENGTHS["day"]:
        return name[:7], int(name[8:]) - 1
    return (name[:4], int(name[5:]) - 1) if len(name) == _LENGTHS["month"] else (f"{name[:3]}0", int(name[3]))


def _names(unit: Unit, first: date, last: date) -> Iterable[str]:
    if unit == "day":
        return ((first + timedelta(number)).isoformat() for number in range((last - first).days + 1))
    if unit == "month":
        months = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
        return (f"{number // 12:04}-{number % 12 + 1:02}" for number in months)
    return (f"{year:04}" for year in range(first.year, last.year + 1))
