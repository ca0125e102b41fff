"""Connections to `index.sqlite` with checked settings, and the translation of SQLite's errors into ondisk's.

A process that has the index open must never open its files in another way: closing any descriptor of them drops
SQLite's POSIX locks. So nothing in ondisk reads the file itself.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ondisk.errors import (
    DiskFull,
    DurabilityLost,
    IndexCorrupt,
    LockError,
    OndiskError,
    ReadOnly,
    StateError,
    StorageError,
    command,
)
from ondisk.filesystem import Directory, SharedLock, denied, space_hint

if TYPE_CHECKING:
    from ondisk.index.where import StoredMetadata

INDEX = "index.sqlite"
NEW = ".index.sqlite.new"
"""An index that is being built."""
NEXT = ".index.sqlite.next"
"""A complete index that is about to replace the old one, see `ondisk.index.swap`."""

WAL_LIMIT = 16 * 1024 * 1024
"""Bytes that the write-ahead log keeps on disk, so that deleting works on a full disk."""

_COMMON: dict[str, Any] = {"busy_timeout": 10_000, "foreign_keys": 1, "trusted_schema": 0, "mmap_size": 0}
_WRITER = {"wal_autocheckpoint": 0, "journal_size_limit": WAL_LIMIT}
_FULL, _EXTRA = 2, 3

# UnicodeDecodeError: SQLite reports a damaged schema with its own bytes, which Python decodes as UTF-8.
SQLITE_ERRORS = sqlite3.Error, OverflowError, UnicodeDecodeError
"""The errors of a call of SQLite; `translated` turns them into ondisk's."""

_CANNOT_READ_WAL = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


class Connection(sqlite3.Connection):
    """A connection of SQLite that may hold the directory's shared lock while it is open.

    Attributes:
        stored: evaluates conditions on metadata that are not declared.
    """

    shared_lock: SharedLock | None = None
    stored: StoredMetadata

    def close(self) -> None:
        super().close()
        if self.shared_lock is not None:
            self.shared_lock.close()
            self.shared_lock = None


class Lent:
    """The connections that are lent in one context, so that another thread can end what they do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # else a connection might be lent to somebody else before it is interrupted
        self._connections: set[Connection] = set()

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._connections.add(connection)

    def remove(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def interrupt(self) -> None:
        """Let the queries that run now end with an error."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(sqlite3.ProgrammingError):  # the dataset was closed
                    connection.interrupt()


LENT: ContextVar[Lent | None] = ContextVar("LENT", default=None)
"""Where an index notes what it lends, see `Lent`. A server that cancels an answer ends its queries with it."""


def connect_to_write(directory: Directory) -> Connection:
    """Open the index for writing, in WAL mode, or with a rollback journal on a network filesystem."""
    mode, synchronous = ("delete", _EXTRA) if directory.is_network() else ("wal", _FULL)
    with sqlite_errors(directory):
        connection = _connect(directory, "mode=rw")
        try:
            (now,) = connection.execute(f"PRAGMA journal_mode={mode}").fetchone()
            if now != mode:
                raise StorageError(f"{directory.path / INDEX}: SQLite keeps journal_mode {now}, {mode} is needed")
            _set(connection, {**_COMMON, **_WRITER, "synchronous": synchronous}, directory)
        except BaseException:
            connection.close()
            raise
        return connection


def connect_to_read(directory: Directory) -> Connection:
    """Open the index read-only. It works without permission to write, on a read-only mount, and beside a writer."""
    return connected_to_present(directory, connect_to_one)


def connected_to_present(directory: Directory, connect: Callable[[Directory], Connection]) -> Connection:
    """Connect to the index, but not to an old one that a new one replaces at this moment."""
    before = directory.inode(INDEX)
    connection = connect(directory)
    if directory.inode(NEXT) is None and directory.inode(INDEX) == before:
        return connection
    # A swap may be running. The new index must not use the `-shm` that a reader of the old one creates meanwhile.
    connection.close()
    with contextlib.closing(directory.shared()):
        return connect(directory)


def connect_to_one(directory: Directory) -> Connection:
    """Open `index.sqlite` read-only as it is, also while a new one waits to replace it."""
    try:
        return _connect_to_read(directory, "mode=ro")
    except SQLITE_ERRORS as error:
        if _primary(error) not in _CANNOT_READ_WAL:
            raise translated(error, directory) from error
    # Another tool removed -wal and -shm, and this user may not create them. Without a checkpoint the main file
    # alone is a complete snapshot.
    lock = directory.shared()
    try:
        with sqlite_errors(directory):
            connection = _connect_without_wal(directory)
    except BaseException:
        lock.close()
        raise
    connection.shared_lock = lock
    return connection


