"""Measurements of CSV input: its floor is the append of the same rows as lines of VM2."""

from __future__ import annotations

import gzip
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import observations
from measure import Bench, best, peak_memory

import ondisk

CONFIG = {**observations.CONFIG, "format": "seg"}
HEAD = b"when,area,product,value,flags\n"
GOAL = 1.5


def write(source: Path, path: Path) -> None:
    """Write the lines of a file of VM2 as CSV."""
    times: dict[bytes, bytes] = {}
    with source.open("rb") as lines, path.open("wb") as file:
        file.write(HEAD)
        for line in lines:
            stamp, area, product, value, *_, flags = line.rstrip(b"\n").split(b",")
            if stamp not in times:
                times[stamp] = datetime.strptime(stamp.decode(), "%Y%m%d%H%M").isoformat(" ").encode()
            file.write(b"%b,%b,%b,%b,%b\n" % (times[stamp], area, product, value, flags))


class CsvBench(Bench):
    """All measurements of CSV input, in one directory."""

    def run(self) -> None:
        lines, table = self.folder / "observations.vm2", self.folder / "observations.csv"
        observations.write(lines, self.count)
        write(lines, table)
        packed = self.folder / "observations.csv.gz"
        with table.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as file:
            shutil.copyfileobj(source, file)
        append = {
            "vm2": lambda: self.append(observations.CONFIG, lines),
            "csv": lambda: self.append(CONFIG, table, time="when", tz="UTC"),
            "zone": lambda: self.append(CONFIG, table, time="when", tz="Etc/GMT-1", time_format="%Y-%m-%d %H:%M:%S"),
            "gz": lambda: self.append(CONFIG, packed, time="when", tz="UTC"),
            "jsonl": lambda: self.append({**CONFIG, "format": "jsonl"}, table, time="when", tz="UTC"),
        }
        times = dict(zip(append, best(self.rounds, *append.values()), strict=True))
        floor = times["vm2"]
        self.report.ratio("csv: append to jsonl", floor, times["jsonl"], GOAL, self.count)
        self.report.ratio("csv: append to seg", floor, times["csv"], GOAL, self.count)
        self.report.ratio("csv: with a format and a zone", floor, times["zone"], GOAL, self.count)
        self.report.ratio("csv: compressed with gzip", floor, times["gz"], GOAL, self.count)
        self.memory(table)

    def append(self, config: dict[str, Any], source: Path, **options: str) -> None:
        """Append a file to a new dataset, and remove that."""
        path = self.new_path("dataset")
        with ondisk.create(path, config) as dataset:
            assert dataset.append_file(source, **options).imported == self.count
        shutil.rmtree(path)

    def memory(self, table: Path) -> None:
        path = self.new_path("memory")
        ondisk.create(path, CONFIG).close()
        append = f"ondisk.open({str(path)!r}).append_file({str(table)!r}, time='when', tz='UTC')"
        peak = peak_memory([sys.executable, "-c", f"import ondisk; {append}"])
        self.report.line("csv: peak memory of the append", peak, 150, "MB")
