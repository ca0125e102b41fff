from __future__ import annotations

import errno
import sqlite3
from datetime import UTC, datetime

import pytest
from worlds import datum, fail, sql

from ondisk import DatasetConfig, Datum
from ondisk.errors import DiskFull, DurabilityLost, IndexCorrupt, LockError, StorageError
from ondisk.filesystem import Directory
from ondisk.index import INDEX, Copies, Index, Segment
from ondisk.index.changes import present
from ondisk.index.connections import Connections
from ondisk.index.sums import totals
from ondisk.index.transaction import Transaction
from ondisk.matcher import Everything
from ondisk.matcher.fields import Fields
from ondisk.segment import Block, End, Facts, NotedDamage
from ondisk.segments.concat_writer import ConcatWriter
from ondisk.step import DAY, Interval

FIELDS = {"station": "integer", "product": "text"}
CONFIG = DatasetConfig.from_mapping(
    {"format": "jsonl", "step": "daily", "fields": FIELDS, "unique": ["reftime", "station"]}
)
SEGMENT, DAY_ONE = Segment(1, "1970/01-01.jsonl", "jsonl", End(100, 100), Facts(5, 77, 1, 2)), Interval(0, DAY)
PACKED = Segment(2, "1970/01-01.seg", "seg", End(100, 900, 3, compressed=True))
T = datetime(2026, 11, 20, 6, tzinfo=UTC)


@pytest.fixture
def index(tmp_path):
    with Directory.open(tmp_path) as directory:
        Index.create(directory, CONFIG)
        index = Index.open(directory, CONFIG)
        yield index
        index.close()


def row(seq, reftime=0, station=1, product=0, offset=0):
    return (seq, reftime, 1, offset, 10, station, product)


def stored(index):
    """(seq, reftime, station, product) of the data."""
    sql = "SELECT seq, reftime, f_station, f_product FROM datum ORDER BY seq"
    return index.connections.writer().execute(sql).fetchall()


def deletions(index):
    return index.connections.writer().execute("SELECT seq, datum FROM deletion ORDER BY seq").fetchall()


def blocks(index):
    return (
        index.connections.writer()
        .execute("SELECT segment, offset, position, stored FROM block ORDER BY 1, 2")
        .fetchall()
    )


def counters(index):
    return index.connections.writer().execute("SELECT seq, generation FROM dataset").fetchone()


def insert(index, *rows):
    with Transaction(index) as transaction:
        transaction.take_seqs(len(rows))
        transaction.save_segment(SEGMENT, DAY_ONE)
        count = transaction.insert([*zip(*rows, strict=True)]) if rows else 0
        transaction.commit()
    return count


def test_damage_that_was_noted_meanwhile_stays(index):
    """A check has read the file before its transaction; a fix beside it may know that the file hides data."""
    insert(index)
    hides = NotedDamage("8 bytes are damaged", hides_data=True)
    with Transaction(index) as transaction:
        transaction.note_check(SEGMENT, hides)
        transaction.note_damage(SEGMENT, "its bytes have changed")
        assert transaction.damaged([SEGMENT.id]) == {SEGMENT.id: hides}
        transaction.note_check(SEGMENT, None)
        transaction.note_damage(SEGMENT, "its bytes have changed")
        assert transaction.damaged([SEGMENT.id]) == {SEGMENT.id: NotedDamage("its bytes have changed")}


def test_without_commit_nothing_stays(index):
    with Transaction(index) as transaction:
        transaction.take_seqs(1)
        transaction.take_generation()
        transaction.insert([*zip(row(1))])
        transaction.save_segment(SEGMENT, DAY_ONE)
    assert stored(index) == []
    assert counters(index) == (0, 0)
    assert not index.connections.writer().in_transaction


def broken_off(index):
    with Transaction(index) as transaction:
        transaction.insert([*zip(row(1))])
        raise RuntimeError("mine")


def test_an_error_rolls_back_and_passes(index):
    with pytest.raises(RuntimeError, match="mine"):
        broken_off(index)
    assert stored(index) == []


