"""Tokens: how far a replica has followed a dataset, and how they are written to a file.

    Token file, integers big-endian:

        version          2   the letter O, and the version of the layout, 1
        entries              until eight bytes are left
        CRC              8   CRC-32 of all bytes before

    Entry:                   fields of n bytes follow their length in 4 bytes

        partition id     n   the UUID of the source
        host name        n   of the server of the source; empty for a path
        replica id       n   the UUID of the replica
        port             4   of the server; 0 for a path
        bytes read       8   from the source
        find token:
          size           8   the bytes after this field
          version        2   1
          session        8   who wrote the last change that the replica has
          offset         8   the number of that change
          index start    8   -1, or how far a full comparison is complete
          store key      n   of the datum that was compared last; empty without a comparison

The layout is the one of Ambry's document "Replication Files and Format". What Ambry's own code writes has other fields:
`ondisk.replication.ambry`. The first letter tells both apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ondisk.errors import VersionTooNew
from ondisk.replication.fields import Fields, Reader, Writer, damaged, sealed

NO_COMPARISON = -1
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The UUID of an index, as ondisk writes it. Compare all that a server sends with it (`fullmatch`)."""

_LETTER, _VERSION = ord("O"), 1
_TOKEN_VERSION = 1
_TOKEN_FIXED = 2 + 8 + 8 + 8 + 4


@dataclass(frozen=True, slots=True)
class Token:
    """A place in the order of changes of a dataset: all changes up to `offset` are known.

    Attributes:
        dataset: the UUID of the dataset's index.
        session: who wrote the change at `offset`; see `session` in `ondisk.index.tables`.
        offset: the number of a change; 0 for the begin.
        index_start: how far a full comparison is complete; -1 if none is in progress.
        key: of the datum that was compared last.
    """

    dataset: str
    session: int = 0
    offset: int = 0
    index_start: int = NO_COMPARISON
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Entry:
    """The token of one source, and where that is.

    Attributes:
        token: with the UUID of the source.
        replica: the UUID of the replica.
        host, port: of the server of the source; "" and 0 for a path.
        bytes_read: from the source, so far.
    """

    token: Token
    replica: str
    host: str = ""
    port: int = 0
    bytes_read: int = field(default=0, kw_only=True)

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """What two entries for the same source and replica have in common; the case of a host name means nothing."""
        return self.token.dataset, self.host.casefold(), self.replica, self.port

    def described(self) -> dict[str, Any]:
        """Return names and values, for people and programs."""
        token = self.token
        is_comparing = token.index_start != NO_COMPARISON
        return {
            "source": token.dataset,
            "host": self.host,
            "port": self.port,
            "replica": self.replica,
            "bytes_read": self.bytes_read,
            "session": f"{token.session % 2**64:016x}",
            "offset": token.offset,
            "index_start": token.index_start if is_comparing else None,
            "key": token.key.hex() if is_comparing else None,
        }


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The content of a token file.

    Attributes:
        entries: in their order. Of those with the same identity, the last counts.
    """

    entries: list[Entry]

    def latest(self) -> list[Entry]:
        """Return the entries without those that a later one replaces."""
        return [*{entry.identity: entry for entry in self.entries}.values()]


def encode(file: TokenFile) -> bytes:
    """Return the bytes of a token file.

    Raises:
        InvalidInput: a value does not fit.
    """
    writer = Writer()
    writer.take(2, bytes((_LETTER, _VERSION)))
    for each in file.entries:
        _entry(writer, each)
    return sealed(bytes(writer.content))


def decode(content: bytes, name: str) -> TokenFile:
    """Return the content of a token file.

    Args:
        name: of the file, for messages.

    Raises:
        IntegrityError: it is damaged, or not a token file of this layout.
        VersionTooNew: a newer ondisk wrote it.
    """
    reader = Reader.opened(content, name)
    letter, version = reader.take(2)
    if letter != _LETTER:
        raise _not_ours(name, letter << 8 | version)
    if version > _VERSION:
        hint = "Read it with that newer version."
        raise VersionTooNew(f"{name} has version {version}, this ondisk knows {_VERSION}", hint=hint, path=name)
    entries = []
    while reader:
        entries.append(_entry(reader))
    return TokenFile(entries)


def _entry(at: Fields, entry: Entry = Entry(Token(""), "")) -> Entry:
    """Read or write an entry, see `Fields`."""
    token = entry.token
    dataset, host, replica = at.text(token.dataset), at.text(entry.host), at.text(entry.replica)
    port, bytes_read = at.integer(4, entry.port), at.integer(8, entry.bytes_read)
    size, begin = at.integer(8, _TOKEN_FIXED + len(token.key)), at.position
    version = at.integer(2, _TOKEN_VERSION)
    if version != _TOKEN_VERSION:
        at.fail(f"a token has version {version}")
    numbers = at.integer(8, token.session), at.integer(8, token.offset), at.integer(8, token.index_start)
    found = Token(dataset, *numbers, at.counted(token.key))
    if at.position - begin != size:
        at.fail(f"a token has {size} bytes, and its fields end after {at.position - begin}")
    return Entry(found, replica, host, port, bytes_read=bytes_read)


def _not_ours(name: str, version: int) -> Exception:
    error = damaged(name, f"it has version {version}")
    error.hint = "It may be a file of Ambry: add --layout ambry (Python: `ondisk.replication.ambry`)."
    return error
