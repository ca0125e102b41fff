"""Measures the time of programs in turns and their peak memory, and prints one line for each measurement."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Commands and Spark's workers find their bytecode on disk, as where ondisk is installed.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


class Report:
    """Prints one line for each measurement, and counts missed goals."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.missed = 0

    def line(self, name: str, value: float, goal: float, unit: str, detail: str = "") -> None:
        met = value <= goal
        self.missed += not met
        if self.as_json:
            print(
                json.dumps({"name": name, "value": round(value, 4), "goal": goal, "unit": unit, "met": met}), flush=True
            )
        else:
            mark = "ok    " if met else "MISSED"
            print(f"{mark} {name:<34} {value:8.3f} {unit:<8} goal {goal:<6} {detail}", flush=True)

    def skipped(self, name: str, reason: str) -> None:
        if self.as_json:
            print(json.dumps({"name": name, "skipped": reason}), flush=True)
        else:
            print(f"skip   {name:<34} {reason}", flush=True)

    def ratio(self, name: str, floor: float, ours: float, goal: float, each: int = 1) -> None:
        detail = f"floor {floor / each * 1e6:,.2f} µs, ondisk {ours / each * 1e6:,.2f} µs"
        self.line(name, ours / floor, goal, "× floor", detail)


class Bench:
    """All measurements of one kind, in one directory.

    Args:
        count: number of data.
        rounds: how often each is repeated; the best counts.
    """

    def __init__(self, folder: Path, count: int, rounds: int, report: Report) -> None:
        self.folder = folder
        self.count = count
        self.rounds = rounds
        self.report = report
        self._numbers = itertools.count(1)

    def new_path(self, name: str) -> Path:
        """Return a path that nothing has."""
        return self.folder / f"{name}-{next(self._numbers)}"


def seconds(work: Callable[[], Any]) -> float:
    """Return the time of one call, after collecting the garbage of earlier calls."""
    gc.collect()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best(rounds: int, *works: Callable[[], Any]) -> list[float]:
    """Run the functions in turns, and return the fastest time of each."""
    times = [[seconds(work) for work in works] for _ in range(rounds)]
    return [min(each) for each in zip(*times, strict=True)]


def silent(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def digest(command: list[str]) -> str:
    """Return the SHA-256 of what a command prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        return hashlib.file_digest(process.stdout, "sha256").hexdigest()


def peak_memory(command: list[str]) -> float:
    """Run a command, and return its peak memory in MB of 10⁶ bytes."""
    measure = (
        "import resource, subprocess, sys;"
        "subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    found = subprocess.run([sys.executable, "-c", measure, *command], check=True, capture_output=True, text=True)
    return int(found.stdout) * 1024 / 1e6
