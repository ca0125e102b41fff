"""How values that JSON lacks are written as JSON, in `jsonl` segments and in the output of commands.

    bytes                     {"$bytes": "<base64>"}
    text that is not Unicode  {"$text_bytes": "<base64>"}      (bytes that were decoded with surrogateescape)
    NaN, +inf, -inf           {"$float": "NaN" | "+Inf" | "-Inf"}
    reftime, timestamp        "2026-11-20T06:00:00Z", a fraction of six digits where it is not zero

A mapping that looks like one of the first three shapes would be ambiguous, and is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from math import isfinite, isnan
from typing import Any

from ondisk.datum import from_microseconds, is_unicode, microseconds
from ondisk.errors import InvalidInput, LimitExceeded, shown

SHAPES = frozenset({"$bytes", "$text_bytes", "$float"})
_PLAIN = frozenset({str, int, bool, type(None)})
_FLOATS = {"NaN": float("nan"), "+Inf": float("inf"), "-Inf": float("-inf")}
# What `to_json` returns contains no cycles.
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode


def dump(value: Any) -> bytes:
    """Return JSON-ready values as one line of UTF-8; raise InvalidInput if an integer has over 4300 digits."""
    try:
        return _encode(value).encode()
    except ValueError:
        raise InvalidInput("an integer has too many digits") from None


def dump_bytes(value: bytes) -> bytes:
    """Return what `dump` returns for the shape of bytes, faster."""
    return b'{"$bytes":"%b"}' % binascii.b2a_base64(value, newline=False)


def to_json(value: Any, max_depth: int) -> Any:
    """Return a value that JSON can hold, which `from_json` converts back; raise InvalidInput, or LimitExceeded."""
    kind = type(value)
    if kind is str:
        if value.isascii() or is_unicode(value):
            return value
    elif kind in _PLAIN or (kind is float and isfinite(value)):
        return value
    if max_depth <= 0:  # each shape below is a level of nesting
        raise LimitExceeded("nested deeper than max_depth allows")
    if kind is str:
        return _undecodable(value)
    if kind is float:
        return {"$float": "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return _mapping(value, max_depth)
    if kind is list or kind is tuple:
        return [to_json(item, max_depth - 1) for item in value]
    raise InvalidInput(f"a value of type {kind.__name__} cannot be written as JSON")


def from_json(value: Any) -> Any:
    """Return the value that `to_json` converted to what `json.loads` returned."""
    if isinstance(value, dict):
        if len(value) == 1 and (shape := next(iter(value))) in SHAPES:
            return _from_shape(shape, value)
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def format_time(count: int) -> str:
    """Return microseconds since 1970 as RFC 3339 text in UTC."""
    return from_microseconds(count).isoformat().replace("+00:00", "Z")


@cache
def _time() -> re.Pattern[str]:
    """Return the pattern of a time, compiled when used: most programs read none."""
    return re.compile(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ](?!24)[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
        r"(?:[Zz]|[+-][0-9]{2}:[0-5][0-9])"
    )


def parse_time(text: str) -> int:
    """Return the microseconds since 1970 of an RFC 3339 text with a zone, cut; or raise InvalidInput."""
    if _time().fullmatch(text) is None:
        hint = ": append Z or an offset" if _time().fullmatch(f"{text}Z") else ""
        raise InvalidInput(f"{shown(text)} is not a time such as 2026-11-20T06:00:00Z{hint}")
    try:
        return microseconds(datetime.fromisoformat(text.upper()).astimezone(UTC))
    except (ValueError, OverflowError):  # the offset can move it out of the years 1 to 9999
        raise InvalidInput(f"{shown(text)} is an impossible time") from None


def _undecodable(text: str) -> dict[str, str]:
    """Return the shape of a text that contains bytes which are not UTF-8, decoded with surrogateescape."""
    try:
        raw = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raw = b""
    # Escaped bytes that together are valid UTF-8 would be restored as the character.
    if raw.decode(errors="surrogateescape") != text:
        raise InvalidInput(f"text {shown(text)} contains a lone surrogate, which is not valid Unicode")
    return {"$text_bytes": base64.b64encode(raw).decode()}


def _mapping(value: Mapping[Any, Any], max_depth: int) -> dict[str, Any]:
    # A mapping that is not a valid shape, such as {"$bytes": 5}, is restored as it is.
    if len(value) == 1 and (shape := next(iter(value))) in SHAPES and _from_shape(shape, dict(value)) != value:
        problem = f"a mapping with the only key {shape!r} is ambiguous: JSON writes other values in this shape"
        raise InvalidInput(problem)
    converted = {}
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidInput(f"the key {shown(key)} is not a text")
        if not (key.isascii() or is_unicode(key)):
            raise InvalidInput(f"the key {shown(key)} is not valid Unicode")
        converted[key] = item if type(item) in _PLAIN and type(item) is not str else to_json(item, max_depth - 1)
    return converted


def _from_shape(shape: str, value: dict[str, Any]) -> Any:
    """Return the value of a shape, or the mapping if it is not a valid shape."""
    content = value[shape]
    if not isinstance(content, str):
        return {shape: from_json(content)}
    if shape == "$float":
        return _FLOATS.get(content, value)
    try:
        raw = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return value
    return raw if shape == "$bytes" else raw.decode(errors="surrogateescape")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for `object_pairs_hook`; raise InvalidInput if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidInput(f"the key {shown(key)} occurs twice")
    return content
