"""The token file of a replica: an export of the tokens in its index, for people and for other programs.

NAME                     the entries, see `ondisk.replication.token`
.NAME.PID                the next file, until it is complete
NAME.bad, NAME.bad.2 …   damaged files, which were set aside
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from ondisk.errors import IntegrityError, InvalidInput, NotFound, ReadOnly
from ondisk.filesystem import Directory
from ondisk.replication.fields import LARGEST
from ondisk.replication.token import Entry, TokenFile, decode, encode


class _Text(InvalidInput):
    """A file is a text, perhaps the secret of a server."""


def content_of(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a token file of any layout.

    Raises:
        NotFound: it does not exist.
        InvalidInput: it is too large for a token file, or a text.
        StorageError: it cannot be read, or is not a regular file.
    """
    with Directory.above(path) as directory:
        try:
            content = directory.read(_name(path), LARGEST)
        except FileNotFoundError:
            raise NotFound(f"{os.fspath(path)}: no such file", hint="Check the name of the token file.") from None
    if content and content.isascii() and b"\0" not in content:  # which all token files have
        message = f"{os.fspath(path)} is a text and no token file; it is left as it is"
        raise _Text(message, hint="The token of a server is passed with --server-token.")
    return content


def read(path: str | os.PathLike[str]) -> list[Entry]:
    """Return the entries of a token file of ondisk; of those with the same identity, only the last.

    Raises:
        IntegrityError, VersionTooNew: as `decode`.
        Also the errors of `content_of`.
    """
    return decode(content_of(path), os.fspath(path)).latest()


def update(path: str | os.PathLike[str], entries: Iterable[Entry]) -> str | None:
    """Write entries into a token file, and keep those of other sources and replicas.

    A damaged file is renamed, and another one begun.

    Returns:
        What was wrong with the file and what its name is now, or None.

    Raises:
        VersionTooNew: a newer ondisk wrote the file. It is left as it is.
        InvalidInput: it is a text. It is left as it is.
        DiskFull, ReadOnly, StorageError: it cannot be written. The old one is there.

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
    content = encode(TokenFile(TokenFile([*before, *entries]).latest()))
    with Directory.above(path) as directory:
        name = _name(path)
        try:
            directory.replace(name, content, staged=f".{name}.{os.getpid()}")
        except ReadOnly:
            hint = "Choose a file in a folder that this user may write to. The token is also in the replica's index."
            raise ReadOnly(f"{os.fspath(path)}: this user has no permission to write it", hint=hint) from None
    return aside


def _set_aside(path: str | os.PathLike[str]) -> Path:
    """Rename a file to the first free name of `NAME.bad`, `NAME.bad.2` …, and return its path.

    Durability: syncs the directory before the old name is removed.
    """
    name = _name(path)
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


def _name(path: str | os.PathLike[str]) -> str:
    return Path(path).name
