"""Connections that nobody can hold open for nothing, and files that are sent without being copied."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ondisk.errors import InvalidInput
from ondisk.filesystem import ReadableFile
from ondisk.server.admission import Limits
from ondisk.server.metrics import Counts
from ondisk.server.responses import Json, error_as_json

_SLICE = 256 * 1024  # bytes that a connection must take within the time limit


class _Requests(h11.Connection):
    """What a client sends.

    h11 limits only a head that is incomplete, so not one that arrives in one piece. And it reads a body of chunks if
    the request has a length, too: a proxy in front may believe the length, and so see other requests (RFC 9112, 6.1).
    """

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=most)
        self._most = most

    def next_event(self) -> Any:
        before = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if isinstance(event, h11.Request) and before - len(self.trailing_data[0]) > self._most:
            raise h11.RemoteProtocolError("the head is too long")
        if isinstance(event, h11.Request) and {b"transfer-encoding", b"content-length"} <= {*dict(event.headers)}:
            raise h11.RemoteProtocolError("the body has two lengths")
        return event


class Connection(H11Protocol):
    """A connection with limits. It is closed at once when

    - there are too many,
    - it takes too long to send the head of a request, whether it sends bytes meanwhile or not,
    - it takes too little of an answer.

    The application finds it as `connection` in the state of a request.
    """

    limits: ClassVar[Limits]
    counts: ClassVar[Counts]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = _Requests(self.limits.head)
        self.app_state = {**self.app_state, "connection": self}
        self._idle: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.counts.connections = len(self.connections)
        self._wait_for_request()
        if len(self.connections) > self.limits.connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._idle, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self.counts.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._idle is not None and bool(self.cycle) and not self.cycle.response_complete:
            self._idle.cancel()
            self._idle = None

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()  # may begin with the next request, if that is there

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.stalled, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, and a request whose head is too long, or whose body has two lengths."""
        hint = f"The head of a request may have {self.limits.head} bytes, and not both Content-Length and chunks."
        answer = Json(error_as_json(InvalidInput("the request is not valid HTTP, or too long", hint=hint)))
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait_for_request(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(self.limits.idle, self.transport.abort)

    async def send_file(self, file: ReadableFile, offset: int, size: int) -> None:
        """Send bytes of a file as a part of the body, inside the kernel; raise OSError if the connection is slow."""
        while self.flow.write_paused and not self.cycle.disconnected:
            await self.flow.drain()
        while size:
            if self.transport.is_closing():
                raise ConnectionResetError
            async with asyncio.timeout(self.limits.stalled):
                some = min(size, _SLICE)
                try:
                    sent = await self.loop.sendfile(self.transport, cast("Any", file), offset, some, fallback=False)
                except asyncio.SendfileNotAvailableError as error:
                    file.read(offset, 1)  # raises if it is the file's fault
                    raise ConnectionResetError from error
            if not sent:
                raise EOFError(f"{file.path} ends at byte {offset}")
            self.conn.send_with_data_passthrough(h11.Data(data=cast("bytes", range(sent))))  # h11 only counts them
            offset, size = offset + sent, size - sent

    def reset(self) -> None:
        """Close it so that the client gets an error instead of an end."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def limited(limits: Limits, counts: Counts) -> type[Connection]:
    return type("LimitedConnection", (Connection,), {"limits": limits, "counts": counts})
