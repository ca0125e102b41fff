from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ondisk import Datum
from ondisk.errors import IndexCorrupt
from ondisk.index.snapshot import ROWS, Segment, Totals
from ondisk.matcher import Everything, Fields, parse_sort

T = datetime(2026, 11, 20, 6, tzinfo=UTC)
FIELDS = {"station": "integer", "product": "text", "level": "real"}


@pytest.fixture
def dataset(create):
    return create(fields=FIELDS, unique=["reftime", "station"])


@pytest.fixture
def index(dataset):
    return dataset._current().index


def fill(dataset, *rows):
    """Append data of (hour, station, product)."""
    dataset.append(
        Datum(T.replace(hour=hour), {"station": station} | ({"product": product} if product is not None else {}))
        for hour, station, product in rows
    )


def damage(index, sql):
    index.writer().execute(sql)


def stations(snapshot, *, tree=None, sort=None, limit=None):
    order = sort and parse_sort(sort, snapshot._columns.kinds)
    return [row[4] for rows in snapshot.rows(tree or Everything(), order, limit) for row in rows]


def test_a_snapshot_is_one_state_whatever_is_written_beside_it(dataset, index):
    fill(dataset, (6, 1, "rain"))
    with index.snapshot() as before:
        assert before.totals(Everything()).count == 1
        fill(dataset, (7, 2, "wind"))
        dataset.delete("station:1")
        assert stations(before) == [1]
        assert before.totals(Everything()).count == 1
        assert list(before.counts(Everything(), "product")) == [("rain", 1)]
        assert before.segment_named("2026/11-20.jsonl").size < (dataset.path / "2026/11-20.jsonl").stat().st_size
    with index.snapshot() as after:
        assert stations(after) == [2]


def test_a_segment_grows_from_snapshot_to_snapshot(dataset, index):
    sizes = []
    for hour in (6, 7, 8):
        fill(dataset, (hour, 1, "rain"))
        with index.snapshot() as snapshot:
            segment = snapshot.segment_named("2026/11-20.jsonl")
            assert segment == Segment(1, "2026/11-20.jsonl", "jsonl", segment.size)
            assert snapshot.segment(1).name == segment.name
            sizes.append(segment.size)
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
    dataset.append(Datum(T, {"station": n}) for n in range(100))
    assert [datum.metadata["station"] for datum in dataset.query(with_data=False)] == list(range(100))
    assert len(index.metadata) <= 10 or len(index.metadata) <= ROWS


def test_totals_and_counts_are_those_of_what_matches(dataset, index):
    fill(dataset, (6, 1, "rain"), (7, 2, "wind"), (8, 3, None), (9, 4, "rain"))
    fields = Fields(index.config.fields)
    with index.snapshot() as snapshot:
        assert snapshot.totals(~Everything()) == Totals(0, 0, None, None)
        assert snapshot.totals(fields.station > 1).count == 3
        assert list(snapshot.counts(Everything(), "product")) == [(None, 1), ("rain", 2), ("wind", 1)]
        assert list(snapshot.counts(fields.station > 1, "station")) == [(2, 1), (3, 1), (4, 1)]
        assert list(snapshot.counts(~Everything(), "level")) == []
        assert snapshot.segments() == 1


def test_a_row_is_found_at_its_place_and_only_there(dataset, index):
    fill(dataset, (6, 1, "rain"))
    with index.snapshot() as snapshot:
        ((row,),) = snapshot.rows(Everything())
        segment = snapshot.segment(row[1])
        reftime, _, offset, size, *_ = row
        assert snapshot.row_at(segment, offset, size, reftime) == row
        assert snapshot.row_at(segment, offset, size, None) == row
        for place in ((offset + 1, size, reftime), (offset, size + 1, None), (offset, size, reftime + 1)):
            assert snapshot.row_at(segment, *place) is None


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
    damage(dataset._current().index, sql)
    with pytest.raises(IndexCorrupt):
        list(dataset.query())
