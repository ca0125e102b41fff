"""Tokens: how far a replica has followed a dataset; and token files, an export of them for people and other programs.

    NAME                     the tokens
    .NAME.PID                the next file, until it is complete
    NAME.bad, NAME.bad.2 …   damaged files, which were set aside

The layout is that of Ambry's document "Replication Files and Format"; `docs/replication.md` has it. What Ambry's own
code writes has other fields: `ondisk.replication.ambry_token_files`. The first letter tells both apart.
"""

from __future__ import annotations

import os
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, count
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from zlib_ng.zlib_ng import crc32

from ondisk.errors import IntegrityError, InvalidInput, NotFound, ReadOnly, VersionTooNew
from ondisk.filesystem import Directory

LARGEST = 4 * 1024 * 1024  # bytes of a token file, at most: some ten thousand entries
CHECKSUM_SIZE = 8
_E = TypeVar("_E", bound=IntEnum)
NO_COMPARISON = -1
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The UUID of an index, as ondisk writes it. Compare all that a server sends with it (`fullmatch`)."""

_LETTER, _VERSION = ord("O"), 1
_TOKEN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Token:
    """A place in the order of changes of a dataset: all changes up to `offset` are known."""

    dataset: str  # the UUID of the dataset's index
    session: int = 0  # who wrote the change at `offset`; see `session` in `ondisk.index.tables`
    offset: int = 0  # the number of a change; 0 for the begin
    index_start: int = NO_COMPARISON  # how far a full comparison is complete; -1 if none is in progress
    key: bytes = b""  # of the datum that was compared last


@dataclass(frozen=True, slots=True)
class Entry:
    """The token of one source, and where that is."""

    token: Token  # with the UUID of the source
    replica: str  # the UUID of the replica
    host: str = ""  # host, port: of the server of the source; "" and 0 for a path
    port: int = 0
    bytes_read: int = field(default=0, kw_only=True)  # from the source, so far

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """What two entries for the same source and replica have in common; the case of a host name means nothing."""
        return self.token.dataset, self.host.casefold(), self.replica, self.port

    def described(self) -> dict[str, Any]:
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


def latest(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without those that a later one, with the same identity, replaces."""
    return [*{entry.identity: entry for entry in entries}.values()]


def encode(entries: Iterable[Entry]) -> bytes:
    writer = Writer()
    writer.take(2, bytes((_LETTER, _VERSION)))
    for each in entries:
        _entry(writer, each)
    return sealed(bytes(writer.content))


def decode(content: bytes, name: str) -> list[Entry]:
    """Return the entries of the token file `name`, in their order; see `latest`.

    Raises IntegrityError if it is damaged or of another layout, VersionTooNew if a newer ondisk wrote it.
    """
    reader = Reader.opened(content, name)
    letter, version = reader.take(2)
    if letter != _LETTER:
        error = damaged(name, f"it has version {letter << 8 | version}")
        error.hint = "It may be a file of Ambry: add --layout ambry (Python: `ondisk.replication.ambry_token_files`)."
        raise error
    if version > _VERSION:
        hint = "Read it with that newer version."
        raise VersionTooNew(f"{name} has version {version}, this ondisk knows {_VERSION}", hint=hint, path=name)
    entries = []
    while reader:
        entries.append(_entry(reader))
    return entries


def _entry(at: Fields, entry: Entry = Entry(Token(""), "")) -> Entry:
    """Write an entry, or read one; see `Fields`."""
    token = entry.token
    dataset, host, replica = at.text(token.dataset), at.text(entry.host), at.text(entry.replica)
    port, bytes_read, size = (
        at.integer(4, entry.port),
        at.integer(8, entry.bytes_read),
        at.integer(8, 30 + len(token.key)),
    )
    begin, version = at.position, at.integer(2, _TOKEN_VERSION)
    if version != _TOKEN_VERSION:
        at.fail(f"a token has version {version}")
    session, offset, start = (at.integer(8, each) for each in (token.session, token.offset, token.index_start))
    found = Token(dataset, session, offset, start, at.counted(token.key))
    if at.position - begin != size:
        at.fail(f"a token has {size} bytes, and its fields end after {at.position - begin}")
    return Entry(found, replica, host, port, bytes_read=bytes_read)


class _Text(InvalidInput):
    """A file is a text, perhaps the secret of a server."""


