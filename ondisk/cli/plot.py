"""Draw groups of data as SVG: a year at a glance, without a library.

Groups by several keys are lines, one for each value of the other keys, along the period: of the numbers of data, or of
the means. Otherwise, a bar for each group has the number of its data. With another field, a bar reaches from its
lowest to its highest value in the group, and a line joins the means, except over periods without data. The title of a
bar or point, which browsers show under the pointer, has its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from math import ceil, floor, isfinite, log10
from typing import Any, NamedTuple

from ondisk.cli.output import key_texts, number_text
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
_LEGEND = 20  # height of a line of the legend


class _Point(NamedTuple):
    hour: float  # when its period begins, since 1970; the number of any other key
    label: str
    title: str
    numbers: tuple[float, float, float] | None  # the lowest, the mean and the highest, if there are any


def plot(groups: Sequence[Group], by: Sequence[str], of: str | None, zone: str) -> str:
    """Return a picture of groups, in order, as SVG; raise InvalidInput without numbers, or with too many lines."""
    along = next((name for name in by if name in PERIODS), by[0])
    series = _series(groups, by, along, of)
    has_lines = len(by) > 1
    if has_lines and len(series) > len(_LINES):
        hint = "Select fewer values with a match expression."
        raise InvalidInput(f"a plot has at most {len(_LINES)} lines, and these are {len(series)}", hint=hint)
    points = [each for some in series.values() for each in some]
    numbers = [each.numbers[1:2] if has_lines else each.numbers for each in points if each.numbers is not None]
    axes = _Axes([each.hour for each in points], [value for some in numbers for value in some], _HOURS.get(along, 1))
    apart = _HOURS[along] + 1 if along in PERIODS else 0  # an hour more, as a day has 25 of them in autumn
    drawn: list[str] = []
    if not has_lines:
        drawn += _bars(points, axes, _BAR if of is None else _SPAN)
        if of is not None:
            drawn += _line(points, axes, _LINE, apart)
    else:
        for number, (name, some) in enumerate(series.items()):
            drawn += _line(some, axes, _LINES[number], apart)
            drawn += _legend(name, number)
    what = "number of data" if of is None else of
    title = f"{'mean ' if of is not None and has_lines else ''}{what} by {' and '.join(by)}"
    unit = f"data per {along}" if of is None and along in PERIODS else what
    titles = _axis_titles(unit, f"{along} ({zone})" if along in PERIODS else along)
    height = _HEIGHT + (_LEGEND * len(series) if has_lines else 0)
    return "\n".join([*_frame(title, axes, height), *titles, *drawn, *_labels(points, axes), "</svg>\n"])


def _series(groups: Sequence[Group], by: Sequence[str], along: str, of: str | None) -> dict[str, list[_Point]]:
    """Return the points of groups, by the texts of their keys other than `along`, which they are drawn along."""
    found: dict[str, list[_Point]] = {}
    places: dict[Any, float] = {}  # of keys that are not times: side by side
    for group in groups:
        keys, texts = group.key if isinstance(group.key, tuple) else (group.key,), key_texts(group, by)
        known = dict(zip(by, zip(keys, texts, strict=True), strict=True))
        key, label = known.pop(along)
        if along in PERIODS and isinstance(key, datetime):
            hour = key.timestamp() / 3600
        else:
            hour = places.setdefault(key, float(len(places)))
        name = ", ".join(f"{other} {text}" for other, (_, text) in known.items())
        title = f"{name}{', ' * bool(name)}{label}: {counted(group.count, 'datum')}"
        if of is not None:
            title += f", {of} {number_text(group.min)} to {number_text(group.max)}, mean {number_text(group.mean)}"
        found.setdefault(name, []).append(_Point(hour, label, title, _numbers(group, of)))
    return found


def _numbers(group: Group, of: str | None) -> tuple[float, float, float] | None:
    if of is None:
        return 0.0, float(group.count), float(group.count)
    if isinstance(group.min, datetime):
        hint = "Name a field of numbers, or omit --plot."
        raise InvalidInput(f"{of} is a time, and only numbers are drawn", hint=hint)
    numbers = [each for each in (group.min, group.mean, group.max) if isinstance(each, int | float) and isfinite(each)]
    return (float(numbers[0]), float(numbers[1]), float(numbers[2])) if len(numbers) == 3 else None


class _Axes:
    """Where hours and values are in the picture; the vertical axis has a line at each step, and ends at two of them."""

    def __init__(self, hours: Sequence[float], values: Sequence[float], length: int) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        self._step = _round_step(high / _TICKS - low / _TICKS)
        self._first = floor(low / self._step)
        self._count = max(ceil(high / self._step) - self._first, 1)
        self._begin = min(hours, default=0.0)
        self._hour = (_RIGHT - _LEFT) / (max(hours, default=0.0) + length - self._begin)
        self.width = max(round(length * self._hour, 1), 1.0)

    def ticks(self) -> Iterator[float]:
        return ((self._first + number) * self._step for number in range(self._count + 1))

    def x(self, hour: float) -> float:
        return round(_LEFT + (hour - self._begin) * self._hour, 1)

    def y(self, value: float) -> float:
        return round(_BOTTOM - (value / self._step - self._first) / self._count * (_BOTTOM - _TOP), 1)


def _round_step(least: float) -> float:
    """Return the first of 1, 2, 5, 10, 20 … (or 0.5, 0.2 …) that is not less."""
    if not least > 1e-300:  # the power of a smaller one is 0
        return 1.0
    power = 10.0 ** floor(log10(least))
    return next((each * power for each in (1, 2, 5) if each * power >= least), 10 * power)


def _bars(points: Sequence[_Point], axes: _Axes, colour: str) -> Iterator[str]:
    for each in points:
        if each.numbers is not None:
            low, _, high = map(axes.y, each.numbers)
            place = f'x="{axes.x(each.hour)}" y="{high}" width="{axes.width}" height="{max(round(low - high, 1), 1)}"'
            yield f'<rect {place} fill="{colour}">{_title(each)}</rect>'


def _line(points: Sequence[_Point], axes: _Axes, colour: str, most: int) -> Iterator[str]:
    """Draw the means, and a line that joins those that are at most so many hours apart."""
    last, path = None, ""
    for each in points:
        if each.numbers is not None:
            x, y = round(axes.x(each.hour) + axes.width / 2, 1), axes.y(each.numbers[1])
            path += f"{'M' if last is None or each.hour - last > most else 'L'}{x} {y}h1"
            last = each.hour
            yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}">{_title(each)}</circle>'
    yield f'<path d="{path or "M0 0"}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _legend(name: str, number: int) -> Iterator[str]:
    y = _HEIGHT + number * _LEGEND
    yield f'<path d="M{_LEFT} {y}h24" stroke="{_LINES[number]}" stroke-width="3"/>'
    yield f'<text x="{_LEFT + 32}" y="{y + 4}">{_text(name)}</text>'


def _axis_titles(left: str, below: str) -> Iterator[str]:
    middle = (_TOP + _BOTTOM) // 2
    yield f'<text x="20" y="{middle}" text-anchor="middle" transform="rotate(-90 20 {middle})">{_text(left)}</text>'
    yield f'<text x="{(_LEFT + _RIGHT) // 2}" y="{_BOTTOM + 45}" text-anchor="middle">{_text(below)}</text>'


def _frame(title: str, axes: _Axes, height: int) -> Iterator[str]:
    size = f'width="{_WIDTH}" height="{height}"'
    style = 'style="font: 12px sans-serif"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {height}" {style}>'
    yield f'<rect {size} fill="white"/>'
    yield f'<text x="{_LEFT}" y="24" font-size="16">{_text(title)}</text>'
    for tick in axes.ticks():
        at = axes.y(tick)
        yield f'<path d="M{_LEFT} {at}H{_RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{tick:.10g}</text>'


def _labels(points: Sequence[_Point], axes: _Axes) -> Iterator[str]:
    yield f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="black"/>'
    texts = {axes.x(each.hour): each.label for each in points}
    for place, text in sorted(texts.items())[:: max(ceil(len(texts) / _LABELS), 1)]:
        cut = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        anchor = ' text-anchor="end"' if place > _RIGHT - _ROOM else ""
        yield f'<text x="{place}" y="{_BOTTOM + 20}"{anchor}>{_text(cut)}</text>'


def _title(point: _Point) -> str:
    return f"<title>{_text(point.title)}</title>"


def _text(text: str) -> str:
    return escape(printable(text))
