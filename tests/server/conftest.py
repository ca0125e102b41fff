"""Fixtures of the server's tests: a server in a thread of this process, on a free port, and clients of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import httpx
import pytest

import ondisk
from ondisk.server.serve import Server, listen, serve

PATIENCE = 60  # seconds until a server or an answer counts as hanging
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


class Serving:
    """A running server.

    Attributes:
        port: where it listens.
        client: asks it.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE)

    def url(self, dataset: ondisk.Dataset) -> str:
        """Return where a dataset is."""
        return f"http://127.0.0.1:{self.port}/dataset/{dataset.path.name}"

    def connect(self, content: bytes = b"") -> socket.socket:
        """Open a connection, and send bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sendall(content)
        return connection

    def sample(self, name: str) -> float:
        """Return a metric that has no labels."""
        (line,) = [line for line in self.client.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
        return float(line.rpartition(" ")[2])


@contextlib.contextmanager
def started(*paths: Path, **options: Any) -> Iterator[Serving]:
    """Serve datasets, for the length of the block."""
    running: Queue[Server | BaseException] = Queue()
    listener = listen("127.0.0.1", 0)

    def run() -> None:
        try:
            serve([str(path) for path in paths], listener, running.put, **options)
        except BaseException as error:
            running.put(error)

    thread = Thread(target=run)
    thread.start()
    server = running.get(timeout=PATIENCE)
    if isinstance(server, BaseException):
        thread.join()
        raise server
    found = Serving(server.port)
    try:
        yield found
    finally:
        found.client.close()
        server.stop()
        thread.join()


@pytest.fixture
def serving() -> Iterator[Callable[..., Serving]]:
    """Serve datasets until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *paths, **options: stack.enter_context(started(*paths, **options))


def data(count: int, size: int = 10) -> list[ondisk.Datum]:
    """Return data of a field `n`, one a minute."""
    return [ondisk.Datum(BEGIN + timedelta(minutes=n), {"n": n}, {"x": "y" * size}) for n in range(count)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset of 2,000 lines in two segments, for tests that change nothing."""
    path = tmp_path_factory.mktemp("server") / "filled"
    fields = {"n": "integer"}
    with ondisk.create(path, {"format": "jsonl", "step": "daily", "fields": fields, "unique": ["n"]}) as dataset:
        dataset.append(data(2000))
    return path


@pytest.fixture(scope="module")
def served(filled: Path) -> Iterator[Serving]:
    """Serve it."""
    with started(filled) as served:
        yield served


def read_all(connection: socket.socket) -> bytes:
    """Return what a connection sends until it is closed."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)
