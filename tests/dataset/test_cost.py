"""What appending and asking may cost, counted instead of timed."""

from __future__ import annotations

import gc
import io
import sqlite3
import tracemalloc
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from worlds import connections

from ondisk import Datum
from ondisk.filesystem import Directory, ReadableFile, WritableFile, files

T = datetime(2026, 11, 20, tzinfo=UTC)
TIDE = 1  # each commit opens and writes the tide mark, and does not sync it
FIELDS = {"area": "text", "product": "text"}
VM2 = {"format": "vm2", "fields": FIELDS, "unique": ["reftime", "area", "product"], "index": ["area", "product"]}


@pytest.fixture
def counted(monkeypatch):
    """Counts what touches the disk: opens, writes, syncs, reads, and the statements that connections to write run."""
    counts = Counter()

    def count(owner, name, key):
        real = getattr(owner, name)

        def wrapper(*arguments, **options):
            counts[key] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, wrapper)

    count(files, "sync", "sync")
    count(Directory, "_open_file", "open")
    count(WritableFile, "write", "write")
    count(WritableFile, "truncate", "truncate")
    count(ReadableFile, "read", "read")
    with connections(lambda each: each.set_trace_callback(lambda sql: counts.update([sql.split(" ")[0]])), "rw"):
        yield counts


