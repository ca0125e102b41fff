"""What runs in drivers of a cluster, in processes of their own: `python driver.py MASTER FUNCTION ARGUMENTS`.

The last line that is printed is what the function gives, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.functions import md5

import ondisk
from ondisk.spark import session
from spark.cluster import wait_at
from spark.test_read import load, rows


def doors(spark: Any, path: str, match: str) -> dict[str, dict[str, int]]:
    """Read by every door: how often each row is there."""
    with ondisk.open(path, read_only=True) as dataset:
        found = {
            "index_frame": rows(dataset.index_frame(spark)),
            "index_frame with data": rows(dataset.index_frame(spark, data=True)),
            "index_frame with match": rows(dataset.index_frame(spark, match)),
            "format": rows(load(spark, dataset)),
            "format with data": rows(load(spark, dataset, data="true")),
            "format with match": rows(load(spark, dataset, match=match)),
        }
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        found["pushdown"] = rows(load(spark, dataset, pushdown="true").where(match.replace(":", " =")))
    return found


def read_past(spark: Any, path: str, gate: str) -> list[list[Any]]:
    """Read with data; each task waits at a gate behind its first row: reftime as text, station, and a digest."""
    return _read_past(spark.read.format("ondisk").option("data", "true").load(path), gate)


def stream_past(spark: Any, path: str, gate: str, checkpoint: str) -> list[list[Any]]:
    """Read a stream in batches of 100; gives what `read_past` does."""
    found = []
    loaded = spark.readStream.format("ondisk").options(data="true", maxDataPerTrigger=100).load(path)
    writer = loaded.writeStream.foreachBatch(lambda frame, _: found.extend(_read_past(frame, gate)))
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return found


def _read_past(frame: Any, gate: str) -> list[list[Any]]:
    def past(rows: Iterator[Any]) -> Iterator[list[Any]]:
        for number, row in enumerate(rows):
            yield [*row]
            if number == 0:
                wait_at(Path(gate))

    return frame.select(frame.reftime.cast("string"), "station", md5("data")).rdd.mapPartitions(past).collect()


def main(master: str, name: str, arguments: str) -> None:
    spark = session(
        master,
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
