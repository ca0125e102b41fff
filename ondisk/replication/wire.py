"""What a server and its replicas tell each other besides records, as JSON. Both sides verify what they receive."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from ondisk.errors import InvalidInput, shown
from ondisk.replication.contents import DIGEST, MOST_REMOVED, RANGE_BYTES, Contents, Entry, Removed
from ondisk.replication.feed import Kind
from ondisk.replication.merge import OVERHEAD
from ondisk.replication.records import HIGHEST
from ondisk.replication.source import MOST_SEQS, Description, Numbers
from ondisk.replication.token import NO_COMPARISON, Token

RECORDS = "application/x-ondisk-records"
"""The media type of records."""

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,512}")
_DIGEST = re.compile(rf"(?:[0-9a-f]{{{2 * DIGEST}}})?")
_LONGEST = 1024 * 1024  # characters
_ENTRIES = RANGE_BYTES // OVERHEAD + 1
_KINDS = {each.value: each for each in (Kind.DELETED, Kind.LOST, Kind.AGED)}


def digest(content: bytes) -> str:
    """Return the header Content-Digest of a body of JSON, as RFC 9530 has it: a changed byte must not go unnoticed."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def token_to_json(token: Token) -> dict[str, Any]:
    return {
        "dataset": token.dataset,
        "session": token.session,
        "offset": token.offset,
        "index_start": token.index_start,
        "key": token.key.hex(),
    }


def token_from_json(value: Any) -> Token:
    """Return a token.

    Raises:
        InvalidInput: it is none.
    """
    found = _Checked(value, "a token", ("dataset", "session", "offset", "index_start", "key"))
    return Token(
        found.text("dataset"),
        found.whole("session", 0),
        found.whole("offset", 0),
        found.whole("index_start", NO_COMPARISON),
        found.bytes("key"),
    )


def description_to_json(about: Description) -> dict[str, Any]:
    return {
        "uuid": about.uuid,
        "name": about.name,
        "config": about.config,
        "seq": about.seq,
        "session": about.session,
    }


def description_from_json(value: Any) -> Description:
    """Return a description.

    Raises:
        InvalidInput: it is none.
    """
    found = _Checked(value, "a description", ("uuid", "name", "config", "seq", "session"))
    texts = found.text("uuid"), found.text("name"), found.text("config")
    return Description(*texts, found.whole("seq", 0), found.whole("session", 0))


def numbers_to_json(numbers: Numbers) -> dict[str, Any]:
    return {
        "uuid": numbers.uuid,
        "first": numbers.first,
        "last": numbers.last,
        "count": numbers.count,
        "digest": numbers.digest.hex(),
        "seqs": [*numbers.seqs],
    }


def numbers_from_json(value: Any) -> Numbers:
    """Return numbers of data.

    Raises:
        InvalidInput: they are none.
    """
    found = _Checked(value, "numbers of data", ("uuid", "first", "last", "count", "digest", "seqs"))
    first, last = found.whole("first", 1), found.whole("last", 1)
    listed = seqs_from_json(value["seqs"], 2 * MOST_SEQS)
    if not all(first <= seq <= last for seq in listed):
        raise InvalidInput(f"numbers of data are outside of {first} to {last}")
    return Numbers(found.text("uuid"), first, last, found.whole("count", 0), found.bytes("digest"), listed)


def contents_to_json(found: Contents) -> dict[str, Any]:
    return {
        "uuid": found.uuid,
        "first": found.first,
        "last": found.last,
        "count": found.count,
        "digest": found.digest.hex(),
        "unreadable": found.unreadable,
        "seqs": [each.seq for each in found.entries],
        "reftimes": [each.reftime for each in found.entries],
        "digests": [each.digest.hex() for each in found.entries],
    }


