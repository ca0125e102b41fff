"""Stored bytes as an answer: a segment's or a datum's, or a range of these."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ondisk.dataset.dataset import Dataset
from ondisk.dataset.expression import expression
from ondisk.dataset.segment_bytes import SegmentBytes
from ondisk.errors import InvalidInput
from ondisk.server.metrics import Counts
from ondisk.server.responses import Refused, Work

_PIECE = 1024 * 1024  # bytes
_RANGE = re.compile(r"bytes=[ \t]*(?:(\d{1,30})-(\d{0,30})|-(\d{1,30}))[ \t]*", re.IGNORECASE | re.ASCII)
_TAG = re.compile(r'(W/)?("[^"]*")')

Bytes: TypeAlias = SegmentBytes | bytes


class Stored(Response):
    """An answer with stored bytes, or with a range of them that the request names.

    A segment's bytes are sent by the kernel from its open file, if nothing is encrypted on the way. The answer holds
    no snapshot: the bytes are in that file, whatever becomes of the segment.
    """

    media_type = "application/octet-stream"

    def __init__(self, work: Work, content: Bytes, request: Request, counts: Counts) -> None:
        size = content.size if isinstance(content, SegmentBytes) else len(content)
        version = content.version if isinstance(content, SegmentBytes) else hashlib.sha256(content).hexdigest()
        tag = f'"{version}"'
        self._known = is_known(request.headers, tag)
        # A request of another method than GET has no range.
        part = None if self._known or request.method != "GET" else part_of(request.headers, size, tag)
        self._begin, self._size = part or (0, size)
        super().__init__(status_code=304 if self._known else 200 if part is None else 206)
        self.headers.update({"etag": tag, "accept-ranges": "bytes", "content-length": str(self._size)})
        self.headers["content-disposition"] = "attachment"
        if part is not None:
            self.headers["content-range"] = f"bytes {self._begin}-{self._begin + self._size - 1}/{size}"
        if self._known:
            del self.headers["content-length"]
        self._work = work
        self._content = content
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not self._known and scope["method"] != "HEAD":
            await self._send(scope, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, scope: Scope, send: Send) -> None:
        content, begin, end = self._content, self._begin, self._begin + self._size
        connection = scope.get("state", {}).get("connection") if scope["scheme"] == "http" else None
        while begin < end:
            if isinstance(content, bytes):
                piece = content[begin : min(end, begin + _PIECE)]
            elif connection is not None and begin >= len(content.head):
                await connection.send_file(content.file, begin, end - begin)
                self._counts.sent += end - begin
                return
            else:
                stop = len(content.head) if connection is not None else begin + _PIECE
                piece = await self._work.call(content.read, begin, min(end, stop) - begin)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            begin += len(piece)


def part_of(headers: Mapping[str, str], size: int, tag: str) -> tuple[int, int] | None:
    """Return offset and size of the part that a request names; None for everything. RFC 9110, sections 13 and 14.

    A server may ignore what it does not know: other units than bytes, and several ranges. Raises Refused if the part
    has no bytes, or the request is about other bytes than those of `tag`.
    """
    if "if-match" in headers and not _names(headers["if-match"], tag, weak=False):
        raise Refused(412, InvalidInput("the bytes are not those of If-Match"), {"etag": tag})
    found = _RANGE.fullmatch(headers.get("range", ""))
    if found is None or headers.get("if-range", tag) != tag:
        return None
    first, last, suffix = found.groups()
    if first is None:
        if int(suffix) and not size:
            return None
        begin, end = max(0, size - int(suffix)), size
    else:
        begin, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < begin:
            return None  # not valid, so it is ignored
    if begin >= size:
        problem = InvalidInput(f"the range begins at byte {begin}, and there are {size}")
        raise Refused(416, problem, {"content-range": f"bytes */{size}", "etag": tag})
    return begin, end - begin


def tag_of(dataset: Dataset, match: str | None) -> str:
    """Return what names everything that a query answers, as long as the dataset and the query are the same.

    A match with a time such as `today` is another one as soon as that is another time.

    Cost: some look-ups.
    """
    what = (dataset.last_change(), dataset.config.to_toml(), expression(match or "", dataset.config, dataset.path))
    return f'"{hashlib.sha256(repr(what).encode(errors="surrogatepass")).hexdigest()[:32]}"'


def attachment(name: str) -> str:
    """Return the header Content-Disposition of a file that browsers store instead of showing it. RFC 6266."""
    quoted = quote(name, safe="")
    return f'attachment; filename="{name}"' if quoted == name else f"attachment; filename*=utf-8''{quoted}"


def is_known(headers: Mapping[str, str], tag: str) -> bool:
    return "if-none-match" in headers and _names(headers["if-none-match"], tag, weak=True)


def _names(header: str, tag: str, *, weak: bool) -> bool:
    """Return whether a header names these bytes; weakly, too, if that suffices."""
    return header.strip() == "*" or any(each == tag and (weak or not mark) for mark, each in _TAG.findall(header))
