"""HTML from templates, and the headers of a page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pkgutil import get_data
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from ondisk.errors import NotFound, counted, shown
from ondisk.server.pages.match import address

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "private, no-cache",
    "vary": "accept, cookie",
}
"""Headers of all pages. The policy allows no script and style but files of this server, and no frame around a page."""

STATIC = {
    "icon.svg": "image/svg+xml",
    "ondisk.css": "text/css",
    "ondisk.js": "text/javascript",
    "plot.js": "text/javascript",
    "vendor/htmx.min.js": "text/javascript",
    "vendor/uplot.min.js": "text/javascript",
    "vendor/uplot.min.css": "text/css",
}
"""The files that a browser may load, and their types."""

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")


class Page(Response):
    """An answer of HTML. `template`: its name; `values`: what the template shows. All of it is escaped."""

    media_type = "text/html"

    def __init__(self, template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any):
        super().__init__(_environment().get_template(template).render(values), status, {**HEADERS, **(headers or {})})


def static(name: str) -> Response:
    if name not in STATIC:
        raise NotFound(f"nothing is at {shown(name)}")
    content, _ = _file(name)
    # The address contains the digest of the content, so it never changes.
    return Response(content, media_type=STATIC[name], headers={"cache-control": "public, max-age=31536000, immutable"})


@cache
def _file(name: str) -> tuple[bytes, str]:
    content = get_data(__name__, f"static/{name}")
    assert content is not None
    return content, hashlib.sha256(content).hexdigest()[:16]


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("ondisk.server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "size": size_text,
        "time": time_text,
        "number": "{:,}".format,
        "counted": lambda count, noun: counted(count, noun).replace(str(count), f"{count:,}", 1),
        "ago": ago,
        "code": code,
    }
    found.globals |= {"address": address, "file": lambda name: f"/static/{name}?{_file(name)[1]}"}
    return found


def code(text: str) -> Markup:
    """Return a text of which what is between backticks is code."""
    pieces = map(escape, text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(each) if at % 2 else each for at, each in enumerate(pieces))


def size_text(size: int) -> str:
    value, unit = float(size), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{size} bytes" if not unit else f"{value:.3g} {_UNITS[unit]}" if value < 1000 else f"{value:.0f} PB"


def time_text(time: datetime | None) -> str:
    """Return a time in UTC, to the second unless it has a fraction of one."""
    if time is None:
        return "–"
    text = time.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return text.removesuffix(":00") if len(text) == 19 else text


def ago(time: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - time).total_seconds()
    if seconds < 60:
        return "just now"
    for unit, length in (("minute", 60), ("hour", 3600), ("day", 86400)):
        count, most = int(seconds // length), {"minute": 60, "hour": 48, "day": 10**9}[unit]
        if count < most:
            return f"{counted(count, unit)} ago"
    return ""
