"""Staged rows: what processes write for the one that commits, each to its own SQLite file.

Rows of data that are to be appended, or of a segment that was rewritten:

    piece    consecutive data in a file of bytes, which will be consecutive in a segment, too: their place and their
             totals; `part` names the file
    block    the blocks of a compressed piece; offset and position count from its begin
    value    texts and bytes; `datum` contains their ids, 0 for a missing field
    datum    as in the index, with a piece in place of the segment; the offset counts from the begin of the piece
    beside   in formats with one file for each datum: the bytes stored next to it
    place    of a rewriting: the `seq`, old offset and new offset of each datum
    resized  of a rewriting: the `seq` and new size of each datum, if the segment stores data in another way now

`seq` and ids count from 1. Nothing is synced: the process that stores the rows makes them durable.
`ondisk.staging.bulk_insert` reads these files.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from typing import Any

from zlib_ng.zlib_ng import crc32

from ondisk.datum import FieldType
from ondisk.filesystem import Closing, Directory
from ondisk.formats import Batch
from ondisk.index.connection import SQLITE_ERRORS, address, pragmas, sqlite_errors
from ondisk.index.tables import insert_rows, stored_columns
from ondisk.segment import Block
from ondisk.staging.jobs import Changed, create_staged

_NUMBERS = ("position", "size", "length", "count", "data_size", "compressed", "kind")
_TABLES = (
    f"piece (id INTEGER PRIMARY KEY, part TEXT, name TEXT, format TEXT, {' INTEGER, '.join(_NUMBERS)} INTEGER)",
    'block (piece INTEGER, "offset" INTEGER, position INTEGER, stored INTEGER)',
    "value (id INTEGER PRIMARY KEY, value ANY)",
    "beside (seq INTEGER PRIMARY KEY, content BLOB)",
    "place (seq INTEGER PRIMARY KEY, before INTEGER, after INTEGER)",
    "resized (seq INTEGER PRIMARY KEY, size INTEGER)",
)
_SETTINGS = ("trusted_schema=OFF", "synchronous=OFF", "journal_mode=OFF", "locking_mode=EXCLUSIVE")
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive data in a staged file, which will be consecutive in a segment, too."""

    id: int  # its number
    part: str  # the file with their bytes
    name: str  # of the segment
    format: str  # of the data
    position: int  # of their first byte in the file
    size: int  # their bytes in the file
    length: int  # their decompressed bytes
    count: int  # how many data
    data_size: int  # the bytes of the data, without padding
    compressed: bool  # whether they are stored in blocks
    kind: int  # as `End.kind`
    is_whole: bool = True  # whether a commit stores all of them: none is a duplicate; not a column


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of rows that another process wrote."""

    name: str  # in the dataset's directory
    checksum: int  # CRC-32 of all its bytes

    @classmethod
    def of(cls, directory: Directory, name: str) -> StagedFile:
        return cls(name, _checksum(directory, name))

    def verify(self, directory: Directory) -> None:
        """Raise `Changed` unless the file is there and whole."""
        try:
            checksum = _checksum(directory, self.name)
        except FileNotFoundError:
            raise Changed from None
        if checksum != self.checksum:
            raise Changed

    def discard(self, directory: Directory) -> None:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(self.name)


def _checksum(directory: Directory, name: str) -> int:
    file, position, checksum = directory.open_to_read(name), 0, 0
    while content := file.read(position, _CHUNK):
        position, checksum = position + len(content), crc32(content, checksum)
    return checksum


class StagedRows(Closing):
    """A file of rows that is being written. A context manager: closes the file."""

    def __init__(self, directory: Directory, name: str, kinds: Mapping[str, FieldType]) -> None:
        self._directory = directory
        self._kinds = kinds
        self._ids = _ValueIds()
        self._seq = self._pieces = 0
        self._connection = _create(directory, name, kinds)
        columns = ("reftime", "piece", '"offset"', "size", *(f"f_{name}" for name in kinds))
        self._insert_into = f"INSERT INTO datum ({', '.join(columns)})"

    def add_piece(self, piece: Piece, blocks: Sequence[Block]) -> int:
        """Add a piece, and return its id; `piece.id` is ignored."""
        self._pieces += 1
        with sqlite_errors(self._directory):
            *row, _ = astuple(replace(piece, id=self._pieces))
            self._connection.execute("INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            rows = ((self._pieces, *block) for block in blocks)
            self._connection.executemany("INSERT INTO block VALUES (?, ?, ?, ?)", rows)
        return self._pieces

    def add(self, batch: Batch, pieces: Sequence[int], offsets: Sequence[int]) -> None:
        """Add the data of a batch, with the pieces and offsets at which they are stored."""
        first = self._seq + 1
        columns = batch.reftimes, pieces, offsets, list(map(len, batch.payloads))
        self._seq += len(batch.reftimes)
        fields = stored_columns(batch.metadata, self._kinds, lambda values: list(map(self._ids.__getitem__, values)))
        with sqlite_errors(self._directory):
            # SQLite assigns each `seq`: the next number, as no row is ever removed.
            insert_rows(self._connection, self._insert_into, (*columns, *fields))
            self._connection.executemany("INSERT INTO value VALUES (?, ?)", self._ids.taken())
        if batch.beside:
            self._add_rows("INSERT INTO beside VALUES (?, ?)", enumerate(batch.beside, first))

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Add new places of data: (seq, old offset, new offset)."""
        self._add_rows("INSERT INTO place VALUES (?, ?, ?)", places)

    def resize(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Add new sizes of data: (seq, size)."""
        self._add_rows("INSERT INTO resized VALUES (?, ?)", sizes)

    def save_blocks(self, blocks: Iterable[Block]) -> None:
        self._add_rows("INSERT INTO block VALUES (0, ?, ?, ?)", blocks)

    def _add_rows(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with sqlite_errors(self._directory):
            self._connection.executemany(sql, rows)

    @property
    def count(self) -> int:
        return self._seq

    def finish(self) -> None:
        with sqlite_errors(self._directory):
            self._connection.execute("COMMIT")
        self.close()

    def close(self) -> None:
        """Close the file. Without `finish` it is useless. A second call does nothing."""
        self._connection.close()


class _ValueIds(dict[Any, int]):
    """Value → id, in the order of the look-ups."""

    def __init__(self) -> None:
        super().__init__({None: 0})
        self._new: list[tuple[int, Any]] = []

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        self._new.append((self[value], value))
        return self[value]

    def taken(self) -> list[tuple[int, Any]]:
        """Return the ids and values that are new since the last call."""
        new, self._new = self._new, []
        return new


def _reading(directory: Directory, name: str) -> sqlite3.Connection:
    return sqlite3.connect(address(directory.held(name), "immutable=1"), uri=True)


def merge(directory: Directory, names: Sequence[str], merged: str, kinds: Mapping[str, FieldType]) -> None:
    """Write the rows of some files to a new one, in their order."""
    connection = _create(directory, merged, kinds)
    try:
        with sqlite_errors(directory):
            connection.execute("COMMIT")
            for name in names:
                connection.execute("ATTACH ? AS more", (os.fsencode(directory.held(name)),))  # it need not be UTF-8
                connection.execute("BEGIN")
                for sql in _merging(connection, kinds):
                    connection.execute(sql)
                connection.execute("COMMIT")
                connection.execute("DETACH more")
    finally:
        connection.close()


def damaged(directory: Directory, names: Sequence[str]) -> str | None:
    """Read all files, and return the path of a damaged one, such as a part of one; None if all are whole."""
    for name in names:
        path = directory.path / name
        try:
            with closing(_reading(directory, name)) as connection:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                connection.execute("SELECT 1 FROM datum")
        except SQLITE_ERRORS:
            return str(path)
        if found != "ok":
            return str(path)
    return None


def _merging(connection: sqlite3.Connection, kinds: Mapping[str, FieldType]) -> list[str]:
    """Return the statements that add the rows of `more`, with numbers after the present ones."""
    seq, piece, value = (
        connection.execute(f"SELECT ifnull(max({key}), 0) FROM main.{table}").fetchone()[0]
        for key, table in (("seq", "datum"), ("id", "piece"), ("id", "value"))
    )
    fields = "".join(
        f", iif(f_{name}, f_{name} + {value}, 0)" if kind.interned else f", f_{name}" for name, kind in kinds.items()
    )
    others = ", ".join(("part", "name", "format", *_NUMBERS))
    return [
        f"INSERT INTO main.piece SELECT id + {piece}, {others} FROM more.piece",
        f'INSERT INTO main.block SELECT piece + {piece}, "offset", position, stored FROM more.block',
        f"INSERT INTO main.value SELECT id + {value}, value FROM more.value",
        f"INSERT INTO main.beside SELECT seq + {seq}, content FROM more.beside",
        f'INSERT INTO main.datum SELECT seq + {seq}, reftime, piece + {piece}, "offset", size{fields} FROM more.datum',
    ]


def _create(directory: Directory, name: str, kinds: Mapping[str, FieldType]) -> sqlite3.Connection:
    """Create an empty file, and return a connection in a transaction."""
    create_staged(directory, name).close()
    connection = sqlite3.connect(directory.held(name), isolation_level=None)
    try:
        with sqlite_errors(directory):
            pragmas(connection, *_SETTINGS)
            connection.execute("BEGIN")
            for table in _TABLES:
                connection.execute(f"CREATE TABLE {table} STRICT")
            fields = "".join(
                f", f_{name} {'REAL' if kind is FieldType.REAL else 'INTEGER'}" for name, kind in kinds.items()
            )
            own = f'seq INTEGER PRIMARY KEY, reftime INTEGER, piece INTEGER, "offset" INTEGER, size INTEGER{fields}'
            connection.execute(f"CREATE TABLE datum ({own}) STRICT")
    except BaseException:
        connection.close()
        raise
    return connection
