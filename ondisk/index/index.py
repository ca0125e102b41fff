"""An open `index.sqlite`: its revision, its configuration, and connections to read and write it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, converter
from ondisk.errors import (
    ConfigError,
    DurabilityLost,
    InvalidInput,
    NeedsMigration,
    OndiskError,
    StateError,
    command,
)
from ondisk.filesystem import Directory
from ondisk.index import tide
from ondisk.index.built_for import built_for, built_for_values, check_revision, check_tables, dump
from ondisk.index.changes import new_session
from ondisk.index.columns import FORMER, Columns
from ondisk.index.connection import (
    INDEX,
    LENT,
    NEW,
    WAL_LIMIT,
    Connection,
    connect_to_read,
    connect_to_write,
    empty,
    sqlite_errors,
)
from ondisk.index.snapshot import Row, Segment, Snapshot
from ondisk.index.tide import TideMark
from ondisk.index.where import add_functions, check_fields, check_size, condition
from ondisk.matcher import And, Compare, Expression

_POOLED = 8
_LARGE_WAL = 64 * 1024 * 1024  # bytes
_PATIENCE = 2_000  # milliseconds
_SPARE = 64 * 1024  # bytes that a log may be too long
_WORTH_SHRINKING = 1024 * 1024  # bytes

_LookUp: TypeAlias = tuple[str, list[tuple[str, Callable[[Any], Any]]]]
"""SQL, and for each of its question marks the field, and the function that returns the stored form of a value."""

Key: TypeAlias = tuple[str, list[Any]]
"""The SQL that looks up a complete unique key, and the values that it binds."""

Found: TypeAlias = tuple[Row, Segment, Mapping[str, Any]]


class Index:
    """One index file. A process that finds another file in its place (a rebuilt index) opens a new `Index`.

    Attributes:
        config, columns: those that the index was built for; `dataset.toml` may differ.
        missing: the file is lost, and this is an empty index in memory.
        inode: of the file; None if it is lost.
        ids, metadata, segments: caches of what never changes in one file: interned values, and each generation's
            segment.
        outside: a result that is kept, see `Transaction`.
        session: of this process as a writer, see `ondisk.index.changes`.
        read_metadata: returns the metadata of a row that are only in its segment; set by who opens the segments.
    """

    read_metadata: Callable[[Snapshot, Row], Mapping[str, Any]]

    def __init__(
        self,
        directory: Directory,
        config: DatasetConfig,
        inode: int | None,
        connect: Callable[[Directory], Connection] = connect_to_read,
    ) -> None:
        self.directory = directory
        self.config = config
        self.columns = Columns(config)
        self.missing = inode is None
        self.inode = inode
        self._connect = connect
        self._process = os.getpid()
        self._readers: list[Connection] = []
        self._borrowed: set[Connection] = set()
        self._writer: Connection | None = None
        self._idle_writer: list[Connection] = []
        self._open: set[Connection] = set()
        self._is_closing = False  # SQLite still has the descriptors of a closed connection
        self._closed = False
        self.ids: dict[str | bytes | None, int] = {None: 0}
        self.metadata: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.segments: dict[int, Segment] = {}
        self.outside: frozenset[int] | None = None
        self.begin_session()
        self._look_ups = lru_cache(256)(partial(_look_up_of, self.columns))

    @classmethod
    def open(
        cls,
        directory: Directory,
        config: DatasetConfig,
        connect: Callable[[Directory], Connection] = connect_to_read,
    ) -> Index:
        """Open the index; an empty one in memory if it is lost.

        Args:
            connect: connects readers. A process that reads with another SQLite library passes its own function.

        Raises:
            NeedsMigration: an older ondisk created the index.
            VersionTooNew: a newer ondisk created it.
            IndexCorrupt: it is not an index of ondisk, or has tables that ondisk never creates.
        """
        found = directory.regular_file(INDEX)
        if found is None:
            return cls(directory, config, None)
        connection = connect(directory)
        try:
            with sqlite_errors(directory):
                check_revision(connection, directory)
                index = cls(directory, built_for(connection, config, directory), found.st_ino, connect)
                check_tables(connection, index.columns, directory)
        except BaseException:
            connection.close()
            raise
        add_functions(connection)
        index._open.add(connection)
        index.give_back(connection)
        return index

    @classmethod
    def create(cls, directory: Directory, config: DatasetConfig, generation: int = 0, seq: int = 0) -> None:
        """Create an empty index, which appears complete or not at all. The caller must hold the writers' lock.

        Args:
            generation, seq: the last numbers that are taken; the counters of generations and of changes start there.

        Durability: unlink `-journal`, `-wal` and `-shm` files of an old index, which SQLite would use for the new one;
            sync the directory; build `.index.sqlite.new`, synced by SQLite; announce its UUID in the tide mark; rename
            it; sync the directory.
        """
        import uuid  # here, as few commands create an index

        new, mark = str(uuid.uuid4()), tide.read(directory)
        directory.discard(NEW, f"{NEW}-journal", f"{INDEX}-journal", f"{INDEX}-wal", f"{INDEX}-shm")
        directory.sync()  # else a power cut could keep the rename and lose an unlink
        directory.create_file(NEW).close()
        with sqlite_errors(directory):
            connection = sqlite3.connect(directory.path / NEW, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous=EXTRA")
                connection.execute("BEGIN")
                for statement in _create_statements(config):
                    connection.execute(statement)
                row = (1, new, seq, generation, dump(config), time.time_ns() // 1000)
                connection.execute("INSERT INTO dataset VALUES (?, ?, ?, ?, ?, ?, 0, 0)", row)
                if mark is not None:
                    connection.executemany(FORMER, ((each,) for each in mark.uuids))
                connection.execute("COMMIT")
            finally:
                connection.close()
        tide.announce(directory, new)
        directory.rename(NEW, INDEX)
        tide.save(directory, TideMark(new, seq, generation, (seq, generation)))

    def begin_session(self) -> None:
        """Begin another session."""
        self.session = new_session()

    def forget_ids(self) -> None:
        """Forget the ids of values: they grow too many, or some were rolled back."""
        self.ids.clear()
        self.ids[None] = 0

    def is_current(self) -> bool:
        """Return whether `index.sqlite` is still this file.

        Raises:
            StateError: this is a forked child; SQLite's connections do not survive a fork.
        """
        if os.getpid() != self._process:
            raise StateError(
                f"{self.directory.path} was opened by process {self._process}, this is its child {os.getpid()}",
                hint="Open the dataset in the process that uses it.",
            )
        return self.directory.inode(INDEX) == self.inode

    def check(self, tree: Expression) -> None:
        """Raise unless this index can answer a condition.

        Raises:
            MatchError: it is too large, or names fields that the index does not have.
        """
        check_size(tree)
        check_fields(tree, self.columns)

    def is_built_for(self, config: DatasetConfig) -> bool:
        """Return whether the index was built for a configuration."""
        return built_for_values(self.config) == built_for_values(config)

    def built_for_another(self, config: DatasetConfig) -> ConfigError | NeedsMigration:
        """Return the error for a configuration that the index was not built for. It names the key that differs."""
        before, now = built_for_values(self.config), built_for_values(config)
        key = next(key for key in before if before[key] != now[key])
        message = (
            f"{self.directory.path}: dataset.toml says {key} = {now[key]!r}, the index was built for {before[key]!r}"
        )
        if key == "step":
            hint = (
                f"Restore {key} in dataset.toml, or create a new dataset and append this one's data to it:"
                " `ondisk query OLD --data | ondisk append NEW -`."
            )
            return ConfigError(message, hint=hint, key=key)
        hint = f"{command('migrate', self.directory.path)} shows what to do; or restore {key} in dataset.toml."
        return NeedsMigration(message, hint=hint)

    def snapshot(self) -> Snapshot:
        """Return one state of the index, for a `with` block. Concurrent writers do not change it."""
        return Snapshot(self)

    def whole_key(self, equal: Mapping[str, Any]) -> Key | None:
        """Return the look-up of a complete unique key: SQL and values.

        Returns:
            None if the fields are not a complete key, or a value does not have the type of its field.
        """
        look_up = self._look_ups(tuple(equal))
        if look_up is None:
            return None
        sql, converters = look_up
        try:
            return sql, [convert(equal[name]) for name, convert in converters]
        except InvalidInput:
            return None

    def look_up(self, key: Key) -> list[Found] | None:
        """Find the datum with a complete unique key, without the cost of a snapshot.

        Returns:
            [row], or [] if there is none. None: use a snapshot, because none has read the datum's segment or metadata
                yet.
        """
        connection = self.borrow()
        try:
            row: Row | None = connection.execute(*key).fetchone()
        except sqlite3.Error:
            return None  # a snapshot meets the error again, and translates it
        finally:
            self.give_back(connection)
        if row is None:
            return []
        segment, metadata = self.segments.get(row[1]), self.metadata.get(row[4:])
        return None if segment is None or metadata is None else [(row, segment, metadata)]

    def state(self) -> tuple[str, int]:
        """Return its UUID and the number of its last change, without the cost of a snapshot."""
        connection = self.borrow()
        try:
            with sqlite_errors(self.directory):
                found: tuple[str, int] = connection.execute("SELECT uuid, seq FROM dataset").fetchone()
        finally:
            self.give_back(connection)
        return found

    def writer(self) -> Connection:
        """Return the writing connection, until `rest`. The caller must hold the writers' lock."""
        if self._writer is None:
            try:
                self._writer = self._idle_writer.pop()
            except IndexError:
                self._writer = connect_to_write(self.directory)
                self._open.add(self._writer)
                add_functions(self._writer)
        return self._writer

    def rest(self) -> None:
        """End the use of the writing connection, which may be closed then."""
        if self._writer is not None:
            self._idle_writer.append(self._writer)
            self._writer = None
            if self._is_closing:
                self._close_unused()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Lend the writing connection, for the length of the block, in a transaction or outside."""
        is_alone = self._writer is None
        try:
            yield self.writer()
        finally:
            if is_alone:
                self.rest()

    def checkpoint(self) -> bool:
        """Move the commits in the write-ahead log into the main file, as far as readers allow.

        Returns:
            Whether nobody reads an older snapshot any more.

        Locks: the caller must hold the writers' lock.
        """
        with self._writing() as connection, sqlite_errors(self.directory), self.directory.exclusive_if_free() as free:
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

        Locks: the caller must hold the writers' lock.
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

        Locks: the caller must hold the writers' lock.
        """
        connection = self.writer()
        try:
            if self.checkpoint() and (kept := has_long_log(self.directory)) is not None:
                with sqlite_errors(self.directory):
                    connection.execute(f"PRAGMA journal_size_limit={kept}")
                self.settle_log()
                self.checkpoint()
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

        Locks: the caller must hold the writers' lock.
        """
        with self._writing() as connection, sqlite_errors(self.directory):
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("UPDATE dataset SET seq = seq + 1")  # SQLite writes no page for `seq = seq`
                connection.execute("UPDATE dataset SET seq = seq - 1")
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self, *, queries: bool = True) -> None:
        """Close all connections, a reading one last: then SQLite keeps `-wal` and `-shm`.

        Args:
            queries: end running queries, too; otherwise each closes its connection at its end.
        """
        if os.getpid() != self._process:
            return
        self._closed = True
        with contextlib.ExitStack() as last:
            if self._writer is not None:
                self._idle_writer.append(self._writer)
                self._writer = None
            if self._idle_writer:
                with contextlib.suppress(OndiskError, sqlite3.Error):
                    # SQLite keeps `-wal` and `-shm` only for a connection that has read.
                    last.enter_context(self.snapshot()).segments()
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
        if self._borrowed or self._writer is not None or os.getpid() != self._process:
            return
        try:
            last = self._readers.pop()  # see `close`
        except IndexError:
            return
        self._close_all(self._idle_writer)
        self._close_all(self._readers)
        self._close(last)
        self._is_closing = bool(self._open)

    def borrow(self) -> Connection:
        """Return a connection for reading; `give_back` ends the loan."""
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = empty(_create_statements(self.config)) if self.missing else self._connect_to_read()
            self._open.add(connection)
            add_functions(connection)
        self._borrowed.add(connection)
        if (lent := LENT.get()) is not None:
            lent.add(connection)
        return connection

    def _connect_to_read(self) -> Connection:
        connection = self._connect(self.directory)
        if self.directory.inode(INDEX) == self.inode:
            return connection
        connection.close()
        raise StateError(f"{self.directory.path}: the index was replaced a moment ago", hint="Repeat the query.")

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


def has_long_log(directory: Directory) -> int | None:
    """Return to how many bytes the write-ahead log should be cut, so that deleting works; None if it is not longer."""
    log, index = directory.stat(f"{INDEX}-wal"), directory.stat(INDEX)
    if log is None or index is None:
        return None
    kept = min(WAL_LIMIT, max(index.st_size // 8, _SPARE))
    return kept if log.st_size > kept + _SPARE else None


def _look_up_of(columns: Columns, names: tuple[str, ...]) -> _LookUp | None:
    """Write the query for the row with given values of these fields; None unless they are a complete unique key."""
    if not columns.unique_names or not set(columns.unique_names) <= set(names) <= {"reftime", *columns.kinds}:
        return None
    # The names in place of the values: they come back in the order in which the values must be bound.
    where = condition(And(tuple(Compare(name, "=", name) for name in names)), columns)
    converters = [(name, converter(columns.kinds.get(name, FieldType.TIMESTAMP))) for name in map(str, where.values)]
    return f"SELECT {columns.row} FROM datum WHERE {where.sql}", converters


def _create_statements(config: DatasetConfig) -> Iterator[str]:
    """Return the SQL that makes an empty index."""
    from ondisk.index.tables import Tables  # imports SQLAlchemy, which takes as long as a small append

    return Tables(config).create_statements()
