"""Streams: every datum is given once, whatever comes, goes or moves, and however often a query begins again.

Those without Spark read with `sqlite3`, in one process, and do what Spark does between batches.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.errors import InvalidInput, NeedsCheck, TokenExpired
from ondisk.index import changes
from ondisk.index.connection import connect_to_read
from ondisk.spark import stream
from ondisk.spark.columns import schema_of
from ondisk.spark.plan import Limits, Partition
from ondisk.spark.stream import StreamReader
from spark.test_plan import FORMATS, T, append, apply, datum

BASE = {"step": "daily", "unique": ["reftime", "station"], "fields": {"station": "integer", "name": "text"}}


@pytest.fixture(scope="module", autouse=True)
def one_library():
    """Read by the SQLite library of this process, which has the datasets open; Spark's workers take the other one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "connect", connect_to_read)
        yield


class Query:
    """A query as Spark runs it: offsets are kept as JSON, a batch that was begun is done again with the same ones.

    Attributes:
        given: the data that it has given.
    """

    def __init__(self, dataset, **options):
        self._path = str(dataset.path)
        self._options = {"path": self._path, **options}
        self._schema = schema_of(dataset.config, ["station"], data=True)
        self._start = self._end = None
        self.given: list[Any] = []
        self.batches = 0

    def reader(self):
        return StreamReader(self._options, self._schema)

    def batch(self, between=lambda: None, *, fails=False):
        """Do one batch, if there is one, by a query that has just begun; tell whether there was.

        Args:
            between: is called before each of its pieces is read.
            fails: it is read, and then lost.
        """
        reader = self.reader()
        start = self._start or _kept(reader.initialOffset())
        if self._end is None:
            end = _kept(reader.latestOffset(start, reader.getDefaultReadLimit()))
            if end == start:
                return False
            self._start, self._end = start, end
        data = []
        for piece in pickle.loads(pickle.dumps(reader.partitions(start, self._end))):
            between()
            for batch in self.reader().read(piece):
                data += batch.column("data").to_pylist()
        if not fails:
            self._start, self._end = self._end, None
            self.given += data
            self.batches += 1
        return True

    def drain(self):
        while self.batch():
            pass
        return self.given


def _kept(offset):
    return json.loads(json.dumps(offset))


def written(dataset, match=None):
    """Return the present data in the form of a stream."""
    return [
        each.data if isinstance(each.data, bytes) else json.dumps(each.data, separators=(",", ":"))
        for each in dataset.query(match)
    ]


@pytest.fixture
def small(monkeypatch):
    """Cut batches into several pieces."""
    monkeypatch.setattr(stream, "_ROWS", 7)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_there_and_what_comes_is_returned_once(create, kind, small):
    dataset = create(**BASE, **FORMATS[kind])
    query = Query(dataset)
    assert query.drain() == []
    append(dataset, [datum(hour, station, hour) for hour in range(30) for station in range(3)])
    assert Counter(query.drain()) == Counter(written(dataset))
    append(dataset, [datum(hour, 9, hour + 100) for hour in range(5)])
    assert Counter(query.drain()) == Counter(written(dataset))
    assert len(query.given) == 95
    assert not query.batch()


def test_a_batch_has_as_many_data_as_were_asked_for_in_the_order_of_appending(create):
    dataset = create(**BASE, format="jsonl")
    for hour in reversed(range(10)):
        dataset.append([datum(hour, station, 10 * hour + station) for station in range(10)])
    query = Query(dataset, maxDataPerTrigger="40")
    assert query.batch()
    assert sorted(query.given) == sorted(written(dataset, dataset.fields.reftime >= T + timedelta(hours=6)))
    query.drain()
    assert query.batches == 3
    assert Counter(query.given) == Counter(written(dataset))


