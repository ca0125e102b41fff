"""What a server and its replicas send each other besides records, as JSON. Both sides verify what they receive.

A structure is a JSON object. Its keys are the names of the attributes, except that the entries of `Contents` are three
columns: `seqs`, `reftimes` and `digests`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import OVERHEAD, Kind
from ondisk.replication.records import HIGHEST
from ondisk.replication.shapes import COUNT, Shape, fits
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
_TEXT = re.compile(r"(?s).{0,1048576}")
_MOST_ENTRIES = RANGE_BYTES // OVERHEAD + 1
_KINDS = {each.value: each for each in (Kind.DELETED, Kind.LOST, Kind.AGED)}
_COLUMNS = ("seqs", "reftimes", "digests")  # of the entries of `Contents`
_SEQ = range(1, HIGHEST)
_PLACE = range(NO_COMPARISON, 2**63)
_RANGE = {"uuid": UUID, "first": range(1, 2**63), "last": range(1, 2**63), "count": COUNT, "digest": _HEX}
_SHAPES: Mapping[type, Mapping[str, Shape]] = {
    Token: {"dataset": _TEXT, "session": COUNT, "offset": COUNT, "index_start": _PLACE, "key": _HEX},
    Description: {"uuid": UUID, "name": _TEXT, "config": _TEXT, "seq": COUNT, "session": COUNT},
    Numbers: {**_RANGE, "seqs": list},
    Contents: {**_RANGE, "unreadable": COUNT},
    Removed: {"expired": COUNT, "is_partial": bool, "notes": [(_SEQ, _SEQ, frozenset(_KINDS))]},
}
_NAMES = {Token: "a token", Description: "a description", Numbers: "numbers of data", Contents: "digests of data",
          Removed: "removed data"}  # fmt: skip


def digest(content: bytes) -> str:
    """Return the header Content-Digest of a body of JSON, as RFC 9530 has it: a changed byte must not go unnoticed."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def to_json(structure: Structure) -> dict[str, Any]:
    found = {name: getattr(structure, name) for name in _SHAPES[type(structure)]}
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
    what, shapes = _NAMES[kind], _SHAPES[kind]
    known = [*shapes, *(_COLUMNS if kind is Contents else ())]
    if not isinstance(value, dict) or value.keys() != {*known}:
        raise InvalidInput(f"{what} must be a JSON object with the keys {', '.join(known)}, not {shown(value)}")
    for name, shape in shapes.items():
        if not fits(value[name], shape) or (name == "notes" and len(value[name]) > MOST_REMOVED):
            raise InvalidInput(f"{name} of {what} is {shown(value[name])}")
    found: dict[str, Any] = {
        name: bytes.fromhex(value[name]) if name in ("key", "digest") else value[name] for name in shapes
    }
    seqs: Sequence[int] = ()
    if kind is Contents:
        found["entries"] = _entries(*(value[key] for key in _COLUMNS))
        seqs = value["seqs"]
    elif kind is Numbers:
        seqs = seqs_from_json(value["seqs"], 2 * MOST_SEQS)
    elif kind is Removed:
        found["notes"] = [(target, number, _KINDS[why]) for target, number, why in value["notes"]]
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
