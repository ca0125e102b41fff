from __future__ import annotations

import io
import os
from datetime import UTC, datetime, timedelta

import pytest
from kit import EVERY_TYPE
from worlds import sql

import ondisk
from ondisk import Datum, FieldSummary, Location, Summary
from ondisk.errors import DatumNotFound, IndexCorrupt, InvalidInput, MatchError, SegmentCorrupt, SegmentMissing

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
SEGMENT = "2026/11-20.jsonl"


@pytest.fixture
def dataset(create):
    dataset = create(fields={"station": "integer"}, unique=["reftime"], replace="yes")
    dataset.append(Datum(T + timedelta(hours=n), {"station": n}, {"n": n}) for n in range(3))
    return dataset


def test_every_location_of_a_query_returns_its_datum(dataset):
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
def test_where_a_datum_was_deleted_or_replaced_there_is_none(dataset, change):
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
def test_between_data_and_outside_of_the_segment_there_is_none(dataset, place):
    with pytest.raises(DatumNotFound):
        dataset.read(Location(SEGMENT, *place))


@pytest.mark.parametrize(
    "name",
    ["2026/11-21.jsonl", "../../etc/passwd", "", "2026/11-20.vm2", "\0", "'; DROP TABLE datum; --", "dataset.toml"],
)
def test_in_a_segment_that_the_index_does_not_know_there_is_no_datum(dataset, name):
    with pytest.raises(DatumNotFound):
        dataset.read(Location(name, 0, 5))


def test_bytes_that_are_no_datum_any_more_are_not_returned(dataset):
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


def test_a_segment_that_is_truncated_or_gone_is_an_error(dataset):
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


def test_a_summary_counts_everything_and_each_value(weather):
    assert weather.summary() == Summary(
        count=4,
        size=sum(path.stat().st_size - path.read_bytes().count(b"\n") for path in weather.path.glob("2026/*")),
        begin=T - timedelta(days=30),
        end=T + timedelta(microseconds=1),
        fields={
            "station": FieldSummary([(2, 2), (10, 1)], distinct=2, missing=1, min=2, max=10),
            "level": FieldSummary([(float("-inf"), 1), (1.5, 1)], 2, 2, float("-inf"), 1.5),
            "product": FieldSummary([("a", 1), ("b", 1)], 2, 2),
            "valid": FieldSummary([(False, 1), (True, 1)], 2, 2),
            "made": FieldSummary([(T, 1)], 1, 3, T, T),
            "key": FieldSummary([(b"", 1), (b"\xff", 1)], 2, 2),
            "timerange": FieldSummary([], 0, 4),
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
    assert summary.fields["station"].missing + sum(each for _, each in summary.fields["station"].values) == count


def test_a_summary_takes_conditions_too(weather):
    f = weather.fields
    assert weather.summary(f.station.is_null()).count == 1
    assert weather.summary(~f.station.is_null() & (f.reftime >= T)).count == 2


def test_an_empty_dataset_has_a_summary(create):
    assert create(fields={"station": "integer"}).summary() == Summary(0, 0, None, None, {"station": FieldSummary([])})


def test_a_summary_lists_the_most_frequent_values_first_and_says_how_many_there_are(create):
    dataset = create(fields={"station": "integer", "name": "text"})
    dataset.append(
        [Datum(T, {"station": each, "name": f"n{each:02}"}) for each in range(30) for _ in range(1 + each % 3)]
    )
    frequent = [each for rest in (2, 1, 0) for each in range(rest, 30, 3)]
    stations, names = (dataset.summary().fields[name] for name in ("station", "name"))
    assert [value for value, _ in stations.values] == frequent[:20]
    assert [value for value, _ in names.values] == [f"n{each:02}" for each in frequent[:20]]
    assert (stations.distinct, stations.min, stations.max) == (30, 0, 29)
    assert (names.distinct, names.min, names.max) == (30, None, None)
    assert len(dataset.summary(values=None).fields["name"].values) == 30
    assert dataset.summary(values=0).fields["station"] == FieldSummary([], 30, 0, 0, 29)
    dataset.archive(next(dataset.query()).location.segment)
    assert dataset.summary(values=0).fields["station"] == FieldSummary([], 30, 0, 0, 29)


def test_a_summary_counts_the_values_of_chosen_fields(weather):
    assert weather.summary(fields=[]).fields == {}
    assert list(weather.summary(fields=["made", "station", "made"]).fields) == ["made", "station"]
    assert weather.summary(fields=["reftime"]).fields["reftime"].max == T + timedelta(microseconds=1)
    with pytest.raises(MatchError, match="there is no field 'stattion'\nDid you mean `station`") as unknown:
        weather.summary(fields=["stattion"])
    assert all(name in str(unknown.value) for name in EVERY_TYPE)
    with pytest.raises(InvalidInput, match="a list of names"):
        weather.summary(fields="station,made")
    for values in (-1, True, "5", 2**63):
        with pytest.raises(InvalidInput, match="values must be a whole number"):
            weather.summary(values=values)


def test_a_summary_is_never_stale(weather):
    weather.delete("station:2")
    weather.append([Datum(T, {"station": 2})])
    assert weather.summary().count == 3
    assert weather.summary().fields["station"] == FieldSummary([(2, 1), (10, 1)], 2, 1, 2, 10)


def test_a_summary_needs_no_segment(weather):
    before = weather.summary()
    for path in weather.path.glob("2026/*"):
        path.unlink()
    assert weather.summary() == before


def test_metadata_that_are_not_declared_are_not_counted(create):
    dataset = create(format="vm2", fields={"area": "text"})
    dataset.append_file(io.BytesIO(b"202611200600,5,227,1.2,,,\n" * 3))
    assert dataset.summary().fields == {"area": FieldSummary([("VM2,5", 3)], 1)}


def test_two_rows_of_one_place_are_damage_of_the_index(create):
    dataset = create(format="vm2")
    times = [T, T + timedelta(hours=1)]
    dataset.append(Datum(each, {}, b"%s,1,227,1.2,,,000000000" % f"{each:%Y%m%d%H%M}".encode()) for each in times)
    sql(dataset.path, "UPDATE datum SET offset = 0")
    with pytest.raises(IndexCorrupt, match="overlap"):
        list(dataset.query())


def test_a_line_that_does_not_end_where_its_row_says_is_not_returned(create):
    dataset = create(format="vm2")
    dataset.append_file(io.BytesIO(b"202611200600,1,158,1.5,,,\n202611200700,1,158,2.5,,,\n"), "vm2")
    sql(dataset.path, "UPDATE datum SET size = size - 1 WHERE seq = 1")
    with pytest.raises(SegmentCorrupt, match="no datum of 24 bytes at byte 0"):
        [*dataset.query()]
