"""Payloads in JSON: an event as an object, in segments of version 0, and of a version 1 that was never released.

    {"timestamp":nanoseconds since 1970,"flags":bits,"meta":{…},"fields":{…}}

ASCII without blanks; the keys are in this order. Beats before 7.14 garbles raw characters after an escape, and reads
integers of 2^63 and more as negative ones. So ondisk writes every character outside of ASCII as an escape, and refuses
such integers. JSON has no bytes, NaN or infinities: they are refused, too.

When reading, a number with a point or an exponent is a float, any other an integer. If a key occurs twice, the last one
counts. Text that is not valid UTF-8 is kept by `surrogateescape`. Missing keys are treated as in CBOR.

Source: elastic/beats 7.9 to 7.13, libbeat/publisher/queue/diskqueue/serialize.go; elastic/go-structform, json.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, NoReturn

from ondisk.errors import InvalidInput, LimitExceeded
from ondisk.formats.diskqueue import cbor
from ondisk.formats.diskqueue.cbor_payload import each_value, hold_plain_values
from ondisk.formats.diskqueue.event import MAX_ITEMS, Buffer, Event, Events, check_timestamps, event_in, no_event
from ondisk.formats.metadata import times_to_text

FIRST_KEY = b'"timestamp"'
"""The key that Beats and ondisk write first in every event, after one byte for the object."""

_ITEM = re.compile(rb"[,:\[{]")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SUSPECT = re.compile(r"[0-9]{19}|\\ud")  # an integer that may be too large; a surrogate
_INTEGER_MAX = 2**63 - 1
_dumps = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode

# Many maps are written as one array, with this random number between them, so that no data can contain it.
_MARK_VALUE = int.from_bytes(os.urandom(8)) | 1 << 63
_MARK = f",{_MARK_VALUE},"


def encode(events: Events, max_depth: int) -> list[bytes]:
    """Return events as payloads; raise InvalidInput of what JSON, or Beats before 7.14, does not have."""
    check_timestamps(events.timestamps)
    metas, fields = _plain(events, max_depth) or _with_care(events, max_depth)
    rows = zip(events.timestamps, events.flags, metas, fields, strict=True)
    return [
        f'{{"timestamp":{time},"flags":{flags},"meta":{meta},"fields":{data}}}'.encode()
        for time, flags, meta, data in rows
    ]


def _plain(events: Events, max_depth: int) -> tuple[list[str], list[str]] | None:
    """Return metadata and data of events as JSON; None if they may contain what JSON, or Beats, does not have."""
    if not hold_plain_values([*events.metas, *events.fields], max_depth):  # type: ignore[list-item]  # also other mappings
        return None
    values: list[Any] = [_MARK_VALUE] * (4 * len(events.metas) + 1)
    values[1::4] = events.metas
    values[3::4] = events.fields
    try:
        written = _dumps(values)
    except (TypeError, ValueError):  # bytes, NaN, infinities
        return None
    if _SUSPECT.search(written.replace(str(_MARK_VALUE), "")):
        return None
    parts = f",{written[1:-1]},".split(_MARK)[1:-1]
    return parts[::2], parts[1::2]


def _with_care(events: Events, max_depth: int) -> tuple[list[str], list[str]]:
    """Do the same one by one; raise if JSON, or Beats, does not have a value."""
    metas = [_object(times_to_text(meta), max_depth) for meta in events.metas]
    return metas, [_object(fields, max_depth) for fields in events.fields]


def _object(content: Mapping[str, Any], max_depth: int) -> str:
    if type(content) is not dict or not hold_plain_values([content], max_depth):
        # Turn tuples and mappings of other types into what JSON has; refuse what no payload has.
        content = cbor.decode(
            cbor.encode(content, max_depth=max_depth, max_items=MAX_ITEMS), max_depth=max_depth, max_items=MAX_ITEMS
        )
    plain = dict(content)
    _check(plain)
    return _dumps(plain)


def _check(content: dict[str, Any]) -> None:
    """Raise InvalidInput if a mapping of plain values contains what JSON, or Beats before 7.14, does not have."""
    texts: list[str] = []
    for value in each_value([content]):
        kind = type(value)
        if kind is str:
            texts.append(value)
        elif kind is dict:
            texts += value
        elif kind is bytes:
            raise InvalidInput("segments of version 0 cannot hold bytes: they are JSON")
        elif kind is float and not isfinite(value):
            raise InvalidInput(f"segments of version 0 cannot hold {value}: they are JSON")
        elif kind is int and not -(2**63) <= value <= _INTEGER_MAX:
            raise InvalidInput(f"{value} does not fit into 63 bits, the limit of segments of version 0")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise InvalidInput("segments of version 0 cannot hold text that is not Unicode: they are JSON") from None


def decode_one(payload: Buffer, max_depth: int) -> Event:
    if len(payload) > MAX_ITEMS:
        _check_count(bytes(payload))
    event = event_in(_loads(payload))
    _check_depth(event, max_depth)
    return event


def _loads(payload: Buffer) -> Any:
    text = str(payload, "utf-8", "surrogateescape")
    try:
        content, end = _decoder.raw_decode(text)
    except RecursionError:
        raise cbor.too_deep() from None
    except ValueError as error:  # also an integer of thousands of digits
        raise no_event(f"it is not JSON: {error}") from None
    if end < len(text):
        raise no_event(f"{len(text) - end} characters follow the object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def _check_count(payload: bytes) -> None:
    if len(_ITEM.findall(payload)) > MAX_ITEMS and len(_ITEM.findall(_TEXT.sub(b"", payload))) > MAX_ITEMS:
        raise LimitExceeded(f"more than {MAX_ITEMS} values and keys", limit=MAX_ITEMS)


def _check_depth(event: Event, max_depth: int) -> None:
    level: list[Any] = [event.meta, event.fields]
    for _ in range(max_depth):
        level = [
            each
            for value in level
            for each in (value.values() if type(value) is dict else value)
            if type(each) is dict or type(each) is list
        ]
        if not level:
            return
    raise cbor.too_deep()
