"""Measure formats of messages, GRIB and BUFR, beside programs that only find the messages and write rows to sqlite3."""

from __future__ import annotations

import io
import os
import runpy
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from measure import Bench, best, silent

import ondisk
from ondisk.config import DatasetConfig
from ondisk.formats.grib import Grib

_SAMPLES = Path(__file__).parents[1] / "sample_datasets"
_MAKE = runpy.run_path(str(_SAMPLES / "make.py"))
_COUNT, _MANY, _LARGE = 20_000, 264_000, 4_000
_FIELDS = 400  # of each run of the model
_HEAD, _SECTION_7 = 16, 5
_DAY = "2026-12-05"


def gribs(count: int, size: int = 0) -> Iterator[bytes]:
    """Yield messages of GRIB 2, of four runs a day; with so many more octets of data."""
    begin, kinds = _MAKE["BEGIN"], [(step, (100, 100 * level)) for step in range(40) for level in range(850, 860)]
    templates = [_MAKE["grib"](begin, *each) for each in kinds]
    for number in range(count):
        run, of_run = divmod(number, _FIELDS)
        message = bytearray(templates[of_run])
        time = begin + timedelta(hours=6 * run)
        message[_HEAD + 12 : _HEAD + 17] = time.year.to_bytes(2, "big") + bytes((time.month, time.day, time.hour))
        if size:
            message[-4:-4] = bytes(size + number * 37 % size)
            at = len(templates[of_run]) - 4 - 96 - _SECTION_7
            message[at : at + 4] = (len(message) - 4 - at).to_bytes(4, "big")
            message[8:16] = len(message).to_bytes(8, "big")
        yield bytes(message)


def bufrs(count: int) -> Iterator[bytes]:
    observations = _MAKE["observations"]()
    for number in range(count):
        rounds, place = divmod(number, len(observations))
        found = observations[place]
        found = type(found)(found.reftime + timedelta(days=5 * rounds), *[getattr(found, name) for name in
                            ("station", "temperature", "humidity", "wind")])  # fmt: skip
        yield _MAKE["bufr"](found)