def connect_to_main(directory: Directory) -> Connection:
    """Open the main file of the index without its write-ahead log; the file must not change while it is open."""
    return _connect_to_read(directory, "mode=ro&immutable=1")


def connect_to_next(directory: Directory) -> Connection:
    """Open the index that waits to replace the old one, and write nothing; errors of SQLite are not translated."""
    connection = _connect(directory, "mode=ro&immutable=1", NEXT)
    pragmas(connection, "trusted_schema=0", "query_only=1", "mmap_size=0")
    return connection


def pragmas(connection: sqlite3.Connection, *settings: str) -> None:
    for setting in settings:
        connection.execute(f"PRAGMA {setting}").fetchone()


def problem_of(connection: sqlite3.Connection) -> str | None:
    """Return what SQLite finds wrong with an index, or None. Cost: reads the whole index."""
    ((result,),) = connection.execute("PRAGMA integrity_check(1)")
    return None if result == "ok" else str(result).replace("*** in database main ***", "").strip()


def connect_to_damaged(directory: Directory) -> Connection:
    """Open an index to read what can be read of it; errors of SQLite are not translated.

    SQLite reports a damaged schema only for the tables that it concerns, and writes nothing.
    """
    found: Exception | None = None
    for options in ("mode=ro", "mode=ro&immutable=1"):  # the log may be what cannot be read
        try:
            connection = _connect(directory, options)
            try:
                pragmas(connection, "writable_schema=1", "trusted_schema=0", "query_only=1", "mmap_size=0")
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except BaseException:
                connection.close()
                raise
            return connection
        except SQLITE_ERRORS as error:
            found = found or error
    assert found is not None
    raise found


def read_main(directory: Directory) -> tuple[str, int, int] | None:
    """Return UUID, seq and generation in the main file, without its write-ahead log; None if it has none.

    A writer that changes the file meanwhile does no harm: each of the pages that are read is an old or a new one.
    """
    try:
        with contextlib.closing(connect_to_main(directory)) as connection:
            is_table = "SELECT 1 FROM pragma_table_list WHERE schema = 'main' AND name = 'dataset' AND type = 'table'"
            if connection.execute(is_table).fetchone() is None:
                return None
            rows = connection.execute("SELECT uuid, seq, generation FROM dataset LIMIT 2").fetchall()
    except SQLITE_ERRORS:
        return None
    return state_of(*rows[0]) if len(rows) == 1 else None


def state_of(uuid: Any, seq: Any, generation: Any) -> tuple[str, int, int] | None:
    """Return UUID and counters of an index; None if one of them is not what ondisk writes."""
    is_valid = isinstance(uuid, str) and isinstance(seq, int) and isinstance(generation, int)
    return (uuid, seq, generation) if is_valid else None


def empty(statements: Iterator[str]) -> Connection:
    """Create an empty index in memory, for readers of a dataset that lost its index."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Connection)
    for statement in statements:
        connection.execute(statement)
    return connection


@contextlib.contextmanager
def sqlite_errors(directory: Directory) -> Iterator[None]:
    """Translate errors of SQLite, and errors of numbers in a damaged index that are out of range."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise translated(error, directory) from error


@contextlib.contextmanager
def temporary_errors(content: str) -> Iterator[None]:
    """Translate errors of a temporary database into StorageError; `content` says what is in it."""
    try:
        yield
    except sqlite3.Error as error:
        hint = "Is its disk full? SQLITE_TMPDIR chooses another folder for it."
        raise StorageError(f"a temporary file for {content}: {error}", hint=hint) from error


def own_error(error: BaseException | None, connection: sqlite3.Connection, directory: Directory) -> OndiskError | None:
    """Return the error of ondisk for an error of SQLite, or one that values of a damaged index caused; else None.

    Cost: reads the whole index after a TypeError or ValueError, which is a bug unless the index is damaged.
    """
    if isinstance(error, SQLITE_ERRORS):
        return translated(error, directory)
    if not isinstance(error, TypeError | ValueError) or isinstance(error, OndiskError):
        return None
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except SQLITE_ERRORS as other:
        return translated(other, directory)
    return None if found == "ok" else damaged(directory, f" is damaged: {found}")


