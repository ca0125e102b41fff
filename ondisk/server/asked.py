"""What a request asks for: its body or the parameters of its URL, which may be hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ondisk.dataset.query import SHOWN
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import MAX_BYTES
from ondisk.replication.shapes import Shape, fits
from ondisk.replication.token import Token
from ondisk.replication.wire import from_json, seqs_from_json
from ondisk.tables.columns import column_types, names_in, untyped

FORMATS = ("jsonl", "csv", "data", "parquet")
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of changes in an answer, at most; but it has at least one datum, however large."""

NEEDED: Any = object()
"""The default of a key that a request must have."""

Keys: TypeAlias = Mapping[str, Any]  # what can be asked for, and the defaults
Asked: TypeAlias = dict[str, Any]
_DIGITS = 19


_DAMAGED = ("raise", "skip")
_COUNT = range(INTEGER_MAX + 1)

_SHAPES: Mapping[str, tuple[Shape, str]] = {
    **dict.fromkeys(("match", "sort", "by", "min_max", "tz"), (str, "a text")),
    **dict.fromkeys(
        ("limit", "values", "first", "last", "max_bytes", "offset", "size"), (_COUNT, "a whole number of 0 or more")
    ),
    **dict.fromkeys(("fields", "columns"), ([str], "a list of names")),
    "format": (frozenset(FORMATS), f"one of {', '.join(FORMATS)}"),
    "damaged": (frozenset(_DAMAGED), f"one of {', '.join(_DAMAGED)}"),
    "listed": (bool, "true or false"),
}
"""What the values of keys must be, and how that is said."""


def _whole(text: str) -> int | str:
    """Return the number that a text is; another text as it is."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else text


_FROM_URL: Mapping[str, Callable[[str], Any]] = {
    "limit": _whole,
    "values": _whole,
    "fields": names_in,
    "columns": column_types,
}
"""How parameters of a URL become values of JSON; others are texts."""


def _value(key: str, value: Any) -> Any:
    """Return the value of a key, verified."""
    if key == "token":
        return from_json(Token, value)
    if key == "seqs":
        return seqs_from_json(value)
    if key == "format" and value == "json":
        return "jsonl"
    if key == "columns" and isinstance(value, dict) and all(isinstance(each, str | None) for each in value.values()):
        return value
    shape, what = _SHAPES[key]
    if not fits(value, shape):
        raise InvalidInput(f"{key} must be {what}, not {'null' if value is None else shown(value)}")
    if key == "columns":
        if len({*value}) < len(value):
            raise InvalidInput(f"{key} names a column twice")
        return dict.fromkeys(value)
    return min(value, LARGEST_ANSWER) if key == "max_bytes" else value


SUMMARY: Keys = {"match": None, "fields": None, "values": SHOWN, "by": None, "min_max": None, "tz": None}
QUERY: Keys = {
    "match": None,
    "sort": None,
    "limit": None,
    "fields": None,  # the metadata in JSON lines; None for all
    "columns": None,  # of CSV and Parquet, each with its type, if it has one; None for all
    "format": "jsonl",  # one of `FORMATS`; "data" for the bytes as they are stored
    "damaged": "raise",  # or "skip": then the last line lists what was left out, if that is something
}
OF_REPLICAS: Mapping[str, Keys] = {
    "describe": {},
    "changes": {"token": None, "max_bytes": MAX_BYTES},
    "seqs": {"first": NEEDED, "last": NEEDED, "listed": False},
    "fetch": {"seqs": NEEDED, "max_bytes": MAX_BYTES},
    "contents": {"first": NEEDED, "last": NEEDED, "listed": False},
    "removed": {"seqs": NEEDED},
}
"""The methods of `Source` that a server answers, and their arguments."""


def in_body(body: bytes, keys: Keys) -> Asked:
    """Return what the body of a request asks for, a JSON object; without a body, the defaults."""
    try:
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise InvalidInput(f"the body of the request is not JSON: {message:.200}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"the body of the request must be a JSON object, not {shown(found)}")
    return _verified(found, keys)


def in_url(parameters: Sequence[tuple[str, str]], keys: Keys) -> Asked:
    """Return what the parameters of a URL ask for; an empty one counts as none, as forms send it."""
    found: dict[str, Any] = {}
    for key, text in parameters:
        if key in found:
            raise InvalidInput(f"the URL has two parameters {shown(key)}")
        found[key] = _FROM_URL.get(key, str)(text) if text else None
    return _verified({key: value for key, value in found.items() if value is not None or key not in keys}, keys)


def _verified(given: Mapping[str, Any], keys: Keys) -> Asked:
    former = {"style": "format"} if "format" in keys else {}
    found = {former.get(key, key): value for key, value in given.items()}
    if len(found) < len(given):
        raise InvalidInput("style is format: write one of them")
    for key in found:
        if key not in keys:
            raise InvalidInput(f"unknown key {shown(key)}", hint=f"The keys are {', '.join(keys)}.")
    for key, default in keys.items():
        if default is NEEDED and key not in found:
            raise InvalidInput(f"the request needs the key {key}")
    nullable = {"values", *(key for key, default in keys.items() if default is None)}
    nulls = {key: None for key, value in found.items() if value is None and key in nullable}
    asked = {**keys, **nulls, **{key: _value(key, value) for key, value in found.items() if key not in nulls}}
    if keys is SUMMARY:
        _check_summary(asked)
    elif keys is QUERY:
        _check_query(asked)
    return asked


def _check_summary(asked: Asked) -> None:
    if asked["by"] is None and (asked["min_max"] is not None or asked["tz"] is not None):
        raise InvalidInput("min_max and tz are for groups", hint="Add by: day, month, year, hour or a field.")
    if asked["by"] is not None and (asked["fields"] is not None or asked["values"] != SHOWN):
        raise InvalidInput("by cannot be combined with fields or values, which are for all data together")


def _check_query(asked: Asked) -> None:
    format = asked["format"]
    is_table = format in ("csv", "parquet")
    if asked["columns"] is not None and not is_table:
        raise InvalidInput("columns is for csv and parquet only", hint="Send fields to choose metadata of jsonl.")
    if asked["fields"] is not None and format != "jsonl":
        hint = "Send columns: it also selects the reftime and the content." if is_table else ""
        raise InvalidInput(f"fields cannot be combined with the format {format}", hint=hint)
    if asked["damaged"] != "raise" and format != "jsonl":
        raise InvalidInput(f"damaged cannot be combined with the format {format}, which has no place for a list")
    if format == "csv":
        untyped(asked["columns"])


def location_in(segment: str, parameters: Mapping[str, str]) -> Location | None:
    """Return the datum that is asked for; None if it is the whole segment. The parameters are offset and size."""
    if not parameters:
        return None
    if parameters.keys() != {"offset", "size"}:
        raise InvalidInput("the parameters of one datum are offset and size", hint="Copy them from its location.")
    return Location(segment, *(_value(name, _whole(parameters[name])) for name in ("offset", "size")))
