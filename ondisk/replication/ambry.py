"""The files `replicaTokens` that Ambry's own code writes, of versions 0 and 1, with tokens of versions 0 to 3.

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
tests/golden/ambry. A file that is read and written again has the same bytes: unknown partitions are kept, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ondisk.errors import InvalidInput
from ondisk.replication.fields import Reader, counted, flag, integer, opened, sealed

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
    """Where to continue if the place of a token is gone.

    Attributes:
        key: a store key.
        kind: of the record.
        life_version: of the record.
    """

    key: bytes
    kind: ResetKind
    life_version: int


@dataclass(frozen=True, slots=True)
class FindToken:
    """A token of Ambry's `StoreFindToken`.

    Attributes:
        version: 0 to 3; a token is written in its own version.
        kind: what it refers to.
        incarnation: a UUID; empty before version 2.
        session: a UUID; may be empty before version 2.
        log_segment: the name of a segment of the log; empty if the log has only one.
        offset: in that segment; None if uninitialised.
        key: the store key of an index token; else empty.
        inclusive: whether the record at the offset is still to be sent. Only journal tokens since version 2 store it.
        reset: since version 3.
    """

    version: int
    kind: Kind = Kind.UNINITIALIZED
    incarnation: str = ""
    session: str = ""
    log_segment: str = ""
    offset: int | None = None
    key: bytes = b""
    inclusive: bool = False
    reset: ResetKey | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The token of one partition at one peer.

    Attributes:
        partition: its id, ten bytes.
        host, path, port: of the peer's replica.
        bytes_read: how many bytes the peer has read from the local store.
    """

    partition: bytes
    host: str
    path: str
    port: int
    bytes_read: int
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


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The content of a file.

    Attributes:
        version: 0 or 1.
        entries: in their order. Of those with the same identity, the last counts.
    """

    version: int = 1
    entries: list[Entry] = field(default_factory=list)

    def latest(self) -> list[Entry]:
        """Return the entries without those that a later one replaces."""
        return [*{entry.identity: entry for entry in self.entries}.values()]


def encode(file: TokenFile) -> bytes:
    """Return the bytes of a file.

    Raises:
        InvalidInput: a value does not fit, or a version has no place for it.
    """
    if file.version not in _FILE_VERSIONS:
        raise InvalidInput(f"Ambry has no token file of version {file.version}", hint="Use version 1.")
    return sealed(integer(file.version, 2) + b"".join(_entry(each, file.version) for each in file.entries))


def decode(content: bytes, name: str) -> TokenFile:
    """Return the content of a file.

    Args:
        name: of the file, for messages.

    Raises:
        IntegrityError: it is damaged, not such a file, or has tokens of a cloud.
    """
    reader = opened(content, name)
    version = reader.integer(2)
    if version not in _FILE_VERSIONS:
        reader.fail(f"it has version {version}, and Ambry writes 0 and 1")
    entries = []
    while reader:
        entries.append(_read_entry(reader, version))
    return TokenFile(version, entries)


def encode_token(token: FindToken) -> bytes:
    """Return the bytes of one token.

    Raises:
        InvalidInput: as `encode`.
    """
    if token.reset is not None and token.version != 3:
        raise InvalidInput(f"a token of version {token.version} has no reset key", hint="Use version 3.")
    begin = integer(token.version, 2)
    if token.version == 0:
        return begin + _version_0(token)
    if token.version == 1:
        body = counted(token.session) + integer(token.kind, 2)
        return begin + body + (b"" if token.kind is Kind.UNINITIALIZED else _place(token) + token.key)
    if token.version not in (2, 3):
        raise InvalidInput(f"Ambry has no token of version {token.version}", hint="Use version 3.")
    begin += integer(token.kind, 2)
    if token.kind is Kind.UNINITIALIZED:
        return begin
    body = counted(token.incarnation) + counted(token.session) + _place(token)
    body += flag(token.inclusive) if token.kind is Kind.JOURNAL else token.key
    return begin + body + (_reset(token.reset) if token.version == 3 else b"")


def decode_token(reader: Reader) -> FindToken:
    """Read one token.

    Raises:
        IntegrityError: it is not one.
    """
    version = reader.integer(2)
    if version == 0:
        return _read_version_0(reader)
    if version not in (1, 2, 3):
        reader.fail(f"a token has version {version}")
    session = reader.text() if version == 1 else ""
    kind = _read_kind(reader)
    if kind is Kind.UNINITIALIZED:
        return FindToken(version, kind, session=session, inclusive=True)
    incarnation = ""
    if version > 1:
        incarnation, session = reader.text(), reader.text()
    log_segment, offset = _read_place(reader)
    inclusive = reader.flag() if version > 1 and kind is Kind.JOURNAL else False
    key = _read_key(reader) if kind is Kind.INDEX else b""
    reset = _read_reset(reader) if version == 3 and reader.flag() else None
    return FindToken(version, kind, incarnation, session, log_segment, offset, key, inclusive, reset)


def _entry(entry: Entry, version: int) -> bytes:
    if len(entry.partition) != _PARTITION_SIZE:
        raise InvalidInput(f"the id of a partition has {_PARTITION_SIZE} bytes, not {len(entry.partition)}")
    pieces = (entry.partition, counted(entry.host), counted(entry.path), integer(entry.port, 4))
    kind = integer(_ON_DISK, 2) if version > 0 else b""
    return b"".join((*pieces, integer(entry.bytes_read, 8), kind, encode_token(entry.token)))


def _read_entry(reader: Reader, version: int) -> Entry:
    partition, host, path = reader.take(_PARTITION_SIZE), reader.text(), reader.text()
    port, bytes_read = reader.integer(4), reader.integer(8)
    kind = reader.integer(2) if version > 0 else _ON_DISK
    if kind != _ON_DISK:
        reader.fail(f"a replica has type {kind}, and only tokens of type {_ON_DISK}, on disk, are known")
    return Entry(partition, host, path, port, bytes_read, decode_token(reader))


def _version_0(token: FindToken) -> bytes:
    if token.log_segment:
        raise InvalidInput("a token of version 0 has no log segment", hint="Use version 1.")
    offsets = dict.fromkeys(Kind, _NONE) | {token.kind: _NONE if token.offset is None else token.offset}
    journal, index = integer(offsets[Kind.JOURNAL], 8), integer(offsets[Kind.INDEX], 8)
    return counted(token.session) + journal + index + token.key


def _read_version_0(reader: Reader) -> FindToken:
    session, journal, index = reader.text(), reader.integer(8), reader.integer(8)
    if index != _NONE:
        if journal != _NONE:
            reader.fail("a token refers to the journal and to the index")
        return FindToken(0, Kind.INDEX, session=session, offset=index, key=_read_key(reader))
    if journal != _NONE:
        return FindToken(0, Kind.JOURNAL, session=session, offset=journal)
    return FindToken(0, session=session, inclusive=True)


def _read_kind(reader: Reader) -> Kind:
    number = reader.integer(2)
    try:
        return Kind(number)
    except ValueError:
        reader.fail(f"a token has type {number}")


def _place(token: FindToken) -> bytes:
    if token.offset is None:
        raise InvalidInput("a token that is initialised has an offset")
    return integer(0, 2) + counted(token.log_segment) + integer(token.offset, 8)


def _read_place(reader: Reader) -> tuple[str, int]:
    version = reader.integer(2)
    if version != 0:
        reader.fail(f"a place has version {version}")
    return reader.text(), reader.integer(8)


def _reset(reset: ResetKey | None) -> bytes:
    if reset is None:
        return flag(False)
    return flag(True) + reset.key + integer(reset.kind, 2) + integer(reset.life_version, 2)


def _read_reset(reader: Reader) -> ResetKey:
    key, number, life_version = _read_key(reader), reader.integer(2), reader.integer(2)
    try:
        return ResetKey(key, ResetKind(number), life_version)
    except ValueError:
        reader.fail(f"a reset key has type {number}")


def _read_key(reader: Reader) -> bytes:
    """Read a store key. Nothing says how long it is but its own fields."""
    start = reader.take(2)
    version = int.from_bytes(start, signed=True)
    if version not in _KEYS:
        reader.fail(f"a store key has version {version}")
    fields, uuid_size = _KEYS[version]
    body = reader.take(fields + _PARTITION_SIZE)
    return start + body + (reader.take(uuid_size) if uuid_size else counted(reader.counted()))
