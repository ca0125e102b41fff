"""An open `index.sqlite`: its revision, its configuration, and connections to read and write it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
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
    StateError,
    VersionTooNew,
    command,
)
from ondisk.filesystem import Directory
from ondisk.formats import RULES
from ondisk.index import tide
from ondisk.index.changes import new_session
from ondisk.index.connection import (
    INDEX,
    NEW,
    Connection,
    connect_to_read,
    damaged,
    empty,
    sqlite_errors,
)
from ondisk.index.connections import Connections
from ondisk.index.snapshot import Row, Segment, Snapshot
from ondisk.index.tables import FORMER, REVISION, Columns
from ondisk.index.tide import TideMark
from ondisk.index.where import check_fields, check_size, condition
from ondisk.matcher import And, Compare, Expression

_RULES = "rules"
_BUILT_FOR = ("step", "unique", "index", "fields")

_LookUp: TypeAlias = tuple[str, list[tuple[str, Callable[[Any], Any]]]]
"""SQL, and for each of its question marks the field, and the function that returns the stored form of a value."""

Key: TypeAlias = tuple[str, list[Any]]
"""The SQL that looks up a complete unique key, and the values that it binds."""

Found: TypeAlias = tuple[Row, Segment, Mapping[str, Any]]


class Index:
    """One index file. A process that finds another file in its place (a rebuilt index) opens a new `Index`.

    Attributes:
        config, columns: those that the index was built for; `dataset.toml` may differ.
        ids, metadata, segments: caches of what never changes in one file: interned values, and each generation's
            segment.
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
        self.inode = inode
        self.connections = Connections(directory, partial(self._connection, connect))
        self.ids: dict[str | bytes | None, int] = {None: 0}
        self.metadata: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self.segments: dict[int, Segment] = {}
        self.outside: frozenset[int] | None = None
        self.begin_session()
        self._look_ups = lru_cache(256)(partial(_look_up_of, self.columns))

    @property
    def missing(self) -> bool:
        return self.inode is None

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
            NeedsMigration: an older ondisk created the index, or has filled it by older rules of a format.
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
                check_rules(connection, directory)
                index = cls(directory, built_for(connection, config, directory), found.st_ino, connect)
                check_tables(connection, index.columns, directory)
        except BaseException:
            connection.close()
            raise
        index.connections.keep(connection)
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
        with building(directory, config) as connection:
            row = (1, new, seq, generation, dump(config), time.time_ns() // 1000)
            connection.execute("INSERT INTO dataset VALUES (?, ?, ?, ?, ?, ?, 0, 0)", row)
            connection.executemany(FORMER, () if mark is None else ((each,) for each in mark.uuids))
        tide.announce(directory, new)
        directory.rename(NEW, INDEX)
        tide.save(directory, TideMark(new, seq, generation, (seq, generation)))

    def _connection(self, connect: Callable[[Directory], Connection]) -> Connection:
        if self.missing:
            return empty(self.columns.create_statements())
        connection = connect(self.directory)
        if self.directory.inode(INDEX) == self.inode:
            return connection
        connection.close()
        raise StateError(f"{self.directory.path}: the index was replaced a moment ago", hint="Repeat the query.")

    def close(self, *, queries: bool = True) -> None:
        """Close all connections; see `Connections.close`."""
        self.connections.close(queries=queries)

    def begin_session(self) -> None:
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
        process = self.connections.process
        if os.getpid() != process:
            raise StateError(
                f"{self.directory.path} was opened by process {process}, this is its child {os.getpid()}",
                hint="Open the dataset in the process that uses it.",
            )
        return self.directory.inode(INDEX) == self.inode

    def check(self, tree: Expression) -> None:
        """Raise MatchError if a condition is too large, or names fields that the index does not have."""
        check_size(tree)
        check_fields(tree, self.columns)

    def is_built_for(self, config: DatasetConfig) -> bool:
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
        connection = self.connections.borrow()
        try:
            row: Row | None = connection.execute(*key).fetchone()
        except sqlite3.Error:
            return None  # a snapshot meets the error again, and translates it
        finally:
            self.connections.give_back(connection)
        if row is None:
            return []
        segment, metadata = self.segments.get(row[1]), self.metadata.get(row[4:])
        return None if segment is None or metadata is None else [(row, segment, metadata)]

    def state(self) -> tuple[str, int]:
        """Return its UUID and the number of its last change, without the cost of a snapshot."""
        connection = self.connections.borrow()
        try:
            with sqlite_errors(self.directory):
                found: tuple[str, int] = connection.execute("SELECT uuid, seq FROM dataset").fetchone()
        finally:
            self.connections.give_back(connection)
        return found


@contextlib.contextmanager
def building(directory: Directory, config: DatasetConfig) -> Iterator[sqlite3.Connection]:
    """Create the tables of an index in `.index.sqlite.new`, and commit them with what the block adds. Synced."""
    directory.create_file(NEW).close()
    with sqlite_errors(directory), contextlib.closing(sqlite3.connect(directory.held(NEW))) as connection:
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("BEGIN")
        for statement in Columns(config).create_statements():
            connection.execute(statement)
        yield connection
        connection.execute("COMMIT")


def _look_up_of(columns: Columns, names: tuple[str, ...]) -> _LookUp | None:
    """Write the query for the row with given values of these fields; None unless they are a complete unique key."""
    if not columns.unique_names or not set(columns.unique_names) <= set(names) <= {"reftime", *columns.kinds}:
        return None
    # The names in place of the values: they come back in the order in which the values must be bound.
    where = condition(And(tuple(Compare(name, "=", name) for name in names)), columns)
    converters = [(name, converter(columns.kinds.get(name, FieldType.TIMESTAMP))) for name in map(str, where.values)]
    return f"SELECT {columns.row} FROM datum WHERE {where.sql}", converters


def built_for_values(config: DatasetConfig) -> dict[str, Any]:
    """Return the keys of a configuration that an index is built for, with plain values."""
    return {
        "step": config.step.value,
        "unique": list(config.unique),
        "index": list(config.index),
        "fields": {name: kind.value for name, kind in config.fields.items()},
    }


def dump(config: DatasetConfig) -> str:
    """Return what an index is built for, as JSON: keys of a configuration, and the rules of this ondisk."""
    return json.dumps({**built_for_values(config), _RULES: RULES})


def built_for(connection: sqlite3.Connection, config: DatasetConfig, directory: Directory) -> DatasetConfig:
    """Return the configuration that the index was built for, with the keys that it does not depend on from `config`."""
    values = _values(connection, directory)
    values.pop(_RULES, None)
    if values == built_for_values(config):
        return config
    try:
        return DatasetConfig.from_mapping({"format": config.format, **{key: values[key] for key in _BUILT_FOR}})
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(directory, error) from None


def other_rules(connection: sqlite3.Connection, directory: Directory) -> list[str]:
    """Return the formats whose data an index has by older rules than those of this ondisk; mostly none.

    Raises:
        VersionTooNew: it has them by newer ones.
    """
    found = _values(connection, directory).get(_RULES, {})
    if found == RULES:
        return []
    if not isinstance(found, dict) or not all(type(each) is int for each in found.values()):
        raise _unreadable(directory, f"its rules are {found!r}")
    newer = [name for name, number in found.items() if number > RULES.get(name, 0)]
    if newer:
        problem = f"has data of {newer[0]} by rules that this ondisk does not know yet"
        raise VersionTooNew(f"{directory.path / INDEX} {problem}", hint="Use that newer version; nothing was changed.")
    return [name for name, number in RULES.items() if found.get(name, 1) < number]


def check_rules(connection: sqlite3.Connection, directory: Directory) -> None:
    """Raise unless an index has all data by the rules of this ondisk."""
    if others := other_rules(connection, directory):
        hint = f"{command('migrate', directory.path)} shows what to do, and reads these data again with --yes."
        problem = f"has data of {', '.join(others)} by older rules than those of this ondisk"
        raise NeedsMigration(f"{directory.path / INDEX} {problem}", hint=hint)


def _values(connection: sqlite3.Connection, directory: Directory) -> dict[str, Any]:
    try:
        ((text,),) = connection.execute("SELECT config FROM dataset").fetchall()
        return dict(json.loads(text))
    except (sqlite3.OperationalError, ValueError, TypeError, RecursionError) as error:
        raise _unreadable(directory, error) from None


def _unreadable(directory: Directory, error: object) -> IndexCorrupt:
    return _corrupt(directory, f"its table dataset cannot be read: {error}")


def revision_of(connection: sqlite3.Connection, directory: Directory) -> str:
    """Return the revision of an index, which this ondisk or an older one created."""
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
    """Raise unless an index has the revision of this ondisk."""
    found = revision_of(connection, directory)
    if found != REVISION:
        hint = f"{command('migrate', directory.path)} shows what to do, and does it with --yes."
        path = directory.path / INDEX
        raise NeedsMigration(f"{path} has revision {found}, this ondisk needs {REVISION}", hint=hint)


def check_tables(connection: sqlite3.Connection, columns: Columns, directory: Directory) -> None:
    """Raise unless an index has the tables that ondisk creates: no triggers, no views instead, no other columns."""
    triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    if triggers:
        raise _corrupt(directory, f"it has a trigger, {triggers[0][0]!r}")
    sql = (  # one statement for all: a worker opens an index for each task
        "SELECT t.name, x.name, x.hidden FROM pragma_table_list t JOIN pragma_table_xinfo(t.name) x"
        " WHERE t.schema = 'main' AND t.type = 'table' AND t.strict AND t.name IN (SELECT value FROM json_each(?))"
    )
    present: dict[str, list[tuple[str, int]]] = {}
    for table, column, hidden in connection.execute(sql, (json.dumps([*columns.of_table]),)):
        present.setdefault(table, []).append((column, hidden))
    for table, names in columns.of_table.items():
        found = present.get(table)
        if found is None:
            raise _corrupt(directory, f"it has no table {table!r} with strict types")
        if sorted(found) != sorted((name, 0) for name in names):
            raise _corrupt(directory, f"the table {table!r} has other columns: {found!r}")


def _corrupt(directory: Directory, problem: str) -> IndexCorrupt:
    return damaged(directory, f" is not an index of this dataset: {problem}")
