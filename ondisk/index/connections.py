"""The connections of a process to one index file: readers that queries borrow, and one writer.

Also its write-ahead log: checkpoints, and how the space of rows that were removed is given back; the caller must hold
the writers' lock for that.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator

from ondisk.errors import DurabilityLost, OndiskError
from ondisk.filesystem import Directory
from ondisk.index.connection import INDEX, LENT, WAL_LIMIT, Connection, connect_to_write, sqlite_errors
from ondisk.index.where import add_functions

_POOLED = 8
_LARGE_WAL = 64 * 1024 * 1024  # bytes
_PATIENCE = 2_000  # milliseconds
_SPARE = 64 * 1024  # bytes that a log may be too long
_WORTH_SHRINKING = 1024 * 1024  # bytes
_LONG = 1024 * 1024  # bytes of a log that take longer to read than a query of one datum


class Connections:
    """The open connections to an index.

    Attributes:
        process: that has made them; SQLite's connections do not survive a fork.
    """

    def __init__(self, directory: Directory, connect: Callable[[], Connection]) -> None:
        self.directory = directory
        self.process = os.getpid()
        self._connect = connect
        self._readers: list[Connection] = []
        self._borrowed: set[Connection] = set()
        self._writer: Connection | None = None
        self._idle_writer: list[Connection] = []
        self._open: set[Connection] = set()
        self._is_closing = False  # SQLite still has the descriptors of a closed connection
        self._closed = False

    def writer(self) -> Connection:
        """Return the writing connection, until `rest`. The caller must hold the writers' lock."""
        if self._writer is None:
            try:
                self._writer = self._idle_writer.pop()
            except IndexError:
                self._writer = connect_to_write(self.directory)
                self._add(self._writer)
        return self._writer

    def rest(self) -> None:
        """End the use of the writing connection, which may be closed then."""
        if self._writer is not None:
            self._idle_writer.append(self._writer)
            self._writer = None
            if self._is_closing:
                self._close_unused()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend the writing connection, for the length of the block, in a transaction or outside."""
        is_alone = self._writer is None
        try:
            yield self.writer()
        finally:
            if is_alone:
                self.rest()

    def close(self, *, queries: bool = True) -> None:
        """Close all connections, a reading one last: then SQLite keeps `-wal` and `-shm`.

        Args:
            queries: end running queries, too; otherwise each closes its connection at its end.
        """
        if os.getpid() != self.process:
            return
        self._closed = True
        with contextlib.ExitStack() as last:
            if self._writer is not None:
                self._idle_writer.append(self._writer)
                self._writer = None
            if self._idle_writer:
                with contextlib.suppress(OndiskError, sqlite3.Error):
                    # SQLite keeps `-wal` and `-shm` only for a connection that has read.
                    reader = self.borrow()
                    last.callback(self.give_back, reader)
                    reader.execute("SELECT 1 FROM dataset").fetchone()
                self._close_all(self._idle_writer)
        self._close_all(self._readers)
        while queries and self._borrowed:
            self._close(self._borrowed.pop())

    def _close_all(self, connections: list[Connection]) -> None:
        while connections:
            self._close(connections.pop())

    def _close(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)
        self._is_closing = True

    def _close_unused(self) -> None:
        """Close all connections when nobody uses one, but one was closed before.

        SQLite keeps the descriptors of a closed connection until this process has no lock on the index, and each open
        connection has one. Without this, those of many queries at once would stay open. Other threads may borrow a
        connection meanwhile: then the next one that is given back closes the rest.
        """
        if self._borrowed or self._writer is not None or os.getpid() != self.process:
            return
        try:
            last = self._readers.pop()  # see `close`
        except IndexError:
            return
        self._close_all(self._idle_writer)
        self._close_all(self._readers)
        self._close(last)
        self._is_closing = bool(self._open)

    def keep(self, connection: Connection) -> None:
        """Keep a connection that was made elsewhere for the next reader."""
        self._add(connection)
        self.give_back(connection)

    def _add(self, connection: Connection) -> None:
        add_functions(connection)
        self._open.add(connection)

    def borrow(self) -> Connection:
        """Return a connection for reading; `give_back` ends the loan."""
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._connect()
            self._add(connection)
        self._borrowed.add(connection)
        if (lent := LENT.get()) is not None:
            lent.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """End the transaction of a borrowed connection, and keep it for the next reader, or close it."""
        self._borrowed.discard(connection)
        if (lent := LENT.get()) is not None:
            lent.remove(connection)
        try:
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.Error:
            self._close(connection)
        else:
            # A connection with the shared lock blocks checkpoints, and is not kept.
            if len(self._readers) < _POOLED and connection.shared_lock is None and not self._closed:
                self._readers.append(connection)
            else:
                self._close(connection)
        if self._is_closing:
            self._close_unused()

    def checkpoint(self) -> bool:
        """Move the commits in the write-ahead log into the main file, as far as readers allow.

        Returns:
            Whether nobody reads an older snapshot any more.
        """
        with (
            self.writing() as connection,
            sqlite_errors(self.directory),
            self.directory.exclusive_if_free() as free,
        ):
            if not free:  # somebody reads the main file without the log, see connect_to_read
                return False
            wal = self.directory.stat(f"{INDEX}-wal")
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

    def shrink(self) -> None:
        """Give back the space of removed rows, if it is more than half of the index, and that of a long log.

        Readers are not disturbed: they keep their state of the index.

        Raises:
            DurabilityLost: a sync failed.

        Cost: nothing, or writes the rows that are left twice.
        """
        connection = self.writer()
        try:
            with sqlite_errors(self.directory):
                free, pages, size = (
                    connection.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("freelist_count", "page_count", "page_size")
                )
                if 2 * free > pages and free * size > _WORTH_SHRINKING:
                    connection.execute("VACUUM")
                    self.checkpoint()
        except DurabilityLost:
            raise
        except OndiskError:
            pass  # the disk may be too full for it; SQLite has undone what it tried
        self.shrink_log()

    def shrink_log(self) -> None:
        """Cut the write-ahead log to an eighth of the index (64 KiB to `WAL_LIMIT`), if no reader needs it.

        A transaction that is rolled back, or killed, leaves the log as long as it has made it: on a full disk, most of
        the disk. SQLite cuts the log with the first commit after a checkpoint, so this commits a page unchanged.

        Raises:
            DurabilityLost: a sync failed.
        """
        connection = self.writer()
        try:
            if self.checkpoint() and (kept := has_long_log(self.directory)) is not None:
                with sqlite_errors(self.directory):
                    connection.execute(f"PRAGMA journal_size_limit={kept}")
                self.begin_log()
        except DurabilityLost:
            raise
        except OndiskError:
            pass  # the log takes space only, and the next opening for writing tries again
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT}")
            self.rest()

    def settle_log(self) -> None:
        """Commit a page unchanged: then the write-ahead log ends with what is seen now, and that is durable.

        A process that is killed while it syncs a commit leaves the commit in the log. While other processes have the
        index open, nobody sees it. A process that opens the index later sees the commit. It may not be durable.

        Raises:
            DiskFull, DurabilityLost: the commit failed.
        """
        with self.writing() as connection, sqlite_errors(self.directory):
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("UPDATE dataset SET seq = seq + 1")  # SQLite writes no page for `seq = seq`
                connection.execute("UPDATE dataset SET seq = seq - 1")
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def begin_log(self) -> None:
        """Let a log whose commits are all in the main file begin again, with a commit of a page unchanged.

        Its file stays as long as it is, see `WAL_LIMIT`. But the next process that opens the index ignores the older
        commits in it, instead of reading them all.

        Raises:
            DiskFull, DurabilityLost: the commit failed.
        """
        self.settle_log()
        self.checkpoint()


def is_long(directory: Directory) -> bool:
    """Return whether the log takes long to read: the first process that opens an index reads all commits in its log."""
    log = directory.stat(f"{INDEX}-wal")
    return log is not None and log.st_size > _LONG


def has_long_log(directory: Directory) -> int | None:
    """Return to how many bytes the write-ahead log should be cut, so that deleting works; None if it is not longer."""
    log, index = directory.stat(f"{INDEX}-wal"), directory.stat(INDEX)
    if log is None or index is None:
        return None
    kept = min(WAL_LIMIT, max(index.st_size // 8, _SPARE))
    return kept if log.st_size > kept + _SPARE else None
