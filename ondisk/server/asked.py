"""What a request asks for: its body or the parameters of its URL, which may be hostile."""

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
from ondisk.tables.columns import column_types, names_in, untyped

FORMATS = ("jsonl", "csv", "data", "parquet")
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of changes in an answer, at most; but it has at least one datum, however large."""

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


class _Asked:
    """What a request asks for: the keys of its body, a JSON object; they are the attributes of the class."""

    __slots__ = ()
    _FORMER: ClassVar[Mapping[str, str]] = {}  # keys that had other names, which are still valid

    @classmethod
    def _keys(cls) -> list[str]:
        return [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]  # each subclass is one

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read it; an empty body is an object without keys. Raise InvalidInput if it is no such object."""
        try:
            found = json.loads(body) if body else {}
        except (ValueError, RecursionError) as error:
            message = str(error) if isinstance(error, ValueError) else "nested too deep"
            raise InvalidInput(f"the body of the request is not JSON: {message:.200}") from None
        if not isinstance(found, dict):
            raise InvalidInput(f"the body of the request must be a JSON object, not {shown(found)}")
        return cls._of(found)

    @classmethod
    def of_url(cls, parameters: Sequence[tuple[str, str]]) -> Self:
        """Read it from the parameters of a URL; an empty one counts as none, as forms send it. See `of`."""
        found: dict[str, Any] = {}
        for key, text in parameters:
            if key in found:
                raise InvalidInput(f"the URL has two parameters {shown(key)}")
            found[key] = _FROM_URL.get(_READERS.get(key), str)(text) if text else None
        return cls._of({key: value for key, value in found.items() if value is not None or key not in cls._keys()})

    @classmethod
    def _of(cls, given: Mapping[str, Any]) -> Self:
        found = {cls._FORMER.get(key, key): value for key, value in given.items()}
        if len(found) < len(given):
            raise InvalidInput(
                f"{' and '.join(cls._FORMER)} is {' and '.join(cls._FORMER.values())}: write one of them"
            )
        for key in found:
            if key not in cls._keys():
                raise InvalidInput(f"unknown key {shown(key)}", hint=f"The keys are {', '.join(cls._keys())}.")
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if each.default is dataclasses.MISSING and each.name not in found:
                raise InvalidInput(f"the request needs the key {each.name}")
        return cls(**{key: _READERS[key](key, value) for key, value in found.items()})


@dataclass(frozen=True, slots=True)
class SummaryAsked(_Asked):
    """A request for a summary; the attributes are those of `Dataset.summary`, and with `by` of `summary_by`."""

    match: str | None = None
    fields: list[str] | None = None
    values: int | None = SHOWN
    by: str | None = None
    min_max: str | None = None
    tz: str | None = None

    def __post_init__(self) -> None:
        if self.by is None and (self.min_max is not None or self.tz is not None):
            raise InvalidInput("min_max and tz are for groups", hint="Add by: day, month, year, hour or a field.")
        if self.by is not None and (self.fields is not None or self.values != SHOWN):
            raise InvalidInput("by cannot be combined with fields or values, which are for all data together")


@dataclass(frozen=True, slots=True)
class QueryAsked(_Asked):
    """A request for data; the attributes are those of `Dataset.query`."""

    match: str | None = None
    sort: str | None = None
    limit: int | None = None
    fields: list[str] | None = None  # the metadata in JSON lines; None for all
    columns: dict[str, str | None] | None = None  # of CSV and Parquet, each with its type, if it has one; None for all
    format: str = "jsonl"  # one of `FORMATS`; "data" for the bytes as they are stored
    # "raise", or "skip": then the last line lists what was left out, if that is something
    damaged: Literal["raise", "skip"] = "raise"
    _FORMER: ClassVar = {"style": "format"}

    def __post_init__(self) -> None:
        is_table = self.format in ("csv", "parquet")
        if self.columns is not None and not is_table:
            raise InvalidInput("columns is for csv and parquet only", hint="Send fields to choose metadata of jsonl.")
        if self.fields is not None and self.format != "jsonl":
            hint = "Send columns: it also selects the reftime and the content." if is_table else ""
            raise InvalidInput(f"fields cannot be combined with the format {self.format}", hint=hint)
        if self.damaged != "raise" and self.format != "jsonl":
            problem = f"damaged cannot be combined with the format {self.format}, which has no place for a list"
            raise InvalidInput(problem)
        if self.format == "csv":
            untyped(self.columns)


@dataclass(frozen=True, slots=True)
class DataAsked:
    """The bytes that a request asks for: those of a segment, or of one datum in it."""

    segment: str
    location: Location | None = None

    @classmethod
    def of(cls, segment: str, parameters: Mapping[str, str]) -> Self:
        """Read it; raise InvalidInput if there are other parameters than offset and size, or they are no numbers."""
        if not parameters:
            return cls(segment)
        if parameters.keys() != {"offset", "size"}:
            raise InvalidInput("the parameters of one datum are offset and size", hint="Copy them from its location.")
        offset, size = (_count(name, _whole(parameters[name])) for name in ("offset", "size"))
        return cls(segment, Location(segment, offset, size))


@dataclass(frozen=True, slots=True)
class ChangesAsked(_Asked):
    """The body of a request for changes; the attributes are those of `Dataset.changes`."""

    token: Token | None = None
    max_bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class SeqsAsked(_Asked):
    """The body of a request for the numbers of data; the attributes are those of `Source.seqs`."""

    first: int
    last: int
    listed: bool = False


@dataclass(frozen=True, slots=True)
class FetchAsked(_Asked):
    """The body of a request for some data; the attributes are those of `Source.fetch`."""

    seqs: list[int]
    max_bytes: int = MAX_BYTES
