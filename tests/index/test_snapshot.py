from __future__ import annotations

import random
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import google_crc32c
import pytest
from worlds import access_to
from worlds import sql as change

from ondisk import Datum
from ondisk.errors import IndexCorrupt, StateError, StorageError
from ondisk.index import segment_rows
from ondisk.index.field_values import most_frequent
from ondisk.index.snapshot import ROWS, Segment
from ondisk.index.sums import Totals, totals
from ondisk.index.transaction import Transaction
from ondisk.matcher import Everything
from ondisk.matcher.fields import Fields
from ondisk.matcher.sort import parse_sort
from ondisk.segment import Block, End, Facts

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
FIELDS = {"station": "integer", "product": "text", "level": "real"}


def counts(snapshot, tree, name):
    """Return the values of a field, in order, with the number of data that have each; None, for missing, first."""
    found = most_frequent(snapshot, tree, name, None)
    return [*[(None, found.missing)] * bool(found.missing), *sorted(found.values)]


@pytest.fixture
def dataset(create):
    return create(fields=FIELDS, unique=["reftime", "station"])


@pytest.fixture
def index(dataset):
    with access_to(dataset.path) as access:
        yield access.current().index


def fill(dataset, *rows):
    """Append data of (hour, station, product)."""
    dataset.append(
        Datum(T.replace(hour=hour), {"station": station} | ({"product": product} if product is not None else {}))
        for hour, station, product in rows
    )


def damage(index, sql):
    index.connections.writer().execute(sql)


def stations(snapshot, *, tree=None, sort=None, limit=None):
    order = sort and parse_sort(sort, snapshot.columns.kinds)
    return [row[4] for rows in snapshot.rows(tree or Everything(), order, limit) for row in rows]


def test_a_snapshot_is_one_state_whatever_is_written_beside_it(dataset, index):
    fill(dataset, (6, 1, "rain"))
    with index.snapshot() as before:
        assert totals(before, Everything()).count == 1
        fill(dataset, (7, 2, "wind"))
        dataset.delete("station:1")
        assert stations(before) == [1]
        assert totals(before, Everything()).count == 1
        assert list(counts(before, Everything(), "product")) == [("rain", 1)]
        assert before.segment_named("2026/11-20.jsonl").end.size < (dataset.path / "2026/11-20.jsonl").stat().st_size
    with index.snapshot() as after:
        assert stations(after) == [2]


def test_a_segment_grows_from_snapshot_to_snapshot(dataset, index):
    sizes = []
    for hour in (6, 7, 8):
        fill(dataset, (hour, 1, "rain"))
        with index.snapshot() as snapshot:
            segment = snapshot.segment_named("2026/11-20.jsonl")
            path = dataset.path / "2026/11-20.jsonl"
            found, content = path.stat(), path.read_bytes()
            end, checksum = End(len(content), len(content)), google_crc32c.value(content)
            facts = Facts(found.st_mtime_ns, found.st_ino, checksum, checksum)
            assert segment == Segment(1, "2026/11-20.jsonl", "jsonl", end, facts)
            assert snapshot.segment(1).name == segment.name
            sizes.append(segment.end.size)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == (dataset.path / "2026/11-20.jsonl").stat().st_size


def test_rows_come_by_time_then_by_appending_in_lists_of_bounded_length(dataset, index):
    dataset.append(Datum(T.replace(minute=n % 2), {"station": n}) for n in range(2 * ROWS + 5))
    with index.snapshot() as snapshot:
        lists = list(snapshot.rows(Everything()))
        assert max(map(len, lists)) <= ROWS
        numbers = [row[4] for rows in lists for row in rows]
        assert numbers == sorted(range(2 * ROWS + 5), key=lambda n: (n % 2, n))


def test_a_limit_and_a_sort_order_are_those_of_the_whole_answer(dataset, index):
    fill(dataset, (6, 3, "b"), (7, 2, None), (8, 1, "a"), (5, 9, "b"))
    with index.snapshot() as snapshot:
        assert stations(snapshot, sort="product") == [2, 1, 9, 3]
        assert stations(snapshot, sort="-product,-station") == [9, 3, 1, 2]
        assert stations(snapshot, sort="product", limit=2) == [2, 1]
        assert stations(snapshot, limit=0) == []


@pytest.mark.parametrize("unique", [["reftime", "station"], ["station"], []])
@pytest.mark.parametrize("sort", [None, "-reftime"])
def test_the_first_data_are_found_without_a_look_at_all_others(create, unique, sort):
    dataset = create(fields=FIELDS, unique=unique)
    dataset.append(Datum(T + timedelta(minutes=at), {"station": at}) for at in range(2000))
    with dataset._access.current().index.snapshot() as snapshot:
        steps: list[int] = []
        snapshot.connection.set_progress_handler(lambda: steps.append(1), 100)
        found = stations(snapshot, sort=sort, limit=3)
        snapshot.connection.set_progress_handler(None, 0)
    assert found == ([1999, 1998, 1997] if sort else [0, 1, 2])
    assert len(steps) < 5


