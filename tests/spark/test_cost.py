"""The bytes read from disk grow with the result, not with the dataset: counted in Spark's workers."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ondisk import Datum

T = datetime(2026, 1, 1, tzinfo=UTC)
DAYS, EACH = 40, 500
PROC = Path("/proc")


@pytest.fixture
def dataset(create):
    made = create(format="jsonl", step="daily", unique=["reftime"], fields={"station": "integer", "name": "text"})
    step = timedelta(days=1) / EACH
    made.append(
        Datum(T + number * step, {"station": number % 7, "name": f"name {number}"}, {"note": "x" * 500})
        for number in range(DAYS * EACH)
    )
    return made


def read_by_workers():
    """Return the bytes that each Python process below this one has read from files so far."""
    parents, found = {}, {}
    for each in PROC.glob("[0-9]*"):
        try:
            name, _, rest = each.joinpath("stat").read_text().rpartition(")")
            parents[int(each.name)] = int(rest.split()[1])
            if "python" in name:
                found[int(each.name)] = int(each.joinpath("io").read_text().split()[1])
        except OSError:  # it has ended
            continue

    def is_below(process):
        while process in parents:
            process = parents[process]
            if process == os.getpid():
                return True
        return False

    return {process: count for process, count in found.items() if is_below(process)}


def count_of(work):
    """Count what the workers read while something is done, which was done once before."""
    work()
    before = read_by_workers()
    work()
    return sum(count - before.get(process, 0) for process, count in read_by_workers().items())


counted = pytest.mark.skipif(not PROC.joinpath("self/io").exists(), reason="the kernel counts no bytes of a process")


@counted
@pytest.mark.check
def test_what_is_read_is_what_is_asked_for(spark, dataset):
    data = sum(path.stat().st_size for path in dataset.path.glob("2026/*.jsonl"))
    index = dataset.path.joinpath("index.sqlite").stat().st_size

    def load(**options):
        return spark.read.format("ondisk").options(**options).load(str(dataset.path))

    def count(**options):
        return count_of(lambda: load(**options).count())

    def length(**options):
        return count_of(lambda: load(data="true", **options).selectExpr("sum(length(data))").collect())

    day, two_days = "reftime: =2026-01-10", "reftime: >=2026-01-10,<=2026-01-11"
    assert count(match="reftime: =2025-01-01") < index / 10
    rows = count(match=day)
    assert rows < index / 10 + 5 * index / DAYS
    assert data / DAYS < length(match=day) - rows < 1.5 * data / DAYS
    assert 2 * data / DAYS < length(match=two_days) - rows < 3 * data / DAYS + index / 10
    assert count() < index / 10  # from the sums of segments and days
    assert index / 2 < count_of(lambda: load().selectExpr("count(name)").collect()) < 1.5 * index
    assert data < length() < 1.05 * data + 1.5 * index


@pytest.mark.check
@counted
def test_where_and_select_read_what_they_name(spark, dataset):
    data = sum(path.stat().st_size for path in dataset.path.glob("2026/*.jsonl"))
    index = dataset.path.joinpath("index.sqlite").stat().st_size
    loaded = spark.read.format("ondisk").load(str(dataset.path))
    day = loaded.where("reftime < '2026-01-02'")
    rows = count_of(day.select("station").collect)
    assert rows < index / 10 + 5 * index / DAYS
    assert 0.9 * data / DAYS < count_of(day.select("data").collect) - rows < 1.5 * data / DAYS
    assert count_of(loaded.limit(5).collect) < index / 10


def test_spark_broadcasts_a_small_load_by_itself(spark, dataset):
    def joined(small):
        return large.join(small, "station")._jdf.queryExecution().executedPlan().toString()

    large = spark.read.format("ondisk").load(str(dataset.path))
    small = large.where("reftime = '2026-01-10'").select("station")
    assert "BroadcastHashJoin" in joined(small)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "100")
    try:
        assert "SortMergeJoin" in joined(large.select("station"))
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
