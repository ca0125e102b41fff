"""The connections of a process to one index file: readers that queries borrow, and one writer."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator

from ondisk.errors import OndiskError
from ondisk.filesystem import Directory
from ondisk.index.connection import LENT, Connection, connect_to_write
from ondisk.index.where import add_functions

_POOLED = 8


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
