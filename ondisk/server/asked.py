"""What a request asks for: its body or the parameters of its URL, which may be hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from ondisk.dataset.query import SHOWN
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import MAX_BYTES
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
_WHOLE = "must be a whole number of 0 or more"


def _text(key: str, value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidInput(f"{key} must be a text, not {shown(value)}")
    return value


def _flag(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidInput(f"{key} must be true or false, not {shown(value)}")
    return value


def _count(key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise InvalidInput(f"{key} {_WHOLE}, not {'null' if value is None else shown(value)}")
    return value


def _limit(key: str, value: Any) -> int | None:
    return None if value is None else _count(key, value)


def _answer_size(key: str, value: Any) -> int:
    """Return how many bytes of changes are requested, but not more than may be in memory."""
    return min(_count(key, value), LARGEST_ANSWER)


def _names(key: str, value: Any) -> list[str] | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise InvalidInput(f"{key} must be a list of names, not {shown(value)}")
    return value


def _columns(key: str, value: Any) -> dict[str, str | None] | None:
    """Return columns, each with its type or None, of a list of names or an object of names and types."""
    if isinstance(value, dict) and all(isinstance(each, str | None) for each in value.values()):
        return value
    names = _names(key, value)
    if names is not None and len({*names}) < len(names):
        raise InvalidInput(f"{key} names a column twice")
    return None if names is None else dict.fromkeys(names)


def _format(key: str, value: Any) -> str:
    return _one_of(FORMATS, key, "jsonl" if value == "json" else value)


def _one_of(choices: Sequence[str], key: str, value: Any) -> str:
    if value not in choices:
        raise InvalidInput(f"{key} must be one of {', '.join(choices)}, not {shown(value)}")
    return str(value)


def _token(key: str, value: Any) -> Token | None:
    return None if value is None else from_json(Token, value)


def _whole(text: str) -> int | str:
    """Return the number that a text is; another text as it is."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else text


_FROM_URL: Mapping[Any, Callable[[str], Any]] = {_limit: _whole, _names: names_in, _columns: column_types}
"""How parameters of a URL become values of JSON, by the functions that verify these; others are texts."""


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("match", "sort", "by", "min_max", "tz"), _text),
    **dict.fromkeys(("limit", "values"), _limit),
    **dict.fromkeys(("first", "last"), _count),
    "fields": _names,
    "columns": _columns,
    "format": _format,
    "damaged": partial(_one_of, ("raise", "skip")),
    "token": _token,
    "max_bytes": _answer_size,
    "listed": _flag,
    "seqs": lambda _, value: seqs_from_json(value),
}
"""For each key a function that returns its value, verified."""


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
        found[key] = _FROM_URL.get(_READERS.get(key), str)(text) if text else None
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
    asked = {**keys, **{key: _READERS[key](key, value) for key, value in found.items()}}
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
    return Location(segment, *(_count(name, _whole(parameters[name])) for name in ("offset", "size")))
