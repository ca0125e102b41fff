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
from ondisk.replication.token import Fields, Reader, Writer, sealed

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

    version: int  # 0 to 3; a token is written in its own version
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


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The content of a file."""

    version: int = 1  # 0 or 1
    entries: list[Entry] = field(default_factory=list)  # of those with the same identity, the last counts

    def latest(self) -> list[Entry]:
        """Return the entries without those that a later one replaces."""
        return [*{entry.identity: entry for entry in self.entries}.values()]


def encode(file: TokenFile) -> bytes:
    """Return the bytes of a file; raise InvalidInput if a value does not fit, or a version has no place for it."""
    if file.version not in _FILE_VERSIONS:
        raise InvalidInput(f"Ambry has no token file of version {file.version}", hint="Use version 1.")
    writer = Writer()
    writer.integer(2, file.version)
    for each in file.entries:
        _entry(writer, file.version, each)
    return sealed(bytes(writer.content))


def decode(content: bytes, name: str) -> TokenFile:
    """Return the content of the file `name`; raise IntegrityError if it is none, damaged, or has tokens of a cloud."""
    reader = Reader.opened(content, name)
    version = reader.integer(2)
    if version not in _FILE_VERSIONS:
        reader.fail(f"it has version {version}, and Ambry writes 0 and 1")
    entries = []
    while reader:
        entries.append(_entry(reader, version))
    return TokenFile(version, entries)


def encode_token(token: FindToken) -> bytes:
    """Return the bytes of one token; errors are those of `encode`."""
    writer = Writer()
    _token(writer, token)
    return bytes(writer.content)


def decode_token(reader: Reader) -> FindToken:
    """Read one token; raise IntegrityError if it is none."""
    return _token(reader, FindToken(0))


# These read or write, see `Fields`; what they read into is the smallest of its kind.


def _entry(at: Fields, version: int, entry: Entry = Entry(b"", "", "", 0, 0, FindToken(0))) -> Entry:
    partition, host, path = at.take(_PARTITION_SIZE, entry.partition), at.text(entry.host), at.text(entry.path)
    port, bytes_read = at.integer(4, entry.port), at.integer(8, entry.bytes_read)
    kind = at.integer(2, _ON_DISK) if version > 0 else _ON_DISK
    if kind != _ON_DISK:
        at.fail(f"a replica has type {kind}, and only tokens of type {_ON_DISK}, on disk, are known")
    return Entry(partition, host, path, port, bytes_read, _token(at, entry.token))


def _token(at: Fields, token: FindToken) -> FindToken:
    version = at.integer(2, token.version)
    if token.reset is not None and version != 3:
        at.fail(f"a token of version {version} has no reset key", "Use version 3.")
    if version == 0:
        return _version_0(at, token)
    if version not in (1, 2, 3):
        at.fail(f"a token has version {version}", "Use version 3.")
    incarnation, session = "", at.text(token.session) if version == 1 else ""
    kind = at.kind("a token", token.kind)
    if kind is Kind.UNINITIALIZED:
        return FindToken(version, kind, session=session, inclusive=True)
    if version > 1:
        incarnation, session = at.text(token.incarnation), at.text(token.session)
    log_segment, offset = _place(at, token)
    inclusive = at.flag(value=token.inclusive) if version > 1 and kind is Kind.JOURNAL else False
    key = _key(at, token.key) if kind is Kind.INDEX else b""
    has_reset = version == 3 and at.flag(value=token.reset is not None)
    reset = _reset(at, token.reset or ResetKey(b"", ResetKind.PUT, 0)) if has_reset else None
    return FindToken(version, kind, incarnation, session, log_segment, offset, key, inclusive, reset)


def _version_0(at: Fields, token: FindToken) -> FindToken:
    if token.log_segment:
        at.fail("a token of version 0 has no log segment", "Use version 1.")
    offsets = dict.fromkeys(Kind, _NONE) | {token.kind: _NONE if token.offset is None else token.offset}
    session = at.text(token.session)
    journal, index = at.integer(8, offsets[Kind.JOURNAL]), at.integer(8, offsets[Kind.INDEX])
    if index != _NONE:
        if journal != _NONE:
            at.fail("a token refers to the journal and to the index")
        return FindToken(0, Kind.INDEX, session=session, offset=index, key=_key(at, token.key))
    if journal != _NONE:
        return FindToken(0, Kind.JOURNAL, session=session, offset=journal)
    return FindToken(0, session=session, inclusive=True)


def _place(at: Fields, token: FindToken) -> tuple[str, int]:
    version = at.integer(2, 0)
    if version != 0:
        at.fail(f"a place has version {version}")
    if token.kind is not Kind.UNINITIALIZED and token.offset is None:
        at.fail("a token that is initialised has an offset")
    return at.text(token.log_segment), at.integer(8, token.offset or 0)


def _reset(at: Fields, reset: ResetKey) -> ResetKey:
    return ResetKey(_key(at, reset.key), at.kind("a reset key", reset.kind), at.integer(2, reset.life_version))


def _key(at: Fields, key: bytes) -> bytes:
    """Pass through a store key. Nothing says how long it is but its own fields."""
    start = at.take(2, key[:2])
    version = int.from_bytes(start, signed=True)
    if version not in _KEYS:
        at.fail(f"a store key has version {version}")
    fields, uuid_size = _KEYS[version]
    end = 2 + fields + _PARTITION_SIZE
    body = at.take(end - 2, key[2:end])
    if uuid_size:
        return start + body + at.take(uuid_size, key[end:])
    uuid = at.counted(key[end + 4 :])
    return start + body + len(uuid).to_bytes(4) + uuid