def test_the_limit_counts_the_data_that_match(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, station, hour) for hour in range(40) for station in range(5)])
    query = Query(dataset, maxDataPerTrigger="10", match="station: 3")
    query.drain()
    assert (query.batches, len(query.given)) == (5, 40)  # the last batch covers changes after the last match


def test_the_limit_counts_data_of_archives_too(create):
    dataset = create(**BASE, format="jsonl")
    for day in (1, 0):
        dataset.append([datum(24 * day + hour, 1, 100 * day + hour) for hour in range(24)])
    dataset.archive("2026/11-20.jsonl")
    query = Query(dataset, maxDataPerTrigger="30")
    query.batch()
    assert Counter(query.given) == Counter(f'{{"value":{value}}}' for value in [*range(100, 124), *range(6)])


def test_all_there_is_comes_where_spark_asks_for_all(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1) for hour in range(40)])
    reader = Query(dataset, maxDataPerTrigger="10").reader()
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["seq"] == 40


def test_what_comes_after_a_query_for_what_is_there_began_waits(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    reader = Query(dataset).reader()
    reader.prepareForTriggerAvailableNow()
    dataset.append([datum(1, 1)])
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["seq"] == 1
    assert reader.latestOffset(end, ReadAllAvailable()) is end


CHANGES = ["append", "replace", "delete one", "delete day", "repack", "archive", "unarchive", "reset"]
STEPS = st.sampled_from([*CHANGES, "batch", "failing batch", "batch amid a repack", "batch amid a move"])


@pytest.mark.check
@given(st.sampled_from(sorted(FORMATS)), st.sampled_from(["5", "1000"]), st.lists(STEPS, max_size=12))
@settings(max_examples=up_to(30))
def test_each_datum_is_returned_once_whatever_happens(kind, limit, steps):
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(stream, "_ROWS", 3)
        with ondisk.create(Path(folder, "it"), {**BASE, **FORMATS[kind], "replace": "yes"}) as dataset:
            query = Query(dataset, maxDataPerTrigger=limit)
            hours = range(0, 72, 6)
            append(dataset, [datum(hour, station, 2 * hour + station) for hour in hours for station in range(2)])
            value = 1000
            for step in steps:
                match step:
                    case "batch" | "failing batch":
                        query.batch(fails=step != "batch")
                    case "batch amid a repack":
                        query.batch(lambda: apply("repack", dataset))
                    case "batch amid a move":
                        moves = iter(["archive", "unarchive"] * 50)
                        query.batch(lambda moves=moves: apply(next(moves), dataset))
                    case "append" | "replace" | "reset":
                        value += 1
                        hour, station = {"append": (26, value), "replace": (24, 0), "reset": (25, 5)}[step]
                        append(dataset, [datum(hour, station, value)])
                    case change:
                        apply(change, dataset)
            query.drain()
            there = Counter(written(dataset))
            given = Counter(query.given)
            assert not there - given, "none is missing"
            assert max(given.values(), default=0) <= 1, "none comes twice"


def test_what_was_deleted_or_replaced_before_it_was_returned_never_is(create):
    dataset = create(**BASE, format="jsonl", replace="yes")
    dataset.append([datum(hour, 1, hour) for hour in range(3)])
    dataset.delete(dataset.fields.reftime == T)
    dataset.append([datum(1, 1, 50)])
    assert sorted(Query(dataset).drain()) == ['{"value":2}', '{"value":50}']


def test_a_replacement_is_returned_after_what_it_replaces(create):
    dataset = create(**BASE, format="jsonl", replace="yes")
    query = Query(dataset)
    for value in (1, 2):
        dataset.append([datum(0, 1, value)])
        query.drain()
    assert query.given == ['{"value":1}', '{"value":2}']


def test_a_batch_done_again_returns_what_is_still_there(create, small):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(20)])
    query = Query(dataset)
    assert query.batch(fails=True)
    dataset.append([datum(hour, 2, hour) for hour in range(20)])
    dataset.delete(dataset.fields.reftime < T + timedelta(hours=2))
    assert query.batch()
    assert Counter(query.given) == Counter(written(dataset, "station: 1"))
    assert len(query.given) == 18


