"""Processes with a connection to each, and places that other users can reach."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from crash.killpoints import server

PATIENCE = 60  # seconds until a process counts as hanging


@dataclass(frozen=True)
class Worker:
    """A process, and the connection by which it answers."""

    process: BaseProcess
    talk: Connection

    def hear(self) -> Any:
        assert self.talk.poll(PATIENCE), "the process hangs"
        return self.talk.recv()

    def go(self) -> None:
        self.talk.send("go")

    def end(self) -> None:
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0


Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes: `start(function, path, *arguments)`; all end with the test."""
    with ExitStack() as stack:

        def start(target: Callable[..., None], path: Path, *arguments: Any) -> Worker:
            context = server()
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(path, theirs, *arguments))
            process.start()
            theirs.close()
            stack.callback(ours.close)
            stack.callback(process.join)
            stack.callback(process.kill)
            return Worker(process, ours)

        yield start


@pytest.fixture
def public_path() -> Iterator[Path]:
    """Make a directory that every user may read, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
