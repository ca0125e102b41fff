from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk import Datum, Location
from ondisk.errors import DatumNotFound, SegmentCorrupt, SegmentMissing

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
    with (dataset.path / SEGMENT).open("r+b") as file:
        file.write(b"\xff" * first.size)
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