def test_a_batch_looks_at_its_own_rows_of_the_index(create):
    """Whatever the match expression, for which an index of fields may seem better to SQLite."""
    dataset = create(**BASE, index=["station"], format="jsonl")
    dataset.append([datum(hour / 60, 1) for hour in range(3000)])
    query = Query(dataset, match="reftime: >2000; station: 1", maxDataPerTrigger="10")
    start = {**query.reader().initialOffset(), "seq": 2900}
    reader = query.reader()
    with reader._present() as (current, snapshot, state):
        steps = []
        snapshot.connection.set_progress_handler(lambda: steps.append(1), 10)
        assert stream.limited(state, snapshot, start["seq"], 3000, 10) == 2910
        limits = Limits.of(None, None)
        assert stream.cuts(state, snapshot, 2900, 2910, limits, data=True) == ([2900, 2910], "10 rows (counted)")
        partition = Partition(state, changes.BETWEEN, [2900, 2910])
        [batch] = stream.read(partition, current, snapshot, reader._columns)
    assert batch.num_rows == 10
    assert len(steps) < 200


def test_a_stream_with_another_match_than_its_checkpoint_is_refused(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, hour % 3, hour) for hour in range(9)])
    query = Query(dataset, match="station: 1", maxDataPerTrigger="1")
    query.batch()
    query._options["match"] = " station:=1 "  # the same, written otherwise
    query.batch()
    for match in ("station: 2", "", "reftime: >=now; station: 1"):
        query._options["match"] = match
        with pytest.raises(InvalidInput, match=r"is that of a stream with the match .*station:=1.*, not") as caught:
            query.batch()
        assert "Use the match of the checkpoint. Or: Start the query with a new checkpoint" in str(caught.value)
    query._start.pop("match")  # as a version without it wrote it
    query._options["match"] = "station: 2"
    query.drain()
    assert sorted(query.given) == sorted(written(dataset, "station: 1")[:2] + written(dataset, "station: 2")[1:])


def test_a_batch_that_was_planned_is_not_repeated_with_another_match(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, hour % 3, hour) for hour in range(9)])
    query = Query(dataset, match="reftime: >=2020-01-01")
    query.batch(fails=True)
    query._options["match"] = "station: 1"
    with pytest.raises(
        InvalidInput, match="is that of a stream with the match 'reftime: >=2020-01-01', not 'station: 1'"
    ):
        query.batch()


def test_a_match_of_the_present_may_continue(create):
    """Its text is the same, although it stands for another time at each start."""
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(9)])
    query = Query(dataset, match="reftime: <now", maxDataPerTrigger="3")
    assert len(query.drain()) == len(written(dataset, "reftime: <now"))


def test_the_end_that_a_query_reports_is_that_of_the_dataset(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(9)])
    reader = Query(dataset, maxDataPerTrigger="3").reader()
    assert reader.reportLatestOffset() is None
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert (end["seq"], reader.reportLatestOffset()["seq"]) == (3, 9)


def test_a_batch_is_logged_and_cut_as_options_say(create, caplog):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, hour % 2, hour) for hour in range(60)])
    query = Query(dataset, match="station: 1", maxRowsPerPartition="8")
    with caplog.at_level("INFO", logger="ondisk.spark"):
        query.drain()
    assert Counter(query.given) == Counter(written(dataset, "station: 1"))
    line = f"{dataset.path}: planned a batch of changes 1 to 60, match 'station: 1': 4 partitions, 30 rows (counted)"
    assert line in caplog.messages
    with pytest.raises(InvalidInput, match="maxRowsPerPartition must be a number of rows"):
        Query(dataset, maxRowsPerPartition="many").reader()


