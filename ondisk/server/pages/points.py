"""What a plot draws: numbers by time, from columns of Arrow; of many data lowest, mean and highest of each pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple

from ondisk.dataset.dataset import Dataset
from ondisk.dataset.expression import expression
from ondisk.datum import CONTENT, FieldType, from_microseconds, microseconds
from ondisk.errors import InvalidInput, LimitExceeded, shown
from ondisk.matcher import Expression
from ondisk.server.pages.content import cut, text_of
from ondisk.tables import installed
from ondisk.tables.columns import ends, index_columns

MOST_POINTS = 100_000  # of more data, each pixel shows the lowest, the mean and the highest; of fewer, each time
MOST_SERIES, _MOST_LISTED = 12, 200
WIDEST = 4000  # pixels
_NUMBERS = (FieldType.INTEGER, FieldType.REAL)
_MOST_PARTS = 2_000_000  # rows of unfinished sums
_SECOND = 1_000_000


class Wanted(NamedTuple):
    match: str  # a match expression
    y: str  # the column of the numbers, such as `data.wind`
    by: str  # the field whose values have a line each; empty for one line
    begin: datetime | None = None  # begin, end: the span of time; None for all
    end: datetime | None = None
    width: int = 1000  # of the plot, in pixels


def numeric_columns(dataset: Dataset) -> list[str]:
    keys: dict[str, None] = {}
    for content in (datum.data for datum in ends(dataset) if isinstance(datum.data, dict)):
        keys |= {CONTENT + key: None for key, value in content.items() if type(value) in (int, float)}
    fields = [label for label, (name, kind) in index_columns(dataset.config).items() if name and kind in _NUMBERS]
    return [*keys, *fields]


def points(dataset: Dataset, wanted: Wanted) -> dict[str, Any]:
    """Return what a plot draws, ready for JSON: series with their points, or with a band for each pixel.

    Raises LimitExceeded if the field to group by has too many values, StateError if pyarrow is not installed.

    Cost: reads the data that match, once. Memory: `MOST_POINTS`, or the pixels of all series.
    """
    condition = _condition(dataset, wanted)
    total = dataset.summary(condition, fields=[])
    if total.begin is None or total.end is None:
        return {"count": 0, "reduced": False, "series": [], "others": 0}
    begin, end = wanted.begin or total.begin, wanted.end or total.end
    width, pixel = max(1, min(wanted.width, WIDEST)), 1  # microseconds
    if total.count > MOST_POINTS:
        pixel = (microseconds(end) - microseconds(begin)) // width + 1
    with installed():
        from ondisk.server.pages import arrow_points

    kind = "real" if wanted.y.startswith(CONTENT) else None  # a field has its own type
    fields = index_columns(dataset.config)
    if kind is None and wanted.y in fields and fields[wanted.y][1] not in _NUMBERS:
        raise InvalidInput(f"{shown(wanted.y)} is not a number", hint="Choose a field or a column of numbers.")
    columns: dict[str, Any] = {"reftime": None, wanted.y: kind} | ({wanted.by: None} if wanted.by else {})
    if wanted.by in ("reftime", wanted.y):
        raise InvalidInput(f"{shown(wanted.by)} cannot be both an axis and the group", hint="Choose another field.")
    batches = arrow_points.columns(dataset.to_arrow(condition, columns=columns), wanted.y, wanted.by)
    found = arrow_points.by_pixel(batches, microseconds(begin), pixel, _MOST_PARTS)
    if found is None:
        hint = "Choose another field, or select fewer data."
        raise LimitExceeded(f"{shown(wanted.by)} has too many values to draw a line for each", hint=hint)
    # Groups of about the same size are in the order of their names, so that a zoom draws the same ones.
    in_order = sorted(found.items(), key=lambda each: (-sum(each[1]["n"]).bit_length(), _by_name(each[0])))
    drawn = sorted(in_order[:MOST_SERIES], key=lambda each: _by_name(each[0]))
    is_reduced = any(count > 1 for _, columns in drawn for count in columns["n"])
    lines = [_series(wanted, key, columns) | _line(columns, is_reduced=is_reduced) for key, columns in drawn]
    others = [_series(wanted, key, columns) for key, columns in in_order[MOST_SERIES:_MOST_LISTED]]
    return {
        "count": total.count,
        "reduced": is_reduced,
        "begin": microseconds(begin) / _SECOND,
        "end": microseconds(end) / _SECOND,
        "series": lines + others,
        "others": len(in_order) - len(drawn),
    }


def _by_name(key: Any) -> tuple[int, float, str]:
    """Return what orders the values of a field: numbers, then texts, then none."""
    if isinstance(key, int | float):
        return 0, key, ""
    return (2, 0, "") if key is None else (1, 0, str(key))


def _condition(dataset: Dataset, wanted: Wanted) -> Expression:
    fields = dataset.fields
    found = expression(wanted.match, dataset.config, dataset.path)
    if wanted.begin is not None:
        found &= fields["reftime"] >= wanted.begin
    if wanted.end is not None:
        found &= fields["reftime"] < wanted.end
    return found


def _mean(total: float, count: int) -> float | None:
    """Return the mean of numbers; None if their sum is too large for a real."""
    return total / count if isfinite(total) else None


def _series(wanted: Wanted, key: Any, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    least = min(range(len(columns["min"])), key=columns["min"].__getitem__)
    most = max(range(len(columns["max"])), key=columns["max"].__getitem__)
    label = wanted.y.removeprefix(CONTENT) if not wanted.by else "–" if key is None else cut(text_of(key))
    count = sum(columns["n"])
    return {
        "label": label,
        "count": count,
        "lowest": [columns["min"][least], columns["time"][least] / _SECOND],
        "mean": _mean(sum(columns["sum"]), count),
        "highest": [columns["max"][most], columns["time"][most] / _SECOND],
    }


def _line(columns: Mapping[str, Sequence[Any]], *, is_reduced: bool) -> dict[str, Any]:
    return {
        "x": [time / _SECOND for time in columns["time"]],
        **({"min": columns["min"], "max": columns["max"]} if is_reduced else {}),
        "y": [_mean(*each) for each in zip(columns["sum"], columns["n"], strict=True)],
    }


def time_of(seconds: str) -> datetime | None:
    """Return the time of a parameter, seconds since 1970; None if it is empty."""
    if not seconds:
        return None
    try:
        return from_microseconds(int(float(seconds) * _SECOND))
    except (ValueError, OverflowError):
        raise InvalidInput(f"{shown(seconds)} is not a time in seconds since 1970") from None
