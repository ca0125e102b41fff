"""Objects of elliptics: durable writes and reads against plain files, and requests over loopback.

    python benchmarks/elliptics.py [FOLDER]

A plain file for each object, as the file backend of elliptics had: open, pwrite, fsync, close; open, pread, close. The
backend is given groups of packets, as the server gives them to it: a group of writes is one commit; reads of 4 KiB are
given in groups of 16, those of 1 MiB one by one. "First time" is the first read of an object after the dataset was
opened; "from disk" is the same when neither the files nor the dataset are in the page cache, in random order. Both take
turns. The first rounds do not count: the backend still gets the memory that it keeps. The figures are medians of the
time of one object, and of the ratios of two rounds that follow each other: CPU time for reads from the page cache, else
wall time.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ondisk
from ondisk.backends.elliptics import Backend, configuration
from ondisk.backends.elliptics.packets import IO, NEED_ACK, Code, Header, Layout
from ondisk.backends.elliptics.server import Server
from ondisk.malloc import keep_freed

LAYOUT = Layout()
ROUNDS = 9
FIRST = 2  # rounds that do not count
TOGETHER = 16  # small reads that are given to the backend together
KIB, MIB = 1024, 1024 * 1024


def write(id: bytes, data: bytes) -> bytes:
    command = LAYOUT.io_of(Code.WRITE, IO(id, id, 0, 0, len(data)), len(data))
    return LAYOUT.packet(Header(id, 0, 0, NEED_ACK, 0, 1, 0), command, data)


def read(id: bytes) -> bytes:
    command = LAYOUT.io_of(Code.READ, IO(id, id, 0, 0, 0))
    return LAYOUT.packet(Header(id, 0, 0, NEED_ACK, 0, 1, 0), command)


def timed(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    begin = clock()
    work()
    return clock() - begin


def write_files(paths: list[Path], contents: list[bytes]) -> None:
    for path, data in zip(paths, contents, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.pwrite(file, data, 0)
        os.fsync(file)
        os.close(file)


def read_files(paths: list[Path], size: int) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        assert len(os.pread(file, size, 0)) == size
        os.close(file)


def forget(folder: Path) -> None:
    """Remove the files below a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_objects(backend: Backend, packets: list[bytes], size: int) -> None:
    together = TOGETHER if size < MIB else 1
    for begin in range(0, len(packets), together):
        for reply, _ in backend.process_all(packets[begin : begin + together]):
            assert len(reply) > size


def in_process(folder: Path, size: int, group: int, count: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield what was measured: name, microseconds of the backend and of files for an object, and the ratio."""
    (folder / "files").mkdir()
    rounds: dict[str, list[tuple[float, float]]] = {}
    with ondisk.create(folder / "objects", configuration()) as dataset:
        backend = Backend(dataset)
        for number in range(ROUNDS):
            contents = [os.urandom(size) for _ in range(count)]
            ids = [os.urandom(64) for _ in range(count)]
            packets = list(map(write, ids, contents))
            paths = [folder / "files" / f"{number}-{each}" for each in range(count)]

            def store(packets: list[bytes] = packets) -> None:
                for begin in range(0, count, group):
                    assert all(backend.process_all(packets[begin : begin + group]))

            requests = list(map(read, ids))
            files = (
                timed(lambda p=paths, c=contents: write_files(p, c), time.perf_counter),
                timed(lambda p=paths: read_files(p, size)),
            )
            mine = timed(store, time.perf_counter), timed(lambda r=requests: read_objects(backend, r, size))
            with ondisk.open(folder / "objects", read_only=True) as again:
                first = Backend(again)
                rest = timed(lambda r=requests, b=first: read_objects(b, r, size))
            order = random.sample(range(count), count)
            forget(folder)
            mixed = [paths[each] for each in order]
            from_files = timed(lambda p=mixed: read_files(p, size), time.perf_counter)
            with ondisk.open(folder / "objects", read_only=True) as again:
                cold, some = Backend(again), [requests[each] for each in order]
                from_disk = timed(lambda r=some, b=cold: read_objects(b, r, size), time.perf_counter)
            rounds.setdefault(f"write, {group} in a commit", []).append((mine[0], files[0]))
            rounds.setdefault("read, in memory", []).append((mine[1], files[1]))
            rounds.setdefault("read, first time", []).append((rest, files[1]))
            rounds.setdefault("read, from disk", []).append((from_disk, from_files))
    for name, all_pairs in rounds.items():
        pairs = all_pairs[FIRST:]
        ours, plain = (statistics.median(pair[place] for pair in pairs) / count * 1e6 for place in (0, 1))
        yield name, ours, plain, statistics.median(pair[0] / pair[1] for pair in pairs)


def clients(port: int, connections: int, packets: list[bytes]) -> float:
    """Return how many requests a second are answered to some connections; each sends its next one after a reply."""

    async def talk(some: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for packet in some:
            writer.write(packet)
            more = True
            while more:
                header = LAYOUT.read_header(await reader.readexactly(LAYOUT.header.size))
                assert header is not None
                assert header.status == 0
                await reader.readexactly(header.size)
                more = bool(header.flags & 2)
        writer.close()

    async def all_of_them() -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(talk(packets[each::connections]) for each in range(connections)))
        return len(packets) / (time.perf_counter() - begin)

    return asyncio.run(all_of_them())


def serve(path: Path, ports: multiprocessing.Queue[int]) -> None:
    async def run() -> None:
        with ondisk.open(path) as dataset:
            async with Server(Backend(dataset), "127.0.0.1", 0) as server:
                ports.put(server.port)
                await asyncio.Event().wait()

    asyncio.run(run())


def over_loopback(folder: Path) -> Iterator[tuple[int, float, float]]:
    """Yield connections, and writes and reads of 4 KiB in a second."""
    ondisk.create(folder / "served", configuration()).close()
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=serve, args=(folder / "served", ports), daemon=True)
    process.start()
    port = ports.get()
    for connections in (1, 16, 256):
        ids = [os.urandom(64) for _ in range(max(200, 8 * connections))]
        writes = clients(port, connections, [write(id, os.urandom(4 * KIB)) for id in ids])
        yield connections, writes, clients(port, connections, list(map(read, ids)))
    process.kill()


def main() -> None:
    keep_freed()  # as the server does
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as name:
        print(f"{'size':>6}  {'':24} {'ondisk':>10} {'files':>10}  ratio")
        for title, size, group, count in (
            ("4 KiB", 4 * KIB, 1, 256),
            ("4 KiB", 4 * KIB, 16, 256),
            ("4 KiB", 4 * KIB, 256, 512),
            ("1 MiB", MIB, 16, 32),
        ):
            folder = Path(name) / f"{title}-{group}"
            folder.mkdir()
            for what, ours, plain, ratio in in_process(folder, size, group, count):
                print(f"{title:>6}  {what:24} {ours:7.0f} µs {plain:7.0f} µs  {ratio:5.2f}", flush=True)
        print("connections  4 KiB writes/s  4 KiB reads/s")
        for connections, writes, reads in over_loopback(Path(name)):
            print(f"{connections:11}  {writes:14.0f}  {reads:13.0f}", flush=True)


if __name__ == "__main__":
    main()