def test_ids_of_values_that_were_rolled_back_are_forgotten(index):
    """Otherwise a later batch would use the id as if it were in the table of values."""
    with Transaction(index) as transaction:
        assert transaction.columns([{"product": "rain"}]) == [[None], [1]]
    with Transaction(index) as transaction:
        assert transaction.columns([{"product": "wind"}, {"product": "rain"}, {}])[1][2] == 0
        transaction.commit()
    assert {value for (value,) in index.connections.writer().execute("SELECT value FROM value")} == {"rain", "wind"}
    assert set(index.ids) == {None, "rain", "wind"}


def test_ids_that_sqlite_rolled_back_by_itself_are_forgotten_too(index):
    with Transaction(index) as transaction:
        transaction.columns([{"product": "rain"}])
        index.connections.writer().execute("ROLLBACK")
    assert index.ids == {None: 0}


def test_equal_texts_and_bytes_are_different_values(tmp_path):
    config = DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": {"t": "text", "b": "bytes"}})
    with Directory.open(tmp_path) as directory:
        Index.create(directory, config)
        index = Index.open(directory, config)
        with Transaction(index) as transaction:
            (texts, blobs) = transaction.columns([{"t": "a", "b": b"a"}, {"t": "", "b": b""}, {"t": "a"}])
            transaction.commit()
        index.close()
    assert len({*texts, *blobs} - {0}) == 4
    assert texts[0] == texts[2]
    assert blobs[2] == 0


def test_many_values_are_looked_up_and_not_given_twice(index, monkeypatch):
    monkeypatch.setattr("ondisk.index.transaction._CACHED_IDS", 10)
    texts = [f"text {number % 40}" for number in range(200)]
    seen = {}
    for begin in range(0, 200, 25):
        with Transaction(index) as transaction:
            part = texts[begin : begin + 25]
            ids = transaction.columns([{"product": text} for text in part])[1]
            transaction.commit()
        for text, id_ in zip(part, ids, strict=True):
            assert seen.setdefault(text, id_) == id_
    assert len(set(seen.values())) == 40


def test_numbers_are_taken_once_and_in_order(index):
    with Transaction(index) as transaction:
        assert list(transaction.take_seqs(3)) == [1, 2, 3]
        assert list(transaction.take_seqs(0)) == []
        assert list(transaction.take_seqs(1)) == [4]
        assert [transaction.take_generation(), transaction.take_generation()] == [1, 2]
        transaction.commit()
    assert counters(index) == (4, 2)


def test_rows_with_equal_unique_fields_stay_out(index):
    assert insert(index, row(1), row(2), row(3, station=2), row(4, station=None), row(5, station=None)) == 3
    assert [seq for seq, *_ in stored(index)] == [1, 3, 4]
    with Transaction(index) as transaction:
        assert present(transaction, [2, 3, 4, 5]) == {3, 4}


def test_a_replacement_is_a_deletion_in_the_order_of_changes(index):
    insert(index, row(1, product=7))
    with Transaction(index) as transaction:
        (seq,) = transaction.take_seqs(1)
        new = row(seq, product=8)
        transaction.replace(transaction.held_by(new), new, {seq})
        transaction.commit()
    assert stored(index) == [(2, 0, 1, 8)]
    assert deletions(index) == [(3, 1)]
    assert counters(index) == (3, 0)


def test_what_this_batch_itself_brought_is_replaced_without_a_trace(index):
    with Transaction(index) as transaction:
        transaction.take_seqs(2)
        transaction.insert([*zip(row(1, product=7))])
        new = row(2, product=8)
        transaction.replace(transaction.held_by(new), new, {1, 2})
        transaction.commit()
    assert stored(index) == [(2, 0, 1, 8)]
    assert deletions(index) == []


def test_replacing_what_is_not_there_is_a_damaged_index(index):
    with Transaction(index) as transaction, pytest.raises(IndexCorrupt, match="cannot be found again"):
        transaction.held_by(row(1))


def test_offsets_move(index):
    insert(index, row(1, offset=5), row(2, station=2, offset=6))
    with Transaction(index) as transaction:
        transaction.set_offsets([(50, 1), (60, 2)])
        transaction.commit()
    assert index.connections.writer().execute("SELECT offset FROM datum ORDER BY seq").fetchall() == [(50,), (60,)]


