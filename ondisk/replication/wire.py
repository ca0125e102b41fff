"""What a server and its replicas send each other besides records, as JSON. Both sides verify what they receive.

A structure is a JSON object. Its keys are the names of the attributes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import OVERHEAD, Kind
from ondisk.replication.records import HIGHEST
from ondisk.replication.shapes import COUNT, Shape, fits
from ondisk.replication.source import DIGEST, MOST_REMOVED, MOST_SEQS, RANGE_BYTES, Contents, Description, Removed
from ondisk.replication.token import NO_COMPARISON, UUID, Token

RECORDS = "application/x-ondisk-records"  # the media type of records
Structure: TypeAlias = Token | Description | Contents | Removed
_S = TypeVar("_S", bound=Structure)

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,512}")
_DIGEST = re.compile(rf"(?:[0-9a-f]{{{2 * DIGEST}}})?")
_TEXT = re.compile(r"(?s).{0,1048576}")
_MOST_LISTED = max(RANGE_BYTES // OVERHEAD + 1, 2 * MOST_SEQS)
_KINDS = {each.value: each for each in (Kind.DELETED, Kind.LOST, Kind.AGED)}
_SEQ, _NUMBER = range(1, HIGHEST), range(1, 2**63)
_PLACE = range(NO_COMPARISON, 2**63)
_NUMBERS = {"uuid": UUID, "first": _NUMBER, "last": _NUMBER, "count": COUNT, "digest": _HEX, "seqs": list}
"""`Contents` with nothing but numbers."""
_SHAPES: Mapping[type, Mapping[str, Shape]] = {
    Token: {"dataset": _TEXT, "session": COUNT, "offset": COUNT, "index_start": _PLACE, "key": _HEX},
    Description: {"uuid": UUID, "name": _TEXT, "config": _TEXT, "seq": COUNT, "session": COUNT},
    Contents: {**_NUMBERS, "unreadable": COUNT, "reftimes": [range(-(2**63), 2**63)], "digests": [_DIGEST]},
    Removed: {"expired": COUNT, "is_partial": bool, "notes": [(_SEQ, _SEQ, frozenset(_KINDS))]},
}
_NAMES = {Token: "a token", Description: "a description", Contents: "digests of data", Removed: "removed data"}


def digest(content: bytes) -> str:
    """Return the header Content-Digest of a body of JSON, as RFC 9530 has it: a changed byte must not go unnoticed."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def to_json(structure: Structure) -> dict[str, Any]:
    only_numbers = isinstance(structure, Contents) and structure.unreadable is None
    found = {key: getattr(structure, key) for key in (_NUMBERS if only_numbers else _SHAPES[type(structure)])}
    for key in found.keys() & {"key", "digest"}:
        found[key] = found[key].hex()
    if isinstance(structure, Removed):
        found["notes"] = [[target, number, why.value] for target, number, why in structure.notes]
    if "digests" in found:
        found["digests"] = [each.hex() for each in found["digests"]]
    return found


def from_json(kind: type[_S], value: Any) -> _S:
    what, shapes = _NAMES[kind], _SHAPES[kind]
    if kind is Contents and isinstance(value, dict) and "digests" not in value:
        what, shapes = "numbers of data", _NUMBERS
    if not isinstance(value, dict) or value.keys() != shapes.keys():
        raise InvalidInput(f"{what} must be a JSON object with the keys {', '.join(shapes)}, not {shown(value)}")
    for key, shape in shapes.items():
        if not fits(value[key], shape) or (key == "notes" and len(value[key]) > MOST_REMOVED):
            raise InvalidInput(f"{key} of {what} is {shown(value[key])}")
    found = {**value}
    for key in found.keys() & {"key", "digest"}:
        found[key] = bytes.fromhex(found[key])
    if kind is Removed:
        found["notes"] = [(target, number, _KINDS[why]) for target, number, why in found["notes"]]
    if kind is Contents:
        seqs = seqs_from_json(found["seqs"], _MOST_LISTED)
        if seqs and not found["first"] <= seqs[0] <= seqs[-1] <= found["last"]:
            raise InvalidInput(f"numbers of data are outside of {found['first']} to {found['last']}")
    if "digests" in found:
        if not len(found["seqs"]) == len(found["reftimes"]) == len(found["digests"]):
            raise InvalidInput("digests of data must be columns of the same length")
        found["digests"] = map(bytes.fromhex, found["digests"])
    for key in found.keys() & {"seqs", "reftimes", "digests"}:
        found[key] = tuple(found[key])
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
