"""What a request asks for: its body and its parameters, which may be hostile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ondisk.dataset.dataset import SHOWN
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import MAX_BYTES
from ondisk.replication.token import Token
from ondisk.replication.wire import seqs_from_json, token_from_json

STYLES = ("json", "data")
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of changes in an answer, at most; but it has at least one datum, however large."""

_WHOLE = "must be a whole number of 0 or more"


@dataclass(frozen=True, slots=True)
class SummaryAsked:
    """The body of a request for a summary; the attributes are those of `Dataset.summary`."""

    match: str | None = None
    fields: list[str] | None = None
    values: int | None = SHOWN

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it.

        Raises:
            InvalidInput: it is not an object with these keys and values of these types.
        """
        return cls(**_object(body, {"match": _text, "fields": _names, "values": _number}))


@dataclass(frozen=True, slots=True)
class QueryAsked:
    """The body of a request for data; the attributes are those of `Dataset.query`.

    Attributes:
        style: "json", or "data" for the bytes as they are stored.
        fields: the metadata in the answer; None for all.
    """

    match: str | None = None
    sort: str | None = None
    limit: int | None = None
    fields: list[str] | None = None
    style: str = "json"

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it.

        Raises:
            InvalidInput: it is not an object with these keys and values of these types.
        """
        keys = {"match": _text, "sort": _text, "limit": _number, "fields": _names, "style": _style}
        asked = cls(**_object(body, keys))
        if asked.style == "data" and asked.fields is not None:
            raise InvalidInput("fields cannot be combined with the style data, which returns the stored bytes")
        return asked


@dataclass(frozen=True, slots=True)
class DataAsked:
    """The bytes that a request asks for: those of a segment, or of one datum in it."""

    segment: str
    location: Location | None = None

    @classmethod
    def of(cls, segment: str, parameters: Mapping[str, str]) -> Self:
        """Read it.

        Raises:
            InvalidInput: there are other parameters than offset and size, or they are no numbers.
        """
        if not parameters:
            return cls(segment)
        if parameters.keys() != {"offset", "size"}:
            raise InvalidInput("the parameters of one datum are offset and size", hint="Copy them from its location.")
        place = []
        for name in ("offset", "size"):
            text = parameters[name]
            if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INTEGER_MAX):
                raise InvalidInput(f"{name} {_WHOLE}, not {shown(text)}")
            place.append(int(text))
        return cls(segment, Location(segment, *place))


@dataclass(frozen=True, slots=True)
class ChangesAsked:
    """The body of a request for changes; the attributes are those of `Dataset.changes`."""

    token: Token | None = None
    max_bytes: int = MAX_BYTES

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it.

        Raises:
            InvalidInput: it is not an object with these keys and values of these types.
        """
        found = _object(body, {"token": _any, "max_bytes": _count})
        token = found.get("token")
        return cls(None if token is None else token_from_json(token), _bounded(found))


@dataclass(frozen=True, slots=True)
class SeqsAsked:
    """The body of a request for the numbers of data; the attributes are those of `Source.seqs`."""

    first: int
    last: int
    listed: bool = False

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it.

        Raises:
            InvalidInput: it is not an object with these keys and values of these types.
        """
        found = _object(body, {"first": _count, "last": _count, "listed": _any})
        return cls(found.get("first", 0), found.get("last", 0), found.get("listed") is True)  # 0 is refused


@dataclass(frozen=True, slots=True)
class FetchAsked:
    """The body of a request for some data; the attributes are those of `Source.fetch`."""

    seqs: list[int]
    max_bytes: int = MAX_BYTES

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it.

        Raises:
            InvalidInput: it is not an object with these keys and values of these types.
        """
        found = _object(body, {"seqs": _any, "max_bytes": _count})
        return cls(seqs_from_json(found.get("seqs")), _bounded(found))


def _bounded(found: Mapping[str, Any]) -> int:
    """Return how many bytes of changes are requested, but not more than may be in memory."""
    asked: int = found.get("max_bytes", MAX_BYTES)
    return min(asked, LARGEST_ANSWER)


def _any(key: str, value: Any) -> None:
    """Accept a value that is verified later."""


def _object(body: bytes, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a body of JSON says; nothing if it is empty."""
    try:
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise InvalidInput(f"the body of the request is not JSON: {message:.200}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"the body of the request must be a JSON object, not {shown(found)}")
    for key, value in found.items():
        if key not in keys:
            raise InvalidInput(f"unknown key {shown(key)}", hint=f"The keys are {', '.join(keys)}.")
        keys[key](key, value)
    return found


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str | None):
        raise InvalidInput(f"{key} must be a text, not {shown(value)}")


def _count(key: str, value: Any) -> None:
    if value is None:
        raise InvalidInput(f"{key} {_WHOLE}, not null")
    _number(key, value)


def _number(key: str, value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 <= value <= INTEGER_MAX):
        raise InvalidInput(f"{key} {_WHOLE}, not {shown(value)}")


def _names(key: str, value: Any) -> None:
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise InvalidInput(f"{key} must be a list of names, not {shown(value)}")


def _style(key: str, value: Any) -> None:
    if value not in STYLES:
        raise InvalidInput(f"{key} must be one of {', '.join(STYLES)}, not {shown(value)}")