def content_of(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a token file of any layout; raise NotFound, or InvalidInput if it is a text or too long."""
    with Directory.above(path) as directory:
        try:
            content = directory.read(Path(path).name, LARGEST)
        except FileNotFoundError:
            raise NotFound(f"{os.fspath(path)}: no such file", hint="Check the name of the token file.") from None
    if content and content.isascii() and b"\0" not in content:  # which all token files have
        message = f"{os.fspath(path)} is a text and no token file; it is left as it is"
        raise _Text(message, hint="The token of a server is passed with --server-token.")
    return content


def read(path: str | os.PathLike[str]) -> list[Entry]:
    return latest(decode(content_of(path), os.fspath(path)))


def update(path: str | os.PathLike[str], entries: Iterable[Entry]) -> str | None:
    """Write entries into a token file, and keep those of other sources and replicas.

    A damaged file is renamed, and another one begun: then what was wrong and its new name are returned. A text raises
    InvalidInput, and a file of a newer ondisk VersionTooNew; both are left as they are.

    Durability: writes a hidden file, syncs it, renames it, syncs the directory. A crash leaves the old file or the new
        one, and perhaps the hidden one.
    """
    before: list[Entry] = []
    aside = None
    try:
        before = read(path)
    except NotFound:
        pass
    except _Text:
        raise
    except (IntegrityError, InvalidInput) as error:
        aside = f"{error.message}; it is {_set_aside(path)} now"
    content, name = encode(latest([*before, *entries])), Path(path).name
    with Directory.above(path) as directory:
        try:
            directory.replace(name, content, staged=f".{name}.{os.getpid()}")
        except ReadOnly:
            hint = "Choose a file in a folder that this user may write to. The token is also in the replica's index."
            raise ReadOnly(f"{os.fspath(path)}: this user has no permission to write it", hint=hint) from None
    return aside


def _set_aside(path: str | os.PathLike[str]) -> Path:
    """Rename a file durably to the first free name of `NAME.bad`, `NAME.bad.2` …, and return its path."""
    name = Path(path).name
    with Directory.above(path) as directory:
        for free in chain([f"{name}.bad"], map(f"{name}.bad.{{}}".format, count(2))):
            try:
                directory.link(name, free)
            except FileExistsError:
                continue
            break
        directory.sync()
        directory.unlink(name)
        return directory.path / free


class Fields(ABC):
    """Passes through fields, one after the other: one function for each structure reads it and writes it.

    Each method gets the value of a field, and returns it: a `Writer` writes it, a `Reader` ignores it and returns what
    it reads.

    Raises, in every method:
        IntegrityError: the bytes that are read end before the field does, or its length is negative.
        InvalidInput: the value that is written does not fit.
    """

    position: int = 0  # of the next byte

    @abstractmethod
    def take(self, size: int, value: bytes = b"") -> bytes: ...

    @abstractmethod
    def fail(self, problem: str, hint: str = "") -> NoReturn:
        """Raise the error for fields that make no sense."""

    def integer(self, size: int, value: int = 0) -> int:
        try:
            return int.from_bytes(self.take(size, value.to_bytes(size, signed=True)), signed=True)
        except OverflowError:
            raise InvalidInput(f"{value} does not fit into {size} bytes") from None

    def counted(self, value: bytes = b"") -> bytes:
        return self.take(self.integer(4, len(value)), value)

    def text(self, value: str = "") -> str:
        """A text that follows its length; bytes that are not UTF-8 are escaped."""
        try:
            content = value.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise InvalidInput(f"the text {value!r:.80} is not valid Unicode") from None
        return self.counted(content).decode(errors="surrogateescape")

    def flag(self, *, value: bool = False) -> bool:
        found = self.integer(1, value)
        if found not in (0, 1):
            self.fail(f"a flag is {found}")
        return found == 1

    def kind(self, what: str, value: _E) -> _E:
        number = self.integer(2, value)
        try:
            return type(value)(number)
        except ValueError:
            self.fail(f"{what} has type {number}")


class Writer(Fields):
    """Writes fields. `content`: what was written."""

    def __init__(self) -> None:
        self.content = bytearray()

    def take(self, size: int, value: bytes = b"") -> bytes:
        if len(value) != size:
            self.fail(f"a field has {size} bytes, not {len(value)}")
        self.content += value
        self.position += size
        return value

    def fail(self, problem: str, hint: str = "") -> NoReturn:
        raise InvalidInput(problem, hint=hint)


class Reader(Fields):
    """Reads fields, and never past the end of the bytes. `name`: of the file, for messages.

    A length is compared with the bytes that are left before anything is allocated for it.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        self._name = name

    @classmethod
    def opened(cls, content: bytes, name: str) -> Reader:
        """Return a reader of a token file's content, whose checksum is right; raise IntegrityError if it is not."""
        if len(content) < CHECKSUM_SIZE + 2:
            raise damaged(name, f"it has {len(content)} bytes")
        body, stored = content[:-CHECKSUM_SIZE], int.from_bytes(content[-CHECKSUM_SIZE:])
        if (computed := crc32(body)) != stored:
            raise damaged(name, f"its checksum is {stored:#x}, that of its bytes is {computed:#x}")
        return cls(body, name)

    def __bool__(self) -> bool:
        return self.position < len(self._content)

    def take(self, size: int, value: bytes = b"") -> bytes:
        left = len(self._content) - self.position
        if not 0 <= size <= left:
            self.fail(f"a field of {size} bytes, and {left} are left")
        self.position += size
        return self._content[self.position - size : self.position]

    def fail(self, problem: str, hint: str = "") -> NoReturn:
        raise damaged(self._name, f"near byte {self.position}: {problem}")


def sealed(content: bytes) -> bytes:
    return content + struct.pack(">q", crc32(content))


def damaged(name: str, problem: str) -> IntegrityError:
    hint = "Restore it from a backup, or remove it: the program that wrote it will write it again."
    return IntegrityError(f"{name} is damaged: {problem}", hint=hint, path=name)