def _connect(directory: Directory, options: str, name: str = INDEX) -> Connection:
    if directory.regular_file(name) is None:
        raise sqlite3.OperationalError(f"{name} is missing")
    for suffix in ("-journal", "-wal", "-shm"):
        directory.regular_file(name + suffix)
    path = address(directory.held(name), options)
    return sqlite3.connect(
        path, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256, factory=Connection
    )


def address(path: str, options: str) -> str:
    """Return the URI of a SQLite file by its absolute path, which need not be UTF-8."""
    return f"file://{quote(os.fsencode(path))}?{options}"


def _connect_to_read(directory: Directory, options: str) -> Connection:
    connection = _connect(directory, options)
    try:
        _set(connection, {**_COMMON, "query_only": 1}, directory)
        for attempt in (1, 2):  # one in 300,000 first reads fails beside a writer
            try:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                break
            except sqlite3.OperationalError:
                if attempt == 2:
                    raise
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_without_wal(directory: Directory) -> Connection:
    try:
        return _connect_to_read(directory, "mode=ro")  # the files may be there again
    except sqlite3.OperationalError as error:
        wal = directory.stat(f"{INDEX}-wal")
        if _primary(error) not in _CANNOT_READ_WAL or (wal is not None and wal.st_size > 0):
            raise
    return _connect_to_read(directory, "mode=ro&immutable=1")


def _set(connection: Connection, settings: dict[str, Any], directory: Directory) -> None:
    for name, value in settings.items():
        connection.execute(f"PRAGMA {name}={value}").fetchone()
        row = connection.execute(f"PRAGMA {name}").fetchone()
        # A SQLite without memory maps does not have the setting.
        if row != (value,) and not (row is None and name == "mmap_size"):
            raise StorageError(f"{directory.path / INDEX}: SQLite did not accept {name}={value}, it has {row}")


def _primary(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def damaged(directory: Directory, problem: str, **context: Any) -> IndexCorrupt:
    """Return the error for a damaged index. `problem`: the message after the index's path."""
    from ondisk.index.tide import is_log_foreign  # here, since it imports this module

    path = str(directory.path / INDEX)
    how = f"{command('fix', directory.path, '--rebuild', '--yes')} moves {path} aside"
    hint = f"{how}, and rebuilds it from the segments, which contain the data."
    if is_log_foreign(directory):
        fix = command("fix", directory.path, "--yes")
        hint = f"{path} was exchanged, and {INDEX}-wal belongs to the old one: {fix} mends that. If it fails, {hint}"
    return IndexCorrupt(f"{path}{problem}", hint=hint, path=path, **context)


def translated(error: Exception, directory: Directory) -> OndiskError:
    """Return the error of ondisk for one of `SQLITE_ERRORS`."""
    path = str(directory.path / INDEX)
    if isinstance(error, OverflowError):
        return damaged(directory, f": a number in it is out of range: {error}")
    if isinstance(error, UnicodeDecodeError):
        return damaged(directory, f": its schema is damaged: {error.object!r}")
    if "decode to UTF-8" in str(error):  # the module sqlite3 gives this error no code
        return damaged(directory, f" is damaged: {error}")
    code = int(getattr(error, "sqlite_errorcode", 0))
    message = f"{path}: {error}"
    if isinstance(error, sqlite3.ProgrammingError):
        return StateError(f"{directory.path} was closed", hint="Finish queries before you close it.", path=path)
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return DiskFull(message, hint=space_hint(), path=path)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_MISMATCH:
            return damaged(directory, f": {error}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LockError(message, hint="Another program keeps the index locked; end it.", path=path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return ReadOnly(message, hint="Open it read_only, or as a user with permission to write.", path=path)
        case sqlite3.SQLITE_IOERR if code in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC):
            return DurabilityLost(message, hint="Look at the disk with `dmesg`, then open it again.", path=path)
        case sqlite3.SQLITE_ERROR if "overflow" in str(error):  # of a sum
            return damaged(directory, f": {error}")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_AUTH:
            for file in (path, f"{path}-wal", f"{path}-shm"):
                if os.path.lexists(file) and not os.access(file, os.R_OK, effective_ids=True):
                    return denied(file)
            hint = "Is its folder still there, and writable? Or are too many files open (`ulimit -n`)?"
            return StorageError(message, hint=hint, path=path, sqlite_errorcode=code)
        case sqlite3.SQLITE_IOERR:
            hint = "Look at the disk with `dmesg`; a limit of file size (`ulimit -f`) ends like this, too."
            return StorageError(message, hint=hint, path=path, sqlite_errorcode=code)
    return StorageError(message, path=path, sqlite_errorcode=code)
