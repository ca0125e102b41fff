"""Kill a process, or fail a system call, at every point where it changes what is on disk; with strace.

    strace -p PID -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=7

ends the process before its seventh `pwrite64`. A first run, in which nothing fails, records all calls: those that have
changed something are the points of a sweep, and each point is a run of its own on a fresh copy of the dataset.
The process is forked from a server that has imported everything, and waits until strace is attached: a point costs
some 70 ms, and all calls that are counted are ondisk's and SQLite's own.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from . import workload
from .workload import KEY_LINES, Step

SYNCS = ("fsync", "fdatasync", "syncfs")
CHANGING = ("openat", "write", "pwrite64", "copy_file_range", "ftruncate", "utimensat", "mkdir", "mkdirat", "link",
            "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", *SYNCS)  # fmt: skip
"""Every system call by which ondisk or SQLite changes what is on disk. (`openat` creates files; SQLite maps `-shm`.)"""

EVERY_CALL = bool(os.environ.get("ONDISK_EVERY_CALL"))
"""Whether sweeps leave nothing out; `make crash` then takes hours."""

_HERE = Path(__file__).resolve()
_CALL = re.compile(r"([0-9]+) +([a-z0-9]+)\((.*)")
_PAGES = re.compile(r"[0-9]+<([^>]*/\.?index\.sqlite[^>]*)>")
_CREATING = ("O_CREAT", "O_TRUNC")
_OF_NOBODY = ("/.lock>", "/acks>", "/delivered>")
"""Files that may hold anything after a crash: the record of who holds the lock, and this test's own."""


def server() -> ForkServerContext:
    """Return the context whose processes are forked from a server that has imported the workload."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crash.workload"])
    paths = [str(_HERE.parents[1]), str(_HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:  # the server, and nothing else, takes these paths and keys
        patch.setenv("ONDISK_KEYS", KEY_LINES)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        multiprocessing.forkserver.ensure_running()
    return context


@dataclass
class Run:
    """How a process ended."""

    path: Path
    acks: list[dict[str, Any] | None]
    killed: bool
    log: str
    """strace's lines, in order, with the paths of descriptors."""

    @cached_property
    def calls(self) -> list[str]:
        """The calls, without the numbers of threads."""
        return [re.sub(r"^\d+ +", "", each) for each in self.log.splitlines()]

    @property
    def injected(self) -> int | None:
        """Where in `calls` the failure was injected; None where the process never came so far."""
        return next((place for place, call in enumerate(self.calls) if "(INJECTED)" in call), None)

    @property
    def acked(self) -> int:
        return sum(ack is None for ack in self.acks)


