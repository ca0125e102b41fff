"""Measurements of tables: out of a dataset as Arrow and CSV, and in again."""

from __future__ import annotations

import contextlib
import gc
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import observations
import pyarrow as pa
from floor import Floor
from measure import Bench, Report, best, silent

import ondisk

ROWS = 16_384
READINGS = {
    "format": "jsonl",
    "step": "daily",
    "unique": ["reftime", "station", "variable"],
    "index": ["station", "variable"],
    "fields": {"station": "integer", "variable": "integer"},
}


class ArrowBench(Bench):
    """The data of the vm2 part as tables, against the same SQL through sqlite3 and pyarrow."""

    def __init__(self, folder: Path, count: int, rounds: int, report: Report) -> None:
        super().__init__(folder, count, rounds, report)
        self.source = folder / "observations.vm2"
        observations.write(self.source, count)

    def run(self) -> None:
        with contextlib.closing(Floor(self.new_path("floor"))) as floor, self.dataset() as dataset:
            floor.append(self.source)
            dataset.append_file(self.source)
            self.out(floor, dataset)
            table = dataset.to_arrow().read_all()
            readings = self.readings(dataset)
        self.append(table, readings)

    def dataset(self, config: dict[str, Any] = observations.CONFIG) -> ondisk.Dataset:
        return ondisk.create(self.new_path("dataset"), config)

    def out(self, floor: Floor, dataset: ondisk.Dataset) -> None:
        def consume() -> None:
            for datum in dataset.query():
                _reftime, _metadata, _data = datum.reftime, datum.metadata, datum.data

        assert pa.Table.from_batches(batches(floor)).equals(dataset.to_arrow().read_all())
        by_hand = lambda: rows_of(batches(floor))  # noqa: E731
        ours = lambda: rows_of(dataset.to_arrow())  # noqa: E731
        first, second, third = best(self.rounds, by_hand, ours, consume)
        self.report.ratio("to_arrow of everything", first, second, 1.3, self.count)
        # To fetch the six columns with sqlite3 takes 0.56 of the stream's time, to make Arrow of them the rest.
        self.report.ratio("to_arrow : a stream of Datum objects", third, second, 0.9, self.count)
        query = [sys.executable, "-m", "ondisk", "query", str(dataset.path)]
        times = best(self.rounds, lambda: silent([*query, "--data"]), lambda: silent([*query, "--csv"]))
        self.report.ratio("query --csv : query --data, commands", *times, 1.5, self.count)

    def readings(self, dataset: ondisk.Dataset) -> pa.Table:
        """Return the same rows with a column for each value, as other programs have them."""
        parts = [datum.data.split(b",") for datum in dataset.query()]
        return pa.table(
            {
                "reftime": dataset.to_arrow(columns=["reftime"]).read_all()["reftime"],
                "station": pa.array([int(each[1]) for each in parts], pa.int64()),
                "variable": pa.array([int(each[2]) for each in parts], pa.int64()),
                "value": pa.array([float(each[3]) for each in parts], pa.float64()),
                "flags": pa.array([each[6].decode() for each in parts], pa.string()),
            }
        )

    def append(self, table: pa.Table, readings: pa.Table) -> None:
        """Time appends of the same rows, as a file of vm2 and as tables. CSV may take 1.5 times as long as vm2."""
        made: list[ondisk.Dataset] = []

        def into(config: dict[str, Any]) -> ondisk.Dataset:
            made.append(self.dataset(config))
            return made[-1]

        def appended(config: dict[str, Any], rows: pa.Table) -> None:
            assert into(config).append_arrow(rows).imported == self.count

        gc.freeze()
        file, as_bytes, as_values = best(
            self.rounds,
            lambda: into(observations.CONFIG).append_file(self.source),
            lambda: appended(observations.CONFIG, table),
            lambda: appended(READINGS, readings),
        )
        gc.unfreeze()
        for dataset in made:
            dataset.close()
            shutil.rmtree(dataset.path)
        self.report.ratio("append_arrow of lines : CSV's goal", 1.5 * file, as_bytes, 0.8, self.count)
        self.report.ratio("append_arrow of values : CSV's goal", 1.5 * file, as_values, 0.8, self.count)


def rows_of(table: Any) -> int:
    return sum(batch.num_rows for batch in table)


def batches(floor: Floor) -> Iterator[pa.RecordBatch]:
    """Yield the data of a floor in order, as a program by hand would for exactly these columns."""
    sql = "SELECT reftime, segment, offset, size, area, product FROM datum ORDER BY reftime, id"
    names = pa.array([None, *floor.names.values()], pa.string())
    cursor = floor.db.execute(sql)
    while rows := cursor.fetchmany(ROWS):
        reftimes, segments, offsets, sizes, areas, products = zip(*rows, strict=True)
        contents = {segment: floor._read(segment) for segment in {*segments}}
        data = [
            contents[segment][offset : offset + size]
            for segment, offset, size in zip(segments, offsets, sizes, strict=True)
        ]
        yield pa.record_batch(
            {
                "reftime": pa.array(reftimes, pa.timestamp("us", "UTC")),
                "area": names.take(pa.array(areas, pa.int64())),
                "product": names.take(pa.array(products, pa.int64())),
                "data": pa.array(data, pa.binary()),
            }
        )
