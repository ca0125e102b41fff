"""A plot shows each number, or of many the lowest, mean and highest of each pixel: no peak is lost."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk.errors import InvalidInput
from ondisk.server.pages import points as module
from ondisk.server.pages.points import Wanted, numeric_columns, points, time_of

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
COUNT = 3000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    fields = {"station": "integer", "level": "real"}
    config = {"format": "jsonl", "step": "daily", "fields": fields, "unique": ["reftime", "station"]}
    with ondisk.create(tmp_path_factory.mktemp("points") / "d", config) as made:
        made.append(
            ondisk.Datum(
                BEGIN + timedelta(minutes=n // 3),
                {"station": n % 3, "level": n / 2},
                {"wind": 99.5 if n == 1504 else math.sin(n / 50), "name": "x", "flag": True} if n % 10 else {"calm": 1},
            )
            for n in range(COUNT)
        )
        yield made


def test_numbers_of_the_content_and_fields_can_be_drawn(dataset):
    assert numeric_columns(dataset) == ["data.calm", "data.wind", "station", "level"]


def test_few_numbers_are_drawn_one_by_one(dataset):
    found = points(dataset, Wanted("station: 0 or 1", "data.wind", "station"))
    assert (found["count"], found["reduced"], found["others"]) == (2000, False, 0)
    first, second = found["series"]
    assert (first["label"], second["label"]) == ("0", "1")
    assert second["highest"] == [99.5, (BEGIN + timedelta(minutes=501)).timestamp()]
    data = [datum for datum in dataset.query("station: 1") if "wind" in datum.data]
    assert second["y"] == [datum.data["wind"] for datum in data]
    assert second["x"] == [datum.reftime.timestamp() for datum in data]
    assert second["mean"] == pytest.approx(sum(second["y"]) / len(data))


def test_several_numbers_of_one_time_are_one_point(dataset):
    (line,) = points(dataset, Wanted("station: 0 or 1", "data.wind", ""))["series"]
    by_time: dict[float, list[float]] = {}
    for datum in dataset.query("station: 0 or 1"):
        if "wind" in datum.data:
            by_time.setdefault(datum.reftime.timestamp(), []).append(datum.data["wind"])
    assert max(map(len, by_time.values())) == 2
    assert [line["x"], line["min"], line["max"]] == [
        [*by_time],
        [*map(min, by_time.values())],
        [*map(max, by_time.values())],
    ]


def test_the_lines_that_are_drawn_are_the_same_ones_in_each_span(dataset, monkeypatch):
    monkeypatch.setattr(module, "MOST_SERIES", 2)
    for begin in (BEGIN, BEGIN + timedelta(minutes=5)):
        found = points(dataset, Wanted("", "data.wind", "station", begin, BEGIN + timedelta(minutes=100)))
        assert [(each["label"], "x" in each) for each in found["series"]] == [("0", True), ("1", True), ("2", False)]


def test_many_numbers_are_a_band_that_keeps_each_peak(dataset, monkeypatch):
    exact = points(dataset, Wanted("", "data.wind", ""))["series"][0]
    monkeypatch.setattr(module, "MOST_POINTS", 1000)
    monkeypatch.setattr(module, "_MOST_PARTS", 60)
    found = points(dataset, Wanted("", "data.wind", "", width=30))
    (band,) = found["series"]
    assert found["reduced"]
    assert len(band["x"]) <= 30
    assert (min(band["min"]), max(band["max"])) == (min(exact["min"]), max(exact["max"]))
    assert (band["count"], band["mean"]) == (exact["count"], pytest.approx(exact["mean"]))
    assert all(low <= mean <= high for low, mean, high in zip(band["min"], band["y"], band["max"], strict=True))


def test_a_span_is_drawn_alone(dataset):
    begin, end = BEGIN + timedelta(minutes=10), BEGIN + timedelta(minutes=20)
    found = points(dataset, Wanted("", "level", "station", begin, end))
    assert [len(each["x"]) for each in found["series"]] == [10, 10, 10]
    assert (found["begin"], found["end"]) == (begin.timestamp(), end.timestamp())
    (stations,) = points(dataset, Wanted("", "station", "", begin, end))["series"]
    assert (stations["lowest"][0], stations["highest"][0]) == (0, 2)
    assert points(dataset, Wanted("reftime: <2020", "level", ""))["series"] == []


def test_a_field_with_very_many_values_has_its_most_frequent_ones(dataset, monkeypatch):
    found = points(dataset, Wanted("", "data.wind", "level"))
    drawn = [each for each in found["series"] if "x" in each]
    assert (len(drawn), found["others"]) == (module.MOST_SERIES, 2700 - module.MOST_SERIES)
    monkeypatch.setattr(module, "MOST_POINTS", 10)
    monkeypatch.setattr(module, "_MOST_PARTS", 100)
    with pytest.raises(ondisk.errors.LimitExceeded, match="too many values"):
        points(dataset, Wanted("", "data.wind", "level"))


def test_a_column_that_does_not_exist_is_an_error(dataset):
    for y, by in (("x", ""), ("level", "x"), ("level", "level")):
        with pytest.raises(InvalidInput):
            points(dataset, Wanted("", y, by))
    for text in ("x", "1e400", "nan", "9" * 30):
        with pytest.raises(InvalidInput):
            time_of(text)


@pytest.mark.parametrize("y", ["reftime", "name"])
def test_what_is_no_number_is_not_drawn(create, y):
    dataset = create(fields={"name": "text"})
    dataset.append([ondisk.Datum(BEGIN, {"name": "x"}, {})])
    with pytest.raises(InvalidInput, match="is not a number"):
        points(dataset, Wanted("", y, ""))


def test_large_integers_are_drawn(create):
    dataset = create(fields={"n": "integer"})
    dataset.append([ondisk.Datum(BEGIN, {"n": 2**62 + 1}, {})])
    (line,) = points(dataset, Wanted("", "n", ""))["series"]
    assert line["y"] == [2.0**62]
