from __future__ import annotations

import os
import sqlite3

import pytest
from worlds import connections

import ondisk
from ondisk import DatasetConfig, Step
from ondisk.errors import DiskFull, DurabilityLost, IndexCorrupt, LockError, ReadOnly, StorageError
from ondisk.filesystem import Directory
from ondisk.index import INDEX, Index
from ondisk.index import connection as module
from ondisk.index.connection import connect_to_read, connect_to_write, sqlite_errors

CONFIG = DatasetConfig("vm2", Step.DAILY)
WRITTEN = {
    "journal_mode": "wal",
    "synchronous": 2,
    "wal_autocheckpoint": 0,
    "journal_size_limit": 16 * 1024 * 1024,
}
COMMON = {"foreign_keys": 1, "busy_timeout": 10_000, "trusted_schema": 0, "mmap_size": 0}


@pytest.fixture
def directory(tmp_path):
    with Directory.open(tmp_path) as directory:
        Index.create(directory, CONFIG)
        yield directory


@pytest.fixture
def connect():
    """Connect, and close after the test."""
    connections = []

    def connect(how, directory):
        connections.append(how(directory))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


def settings(connection, names):
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


def files(path):
    return {each.name for each in path.iterdir() if each.name.startswith(INDEX)}


def test_a_writing_connection_has_every_setting(directory, connect):
    expected = COMMON | WRITTEN
    assert settings(connect(connect_to_write, directory), expected) == expected


def test_a_reading_connection_has_every_setting_and_cannot_write(directory, connect):
    connect(connect_to_write, directory).execute("SELECT 1 FROM dataset").fetchone()
    reader = connect(connect_to_read, directory)
    expected = COMMON | {"query_only": 1, "journal_mode": "wal"}
    assert settings(reader, expected) == expected
    reader.execute("PRAGMA query_only=0")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM dataset")


def test_every_connection_of_a_dataset_has_every_setting(tmp_path, monkeypatch):
    """Whatever a dataset does, every connection to its index has them."""
    made = []
    connect = sqlite3.connect

    def spy(database, *arguments, **options):
        connection = connect(database, *arguments, **options)
        if str(database).partition("?")[0].endswith(INDEX):
            made.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", spy)
    with ondisk.create(tmp_path / "dataset", CONFIG) as dataset:
        dataset.append_file(lines(5))
        running = dataset.query()
        next(running)
        assert len(list(dataset.query())) == 5
        dataset.delete("reftime:=2026-11-20 01")
        writers = 0
        live = [each for each in made if is_open(each)]
        assert len(live) >= 3
        for connection in live:
            assert settings(connection, COMMON) == COMMON
            if not settings(connection, ["query_only"])["query_only"]:
                writers += 1
                assert settings(connection, WRITTEN) == WRITTEN
        assert writers == 1
        running.close()
    assert not any(map(is_open, made))


def lines(count):
    import io

    return io.BytesIO(b"".join(b"20261120%02d00,1,1,,,,\n" % hour for hour in range(count)))


def is_open(connection):
    try:
        connection.execute("SELECT 1").fetchone()
    except sqlite3.ProgrammingError:
        return False
    return True


@pytest.mark.parametrize("name", ["trusted_schema", "foreign_keys", "busy_timeout", "wal_autocheckpoint"])
def test_a_sqlite_that_does_not_take_a_setting_is_refused(directory, monkeypatch, name):
    class Stubborn(module.Connection):
        def execute(self, sql, *arguments):
            return super().execute("SELECT 1" if sql.startswith(f"PRAGMA {name}=") else sql, *arguments)

    monkeypatch.setattr(module, "Connection", Stubborn)
    with pytest.raises(StorageError, match=f"did not accept {name}="):
        connect_to_write(directory)


def test_a_filesystem_that_does_not_take_wal_is_refused(directory, monkeypatch):
    class Stubborn(module.Connection):
        def execute(self, sql, *arguments):
            return super().execute("PRAGMA journal_mode=delete" if sql.startswith("PRAGMA journal_mode") else sql)

    monkeypatch.setattr(module, "Connection", Stubborn)
    with pytest.raises(StorageError, match="keeps journal_mode delete, wal is needed"):
        connect_to_write(directory)


def test_a_network_filesystem_has_a_rollback_journal_instead_of_wal(tmp_path, monkeypatch):
    monkeypatch.setattr(Directory, "is_network", lambda _: True)
    writers = []
    with connections(writers.append, "rw"), ondisk.create(tmp_path / "dataset", CONFIG) as dataset:
        dataset.append_file(lines(3))
        assert len(list(dataset.query())) == 3
        assert settings(writers[-1], ["journal_mode", "synchronous"]) == {"journal_mode": "delete", "synchronous": 3}
        assert files(dataset.path) == {INDEX}
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert len(list(reader.query())) == 3


