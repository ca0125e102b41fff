"""Measurements of `ondisk serve`: a range of a segment against plain file serving, and polls of a replica.

Plain file serving is a program that answers every request with its file, by `sendfile`. Server and client share the
machine. "Idle" is a poll when nothing has changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import observations
from measure import Bench, best

import ondisk
from ondisk.replication.http_source import HttpSource

MIB = 1024 * 1024
POLLS = 300


class Plain(socketserver.StreamRequestHandler):
    """Answers a request with the bytes of a file from a position on."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        path, begin = sys.argv[1], int(sys.argv[2])
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size - begin
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            self.connection.sendfile(file, begin)


def fetch(port: int, path: str, begin: int) -> int:
    """Ask for a range, and return how many bytes come, with their head."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nRange: bytes={begin}-\r\nConnection: close\r\n\r\n"
    count, buffer = 0, bytearray(MIB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode())
        while some := connection.recv_into(buffer):
            count += some
    return count


@contextlib.contextmanager
def started(*command: str) -> Iterator[dict[str, object]]:
    """Run a server, for the length of the block; yield what it prints."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


class ServerBench(Bench):
    """All measurements of the server, in one directory.

    Args:
        count: kilobytes of the range; data of the larger dataset that is polled.
    """

    def run(self) -> None:
        self.range()
        self.polls()

    def range(self) -> None:
        config = {"format": "seg", "step": "yearly", "compression": "none"}
        with ondisk.create(self.new_path("large"), config) as dataset:
            piece = os.urandom(16 * MIB)
            data = (ondisk.Datum(observations.BEGIN, {}, piece) for _ in range(max(1, self.count * 1000 // len(piece))))
            dataset.append(data)
            (name,) = {datum.location.segment for datum in dataset.query(with_data=False)}
            file = dataset.path / name
        begin, size = MIB, file.stat().st_size - MIB
        with (
            started(__file__, str(file), str(begin)) as plain,
            started("-m", "ondisk", "serve", str(dataset.path), "--bind", "127.0.0.1:0", "--json") as served,
        ):
            path = f"/dataset/{dataset.path.name}/data/{name}"

            def floor() -> None:
                assert fetch(int(str(plain["port"])), "/", begin) > size

            def ours() -> None:
                assert fetch(int(str(served["port"])), path, begin) > size

            times = best(self.rounds, floor, ours)
        rates = " and ".join(f"{size / each / 1e6:,.0f}" for each in times)
        detail = f"{size / 1e6:,.0f} MB: plain and ondisk {rates} MB/s"
        self.report.line("a range of a segment", times[1] / times[0], 2.0, "× plain", detail)

    def polls(self) -> None:
        """Compare idle polls of two datasets, one a thousand times as large; as pairs, since the machine is busy."""
        paths = []
        for name, count in (("few", max(1, self.count // 1000)), ("many", self.count)):
            source = self.folder / f"{name}.vm2"
            observations.write(source, count)
            with ondisk.create(self.folder / name, observations.CONFIG) as dataset:
                dataset.append_file(source)
            paths.append(str(self.folder / name))
        with (
            started("-m", "ondisk", "serve", *paths, "--bind", "127.0.0.1:0", "--json") as served,
            contextlib.ExitStack() as stack,
        ):
            urls = served["datasets"]
            assert isinstance(urls, dict)
            sources = [stack.enter_context(HttpSource(urls[name])) for name in ("few", "many")]
            tokens = []
            for source in sources:
                token = source.changes(None).token
                while (records := source.changes(token)).count:
                    token = records.token
                tokens.append(token)
            times: list[list[float]] = [[], []]
            for _ in range(POLLS):
                for place, (source, token) in enumerate(zip(sources, tokens, strict=True)):
                    began = time.perf_counter()
                    assert not source.changes(token).count
                    times[place].append(time.perf_counter() - began)
        few, many = map(statistics.median, times)
        detail = f"{self.count // 1000:,} data {few * 1e3:.2f} ms, {self.count:,} data {many * 1e3:.2f} ms"
        self.report.line("an idle poll, 1000 times the data", many / few, 1.25, "×", detail)


if __name__ == "__main__":
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Plain) as plain_server:
        print(json.dumps({"port": plain_server.server_address[1]}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            plain_server.serve_forever()
