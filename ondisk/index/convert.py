"""A new index for another revision or another configuration, made from a copy of the old one.

The copy is `.index.sqlite.new`, which nobody else opens; `ondisk.index.swap` then replaces the old index by it, or
`put_in_place` gives it its name where there is none.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, Value, restored
from ondisk.errors import IndexCorrupt
from ondisk.filesystem import Directory
from ondisk.index.connection import (
    INDEX,
    NEW,
    Connection,
    connect_to_read,
    connect_to_write,
    damaged,
    pragmas,
    problem_of,
    sqlite_errors,
)
from ondisk.index.index import built_for, check_revision, check_tables, dump, other_rules, revision_of
from ondisk.index.sums import Sums
from ondisk.index.swap import swap_in
from ondisk.index.tables import REVISION, TOUCHED, Columns, insert_rows
from ondisk.index.tide import TIDE, State, TideMark, save
from ondisk.segment import Facts, ScanResult

if TYPE_CHECKING:
    from alembic.config import Config

_BEFORE = ".index.sqlite.before"

Placed: TypeAlias = tuple[int, int, Facts]
"""A generation, and what an index records of its file: its committed size, and its facts."""


@dataclass(frozen=True, slots=True)
class Old:
    """The present index, of any revision.

    Attributes:
        other_rules: the formats whose data it has by older rules.
    """

    revision: str
    config: DatasetConfig
    connection: Connection
    other_rules: list[str]

    @property
    def is_touched(self) -> bool:
        """Whether anything was ever stored."""
        return bool(self.connection.execute(TOUCHED).fetchone()[0])

    def count(self) -> int:
        return int(self.connection.execute("SELECT count(*) FROM datum").fetchone()[0])

    def state(self) -> State:
        state: State = self.connection.execute("SELECT uuid, seq, generation FROM dataset").fetchone()
        return state

    def former(self) -> list[str]:
        """Return the UUIDs that it had before, and those of archives whose rows it has taken over."""
        if self.revision < "0004":
            return []
        table = "former" if self.revision >= "0006" else "archive WHERE name = ''"
        return [uuid for (uuid,) in self.connection.execute(f"SELECT uuid FROM {table}")]

    def follows(self) -> bool:
        """Return whether it is that of a dataset that follows another one."""
        return self.revision >= "0004" and self.connection.execute("SELECT 1 FROM source").fetchone() is not None

    def segments_in(self, place: str) -> bool:
        """Return whether it has segments in a place of the archive; "": any segments."""
        sql = "SELECT 1 FROM segment WHERE substr(name, 1, length(?1)) = ?1 LIMIT 1"
        return self.connection.execute(sql, (place,)).fetchone() is not None


@contextlib.contextmanager
def old(directory: Directory, config: DatasetConfig) -> Iterator[Old | None]:
    """Open the index for a `with` block; None if it is lost.

    Raises:
        VersionTooNew: a newer ondisk created the index.
        IndexCorrupt: it is not an index of ondisk.
    """
    if directory.regular_file(INDEX) is None:
        yield None
        return
    connection = connect_to_read(directory)
    try:
        with sqlite_errors(directory):
            revision, built = revision_of(connection, directory), built_for(connection, config, directory)
            if revision == REVISION:
                check_tables(connection, Columns(built), directory)
            yield Old(revision, built, connection, other_rules(connection, directory))
    finally:
        connection.close()


def separate(directory: Directory, config: DatasetConfig) -> None:
    """Replace the index by a copy, so that its other names do not change with it. The caller must hold the lock."""
    with old(directory, config) as before:
        if before is not None:
            with Converted.beside(directory, before.connection) as new:
                new.finish(before.config)
                swap_in(directory, config.lock_timeout, with_log=False)


class Converted:
    """A copy of an index that is being changed. Nobody else uses it, and a crash loses nothing.

    Raises, in every method:
        sqlite3.Error: for the caller's `sqlite_errors`.
    """

    def __init__(self, directory: Directory, connection: sqlite3.Connection, path: str) -> None:
        self.directory = directory
        self.connection = connection
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def beside(cls, directory: Directory, source: sqlite3.Connection) -> Iterator[Converted]:
        """Copy an index to `.index.sqlite.new`, which is removed at the end of the block, if it is there still."""
        new = cls(directory, copy_index(directory, source, NEW), directory.held(NEW))
        try:
            yield new
        finally:
            new.close()
            remove_copy(directory, NEW)

    @classmethod
    @contextlib.contextmanager
    def aside(cls, directory: Directory, source: sqlite3.Connection) -> Iterator[Converted]:
        """Copy an index to a file in TMPDIR for the length of the block, for a dry run."""
        with (
            tempfile.NamedTemporaryFile() as file,
            contextlib.closing(sqlite3.connect(file.name, isolation_level=None)) as connection,
        ):
            source.backup(connection)
            pragmas(connection, "trusted_schema=OFF", "synchronous=OFF", "journal_mode=OFF")
            yield cls(directory, connection, file.name)

    @property
    def is_there(self) -> bool:
        """Whether it has not replaced the old index yet."""
        return self.directory.inode(NEW) is not None

    def upgrade(self, config: DatasetConfig) -> None:
        if (problem := problem_of(self.connection)) is not None:
            raise damaged(self.directory, f" is damaged: {problem}")
        for kind, name, _ in self._objects():
            if kind == "view":  # it may select a column that is dropped
                self.connection.execute(f'DROP VIEW "{name}"')
        try:
            upgrade(self.connection)
        except IndexCorrupt as error:
            raise damaged(self.directory, f": {error.message}") from error
        check_revision(self.connection, self.directory)
        check_tables(self.connection, Columns(config), self.directory)

    def begin_fields(self, config: DatasetConfig, kept: Iterable[str]) -> None:
        """Recreate the table `datum` for the fields of a configuration.

        Args:
            kept: fields that keep their values; the other fields are missing until `fill` sets them.
        """
        execute = self.connection.execute
        execute("BEGIN")
        self.drop_objects()
        execute("ALTER TABLE datum RENAME TO before")
        execute(Columns(config).create("datum"))
        names = ", ".join(["seq", "reftime", "segment", '"offset"', "size", *(f'"f_{name}"' for name in kept)])
        execute(f"INSERT INTO datum ({names}) SELECT {names} FROM before ORDER BY seq")

    def drop_objects(self) -> None:
        """Drop the indices and the view, which `finish` creates again."""
        for kind, name, _ in self._objects():
            self.connection.execute(f'DROP {kind} "{name}"')

    def forget_sums(self) -> None:
        """Let no segment have sums: they count values of other fields, or other values."""
        self.connection.execute("UPDATE segment SET summed = NULL")

    def longest(self) -> int:
        """Return the size of the largest datum."""
        return int(self.connection.execute("SELECT ifnull(max(size), 0) FROM datum").fetchone()[0])

    def segments(self, kinds: Mapping[str, FieldType]) -> Iterator[tuple[int, str, str]]:
        """Yield id, name and format of each segment with data, of which `find` and `fill` then set some fields.

        Raises:
            IndexCorrupt: the index has data of a segment that it does not know.
        """
        execute = self.connection.execute
        execute("CREATE INDEX before_by_place ON before (segment, offset)")
        fields = "".join(f", f_{name}" for name in kinds)
        execute(f"CREATE TEMP TABLE found (offset INTEGER PRIMARY KEY, size, seq{fields})")
        sql = "SELECT DISTINCT segment, name, format FROM before LEFT JOIN segment ON segment.id = segment ORDER BY 1"
        for id, name, format in execute(sql).fetchall():
            if name is None:
                problem = f"the index is damaged: it has data of a segment {id} that it does not know"
                raise damaged(self.directory, f" is damaged: {problem}")
            yield id, name, format
            execute("DELETE FROM found")

    def find(self, found: ScanResult, kinds: Mapping[str, FieldType]) -> None:
        """Note what a scan has found in a segment."""
        values = ([each.get(name) for each in found.metadata] for name in kinds)
        listed = ", ".join(["offset", "size", *(f"f_{name}" for name in kinds)])
        insert_rows(self.connection, f"INSERT OR REPLACE INTO found ({listed})", [found.offsets, found.sizes, *values])

    def fill(self, segment: int, kinds: Mapping[str, FieldType]) -> Iterator[tuple[int, int]]:
        """Set the fields of the data that were found in a segment; yield offset and size of the others."""
        execute, sets = self.connection.execute, []
        for name, kind in kinds.items():
            value = f"found.f_{name}"
            if kind.interned:
                new = f"SELECT f_{name} FROM found WHERE f_{name} IS NOT NULL ORDER BY offset"
                execute(f"INSERT OR IGNORE INTO value (value) {new}")
                value = f"ifnull((SELECT id FROM value WHERE value = {value}), 0)"
            sets.append(f"f_{name} = {value}")
        same = "segment = ? AND before.offset = found.offset AND before.size = found.size"
        execute(f"UPDATE found SET seq = (SELECT seq FROM before WHERE {same})", (segment,))
        execute(f"UPDATE datum SET {', '.join(sets)} FROM found WHERE datum.seq = found.seq")
        there = "SELECT seq FROM found WHERE seq IS NOT NULL"
        missing = f"SELECT offset, size FROM before WHERE segment = ? AND seq NOT IN ({there}) ORDER BY offset"
        yield from execute(missing, (segment,))

    def end_fields(self) -> None:
        """Drop the old table of data, and commit."""
        self.connection.execute("DROP TABLE before")
        self.connection.execute("COMMIT")

    def finish(self, config: DatasetConfig) -> None:
        """Create the indices and the view of a configuration, drop others, make missing sums, and sync the file."""
        execute = self.connection.execute
        execute("BEGIN")
        wanted = list(Columns(config).field_statements())
        there = set()
        for kind, name, text in self._objects():
            if text in wanted:
                there.add(text)
            else:
                execute(f'DROP {kind} "{name}"')
        for statement in wanted:
            if statement not in there:
                execute(statement)
        Sums(self.connection, Columns(config)).count_missing()
        execute("UPDATE dataset SET config = ?", (dump(config),))
        execute("COMMIT")
        mode = "delete" if self.directory.is_network() else "wal"
        execute(f"PRAGMA journal_mode={mode}")
        self.close()
        sync_copy(self.directory, NEW)

    def close(self) -> None:
        self.connection.close()

    def _objects(self) -> list[tuple[str, str, str]]:
        """Return the indices and views, which depend on the fields: kind, name, SQL."""
        sql = "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('index', 'view') AND sql IS NOT NULL"
        return self.connection.execute(sql).fetchall()


def in_conflict(
    connection: sqlite3.Connection, config: DatasetConfig
) -> Iterator[tuple[str, int, int, dict[str, Value | None]]]:
    """Find data that are duplicates under `unique` of a configuration.

    Returns:
        Segment, offset, size, and the values of the fields of `unique`.
    """
    keys = Columns(config).keys_of("datum")
    if not keys:
        return
    named = ", ".join(f"{key} AS k{at}" for at, key in enumerate(keys))
    equal = " AND ".join(f"{key} = k{at}" for at, key in enumerate(keys))
    kinds = {name: config.fields.get(name, FieldType.TIMESTAMP) for name in config.unique}  # reftime is not a field
    values = ", ".join(map(_value, kinds, kinds.values()))
    sql = (
        f"SELECT segment.name, datum.offset, datum.size, {values}"
        f" FROM (SELECT {named} FROM datum GROUP BY {', '.join(keys)} HAVING count(*) > 1)"
        f" JOIN datum ON {equal} JOIN segment ON segment.id = datum.segment"
        f" ORDER BY {', '.join(f'k{at}' for at in range(len(keys)))}, datum.seq"
    )
    for segment, offset, size, *stored in connection.execute(sql):
        found = zip(kinds.items(), stored, strict=True)
        shown = {name: None if value is None else restored(value, kind) for (name, kind), value in found}
        yield segment, offset, size, shown


def _value(name: str, kind: FieldType) -> str:
    if name == "reftime":
        return "datum.reftime"
    return f"(SELECT value FROM value WHERE id = datum.f_{name})" if kind.interned else f"datum.f_{name}"


def location() -> Path:
    """Return the folder of Alembic's environment and revisions, in the installed package or next to it."""
    package = Path(__file__).parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def upgrade(connection: sqlite3.Connection, revision: str = "head") -> None:
    """Apply the revisions that an index lacks, up to `revision`.

    Args:
        connection: writes to the index; not in a transaction; stays open.

    Raises:
        sqlite3.Error: an upgrade failed.
        IndexCorrupt: the index has an unknown revision.

    Durability: one transaction; a crash leaves the index at its old revision or at the new one.
    Locks: the caller holds the writers' lock.
    """
    from alembic import command
    from alembic.util import CommandError
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    settings = alembic()
    with engine.connect() as bound:
        settings.attributes["connection"] = bound
        try:
            command.upgrade(settings, revision)
        except DBAPIError as error:
            raise (error.orig or error) from error
        except CommandError as error:
            raise IndexCorrupt(f"it cannot be moved to a newer revision: {error}") from error


