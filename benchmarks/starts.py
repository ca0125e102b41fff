"""Measure how long short commands take: the CPU time of whole processes, as a ratio to Python with what each needs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import observations
from measure import Bench

import ondisk

_ROUNDS = 7
_MEMORY = Path("/dev/shm")
_BARE = [sys.executable, "-c", "pass"]
_FLOOR = [sys.executable, "-c", "import argparse, json, sqlite3"]
_ONE = "import sys, ondisk; d = ondisk.open(sys.argv[1]); next(d.query(), None)"


class StartsBench(Bench):
    """Commands that do little, on a large dataset, and a program that takes one datum of it.

    Of seven times of each, the second shortest counts. The processes find their bytecode on disk.
    """

    def run(self) -> None:
        source, one = self.folder / "observations.vm2", self.folder / "one.vm2"
        observations.write(source, self.count)
        observations.write(one, 1)
        path = self.folder / "dataset"
        with ondisk.create(path, observations.CONFIG) as dataset:
            dataset.append_file(source)
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as memory:
            ondisk.create(Path(memory, "small"), {"format": "vm2", "step": "yearly"}).close()
            day = f"reftime: ={observations.BEGIN:%Y-%m-%d}"
            commands = {
                "--version": ([], 3),
                "query of one day": (["query", path, day, "--data"], 5),
                "info": (["info", path], 5),
                "append of one datum": (["append", Path(memory, "small"), one], 5),
                "summary": (["summary", path], 7),
            }
            argvs = {name: _command(*rest or [name]) for name, (rest, _) in commands.items()}
            program = [sys.executable, "-c", _ONE, str(path)]
            bare, floor, taken, *times = _second_best([_BARE, _FLOOR, program, *argvs.values()])
        for (name, (_, goal)), seconds in zip(commands.items(), times, strict=True):
            self._row(f"start of {name}", floor, seconds, goal, "× imports")
        # Importing tomllib, sqlite3, pathlib, json and typing alone takes 3.6 × a bare Python: the goal shows a gap.
        self._row("program that takes one datum", bare, taken, 4, "× python")

    def _row(self, name: str, floor: float, seconds: float, goal: float, unit: str) -> None:
        detail = f"{floor * 1e3:.1f} ms, ondisk {seconds * 1e3:.1f} ms of CPU time"
        self.report.line(name, seconds / floor, goal, unit, detail)


def _command(*rest: object) -> list[str]:
    return [sys.executable, "-m", "ondisk", *map(str, rest)]


def _second_best(commands: list[list[str]]) -> list[float]:
    """Run commands in turns, and return the second shortest CPU time of each; the first round does not count."""
    times = [[_cpu_seconds(command) for command in commands] for _ in range(1 + _ROUNDS)]
    return [sorted(each)[1] for each in zip(*times[1:], strict=True)]


def _cpu_seconds(command: list[str]) -> float:
    """Run a command, and return the CPU time that it took, of the user and of the system."""
    silence = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(command[0], command, os.environ, file_actions=silence)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{command} failed")
    return usage.ru_utime + usage.ru_stime
