"""Parts of what is stored: the headers of conditional and of range requests, RFC 9110, sections 13 and 14."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ondisk.errors import InvalidInput
from ondisk.server.answers import Refused

_RANGE = re.compile(r"bytes=[ \t]*(?:(\d{1,30})-(\d{0,30})|-(\d{1,30}))[ \t]*", re.IGNORECASE | re.ASCII)
_TAG = re.compile(r'(W/)?("[^"]*")')


def part_of(headers: Mapping[str, str], size: int, tag: str) -> tuple[int, int] | None:
    """Return offset and size of the part that a request names; None for everything.

    A server may ignore what it does not know: other units than bytes, and several ranges.

    Args:
        headers: their names in lower case.
        size: bytes of everything.
        tag: what names these bytes, as in the header ETag.

    Raises:
        Refused: the part has no bytes; or the request is about other bytes.
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


def is_known(headers: Mapping[str, str], tag: str) -> bool:
    """Return whether the client has the bytes already."""
    return "if-none-match" in headers and _names(headers["if-none-match"], tag, weak=True)


def _names(header: str, tag: str, *, weak: bool) -> bool:
    """Return whether a header names these bytes; weakly, too, if that suffices."""
    return header.strip() == "*" or any(each == tag and (weak or not mark) for mark, each in _TAG.findall(header))
