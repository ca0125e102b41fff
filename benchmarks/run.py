"""Measure ondisk against the floor, both in one run, and print ratios and goals.

    python benchmarks/run.py [--only PART] [--data 1000000] [--rounds 3] [--json]

Machines are noisy: each measurement alternates between floor and ondisk, and the fastest round of each counts.
Exits with 9 if a goal is missed.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import floor as floor_module
import observations
from arrow import ArrowBench
from beats_queue import QueueBench
from csv_input import CsvBench
from encrypted import EncryptedBench
from files import FilesBench
from floor import EPOCH, Floor
from hostile import HostileBench
from maintenance import MaintenanceBench
from measure import Bench, Report, best, digest, peak_memory, seconds, silent
from messages import MessagesBench
from peers import PeersBench
from replicate import ReplicateBench
from seg import SegBench
from server import ServerBench
from starts import StartsBench
from variants import VariantsBench

import ondisk

LOOK_UPS = 2000
SMALL = 100_000


def consume_floor(data: Iterator[tuple[Any, Any, Any]]) -> int:
    count = 0
    for _reftime, _metadata, _data in data:
        count += 1
    return count


def consume(data: Iterator[ondisk.Datum]) -> int:
    count = 0
    for datum in data:
        _reftime, _metadata, _data = datum.reftime, datum.metadata, datum.data
        count += 1
    return count


def as_data(source: Path) -> list[ondisk.Datum]:
    """Return data of lines, each with its own mapping."""
    times: dict[bytes, datetime] = {}
    data = []
    for line in source.read_bytes().splitlines():
        stamp, station, variable, _ = line.split(b",", 3)
        if stamp not in times:
            times[stamp] = datetime.strptime(stamp.decode(), "%Y%m%d%H%M").replace(tzinfo=UTC)
        metadata = {"area": f"VM2,{station.decode()}", "product": f"VM2,{variable.decode()}"}
        data.append(ondisk.Datum(times[stamp], metadata, line))
    return data


class Vm2Bench(Bench):
    """All measurements of `vm2`, in one directory."""

    def __init__(self, folder: Path, count: int, rounds: int, report: Report) -> None:
        super().__init__(folder, count, rounds, report)
        self.source = folder / "observations.vm2"
        observations.write(self.source, count)

    def run(self) -> None:
        self.append()
        self.append_data()
        self.growth()
        floor, dataset = self.filled()
        with dataset:
            index_size = dataset.info()["index_size"] / self.count
            self.report.line("index", index_size, 100, "B/datum")
            self.duplicates(dataset)
            self.queries(floor, dataset)
            self.look_ups(floor, dataset)
            self.json_lines(floor, dataset)
            floor_time, ours = best(self.rounds, floor.summary, dataset.summary)
            self.report.ratio("summary", floor_time, ours, 1.4)
            day = seconds(lambda: dataset.delete(f"reftime:={self.day:%Y-%m-%d}"))
            self.report.line("delete of one day", day, 0.05, "s")
        self.processes()

    def new_floor(self) -> Floor:
        return Floor(self.new_path("floor"))

    def new_dataset(self) -> ondisk.Dataset:
        return ondisk.create(self.new_path("dataset"), observations.CONFIG)

    def append(self) -> None:
        self.report.ratio("append of a file", *self.append_of(self.source), 1.25, self.count)

    def append_data(self) -> None:
        data = as_data(self.source)
        gc.freeze()  # the garbage collector need not visit the million input data
        times = self.append_of(self.source, lambda dataset: dataset.append(data))
        gc.unfreeze()
        self.report.ratio("append of Datum objects", *times, 1.5, self.count)

    def append_of(self, source: Path, ours: Callable[[ondisk.Dataset], object] | None = None) -> list[float]:
        """Return the times of the floor and of ondisk for an append to new datasets, which are removed afterwards.

        Args:
            ours: what ondisk does with a new dataset; None to append the file.
        """
        ours = ours or (lambda dataset: dataset.append_file(source))

        def floor_append() -> None:
            made.append(self.new_floor())
            made[-1].append(source)

        def ondisk_append() -> None:
            made.append(self.new_dataset())
            ours(made[-1])

        made: list[Any] = []
        times = best(self.rounds, floor_append, ondisk_append)
        for each in made:
            each.close()
            shutil.rmtree(each.path)
        return times

    def duplicates(self, dataset: ondisk.Dataset) -> None:
        times = self.append_of(self.source, lambda _: dataset.append_file(self.source))
        self.report.ratio("append of nothing but duplicates", *times, 0.8, self.count)

    def growth(self) -> None:
        small = self.folder / "small.vm2"
        observations.write(small, SMALL)
        _, few = self.append_of(small)
        _, many = self.append_of(self.source)
        ratio = (many / self.count) / (few / SMALL)
        self.report.line(f"cost a datum, {self.count:,} : {SMALL:,}", ratio, 1.15, "×")

    def filled(self) -> tuple[Floor, ondisk.Dataset]:
        floor, dataset = self.new_floor(), self.new_dataset()
        floor.append(self.source)
        dataset.append_file(self.source)
        return floor, dataset

    @property
    def day(self) -> datetime:
        return observations.BEGIN + timedelta(days=self.count // 5040 // 2)

    def queries(self, floor: Floor, dataset: ondisk.Dataset) -> None:
        begin = (self.day - EPOCH) // timedelta(microseconds=1)
        span = (begin, begin + 86_400_000_000)
        series = (floor.values["VM2,105"], floor.values["VM2,225"])
        pairs = {
            "query of everything": (
                lambda: consume_floor(floor.query()),
                lambda: consume(dataset.query()),
            ),
            "query of one day": (
                lambda: consume_floor(floor.query("reftime >= ? AND reftime < ?", span)),
                lambda: consume(dataset.query(f"reftime:={self.day:%Y-%m-%d}")),
            ),
            "query of one series": (
                lambda: consume_floor(floor.query("area = ? AND product = ?", series)),
                lambda: consume(dataset.query("area:VM2,105; product:VM2,225")),
            ),
        }
        for name, (floor_query, query) in pairs.items():
            assert floor_query() == query()
            rounds = self.rounds if name == "query of everything" else self.rounds * 20
            self.report.ratio(name, *best(rounds, floor_query, query), 1.4)

    def look_ups(self, floor: Floor, dataset: ondisk.Dataset) -> None:
        hours = range(0, self.count // 210, max(1, self.count // 210 // LOOK_UPS))
        times = [observations.BEGIN + timedelta(hours=hour) for hour in hours]

        def floor_look_ups() -> None:
            for time_ in times:
                floor.look_up(time_, "VM2,105", "VM2,225")

        def look_ups() -> None:
            for time_ in times:
                next(dataset.query(reftime=time_, area="VM2,105", product="VM2,225"))

        floor_look_ups(), look_ups()
        self.report.ratio("query of one unique key", *best(self.rounds * 5, floor_look_ups, look_ups), 2.0, len(times))

    def json_lines(self, floor: Floor, dataset: ondisk.Dataset) -> None:
        floor_query = [sys.executable, floor_module.__file__, str(floor.path)]
        query = [sys.executable, "-m", "ondisk", "query", str(dataset.path), "--json"]
        assert digest(floor_query) == digest(query)
        times = best(self.rounds, lambda: silent(floor_query), lambda: silent(query))
        self.report.ratio("query --json of everything, command", *times, 1.5, self.count)

    def processes(self) -> None:
        path = self.folder / "memory"
        ondisk.create(path, observations.CONFIG).close()
        memory = f"import ondisk; ondisk.open({str(path)!r}).append_file({str(self.source)!r})"
        self.report.line("peak memory of the append", peak_memory([sys.executable, "-c", memory]), 120, "MB")


BENCHES = {
    "vm2": Vm2Bench,
    "peers": PeersBench,
    "starts": StartsBench,
    "arrow": ArrowBench,
    "csv": CsvBench,
    "seg": SegBench,
    "variants": VariantsBench,
    "encrypted": EncryptedBench,
    "messages": MessagesBench,
    "maintenance": MaintenanceBench,
    "queue": QueueBench,
    "hostile": HostileBench,
    "server": ServerBench,
    "replicate": ReplicateBench,
    "files": FilesBench,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=BENCHES, help="one part (default: each)")
    parser.add_argument("--data", type=int, default=1_000_000, help="number of data (default: 1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each long measurement (default: 3)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    report = Report(options.json)
    for name in [options.only] if options.only else BENCHES:
        with tempfile.TemporaryDirectory(prefix="ondisk-bench-") as folder:
            BENCHES[name](Path(folder), options.data, options.rounds, report).run()
    if not options.json:
        print(f"{report.missed} goals missed" if report.missed else "every goal met")
    return 9 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
