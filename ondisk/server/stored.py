"""Stored bytes as an answer: a segment's or a datum's, or a range of these."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ondisk.dataset.dataset import Dataset
from ondisk.dataset.segment_bytes import SegmentBytes
from ondisk.datum import Location
from ondisk.server.metrics import Counts
from ondisk.server.ranges import is_known, part_of
from ondisk.server.work import Work

_PIECE = 1024 * 1024  # bytes

Bytes: TypeAlias = SegmentBytes | bytes


def of_segment(segment: str, dataset: Dataset) -> Bytes:
    """Return the bytes of a segment's file; see `Dataset.segment_bytes`."""
    return dataset.segment_bytes(segment)


def of_datum(location: Location, segment: str, dataset: Dataset) -> Bytes:
    """Return the bytes of one datum; see `Dataset.payload`."""
    return dataset.payload(location)


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
