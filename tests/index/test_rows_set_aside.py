from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ondisk import DatasetConfig
from ondisk.filesystem import Directory
from ondisk.index import Index, Segment
from ondisk.index.rows_set_aside import Aside
from ondisk.index.transaction import Transaction
from ondisk.segment import Block, End
from ondisk.step import DAY, Interval

CONFIG = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": {"station": "integer"}})
SEGMENT = Segment(1, "1970/01-01.jsonl", "jsonl", End(100, 100))
OTHER = Segment(2, "1970/01-02.jsonl", "jsonl", End(100, 100))
BLOCKS = [Block(0, 7, 20), Block(30, 27, 20)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Make an index of three data in one segment, and one in another: seq, reftime, segment, offset, size, station."""
    with Directory.open(tmp_path) as directory:
        Index.create(directory, CONFIG)
        index = Index.open(directory, CONFIG)
        with Transaction(index) as transaction:
            transaction.save_segment(SEGMENT, Interval(0, DAY))
            transaction.save_segment(OTHER, Interval(DAY, 2 * DAY))
            transaction.take_seqs(4)
            rows = [(1, 10, 1, 0, 5, 7), (2, 10, 1, 5, 5, 7), (3, 10, 1, 10, 5, 8), (4, DAY, 2, 0, 5, 7)]
            assert transaction.insert([*zip(*rows, strict=True)]) == 4
            transaction.save_blocks(SEGMENT, BLOCKS)
            transaction.commit()
        yield index
        index.close()


def stored(index: Index) -> list[int]:
    return [seq for (seq,) in index.connections.writer().execute("SELECT seq FROM datum ORDER BY seq")]


def seqs(aside: Aside, found: list[tuple[int, ...]]) -> list[int]:
    """Return the numbers of data with these offsets, reftimes, sizes and stations."""
    aside.find(*zip(*found, strict=True))
    aside.match()
    return [seq for columns in aside.rows() for seq in columns[0]]


def test_each_datum_that_is_found_keeps_its_number_once_and_others_get_new_ones(index: Index) -> None:
    with Transaction(index) as transaction:
        aside = Aside(transaction, SEGMENT)
        assert stored(index) == [4]
        found = [(0, 10, 5, 7), (20, 10, 5, 7), (30, 10, 5, 7), (40, 10, 6, 8), (50, 11, 5, 8), (60, 10, 5, 9)]
        assert seqs(aside, found) == [1, 2, 5, 6, 7, 8]
        assert [*aside.places()] == [(0, 0), (5, 20)]


def test_of_equal_data_the_one_that_is_where_it_was_keeps_its_number(index: Index) -> None:
    with Transaction(index) as transaction:
        aside = Aside(transaction, SEGMENT)
        assert seqs(aside, [(5, 10, 5, 7), (10, 10, 5, 8), (20, 10, 5, 7), (30, 10, 5, 7)]) == [2, 3, 1, 5]
        assert [*aside.places()] == [(0, 20), (5, 5), (10, 10)]


def test_data_that_cannot_have_moved_are_known_only_where_they_were(index: Index) -> None:
    with Transaction(index) as transaction:
        aside = Aside(transaction, SEGMENT, may_move=False)
        assert seqs(aside, [(0, 10, 5, 7), (20, 10, 5, 7), (10, 10, 5, 8)]) == [1, 5, 3]
        assert [*aside.places()] == [(0, 0), (10, 10)]


def test_what_is_not_found_is_noted_as_forgotten_and_counted_as_lost(index: Index) -> None:
    with Transaction(index) as transaction:
        aside = Aside(transaction, SEGMENT)
        seqs(aside, [(0, 10, 5, 8)])
        assert aside.forget() == 2
        transaction.commit()
    deletions = index.connections.writer().execute("SELECT seq, datum, forgotten FROM deletion").fetchall()
    assert deletions == [(5, 1, 1), (6, 2, 1)]
    assert index.connections.writer().execute("SELECT seq, lost FROM dataset").fetchone() == (6, 2)


def test_what_somebody_deleted_is_not_forgotten(index: Index) -> None:
    with Transaction(index) as transaction:
        transaction.take_back([1])
        transaction.note_deletions("SELECT 1 AS seq", ())
        assert Aside(transaction, SEGMENT).forget() == 2
        deletions = transaction.connection.execute("SELECT datum, forgotten FROM deletion ORDER BY seq").fetchall()
    assert deletions == [(1, 0), (2, 1), (3, 1)]


def test_a_datum_that_is_found_again_further_on_is_moved_there(index: Index) -> None:
    with Transaction(index) as transaction:
        aside = Aside(transaction, SEGMENT)
        seqs(aside, [(0, 10, 5, 8)])
        assert aside.is_same((3, 10, 1, 0, 5, 8), (9, 10, 1, 70, 5, 8))
        assert not aside.is_same((3, 10, 1, 0, 5, 8), (9, 10, 1, 70, 6, 8))
        assert not aside.is_same((4, 10, 1, 0, 5, 8), (9, 10, 1, 70, 5, 8))
        aside.move(3, 70)
        assert [*aside.places()] == [(10, 70)]


def test_the_blocks_of_the_old_file_stay_readable(index: Index) -> None:
    with Transaction(index) as transaction:
        aside = Aside(transaction, SEGMENT)
        transaction.forget_blocks(SEGMENT)
        assert [*aside.blocks()] == BLOCKS


def test_a_rollback_brings_all_data_back_and_the_next_can_be_set_aside(index: Index) -> None:
    with Transaction(index) as transaction:
        for segment in (SEGMENT, OTHER):
            Aside(transaction, segment)
        assert stored(index) == []
    assert stored(index) == [1, 2, 3, 4]