def test_a_segment_is_saved_once_and_grows(index):
    insert(index, row(1))
    facts = Facts(6, 78, 2**32 - 1, None)
    grown = SEGMENT._replace(end=End(200, 200, 4), facts=facts, has_unknown=True, copies=Copies.ALL, unproven=True)
    with Transaction(index) as transaction:
        transaction.save_segment(grown, DAY_ONE)
        assert transaction.segments([SEGMENT.name, "other"]) == {SEGMENT.name: grown}
        transaction.commit()
    sql = 'SELECT id, name, format, size, "begin", "end", length, count, compressed FROM segment'
    assert index.connections.writer().execute(sql).fetchall() == [(1, SEGMENT.name, "jsonl", 200, 0, DAY, 200, 4, 0)]
    sql = "SELECT mtime, inode, tail, checksum, has_unknown, copies, shared, unproven FROM segment"
    assert index.connections.writer().execute(sql).fetchall() == [(6, 78, 2**32 - 1, None, 1, 2, 0, 1)]


@pytest.mark.parametrize("compressed", [False, True])
def test_whether_a_segment_is_compressed_changes_with_its_file(index, compressed):
    packed = PACKED._replace(end=End(900, 900, 3, compressed))
    with Transaction(index) as transaction:
        transaction.save_segment(packed, DAY_ONE)
        assert transaction.segments([packed.name]) == {packed.name: packed}
        other = packed._replace(end=End(999, 999, 4, not compressed))
        transaction.save_segment(other, DAY_ONE)
        assert transaction.segments([packed.name]) == {packed.name: other}


def test_blocks_are_saved_for_their_segment_and_those_that_come_later_beside_them(index):
    first, second, third = Block(12, 19, 30), Block(100, 49, 20), Block(200, 69, 40)
    with Transaction(index) as transaction:
        transaction.save_blocks(PACKED, [first])
        transaction.save_blocks(PACKED._replace(id=3), [Block(12, 19, 99)])
        transaction.commit()
    with Transaction(index) as transaction:
        transaction.save_blocks(PACKED, [second, third])
        transaction.save_blocks(PACKED, [])
        transaction.commit()
    expected = [(2, 12, 19, 30), (2, 100, 49, 20), (2, 200, 69, 40), (3, 12, 19, 99)]
    assert blocks(index) == expected
    with Transaction(index) as transaction:
        transaction.save_blocks(PACKED, [Block(300, 109, 5)])
    assert blocks(index) == expected, "without commit"


def test_a_block_is_not_laid_over_one_that_is_there(index):
    with Transaction(index) as transaction:
        transaction.save_blocks(PACKED, [Block(12, 19, 30)])
        with pytest.raises(IndexCorrupt):
            transaction.save_blocks(PACKED, [Block(12, 49, 30)])


def test_a_segment_without_data_is_forgotten_with_its_blocks(index):
    other = PACKED._replace(id=3, name="1970/01-02.seg")
    with Transaction(index) as transaction:
        for segment in (PACKED, other):
            transaction.save_segment(segment, DAY_ONE)
            transaction.save_blocks(segment, [Block(12, 19, 30), Block(100, 49, 20)])
        assert transaction.forget_if_empty(PACKED)
        assert transaction.segments([PACKED.name, other.name]) == {other.name: other}
        transaction.commit()
    assert blocks(index) == [(3, 12, 19, 30), (3, 100, 49, 20)]


def test_a_segment_with_data_is_not_forgotten_and_keeps_its_blocks(index):
    with Transaction(index) as transaction:
        transaction.save_segment(PACKED, DAY_ONE)
        transaction.save_blocks(PACKED, [Block(12, 19, 30)])
        transaction.insert([transaction.take_seqs(1), [0], [PACKED.id], [12], [10], [1], [0]])
        assert not transaction.forget_if_empty(PACKED)
        assert transaction.segments([PACKED.name]) == {PACKED.name: PACKED}
        transaction.commit()
    assert blocks(index) == [(2, 12, 19, 30)]


