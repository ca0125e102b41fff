"""A server of the backend: many connections, each with transactions that are answered in their order.

    connection ── packets ──┐
    connection ── packets ──┼── waiting ── one thread: the backend ── replies ── each to its connection
    connection ── packets ──┘

Whatever arrives while the backend is at work waits, and is then given to it together: so the writes of many connections
share one commit. A connection whose packets or replies are too many is not read until they are fewer.

There is no authentication: whoever can connect can read and change all objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ondisk.backends.elliptics.backend import Backend
from ondisk.backends.elliptics.packets import REPLY
from ondisk.malloc import keep_freed

_LOG = logging.getLogger("ondisk.backends.elliptics")
_SLICE = 256 * 1024  # bytes that a connection must take within the time limit
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    connections: int = 1024  # at a time; others are closed at once
    pipelined: int = 64  # packets of one connection that are not answered yet
    waiting: int = 128 * 1024 * 1024  # bytes of packets that are not answered yet, of all connections
    unsent: int = 128 * 1024 * 1024  # bytes of replies from which on the backend waits until connections take them
    together: int = 4096  # packets that are given to the backend together
    idle: float = 600  # seconds until a connection that sends nothing is closed
    stalled: float = 60  # seconds for the rest of a packet, or until a connection takes a part of a reply
    crowded: float = 5  # seconds for that part while the backend waits because of `unsent`


async def serve(backend: Backend, host: str, port: int, started: Callable[[int], object]) -> None:
    """Serve until SIGINT or SIGTERM arrives; raise OSError if it cannot listen. `started`: called with the port."""
    keep_freed()
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    async with Server(backend, host, port) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        started(server.port)
        await stop.wait()


class _Closed(Exception):
    """The connection must be closed."""


class _Room:
    """A number of bytes that connections share. One alone may take more than there are."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._is_given_back = asyncio.Event()

    async def wait_for(self, size: int) -> None:
        while self._taken and self._taken + size > self._size:
            self._is_given_back.clear()
            await self._is_given_back.wait()

    def take(self, size: int) -> None:
        """Take bytes, whether they fit or not."""
        self._taken += size

    def give_back(self, size: int) -> None:
        self._taken -= size
        self._is_given_back.set()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A packet; and the replies to it when they are there, or None if the connection must be closed."""

    packet: bytes
    replies: asyncio.Future[list[bytes] | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def size(self) -> int:
        is_there = self.replies.done() and not self.replies.cancelled()
        return sum(map(len, self.replies.result() or ())) if is_there else 0

    def forget(self) -> None:
        """Free the replies now, also if an error refers to them until the garbage collector runs."""
        if not self.replies.cancel() and not self.replies.cancelled() and (there := self.replies.result()):
            there.clear()


@dataclass(slots=True)
class _Connection:
    writer: asyncio.StreamWriter
    pipeline: asyncio.Queue[_Waiting | None]
    # when it last took a part of a reply that is being sent, in the loop's time; None while none is
    since: float | None = None


class Server:
    """Answers the packets of connections with a backend. Use it as an asynchronous context manager.

    Args:
        host, port: where it listens; port 0 takes a free one.

    Attributes:
        port: the port on which it listens.

    Raises:
        OSError: when it starts: it cannot listen there.
    """

    def __init__(self, backend: Backend, host: str, port: int, limits: ServerLimits | None = None) -> None:
        self.port = port
        self._backend = backend
        self._host = host
        self._limits = limits or ServerLimits()
        self._waiting: list[_Waiting] = []
        self._has_waiting = asyncio.Event()
        self._packets = _Room(self._limits.waiting)
        self._unsent = _Room(self._limits.unsent)
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._thread = ThreadPoolExecutor(1, "elliptics")

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(
            self._connected, self._host, self.port, limit=_SLICE, backlog=_BACKLOG
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close all connections, and end when the backend has done what it is doing."""
        self._server.close()
        for each in (self._worker, *self._connections):
            each.cancel()
        await asyncio.gather(self._worker, *self._connections, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def _work(self) -> None:
        """Give the backend what waits, and hand out the replies."""
        loop = asyncio.get_running_loop()
        while await self._has_waiting.wait():
            await self._wait_for_room()
            some = self._waiting[: self._limits.together]
            answers: list[list[bytes] | None]
            try:
                packets = [each.packet for each in some]
                answers = [*await loop.run_in_executor(self._thread, self._backend.process_some, packets)]
            except Exception:  # a defect: these connections are closed, and the others are served
                _LOG.exception("%d packets cannot be answered", len(some))
                answers = [None for _ in some]
            del self._waiting[: len(answers)]
            if not self._waiting:
                self._has_waiting.clear()
            for each, answer in zip(some, answers, strict=False):
                self._packets.give_back(len(each.packet))
                if not each.replies.cancelled():
                    each.replies.set_result(answer)
                    self._unsent.take(each.size)

    async def _wait_for_room(self) -> None:
        """Wait until connections have taken enough replies; close those that keep others waiting and take nothing."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.crowded / 4):
                    return await self._unsent.wait_for(0)
            before = asyncio.get_running_loop().time() - self._limits.crowded
            for each in self._connections.values():
                if each.since is not None and each.since < before:
                    each.writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(asyncio.CancelledError):  # the server ends; asyncio of Python 3.11 would log it
            if len(self._connections) < self._limits.connections:
                self._connections[task] = connection = _Connection(writer, asyncio.Queue(self._limits.pipelined))
                await self._serve(reader, connection)
        self._connections.pop(task, None)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        """Serve one connection, until it ends or breaks a rule."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._receive(reader, connection))
                both.create_task(self._send(connection))
            connection.writer.write_eof()
        except* (OSError, EOFError, _Closed):  # OSError: also a time limit
            pass
        finally:
            while not connection.pipeline.empty():
                self._settle(connection.pipeline.get_nowait())

    async def _receive(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        layout, limits, pipeline = self._backend.layout, self._limits, connection.pipeline
        while True:
            async with asyncio.timeout(limits.idle):
                try:
                    head = await reader.readexactly(layout.header.size)
                except asyncio.IncompleteReadError:
                    break
            header = layout.read_header(head)
            assert header is not None
            if header.trans & REPLY:
                raise _Closed
            if header.size > self._backend.limits.packet:
                refused = _Waiting(head)
                refused.replies.set_result([layout.reply(header, header.id, 0, -errno.E2BIG)])
                await pipeline.put(refused)
                self._unsent.take(refused.size)
                break
            size = len(head) + header.size
            await self._packets.wait_for(size)
            self._packets.take(size)
            try:
                async with asyncio.timeout(limits.stalled):
                    waiting = _Waiting(head + await reader.readexactly(header.size))
                await pipeline.put(waiting)  # first: if the connection ends while this waits, nothing is executed
            except BaseException:
                self._packets.give_back(size)
                raise
            self._waiting.append(waiting)
            self._has_waiting.set()
        await pipeline.put(None)

    async def _send(self, connection: _Connection) -> None:
        writer, now = connection.writer, asyncio.get_running_loop().time
        while (waiting := await connection.pipeline.get()) is not None:
            try:
                replies = await waiting.replies
                if replies is None:
                    raise _Closed
                connection.since = now()
                for reply in replies:
                    for begin in range(0, len(reply), _SLICE):
                        writer.write(reply if len(reply) <= _SLICE else memoryview(reply)[begin : begin + _SLICE])
                        async with asyncio.timeout(self._limits.stalled):
                            await writer.drain()
                        connection.since = now()
            finally:
                connection.since = None
                replies, reply = None, b""  # else the traceback of an error keeps them
                self._settle(waiting)

    def _settle(self, waiting: _Waiting | None) -> None:
        """Give back the room of replies that were sent, or that nobody waits for any more."""
        if waiting is not None:
            self._unsent.give_back(waiting.size)
            waiting.forget()