def test_large_data_are_in_more_pieces(create, monkeypatch):
    monkeypatch.setattr(stream, "_BYTES", 1000)
    dataset = create(**BASE, format="jsonl")
    dataset.append([Datum(T + timedelta(hours=hour), {"station": 1}, {"value": "x" * 300}) for hour in range(30)])
    reader = Query(dataset).reader()
    start = reader.initialOffset()
    pieces = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert 10 <= len(pieces) <= 15
    assert [piece.first for piece in pieces[1:]] == [piece.last for piece in pieces[:-1]]


def test_a_long_way_behind_only_a_sample_is_looked_at(create, monkeypatch, small):
    monkeypatch.setattr(stream, "_SAMPLE", 10)
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(205)])
    query = Query(dataset)
    pieces = query.reader().partitions(query.reader().initialOffset(), {**query.reader().initialOffset(), "seq": 205})
    assert len(pieces) == 11
    assert Counter(query.drain()) == Counter(written(dataset))


def test_a_dataset_made_anew_at_the_same_path_is_another(create, tmp_path):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    query = Query(dataset)
    query.drain()
    dataset.close()
    shutil.rmtree(dataset.path)
    create(**BASE, format="jsonl").append([datum(0, 1), datum(1, 1)])
    with pytest.raises(TokenExpired, match="rebuilt, or this is another dataset") as caught:
        query.batch()
    assert "new checkpoint" in caught.value.hint


def test_an_index_made_anew_has_another_order(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1) for hour in range(48)])
    dataset.archive("2026/11-20.jsonl")
    query = Query(dataset)
    query.drain()
    dataset.close()
    lose_index(dataset.path)
    with pytest.raises(NeedsCheck, match="its index was lost"):
        query.batch()
    with ondisk.open(dataset.path) as dataset:
        with pytest.raises(NeedsCheck, match="its index was lost"):
            query.batch()
        dataset.fix()
        with pytest.raises(TokenExpired, match="was rebuilt"):
            query.batch()


def test_an_archive_under_another_name_is_still_that_archive(create):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(96)])
    dataset.archive("2026/11-20.jsonl")
    query = Query(dataset, maxDataPerTrigger="60")
    query.batch()
    dataset.path.joinpath(".archive/last").rename(dataset.path / ".archive/old")
    query.batch()
    dataset.fix()
    dataset.archive("2026/11-21.jsonl")
    assert Counter(query.drain()) == Counter(written(dataset))
    assert len(query.given) == 96


def test_an_earlier_state_that_was_put_back_and_appended_to_is_seen(create, tmp_path):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    query = Query(dataset)
    dataset.close()
    shutil.copytree(dataset.path, tmp_path / "copy")
    with ondisk.open(dataset.path) as dataset:
        dataset.append([datum(1, 1), datum(2, 1)])
    query.drain()
    shutil.rmtree(dataset.path)
    shutil.copytree(tmp_path / "copy", dataset.path)
    with ondisk.open(dataset.path) as dataset:
        dataset.append([datum(hour, 2) for hour in range(5)])
    with pytest.raises(TokenExpired, match="an earlier state was restored, and has another change 3 now"):
        query.batch()


def test_an_earlier_state_that_was_put_back_is_seen(create, tmp_path):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    query = Query(dataset)
    dataset.close()
    shutil.copytree(dataset.path, tmp_path / "copy")
    with ondisk.open(dataset.path) as dataset:
        dataset.append([datum(1, 1)])
    query.drain()
    shutil.rmtree(dataset.path)
    (tmp_path / "copy").rename(dataset.path)
    with pytest.raises(TokenExpired, match="last change is 1, and the stream has read up to 2"):
        query.batch()


@pytest.mark.parametrize("limit", ["0", "-1", "many", "1.5", "²", ""])
def test_a_limit_is_a_number(create, limit):
    with pytest.raises(InvalidInput, match="maxDataPerTrigger must be a number of data"):
        Query(create(**BASE, format="jsonl"), maxDataPerTrigger=limit).reader()


