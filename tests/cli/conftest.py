"""Fixtures of the command's tests: the command in this process, in its own process, and small datasets."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import pytest

import ondisk
from ondisk.cli import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "ondisk"]
PATIENCE = (
    600  # seconds until a command counts as hanging; on a busy machine, one takes a hundred times as long as else
)

LINES = b"""\
202611200600,5,227,1.2,,,000000000
202611200600,7,227,1.4,,,000000000
202611210700,5,1,85,,,000000000
"""


@dataclass
class Done:
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        """The only JSON object that was printed."""
        (line,) = self.lines
        return line

    @property
    def lines(self) -> list[Any]:
        """The JSON objects that were printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capfdbinary, monkeypatch) -> Callable[..., Done]:
    """Run a command in this process."""

    def run(*argv: object, stdin: bytes = b"") -> Done:
        source = Path("stdin")
        source.write_bytes(stdin)
        with source.open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            code = main([str(each) for each in argv])
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return Done(code, captured.out, captured.err.decode())

    return run


@pytest.fixture
def environment() -> dict[str, str]:
    """Return the environment in which a process finds the code under test."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def start(environment) -> Callable[..., Done]:
    """Run a command in its own process."""

    def start(*argv: object, **options: Any) -> Done:
        environment.update(options.pop("env", {}))
        command = [*COMMAND, *map(os.fspath, argv)]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE, check=False, **options)
        return Done(done.returncode, done.stdout, done.stderr.decode())

    return start


@pytest.fixture
def watch(environment) -> Callable[..., tuple[subprocess.CompletedProcess[bytes], bytes]]:
    """Run a command in its own process, with a terminal as one of its streams; return it, and what the screen showed.

    A read returns at most 4 KiB, and a terminal that nobody reads blocks the command: progress takes some KiB in the
    seconds that a command takes on a busy machine.
    """

    def watch(
        stream: str, *argv: object, stdin: int | BinaryIO | None = None
    ) -> tuple[subprocess.CompletedProcess[bytes], bytes]:
        ours, theirs = pty.openpty()
        shown: list[bytes] = []

        def read() -> None:
            with contextlib.suppress(OSError):  # EIO: the command has ended
                while piece := os.read(ours, 4096):
                    shown.append(piece)

        reader = Thread(target=read)
        reader.start()
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: theirs}
        command = [*COMMAND, *map(os.fspath, argv)]
        try:
            done = subprocess.run(
                command, env={**environment, "TERM": "xterm"}, stdin=stdin, timeout=PATIENCE, check=False, **streams
            )
        finally:
            os.close(theirs)
            reader.join()
            os.close(ours)
        return done, b"".join(shown)

    return watch


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Change to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def vm2(folder) -> Path:
    """Return an empty dataset of VM2 lines."""
    config = {
        "format": "vm2",
        "step": "daily",
        "fields": {"area": "text", "product": "text"},
        "unique": ["reftime", "area", "product"],
    }
    ondisk.create("weather", config).close()
    return Path("weather")


@pytest.fixture
def weather(vm2) -> Path:
    """Return a dataset with the three data of `LINES`."""
    Path("obs.vm2").write_bytes(LINES)
    with ondisk.open(vm2) as dataset:
        dataset.append_file("obs.vm2")
    return vm2


@pytest.fixture
def jsonl(folder) -> Path:
    """Return an empty dataset of JSON lines, with a field of each type."""
    fields = {name: name for name in ("integer", "real", "text", "boolean", "timestamp", "bytes")}
    ondisk.create("lines", {"format": "jsonl", "step": "daily", "fields": fields}).close()
    return Path("lines")
