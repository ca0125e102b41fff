"""What a server and its replicas send each other besides records, as JSON. Both sides verify what they receive.

A structure is a JSON object. Its keys are the names of the attributes, except that the entries of `Contents` are three
columns: `seqs`, `reftimes` and `digests`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
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

RECORDS = "application/x-ondisk-records"  # the media type of records
Structure: TypeAlias = Token | Description | Numbers | Contents | Removed
_S = TypeVar("_S", bound=Structure)

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,512}")
_DIGEST = re.compile(rf"(?:[0-9a-f]{{{2 * DIGEST}}})?")
_LONGEST = 1024 * 1024  # characters
_MOST_ENTRIES = RANGE_BYTES // OVERHEAD + 1
_KINDS = {each.value: each for each in (Kind.DELETED, Kind.LOST, Kind.AGED)}
_Reader: TypeAlias = Callable[[Any], Any]
"""Returns the value of an attribute from JSON; raises `_Wrong` if it is not valid."""
_COLUMNS = ("seqs", "reftimes", "digests")  # of the entries of `Contents`
_NAMES = {Token: "a token", Description: "a description", Numbers: "numbers of data", Contents: "digests of data",
          Removed: "removed data"}  # fmt: skip


def digest(content: bytes) -> str:
    """Return the header Content-Digest of a body of JSON, as RFC 9530 has it: a changed byte must not go unnoticed."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def to_json(structure: Structure) -> dict[str, Any]:
    found = {name: getattr(structure, name) for name in _READERS[type(structure)]}
    if isinstance(structure, Token | Numbers | Contents):
        name = "key" if isinstance(structure, Token) else "digest"
        found[name] = found[name].hex()
    if isinstance(structure, Numbers):
        found["seqs"] = [*structure.seqs]
    if isinstance(structure, Contents):
        entries = structure.entries
        found |= {"seqs": [each.seq for each in entries], "reftimes": [each.reftime for each in entries]}
        found["digests"] = [each.digest.hex() for each in entries]
    if isinstance(structure, Removed):
        found["notes"] = [[target, number, why.value] for target, number, why in structure.notes]
    return found


def from_json(kind: type[_S], value: Any) -> _S:
    what, readers = _NAMES[kind], _READERS[kind]
    known = [*readers, *(_COLUMNS if kind is Contents else ())]
    if not isinstance(value, dict) or value.keys() != {*known}:
        raise InvalidInput(f"{what} must be a JSON object with the keys {', '.join(known)}, not {shown(value)}")
    found: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            found[name] = read(value[name])
        except _Wrong:
            raise InvalidInput(f"{name} of {what} is {shown(value[name])}") from None
    seqs: Sequence[int] = found.get("seqs", ())
    if kind is Contents:
        found["entries"] = _entries(*(value[key] for key in _COLUMNS))
        seqs = value["seqs"]
    if seqs and not found["first"] <= seqs[0] <= seqs[-1] <= found["last"]:
        raise InvalidInput(f"numbers of data are outside of {found['first']} to {found['last']}")
    return kind(**found)


def seqs_from_json(value: Any, most: int = MOST_SEQS) -> list[int]:
    """Return numbers of data, which ascend; raise InvalidInput if they do not, or are more than `most`."""
    if not isinstance(value, list) or len(value) > most:
        raise InvalidInput(f"seqs must be a list of up to {most} numbers of data")
    before = 0
    for each in value:
        if type(each) is not int or not before < each < HIGHEST:
            raise InvalidInput(f"seqs must be ascending numbers of data, not {shown(each)}")
        before = each
    return value


class _Wrong(Exception):
    """The value of a key is not valid."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise _Wrong
    return value


def _uuid(value: Any) -> str:
    if not UUID.fullmatch(_text(value)):
        raise _Wrong
    return str(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _Wrong
    return value


def _bytes(value: Any) -> bytes:
    if not _HEX.fullmatch(_text(value)):
        raise _Wrong
    return bytes.fromhex(value)


def _whole(least: int, value: Any) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise _Wrong
    return value


def _entries(seqs: Any, reftimes: Any, digests: Any) -> Sequence[Entry]:
    seqs = seqs_from_json(seqs, _MOST_ENTRIES)
    for column in (reftimes, digests):
        if not isinstance(column, list) or len(column) != len(seqs):
            raise InvalidInput(f"digests of data must be columns of the same length, not {shown(column)}")
    if any(type(each) is not int or not -(2**63) <= each < 2**63 for each in reftimes):
        raise InvalidInput("reftimes of data must be whole numbers")
    if not all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in digests):
        raise InvalidInput(f"digests of data must have {DIGEST} bytes, or none")
    return tuple(map(Entry, seqs, reftimes, map(bytes.fromhex, digests)))


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


_count, _number, _place = (partial(_whole, least) for least in (0, 1, NO_COMPARISON))
_seqs: _Reader = partial(seqs_from_json, most=2 * MOST_SEQS)
_RANGE: dict[str, _Reader] = {"uuid": _uuid, "first": _number, "last": _number, "count": _count, "digest": _bytes}
_READERS: Mapping[type, Mapping[str, _Reader]] = {
    Token: {"dataset": _text, "session": _count, "offset": _count, "index_start": _place, "key": _bytes},
    Description: {"uuid": _uuid, "name": _text, "config": _text, "seq": _count, "session": _count},
    Numbers: {**_RANGE, "seqs": _seqs},
    Contents: {**_RANGE, "unreadable": _count},
    Removed: {"expired": _count, "is_partial": _flag, "notes": _notes},
}
