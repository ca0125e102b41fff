"""The content of a datum as a page shows it: a tree of keys and values, a line of text, or a picture."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from ondisk.dataset.datum_as_json import time_text
from ondisk.errors import counted

_LONGEST, _MOST, _DEEPEST, _BYTES = 1000, 200, 12, 32  # characters of a text, nodes of a tree, levels, bytes as numbers

_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
"""The first bytes of a picture that is shown, and its type. A page shows no other type: SVG may contain scripts."""

Kind: TypeAlias = Literal["value", "mapping", "list", "picture", "bytes"]


class Node(NamedTuple):
    kind: Kind  # what it is; a picture has no text
    text: str = ""  # a value in one line; of a list or mapping, how many items it has
    items: tuple[tuple[str, Node], ...] = ()  # of a mapping and a list, each with its name


def picture_type(content: bytes) -> str | None:
    """Return the media type of a picture that a page may show, by its first bytes; None for all else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _PICTURES.items() if content.startswith(begin)), None)


def shown(value: Any) -> Node:
    """Return a value for a page. It has a limited number of nodes, whatever the size of the value."""
    return _node(value, 0, [_MOST])


def is_scalar(value: Any) -> bool:
    """Return whether a value fits in the cell of a table."""
    return not isinstance(value, Mapping | list | tuple | bytes)


def _node(value: Any, depth: int, room: list[int]) -> Node:
    """Return the node of a value. `room`: how many more nodes the tree may have."""
    room[0] -= 1
    if isinstance(value, bytes):
        return _bytes(value)
    if not isinstance(value, Mapping | list | tuple):
        return Node("value", cut(text_of(value)))
    items: list[tuple[Any, Any]] = [*(value.items() if isinstance(value, Mapping) else enumerate(value))]
    nodes: list[tuple[str, Node]] = []
    for name, each in items if depth < _DEEPEST else ():
        if room[0] <= 0:
            break
        nodes.append((cut(str(name)), _node(each, depth + 1, room)))
    if left := len(items) - len(nodes):
        nodes.append(("…", Node("value", f"{left} more")))
    kind: Kind = "mapping" if isinstance(value, Mapping) else "list"
    return Node(kind, counted(len(items), "key" if kind == "mapping" else "item"), (*nodes,))


def text_of(value: Any) -> str:
    """Return a value that is no collection as text; bytes as hexadecimal digits."""
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() < 4096 else f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value).encode("utf-8", "backslashreplace").decode()


def cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST:,} more characters)"


def _bytes(content: bytes) -> Node:
    if picture_type(content):
        return Node("picture")
    head = content[: 4 * _LONGEST]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        text = head[: error.start].decode() if error.end == len(head) < len(content) else ""
    if content and (not text or any(not each.isprintable() and not each.isspace() for each in text)):
        more = " …" * (len(content) > _BYTES)
        return Node("bytes", f"{len(content):,} bytes: {content[:_BYTES].hex(' ')}{more}")
    return Node("value", cut(text.rstrip("\r\n")))