def alembic() -> Config:
    """Return what Alembic needs to know: where the revisions are."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(location()).replace("%", "%%"))
    return settings


def clear(directory: Directory) -> None:
    """Remove incomplete copies that a crash left. The caller must hold the writers' lock."""
    for name in (NEW, _BEFORE):
        remove_copy(directory, name)


def back_up(directory: Directory, source: sqlite3.Connection, name: str) -> str:
    """Copy an index to `name`, or to `name.2` … if that exists, and return the name.

    Durability: the copy appears complete and synced, or not at all.
    """
    try:
        copy_index(directory, source, _BEFORE).close()
        sync_copy(directory, _BEFORE)
        taken = free_name(directory, name)
        directory.link(_BEFORE, taken)
    finally:
        remove_copy(directory, _BEFORE)
    directory.sync()
    return taken


def free_name(directory: Directory, name: str, *endings: str) -> str:
    """Return the first of the names `NAME`, `NAME.2` … that nothing has, also with other endings."""
    names = chain([name], map(f"{name}.{{}}".format, count(2)))
    return next(each for each in names if all(directory.inode(each + end) is None for end in ("", *endings)))


def copy_index(directory: Directory, source: sqlite3.Connection, name: str) -> sqlite3.Connection:
    """Copy an index to a new file, and open it. Without a journal: a copy that fails is deleted.

    Args:
        source: a connection; in a transaction, the copy is what the transaction sees.
    """
    remove_copy(directory, name)
    directory.create_file(name).close()
    connection = sqlite3.connect(directory.held(name), isolation_level=None)
    try:
        # Exclusive, it needs no `-shm`. On a disk too full for `-shm` SQLite would report another error.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchone()
        source.backup(connection)
        pragmas(connection, "trusted_schema=OFF", "synchronous=OFF", "journal_mode=DELETE", "journal_mode=OFF")
    except BaseException:
        connection.close()
        remove_copy(directory, name)
        raise
    return connection


def record_places(directory: Directory, name: str, segments: Iterable[Placed]) -> None:
    """Record in a copy of an index where its segments are now, and make it durable.

    Args:
        segments: those whose files have other facts than the index has recorded.

    Raises:
        VersionTooNew: a newer ondisk has made it.
        IndexCorrupt: it is not an index of ondisk.
        sqlite3.Error: for the caller's `sqlite_errors`.

    Durability: synced.
    """
    connection = sqlite3.connect(directory.held(name), isolation_level=None)
    try:
        pragmas(connection, "locking_mode=EXCLUSIVE", "trusted_schema=OFF", "synchronous=OFF", "journal_mode=OFF")
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
    sync_copy(directory, name)


def sync_copy(directory: Directory, name: str) -> None:
    """Make a copy durable that is closed, or to which nothing more is written."""
    with directory.open_to_write(name) as file:
        file.sync()


def remove_copy(directory: Directory, name: str) -> None:
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