def test_metadata_hold_the_fields_that_are_there_and_are_shared_and_read_only(dataset, index):
    dataset.append(
        [
            Datum(T, {"station": 1, "product": ""}),
            Datum(T, {"level": 0.0}),
            Datum(T.replace(hour=7), {"station": 1, "product": ""}),
        ]
    )
    with index.snapshot() as snapshot:
        rows = [row for rows in snapshot.rows(Everything()) for row in rows]
        metadata = [snapshot.metadata(row[4:]) for row in rows]
        assert metadata == [{"station": 1, "product": ""}, {"level": 0.0}, {"station": 1, "product": ""}]
        assert metadata[0] is metadata[2]
        with pytest.raises(TypeError):
            metadata[0]["station"] = 2


def test_caches_of_metadata_are_dropped_before_they_grow_without_end(dataset, index, monkeypatch):
    monkeypatch.setattr("ondisk.index.snapshot._CACHED", 10)
    dataset.append(Datum(T, {"station": n, "product": f"p{n}"}) for n in range(1000))
    expected = [{"station": n, "product": f"p{n}"} for n in range(1000)]
    assert [datum.metadata for datum in dataset.query(with_data=False)] == expected
    assert len(index.metadata) <= ROWS


@pytest.mark.check
def test_threads_share_the_cache_of_metadata(dataset, monkeypatch):
    monkeypatch.setattr("ondisk.index.snapshot._CACHED", 10)
    dataset.append(Datum(T, {"station": n, "product": f"p{n}"}) for n in range(1000))
    expected = [{"station": n, "product": f"p{n}"} for n in range(1000)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            for read in [threads.submit(lambda: [*dataset.query(with_data=False)]) for _ in range(16)]:
                assert [datum.metadata for datum in read.result()] == expected
    finally:
        sys.setswitchinterval(interval)


class Forgetful(dict[Any, Any]):
    """A cache that another thread clears after each look-up that finds something."""

    def __contains__(self, key: object) -> bool:
        return self._cleared(super().__contains__(key))

    def get(self, key: Any, default: Any = None) -> Any:
        return self._cleared(super().get(key, default))

    def __getitem__(self, key: Any) -> Any:
        return self._cleared(super().__getitem__(key))

    def _cleared(self, found: Any) -> Any:
        if found:
            self.clear()
        return found


def test_a_cache_that_another_thread_clears_changes_no_metadata(dataset, index):
    fill(dataset, (6, 1, "rain"), (7, 2, "wind"), (8, 1, "rain"))
    expected = [{"station": 1, "product": "rain"}, {"station": 2, "product": "wind"}, {"station": 1, "product": "rain"}]
    index.metadata = Forgetful()
    with index.snapshot() as snapshot:
        (rows,) = snapshot.rows(Everything())
        for row, metadata in zip(rows, expected, strict=True):
            assert snapshot.metadata(row[4:]) == metadata  # not in the cache
            assert snapshot.metadata(row[4:]) == metadata  # in the cache, which is empty after that
            assert snapshot.metadata_of_rows(rows) == expected
            assert snapshot.metadata_of_rows(rows) == expected


def test_totals_and_counts_are_those_of_what_matches(dataset, index):
    fill(dataset, (6, 1, "rain"), (7, 2, "wind"), (8, 3, None), (9, 4, "rain"))
    fields = Fields(index.config.fields)
    with index.snapshot() as snapshot:
        assert totals(snapshot, ~Everything()) == Totals(0, 0, None, None)
        assert totals(snapshot, fields.station > 1).count == 3
        assert list(counts(snapshot, Everything(), "product")) == [(None, 1), ("rain", 2), ("wind", 1)]
        assert list(counts(snapshot, fields.station > 1, "station")) == [(2, 1), (3, 1), (4, 1)]
        assert list(counts(snapshot, ~Everything(), "level")) == []
        assert snapshot.segments() == 1


def test_a_row_is_found_at_its_place_and_only_there(dataset, index):
    fill(dataset, (6, 1, "rain"))
    with index.snapshot() as snapshot:
        ((row,),) = snapshot.rows(Everything())
        segment = snapshot.segment(row[1])
        reftime, _, offset, size, *_ = row
        metadata = snapshot.metadata(row[4:])
        assert snapshot.row_at(segment, offset, size) == row
        for known in (metadata, {}, {**metadata, "station": 9}):  # what is known of it is no condition
            assert snapshot.row_at(segment, offset, size, (reftime, known)) == row
        for place in ((offset + 1, size), (offset, size + 1)):
            assert snapshot.row_at(segment, *place) is None
            assert snapshot.row_at(segment, *place, (reftime, metadata)) is None
        assert snapshot.row_at(segment, offset, size, (reftime + 1, metadata)) is None


def test_the_dataset_is_described_by_its_counters(dataset, index):
    fill(dataset, (6, 1, "rain"), (7, 2, "wind"))
    with index.snapshot() as snapshot:
        before = snapshot.dataset()
    assert (before["seq"], before["generation"]) == (2, 1)
    dataset.delete("station:1")
    with index.snapshot() as snapshot:
        after = snapshot.dataset()
    assert after["seq"] == 3
    assert after["uuid"] == before["uuid"]
    assert after["committed_at"] >= before["committed_at"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE segment SET name = '../../etc/passwd'",
        "UPDATE segment SET name = '/etc/passwd.jsonl'",
        "UPDATE segment SET name = '2026/11-20.vm2'",
        "UPDATE segment SET name = 'a/../2026/11-20.jsonl'",
        "UPDATE segment SET name = '2026/11-31.jsonl'",
        "UPDATE segment SET name = '2026/11-20'",
        "UPDATE segment SET name = char(0) || '2026/11-20.jsonl'",
        "DELETE FROM segment",
        "DELETE FROM value",
    ],
)
def test_what_ondisk_never_writes_is_a_damaged_index(create, sql):
    dataset = create(fields=FIELDS)
    fill(dataset, (6, 1, "rain"))
    change(dataset.path, sql)
    with pytest.raises(IndexCorrupt):
        list(dataset.query())


