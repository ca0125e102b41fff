"""What a request asks for: its body and its parameters, which may be hostile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

from ondisk.dataset.query import SHOWN
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import MAX_BYTES
from ondisk.replication.token import Token
from ondisk.replication.wire import from_json, seqs_from_json

STYLES = ("json", "data")
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of changes in an answer, at most; but it has at least one datum, however large."""

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


def _one_of(choices: Sequence[str], key: str, value: Any) -> str:
    if value not in choices:
        raise InvalidInput(f"{key} must be one of {', '.join(choices)}, not {shown(value)}")
    return str(value)


def _token(key: str, value: Any) -> Token | None:
    return None if value is None else from_json(Token, value)


def _seqs(key: str, value: Any) -> list[int]:
    return seqs_from_json(value)


class _Asked:
    """The body of a request: a JSON object, whose keys are the attributes of the class."""

    __slots__ = ()
    _KEYS: ClassVar[Mapping[str, Callable[[str, Any], Any]]]
    """For each key a function that returns its value, verified."""

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it; an empty body is an object without keys.

        Raises:
            InvalidInput: it is not such an object, or a value is not valid.
        """
        try:
            found = json.loads(body) if body else {}
        except (ValueError, RecursionError) as error:
            message = str(error) if isinstance(error, ValueError) else "nested too deep"
            raise InvalidInput(f"the body of the request is not JSON: {message:.200}") from None
        if not isinstance(found, dict):
            raise InvalidInput(f"the body of the request must be a JSON object, not {shown(found)}")
        for key in found:
            if key not in cls._KEYS:
                raise InvalidInput(f"unknown key {shown(key)}", hint=f"The keys are {', '.join(cls._KEYS)}.")
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if each.default is dataclasses.MISSING and each.name not in found:
                raise InvalidInput(f"the request needs the key {each.name}")
        return cls(**{key: cls._KEYS[key](key, value) for key, value in found.items()})


@dataclass(frozen=True, slots=True)
class SummaryAsked(_Asked):
    """The body of a request for a summary; the attributes are those of `Dataset.summary`."""

    match: str | None = None
    fields: list[str] | None = None
    values: int | None = SHOWN

    _KEYS: ClassVar = {"match": _text, "fields": _names, "values": _limit}


@dataclass(frozen=True, slots=True)
class QueryAsked(_Asked):
    """The body of a request for data; the attributes are those of `Dataset.query`.

    Attributes:
        style: "json", or "data" for the bytes as they are stored.
        fields: the metadata in the answer; None for all.
        damaged: "raise", or "skip": then the last line lists what was left out, if that is something.
    """

    match: str | None = None
    sort: str | None = None
    limit: int | None = None
    fields: list[str] | None = None
    style: str = "json"
    damaged: Literal["raise", "skip"] = "raise"

    _KEYS: ClassVar = {
        "match": _text,
        "sort": _text,
        "limit": _limit,
        "fields": _names,
        "style": partial(_one_of, STYLES),
        "damaged": partial(_one_of, ("raise", "skip")),
    }

    def __post_init__(self) -> None:
        if self.style == "data" and self.fields is not None:
            raise InvalidInput("fields cannot be combined with the style data, which returns the stored bytes")
        if self.style == "data" and self.damaged != "raise":
            raise InvalidInput("damaged cannot be combined with the style data, which has no place for a list")


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
class ChangesAsked(_Asked):
    """The body of a request for changes; the attributes are those of `Dataset.changes`."""

    token: Token | None = None
    max_bytes: int = MAX_BYTES

    _KEYS: ClassVar = {"token": _token, "max_bytes": _answer_size}


@dataclass(frozen=True, slots=True)
class SeqsAsked(_Asked):
    """The body of a request for the numbers of data; the attributes are those of `Source.seqs`."""

    first: int
    last: int
    listed: bool = False

    _KEYS: ClassVar = {"first": _count, "last": _count, "listed": _flag}


@dataclass(frozen=True, slots=True)
class FetchAsked(_Asked):
    """The body of a request for some data; the attributes are those of `Source.fetch`."""

    seqs: list[int]
    max_bytes: int = MAX_BYTES

    _KEYS: ClassVar = {"seqs": _seqs, "max_bytes": _answer_size}
