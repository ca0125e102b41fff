"""What a server and its replicas send each other besides records, as JSON. Both sides verify what they receive.

A structure is a JSON object. Its keys are the names of the attributes, except that the entries of `Contents` are three
columns: `seqs`, `reftimes` and `digests`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import OVERHEAD, Kind
from ondisk.replication.records import HIGHEST
from ondisk.replication.source import (
    DIGEST,
    MOST_REMOVED,
    MOST_SEQS,
    RANGE_BYTES,
    Contents,
    Description,
    Entry,
    Numbers,
    Removed,
)
from ondisk.replication.token import NO_COMPARISON, UUID, Token

RECORDS = "application/x-ondisk-records"
"""The media type of records."""

Structure: TypeAlias = Token | Description | Numbers | Contents | Removed
_S = TypeVar("_S", bound=Structure)

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,512}")
_DIGEST = re.compile(rf"(?:[0-9a-f]{{{2 * DIGEST}}})?")
_LONGEST = 1024 * 1024  # characters
_MOST_ENTRIES = RANGE_BYTES // OVERHEAD + 1
_KINDS = {each.value: each for each in (Kind.DELETED, Kind.LOST, Kind.AGED)}


@dataclass(frozen=True, slots=True)
class _Form:
    """How an attribute is written as JSON, and read."""

    read: Callable[..., Any]  # returns the attribute, from the values of its keys
    write: Callable[[Any], Sequence[Any]] = lambda value: (value,)  # returns the values of its keys
    keys: Sequence[str] = ()  # of the JSON object; by default, the name of the attribute is the only one


@dataclass(frozen=True, slots=True)
class _Structure:
    """The attributes of a structure, in the order in which they are written, and what messages call it."""

    name: str
    forms: Mapping[str, _Form]


def digest(content: bytes) -> str:
    """Return the header Content-Digest of a body of JSON, as RFC 9530 has it: a changed byte must not go unnoticed."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def to_json(structure: Structure) -> dict[str, Any]:
    """Return a structure as a JSON object."""
    found: dict[str, Any] = {}
    for name, form in _STRUCTURES[type(structure)].forms.items():
        found.update(zip(form.keys or (name,), form.write(getattr(structure, name)), strict=True))
    return found


def from_json(kind: type[_S], value: Any) -> _S:
    """Return the structure of a kind that a JSON object describes.

    Raises:
        InvalidInput: it has other keys, or a value that is not valid.
    """
    what = _STRUCTURES[kind].name
    forms = _STRUCTURES[kind].forms
    known = [key for name, form in forms.items() for key in form.keys or (name,)]
    if not isinstance(value, dict) or value.keys() != {*known}:
        raise InvalidInput(f"{what} must be a JSON object with the keys {', '.join(known)}, not {shown(value)}")
    found: dict[str, Any] = {}
    for name, form in forms.items():
        try:
            found[name] = form.read(*(value[key] for key in form.keys or (name,)))
        except _Wrong as error:
            raise InvalidInput(f"{name} of {what} is {shown(error.value)}") from None
    structure = kind(**found)
    if isinstance(structure, Numbers):
        _within(structure, structure.seqs)
    if isinstance(structure, Contents):
        _within(structure, [each.seq for each in structure.entries])
    return structure


def seqs_from_json(value: Any, most: int = MOST_SEQS) -> list[int]:
    """Return numbers of data, which ascend.

    Raises:
        InvalidInput: the value is something else, or has more than `most` of them.
    """
    if not isinstance(value, list) or len(value) > most:
        raise InvalidInput(f"seqs must be a list of up to {most} numbers of data")
    before = 0
    for each in value:
        if type(each) is not int or not before < each < HIGHEST:
            raise InvalidInput(f"seqs must be ascending numbers of data, not {shown(each)}")
        before = each
    return value


