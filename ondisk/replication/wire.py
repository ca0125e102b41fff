"""What a server and its replicas tell each other besides records, as JSON. Both sides verify what they receive."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from ondisk.errors import InvalidInput, shown
from ondisk.replication.records import HIGHEST
from ondisk.replication.source import MOST_SEQS, Description, Numbers
from ondisk.replication.token import NO_COMPARISON, Token

RECORDS = "application/x-ondisk-records"
"""The media type of records."""

_HEX = re.compile(r"(?:[0-9a-f]{2}){0,512}")
_LONGEST = 1024 * 1024  # characters


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
    key = found.text("key")
    if not _HEX.fullmatch(key):
        raise found.error("key", key)
    return Token(
        found.text("dataset"),
        found.whole("session", 0),
        found.whole("offset", 0),
        found.whole("index_start", NO_COMPARISON),
        bytes.fromhex(key),
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
    digest = found.text("digest")
    if not _HEX.fullmatch(digest):
        raise found.error("digest", digest)
    first, last = found.whole("first", 1), found.whole("last", 1)
    listed = seqs_from_json(value["seqs"], 2 * MOST_SEQS)
    if not all(first <= seq <= last for seq in listed):
        raise InvalidInput(f"numbers of data are outside of {first} to {last}")
    return Numbers(found.text("uuid"), first, last, found.whole("count", 0), bytes.fromhex(digest), listed)


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

    def whole(self, key: str, least: int) -> int:
        value = self._value[key]
        if type(value) is not int or not least <= value < 2**63:
            raise self.error(key, value)
        return value

    def error(self, key: str, value: Any) -> InvalidInput:
        return InvalidInput(f"{key} of {self._what} is {shown(value)}")
