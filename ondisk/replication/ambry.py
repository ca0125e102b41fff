"""Read the files `replicaTokens` that Ambry's own code writes, of versions 0 and 1, with tokens of versions 0 to 3.

    File:   version 2 | entries, until eight bytes are left | CRC-32 of all bytes before, 8
    Entry:  partition id 10 | host name n | replica path n | port 4 | bytes read from the local store 8
            | replica type 2, since version 1 | token
    Token:  0   version 2 | session n | offset in the journal 8 or -1 | offset of the index segment 8 or -1 | key, if
                the second is not -1
            1   version 2 | session n | type 2 | place and key, as far as the type has them
            2   version 2 | type 2 | and unless uninitialised: incarnation n | session n | place | inclusive 1, of a
                journal, or key, of an index
            3   the same | has reset key 1 | reset key, its type 2, its life version 2
    Place:  version 2, 0 | name of the log segment n | offset 8
    Key:    version 2 | fields of that version, see `_KEYS` | partition id 10 | UUID, n or 16 bytes

Integers are big-endian; fields of n bytes follow their length in four bytes. Source: the classes DiskTokenPersistor,
ReplicaTokenSerde, StoreFindToken and BlobId of Ambry at commit 367375cd, and files that they wrote, which are in
tests/golden/ambry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from ondisk.replication.token import Reader

_K = TypeVar("_K", bound=IntEnum)
_FILE_VERSIONS = (0, 1)
_NONE = -1
_ON_DISK = 0  # the type of a replica that is not in a cloud, whose tokens have other fields
_PARTITION_SIZE = 10
# Version of a key → bytes between its version and its partition id, and bytes of its UUID; 0 for a counted text.
_KEYS = {1: (0, 0), **dict.fromkeys((2, 3, 4, 5), (6, 0)), 6: (6, 16), 7: (6, 16)}


class Kind(IntEnum):
    """What a token refers to."""

    UNINITIALIZED = 0
    JOURNAL = 1
    INDEX = 2


class ResetKind(IntEnum):
    """What kind of record a reset key belongs to."""

    TTL_UPDATE = 0
    PUT = 1
    DELETE = 2
    UNDELETE = 3


@dataclass(frozen=True, slots=True)
class ResetKey:
    """Where to continue if the place of a token is gone."""

    key: bytes  # a store key
    kind: ResetKind  # of the record
    life_version: int  # of the record


@dataclass(frozen=True, slots=True)
class FindToken:
    """A token of Ambry's `StoreFindToken`."""

    version: int  # 0 to 3
    kind: Kind = Kind.UNINITIALIZED  # what it refers to
    incarnation: str = ""  # a UUID; empty before version 2
    session: str = ""  # a UUID; may be empty before version 2
    log_segment: str = ""  # the name of a segment of the log; empty if the log has only one
    offset: int | None = None  # in that segment; None if uninitialised
    key: bytes = b""  # the store key of an index token; else empty
    # whether the record at the offset is still to be sent. Only journal tokens since version 2 store it
    inclusive: bool = False
    reset: ResetKey | None = None  # since version 3


@dataclass(frozen=True, slots=True)
class Entry:
    """The token of one partition at one peer."""

    partition: bytes  # its id, ten bytes
    host: str  # host, path, port: of the peer's replica
    path: str
    port: int
    bytes_read: int  # how many bytes the peer has read from the local store
    token: FindToken

    @property
    def identity(self) -> tuple[bytes, str, str, int]:
        """What two entries for the same replica have in common; the case of a host name means nothing."""
        return self.partition, self.host.casefold(), self.path, self.port

    def described(self) -> dict[str, Any]:
        """Return names and values, for people and programs."""
        token, reset = self.token, self.token.reset
        return {
            "partition": int.from_bytes(self.partition[2:], signed=True),  # after the version of the id
            "host": self.host,
            "port": self.port,
            "path": self.path,
            "bytes_read": self.bytes_read,
            "version": token.version,
            "type": token.kind.name.lower(),
            "incarnation": token.incarnation or None,
            "session": token.session or None,
            "log_segment": token.log_segment if token.offset is not None else None,
            "offset": token.offset,
            "inclusive": token.inclusive,
            "key": token.key.hex() or None,
            "reset_key": reset and reset.key.hex(),
            "reset_type": reset and reset.kind.name.lower(),
            "reset_version": reset and reset.life_version,
        }


