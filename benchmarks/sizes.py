"""Measure what a year of data costs by its size: index, append, rebuild, and the query of one day.

    python benchmarks/sizes.py [--most 10000000] [--only SIZE] [--folder /dev/shm]

prints the table of docs/choosing.md as Markdown. Its times are CPU times of whole commands: other programs on the
machine change them little. Sizes above `--most` are extrapolated from the bytes and seconds per datum of the largest
measured one. 30,000,000 data need 8 GB in the folder, and 12 minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

_STEPS = {
    10**5: "monthly",
    10**6: "monthly",
    10**7: "daily",
    3 * 10**7: "daily",
    10**9: "daily",
    10**10: "hourly",
}
_STATIONS = 100
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_YEAR = timedelta(days=365)
_DAY, _EMPTY_DAY = "reftime: =2026-06-15", "reftime: =2025-06-15"


@dataclass(frozen=True, slots=True)
class _Cost:
    """Bytes of segments, of the index, and that with a field in `index`; CPU seconds; `start`: a query of nothing."""

    data: int
    segments: int
    index: int
    indexed: int
    append: float
    rebuild: float
    day: float
    start: float

    def row(self, step: str, measured: bool) -> str:
        cells = [
            f"{self.data:,}",
            step,
            *map(_bytes, (self.segments, self.index, self.indexed)),
            *map(_duration, (self.append, self.rebuild, self.day)),
            "measured" if measured else "extrapolated",
        ]
        return "| " + " | ".join(cells) + " |"

    def of(self, data: int) -> _Cost:
        """Return the cost of more data, if each costs the same."""
        times = data / self.data
        return replace(
            self,
            data=data,
            segments=round(self.segments * times),
            index=round(self.index * times),
            indexed=round(self.indexed * times),
            append=self.append * times,
            rebuild=self.rebuild * times,
            day=self.start + (self.day - self.start) * times,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=10**7, help="measure no more data than this")
    parser.add_argument("--only", type=int, choices=_STEPS, help="measure only this size")
    parser.add_argument("--folder", type=Path, help="where the datasets are made; they are removed")
    asked = parser.parse_args()
    print("| data a year | step | segments | index | with a field in `index` | append | rebuild | query of a day | |")
    print("|------------:|------|---------:|------:|------------------------:|-------:|--------:|---------------:|---|")
    largest: _Cost | None = None
    for data in [asked.only] if asked.only else _STEPS:
        if measured := largest is None or data <= asked.most:
            with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
                cost = largest = _measured(Path(folder), data, _STEPS[data])
        else:
            cost = largest.of(data)
        print(cost.row(_STEPS[data], measured), flush=True)


def _measured(folder: Path, data: int, step: str) -> _Cost:
    source, path = folder / "year.jsonl", folder / "dataset"
    _write(source, data)
    command = "init --format jsonl --field station=integer --unique reftime,station --step"
    _cpu_seconds(*command.split(), step, path)
    append = _cpu_seconds("append", path, source)
    source.unlink()
    index = (path / "index.sqlite").stat().st_size
    segments = sum(each.stat().st_size for each in path.rglob("*.jsonl"))
    day, start = (_cpu_seconds("query", path, each, "--data") for each in (_DAY, _EMPTY_DAY))
    rebuild = _cpu_seconds("fix", path, "--rebuild", "--yes")
    with (path / "dataset.toml").open("r+") as toml:
        rest = toml.read()
        toml.seek(0)
        toml.write(f'index = ["station"]\n{rest}')
    _cpu_seconds("migrate", path, "--yes")
    indexed = (path / "index.sqlite").stat().st_size
    return _Cost(data, segments, index, indexed, append, rebuild, day, start)


def _write(path: Path, data: int) -> None:
    """Write a year of lines: all stations, at times with equal distances."""
    times = -(-data // _STATIONS)
    with path.open("w") as file:
        for number in range(times):
            time = f"{_BEGIN + number * _YEAR / times:%Y-%m-%dT%H:%M:%SZ}"
            file.writelines(
                f'{{"reftime": "{time}", "station": {station}, "value": {(number * 7 + station) % 900 / 10}}}\n'
                for station in range(1, _STATIONS + 1)
            )


def _cpu_seconds(*words: object) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "ondisk", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _bytes(count: float) -> str:
    unit = next(unit for unit in ("kB", "MB", "GB", "TB") if (count := count / 1000) < 1000)
    return f"{count:.2g} {unit}" if count < 10 else f"{count:.0f} {unit}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
