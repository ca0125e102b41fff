"""Measure reading and writing by Spark against Parquet of the same rows: one folder for each day, sorted.

For reading Parquet, its DataFrame is kept and the query names the day. Data end in random digits: Parquet would store
almost nothing of data padded with one character, and reading would compare 27 MB with 200 MB.

python benchmarks/spark.py [--count 2000000] [--rounds 7] [--json]

The figures are medians, measured in turns: ondisk's time as a multiple of Parquet's. Fails if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from measure import Report, seconds

import ondisk
from ondisk.index.connection import connect_to_read
from ondisk.matcher import Everything
from ondisk.spark import session
from ondisk.spark.read import opened
from ondisk.spark.source import plan

DAYS, STATIONS, PRODUCTS = 200, 100, 10
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = {
    "format": "vm2",
    "step": "daily",
    "unique": ["reftime", "area", "product"],
    "index": ["area"],
    "fields": {"area": "text", "product": "text"},
}
DAY, STATION = "2026-03-15", "VM2,42"
APPENDED_DAYS = 50


def lines(count: int, days: int) -> Iterator[bytes]:
    """Yield observations of about 100 bytes, in order of time."""
    times = count // (days * STATIONS * PRODUCTS)
    random = Random(0)
    for day in range(days):
        for number in range(times):
            time = BEGIN + timedelta(days=day, seconds=number * (86_400 // times))
            for station in range(STATIONS):
                begin = f"{time:%Y%m%d%H%M%S},{station},"
                for product in range(PRODUCTS):
                    yield f"{begin}{product},{day + product / 10},,,{random.randbytes(40).hex()}"[:100].encode() + b"\n"


class Stream:
    """Lines as a file."""

    def __init__(self, given: Iterator[bytes]) -> None:
        self._given = given

    def read(self, _size: int) -> bytes:
        return b"".join(islice(self._given, 10_000))


def medians(rounds: int, *works: Callable[[], Any]) -> list[float]:
    """Return the median times of functions, run in turns after a first round; all must return the same."""
    answers = [work() for work in works]
    assert all(answer == answers[0] for answer in answers), answers
    times = [[seconds(work) for work in works] for _ in range(rounds)]
    return [statistics.median(each) for each in zip(*times, strict=True)]


class SparkBench:
    """All measurements, in one directory."""

    def __init__(self, folder: Path, count: int, rounds: int, report: Report, days: int = DAYS) -> None:
        self.folder = folder
        self.count = count
        self.rounds = rounds
        self.report = report
        self.dataset = ondisk.create(folder / "dataset", CONFIG)
        self.path = str(self.dataset.path)
        self.dataset.append_file(Stream(lines(count, days)), "vm2")  # type: ignore[arg-type]
        # The settings of docs/spark-reference.md, including that for small data.
        small = {"spark__sql__execution__arrow__maxBytesPerBatch": "2147483647"}
        self.spark = session("local[2]", spark__driver__memory="2g", spark__ui__enabled="false", **small)
        self.spark.sparkContext.setLogLevel("ERROR")
        parquet = str(folder / "parquet")
        whole = self.load(data="true").selectExpr("to_date(reftime) AS day", "*")
        whole.repartition("day").sortWithinPartitions("reftime", "area", "product").write.partitionBy("day").parquet(
            parquet
        )
        self.parquet = self.spark.read.parquet(parquet)

    def load(self, **options: str) -> Any:
        return self.spark.read.format("ondisk").options(**options).load(self.path)

    def run(self) -> None:
        self.planning()
        self.pushed()
        match = f"reftime: ={DAY}; area: {STATION}"
        where = f"day = '{DAY}' AND area = '{STATION}'"
        self.selective("one day, one station", match, where, ["reftime", "product"], 0.9, 1.2)
        self.selective("the same with data", match, where, ["reftime", "product", "data"], 0.9, 1.4)
        key = f"reftime: ={DAY} 00:00:00; area: {STATION}; product: VM2,7"
        where += f" AND reftime = '{DAY} 00:00:00' AND product = 'VM2,7'"
        self.selective("one unique key", key, where, ["reftime", "product"], 0.35, 1.0)
        self.whole("count by product, of all rows", ["product"], lambda df: df.groupBy("product").count(), 1.1)
        self.whole("all data", ["data"], lambda df: df.selectExpr("sum(length(data))", "sum(crc32(data))"), 1.3)
        columns = ["reftime", "area", "product", "segment", "offset", "size", "data"]
        hashed = f"sum(xxhash64({', '.join(columns)}) % 1000)"
        self.whole("all columns", columns, lambda df: df.selectExpr(hashed), 2.2)
        self.append()

    def pushed(self) -> None:
        """Ask with plain `where` and `select`, as of any table; Parquet is told the day where there is one."""
        ours, day = self.load(), f"day = '{DAY}'"
        of_day = "reftime >= '2026-03-15' AND reftime < '2026-03-16'"
        one = f"area = '{STATION}'"
        key = f"{one} AND reftime = '{DAY} 00:00:00' AND product = 'VM2,7'"
        content = ["reftime", "product", "data"]

        def rows(*columns: str, where: str) -> Callable[[Any], Any]:
            return lambda frame: sorted(map(str, frame.where(where).select(*columns).collect()))

        for name, parquet, ondisk_, goal in (
            ("one day, one station, with data", rows(*content, where=f"{day} AND {one}"),
             rows(*content, where=f"{of_day} AND {one}"), 1.2),
            ("one unique key", rows(*content, where=f"{day} AND {key}"), rows(*content, where=key), 1.3),
            ("count of one day", lambda df: df.where(day).count(), lambda df: df.where(of_day).count(), 1.1),
            ("one station, all days", *[rows("reftime", "product", where=one)] * 2, 0.5),
            ("count(*)", *[lambda df: df.selectExpr("count(*)").collect()] * 2, 0.6),
            ("max(reftime)", *[lambda df: df.selectExpr("max(reftime)").collect()] * 2, 0.5),
            ("count by product", *[lambda df: sorted(df.groupBy("product").count().collect())] * 2, 0.7),
            ("all data", *[lambda df: df.selectExpr("sum(length(data))", "sum(crc32(data))").collect()] * 2, 1.0),
            ("show(5)", *[lambda df: len(df.select(*content)._show_string(5, True, False))] * 2, 1.3),
            ("limit(5)", *[lambda df: len(df.select(*content).limit(5).collect())] * 2, 1.3),
        ):  # fmt: skip
            times = medians(self.rounds, lambda ask=parquet: ask(self.parquet), lambda ask=ondisk_: ask(ours))
            self.ratio(f"where: {name}", *times, goal)

    def append(self) -> None:
        """Write rows to an empty dataset, and to Parquet with one file a day."""
        parquet, written = self.written(APPENDED_DAYS)
        count = self.count * APPENDED_DAYS // DAYS
        self.ratio(f"format: append of {count:,} rows", parquet, written, 1.2)

    def written(self, days: int) -> list[float]:
        """Time writing the rows of the first days: Parquet, sorted, then ondisk. Each task reads one file."""
        end = f"{BEGIN + timedelta(days=days):%Y-%m-%d}"
        source = str(self.folder / "rows")
        self.parquet.where(f"day < '{end}'").select("reftime", "area", "product", "data").write.parquet(source)
        rows = self.spark.read.parquet(source)
        count = rows.count()
        datasets = [ondisk.create(self.folder / f"written-{number}", CONFIG) for number in range(self.rounds + 1)]
        empty = iter(datasets)
        folders = (str(dataset.path) + ".parquet" for dataset in datasets)

        def to_parquet() -> None:
            days = rows.selectExpr("to_date(reftime) AS day", "*").repartition("day")
            days.sortWithinPartitions("reftime", "area", "product").write.partitionBy("day").parquet(next(folders))

        def to_dataset() -> None:
            rows.write.format("ondisk").mode("append").save(str(next(empty).path))

        times = medians(self.rounds, to_parquet, to_dataset)
        for dataset in datasets:
            with dataset:
                assert dataset.summary().count == count, dataset
        return times

    def planning(self) -> None:
        """Plan all rows, with data."""

        def work() -> None:
            with opened(self.path, connect_to_read) as access:
                plan(access, Everything(), data=True)

        work()
        self.report.line("planning of all rows", min(seconds(work) for _ in range(self.rounds)), 0.1, "s")
        tracemalloc.start()
        work()
        self.report.line("memory of planning", tracemalloc.get_traced_memory()[1] / 1e6, 20, "MB")
        tracemalloc.stop()

    def selective(
        self, name: str, match: str, where: str, columns: list[str], frame_goal: float, format_goal: float
    ) -> None:
        def count(df: Any) -> int:
            return len(df.collect())

        parquet, frame, loaded = medians(
            self.rounds,
            lambda: count(self.parquet.where(where).select(*columns)),
            lambda: count(self.dataset.index_frame(self.spark, match, columns)),
            lambda: count(self.load(match=match, columns=",".join(columns))),
        )
        self.ratio(f"index_frame: {name}", parquet, frame, frame_goal)
        self.ratio(f"format: {name}", parquet, loaded, format_goal)

    def whole(self, name: str, columns: list[str], ask: Callable[[Any], Any], goal: float) -> None:
        parquet, loaded = medians(
            self.rounds,
            lambda: sorted(ask(self.parquet).collect()),
            lambda: sorted(ask(self.load(columns=",".join(columns))).collect()),
        )
        self.ratio(f"format: {name}", parquet, loaded, goal)

    def ratio(self, name: str, parquet: float, ours: float, goal: float) -> None:
        detail = f"Parquet {parquet * 1e3:.0f} ms, ondisk {ours * 1e3:.0f} ms"
        self.report.line(name, ours / parquet, goal, "× Parquet", detail)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure Spark against Parquet of the same rows.")
    parser.add_argument("--count", type=int, default=2_000_000, help="rows; a multiple of 200,000")
    parser.add_argument("--rounds", type=int, default=7, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    report = Report(arguments.json)
    with tempfile.TemporaryDirectory() as folder:
        bench = SparkBench(Path(folder), arguments.count, arguments.rounds, report)
        bench.run()
        bench.dataset.close()
        bench.spark.stop()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
