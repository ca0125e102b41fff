"""What a request asks for: its body or the parameters of its URL, which may be hostile; and `/openapi.json`.

The schemas of the keys say what is verified, and what programs read. Source: OpenAPI Specification 3.1.0.
docs/server.md says the same to people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ondisk.dataset.query import SHOWN
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import MAX_BYTES
from ondisk.replication.records import HIGHEST
from ondisk.replication.source import MOST_SEQS
from ondisk.replication.token import Token
from ondisk.replication.validation import Shape, fits
from ondisk.replication.wire import RECORDS, from_json, seqs_from_json
from ondisk.tables.columns import column_types, names_in, untyped

JSON, JSON_LINES, PROMETHEUS = "application/json", "application/x-ndjson", "text/plain; version=0.0.4"
MEDIA_TYPES = {
    "jsonl": JSON_LINES,
    "csv": "text/csv; charset=utf-8; header=present",
    "data": "application/octet-stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The formats of an answer, and the media type of each."""

LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of changes in an answer, at most; but it has at least one datum, however large."""

NEEDED: Any = object()
"""The default of a key that a request must have."""

Keys: TypeAlias = Mapping[str, Any]  # what can be asked for, and the defaults
Asked: TypeAlias = dict[str, Any]
_DIGITS = 19

_Schema: TypeAlias = dict[str, Any]
_Schemas: TypeAlias = Mapping[str, _Schema]
_Answers: TypeAlias = Mapping[int, _Schema]

_NONE: Mapping[Any, _Schema] = {}
_TEXT: _Schema = {"type": "string"}
_OBJECT: _Schema = {"type": "object"}
_CODE: _Schema = {"type": "integer", "description": "The exit code that a command would end with."}
_NAMES: _Schema = {"type": "array", "items": {"type": "string"}}
_COUNT: _Schema = {"type": "integer", "minimum": 0, "maximum": INTEGER_MAX}
_SEQ: _Schema = {"type": "integer", "minimum": 1, "maximum": HIGHEST}

_KEYS: _Schemas = {
    "match": {"type": "string", "description": "A match expression; default: all data."},
    "sort": {"type": "string", "description": "A sort order, such as -reftime."},
    "limit": {**_COUNT, "description": "The highest number of data."},
    "fields": {**_NAMES, "description": "The metadata in jsonl, or the fields that are counted; default: all."},
    "columns": {**_NAMES, "description": "The columns of csv and parquet; of parquet also with types: data.wind=real."},
    "format": {"type": "string", "enum": [*MEDIA_TYPES]},
    "damaged": {"type": "string", "enum": ["raise", "skip"], "description": "skip: for jsonl only."},
    "values": {**_COUNT, "description": "The highest number of values of each field."},
    "by": {"type": "string", "description": "Count by hour, day, month, year or a field, or by several: day,n."},
    "min_max": {"type": "string", "description": "With by: also the lowest, mean and highest value of this field."},
    "tz": {"type": "string", "description": "With by: the zone of the periods, such as Europe/Rome."},
    **dict.fromkeys(("first", "last"), _SEQ),
    "listed": {"type": "boolean"},
    "seqs": {"type": "array", "items": _SEQ, "maxItems": MOST_SEQS},
    **dict.fromkeys(("max_bytes", "offset", "size"), _COUNT),
    "token": {"type": "object", "description": "What a replica knows; see docs/server.md."},
}
_TYPES: _Schema = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
_SHAPES: Mapping[str, tuple[Shape, str]] = {
    "string": (str, "a text"),
    "integer": (range(INTEGER_MAX + 1), "a whole number of 0 or more"),
    "array": ([str], "a list of names"),
    "boolean": (bool, "true or false"),
}
"""What the values of keys must be, by the type in their schema, and how that is said."""


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
    shape, what = _SHAPES[_KEYS[key]["type"]]
    if "enum" in _KEYS[key]:
        shape, what = frozenset(_KEYS[key]["enum"]), f"one of {', '.join(_KEYS[key]['enum'])}"
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
    "format": "jsonl",  # one of `MEDIA_TYPES`; "data" for the bytes as they are stored
    "damaged": "raise",  # or "skip": then the last line lists what was left out, if that is something
}
OF_REPLICAS: Mapping[str, Keys] = {
    "describe": {},
    "changes": {"token": None, "max_bytes": MAX_BYTES},
    "fetch": {"seqs": NEEDED, "max_bytes": MAX_BYTES},
    "contents": {"first": NEEDED, "last": NEEDED, "listed": False},
    "removed": {"seqs": NEEDED},
}
"""The methods of `Source` that a server answers, and their arguments."""

IN_RECORDS = ("changes", "fetch")  # answered with records; the others with JSON


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
    nulls = {key: None for key, value in found.items() if value is None and _may_be_null(key, keys)}
    asked = {**keys, **nulls, **{key: _value(key, value) for key, value in found.items() if key not in nulls}}
    if keys is SUMMARY:
        _check_summary(asked)
    elif keys is QUERY:
        _check_query(asked)
    return asked


def _may_be_null(key: str, keys: Keys) -> bool:
    return keys[key] is None or key == "values"


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


_UNCHANGED: _Schema = {"description": "It is as the header If-None-Match says."}


def description(names: Iterable[str]) -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": [*names]}}
    segment = {"name": "segment", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    summary = {JSON: _OBJECT, JSON_LINES: {"description": "With by: an object for each group."}}
    data = {kind: {"description": each} for each, kind in MEDIA_TYPES.items()}
    binary: dict[str, _Schema] = {MEDIA_TYPES["data"]: {}}
    counts, found = "Counts of what matches", "The data that match"
    bytes_of = {"offset": _COUNT, "size": _COUNT}
    a_range = {206: _answer("A range of them", binary), 304: _UNCHANGED}
    of_dataset: dict[str, _Schema] = {
        "config": {"get": _get("The configuration", {JSON: _OBJECT})},
        "summary": {
            "get": _get(counts, summary, _parameters(SUMMARY), {304: _UNCHANGED}),
            "post": _post(counts, summary, SUMMARY),
        },
        "query": {
            "get": _get(found, data, _parameters(QUERY), {304: _UNCHANGED}),
            "post": _post(found, data, QUERY),
        },
        "data/{segment}": {
            "parameters": [name, segment],
            "get": _get("The bytes of a segment, or of one datum", binary, bytes_of, a_range),
        },
        "describe": {"get": _get("What a replica asks first", {JSON: _OBJECT})},
    }
    for path, keys in OF_REPLICAS.items():
        if keys:
            content: _Schemas = {RECORDS: {}} if path in IN_RECORDS else {JSON: _OBJECT}
            of_dataset[path] = {"post": _post("For replicas, see docs/server.md", content, keys)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ondisk", "version": "1", "description": "Datasets on disk, for reading."},
        "paths": {
            "/health": {"get": {**_get("Whether all datasets can be read", {JSON: _OBJECT}), "security": []}},
            "/metrics": {"get": _get("Metrics for Prometheus", {PROMETHEUS: {"type": "string"}})},
            "/openapi.json": {"get": _get("This description", {JSON: _OBJECT})},
            **{f"/dataset/{{name}}/{path}": {"parameters": [name], **each} for path, each in of_dataset.items()},
        },
        "security": [{"token": []}],
        "components": {
            "schemas": {"Error": _object(error=_object(code=_CODE, kind=_TEXT, message=_TEXT, hint=_TEXT))},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _object(**properties: _Schema) -> _Schema:
    return {**_OBJECT, "required": [*properties], "properties": properties}


def _get(what: str, content: _Schemas, parameters: _Schemas = _NONE, others: _Answers = _NONE) -> _Schema:
    listed = [
        {"name": name, "in": "query", "schema": schema, "style": "form", "explode": False}
        for name, schema in parameters.items()
    ]
    return {"summary": what, "parameters": listed, "responses": _responses(what, content, others)}


def _parameters(keys: Keys) -> dict[str, _Schema]:
    has_default = {key for key, default in keys.items() if default not in (NEEDED, None)}
    return {key: _KEYS[key] | ({"default": keys[key]} if key in has_default else {}) for key in keys}


def _post(what: str, content: _Schemas, asked: Keys) -> _Schema:
    """Describe a request with a body, in which null is the same as no key, unless that has a default."""
    keys = _parameters(asked)
    for key in asked:
        if _may_be_null(key, asked):
            keys[key] |= {"type": [keys[key]["type"], "null"]}
    if "columns" in keys:
        keys["columns"] = {"anyOf": [_NAMES, _TYPES, {"type": "null"}], "description": "Names, or names and types."}
    required = [key for key, default in asked.items() if default is NEEDED]
    body = {"type": "object", "properties": keys, "required": required, "additionalProperties": False}
    sent = {"required": bool(required), "content": {JSON: {"schema": body}}}
    return {"summary": what, "requestBody": sent, "responses": _responses(what, content, _NONE)}


def _responses(what: str, content: _Schemas, others: _Answers) -> _Schema:
    failed = _answer("An error; docs/server.md has the statuses", {JSON: {"$ref": "#/components/schemas/Error"}})
    return {"200": _answer(what, content), **{str(status): each for status, each in others.items()}, "default": failed}


def _answer(what: str, content: _Schemas) -> _Schema:
    return {"description": what, "content": {kind: {"schema": schema} for kind, schema in content.items()}}