def decode(content: bytes, name: str) -> list[Entry]:
    """Return the entries of the file `name`, in their order. Of those with the same identity, the last counts.

    Raises:
        IntegrityError: it is damaged, not such a file, or has tokens of a cloud.
    """
    reader = Reader.opened(content, name)
    version = reader.integer(2)
    if version not in _FILE_VERSIONS:
        reader.fail(f"it has version {version}, and Ambry writes 0 and 1")
    entries = []
    while reader:
        entries.append(_entry(reader, version))
    return entries


def _entry(reader: Reader, version: int) -> Entry:
    partition, host, path = reader.take(_PARTITION_SIZE), reader.text(), reader.text()
    port, bytes_read = reader.integer(4), reader.integer(8)
    kind = reader.integer(2) if version > 0 else _ON_DISK
    if kind != _ON_DISK:
        reader.fail(f"a replica has type {kind}, and only tokens of type {_ON_DISK}, on disk, are known")
    return Entry(partition, host, path, port, bytes_read, decode_token(reader))


def decode_token(reader: Reader) -> FindToken:
    """Read one token; raise IntegrityError if it is not one."""
    version = reader.integer(2)
    if version == 0:
        return _version_0(reader)
    if version not in (1, 2, 3):
        reader.fail(f"a token has version {version}")
    incarnation, session = "", reader.text() if version == 1 else ""
    kind = _one_of(Kind, reader, "a token")
    if kind is Kind.UNINITIALIZED:
        return FindToken(version, kind, session=session, inclusive=True)
    if version > 1:
        incarnation, session = reader.text(), reader.text()
    if (place := reader.integer(2)) != 0:
        reader.fail(f"a place has version {place}")
    log_segment, offset = reader.text(), reader.integer(8)
    inclusive = _flag(reader) if version > 1 and kind is Kind.JOURNAL else False
    key = _key(reader) if kind is Kind.INDEX else b""
    reset = None
    if version == 3 and _flag(reader):
        reset = ResetKey(_key(reader), _one_of(ResetKind, reader, "a reset key"), reader.integer(2))
    return FindToken(version, kind, incarnation, session, log_segment, offset, key, inclusive, reset)


def _version_0(reader: Reader) -> FindToken:
    session = reader.text()
    journal, index = reader.integer(8), reader.integer(8)
    if index != _NONE:
        if journal != _NONE:
            reader.fail("a token refers to the journal and to the index")
        return FindToken(0, Kind.INDEX, session=session, offset=index, key=_key(reader))
    if journal != _NONE:
        return FindToken(0, Kind.JOURNAL, session=session, offset=journal)
    return FindToken(0, session=session, inclusive=True)


def _flag(reader: Reader) -> bool:
    found = reader.integer(1)
    if found not in (0, 1):
        reader.fail(f"a flag is {found}")
    return found == 1


def _one_of(kinds: type[_K], reader: Reader, what: str) -> _K:
    number = reader.integer(2)
    try:
        return kinds(number)
    except ValueError:
        reader.fail(f"{what} has type {number}")


def _key(reader: Reader) -> bytes:
    """Return a store key. Nothing says how long it is but its own fields."""
    start = reader.take(2)
    version = int.from_bytes(start, signed=True)
    if version not in _KEYS:
        reader.fail(f"a store key has version {version}")
    fields, uuid_size = _KEYS[version]
    body = reader.take(fields + _PARTITION_SIZE)
    if uuid_size:
        return start + body + reader.take(uuid_size)
    uuid = reader.counted()
    return start + body + len(uuid).to_bytes(4) + uuid
