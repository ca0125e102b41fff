"""`index.sqlite`, opened: which version it is, what it was built for, and connections to read and write it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, converter
from ondisk.errors import (
    ConfigError,
    IndexCorrupt,
    InvalidInput,
    NeedsMigration,
    OndiskError,
    StateError,
    VersionTooNew,
)
from ondisk.filesystem import Directory
from ondisk.index.columns import REVISION, Columns
from ondisk.index.connection import (
    INDEX,
    NEW,
    RESTORE,
    Connection,
    connect_to_read,
    connect_to_write,
    empty,
    sqlite_errors,
)
from ondisk.index.snapshot import Row, Segment, Snapshot
from ondisk.index.where import add_functions, check_fields, check_size, condition
from ondisk.matcher import And, Compare, Expression

_POOLED = 8
_LARGE_WAL = 64 * 1024 * 1024  # bytes
_PATIENCE = 2_000  # milliseconds
_BUILT_FOR = ("step", "unique", "index", "fields")

_LookUp: TypeAlias = tuple[str, list[tuple[str, Callable[[Any], Any]]]]
"""SQL, and for each of its question marks the field and what turns its value into the stored one."""

Key: TypeAlias = tuple[str, list[Any]]
"""The SQL that looks up a whole unique key, and the values it binds."""

Replaced: TypeAlias = tuple[int | None, int, int, list[tuple[int, int]]]
"""Of an archive's index: the inode of the dataset's own one, behind which number its deletions were looked through, up
to which, and those that are of data of the archive: numbers of the deletions, and of the data."""

Found: TypeAlias = tuple[Row, Segment, Mapping[str, Any]]


class Index:
    """One index file, as long as it is the one at its place.

    A process that finds another file there (the index was lost and made anew) opens a new `Index`.

    Attributes:
        columns: for the configuration that the index was built for, which is not always that of `dataset.toml`.
        missing: there is no file; the index is an empty one in memory.
        inode: of the file; None where there is none.
        outside, replaced: what was found out once, and goes on from there.
    """

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
        self._closed = False
        # What never changes in one index file: interned values, and a generation's segment.
        self.ids: dict[str | bytes | None, int] = {None: 0}
        self.metadata: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.segments: dict[int, Segment] = {}
        self.outside: frozenset[int] | None = None  # segments with data of other times, which only damage makes
        self.replaced: Replaced = (None, 0, 0, [])
        self._look_ups = lru_cache(256)(partial(_look_up_of, self.columns))

    @classmethod
    def open(
        cls,
        directory: Directory,
        config: DatasetConfig,
        connect: Callable[[Directory], Connection] = connect_to_read,
    ) -> Index:
        """Open the index at its place, or an empty one in memory where there is none.

        Args:
            connect: what connects readers; where another SQLite library is to do it, in a process of its own.

        Raises:
            NeedsMigration: it was made by an older ondisk.
            VersionTooNew: it was made by a newer one.
            IndexCorrupt: it is no index of ondisk, or holds what ondisk never writes.
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
        index.give_back(connection)
        return index

    @classmethod
    def create(cls, directory: Directory, config: DatasetConfig, generation: int = 0, seq: int = 0) -> None:
        """Make an empty index, which appears whole or not at all. Under the writers' lock.

        Args:
            generation: the counter of generations starts above it.
            seq: so does that of the order of changes.

        Durability: built beside its place, synced by SQLite, renamed, directory synced. Stale `-journal`,
            `-wal` and `-shm` files go first: SQLite would take them for the new index's.
        """
        for name in (NEW, f"{NEW}-journal", f"{INDEX}-journal", f"{INDEX}-wal", f"{INDEX}-shm"):
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(name)
        directory.sync()  # else a power cut could keep the rename and lose an unlink
        directory.create_file(NEW).close()
        with sqlite_errors(directory):
            connection = sqlite3.connect(directory.path / NEW, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous=EXTRA")
                connection.execute("BEGIN")
                for statement in _create_statements(config):
                    connection.execute(statement)
                row = (1, str(uuid.uuid4()), seq, generation, dump(config), _now())
                connection.execute("INSERT INTO dataset VALUES (?, ?, ?, ?, ?, ?)", row)
                connection.execute("COMMIT")
            finally:
                connection.close()
        directory.rename(NEW, INDEX)

    def is_current(self) -> bool:
        """Tell whether the file at the index's place is still this one.

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
        """Refuse a condition that this index cannot answer.

        Raises:
            MatchError: it is too large, or asks for fields that the index does not have.
        """
        check_size(tree)
        check_fields(tree, self.columns)

    def is_built_for(self, config: DatasetConfig) -> bool:
        """Tell whether the index was built for a configuration."""
        return _built_for_values(self.config) == _built_for_values(config)

    def built_for_another(self, config: DatasetConfig) -> ConfigError | NeedsMigration:
        """Say in which key a configuration differs from that which the index was built for; one of them does."""
        before, now = _built_for_values(self.config), _built_for_values(config)
        key = next(key for key in _BUILT_FOR if before[key] != now[key])
        message = (
            f"{self.directory.path}: dataset.toml says {key} = {now[key]!r}, the index was built for {before[key]!r}"
        )
        if key == "step":
            hint = (
                f"Write {key} as it was, or create a new dataset and append this one's data to it:"
                " `ondisk query OLD --data | ondisk append NEW -`."
            )
            return ConfigError(message, hint=hint, key=key)
        hint = f"`ondisk migrate {self.directory.path}` tells what there is to do; or write {key} as it was."
        return NeedsMigration(message, hint=hint)

    def snapshot(self) -> Snapshot:
        """Give one state of the index, for the length of a `with` block; writers beside it do not disturb it."""
        return Snapshot(self)

    def whole_key(self, equal: Mapping[str, Any]) -> Key | None:
        """Make the look-up of a whole unique key.

        Returns:
            SQL and values; None where the fields are no whole key, or a value is not of its field's type.
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
        """Find the at most one datum that a whole unique key names, without the cost of a snapshot.

        Returns:
            Its row, segment and metadata; None where this cannot tell, since the datum's segment or metadata were met
            in no snapshot yet.
        """
        connection = self.borrow()
        try:
            row: Row | None = connection.execute(*key).fetchone()
        except sqlite3.Error:
            return None  # a snapshot meets it again, and says what it is
        finally:
            self.give_back(connection)
        if row is None:
            return []
        segment, metadata = self.segments.get(row[1]), self.metadata.get(row[4:])
        return None if segment is None or metadata is None else [(row, segment, metadata)]

    def writer(self) -> Connection:
        """Give the writing connection. Under the writers' lock."""
        if self._writer is None:
            self._writer = connect_to_write(self.directory)
            add_functions(self._writer)
        return self._writer

    def checkpoint(self) -> bool:
        """Move what is committed from the write-ahead log into the main file, as far as readers let us.

        Returns:
            Whether nobody reads an older snapshot any more.

        Locks: under the writers' lock.
        """
        connection = self.writer()
        with sqlite_errors(self.directory), self.directory.exclusive_if_free() as free:
            if not free:  # somebody reads the main file alone, see connect_to_read
                return False
            wal = self.directory.stat(f"{INDEX}-wal")
            patience = _PATIENCE if wal is not None and wal.st_size > _LARGE_WAL else 0
            try:
                connection.execute(f"PRAGMA busy_timeout={patience}")
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            except sqlite3.OperationalError as error:
                # On a full disk the main file cannot grow: the next commit tries again.
                if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                    return False
                raise
            finally:
                connection.execute("PRAGMA busy_timeout=10000")
        return bool(busy == 0)

    def close(self, *, queries: bool = True) -> None:
        """Close all connections, a reading one last: then SQLite leaves `-wal` and `-shm` in place.

        Args:
            queries: end those that run, too; else each closes its connection when it is done.
        """
        if os.getpid() != self._process:
            return
        self._closed = True
        with contextlib.ExitStack() as last:
            if self._writer is not None:
                with contextlib.suppress(OndiskError, sqlite3.Error):
                    # Only a connection that reads holds `-wal` and `-shm`.
                    last.enter_context(self.snapshot()).segments()
                self._writer.close()
                self._writer = None
        while self._readers:
            self._readers.pop().close()
        while queries and self._borrowed:
            self._borrowed.pop().close()

    def borrow(self) -> Connection:
        """Give a connection to read with, until it is given back."""
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = empty(_create_statements(self.config)) if self.missing else self._connect_to_read()
            add_functions(connection)
        self._borrowed.add(connection)
        return connection

    def _connect_to_read(self) -> Connection:
        connection = self._connect(self.directory)
        if self.directory.inode(INDEX) == self.inode:
            return connection
        connection.close()
        raise StateError(f"{self.directory.path}: the index was replaced a moment ago", hint="Ask again.")

    def give_back(self, connection: Connection) -> None:
        """End the transaction of a connection that was borrowed, and keep it for the next who reads, or close it."""
        self._borrowed.discard(connection)
        try:
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.Error:
            connection.close()
            return
        # A connection with the shared lock keeps writers from their checkpoints: not kept.
        if len(self._readers) < _POOLED and connection.shared_lock is None and not self._closed:
            self._readers.append(connection)
        else:
            connection.close()


def _look_up_of(columns: Columns, names: tuple[str, ...]) -> _LookUp | None:
    """Write the query for the row in which these fields equal given values; None unless they are a whole unique key."""
    if not columns.unique_names or not set(columns.unique_names) <= set(names) <= {"reftime", *columns.kinds}:
        return None
    # Each field's name stands in for its value: it comes back where the value is to be bound.
    where = condition(And(tuple(Compare(name, "=", name) for name in names)), columns)
    converters = [(name, converter(columns.kinds.get(name, FieldType.TIMESTAMP))) for name in map(str, where.values)]
    return f"SELECT {columns.row} FROM datum WHERE {where.sql}", converters


def _create_statements(config: DatasetConfig) -> Iterator[str]:
    """Return the SQL that makes an empty index."""
    from ondisk.index.tables import Tables  # SQLAlchemy, whose import takes as long as an append of a few data

    return Tables(config).create_statements()


def _now() -> int:
    return time.time_ns() // 1000


def _built_for_values(config: DatasetConfig) -> dict[str, Any]:
    return {
        "step": config.step.value,
        "unique": list(config.unique),
        "index": list(config.index),
        "fields": {name: kind.value for name, kind in config.fields.items()},
    }


def dump(config: DatasetConfig) -> str:
    """Write down what an index is built for."""
    return json.dumps(_built_for_values(config))


def built_for(connection: sqlite3.Connection, config: DatasetConfig, directory: Directory) -> DatasetConfig:
    """Read the configuration that the index was built for; what it does not depend on is taken from `config`."""
    try:
        rows = connection.execute("SELECT config FROM dataset").fetchall()
        ((text,),) = rows
        values = json.loads(text)
        if values == _built_for_values(config):
            return config
        return DatasetConfig.from_mapping({"format": config.format, **{key: values[key] for key in _BUILT_FOR}})
    except (sqlite3.OperationalError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(directory, f"its table dataset cannot be read: {error}") from None


def revision_of(connection: sqlite3.Connection, directory: Directory) -> str:
    """Read the revision of an index, which is this ondisk's or an older one."""
    try:
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.OperationalError as error:
        raise _corrupt(directory, str(error)) from None
    found = rows[0][0] if len(rows) == 1 else None
    if not isinstance(found, str) or not re.fullmatch("[0-9]{4}", found):
        raise _corrupt(directory, f"its revision is {rows!r}")
    if found > REVISION:
        hint = "Use that newer version; nothing was changed."
        path = directory.path / INDEX
        raise VersionTooNew(f"{path} has revision {found}, this ondisk knows up to {REVISION}", hint=hint)
    return found


def check_revision(connection: sqlite3.Connection, directory: Directory) -> None:
    """Refuse an index of another revision than this ondisk's."""
    found = revision_of(connection, directory)
    if found != REVISION:
        hint = f"`ondisk migrate {directory.path}` tells what there is to do, and does it with --yes."
        path = directory.path / INDEX
        raise NeedsMigration(f"{path} has revision {found}, this ondisk needs {REVISION}", hint=hint)


def check_tables(connection: sqlite3.Connection, columns: Columns, directory: Directory) -> None:
    """Refuse an index whose tables are not those that ondisk makes: triggers, views in their place, other columns."""
    kinds = {
        name: (kind, strict)
        for name, kind, strict in connection.execute(
            "SELECT name, type, strict FROM pragma_table_list WHERE schema = 'main'"
        )
    }
    triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    if triggers:
        raise _corrupt(directory, f"it has a trigger, {triggers[0][0]!r}")
    for table, names in columns.of_table.items():
        if kinds.get(table) != ("table", 1):
            raise _corrupt(directory, f"it has no table {table!r} with strict types")
        found = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
        if sorted(found) != sorted((name, 0) for name in names):
            raise _corrupt(directory, f"the table {table!r} has other columns: {found!r}")


def _corrupt(directory: Directory, problem: str) -> IndexCorrupt:
    path = directory.path / INDEX
    return IndexCorrupt(f"{path} is no index of this dataset: {problem}", hint=RESTORE, path=str(path))
