"""What runs in drivers of a cluster, in processes of their own: `python driver.py MASTER FUNCTION ARGUMENTS`.

The last line that is printed is what the function gives, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.functions import md5

import ondisk
from ondisk.pipeline import pipeline
from ondisk.spark import executors, session
from ondisk.spark.write import StreamWriter
from ondisk.workers import work
from pyspark_ondisk import DefaultSource
from spark.cluster import members, wait_at
from spark.test_read import load, rows


def doors(spark: Any, path: str, match: str) -> dict[str, dict[str, int]]:
    """Read by every door: how often each row is there."""
    with ondisk.open(path, read_only=True) as dataset:
        return {
            "index_frame": rows(dataset.index_frame(spark)),
            "index_frame with data": rows(dataset.index_frame(spark, data=True)),
            "index_frame with match": rows(dataset.index_frame(spark, match)),
            "format": rows(load(spark, dataset)),
            "format with data": rows(load(spark, dataset, data="true")),
            "format with match": rows(load(spark, dataset, match=match)),
        }


def pushed(spark: Any, path: str, copy: str) -> dict[str, Any]:
    """Ask what the index answers, and copy some rows."""
    loaded = spark.read.format("ondisk").load(path)
    three = loaded.where("station = 3")
    few = spark.createDataFrame([(3, "x"), (99, "y")], "station bigint, name string").where("name = 'x'")
    three.select("reftime", "station", "data").write.format("ondisk").mode("append").save(copy)
    return {
        "plan": three.select("reftime")._jdf.queryExecution().executedPlan().toString(),
        "all": loaded.count(),
        "three": three.count(),
        "joined": loaded.join(few, "station").count(),
        "limited": len(loaded.limit(5).select("data").collect()),
        "groups": {str(row.station): row["count"] for row in loaded.groupBy("station").count().collect()},
        "copied": spark.read.format("ondisk").load(copy).count(),
    }


def read_past(spark: Any, path: str, gate: str) -> list[list[Any]]:
    """Return reftime as text, station and a digest of the data; each task waits at a gate after its first row."""
    return _read_past(spark.read.format("ondisk").option("data", "true").load(path), gate)


def stream_past(spark: Any, path: str, gate: str, checkpoint: str) -> list[list[Any]]:
    """Read a stream in batches of 100, and return the same as `read_past`."""
    found = []
    loaded = spark.readStream.format("ondisk").options(data="true", maxDataPerTrigger=100).load(path)
    writer = loaded.writeStream.foreachBatch(lambda frame, _: found.extend(_read_past(frame, gate)))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return found


def write_past(spark: Any, path: str, gate: str) -> None:
    """Write the stations 0 to 99 with four tasks; the last task waits at a gate until the others have staged theirs."""
    _write(spark, path, lambda rows: _past(rows, gate) if TaskContext.get().partitionId() == 3 else rows)


def write_again(spark: Any, path: str) -> None:
    """Write the stations 0 to 99 with four tasks; each task fails twice after it has read its rows."""

    def fail(rows: Iterator[Any]) -> Iterator[list[Any]]:
        context = TaskContext.get()
        yield from rows
        if context.attemptNumber() < 2:
            raise ValueError("not this time")

    _write(spark, path, fail)


def write_speculatively(spark: Any, path: str, gate: str) -> None:
    """Write the stations 0 to 99 with four tasks; the last yields no row until Spark has started it twice."""

    def begun_twice(rows: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context.partitionId() == 3:
            (Path(gate) / f"attempt-{context.attemptNumber()}").touch()
            while not (Path(gate) / "attempt-1").exists():
                time.sleep(0.01)
        yield from rows

    _write(spark, path, begun_twice)


def write_stream_killed(spark: Any, path: str, checkpoint: str, *, behind: bool) -> None:
    """Continue a query of `test_write_stream.Query`; everything is killed before or after the commit of its batch."""

    class Killed(StreamWriter):  # type: ignore[misc]
        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            if behind:
                super().commit(messages, batchId)
            for pid in sorted(members(os.getsid(0)), key=os.getpid().__eq__):  # this one last
                os.kill(pid, signal.SIGKILL)

    _write_stream(spark, 10, Killed, path, checkpoint)


def write_stream_past(spark: Any, path: str, checkpoint: str, gate: str) -> None:
    """Write the stations 0 to 99 as one batch with four tasks; the last task waits at a gate when it is done."""

    class Waiting(StreamWriter):  # type: ignore[misc]
        def write(self, iterator: Iterator[Any]) -> Any:
            message = super().write(iterator)
            if TaskContext.get().partitionId() == 3:
                wait_at(Path(gate))
            return message

    _write_stream(spark, 100, Waiting, path, checkpoint)


def _write_stream(spark: Any, count: int, kind: Callable[..., StreamWriter], path: str, checkpoint: str) -> None:
    """Write a batch of so many stations, by another writer than that of `ondisk`."""

    class Source(DefaultSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "changed"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return kind(self.options, schema, overwrite=overwrite)

    spark.dataSource.register(Source)
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=count, numPartitions=4).load()
    rows = rows.selectExpr("timestamp_seconds(value) AS reftime", "value AS station")
    writer = rows.writeStream.format("changed").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(path).awaitTermination()


def _write(spark: Any, path: str, change: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr("timestamp_seconds(id) AS reftime", "id AS station")
    changed = spark.createDataFrame(frame.rdd.mapPartitions(change), frame.schema)
    changed.write.format("ondisk").mode("append").save(path)


def _read_past(frame: Any, gate: str) -> list[list[Any]]:
    digests = frame.select(frame.reftime.cast("string"), "station", md5("data"))
    return digests.rdd.mapPartitions(lambda rows: _past(rows, gate)).collect()


def _past(rows: Iterator[Any], gate: str) -> Iterator[list[Any]]:
    for number, row in enumerate(rows):
        yield [*row]
        if number == 0:
            wait_at(Path(gate))


def maintain_past(spark: Any, path: str, verb: str, gate: str) -> list[list[Any]]:
    """Maintain a dataset, each of its segments a task; each waits at a gate, when its segment was read or written."""
    _stop_at(gate)
    with ondisk.open(path) as dataset:
        report = dataset.check(True, spark=spark) if verb == "check" else getattr(dataset, verb)(spark=spark)
    return said(report)


def append_past(spark: Any, path: str, files: list[str], gate: str) -> list[int]:
    """Append files, each of them a task; each waits at a gate when it is staged. Gives how many data of each."""
    _stop_at(gate)
    with ondisk.open(path) as dataset:
        return [result.imported for _, result in dataset.append_files(files, spark)]


def import_past(spark: Any, config: str, gate: str) -> dict[str, int]:
    """Run a pipeline, each file a task; each waits at a gate, when its file was staged. Gives what datasets got."""
    _stop_at(gate)
    return {name: each.imported for name, each in pipeline(config, spark).datasets.items()}


def _stop_at(gate: str) -> None:
    worked = executors.worked

    def past(*arguments: Any) -> Iterator[Any]:
        for answer in worked(*arguments):
            wait_at(Path(gate))
            yield answer

    executors.worked, work._LEAST = past, 0


def said(report: Any) -> list[list[Any]]:
    """Return what a report says of each segment."""
    return [[each.segment, each.state.names, [*each.reasons], each.action, each.freed] for each in report]


SETTINGS = {
    "write_speculatively": {
        "spark__speculation": "true",
        "spark__speculation__quantile": "0.5",
        "spark__speculation__interval": "100ms",
    },
}
"""What functions need of a session, beside what all have."""


def main(master: str, name: str, arguments: str) -> None:
    spark = session(
        master,
        **SETTINGS.get(name, {}),
        spark__executor__memory="512m",
        spark__driver__memory="512m",
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__sql__warehouse__dir="warehouse",
    )
    print(json.dumps(globals()[name](spark, **json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
