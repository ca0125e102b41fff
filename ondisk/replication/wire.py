"""What a server and its replicas send each other besides records, as JSON. Both sides verify what they receive.

A structure is a JSON object. Its keys are the names of the attributes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from ondisk.errors import InvalidInput, shown
from ondisk.replication.feed import OVERHEAD, Kind
from ondisk.replication.records import HIGHEST
from ondisk.replication.source import DIGEST, MOST_SEQS, RANGE_BYTES, Contents, Description, Removed
from ondisk.replication.token import NO_COMPARISON, UUID, Token
from ondisk.replication.validation import COUNT, Shape, fits

RECORDS = "application/x-ondisk-records"  # the media type of records
Structure: TypeAlias = Token | Description | Contents | Removed
_S = TypeVar("_S", bound=Structure)

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,512}")
_DIGEST = re.compile(rf"(?:[0-9a-f]{{{2 * DIGEST}}})?")
_TEXT = re.compile(r"[^\ud800-\udfff]{0,1048576}")  # no text has a half of a surrogate pair
_MOST_LISTED = RANGE_BYTES // OVERHEAD + 1
_KINDS = {each.value: each for each in (Kind.DELETED, Kind.LOST, Kind.AGED)}
_SEQ, _NUMBER = range(1, HIGHEST), range(1, 2**63)
_PLACE = range(NO_COMPARISON, 2**63)
_SHAPES: Mapping[type, Mapping[str, Shape]] = {
    Token: {"dataset": _TEXT, "session": COUNT, "offset": COUNT, "index_start": _PLACE, "key": _HEX},
    Description: {"uuid": UUID, "name": _TEXT, "config": _TEXT, "seq": COUNT, "session": COUNT},
    Contents: {
        "uuid": UUID,
        "first": _NUMBER,
        "last": _NUMBER,
        "count": COUNT,
        "digest": _HEX,
        "unreadable": COUNT,
        "seqs": list,
        "reftimes": [range(-(2**63), 2**63)],
        "digests": [_DIGEST],
    },
    Removed: {"expired": COUNT, "is_partial": bool, "notes": [(_SEQ, _SEQ, frozenset(_KINDS))]},
}
_AS_IS = (lambda value: value, lambda value: value)
_FORMS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **dict.fromkeys(("key", "digest"), (bytes.hex, bytes.fromhex)),
    **dict.fromkeys(("seqs", "reftimes"), (list, tuple)),
    "digests": (lambda digests: [*map(bytes.hex, digests)], lambda digests: tuple(map(bytes.fromhex, digests))),
    "notes": (
        lambda notes: [[target, number, why.value] for target, number, why in notes],
        lambda notes: [(target, number, _KINDS[why]) for target, number, why in notes],
    ),
}
"""How the values of keys become JSON, and again values; others are the same in JSON."""
_NAMES = {Token: "a token", Description: "a description", Contents: "digests of data", Removed: "removed data"}


def digest(content: bytes) -> str:
    """Return the header Content-Digest of a body of JSON, as RFC 9530 has it: a changed byte must not go unnoticed."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def to_json(structure: Structure) -> dict[str, Any]:
    return {key: _FORMS.get(key, _AS_IS)[0](getattr(structure, key)) for key in _SHAPES[type(structure)]}


def from_json(kind: type[_S], value: Any) -> _S:
    what, shapes = _NAMES[kind], _SHAPES[kind]
    if not isinstance(value, dict) or value.keys() != shapes.keys():
        raise InvalidInput(f"{what} must be a JSON object with the keys {', '.join(shapes)}, not {shown(value)}")
    for key, shape in shapes.items():
        if not fits(value[key], shape) or (key == "notes" and len(value[key]) > MOST_SEQS):
            raise InvalidInput(f"{key} of {what} is {shown(value[key])}")
    if kind is Contents:
        seqs = seqs_from_json(value["seqs"], _MOST_LISTED)
        if seqs and not value["first"] <= seqs[0] <= seqs[-1] <= value["last"]:
            raise InvalidInput(f"numbers of data are outside of {value['first']} to {value['last']}")
        if not len(seqs) == len(value["reftimes"]) == len(value["digests"]):
            raise InvalidInput("digests of data must be columns of the same length")
    return kind(**{key: _FORMS.get(key, _AS_IS)[1](each) for key, each in value.items()})


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
