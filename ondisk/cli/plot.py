"""Draw groups of data as SVG: a year at a glance, without a library.

Groups by several keys are lines, one for each value of the other keys, along the period: of the numbers of data, or of
the means. Otherwise, a bar for each group has the number of its data. With another field, a bar reaches from its
lowest to its highest value in the group, and a line joins the means, except over periods without data. The title of a
bar or point, which browsers show under the pointer, has its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import Any, TypeAlias

from ondisk.cli.output import key_text, key_texts, number_text
from ondisk.cli.streams import printable
from ondisk.errors import InvalidInput, counted
from ondisk.index.groups import PERIODS, Group

MOST = 5_000  # groups in a plot, at most
_WIDTH, _HEIGHT = 960, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 950, 40, 310
_TICKS, _LABELS = 6, 8  # at the left and below, at most
_LONGEST = 16  # characters of a label
_ROOM = 100  # for a label
_HOURS = {"hour": 1, "day": 24, "month": 31 * 24, "year": 366 * 24}
_BAR, _SPAN, _LINE = "#4878a8", "#b8cce0", "#b04030"
# Distinct to all eyes.
_LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_Ends: TypeAlias = tuple[float, float] | None  # the lowest and highest number of a group, if it has any
_LEGEND = 20  # height of a line of the legend


def plot(groups: Sequence[Group], by: Sequence[str], of: str | None, zone: str) -> str:
    """Return a picture of groups, in order, as SVG; raise InvalidInput without numbers, or with too many lines."""
    along = next((name for name in by if name in PERIODS), by[0])
    series = _series(groups, by, along)
    if len(by) > 1 and len(series) > len(_LINES):
        hint = "Select fewer values with a match expression."
        raise InvalidInput(f"a plot has at most {len(_LINES)} lines, and these are {len(series)}", hint=hint)
    groups = [group for each in series.values() for group in each]
    spans = [(_point if len(by) > 1 else _span)(group, of) for group in groups]
    numbers = [value for span in spans if span for value in span]
    axis = _Axis(min(numbers, default=0.0), max(numbers, default=1.0))
    places, width = _places(groups, along)
    what = "number of data" if of is None else of
    drawn = (
        _lines(series, [*zip(places, spans, strict=True)], width, along, axis)
        if len(by) > 1
        else _bars(groups, spans, places, width, along, of, axis)
    )
    height = _HEIGHT + (_LEGEND * len(series) if len(by) > 1 else 0)
    title = f"{'mean ' if of is not None and len(by) > 1 else ''}{what} by {' and '.join(by)}"
    unit = f"data per {along}" if of is None and along in PERIODS else what
    axes = _axis_titles(unit, f"{along} ({zone})" if along in PERIODS else along)
    return "\n".join([*_frame(title, axis, height), *axes, *drawn, *_labels(groups, places, along), "</svg>\n"])


def _series(groups: Sequence[Group], by: Sequence[str], along: str) -> dict[str, list[Group]]:
    """Return the groups by the texts of their other keys, each with the one key `along` which they are drawn."""
    found: dict[str, list[Group]] = {}
    at = by.index(along)
    for group in groups:
        keys, texts = group.key if isinstance(group.key, tuple) else (group.key,), key_texts(group, by)
        name = ", ".join(f"{other} {text}" for other, text in zip(by, texts, strict=True) if other != along)
        found.setdefault(name, []).append(replace(group, key=keys[at]))
    return found


def _point(group: Group, of: str | None) -> _Ends:
    """Return the value of a group on its line, twice; None if it has none."""
    if of is None:
        return float(group.count), float(group.count)
    return None if _span(group, of) is None or group.mean is None else (group.mean, group.mean)


class _Axis:
    """The vertical axis: from a round number to a round number, with a line at each step; contains two numbers."""

    def __init__(self, low: float, high: float) -> None:
        self.step = _round_step(high / _TICKS - low / _TICKS)
        self._first = floor(low / self.step)
        self._count = max(ceil(high / self.step) - self._first, 1)

    def ticks(self) -> Iterator[float]:
        return ((self._first + number) * self.step for number in range(self._count + 1))

    def place(self, value: float) -> float:
        return round(_BOTTOM - (value / self.step - self._first) / self._count * (_BOTTOM - _TOP), 1)


def _round_step(least: float) -> float:
    """Return the first of 1, 2, 5, 10, 20 … (or 0.5, 0.2 …) that is not less."""
    if not least > 0:
        return 1.0
    power = 10.0 ** floor(log10(least))
    return next((each * power for each in (1, 2, 5) if each * power >= least), 10 * power)


def _span(group: Group, of: str | None) -> _Ends:
    """Return the ends of the bar of a group; None if it has none."""
    if of is None:
        return 0.0, float(group.count)
    if isinstance(group.min, datetime):
        hint = "Name a field of numbers, or omit --plot."
        raise InvalidInput(f"{of} is a time, and only numbers are drawn", hint=hint)
    if not isinstance(group.min, int | float) or not isinstance(group.max, int | float):
        return None
    return (float(group.min), float(group.max)) if isfinite(group.min) and isfinite(group.max) else None


def _places(groups: Sequence[Group], by: str) -> tuple[list[float], float]:
    """Return where the bar of each group begins, and how wide all are: periods by time, values side by side."""
    hours = _hours(groups, by)
    begin, end = min(hours, default=0.0), max(hours, default=0.0) + _HOURS.get(by, 1)
    each = (_RIGHT - _LEFT) / (end - begin)
    return [round(_LEFT + (hour - begin) * each, 1) for hour in hours], max(round(_HOURS.get(by, 1) * each, 1), 1.0)


def _hours(groups: Sequence[Group], by: str) -> list[float]:
    """Return when each period begins, hours since 1970; the number of each other group, by its key."""
    keys: list[Any] = [group.key for group in groups]
    if by in PERIODS:
        return [key.timestamp() / 3600 for key in keys]
    numbers = {key: float(number) for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def _lines(
    series: Mapping[str, Sequence[Group]], points: Sequence[tuple[float, _Ends]], width: float, by: str, axis: _Axis
) -> Iterator[str]:
    left = iter(points)
    for number, (name, groups) in enumerate(series.items()):
        colour, last, path = _LINES[number], None, ""
        for group, hour, (place, values) in zip(groups, _hours(groups, by), left, strict=False):
            if values is None:
                continue
            x, y = round(place + width / 2, 1), axis.place(values[0])
            joined = last is not None and by in PERIODS and hour - last <= _HOURS[by] + 1  # 25 hours in autumn
            path, last = path + f"{'L' if joined else 'M'}{x} {y}h1", hour
            title = _title(f"{name}, {key_text(group.key, by)}: {number_text(values[0])}")
            yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}">{title}</circle>'
        yield f'<path d="{path or "M0 0"}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        y = _HEIGHT + number * _LEGEND
        yield f'<path d="M{_LEFT} {y}h24" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{_LEFT + 32}" y="{y + 4}">{_text(name)}</text>'


def _bars(
    groups: Sequence[Group],
    spans: Sequence[_Ends],
    places: Sequence[float],
    width: float,
    by: str,
    of: str | None,
    axis: _Axis,
) -> Iterator[str]:
    means: list[tuple[float, float, float]] = []
    for group, span, place, hour in zip(groups, spans, places, _hours(groups, by), strict=True):
        if span is None:
            continue
        bottom, top = map(axis.place, span)
        colour, height = (_BAR if of is None else _SPAN), max(round(bottom - top, 1), 1)
        title = f"{key_text(group.key, by)}: {counted(group.count, 'datum')}"
        if of is not None:
            title += f", {of} {number_text(group.min)} to {number_text(group.max)}, mean {number_text(group.mean)}"
            means.append((hour, round(place + width / 2, 1), axis.place(group.mean or 0.0)))
        yield f'<rect x="{place}" y="{top}" width="{width}" height="{height}" fill="{colour}">{_title(title)}</rect>'
    if by not in PERIODS:
        yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{_LINE}"/>' for _, x, y in means)
    elif means:
        line = f"M{means[0][1]} {means[0][2]}h1"
        for (before, *_), (hour, x, y) in pairwise(means):
            line += f"{'L' if hour - before <= _HOURS[by] + 1 else 'M'}{x} {y}h1"
        yield f'<path d="{line}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>'


def _axis_titles(left: str, below: str) -> Iterator[str]:
    middle = (_TOP + _BOTTOM) // 2
    yield f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">{_text(left)}</text>'
    yield f'<text x="{(_LEFT + _RIGHT) // 2}" y="{_BOTTOM + 45}" text-anchor="middle">{_text(below)}</text>'


def _frame(title: str, axis: _Axis, height: int) -> Iterator[str]:
    size = f'width="{_WIDTH}" height="{height}"'
    style = 'style="font: 12px sans-serif"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {height}" {style}>'
    yield f'<rect {size} fill="white"/>'
    yield f'<text x="{_LEFT}" y="24" font-size="16">{_text(title)}</text>'
    for tick in axis.ticks():
        at = axis.place(tick)
        yield f'<path d="M{_LEFT} {at}H{_RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{tick:.10g}</text>'


def _labels(groups: Sequence[Group], places: Sequence[float], by: str) -> Iterator[str]:
    yield f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="black"/>'
    texts = {place: key_text(group.key, by) for group, place in zip(groups, places, strict=True)}
    for place, text in sorted(texts.items())[:: max(ceil(len(texts) / _LABELS), 1)]:
        cut = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        anchor = ' text-anchor="end"' if place > _RIGHT - _ROOM else ""
        yield f'<text x="{place}" y="{_BOTTOM + 20}"{anchor}>{_text(cut)}</text>'


def _title(text: str) -> str:
    return f"<title>{_text(text)}</title>"


def _text(text: str) -> str:
    return escape(printable(text))