def lines(count, begin=0):
    """Lines of VM2: ten products of each hour."""
    for n in range(begin, begin + count):
        time = T + timedelta(hours=n // 10)
        yield b"%s,%d,%d,%d.5,,,000000000\n" % (time.strftime("%Y%m%d%H%M").encode(), n % 3, n % 10, n)


def file_of(count, begin=0):
    return io.BytesIO(b"".join(lines(count, begin)))


def test_who_opens_the_index_after_a_large_append_reads_no_long_log(create):
    dataset = create(**VM2)
    dataset.append_file(file_of(20_000))
    dataset.close()
    assert (dataset.path / "index.sqlite-wal").stat().st_size > 1024 * 1024  # kept, for deletes on a full disk
    with closing(sqlite3.connect(dataset.path / "index.sqlite")) as connection:
        busy, frames, moved = connection.execute("PRAGMA wal_checkpoint").fetchone()
    assert busy == 0
    assert frames == moved <= 1


@pytest.mark.parametrize("count", [1000, 20_000])
def test_a_batch_is_one_commit_whatever_its_size(create, counted, count):
    dataset = create(**VM2)
    counted.clear()
    assert dataset.append_file(file_of(count)).imported == count
    assert counted["BEGIN"] == counted["COMMIT"] == 1
    assert counted["ROLLBACK"] == 0


@pytest.mark.parametrize(("count", "batch_size"), [(1000, 100), (1000, 1000), (5000, 1000)])
def test_batches_are_as_many_commits(create, counted, count, batch_size):
    dataset = create(**VM2)
    counted.clear()
    dataset.append_file(file_of(count), batch_size=batch_size)
    assert counted["COMMIT"] == count // batch_size


@pytest.mark.parametrize("days", [1, 10, 60])
def test_a_touched_segment_costs_one_write_and_at_most_two_syncs(create, counted, days):
    dataset = create(**VM2)
    dataset.append_file(file_of(10))
    counted.clear()
    result = dataset.append_file(file_of(days * 240, 10))
    assert days <= result.segments <= days + 1
    assert counted["write"] == result.segments + TIDE
    assert counted["open"] <= 3 * result.segments + TIDE  # of a new one: not known, not there, made
    assert counted["sync"] <= 2 * result.segments + 1
    assert counted["truncate"] == 0
    counted.clear()
    again = dataset.append_file(file_of(10, days * 240 + 10))
    assert (again.segments, counted["write"], counted["open"]) == (1, 1 + TIDE, 1 + TIDE)
    assert counted["sync"] == 1


def test_duplicates_cost_no_sync_and_no_write(create, counted):
    dataset = create(**VM2)
    dataset.append_file(file_of(2000))
    counted.clear()
    assert dataset.append_file(file_of(2000)).duplicates == 2000
    assert (counted["sync"], counted["write"], counted["open"], counted["COMMIT"]) == (0, 0, 0, 0)


def test_the_number_of_statements_grows_with_segments_and_not_with_data(create):
    statements = []
    for count in (240, 2400):  # one day: of ten products, and of a hundred
        seen = []
        with connections(lambda each, seen=seen: each.set_trace_callback(seen.append), "rw"):
            dataset = create(str(count), **VM2)
            dataset.append_file(io.BytesIO(b"202601010000,1,1,,,,\n"))
        seen.clear()
        data = (b"20261120%02d00,1,%d,,,,\n" % (n % 24, n // 24 % 5) for n in range(count))
        dataset.append_file(io.BytesIO(b"".join(data)))
        inserted = sum("INTO datum " in sql for sql in seen)
        assert inserted <= count // 50 + count % 50 + 1
        statements.append(len(seen) - inserted)
        assert statements[-1] < 60
    assert statements[0] == pytest.approx(statements[1], abs=10)


def test_deleting_is_one_commit_and_touches_no_segment(create, counted):
    dataset = create(**VM2)
    dataset.append_file(file_of(2000))
    counted.clear()
    assert dataset.delete("area:VM2,1") > 600
    assert counted["COMMIT"] == 1
    assert (counted["sync"], counted["write"], counted["open"]) == (0, TIDE, TIDE)


def test_a_query_opens_each_segment_once_and_reads_neighbours_together(create, counted):
    dataset = create(**VM2)
    dataset.append_file(file_of(4800))
    segments = dataset.info()["segments"]
    counted.clear()
    assert sum(1 for _ in dataset.query()) == 4800
    assert segments <= counted["open"] <= 3 * segments
    assert counted["read"] <= 3 * segments


def test_a_query_without_data_and_a_summary_open_nothing(create, counted):
    dataset = create(**VM2)
    dataset.append_file(file_of(1000))
    counted.clear()
    assert len(list(dataset.query(with_data=False))) == dataset.summary().count == 1000
    assert (counted["open"], counted["read"]) == (0, 0)


def test_a_look_up_of_one_key_is_one_search_and_one_read(create, counted):
    dataset = create(**VM2)
    dataset.append_file(file_of(5000))
    key = {"reftime": T + timedelta(hours=100), "area": "VM2,1", "product": "VM2,0"}
    (datum,) = dataset.query(**key)
    counted.clear()
    for _ in range(10):
        assert list(dataset.query(**key)) == [datum]
    assert counted["read"] == 10
    assert counted["open"] == 0


def peak(work):
    """Bytes that Python holds at most while it works, beyond what it held before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


class Lines(io.RawIOBase):
    """A file of so many lines that is made while it is read."""

    def __init__(self, count):
        self._lines = lines(count)
        self._rest = b""

    def readable(self):
        return True

    def read(self, size=-1):
        while len(self._rest) < size:
            line = next(self._lines, b"")
            if not line:
                break
            self._rest += line
        content, self._rest = self._rest[:size], self._rest[size:]
        return content

    readinto = None


BATCH, FEW, MANY = 2000, 8000, 40_000


# Less than the smallest of the data take, were they all kept; and more than what pytest's own threads take meanwhile.
MARGIN = 4_000_000


@pytest.mark.check
def test_memory_of_appending_and_asking_does_not_grow_with_the_data(create, monkeypatch):
    monkeypatch.setattr("ondisk.formats.lines._CHUNK", 64 * 1024)
    peaks = []
    for count in (FEW, MANY):
        dataset = create(str(count), **VM2)
        appended = peak(lambda dataset=dataset, count=count: dataset.append_file(Lines(count), "vm2", batch_size=BATCH))
        streamed = peak(lambda dataset=dataset: sum(1 for _ in dataset.query()))
        assert dataset.summary().count == count
        peaks.append((appended, streamed))
    (append_few, query_few), (append_many, query_many) = peaks
    # What may grow are caches, of times that occur, which have bounds of their own.
    assert append_many < 1.5 * append_few + MARGIN
    assert query_many < 1.5 * query_few + MARGIN
    assert append_many < 16_000_000


@pytest.mark.check
def test_memory_of_appending_data_objects_is_that_of_a_batch(create):
    peaks = []
    for count in (FEW // 4, MANY // 4):
        dataset = create(str(count), fields={"station": "integer"})
        data = (Datum(T + timedelta(seconds=n), {"station": n % 7}, {"n": n}) for n in range(count))
        peaks.append(peak(lambda dataset=dataset, data=data: dataset.append(data, batch_size=BATCH)))
    assert peaks[1] < 1.5 * peaks[0] + MARGIN


def test_an_index_takes_at_most_a_hundred_bytes_a_datum(create):
    dataset = create(**VM2)
    dataset.append_file(file_of(20_000))
    dataset.close()
    connection = sqlite3.connect(f"file:{dataset.path / 'index.sqlite'}?mode=ro", uri=True)
    (pages,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    connection.close()
    assert pages * size / 20_000 <= 110


def test_long_texts_are_not_kept_in_memory(create):
    dataset = create(format="jsonl", fields={"text": "text"})

    def work():
        for count in range(8):
            dataset.append(
                Datum(T + timedelta(seconds=n), {"text": f"{count} {n}" + "x" * 40_000}, {}) for n in range(50)
            )
        assert sum(1 for _ in dataset.query(with_data=False)) == 400

    assert peak(work) < 14_000_000
