"""Payloads in JSON and protobuf, read as strictly as Beats did; shares no code with ondisk, and needs no package."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from typing import Any

Event = tuple[int, int, dict[str, Any], dict[str, Any]]
KEYS = ["timestamp", "flags", "meta", "fields"]


class BeatsError(Exception):
    """Beats logs an error and drops the rest of the segment, or crashes."""


def need(condition: object, reason: str) -> None:
    if not condition:
        raise BeatsError(reason)


def json_event(payload: bytes) -> Event:
    """Read an event as Beats before 7.14 does, but refuse what its parser reads wrong."""
    for text in re.findall(rb'"((?:[^"\\]|\\.)*)"', payload, re.DOTALL):
        need(b"\\" not in text or text.isascii(), "characters after an escape are garbled")
        need(min(text, default=32) >= 32, "a control character")
    content = json.loads(payload, object_pairs_hook=_unique, parse_int=_int64, parse_constant=_no_constant)
    need(list(content) == KEYS, "the keys are not the four, in order")
    need(payload.startswith(b'{"timestamp":'), "blanks")
    timestamp, flags, meta, fields = content.values()
    need(type(timestamp) is int and type(flags) is int and 0 <= flags < 256, "timestamp or flags")
    need(type(meta) is dict and type(fields) is dict, "meta or fields is no map")
    return timestamp, flags, meta, fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    need(len(content) == len(pairs), "a key stands twice")
    need("" not in content, "object keys must not be empty")
    return content


def _int64(text: str) -> int:
    value = int(text)
    need(-(2**63) <= value < 2**63, "an integer is read as a negative one")
    return value


def _no_constant(name: str) -> None:
    raise BeatsError(f"{name} is not JSON")


def protobuf_event(payload: bytes) -> Event:
    """Read an event of the later layout, from its bytes."""
    timestamp, meta, fields = 0, {}, {}
    for number, value in message(payload, {1: 2, 2: 2, 3: 2, 4: 2, 5: 2}):
        if number == 1:
            parts = dict(message(value, {1: 0, 2: 0}))
            timestamp = signed(parts.get(1, 0)) * 10**9 + parts.get(2, 0)
        elif number == 2:
            meta["source"] = texts(value, ["input_id", "stream_id"])
        elif number == 3:
            meta["data_stream"] = texts(value, ["type", "dataset", "namespace"])
        elif number == 4:
            meta |= structure(value)
        else:
            fields = structure(value)
    need(-(2**63) <= timestamp < 2**63, "timestamp is no int64")
    return timestamp, 0, meta, fields


def message(data: bytes, types: dict[int, int]) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message; each must be known, and have its wire type."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        need(types.get(number) == wire, f"field {number} with wire type {wire}")
        if wire == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at : at + size], at + size
            need(at <= len(data), "unexpected EOF")
        yield number, value


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        need(at < len(data) and shift < 70, "a bad varint")
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def signed(value: int) -> int:
    return value - (value >> 63 << 64)


def texts(data: bytes, names: list[str]) -> dict[str, str]:
    found = message(data, dict.fromkeys(range(1, len(names) + 1), 2))
    return {names[number - 1]: value.decode() for number, value in found}


def structure(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for _, entry in message(data, {1: 2}):
        parts = dict(message(entry, {1: 2, 2: 2}))
        key = parts.get(1, b"").decode()
        need(key not in content, "a key stands twice")
        content[key] = kind(parts.get(2, b""))
    return content


def kind(data: bytes) -> Any:
    """Return a Value of the later layout."""
    wires = {1: 0, 2: 1, 3: 5, 4: 0, 5: 0, 6: 0, 7: 0, 8: 2, 9: 0, 10: 2, 11: 2, 12: 2}
    found = [*message(data, wires)]
    need(len(found) == 1, "a value has not exactly one kind")
    number, value = found[0]
    match number:
        case 1:
            need(value == 0, "a null is not 0")
            return None
        case 2 | 3:
            return struct.unpack("<d" if number == 2 else "<f", value)[0]
        case 4 | 5:
            return signed(value)
        case 6 | 7:
            return value
        case 8:
            return value.decode()
        case 9:
            return bool(value)
        case 10:
            return structure(value)
        case 11:
            return [kind(each) for _, each in message(value, {1: 2})]
    raise BeatsError("ondisk writes no timestamps in values")
