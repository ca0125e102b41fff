"""Errors as answers, answers that are sent piece by piece from one snapshot, and their work in threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ondisk import errors, json_values
from ondisk.batched import batched
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.datum_as_json import as_json
from ondisk.errors import NotFound, OndiskError, shown
from ondisk.index.connection import LENT, Lent
from ondisk.replication.wire import digest
from ondisk.server.datasets import Served

_LOG = logging.getLogger("ondisk.server")
_PART = 512 * 1024  # bytes
_LONGEST_HEADER = 4096
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

STATUS: Mapping[type[OndiskError], int] = {
    OndiskError: 500,
    errors.InvalidInput: 400,
    errors.ConfigError: 500,  # of the dataset
    errors.LimitExceeded: 413,
    NotFound: 404,
    errors.AlreadyExists: 409,
    errors.StateError: 503,
    errors.ReadOnly: 403,
    errors.LockError: 503,
    errors.TokenExpired: 410,
    errors.TokenForeign: 409,
}
"""The HTTP status of an error, and of the errors below it that are not here themselves."""


class Refused(Exception):
    """A request is answered with an error that has a status of its own; `error`: what the body says."""

    def __init__(self, status: int, error: OndiskError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = {**(headers or {}), **({"retry-after": "1"} if status == 503 else {})}

    @classmethod
    def of(cls, error: Exception) -> Refused:
        """Return how a request is answered that failed with an error."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, OndiskError):
            return cls(next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), error)
        # A defect: its text may say too much.
        return cls(500, OndiskError("the server failed", hint="Its log says why."))


class Json(Response):
    """An answer of one JSON object, with its digest."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status, headers)
        self.headers["content-digest"] = digest(bytes(self.body))

    def render(self, content: Any) -> bytes:
        return json_values.dump(as_json(content)) + b"\n"


def error_as_json(error: OndiskError) -> dict[str, Any]:
    kind, code = type(error).__name__, error.exit_code
    return {"error": {"code": code, "kind": kind, "message": error.message, "hint": error.hint}}


class Work:
    """What one answer does in threads: one step after the other, always in the same context."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._lent = Lent()
        self._context = copy_context()
        self._context.run(LENT.set, self._lent)

    async def call(self, function: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Return what a function returns.

        A caller that is cancelled ends the queries of the function, and waits for it: no step may follow before.
        """
        step = asyncio.get_running_loop().run_in_executor(self._threads, self._context.run, function, *arguments)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            while not step.done():
                self._lent.interrupt()
                await asyncio.wait([step], timeout=0.1)  # it may begin a query after this
            if not step.cancelled():
                step.exception()  # nobody asks for it any more
            raise


class Requests:
    def __init__(self, served: Mapping[str, Served], threads: ThreadPoolExecutor) -> None:
        self.served = served
        self._threads = threads

    def work(self) -> Work:
        return Work(self._threads)

    def of(self, request: Request) -> Served:
        """Return the dataset that a request names; raise NotFound if there is none."""
        name = request.path_params["name"]
        try:
            return self.served[name]
        except KeyError:
            hint = "`ondisk serve` prints the names when it begins."
            raise NotFound(f"no dataset {shown(name)} is served here", hint=hint) from None

    async def read(self, request: Request, read: Callable[[Dataset], _T]) -> _T:
        """Return what a function reads from the dataset that a request names."""
        served = self.of(request)

        def opened() -> _T:
            with served.opened() as dataset:
                return read(dataset)

        return await self.work().call(opened)


@dataclass(frozen=True, slots=True)
class Body:
    pieces: Iterator[bytes]  # yields its bytes
    # how many they are. Give it only if all are in memory: then they are made before the first is sent
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # also sent
    status: int = 200  # of HTTP


Make: TypeAlias = Callable[[Dataset], Body]
Last: TypeAlias = Callable[[OndiskError], bytes] | None


class Stream(Response):
    """An answer that is read in threads. If it is read while it is sent, it holds a snapshot until its end.

    If it cannot be continued, the connection is closed before the end of the answer. To HEAD, it reads only what tells
    whether the request is valid. After an error, it sends at last what `last` returns for it, if that is something.

    Memory: of an answer in memory, twice its size.
    """

    def __init__(self, work: Work, served: Served, make: Make, media_type: str, last: Last = None) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]  # it is not known yet
        self._work = work
        self._served = served
        self._make = make
        self._last = last
        self._stack = contextlib.ExitStack()
        self._is_ready = False  # all parts are in memory, and the snapshot is closed
        self._parts: Iterator[memoryview] = iter(())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            parts = await self._work.call(self._begin, scope["method"] == "HEAD")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                while parts:
                    for part in parts:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    parts = [] if self._is_ready else await self._work.call(self._more)
            except OndiskError as error:
                _LOG.error("%s: an answer was cut: %s", scope["path"], error)
                if self._last is not None:
                    await send({"type": "http.response.body", "body": self._last(error), "more_body": True})
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not self._is_ready:
                await self._work.call(self._stack.close)

    def _begin(self, is_head: bool) -> list[memoryview]:
        content = self._make(self._stack.enter_context(self._served.opened()))
        self._stack.callback(getattr(content.pieces, "close", lambda: None))
        self._parts = in_parts(content.pieces)
        self.status_code = content.status
        self.headers.update(content.headers)
        if is_head:
            next(content.pieces, None)
            parts = []
        elif content.size is None:
            return self._more()
        else:
            parts = [*self._parts]  # in one step: a step in a thread costs as much as sending a megabyte
        if content.size is not None:
            self.headers["content-length"] = str(content.size)
        self._stack.close()
        self._is_ready = True
        return parts

    def _more(self) -> list[memoryview]:
        return [*islice(self._parts, 1)]


def doubts_of(dataset: Dataset, *, offline: bool = True) -> dict[str, str]:
    """Return the header that says why an answer may lack data, see `Dataset.doubts`; nothing if it is complete."""
    doubts = dataset.doubts(offline=offline)
    text = json.dumps(doubts)
    if len(text) > _LONGEST_HEADER:
        text = json.dumps([f"{len(doubts)} reasons why data may be missing"])
    return {"ondisk-warning": text} if doubts else {}


def in_parts(items: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield the same bytes in parts of a size that is sent well. Large items are not copied."""
    for some in batched(items, len, _PART):
        whole = memoryview(b"".join(some))
        yield from (whole[begin : begin + _PART] for begin in range(0, len(whole), _PART))