def test_two_generations_of_one_name_cannot_stand_beside_each_other(index):
    insert(index, row(1))
    with Transaction(index) as transaction, pytest.raises(IndexCorrupt):
        transaction.save_segment(SEGMENT._replace(id=2), DAY_ONE)


def test_deleting_takes_a_number_for_each_datum(index):
    insert(index, row(1), row(2, station=2), row(3, station=3))
    with Transaction(index) as transaction:
        assert transaction.delete(Fields(CONFIG.fields).station >= 2) == 2
        assert transaction.delete(Fields(CONFIG.fields).station >= 2) == 0
        transaction.commit()
    assert deletions(index) == [(4, 2), (5, 3)]
    assert counters(index) == (5, 0)
    assert [seq for seq, *_ in stored(index)] == [1]


def test_deleting_by_place_takes_what_is_exactly_there(index):
    insert(index, row(1, offset=0), row(2, station=2, offset=11), row(3, station=3, offset=22))
    with Transaction(index) as transaction:
        assert transaction.delete_at(SEGMENT.name, [(0, 10), (0, 10), (11, 9), (12, 10), (500, 10)]) == 1
        assert transaction.delete_at("1970/01-02.jsonl", [(11, 10)]) == 0
        assert transaction.delete_at(SEGMENT.name, []) == 0
        transaction.commit()
    assert [seq for seq, *_ in stored(index)] == [2, 3]


def test_a_commit_says_whether_anybody_reads_an_older_state(index):
    insert(index, row(1))
    with index.snapshot() as snapshot:
        totals(snapshot, Everything())
        with Transaction(index) as transaction:
            transaction.insert([*zip(row(*transaction.take_seqs(1), station=2))])
            transaction.commit()
            assert transaction.has_no_older_readers is False
    with Transaction(index) as transaction:
        transaction.insert([*zip(row(*transaction.take_seqs(1), station=3))])
        transaction.commit()
        assert transaction.has_no_older_readers is True


def test_nobody_checkpoints_while_a_reader_reads_the_file_alone(index):
    lock = index.directory.shared()
    with Transaction(index) as transaction:
        transaction.insert([*zip(row(1))])
        transaction.commit()
        assert transaction.has_no_older_readers is False
    lock.close()


def test_a_commit_leaves_its_changes_in_the_main_file(index, tmp_path):
    insert(index, row(1))
    copy = sqlite3.connect(f"file:{tmp_path / INDEX}?mode=ro&immutable=1", uri=True)
    assert copy.execute("SELECT count(*) FROM datum").fetchone() == (1,)
    copy.close()


class Failing:
    """A connection whose COMMIT fails."""

    def __init__(self, connection, code):
        self.connection = connection
        self.code = code

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *arguments):
        if sql == "COMMIT":
            error = sqlite3.OperationalError("it failed")
            error.sqlite_errorcode = self.code
            raise error
        return self.connection.execute(sql, *arguments)


@pytest.mark.parametrize(
    ("code", "kind", "sealed"),
    [
        (sqlite3.SQLITE_FULL, DiskFull, False),
        (sqlite3.SQLITE_BUSY, LockError, False),
        (sqlite3.SQLITE_IOERR_FSYNC, DurabilityLost, True),
        (sqlite3.SQLITE_IOERR_WRITE, DurabilityLost, True),
    ],
)
def test_a_commit_that_fails_says_whether_it_may_have_reached_the_disk(index, code, kind, sealed):
    undone, done = [], []
    with Transaction(index) as transaction:
        transaction.on_rollback(lambda: undone.append(1))
        transaction.on_rollback(lambda: undone.append(2))
        transaction.after_commit(lambda: done.append(1))
        transaction.insert([*zip(row(1))])
        transaction.connection = Failing(index.connections.writer(), code)
        with pytest.raises(kind) as caught:
            transaction.commit()
    assert type(caught.value) is kind
    assert undone == ([] if sealed else [2, 1])
    assert done == []
    assert stored(index) == []


