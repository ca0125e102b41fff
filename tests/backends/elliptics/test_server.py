"""The server over loopback: pipelined transactions, limits, hostile packets, commits that connections share."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import random
import threading
import time
import tracemalloc

import pytest

import ondisk
from ondisk.backends.elliptics import Backend, Limits
from ondisk.backends.elliptics.packets import IO, REPLY, Code, Header
from ondisk.backends.elliptics.server import Server, ServerLimits

from .conftest import LAYOUT, command, content, io_command, name, read, request, status, write

A = name(1)


class Running:
    """A server in a thread of its own."""

    def __init__(self, path, limits=None, backend_limits=None):
        self.dataset = ondisk.open(path)
        self.backend = Backend(self.dataset, limits=backend_limits)
        self._limits = limits
        self._started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))

    async def _serve(self):
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with Server(self.backend, "127.0.0.1", 0, self._limits) as self.server:
            self._started.set()
            await self._stop.wait()

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        return self

    def stop(self):
        """Let the server end; a test may have done so before."""
        with contextlib.suppress(RuntimeError):  # its event loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)

    def __exit__(self, *error):
        self.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.dataset.close()

    def run(self, *conversations):
        """Run coroutines that talk to the server, each with a connection of its own; return their results."""

        async def one(conversation):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            try:
                return await conversation(reader, writer)
            finally:
                writer.close()

        async def all_of_them():
            return await asyncio.wait_for(asyncio.gather(*map(one, conversations)), 60)

        return asyncio.run(all_of_them())


async def receive(reader):
    """Return the next packet."""
    head = await reader.readexactly(LAYOUT.header.size)
    return head + await reader.readexactly(LAYOUT.read_header(head).size)


async def rest(reader):
    """Return the bytes up to the end of the connection, which may be reset."""
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


@pytest.fixture
def running(path):
    with Running(path) as running:
        yield running


def test_pipelined_transactions_are_answered_in_their_order(running):
    async def talk(reader, writer):
        for trans in range(1, 301):
            writer.write(write(A, b"%d," % trans, 0, 2, trans=trans))
        writer.write(read(A, trans=301))
        replies = [await receive(reader) for _ in range(302)]
        return [LAYOUT.read_header(each).trans & ~REPLY for each in replies], content(replies[-2:-1])

    ((numbers, found),) = running.run(talk)
    assert numbers == [*range(1, 302), 301]
    assert found == b"".join(b"%d," % trans for trans in range(1, 301))


def test_a_connection_that_ends_after_its_requests_gets_all_replies(running):
    async def talk(reader, writer):
        writer.write(write(A, b"x" * 100_000) + read(A))
        writer.write_eof()
        return await reader.read()

    (found,) = running.run(talk)
    assert len(found) == LAYOUT.header.size * 3 + LAYOUT.attribute.size + LAYOUT.io.size + 100_000


def test_writes_of_many_connections_share_commits(running):
    async def talk(reader, writer, number):
        for _ in range(5):
            writer.write(write(name(number), b"x" * 100, 0, 2))
            assert status([await receive(reader)]) == 0

    before = running.dataset.info()["count"]
    calls = []
    process = running.backend.process_some
    running.backend.process_some = lambda packets: calls.append(len(packets)) or process(packets)
    running.run(*(lambda reader, writer, n=n: talk(reader, writer, n) for n in range(1, 33)))
    assert running.dataset.info()["count"] == before + 5 * 32
    assert sum(calls) == 5 * 32
    assert len(calls) < 100  # with one commit for each write it would be 160


def test_a_long_read_arrives_whole(path):
    with Running(path, backend_limits=Limits(reply=1_000_000)) as running:
        data = os.urandom(5_500_000)

        async def talk(reader, writer):
            writer.write(write(A, data))
            await receive(reader)
            writer.write(read(A, flags=0))
            return content([await receive(reader) for _ in range(6)])

        assert running.run(talk) == [data]


def test_a_packet_that_is_too_large_is_refused_before_it_is_read(running):
    async def talk(reader, writer):
        writer.write(LAYOUT.header.pack(A, 0, 0, 0, 0, 9, 2**40))
        return await reader.read()

    (found,) = running.run(talk)
    assert LAYOUT.read_header(found) == Header(A, 0, 0, 0, -errno.E2BIG, 9 | REPLY, 0)


@pytest.mark.check
def test_a_reply_closes_the_connection(running):
    async def talk(reader, writer):
        writer.write(write(A, b"abc", trans=REPLY | 1))
        return await reader.read()

    assert running.run(talk) == [b""]


def test_more_connections_than_allowed_are_closed(path):
    with Running(path, ServerLimits(connections=2)) as running:

        async def first(reader, writer):
            writer.write(write(A, b"abc"))
            await receive(reader)
            others = [await asyncio.open_connection("127.0.0.1", running.server.port) for _ in range(3)]
            others[0][1].write(read(A))
            assert content([await receive(others[0][0])]) == b"abc"
            for reader, _ in others[1:]:
                assert await rest(reader) == b""
            for _, other in others:
                other.close()

        running.run(first)
        until(lambda: not running.server._connections)
        running.run(works)


def test_idle_and_stalled_connections_are_closed(path):
    with Running(path, ServerLimits(idle=0.3, stalled=0.3)) as running:

        async def idle(reader, writer):
            return await rest(reader)

        async def stalled(reader, writer):
            writer.write(write(A, b"abc")[:-1])
            return await rest(reader)

        assert running.run(idle, stalled) == [b"", b""]


@pytest.mark.check
def test_replies_to_closed_connections_are_freed_at_once(path):
    """Not only when the garbage collector runs: it counts objects, and a long reply is one."""
    size, times = 8_000_000, 12
    with Running(path, ServerLimits(stalled=0.2, unsent=1_000_000_000)) as running:

        async def store(reader, writer):
            writer.write(write(A, bytes(size)))
            await receive(reader)

        async def greedy(reader, writer):
            writer.write(read(A))
            await asyncio.sleep(1)

        running.run(store)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            running.run(*[greedy] * times)
            until(lambda: not running.server._connections)
            assert tracemalloc.get_traced_memory()[0] < times * size / 4
        finally:
            tracemalloc.stop()
            gc.enable()
        running.run(works)


def test_who_takes_no_replies_is_closed_and_others_are_served(path):
    with Running(path, ServerLimits(stalled=1, unsent=1_000_000)) as running:

        async def greedy(reader, writer):
            writer.write(write(A, bytes(8_000_000)))
            for _ in range(10):
                writer.write(read(A))
            await writer.drain()
            await asyncio.sleep(2)

        async def modest(reader, writer):
            await asyncio.sleep(0.5)
            writer.write(read(A, 0, 10))
            return content([await receive(reader)])

        assert running.run(greedy, modest)[1] == bytes(10)
        until(lambda: not running.server._unsent._taken)
        until(lambda: not running.server._packets._taken)


def test_who_goes_away_with_a_full_pipeline_leaves_nothing_behind(path):
    with Running(path, ServerLimits(pipelined=2)) as running:
        running.run(lambda reader, writer: _asked(reader, writer, write(A, bytes(1024 * 1024))))

        async def go_away(reader, writer):
            writer.transport.pause_reading()
            writer.write(read(A) * 20)
            await asyncio.sleep(0.5)
            writer.transport.abort()

        for _ in range(3):
            running.run(go_away)
        until(lambda: not running.server._connections)
        until(lambda: not running.server._packets._taken)
        assert running.server._unsent._taken == 0


async def _asked(reader, writer, packet):
    writer.write(packet)
    return await receive(reader)


@pytest.mark.check
def test_several_that_take_no_replies_do_not_keep_others_waiting(path):
    with Running(path, ServerLimits(stalled=60, unsent=1_000_000, crowded=0.2)) as running:
        assert status(running.backend.process(write(A, bytes(8_000_000)))) == 0
        is_done = []

        async def greedy(reader, writer):
            for _ in range(20):
                writer.write(read(A))
            while not is_done:
                await asyncio.sleep(0.05)

        async def modest(reader, writer):
            await asyncio.sleep(0.3)
            for _ in range(5):
                writer.write(read(A, 0, 10))
                assert content([await receive(reader)]) == bytes(10)
                await receive(reader)  # the acknowledgement
            is_done.append(True)

        running.run(*[greedy] * 5, modest)


def test_the_end_of_a_server_with_connections_is_quiet(path, caplog):
    with Running(path) as running:

        async def stay(reader, writer):
            writer.write(read(A))
            await receive(reader)
            running.stop()
            await rest(reader)

        running.run(stay)
    assert [each.message for each in caplog.records if each.name == "asyncio"] == []


def until(condition):
    """Wait for what another thread will do."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_hostile_bytes_get_an_error_or_a_closed_connection(running):
    """After each of them the server answers others."""
    chosen = random.Random(19)
    valid = [write(A, b"abc"), read(A), command(A, Code.DEL), request(A, 0, b"x" * 30), read(A, 0, 2**64 - 1)]

    async def hostile(reader, writer):
        packet = bytearray(chosen.choice(valid))
        for _ in range(chosen.randrange(6)):
            packet[chosen.randrange(len(packet))] = chosen.randrange(256)
        packet = packet[: chosen.randrange(len(packet) + 1)] + chosen.randbytes(chosen.randrange(50))
        writer.write(bytes(packet))
        with contextlib.suppress(OSError):
            writer.write_eof()
        found = await rest(reader)
        while found:
            header = LAYOUT.read_header(found)
            assert header.trans & REPLY
            found = found[LAYOUT.header.size + header.size :]

    async def honest(reader, writer):
        writer.write(write(name(9), b"abc") + read(name(9)))
        assert content([await receive(reader) for _ in range(2)][1:]) == b"abc"

    for _ in range(10):
        running.run(*[hostile] * 20, honest)


def test_a_defect_of_the_backend_closes_connections_and_not_the_server(running, caplog):
    process = running.backend.process_some

    def defective(packets):
        running.backend.process_some = process
        raise ZeroDivisionError

    running.backend.process_some = defective

    async def talk(reader, writer):
        writer.write(write(A, b"abc"))
        return await rest(reader)

    assert running.run(talk) == [b""]
    assert "cannot be answered" in caplog.text
    running.run(works)


async def works(reader, writer):
    io = IO(A, A, 0, 0, 3)
    writer.write(request(A, 0, io_command(Code.WRITE, io, b"abc")))
    assert status([await receive(reader)]) == 0