def test_pushdown_is_no_option_of_a_stream(create):
    with pytest.raises(InvalidInput, match="unknown option 'pushdown'"):
        Query(create(**BASE, format="jsonl"), pushdown="true").reader()


class Runs:
    """Runs of one query of Spark's, which share a checkpoint.

    Attributes:
        batches: of each batch that came through, its number and its data.
    """

    def __init__(self, spark, folder, dataset):
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")
        self._path = str(dataset.path)
        self.batches = []
        self.tried = []

    def start(self, fails_at=None, trigger=None, **options):
        def take(frame, number):
            data = frame.toArrow().column("data").to_pylist()
            self.tried.append((number, data))
            if number == fails_at:
                raise ValueError("failed on purpose")
            self.batches.append((number, data))

        loaded = self._spark.readStream.format("ondisk").options(data="true", **options).load(self._path)
        writer = loaded.writeStream.foreachBatch(take).option("checkpointLocation", self._checkpoint)
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, **options):
        self.start(**options).awaitTermination()

    @property
    def given(self):
        return Counter(each for _, data in self.batches for each in data)


@pytest.fixture
def runs(spark, tmp_path, create):
    def begin(dataset):
        return Runs(spark, tmp_path, dataset)

    return begin


@pytest.mark.check
def test_a_query_goes_on_from_its_checkpoint(create, runs):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(100)])
    query = runs(dataset)
    query.run(maxDataPerTrigger=40)
    assert [len(data) for _, data in query.batches] == [40, 40, 20]
    dataset.delete(dataset.fields.reftime < T + timedelta(hours=1))
    dataset.repack()
    dataset.archive("2026/11-20.jsonl")
    query.run()
    assert len(query.given) == 100
    dataset.append([datum(hour, 2, hour + 200) for hour in range(30)])
    running = query.start()
    running.awaitTermination()
    [source] = running.lastProgress["sources"]
    assert json.loads(source["latestOffset"])["seq"] == json.loads(source["endOffset"])["seq"]
    with pytest.raises(Exception, match="its checkpoint is that of a stream with the match '', not 'station: 2'"):
        query.run(match="station: 2")
    assert len(query.given) == 130
    assert set(query.given.values()) == {1}


@pytest.mark.check
def test_a_batch_that_failed_is_done_again_with_the_same_data(create, runs):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(hour, 1, hour) for hour in range(60)])
    query = runs(dataset)
    with pytest.raises(Exception, match="failed on purpose"):
        query.run(fails_at=1, maxDataPerTrigger=25)
    dataset.append([datum(hour, 2, hour + 200) for hour in range(20)])
    dataset.archive("2026/11-20.jsonl", "2026/11-21.jsonl")
    query.run(maxDataPerTrigger=25)
    first, again = (sorted(data) for number, data in query.tried if number == 1)
    assert first == again
    assert query.given == Counter(written(dataset))


@pytest.mark.check
def test_what_is_appended_while_a_query_runs_comes(create, runs):
    dataset = create(**BASE, format="jsonl")
    query = runs(dataset)
    running = query.start(trigger={"processingTime": "100 milliseconds"})
    try:
        for value in range(3):
            dataset.append([datum(value, 1, value)])
            running.processAllAvailable()
            assert query.given == Counter(written(dataset))
    finally:
        running.stop()


@pytest.mark.check
def test_spark_says_that_a_stream_cannot_go_on(create, runs):
    dataset = create(**BASE, format="jsonl")
    dataset.append([datum(0, 1)])
    query = runs(dataset)
    query.run()
    dataset.close()
    shutil.rmtree(dataset.path)
    create(**BASE, format="jsonl")
    with pytest.raises(Exception, match="TokenExpired") as caught:
        query.run()
    assert "Start the query with a new checkpoint" in str(caught.value)