def contents_from_json(value: Any) -> Contents:
    """Return digests of data.

    Raises:
        InvalidInput: they are none.
    """
    keys = ("uuid", "first", "last", "count", "digest", "unreadable", "seqs", "reftimes", "digests")
    found = _Checked(value, "digests of data", keys)
    first, last = found.whole("first", 1), found.whole("last", 1)
    seqs, reftimes, digests = seqs_from_json(value["seqs"], _ENTRIES), value["reftimes"], value["digests"]
    if not all(first <= seq <= last for seq in seqs):
        raise InvalidInput(f"digests of data are outside of {first} to {last}")
    for column in (reftimes, digests):
        if not isinstance(column, list) or len(column) != len(seqs):
            raise InvalidInput(f"digests of data must be columns of the same length, not {shown(column)}")
    if any(type(each) is not int or not -(2**63) <= each < 2**63 for each in reftimes):
        raise InvalidInput("reftimes of data must be whole numbers")
    if any(
        not isinstance(each, str) or len(each) not in (0, 2 * DIGEST) or not _HEX.fullmatch(each) for each in digests
    ):
        raise InvalidInput(f"digests of data must have {DIGEST} bytes, or none")
    entries = tuple(map(Entry, seqs, reftimes, map(bytes.fromhex, digests)))
    return Contents(found.text("uuid"), first, last, found.whole("count", 0), found.bytes("digest"),
                    found.whole("unreadable", 0), entries)  # fmt: skip


def removed_to_json(found: Removed) -> dict[str, Any]:
    notes = [[target, number, kind.value] for target, number, kind in found.notes]
    return {"expired": found.expired, "is_replica": found.is_replica, "notes": notes}


def removed_from_json(value: Any) -> Removed:
    """Return what is known of data that do not exist any more.

    Raises:
        InvalidInput: it is nothing of that kind.
    """
    found = _Checked(value, "removed data", ("expired", "is_replica", "notes"))
    notes, is_replica = value["notes"], value["is_replica"]
    if type(is_replica) is not bool or not isinstance(notes, list) or len(notes) > MOST_REMOVED:
        raise InvalidInput(f"removed data must have a list of up to {MOST_REMOVED} notes")
    for each in notes:
        if not isinstance(each, list) or len(each) != 3 or any(type(part) is not int for part in each[:2]):
            raise InvalidInput(f"a note must be two numbers and a kind, not {shown(each)}")
        if not 0 < each[0] < HIGHEST or not 0 < each[1] < HIGHEST or each[2] not in _KINDS:
            raise InvalidInput(f"a note must be two numbers and a kind, not {shown(each)}")
    return Removed(found.whole("expired", 0), is_replica, [(each[0], each[1], _KINDS[each[2]]) for each in notes])


def seqs_from_json(value: Any, most: int = MOST_SEQS) -> list[int]:
    """Return numbers of data, which ascend.

    Raises:
        InvalidInput: they are none.
    """
    if not isinstance(value, list) or len(value) > most:
        raise InvalidInput(f"seqs must be a list of up to {most} numbers of data")
    before = 0
    for each in value:
        if type(each) is not int or not before < each < HIGHEST:
            raise InvalidInput(f"seqs must be ascending numbers of data, not {shown(each)}")
        before = each
    return value


class _Checked:
    """A JSON object whose keys and values are verified."""

    def __init__(self, value: Any, what: str, keys: tuple[str, ...]) -> None:
        if not isinstance(value, dict) or value.keys() != {*keys}:
            raise InvalidInput(f"{what} must be a JSON object with the keys {', '.join(keys)}, not {shown(value)}")
        self._value: Mapping[str, Any] = value
        self._what = what

    def text(self, key: str) -> str:
        value = self._value[key]
        if not isinstance(value, str) or len(value) > _LONGEST:
            raise self.error(key, value)
        return value

    def bytes(self, key: str) -> bytes:
        value = self.text(key)
        if not _HEX.fullmatch(value):
            raise self.error(key, value)
        return bytes.fromhex(value)

    def whole(self, key: str, least: int) -> int:
        value = self._value[key]
        if type(value) is not int or not least <= value < 2**63:
            raise self.error(key, value)
        return value

    def error(self, key: str, value: Any) -> InvalidInput:
        return InvalidInput(f"{key} of {self._what} is {shown(value)}")
