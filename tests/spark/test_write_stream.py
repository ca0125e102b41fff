"""Writing streams to datasets: each batch of a query once, whatever was killed, failed or is done again."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from spark.cluster import TIMEOUT, Cluster
from spark.test_write import CONFIG, check_sound

ANY = {**CONFIG, "unique": []}
"""Nothing is a duplicate."""


class Query:
    """A query that writes stations to a dataset: 0 to 9 by its first batch, then 10 to 19, and so on.

    A run does one batch, behind the one that is to be done again, if there is one.
    """

    def __init__(self, spark, dataset, checkpoint: Path):
        self._spark = spark
        self._path = str(dataset.path)
        self._checkpoint = checkpoint

    def start(self, mode="append", change=lambda rows: rows, **options):
        rows = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=4).load()
        rows = change(rows.selectExpr("timestamp_seconds(value) AS reftime", "value AS station"))
        writer = rows.writeStream.format("ondisk").outputMode(mode).options(**options)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).queryName(self._checkpoint.name)
        return writer.trigger(availableNow=True).start(self._path)

    def run(self, times=1, **how):
        """Do some batches; give the source under which they are marked."""
        for _ in range(times):
            running = self.start(**how)
            running.awaitTermination()
        return f"query {running.id}"

    def forget_last_commit(self):
        """Let Spark do the last batch again, as if it had been killed before it noted that it is done."""
        last = max(int(each.name) for each in self._checkpoint.glob("commits/[0-9]*"))
        for name in (f"{last}", f".{last}.crc"):
            (self._checkpoint / "commits" / name).unlink()


@pytest.fixture
def query(spark, tmp_path):
    def begin(dataset, name="checkpoint"):
        return Query(spark, dataset, tmp_path / name)

    return begin


def stations(dataset):
    return sorted(each.metadata["station"] for each in dataset.query())


@pytest.mark.check
def test_each_batch_is_written_and_the_last_one_marked(create, query):
    dataset = create(**ANY)
    source = query(dataset).run(2, change=lambda rows: rows.selectExpr("*", "2 * station AS t"))
    assert stations(dataset) == [*range(20)]
    assert all(each.data == {"t": 2 * each.metadata["station"]} for each in dataset.query())
    assert dataset.parts_of(source) == {1}
    assert query(dataset).run() == source
    assert stations(dataset) == [*range(30)]
    assert dataset.parts_of(source) == {2}
    check_sound(dataset)


@pytest.mark.parametrize(("config", "on_duplicate"), [(ANY, "skip"), (CONFIG, "fail")], ids=["any", "unique"])
def test_a_batch_done_again_is_written_once(create, query, config, on_duplicate):
    dataset = create(**config)
    run = query(dataset)
    run.run(on_duplicate=on_duplicate)
    for count in (20, 30):
        run.forget_last_commit()
        run.run(on_duplicate=on_duplicate)
        assert stations(dataset) == [*range(count)]
        dataset.repack()
    check_sound(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("config", [ANY, CONFIG], ids=["any", "unique"])
@pytest.mark.parametrize("behind", [False, True], ids=["before the commit", "behind the commit"])
def test_a_driver_killed_at_a_commit_writes_the_batch_once(java, create, query, tmp_path, config, behind):
    dataset = create(**config)
    run = query(dataset)
    run.run()
    cluster = Cluster(tmp_path, java)
    cluster.master = "local[2]"
    driver = cluster.start(
        "write_stream_killed", path=str(dataset.path), checkpoint=str(tmp_path / "checkpoint"), behind=behind
    )
    try:
        assert driver.process.wait(TIMEOUT) == -signal.SIGKILL
    finally:
        driver.kill()
    assert stations(dataset) == [*range(20 if behind else 10)]
    source = run.run()
    assert stations(dataset) == [*range(30)]
    assert dataset.parts_of(source) == {2}
    check_sound(dataset, failed=not behind)


@pytest.mark.check
def test_two_queries_write_to_one_dataset_and_another_checkpoint_is_another_query(create, query):
    dataset = create(**ANY)
    queries = [query(dataset, name) for name in ("one", "other")]
    running = [each.start() for each in queries]
    for each in running:
        each.awaitTermination()
    for each in queries:
        each.forget_last_commit()
        each.run()
    assert Counter(stations(dataset)) == dict.fromkeys(range(20), 2)
    assert [dataset.parts_of(f"query {each.id}") for each in running] == [{1}, {1}]


@pytest.mark.check
def test_with_unique_what_another_query_writes_is_a_duplicate(create, query):
    dataset = create(**CONFIG)
    query(dataset, "one").run()
    query(dataset, "other").run(2)
    assert stations(dataset) == [*range(20)]
    with pytest.raises(Exception, match="10 of 10 data are duplicates, the first has reftime 1970"):
        query(dataset, "third").run(on_duplicate="fail")
    assert stations(dataset) == [*range(20)]
    check_sound(dataset)


@pytest.mark.check
def test_a_task_that_fails_leaves_nothing_and_the_batch_is_written_when_it_can_be(create, query):
    dataset = create(**ANY)
    run = query(dataset)
    run.run()
    with pytest.raises(Exception, match="too bad"):
        run.run(change=lambda rows: rows.where("station < 15 OR raise_error('too bad') IS NULL"))
    assert stations(dataset) == [*range(10)]
    check_sound(dataset, failed=True)
    run.run()
    assert stations(dataset) == [*range(30)]


@pytest.mark.check
def test_a_batch_without_rows_is_no_commit(create, query):
    dataset = create(**ANY)
    run = query(dataset)
    source = run.run(change=lambda rows: rows.where("station >= 10"))
    assert dataset.parts_of(source) == set()
    run.run(change=lambda rows: rows.where("station >= 10"))
    assert stations(dataset) == [*range(10, 20)]
    assert dataset.parts_of(source) == {1}


def totals(rows):
    return rows.groupBy("reftime").agg({"station": "max"}).withColumnRenamed("max(station)", "station")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"on_duplicates": "skip"}, "unknown option 'on_duplicates'"),
        ({"match": ""}, "unknown option 'match'"),
        ({"on_duplicate": "raise"}, "the option on_duplicate must be skip or fail, not 'raise'"),
        ({"mode": "complete", "change": totals}, "the output mode complete would replace what was written"),
        ({"mode": "update"}, "ondisk does not support Update mode"),
        ({"change": lambda rows: rows.drop("reftime")}, "the column reftime is missing"),
    ],
)
def test_what_cannot_be_written_is_said(create, query, how, message):
    dataset = create(**ANY)
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        query(dataset).run(**how)
    assert message in str(caught.value)
    assert stations(dataset) == []
    check_sound(dataset)