# Blocks of compressed segments

PACKED = Segment(7, "2026/11-20.seg", "seg", End(250, 500, 9, compressed=True))
BLOCKS = [Block(12, 19, 41), Block(100, 60, 70), Block(250, 130, 60), Block(400, 190, 60)]
OTHERS = [Block(12, 19, 10), Block(90, 29, 10), Block(110, 39, 10)]


@pytest.fixture
def packed(index):
    """Return an index with a segment of four blocks, and others."""
    with Transaction(index) as transaction:
        transaction.save_blocks(PACKED, BLOCKS)
        for id_ in (6, 8):
            transaction.save_blocks(Segment(id_, "", "seg", End()), OTHERS)
        transaction.commit()
    return index


@pytest.mark.parametrize(
    ("begin", "end", "places"),
    [
        (12, 100, [0]),
        (12, 13, [0]),
        (99, 100, [0]),
        (99, 101, [0, 1]),
        (100, 101, [1]),
        (150, 250, [1]),
        (150, 251, [1, 2]),
        (399, 400, [2]),
        (400, 500, [3]),
        (499, 500, [3]),
        (90, 410, [0, 1, 2, 3]),
        (12, 500, [0, 1, 2, 3]),
    ],
)
def test_the_blocks_of_a_span_are_those_that_hold_a_byte_of_it(packed, begin, end, places):
    with packed.snapshot() as snapshot:
        assert [block[:3] for block in snapshot.blocks(PACKED.id, begin, end)] == [BLOCKS[place] for place in places]


def test_a_frame_larger_than_a_block_is_in_all_the_blocks_that_it_fills(create):
    dataset = create(format="seg")
    large = random.Random(5).randbytes(200_000)
    dataset.append([Datum(T, {}, b"small"), Datum(T, {}, large), Datum(T, {}, b"small again")])
    small, datum, again = dataset.query()
    assert (small.data, datum.data, again.data) == (b"small", large, b"small again")
    with access_to(dataset.path) as access, access.current().index.snapshot() as snapshot:
        end = snapshot.segment_named("2026/11-20.seg").end
        found = [
            snapshot.blocks(1, each.location.offset, each.location.offset + each.location.size)
            for each in (small, datum, again)
        ]
        everything = snapshot.blocks(1, 12, end.length)
    assert list(map(len, found)) == [1, 7, 1]
    assert [block for blocks in found for block in blocks] == everything
    assert found[1][0].offset == datum.location.offset
    last = everything[-1]
    assert (last.position + last.stored, last.end) == (end.size, end.length)
    assert [block.end for block in everything[:-1]] == [block.offset for block in everything[1:]]


