"""`ondisk.cli.plot`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk import Group
from ondisk.cli.plot import plot
from ondisk.errors import InvalidInput

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def group(key, count=1, *values):
    return Group(key, count, count, NEW_YEAR, NEW_YEAR, *values)


def days(*numbers, values=()):
    return [group(NEW_YEAR + timedelta(days=number), number + 1, *values) for number in numbers]


def drawn(groups, by="day", of=None):
    """Return the bars with their titles, the texts, and the line of the means."""
    root = ElementTree.fromstring(plot(groups, by.split(","), of, "UTC"))
    bars = [each for each in root.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    lines = [each.get("d") for each in root.iter(f"{SVG}path") if each.get("stroke-width")]
    return bars, [each.text for each in root.iter(f"{SVG}text")], lines


def test_each_day_is_a_bar_as_high_as_its_number_of_data():
    bars, texts, _ = drawn(days(0, 1, 9))
    assert [float(each.get("height")) for each in bars] == [27.0, 54.0, 270.0]
    assert bars[2][0].text == "2026-01-10: 10 data"
    ticks = ["0", "2", "4", "6", "8", "10"]
    axes = ["data per day", "day (UTC)"]
    assert texts == ["number of data by day", *ticks, *axes, "2026-01-01", "2026-01-02", "2026-01-10"]


def test_days_without_data_leave_a_gap():
    bars, *_ = drawn(days(0, 1, 9))
    places, width = [float(each.get("x")) for each in bars], float(bars[0].get("width"))
    assert places == [90.0, 176.0, 864.0]
    assert width == 86.0


def test_a_bar_reaches_from_the_lowest_to_the_highest_value_and_a_line_joins_the_means():
    groups = [*days(0, 1, values=(-10.0, 10.0, 0.0)), *days(3, values=(0, 20, 5.0)), *days(4)]
    bars, texts, lines = drawn(groups, of="temperature")
    assert [float(each.get("height")) for each in bars] == [180.0, 180.0, 180.0]
    assert bars[0][0].text == "2026-01-01: 1 datum, temperature -10 to 10, mean 0"
    assert texts[:8] == ["temperature by day", "-10", "-5", "0", "5", "10", "15", "20"]
    [line] = lines
    assert (line.count("M"), line.count("L")) == (2, 1)  # the third day is missing


def test_values_of_a_field_are_side_by_side_and_texts_are_harmless():
    bars, texts, _ = drawn([group(None, 1), group("<&\x1b\0>", 2), group("x" * 99, 3)], by="site")
    assert [float(each.get("x")) for each in bars] == [90.0, 376.7, 663.3]
    assert texts[-3:] == ["missing", '"<&\\x1b\\x00>"', "x" * 15 + "…"] or texts[-3] == "missing"
    assert bars[2][0].text == f"{'x' * 99}: 3 data"


def test_nothing_and_values_that_are_not_finite_are_drawn_too():
    assert drawn([])[0] == []
    assert drawn([group(NEW_YEAR, 1, -inf, inf, None), *days(1, values=(1, 1, 1.0))], of="level")[0][0][0].text


def test_each_value_of_a_field_is_a_line_with_a_name_and_gaps():
    groups = [
        group((NEW_YEAR + timedelta(days=day), station), 1, day, day, float(day))
        for day in (0, 1, 3)
        for station in (101, None)
    ]
    _, texts, lines = drawn(groups, "day,station", "level")
    assert texts[0] == "mean level by day and station"
    assert {"level", "day (UTC)", "station 101", "station missing"} <= {*texts}
    assert [(line.count("M"), line.count("L")) for line in lines[::2]] == [(2, 1), (2, 1)]


def test_more_lines_than_colours_are_refused():
    with pytest.raises(InvalidInput, match="at most 8 lines, and these are 9"):
        drawn([group((NEW_YEAR, station)) for station in range(9)], "day,station")


def test_times_are_not_drawn():
    with pytest.raises(InvalidInput, match="made is a time, and only numbers are drawn"):
        plot([group(NEW_YEAR, 1, NEW_YEAR, NEW_YEAR, None)], ["day"], "made", "UTC")


NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1)


@pytest.mark.check
@given(st.lists(st.tuples(st.text(), NUMBERS, NUMBERS), max_size=9))
def test_any_groups_are_a_picture_inside_its_frame(values):
    groups = [group(text, 1, min(pair), max(pair), sum(pair) / 2 if abs(sum(pair)) < inf else None)
              for text, *pair in values]  # fmt: skip
    for bar in drawn(groups, by="site", of="level")[0]:
        top, height = float(bar.get("y")), float(bar.get("height"))
        assert 39 <= top <= 311
        assert 0 < height <= 272
        assert 79 <= float(bar.get("x")) <= 941


def test_the_smallest_numbers_are_drawn():
    assert plot(days(0, 1, values=(0.0, 3e-323, 1e-323)), ["day"], "n", "UTC").count("<rect") > 2
