"""Kill a process, or fail a system call, at every point where it touches the disk; with strace.

    strace -p PID -e trace=pwrite64 -e inject=pwrite64:signal=KILL:when=7

ends the process before its seventh `pwrite64`. Calls are counted for each system call alone, so a sweep goes through
the system calls, and for each through 1, 2, 3 … until the process ends by itself: then every point was killed.
The process is forked from a server that has imported everything, and waits until strace is attached: a point costs
some 50 ms, and all calls that are counted are ondisk's and SQLite's own.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from . import workload
from .workload import Step

CHANGING = ("openat", "write", "pwrite64", "copy_file_range", "fsync", "fdatasync", "ftruncate", "mkdir", "mkdirat",
            "link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat")  # fmt: skip
"""Every system call by which ondisk or SQLite changes what is on disk. (`openat` creates files; SQLite maps `-shm`.)"""

CHANGING_SEG = tuple(call for call in CHANGING if call != "openat")
"""The same for a segment of seg: killed at its first write, a process leaves what one killed behind `openat` leaves."""

_HERE = Path(__file__).resolve()
_ENOUGH = 5000


def server() -> ForkServerContext:
    """Give the context whose processes are forked from a server that has imported the workload."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crash.workload"])
    paths = [str(_HERE.parents[1]), str(_HERE.parents[2]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:  # the server, and nothing else, takes these paths
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        multiprocessing.forkserver.ensure_running()
    return context


@dataclass(frozen=True)
class Run:
    """How a process ended."""

    path: Path
    acks: list[dict[str, Any] | None]
    killed: bool
    calls: list[str]
    """strace's lines, in order, with the paths of descriptors."""

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
    """

    def __init__(
        self,
        room: Path,
        template: Path,
        steps: list[Step],
        *,
        create: dict[str, Any] | None = None,
        target: Callable[..., None] = workload.run,
    ) -> None:
        self.room = room
        room.mkdir(parents=True)
        self.template = template
        self.steps = steps
        self.create = create
        self.target = target
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
        # A question mark: not every architecture has every one of them.
        trace = ",".join(f"?{call}" for call in trace.split(","))
        receive, start = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self.target, args=(path, self.steps, acks, self.create, receive))
        process.start()
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
        calls = [re.sub(r"^\d+ +", "", each) for each in log.read_text(errors="replace").splitlines()]
        return Run(path, workload.acknowledged(acks), process.exitcode == -9, calls)

    def killed_at(self, call: str, every: int = 1) -> Iterator[Run]:
        """Kill the process at its first, second … such call, until it ends by itself."""
        for number in range(1, _ENOUGH, every):
            run = self.run(f"{call}:signal=KILL:when={number}", call)
            yield run
            if not run.killed:
                assert run.acked == len(run.acks) == len(self.steps) + (self.create is not None), run.acks
                return
            shutil.rmtree(run.path.parent)
        raise AssertionError(f"more than {_ENOUGH} {call}")

    def failed_at(self, call: str, error: str, every: int = 1) -> Iterator[Run]:
        """Fail one call at a time, until the process ends without having made so many of them."""
        traced = ",".join(CHANGING)
        for number in range(1, _ENOUGH, every):
            run = self.run(f"{call}:error={error}:when={number}", traced)
            if run.injected is None:
                assert all(ack is None for ack in run.acks)
                return
            yield run
            shutil.rmtree(run.path.parent)
        raise AssertionError(f"more than {_ENOUGH} {call}")


def synced_path(call: str) -> str:
    """Give the path of the file that a call on a descriptor, as strace writes it, is about."""
    found = re.search(r"\([0-9]+<([^>]*)>", call)
    assert found is not None, call
    return found[1]


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
