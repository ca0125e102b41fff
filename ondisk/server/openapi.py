"""What the server answers, for programs: `/openapi.json`. Source: OpenAPI Specification 3.1.0.

docs/server.md says the same to people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ondisk.datum import INTEGER_MAX
from ondisk.replication.records import HIGHEST
from ondisk.replication.source import MOST_SEQS
from ondisk.replication.wire import RECORDS
from ondisk.server.asked import FORMATS, NEEDED, OF_REPLICAS, QUERY, SUMMARY, Keys

JSON, JSON_LINES, PROMETHEUS = "application/json", "application/x-ndjson", "text/plain; version=0.0.4"
MEDIA_TYPES = {
    "jsonl": JSON_LINES,
    "csv": "text/csv; charset=utf-8; header=present",
    "data": "application/octet-stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The media type of each of `FORMATS`."""

_Schema: TypeAlias = dict[str, Any]
_Schemas: TypeAlias = Mapping[str, _Schema]
_Answers: TypeAlias = Mapping[int, _Schema]

_ERRORS = {
    400: "The request is not valid.",
    401: "The token is missing or wrong.",
    404: "There is no such dataset, segment or datum.",
    408: "The body of the request takes too long.",
    413: "The body of the request is too long.",
    421: "The server runs without a token, and does not have this name.",
    500: "Stored bytes are damaged or cannot be read.",
    503: "The dataset cannot answer now.",
}
_REF = {"$ref": "#/components/schemas/Error"}
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
    "format": {"enum": [*FORMATS]},
    "damaged": {"enum": ["raise", "skip"], "description": "skip: for jsonl only."},
    "values": {**_COUNT, "type": ["integer", "null"], "description": "The highest number of values of each field."},
    "by": {"type": "string", "description": "Count by hour, day, month, year or a field, or by several: day,n."},
    "min_max": {"type": "string", "description": "With by: also the lowest, mean and highest value of this field."},
    "tz": {"type": "string", "description": "With by: the zone of the periods, such as Europe/Rome."},
    "first": _SEQ,
    "last": _SEQ,
    "listed": {"type": "boolean"},
    "seqs": {"type": "array", "items": _SEQ, "maxItems": MOST_SEQS},
    "max_bytes": _COUNT,
    "token": {"type": "object", "description": "What a replica knows; see docs/server.md."},
}
_TYPES: _Schema = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
_IN_BODY: _Schemas = {
    **_KEYS,
    "columns": {
        "anyOf": [_NAMES, _TYPES, {"type": "null"}],
        "description": "The columns of csv and parquet: names, or names and types.",
    },
}
_UNCHANGED: _Schema = {"description": "It is as the header If-None-Match says."}


def description(names: Iterable[str]) -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"enum": [*names]}}
    segment = {"name": "segment", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    summary = {JSON: _OBJECT, JSON_LINES: {"description": "With by: an object for each group."}}
    data = {kind: {"description": each} for each, kind in MEDIA_TYPES.items()}
    binary: dict[str, _Schema] = {MEDIA_TYPES["data"]: {}}
    of_dataset: dict[str, _Schema] = {
        "config": {"get": _get("The configuration", {JSON: _OBJECT})},
        "summary": {
            "get": _get("Counts of what matches", summary, _parameters(SUMMARY), {304: _UNCHANGED}),
            "post": _post("Counts of what matches", summary, SUMMARY),
        },
        "query": {
            "get": _get("The data that match", data, _parameters(QUERY), {304: _UNCHANGED, 501: _NO_PARQUET}),
            "post": _post("The data that match", data, QUERY, {501: _NO_PARQUET}),
        },
        "data/{segment}": {
            "parameters": [name, segment],
            "get": _get(
                "The bytes of a segment, or of one datum",
                binary,
                {"offset": _COUNT, "size": _COUNT},
                {206: _answer("A range of them", binary), 304: _UNCHANGED, 412: _failed("They have changed."),
                 416: _failed("There is no such range.")},
            ),
        },
        "describe": {"get": _get("What a replica asks first", {JSON: _OBJECT})},
        "changes": {"post": _post("Changes", {RECORDS: {}}, OF_REPLICAS["changes"], _TOKEN_ERRORS)},
        "seqs": {"post": _post("Numbers of data", {JSON: _OBJECT}, OF_REPLICAS["seqs"])},
        "fetch": {"post": _post("Data", {RECORDS: {}}, OF_REPLICAS["fetch"])},
        "contents": {"post": _post("Digests of data", {JSON: _OBJECT}, OF_REPLICAS["contents"])},
        "removed": {"post": _post("Deletions", {JSON: _OBJECT}, OF_REPLICAS["removed"])},
    }  # fmt: skip
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


def _parameters(keys: Keys, schemas: _Schemas = _KEYS) -> dict[str, _Schema]:
    has_default = {key for key, default in keys.items() if default not in (NEEDED, None)}
    return {key: schemas[key] | ({"default": keys[key]} if key in has_default else {}) for key in keys}


def _post(what: str, content: _Schemas, asked: Keys, others: _Answers = _NONE) -> _Schema:
    """Describe a request with a body, in which null is the same as no key, unless that has a default."""
    keys = _parameters(asked, _IN_BODY)
    for key, default in asked.items():
        if default is None and "type" in keys[key]:
            keys[key] |= {"type": [keys[key]["type"], "null"]}
    required = [key for key, default in asked.items() if default is NEEDED]
    body = {"type": "object", "properties": keys, "required": required, "additionalProperties": False}
    sent = {"required": bool(required), "content": {JSON: {"schema": body}}}
    return {"summary": what, "requestBody": sent, "responses": _responses(what, content, others)}


def _responses(what: str, content: _Schemas, others: _Answers) -> _Schema:
    known = {200: _answer(what, content), **{status: _failed(why) for status, why in _ERRORS.items()}, **others}
    return {str(status): each for status, each in sorted(known.items())}


def _answer(what: str, content: _Schemas) -> _Schema:
    return {"description": what, "content": {kind: {"schema": schema} for kind, schema in content.items()}}


def _failed(why: str) -> _Schema:
    return _answer(why, {JSON: _REF})


_NO_PARQUET = _failed("The server has no pyarrow.")
_TOKEN_ERRORS = {409: _failed("The token is of another dataset."), 410: _failed("The token has expired.")}