def test_blocks_of_every_append_are_found_and_those_of_one_that_came_to_nothing_are_not(create):
    dataset = create(format="seg", unique=["reftime"])
    for hour in range(5):
        dataset.append([Datum(T.replace(hour=hour), {}, {"hour": hour})])
        dataset.append([Datum(T.replace(hour=hour), {}, {"hour": "a duplicate"})])
    with access_to(dataset.path) as access, access.current().index.snapshot() as snapshot:
        length = snapshot.segment_named("2026/11-20.seg").end.length
        offsets = [block.offset for block in snapshot.blocks(1, 12, length)]
    assert offsets == [datum.location.offset for datum in dataset.query()]
    assert len(offsets) == 5


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM block",
        "DELETE FROM block WHERE offset = 12",
        "UPDATE block SET segment = 9 WHERE segment = 7",
        "UPDATE block SET position = -1 WHERE offset = 12",
        "UPDATE block SET stored = -1 WHERE offset = 250",
        "UPDATE block SET stored = -1 WHERE offset = 12",
        "UPDATE block SET stored = stored + 1 WHERE offset = 100",
        "UPDATE block SET position = position + 1 WHERE offset = 100",
        "UPDATE block SET position = 9223372036854775807 WHERE offset = 100",
        "UPDATE block SET stored = 9223372036854775807 WHERE offset = 100",
        "UPDATE block SET offset = 450 WHERE offset = 100",
    ],
)
def test_blocks_that_are_not_in_a_row_are_a_damaged_index(packed, sql):
    damage(packed, sql)
    with packed.snapshot() as snapshot, pytest.raises(IndexCorrupt) as caught:
        snapshot.blocks(PACKED.id, 50, 500)
    assert "segment 7" in caught.value.message
    assert "--rebuild --yes` moves " in caught.value.hint


@pytest.mark.parametrize("column", ["position", "stored"])
def test_one_block_with_a_negative_number_is_a_damaged_index(packed, column):
    damage(packed, f"UPDATE block SET {column} = -1 WHERE offset = 12")
    with packed.snapshot() as snapshot, pytest.raises(IndexCorrupt, match="segment 7"):
        snapshot.blocks(PACKED.id, 12, 13)


def test_before_the_first_block_and_in_a_segment_without_blocks_there_is_none(packed):
    with packed.snapshot() as snapshot:
        for segment, begin, end in ((PACKED.id, 0, 12), (PACKED.id, 0, 500), (99, 12, 100)):
            with pytest.raises(IndexCorrupt, match=f"no block of segment {segment} with byte {begin}"):
                snapshot.blocks(segment, begin, end)


def test_what_sqlite_raises_inside_a_snapshot_comes_out_as_an_error_of_ondisk_and_the_connection_is_kept(index):
    with index.snapshot() as snapshot:
        connection = snapshot.connection
    for raised, expected in ((sqlite3.OperationalError("odd"), StorageError), (OverflowError("large"), IndexCorrupt)):
        with pytest.raises(expected) as caught, index.snapshot():
            raise raised
        assert caught.value.__cause__ is raised
        assert not connection.in_transaction
        with index.snapshot() as snapshot:
            assert snapshot.connection is connection


def test_what_others_raise_inside_a_snapshot_stays_as_it_is(index):
    with pytest.raises(KeyError), index.snapshot() as snapshot:
        raise KeyError("mine")
    assert not snapshot.connection.in_transaction


def test_a_snapshot_that_cannot_begin_does_not_keep_its_connection(index):
    with index.snapshot() as snapshot:
        connection = snapshot.connection
    connection.close()  # while it waits to be borrowed
    with pytest.raises(StateError), index.snapshot():
        pass
    with index.snapshot() as snapshot:
        assert snapshot.connection is not connection
        assert snapshot.segments() == 0
        snapshot.connection.close()
    with index.snapshot() as snapshot:
        assert snapshot.segments() == 0


def test_a_snapshot_set_apart_reads_one_segment_and_keeps_no_writer_waiting(create):
    """Nor does a later commit change what it reads."""
    dataset = create(format="seg", fields={"n": "integer", "a": "text", "b": "text"})
    texts = [{}, {"a": "a"}, {"a": "b", "b": "b"}]
    dataset.append(Datum(T.replace(day=20 + n % 2), {"n": n} | texts[n % 3], {"text": "x" * 99}) for n in range(48))
    with access_to(dataset.path) as access:
        check_set_apart(dataset, access.current().index, texts)


def check_set_apart(dataset, index, texts):
    with index.snapshot() as snapshot:
        segment = snapshot.segment_named("2026/11-20.seg")
        blocks = [*segment_rows.blocks_of(snapshot, segment)]
        assert blocks
        snapshot.set_apart(segment)
        dataset.delete("")
        assert index.connections.checkpoint()
        index.metadata.clear()
        rows = [row for rows in segment_rows.in_order_of_seq(snapshot, segment) for row in rows]
        assert [seq for seq, _ in rows] == [*range(1, 48, 2)]
        assert [snapshot.metadata(row[4:]) for _, row in rows] == [{"n": n} | texts[n % 3] for n in range(0, 48, 2)]
        assert [*segment_rows.blocks_of(snapshot, segment)] == blocks
        assert [block[:3] for block in snapshot.blocks(segment.id, 12, segment.end.length)] == blocks
    with index.snapshot() as snapshot:
        assert stations(snapshot) == []