def test_after_a_commit_what_waits_for_it_is_done_in_order_and_nothing_is_undone(index):
    calls = []
    with Transaction(index) as transaction:
        transaction.on_rollback(lambda: calls.append("undone"))
        transaction.after_commit(lambda: calls.append("first"))
        transaction.after_commit(lambda: calls.append("second"))
        transaction.insert([*zip(row(1))])
        transaction.commit()
    assert calls == ["first", "second"]
    assert len(stored(index)) == 1


def test_after_a_commit_that_does_not_reach_the_main_file_nothing_more_is_done(index, monkeypatch):
    calls = []

    def fail(_: Connections) -> bool:
        raise StorageError("the disk fails")

    monkeypatch.setattr(Connections, "checkpoint", fail)
    with Transaction(index) as transaction:
        transaction.on_rollback(lambda: calls.append("undone"))
        transaction.after_commit(lambda: calls.append("done"))
        transaction.insert([*zip(row(1))])
        transaction.commit()
    assert calls == []
    assert len(stored(index)) == 1


def test_an_index_without_its_row_is_damaged(index):
    index.connections.writer().execute("DELETE FROM dataset")
    with pytest.raises(IndexCorrupt, match="has 0 rows"), Transaction(index):
        pass
    assert not index.connections.writer().in_transaction


def test_data_of_one_dataset_count_up_over_its_whole_life(create):
    dataset = create(fields=FIELDS, unique=["reftime"], replace="yes")
    for _ in range(3):
        dataset.append([Datum(T), Datum(T.replace(hour=7))])
    dataset.delete("")
    dataset.append([Datum(T)])
    assert sql(dataset.path, "SELECT seq FROM datum") == [(13,)]
    numbers = sql(dataset.path, "SELECT seq FROM deletion UNION ALL SELECT seq FROM datum")
    assert len(numbers) == len(set(numbers)) == 7


def test_columns_of_no_data_are_empty(index):
    with Transaction(index) as transaction:
        assert all(column == [] for column in transaction.columns([]))


def test_a_transaction_that_cannot_begin_leaves_none_open(index, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "_read_counters", interrupted)
        with pytest.raises(KeyboardInterrupt), Transaction(index):
            pass
    with Transaction(index) as transaction:
        transaction.commit()


def test_a_counter_that_lags_behind_uses_no_number_twice(index):
    with Transaction(index) as transaction:
        index.connections.writer().execute(
            "INSERT INTO segment (id, name, format, size, [begin], [end], mtime, length)"
            " VALUES (7, '2026/01-01.jsonl', 'jsonl', 0, 0, 1, 0, 0)"
        )
        with pytest.raises(IndexCorrupt, match="generations"):
            transaction.take_generation()


def test_a_counter_of_changes_that_lags_behind_its_data_is_damage(index):
    insert(index, row(1), row(2, reftime=1, offset=10))
    index.connections.writer().execute("UPDATE dataset SET seq = 1")
    with pytest.raises(IndexCorrupt, match="its counter of changes is 1, but it has a datum with number 2"):
        insert(index)


@pytest.mark.parametrize("error", [StorageError("the disk is read-only"), OSError(errno.EIO, "the disk fails")])
def test_an_undo_that_fails_hides_no_error_and_keeps_no_other_from_being_undone(index, error):
    undone = []

    def fail_to_undo():
        raise error

    def fail_in_a_transaction():
        with Transaction(index) as transaction:
            transaction.on_rollback(lambda: undone.append(1))
            transaction.on_rollback(fail_to_undo)
            transaction.insert([*zip(row(1))])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_a_transaction()
    assert undone == [1]
    assert not index.connections.writer().in_transaction
    assert stored(index) == []


def test_an_interrupt_while_something_is_undone_leaves_no_transaction_and_no_id_of_it(create):
    dataset = create(fields={"station": "text"})

    def interrupted(writer):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ondisk.segments.concat_writer.ConcatWriter.sync", fail(errno.ENOSPC))
        patch.setattr(ConcatWriter, "undo", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dataset.append([datum(0, "lost")])
    for hour, station in enumerate(["a", "lost", "b"]):
        assert dataset.append([datum(hour, station)]).imported == 1
    assert [each.metadata["station"] for each in dataset.query()] == ["a", "lost", "b"]
