"""Deleting data and storing others in one commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import ondisk
from ondisk import Datum
from ondisk.errors import InvalidInput

T = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"format": "seg", "step": "daily", "index": ["key"], "fields": {"key": "integer"}}


def datum(key, data=b"x", days=0):
    return Datum(T + timedelta(days=days), {"key": key}, data)


def keys(dataset):
    return sorted(each.metadata["key"] for each in dataset.query())


@pytest.fixture
def dataset(tmp_path):
    with ondisk.create(tmp_path / "d", CONFIG) as dataset:
        dataset.append([datum(1), datum(2), datum(3, days=1)])
        yield dataset


def test_one_commit_deletes_and_stores(dataset):
    f, before = dataset.fields, dataset.state()
    after = dataset.exchange(before, [f.key == 1, f.key == 3], [datum(4), datum(5, days=7)])
    assert keys(dataset) == [2, 4, 5]
    assert before != after == dataset.state()
    dataset.repack()
    assert keys(dataset) == [2, 4, 5]


def test_nothing_happens_if_somebody_else_has_changed_the_dataset(dataset):
    before = dataset.state()
    with ondisk.open(dataset.path) as other:
        other.append([datum(9)])
    assert dataset.exchange(before, [dataset.fields.key == 1], [datum(4)]) is None
    assert keys(dataset) == [1, 2, 3, 9]


def test_a_repack_changes_no_state(dataset):
    dataset.delete(dataset.fields.key == 1)
    before = dataset.state()
    dataset.repack()
    assert dataset.state() == before
    assert dataset.exchange(before, [dataset.fields.key == 2], []) == dataset.state()
    assert keys(dataset) == [3]


def test_what_is_archived_is_deleted_in_the_same_act(dataset):
    dataset.archive("2026/11-20.seg")
    before = dataset.state()
    after = dataset.exchange(before, [dataset.fields.key == 1], [datum(4)])
    assert keys(dataset) == [2, 3, 4]
    assert after == dataset.state()
    dataset.unarchive(".archive/last/2026/11-20.seg")
    assert dataset.state() == after  # a move changes no data


def test_a_datum_that_cannot_be_stored_keeps_all_from_being_changed(dataset):
    before = dataset.state()
    with pytest.raises(InvalidInput, match="nothing was changed"):
        dataset.exchange(before, [dataset.fields.key == 1], [datum(4, data=5)])
    assert keys(dataset) == [1, 2, 3]
    assert dataset.state() == before


def test_a_duplicate_keeps_all_from_being_changed(tmp_path):
    with ondisk.create(tmp_path / "unique", {**CONFIG, "unique": ["key"]}) as dataset:
        dataset.append([datum(1), datum(2)])
        with pytest.raises(InvalidInput, match="nothing was changed, because a datum is a duplicate"):
            dataset.exchange(dataset.state(), [dataset.fields.key == 1], [datum(2)])
        assert keys(dataset) == [1, 2]
        assert dataset.exchange(dataset.state(), [dataset.fields.key == 1], [datum(1)])  # after the delete it is none
        assert keys(dataset) == [1, 2]