def test_wal_and_shm_stay_from_the_first_moment_and_after_every_close(tmp_path):
    every = {INDEX, f"{INDEX}-wal", f"{INDEX}-shm"}
    with ondisk.create(tmp_path / "dataset", CONFIG) as dataset:
        assert files(dataset.path) == every
    assert files(dataset.path) == every
    with ondisk.open(dataset.path) as dataset:
        dataset.append_file(lines(3))
    assert files(dataset.path) == every
    with ondisk.open(dataset.path) as dataset:
        dataset.delete("")
    assert files(dataset.path) == every
    with ondisk.open(dataset.path, read_only=True) as dataset:
        list(dataset.query())
    assert files(dataset.path) == every


def test_where_wal_and_shm_were_removed_a_reader_makes_do_with_the_file_alone(tmp_path, monkeypatch):
    """As a user without permission to write; writers do not change the file meanwhile."""
    with ondisk.create(tmp_path / "dataset", CONFIG) as dataset:
        dataset.append_file(lines(3))
    for suffix in ("-wal", "-shm"):
        (dataset.path / (INDEX + suffix)).unlink()
    connect = module._connect

    def forbidden(directory, options):
        if options == "mode=ro":
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return connect(directory, options)

    monkeypatch.setattr(module, "_connect", forbidden)
    with Directory.open(dataset.path) as directory:
        connection = connect_to_read(directory)
        assert connection.execute("SELECT count(*) FROM datum").fetchone() == (3,)
        with directory.exclusive_if_free() as free:
            assert not free
        connection.close()
        with directory.exclusive_if_free() as free:
            assert free


def test_a_first_read_that_meets_a_writer_is_tried_once_more(directory, monkeypatch):
    failures = [1]

    class Unlucky(module.Connection):
        def execute(self, sql, *arguments):
            if "sqlite_schema" in sql and failures:
                failures.pop()
                raise sqlite3.OperationalError("attempt to write a readonly database")
            return super().execute(sql, *arguments)

    monkeypatch.setattr(module, "Connection", Unlucky)
    connect_to_read(directory).close()
    assert failures == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DiskFull),
        (sqlite3.SQLITE_CORRUPT, IndexCorrupt),
        (sqlite3.SQLITE_NOTADB, IndexCorrupt),
        (sqlite3.SQLITE_BUSY, LockError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, LockError),
        (sqlite3.SQLITE_LOCKED, LockError),
        (sqlite3.SQLITE_READONLY, ReadOnly),
        (sqlite3.SQLITE_READONLY_DBMOVED, ReadOnly),
        (sqlite3.SQLITE_PERM, ReadOnly),
        (sqlite3.SQLITE_IOERR_FSYNC, DurabilityLost),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, DurabilityLost),
        (sqlite3.SQLITE_IOERR_READ, StorageError),
        (sqlite3.SQLITE_CANTOPEN, StorageError),
        (None, StorageError),
    ],
)
def test_errors_of_sqlite_become_those_of_ondisk(directory, code, kind):
    error = sqlite3.OperationalError("it failed")
    if code is not None:
        error.sqlite_errorcode = code
    with pytest.raises(StorageError if kind is StorageError else kind) as caught, sqlite_errors(directory):
        raise error
    assert type(caught.value) is kind
    assert caught.value.message == f"{directory.path / INDEX}: it failed"
    assert caught.value.__cause__ is error


def test_what_is_no_database_is_corrupt(tmp_path):
    (tmp_path / INDEX).write_bytes(b"no database at all, but longer than a header of SQLite" * 100)
    with Directory.open(tmp_path) as directory, pytest.raises(IndexCorrupt) as caught:
        Index.open(directory, CONFIG)
    assert "--rebuild --yes` moves" in caught.value.hint


def test_a_path_with_signs_that_an_address_would_read_otherwise_is_opened(tmp_path):
    for name in ("a?mode=rwc", "a#b", "a%41b", "caf\u00e9 \n", os.fsdecode(b"\xff")):
        with ondisk.create(tmp_path / name, CONFIG) as dataset:
            dataset.append_file(lines(1))
        with ondisk.open(tmp_path / name, read_only=True) as dataset:
            assert len(list(dataset.query())) == 1
    assert len(list(tmp_path.iterdir())) == 5
    with ondisk.open(f"/{tmp_path / 'a#b'}", read_only=True) as dataset:  # two slashes would begin a host's name
        assert len(list(dataset.query())) == 1
