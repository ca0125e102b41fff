from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest

from ondisk import Datum, Summary
from ondisk.testing import EVERY_TYPE

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


@pytest.fixture
def dataset(create):
    dataset = create(fields=EVERY_TYPE)
    dataset.append(
        [
            Datum(T, {"station": 2, "level": 1.5, "product": "b", "valid": True, "made": T, "key": b"\xff"}),
            Datum(T + timedelta(microseconds=1), {"station": 10, "product": "a"}),
            Datum(T - timedelta(days=30), {"station": 2, "level": float("-inf"), "valid": False, "key": b""}),
            Datum(T),
        ]
    )
    return dataset


def test_a_summary_counts_everything_and_each_value_in_order_missing_first(dataset):
    assert dataset.summary() == Summary(
        count=4,
        size=sum(path.stat().st_size - path.read_bytes().count(b"\n") for path in dataset.path.glob("2026/*")),
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
def test_a_summary_of_a_part_counts_what_matches(dataset, match, count):
    summary = dataset.summary(match)
    found = list(dataset.query(match))
    assert summary.count == len(found) == count
    assert summary.size == sum(datum.location.size for datum in found)
    assert (summary.begin, summary.end) == ((found[0].reftime, found[-1].reftime) if found else (None, None))
    assert sum(number for _, number in summary.fields["station"]) == count


def test_a_summary_takes_conditions_too(dataset):
    f = dataset.fields
    assert dataset.summary(f.station.is_null()).count == 1
    assert dataset.summary(~f.station.is_null() & (f.reftime >= T)).count == 2


def test_an_empty_dataset_has_a_summary(create):
    assert create(fields={"station": "integer"}).summary() == Summary(0, 0, None, None, {"station": []})


def test_a_summary_is_never_stale(dataset):
    dataset.delete("station:2")
    dataset.append([Datum(T, {"station": 2})])
    assert dataset.summary().count == 3
    assert dataset.summary().fields["station"] == [(None, 1), (2, 1), (10, 1)]


def test_a_summary_needs_no_segment(dataset):
    before = dataset.summary()
    for path in dataset.path.glob("2026/*"):
        path.unlink()
    assert dataset.summary() == before


def test_metadata_that_are_not_declared_are_not_counted(create):
    dataset = create(format="vm2", fields={"area": "text"})
    dataset.append_file(io.BytesIO(b"202611200600,5,227,1.2,,,\n" * 3))
    assert dataset.summary().fields == {"area": [("VM2,5", 3)]}
