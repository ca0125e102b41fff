"""The write-ahead log of an index: checkpoints, and how the space of rows that were removed is given back.

The caller must hold the writers' lock.
"""

from __future__ import annotations

import contextlib
import sqlite3

from ondisk.errors import DurabilityLost, OndiskError
from ondisk.filesystem import Directory
from ondisk.index.connection import INDEX, WAL_LIMIT, sqlite_errors
from ondisk.index.connections import Connections

_LARGE_WAL = 64 * 1024 * 1024  # bytes
_PATIENCE = 2_000  # milliseconds
_SPARE = 64 * 1024  # bytes that a log may be too long
_WORTH_SHRINKING = 1024 * 1024  # bytes
_LONG = 1024 * 1024  # bytes of a log that take longer to read than a query of one datum


def checkpoint(connections: Connections) -> bool:
    """Move the commits in the write-ahead log into the main file, as far as readers allow.

    Returns:
        Whether nobody reads an older snapshot any more.
    """
    with (
        connections.writing() as connection,
        sqlite_errors(connections.directory),
        connections.directory.exclusive_if_free() as free,
    ):
        if not free:  # somebody reads the main file without the log, see connect_to_read
            return False
        wal = connections.directory.stat(f"{INDEX}-wal")
        patience = _PATIENCE if wal is not None and wal.st_size > _LARGE_WAL else 0
        try:
            connection.execute(f"PRAGMA busy_timeout={patience}")
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.OperationalError as error:
            # On a full disk the main file cannot grow. The next commit tries again.
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                return False
            raise
        finally:
            connection.execute("PRAGMA busy_timeout=10000")
    return bool(busy == 0)


def shrink(connections: Connections) -> None:
    """Give back the space of removed rows, if it is more than half of the index, and that of a long log.

    Readers are not disturbed: they keep their state of the index.

    Raises:
        DurabilityLost: a sync failed.

    Cost: nothing, or writes the rows that are left twice.
    """
    connection = connections.writer()
    try:
        with sqlite_errors(connections.directory):
            free, pages, size = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("freelist_count", "page_count", "page_size")
            )
            if 2 * free > pages and free * size > _WORTH_SHRINKING:
                connection.execute("VACUUM")
                checkpoint(connections)
    except DurabilityLost:
        raise
    except OndiskError:
        pass  # the disk may be too full for it; SQLite has undone what it tried
    shrink_log(connections)


def shrink_log(connections: Connections) -> None:
    """Cut the write-ahead log to an eighth of the index (64 KiB to `WAL_LIMIT`), if no reader needs it.

    A transaction that is rolled back, or killed, leaves the log as long as it has made it: on a full disk, most of
    the disk. SQLite cuts the log with the first commit after a checkpoint, so this commits a page unchanged.

    Raises:
        DurabilityLost: a sync failed.
    """
    connection = connections.writer()
    try:
        if checkpoint(connections) and (kept := has_long_log(connections.directory)) is not None:
            with sqlite_errors(connections.directory):
                connection.execute(f"PRAGMA journal_size_limit={kept}")
            begin_log(connections)
    except DurabilityLost:
        raise
    except OndiskError:
        pass  # the log takes space only, and the next opening for writing tries again
    finally:
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT}")
        connections.rest()


def settle_log(connections: Connections) -> None:
    """Commit a page unchanged: then the write-ahead log ends with what is seen now, and that is durable.

    A process that is killed while it syncs a commit leaves the commit in the log. While other processes have the
    index open, nobody sees it. A process that opens the index later sees the commit. It may not be durable.

    Raises:
        DiskFull, DurabilityLost: the commit failed.
    """
    with connections.writing() as connection, sqlite_errors(connections.directory):
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE dataset SET seq = seq + 1")  # SQLite writes no page for `seq = seq`
            connection.execute("UPDATE dataset SET seq = seq - 1")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def is_long(directory: Directory) -> bool:
    """Return whether the log takes long to read: the first process that opens an index reads all commits in its log."""
    log = directory.stat(f"{INDEX}-wal")
    return log is not None and log.st_size > _LONG


def begin_log(connections: Connections) -> None:
    """Let a log whose commits are all in the main file begin again, with a commit of a page unchanged.

    Its file stays as long as it is, see `WAL_LIMIT`. But the next process that opens the index ignores the older
    commits in it, instead of reading them all.

    Raises:
        DiskFull, DurabilityLost: the commit failed.
    """
    settle_log(connections)
    checkpoint(connections)


def has_long_log(directory: Directory) -> int | None:
    """Return to how many bytes the write-ahead log should be cut, so that deleting works; None if it is not longer."""
    log, index = directory.stat(f"{INDEX}-wal"), directory.stat(INDEX)
    if log is None or index is None:
        return None
    kept = min(WAL_LIMIT, max(index.st_size // 8, _SPARE))
    return kept if log.st_size > kept + _SPARE else None