class Bench:
    """Runs one workload again and again, each time on a fresh copy of a dataset.

    Args:
        room: a directory to make, for the copies.
        template: the dataset to copy; one that does not exist is to be created by the workload.
        create: the configuration to create with.
        target: what the process runs.
        beside: another dataset, which is copied next to it under its own name.
    """

    def __init__(
        self,
        room: Path,
        template: Path,
        steps: list[Step],
        *,
        create: dict[str, Any] | None = None,
        target: Callable[..., None] = workload.run,
        beside: Path | None = None,
    ) -> None:
        self.room = room
        room.mkdir(parents=True)
        self.template = template
        self.steps = steps
        self.create = create
        self.target = target
        self.beside = beside
        self._context = server()
        self._runs = 0

    def run(self, inject: str, trace: str) -> Run:
        """Run the workload on a copy, with one of strace's injections."""
        self._runs += 1
        place = self.room / f"{self._runs}"
        place.mkdir()
        path, acks, log = place / "dataset", place / "acks", place / "strace"
        if self.template.exists():
            shutil.copytree(self.template, path)
        if self.beside is not None:
            shutil.copytree(self.beside, place / self.beside.name)
        # A question mark: not every architecture has every one of them.
        trace = ",".join(f"?{call}" for call in trace.split(","))
        receive, start = self._context.Pipe()
        process = self._context.Process(target=self.target, args=(path, self.steps, acks, self.create, receive))
        process.start()
        assert start.poll(60), f"{inject}: does not start"
        start.recv_bytes()
        strace = subprocess.Popen(
            [
                "strace",
                "-f",
                "-y",
                "-o",
                log,
                "-p",
                str(process.pid),
                "-e",
                f"trace={trace}",
                "-e",
                f"inject=?{inject}",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert strace.stderr is not None
            said = strace.stderr.readline()
            if "attached" not in said:
                pytest.skip(f"strace may not attach to a process here: {said.strip()}")
            start.send_bytes(b"go")
            process.join(60)
            assert process.exitcode is not None, f"{inject}: hangs"
            strace.communicate(timeout=60)
        finally:
            process.kill()
            process.join()
            strace.kill()
            strace.communicate()
            start.close()
            receive.close()
        assert process.exitcode in (0, -9), f"{inject}: the process failed with {process.exitcode}"
        return Run(path, workload.acknowledged(acks), process.exitcode == -9, log.read_text("utf-8", "replace"))

    def recorded(self) -> Run:
        """Run the workload to its end."""
        run = self.run("fsync:error=EIO:when=65535", ",".join(CHANGING))
        assert run.acked == len(run.acks) == len(self.steps) + (self.create is not None), run.acks
        return run

    def killed(self, most: int | None = None) -> Iterator[Run]:
        """Kill the process before each call that changes something; the last run comes to its end.

        A kill before or after a sync leaves the same: these are no points of their own.

        Args:
            most: only at so many of them, or less, evenly spread.
        """
        recorded = self.recorded()
        for call, number in spread(changes(recorded.log, SYNCS), most):
            run = self.run(f"{call}:signal=KILL:when={number}", call)
            assert run.killed, f"{call} {number} was not reached"
            yield run
            shutil.rmtree(run.path.parent)
        yield recorded

    def failed(self, error: str, *calls: str, most: int | None = None) -> Iterator[Run]:
        """Fail each call that changes or syncs something, one in each run.

        Args:
            calls: only these; else all.
            most: only so many of them, or less, evenly spread.
        """
        recorded = self.recorded()
        for call, number in spread([each for each in changes(recorded.log) if not calls or each[0] in calls], most):
            run = self.run(f"{call}:error={error}:when={number}", ",".join(CHANGING))
            assert run.injected is not None, f"{call} {number} was not reached"
            yield run
            shutil.rmtree(run.path.parent)


def changes(log: str, without: Collection[str] = ()) -> list[tuple[str, int]]:
    """Return the calls that changed something: the name, and the number among the calls of this name in its thread.

    Where SQLite writes to one file several times with nothing in between, the first and the last write are points, and
    with `EVERY_CALL` those between them, too: a transaction is not in the log as long as its last page is missing, and
    a checkpoint is done again from the log.
    """
    counts: Counter[tuple[str, str]] = Counter()
    found: list[tuple[str, int]] = []
    files: list[str] = []
    for line in log.splitlines():
        if call := _CALL.fullmatch(line):
            thread, name, rest = call.groups()
            counts[thread, name] += 1
            is_change = name != "openat" or any(flag in rest for flag in _CREATING)
            is_ours = not any(each in rest for each in _OF_NOBODY) and name not in without
            if is_change and is_ours and " = -1 " not in rest:
                found.append((name, counts[thread, name]))
                written = _PAGES.match(rest) if name == "pwrite64" else None
                files.append("" if written is None else written[1])
    inside = {at for at in range(1, len(found) - 1) if files[at] and files[at - 1] == files[at] == files[at + 1]}
    return [each for at, each in enumerate(found) if EVERY_CALL or at not in inside]


def spread(points: list[tuple[str, int]], most: int | None) -> list[tuple[str, int]]:
    """Return at most so many of the points, evenly spread; None for all."""
    return points if most is None else points[:: -(-len(points) // most)][-most:]


def synced_path(call: str) -> str:
    """Return the path of the file that a call on a descriptor, as strace writes it, is about."""
    found = re.search(r"\([0-9]+<([^>]*)>", call)
    assert found is not None, call
    return found[1]


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