def framed(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where messages of GRIB 2, or of BUFR, begin and end, as a program does that expects nothing else."""
    magic = content[:4]
    first, last = (8, 16) if magic == b"GRIB" else (4, 7)
    at = 0
    while (begin := content.find(magic, at)) >= 0:
        end = begin + int.from_bytes(content[begin + first : begin + last], "big")
        if content.endswith(b"7777", begin, end):
            yield begin, end
        at = end


def floor_append(path: Path, content: bytes) -> None:
    """Write messages to a file, and a row for each to sqlite3, durable, with a unique key of their first bytes."""
    with closing(sqlite3.connect(f"{path}.sqlite", isolation_level=None)) as index, path.open("wb") as file:
        index.execute("PRAGMA journal_mode=wal")
        index.execute("CREATE TABLE datum (reftime INTEGER, key BLOB, offset INTEGER, size INTEGER)")
        index.execute("CREATE UNIQUE INDEX datum_unique ON datum (reftime, key)")
        rows = [
            (
                int.from_bytes(content[begin + 28 : begin + 33], "big"),
                content[begin + 33 : begin + 180],
                begin,
                end - begin,
            )
            for begin, end in framed(content)
        ]
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        index.execute("BEGIN")
        index.executemany("INSERT INTO datum VALUES (?, ?, ?, ?)", rows)
        index.execute("COMMIT")


class MessagesBench(Bench):
    """Framing, appends as whole commands, and queries by items."""

    def run(self) -> None:
        self._config = DatasetConfig.from_toml((_SAMPLES / "forecast.toml").read_text(encoding="utf-8"))
        self._framing()
        self._append()
        self._command("20,000 GRIB", "forecast.toml", "small.grib", gribs(_COUNT), 1.2)
        self._command("75 MB of GRIB", "forecast.toml", "large.grib", gribs(_LARGE, 12_000), 0.7)
        self._command("20,000 BUFR", "reports.toml", "reports.bufr", bufrs(_COUNT), 1.3)
        self._queries()

    def _framing(self) -> None:
        content = b"".join(gribs(_COUNT))
        format = Grib(self._config)

        def ours() -> int:
            return sum(len(frames.spans) for frames in format.frames(io.BytesIO(content).read))

        def floor() -> int:
            return sum(1 for _ in framed(content))

        assert floor() == ours() == _COUNT
        floor_time, own = best(self.rounds * 5, floor, ours)
        self.report.ratio("framing of GRIB", floor_time, own, 2.5, _COUNT)
        self.report.line("framing of a message", own / _COUNT * 1e6, 1.0, "µs")

    def _append(self) -> None:
        content = b"".join(gribs(_COUNT))

        def ours() -> None:
            with ondisk.create(self.new_path("dataset"), self._config) as dataset:
                dataset.append_file(io.BytesIO(content), "grib")

        times = best(self.rounds, lambda: floor_append(self.new_path("floor"), content), ours)
        self.report.ratio("append of GRIB : sqlite3", *times, 4, _COUNT)

    def _command(self, name: str, config: str, file: str, messages: Iterable[bytes], goal: float) -> None:
        source = self.folder / file
        source.write_bytes(b"".join(messages))
        own = DatasetConfig.from_toml((_SAMPLES / config).read_text(encoding="utf-8"))

        def ours() -> None:
            silent([sys.executable, "-m", "ondisk", "append", str(datasets.pop()), str(source)])

        def floor() -> None:
            silent([sys.executable, __file__, str(self.new_path("floor")), str(source)])

        datasets = [self.new_path("dataset") for _ in range(self.rounds)]
        for path in datasets:
            ondisk.create(path, own).close()
        floor_time, own_time = best(self.rounds, floor, ours)
        self.report.ratio(f"append of {name}, command", floor_time, own_time, 4)
        self.report.line("the same", own_time, goal, "s")

    def _queries(self) -> None:
        config = self._config._replace(index=("product", "level"), step="monthly")
        with ondisk.create(self.new_path("many"), config) as dataset:
            dataset.append_file(io.BytesIO(b"".join(gribs(_MANY))), "grib")
            match = f"product: GRIB2,255,0,0,0; level: GRIB2S,100,,85500; reftime: ={_DAY}"
            with closing(self._floor_of(dataset)) as plain:
                values: list[Any] = ["GRIB2,255,0,0,0,29,0", "GRIB2S,100,0,85500", f"{_DAY}T00", f"{_DAY}T99"]
                sql = "SELECT * FROM datum WHERE product = ? AND level = ? AND reftime BETWEEN ? AND ? ORDER BY reftime"

                def floor() -> int:
                    return len(plain.execute(sql, values).fetchall())

                def ours() -> int:
                    return sum(1 for each in dataset.query(match) if each.data)

                assert floor() == ours() == 4 * _FIELDS // 10
                floor_time, own = best(self.rounds * 5, floor, ours)
        self.report.ratio("product, level, day : sqlite3", floor_time, own, 6)
        self.report.line("the same", own * 1e3, 5, "ms")

    def _floor_of(self, dataset: ondisk.Dataset) -> sqlite3.Connection:
        """Return a database of the same data, with the messages as blobs."""
        plain = sqlite3.connect(self.new_path("plain"), isolation_level=None)
        plain.execute("CREATE TABLE datum (reftime TEXT, product TEXT, level TEXT, data BLOB)")
        plain.execute("BEGIN")
        rows = ((f"{each.reftime:%Y-%m-%dT%H}", each.metadata["product"], each.metadata["level"], each.data)
                for each in dataset.query())  # fmt: skip
        plain.executemany("INSERT INTO datum VALUES (?, ?, ?, ?)", rows)
        plain.execute("CREATE INDEX datum_by_item ON datum (product, level, reftime)")
        plain.execute("COMMIT")
        return plain


if __name__ == "__main__":
    floor_append(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())
