"""Copies of an index: SQLite files that nobody else opens until they get their name."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from typing import TypeAlias

from ondisk.filesystem import Directory
from ondisk.index.built_for import revision_of
from ondisk.index.connection import INDEX, connect_to_read, connect_to_write, sqlite_errors
from ondisk.index.tide import TIDE, TideMark, save
from ondisk.segment import Facts

Placed: TypeAlias = tuple[int, int, Facts]
"""A generation, and what an index records of its file: its committed size, and its facts."""


def copy(directory: Directory, source: sqlite3.Connection, name: str) -> sqlite3.Connection:
    """Copy an index to a new file, and open it. Without a journal: a copy that fails is deleted.

    Args:
        source: a connection; in a transaction, the copy is what the transaction sees.
    """
    remove(directory, name)
    directory.create_file(name).close()
    connection = sqlite3.connect(directory.path / name, isolation_level=None)
    try:
        # Exclusive, it needs no `-shm`. On a disk too full for `-shm` SQLite would report another error.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchone()
        source.backup(connection)
        for setting in ("trusted_schema=OFF", "synchronous=OFF", "journal_mode=DELETE", "journal_mode=OFF"):
            connection.execute(f"PRAGMA {setting}").fetchone()
    except BaseException:
        connection.close()
        remove(directory, name)
        raise
    return connection


def place(directory: Directory, name: str, segments: Iterable[Placed]) -> None:
    """Record in a copy of an index where its segments are now, and make it durable.

    Args:
        segments: those whose files have other facts than the index has recorded.

    Raises:
        VersionTooNew: a newer ondisk has made it.
        IndexCorrupt: it is not an index of ondisk.
        sqlite3.Error: for the caller's `sqlite_errors`.

    Durability: synced.
    """
    connection = sqlite3.connect(directory.path / name, isolation_level=None)
    try:
        for setting in ("locking_mode=EXCLUSIVE", "trusted_schema=OFF", "synchronous=OFF", "journal_mode=OFF"):
            connection.execute(f"PRAGMA {setting}").fetchone()
        revision_of(connection, directory)
        connection.execute("BEGIN")
        sql = (
            "UPDATE segment SET size = ?2, length = iif(compressed OR ?2 = size, length, ?2), mtime = ?3, inode = ?4,"
            " tail = ?5, checksum = ?6 WHERE id = ?1"
        )
        rows = ((id_, size, facts.mtime, facts.inode, facts.tail, facts.checksum) for id_, size, facts in segments)
        connection.executemany(sql, rows)
        connection.execute("COMMIT")
        mode = "delete" if directory.is_network() else "wal"
        connection.execute(f"PRAGMA journal_mode={mode}").fetchone()
    finally:
        connection.close()
    sync(directory, name)


def sync(directory: Directory, name: str) -> None:
    """Make a copy durable that is closed, or to which nothing more is written."""
    with directory.open_to_write(name) as file:
        file.sync()


def remove(directory: Directory, name: str) -> None:
    """Remove a copy, and what SQLite has left beside it."""
    directory.discard(*(name + suffix for suffix in ("", "-journal", "-wal", "-shm")))


def put_in_place(directory: Directory, name: str) -> None:
    """Rename a copy to the index of a directory that has no index yet, and write its tide mark.

    The caller must hold the lock under which the dataset is made.

    Durability: removes what a killed process has left of another index; renames the copy, and syncs the directory.
    """
    directory.discard(TIDE, *(INDEX + suffix for suffix in ("-journal", "-wal", "-shm")))
    directory.sync()  # else a power cut could keep the rename and lose an unlink
    directory.rename(name, INDEX)
    with contextlib.ExitStack() as stack, sqlite_errors(directory):
        # A reader that is closed last keeps -wal and -shm: readers without permission to write need them.
        reader = stack.enter_context(contextlib.closing(connect_to_read(directory)))
        writer = stack.enter_context(contextlib.closing(connect_to_write(directory)))
        for statement in ("BEGIN IMMEDIATE", "UPDATE dataset SET seq = seq", "COMMIT"):
            writer.execute(statement)
        ((uuid, *numbers),) = reader.execute("SELECT uuid, seq, generation FROM dataset").fetchall()
    seq, generation = numbers
    save(directory, TideMark(uuid, seq, generation, (seq, generation)))
