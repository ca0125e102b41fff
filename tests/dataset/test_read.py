from __future__ import annotations

import io
import os
from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk import Datum, Location, Summary
from ondisk.errors import DatumNotFound, SegmentCorrupt, SegmentMissing
from ondisk.testing import EVERY_TYPE

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.jsonl"


@pytest.fixture
def dataset(create):
    dataset = create(fields={"station": "integer"}, unique=["reftime"], replace="yes")
    dataset.append(Datum(T + timedelta(hours=n), {"station": n}, {"n": n}) for n in range(3))
    return dataset


def test_every_location_of_a_query_gives_its_datum(dataset):
    for datum in dataset.query():
        found = dataset.read(datum.location)
        assert found == datum
        assert found.location == datum.location
    for datum in dataset.query(with_data=False):
        assert dataset.read(datum.location).data == {"n": datum.metadata["station"]}


def test_a_location_is_good_in_another_process_and_after_opening_again(dataset):
    locations = [datum.location for datum in dataset.query()]
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert [reader.read(location).data["n"] for location in locations] == [0, 1, 2]


def test_data_appended_to_a_segment_that_was_read_before_are_found(dataset):
    """What is remembered of a segment must not be its size."""
    list(dataset.query())
    dataset.append([Datum(T + timedelta(hours=5), {"station": 5}, {"n": 5})])
    (datum,) = dataset.query("station:5")
    assert dataset.read(datum.location).data == {"n": 5}


@pytest.mark.parametrize("change", ["delete", "replace"])
def test_where_a_datum_was_deleted_or_replaced_none_stands(dataset, change):
    location = next(dataset.query()).location
    if change == "delete":
        dataset.delete("station:0")
    else:
        dataset.append([Datum(T, {"station": 0}, {"n": 9})])
    with pytest.raises(DatumNotFound) as caught:
        dataset.read(location)
    assert "query for it again" in caught.value.hint
    assert caught.value.context == {"location": location}


@pytest.mark.parametrize(
    "place",
    [
        (0, 5),
        (1, 10),
        (0, 0),
        (0, 10**9),
        (10**9, 1),
        (-5, 10),
        (0, -1),
        (2**70, 1),
        (0, 2**70),
        (2**62, 2**62),
        (-(2**70), 2**71),
    ],
)
def test_between_data_and_outside_of_the_segment_none_stands(dataset, place):
    with pytest.raises(DatumNotFound):
        dataset.read(Location(SEGMENT, *place))


@pytest.mark.parametrize(
    "name",
    ["2026/11-21.jsonl", "../../etc/passwd", "", "2026/11-20.vm2", "\0", "'; DROP TABLE datum; --", "dataset.toml"],
)
def test_in_a_segment_that_the_index_does_not_know_none_stands(dataset, name):
    with pytest.raises(DatumNotFound):
        dataset.read(Location(name, 0, 5))


def test_bytes_that_are_no_datum_any_more_are_not_given(dataset):
    first = next(dataset.query()).location
    path = dataset.path / SEGMENT
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(b"\xff" * first.size)
    with pytest.raises(SegmentCorrupt, match="is not the file that the index describes"):
        dataset.read(first)
    os.utime(path, ns=(before, before))  # bit rot: nobody wrote the file
    with pytest.raises(ondisk.errors.FrameCorrupt):
        dataset.read(first)


def test_a_segment_that_is_cut_or_gone_is_told(dataset):
    last = list(dataset.query())[-1].location
    content = (dataset.path / SEGMENT).read_bytes()
    with ondisk.open(dataset.path, read_only=True) as reader:
        (dataset.path / SEGMENT).write_bytes(content[:-5])
        with pytest.raises(SegmentCorrupt):
            reader.read(last)
    with ondisk.open(dataset.path, read_only=True) as reader:
        (dataset.path / SEGMENT).unlink()
        with pytest.raises(SegmentMissing):
            reader.read(last)


# Summaries


@pytest.fixture
def weather(create):
    weather = create(fields=EVERY_TYPE)
    weather.append(
        [
            Datum(T, {"station": 2, "level": 1.5, "product": "b", "valid": True, "made": T, "key": b"\xff"}),
            Datum(T + timedelta(microseconds=1), {"station": 10, "product": "a"}),
            Datum(T - timedelta(days=30), {"station": 2, "level": float("-inf"), "valid": False, "key": b""}),
            Datum(T),
        ]
    )
    return weather


def test_a_summary_counts_everything_and_each_value_in_order_missing_first(weather):
    assert weather.summary() == Summary(
        count=4,
        size=sum(path.stat().st_size - path.read_bytes().count(b"\n") for path in weather.path.glob("2026/*")),
        begin=T - timedelta(days=30),
        end=T + timedelta(microseconds=1),
        fields={
            "station": [(None, 1), (2, 2), (10, 1)],
            "level": [(None, 2), (float("-inf"), 1), (1.5, 1)],
            "product": [(None, 2), ("a", 1), ("b", 1)],
            "valid": [(None, 2), (False, 1), (True, 1)],
            "made": [(None, 3), (T, 1)],
            "key": [(None, 2), (b"", 1), (b"\xff", 1)],
        },
    )


@pytest.mark.parametrize(
    ("match", "count"), [("station:2", 2), ("station:2; level:<0", 1), ("reftime:=2026-11-20", 3), ("station:7", 0)]
)
def test_a_summary_of_a_part_counts_what_matches(weather, match, count):
    summary = weather.summary(match)
    found = list(weather.query(match))
    assert summary.count == len(found) == count
    assert summary.size == sum(datum.location.size for datum in found)
    assert (summary.begin, summary.end) == ((found[0].reftime, found[-1].reftime) if found else (None, None))
    assert sum(number for _, number in summary.fields["station"]) == count


def test_a_summary_takes_conditions_too(weather):
    f = weather.fields
    assert weather.summary(f.station.is_null()).count == 1
    assert weather.summary(~f.station.is_null() & (f.reftime >= T)).count == 2


def test_an_empty_dataset_has_a_summary(create):
    assert create(fields={"station": "integer"}).summary() == Summary(0, 0, None, None, {"station": []})


def test_a_summary_is_never_stale(weather):
    weather.delete("station:2")
    weather.append([Datum(T, {"station": 2})])
    assert weather.summary().count == 3
    assert weather.summary().fields["station"] == [(None, 1), (2, 1), (10, 1)]


def test_a_summary_needs_no_segment(weather):
    before = weather.summary()
    for path in weather.path.glob("2026/*"):
        path.unlink()
    assert weather.summary() == before


def test_metadata_that_are_not_declared_are_not_counted(create):
    dataset = create(format="vm2", fields={"area": "text"})
    dataset.append_file(io.BytesIO(b"202611200600,5,227,1.2,,,\n" * 3))
    assert dataset.summary().fields == {"area": [("VM2,5", 3)]}
