"""Who is answered, how much of a request is read, and how long an answer takes."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ondisk.errors import ConfigError, InvalidInput, LimitExceeded, LockError, OndiskError, shown
from ondisk.server.metrics import Counts
from ondisk.server.pages.login import Sessions
from ondisk.server.pages.routes import answer_of, is_for_people
from ondisk.server.responses import Refused

_LOG = logging.getLogger("ondisk.server")
_AS_TYPED = (b"x-content-type-options", b"nosniff")  # of all answers: stored bytes may look like a page
_CLOSE = {"connection": "close"}  # the rest of the request is not read
_TOKEN = "Send the header `Authorization: Bearer TOKEN`; `ondisk replicate` has --server-token FILE."

OPEN = frozenset({"/health", "/login"})  # paths that need no token; nor do the files of pages
_STATIC = "/static/"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts."""

    connections: int = 256  # at a time; others are closed at once
    head: int = 16 * 1024  # bytes of the first line and the headers of a request
    body: int = 1024 * 1024  # bytes of the body of a request
    requests: int = 16  # that are answered at a time; each may hold a snapshot and a thread
    patience: float = 10  # seconds for which a request waits for one of these to end
    receiving: float = 30  # seconds for the body of a request
    # seconds for the head of a request, from the beginning of the connection or the end of the last answer
    idle: float = 60
    stalled: float = 60  # seconds in which a connection must take a part of an answer: some 512 KiB
    duration: float = 3600  # seconds for an answer
    grace: float = 5  # seconds for the rest of the answers when the server ends


class _Gone(Exception):
    """The client has closed the connection."""


class Admission:
    """Lets requests in to an application, one by one, and ends those that nobody waits for any more.

    Args:
        token: what clients must send; None lets in all that call this server by the name of this machine itself, so
            that a page of another site cannot read it by a name that leads here.
    """

    def __init__(
        self, inside: ASGIApp, token: bytes | None, limits: Limits, counts: Counts, sessions: Sessions | None = None
    ) -> None:
        self._inside = inside
        self._token = token
        self._sessions = sessions
        self._limits = limits
        self._counts = counts
        self._free = asyncio.Semaphore(limits.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        answer = _Answer(scope, send, self._counts)
        try:
            self._check(scope)
            body = await self._body(scope, receive)
            async with self._turn():
                await self._answered(scope, body, receive, answer)
        except (_Gone, ConnectionError):
            pass
        except (Refused, OndiskError) as error:
            await answer.refuse(error)
        except Exception as error:
            _LOG.exception("%s cannot be answered", shown(scope["path"]))
            await answer.refuse(error)
        finally:
            answer.end()

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if self._token is None:
            host = headers.get("host", "")
            if not _is_here(host):
                hint = "Ask by 127.0.0.1 or localhost, or start it with --token-file FILE."
                raise Refused(421, InvalidInput(f"this server is not {shown(host)}", hint=hint), _CLOSE)
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token)
        if scope["path"] in OPEN or scope["path"].startswith(_STATIC) or (is_right and kind.lower() == "bearer"):
            return
        if self._sessions is None or not self._sessions.is_open(headers.get("cookie", "")):
            error = ConfigError("a token is needed, and the right one", hint=_TOKEN)
            if is_for_people(headers.get("accept", "")) and "hx-request" not in headers:
                asked = [scope["raw_path"], scope["query_string"]]
                after = b"?".join(each for each in asked if each).decode("latin-1")
                raise Refused(303, error, {"location": f"/login?next={quote(after, safe='')}", **_CLOSE})
            raise Refused(401, error, {"www-authenticate": "Bearer", **_CLOSE})

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        body, limit = bytearray(), self._limits.body
        too_long = Refused(413, LimitExceeded(f"the body of a request may have {limit} bytes"), _CLOSE)
        if int(Headers(scope=scope).get("content-length", "0")) > limit:
            raise too_long
        try:
            async with asyncio.timeout(self._limits.receiving):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_long
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            late = LockError(f"the body of the request took longer than {self._limits.receiving} s")
            raise Refused(408, late, _CLOSE) from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait until not too many requests are at work."""
        try:
            async with asyncio.timeout(self._limits.patience):
                await self._free.acquire()
        except TimeoutError:
            message = f"{self._limits.requests} requests are at work, and none has ended for {self._limits.patience} s"
            raise LockError(message, hint="Ask again later.") from None
        self._counts.running += 1
        try:
            yield
        finally:
            self._counts.running -= 1
            self._free.release()

    async def _answered(self, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, until the client is gone or the time is over."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        work = asyncio.ensure_future(self._inside(scope, again, answer.send))
        watch = asyncio.ensure_future(gone())
        try:
            await asyncio.wait((work, watch), timeout=self._limits.duration, return_when=asyncio.FIRST_COMPLETED)
            is_late = not work.done() and not watch.done()
        finally:
            for each in (watch, work):
                each.cancel()
            await asyncio.wait((work, watch))
        if not work.cancelled():
            work.result()
        elif is_late:
            raise LockError(f"the answer took longer than {self._limits.duration} s", hint="Ask for less at a time.")


class _Answer:
    """The answer to one request: what of it was sent."""

    def __init__(self, scope: Scope, send: Send, counts: Counts) -> None:
        self._scope = scope
        self._send = send
        self._counts = counts
        self._status = 0
        self._is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message = {**message, "headers": [*message["headers"], _AS_TYPED]}
        else:
            self._counts.sent += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, error: Exception) -> None:
        """Report an error. If a part of an answer was sent, it stays a part, and the server closes the connection."""
        if not self._status:
            await answer_of(error, Headers(scope=self._scope))(self._scope, _nothing, self.send)

    def end(self) -> None:
        """Count the request; a status of 499 means that the client did not wait for one.

        For HTTP/1.0, the end of a connection is that of the answer, so a cut answer must not end with it.
        """
        if self._scope["http_version"] == "1.0" and self._status and not self._is_complete:
            self._scope["state"]["connection"].reset()
        self._counts.requests[getattr(self._scope.get("endpoint"), "__name__", "none"), self._status or 499] += 1


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _is_here(host: str) -> bool:
    """Return whether the header Host names this machine itself."""
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
