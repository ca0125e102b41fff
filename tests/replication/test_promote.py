"""A promoted replica is an ordinary dataset, with all its data."""

from __future__ import annotations

import contextlib

import pytest
from kit.crashes import Killed, killed_at
from replicas import FIRST, content, datum, numbered, pull, wrong

import ondisk
from ondisk.errors import StateError, TokenForeign
from ondisk.replication import Replica, promote


def test_a_promoted_replica_is_an_ordinary_dataset(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        before, token = replica.info()["uuid"], replica.changes().token
    with promote(path) as dataset:
        dataset.append([datum(3, 1)])
        dataset.delete("reftime: =2026-11-01")
        assert dataset.info()["uuid"] != before
        with pytest.raises(TokenForeign):
            dataset.changes(token)
        assert not dataset.needs_check
        assert wrong(dataset) == []
    with pytest.raises(StateError, match="and no replica"):
        promote(path)
    with pytest.raises(StateError, match="ordinary dataset"):
        Replica.open(path, source.path)
    with ondisk.open(path) as dataset:
        assert [seq for seq, *_ in numbered(dataset)] == [2, 3]


@pytest.mark.parametrize("has_mark", [True, False])
def test_a_promotion_beside_a_reader_does_not_look_like_an_exchanged_index(source, path, has_mark):
    """The main file of the index has the former UUID until the reader ends."""
    source.append([datum(1, 1), datum(1, 2), datum(2, 1)])
    pull(path, source)
    if not has_mark:
        (path / ".tide").unlink()
    with ondisk.open(path, read_only=True) as reading, reading.query() as query:
        next(query)
        promote(path).close()
        for a in range(3, 6):
            with ondisk.open(path) as dataset:
                assert not wrong(dataset)
                dataset.append([datum(1, a)])
    with ondisk.open(path) as dataset:
        assert not wrong(dataset)


@pytest.mark.check
def test_a_killed_promotion_can_be_repeated(source, path):
    source.append([datum(1, 1), datum(2, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    for call in range(100):
        with contextlib.suppress(Killed), killed_at(call):
            promote(path)
        with ondisk.open(path) as dataset:
            assert dataset.info()["count"] == 2
            assert content(dataset) == content(source)
            if not dataset.config.replica:
                break
    with ondisk.open(path) as dataset:
        assert not dataset.config.replica
        dataset.append([datum(3, 1)])
        assert [seq for seq, *_ in numbered(dataset)] == [1, 2, 3]


def test_data_that_a_replica_finds_itself_get_numbers_of_their_own(source, path):
    source.append([datum(1, 1)])
    pull(path, source)
    with ondisk.open(path) as replica:
        replica.archive(FIRST)
    (path / "2026").mkdir(exist_ok=True)
    (path / "2026/11-05.jsonl").write_text('{"reftime": "2026-11-05T00:00:00Z", "a": 1}\n')
    (path / ".archive/last/2026/11-06.jsonl").write_text('{"reftime": "2026-11-06T00:00:00Z", "a": 1}\n')
    with ondisk.open(path) as replica:
        replica.fix()
        assert len([*replica.query()]) == 3
        assert len(numbered(replica)) == 1
    source.append([datum(5, 1, "of the source"), datum(7, 1)])
    with Replica.open(path, source.path) as replica:
        assert replica.pull().stored == 2
        texts = {each.reftime.day: each.data.get("text") for each in replica.dataset.query()}
        assert texts == {1: "x", 5: "of the source", 6: None, 7: "x"}
        assert wrong(replica.dataset) == []
    with promote(path) as dataset:
        assert [(seq, reftime.day) for seq, reftime, *_ in numbered(dataset)] == [(1, 1), (2, 5), (3, 7), (4, 6)]
        dataset.append([datum(8, 1)])
        assert numbered(dataset)[-1][0] == 5