def _within(range_: Numbers | Contents, seqs: Sequence[int]) -> None:
    if not all(range_.first <= seq <= range_.last for seq in seqs):
        raise InvalidInput(f"numbers of data are outside of {range_.first} to {range_.last}")


class _Wrong(Exception):
    """The value of a key is not valid."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise _Wrong(value)
    return value


def _uuid(value: Any) -> str:
    if not UUID.fullmatch(_text(value)):
        raise _Wrong(value)
    return str(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _Wrong(value)
    return value


def _bytes(value: Any) -> bytes:
    if not _HEX.fullmatch(_text(value)):
        raise _Wrong(value)
    return bytes.fromhex(value)


def _whole(least: int, value: Any) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise _Wrong(value)
    return value


def _entries(seqs: Any, reftimes: Any, digests: Any) -> Sequence[Entry]:
    """Return data from columns of their numbers, reftimes and digests."""
    seqs = seqs_from_json(seqs, _MOST_ENTRIES)
    for column in (reftimes, digests):
        if not isinstance(column, list) or len(column) != len(seqs):
            raise InvalidInput(f"digests of data must be columns of the same length, not {shown(column)}")
    if any(type(each) is not int or not -(2**63) <= each < 2**63 for each in reftimes):
        raise InvalidInput("reftimes of data must be whole numbers")
    if not all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in digests):
        raise InvalidInput(f"digests of data must have {DIGEST} bytes, or none")
    return tuple(map(Entry, seqs, reftimes, map(bytes.fromhex, digests)))


def _columns(entries: Sequence[Entry]) -> tuple[list[int], list[int], list[str]]:
    return [each.seq for each in entries], [each.reftime for each in entries], [each.digest.hex() for each in entries]


def _notes(value: Any) -> Sequence[tuple[int, int, Kind]]:
    if not isinstance(value, list) or len(value) > MOST_REMOVED:
        raise InvalidInput(f"removed data must have a list of up to {MOST_REMOVED} notes")
    return [*map(_note, value)]


def _note(value: Any) -> tuple[int, int, Kind]:
    if isinstance(value, list) and len(value) == 3:
        target, number, why = value
        is_valid = all(type(each) is int and 0 < each < HIGHEST for each in (target, number))
        if is_valid and isinstance(why, str) and why in _KINDS:
            return target, number, _KINDS[why]
    raise InvalidInput(f"a note must be two numbers and a kind, not {shown(value)}")


_TEXT, _UUID, _FLAG, _BYTES = _Form(_text), _Form(_uuid), _Form(_flag), _Form(_bytes, lambda value: (value.hex(),))
_COUNT, _NUMBER, _PLACE = (_Form(partial(_whole, least)) for least in (0, 1, NO_COMPARISON))
_SEQS = _Form(lambda value: seqs_from_json(value, 2 * MOST_SEQS), lambda seqs: ([*seqs],))
_ENTRIES = _Form(_entries, _columns, ("seqs", "reftimes", "digests"))
_NOTES = _Form(_notes, lambda notes: ([[target, number, why.value] for target, number, why in notes],))
_RANGE = {"uuid": _UUID, "first": _NUMBER, "last": _NUMBER, "count": _COUNT, "digest": _BYTES}
_STRUCTURES: Mapping[type, _Structure] = {
    Token: _Structure(
        "a token",
        {"dataset": _TEXT, "session": _COUNT, "offset": _COUNT, "index_start": _PLACE, "key": _BYTES},
    ),
    Description: _Structure(
        "a description", {"uuid": _UUID, "name": _TEXT, "config": _TEXT, "seq": _COUNT, "session": _COUNT}
    ),
    Numbers: _Structure("numbers of data", {**_RANGE, "seqs": _SEQS}),
    Contents: _Structure("digests of data", {**_RANGE, "unreadable": _COUNT, "entries": _ENTRIES}),
    Removed: _Structure("removed data", {"expired": _COUNT, "is_partial": _FLAG, "notes": _NOTES}),
}
