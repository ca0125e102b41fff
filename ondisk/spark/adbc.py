"""Connections that read the index with ADBC, which returns Arrow; they offer the part of `sqlite3` that snapshots use.

ADBC contains its own SQLite library, so only Spark's Python workers use this module. A process that has an index open
with ADBC never opens one with `sqlite3`: when one library closes a file, the POSIX locks of the other are lost.

Reading with `sqlite3` and Arrow instead takes 1.5 to 1.7 times as long. Times relative to the same query on Parquet,
by `python benchmarks/spark.py`, with ADBC / with `sqlite3`: all columns 1.29 / 2.19, count by product 0.76 / 1.14, all
data 0.86 / 1.31.

This module uses the low level of ADBC, since its DBAPI imports pandas. ADBC takes the types of columns from the first
rows of a result and treats NULLs there as integers. So queries select `ifnull(x, 0)` and `x IS NULL` for an x that may
be NULL.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatement, Error
from adbc_driver_sqlite import _driver_path

from ondisk.filesystem import Directory, SharedLock
from ondisk.index import INDEX
from ondisk.index.connection import connected_to_present, sqlite_errors

_SMALL = 10_000  # rows of a small result: ADBC allocates memory for so many, and takes types from them
# Without a given type, Arrow looks for pandas each time, which takes longer than a small query.
_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary(), bool: pa.bool_()}
_CODES = {
    "no such": sqlite3.SQLITE_ERROR,
    "locked": sqlite3.SQLITE_BUSY,
    "malformed": sqlite3.SQLITE_CORRUPT,
    "not a database": sqlite3.SQLITE_NOTADB,
    "readonly": sqlite3.SQLITE_READONLY,
    "unable to open": sqlite3.SQLITE_CANTOPEN,
    "disk I/O": sqlite3.SQLITE_IOERR,
}
_SETTINGS = ("busy_timeout=10000", "trusted_schema=0", "query_only=1", "mmap_size=0")


def connect(directory: Directory) -> Any:
    """Open the index of a dataset for reading, like `ondisk.index.connection.connect_to_read`."""
    with sqlite_errors(directory):
        return connected_to_present(directory, _connect)


def _connect(directory: Directory) -> Any:
    try:
        return _connected(directory, "mode=ro")
    except sqlite3.OperationalError:
        if directory.regular_file(f"{INDEX}-shm") is not None:
            return _connected(directory, "mode=ro")  # a writer may just have created it
    # There is no -shm, and this user may not create it. Without a checkpoint, the file alone is a complete snapshot.
    lock = directory.shared()
    try:
        wal = directory.stat(f"{INDEX}-wal")
        alone = wal is None or wal.st_size == 0
        connection = _connected(directory, "mode=ro&immutable=1" if alone else "mode=ro")
    except BaseException:
        lock.close()
        raise
    connection.shared_lock = lock
    return connection


def _connected(directory: Directory, options: str) -> Connection:
    for suffix in ("", "-journal", "-wal", "-shm"):
        directory.regular_file(INDEX + suffix)
    connection = Connection(f"file://{quote(os.fsencode(directory.held(INDEX)))}?{options}")
    try:
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except BaseException:
        connection.close()
        raise
    return connection


class Connection:
    """A read-only connection, like `sqlite3.Connection`; only `batches` differs.

    Attributes:
        in_transaction: BEGIN was executed, and COMMIT was not.
        shared_lock: the shared lock of the directory, if this connection holds it until it is closed.
    """

    def __init__(self, uri: str) -> None:
        self.in_transaction = False
        self.shared_lock: SharedLock | None = None
        with _sqlite_errors():
            self._database = AdbcDatabase(driver=_driver_path(), uri=uri)
            self._connection = AdbcConnection(self._database)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute a query with a small result; all rows are read before this returns."""
        rows: list[tuple[Any, ...]] = []
        for batch in self.batches(sql, values, _SMALL):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        if sql in ("BEGIN", "COMMIT"):
            self.in_transaction = sql == "BEGIN"
        return Cursor(rows)

    def batches(self, sql: str, values: Sequence[Any], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a large result as they are read; the statement ends with the iterator."""
        with contextlib.ExitStack() as stack, _sqlite_errors():
            statement = AdbcStatement(self._connection)
            stack.callback(statement.close)
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(batch_rows)})
            statement.set_sql_query(sql)
            if values:
                bound = pa.record_batch(
                    [pa.array([value], _TYPES[type(value)]) for value in values], list(map(str, range(len(values))))
                )
                schema, array = bound.__arrow_c_array__()
                statement.bind(array, schema)
            stream, _ = statement.execute_query()
            reader = pa.RecordBatchReader._import_from_c(stream.address)
            stack.callback(reader.close)
            yield from reader

    def create_function(self, *_: Any, **__: Any) -> None:
        """Do nothing: ADBC has no functions written in Python, see `ondisk.index.where.without_functions`."""

    def close(self) -> None:
        with _sqlite_errors():
            self._connection.close()
            self._database.close()
        if self.shared_lock is not None:
            self.shared_lock.close()
            self.shared_lock = None


class Cursor:
    """Rows that were read; like `sqlite3.Cursor`."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        return list(islice(self._rows, size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def close(self) -> None:
        self._rows = iter(())


@contextlib.contextmanager
def _sqlite_errors() -> Iterator[None]:
    """Turn errors of ADBC, which contain SQLite's messages but not its codes, into errors of `sqlite3`."""
    try:
        yield
    except (Error, pa.ArrowInvalid, OSError) as error:
        message = str(error)
        code = next((code for words, code in _CODES.items() if words in message), sqlite3.SQLITE_IOERR)
        translated = sqlite3.OperationalError(message)
        translated.sqlite_errorcode = code
        raise translated from error
