"""Moving an index forward gives what creating it gives, whole or not at all."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import create_engine
from sqlalchemy.schema import CreateColumn

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType
from ondisk.index import migrations, tables
from ondisk.index.tables import DIALECT, Tables, field_column
from ondisk.step import Step

CONFIGS = {
    "no fields": DatasetConfig("vm2", Step.DAILY),
    "every type": DatasetConfig(
        "jsonl",
        Step.MONTHLY,
        unique=("reftime", "station", "name"),
        index=("station",),
        fields={"station": FieldType.INTEGER, "name": FieldType.TEXT, **{f"f{kind}": kind for kind in FieldType}},
    ),
}


OPENED: list[sqlite3.Connection] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def connect(path: str | Path = ":memory:") -> sqlite3.Connection:
    OPENED.append(sqlite3.connect(path, isolation_level=None))
    return OPENED[-1]


def created(config: DatasetConfig) -> sqlite3.Connection:
    connection = connect()
    for statement in Tables(config).create_statements():
        connection.execute(statement)
    return connection


def upgraded_from_nothing() -> sqlite3.Connection:
    connection = connect()
    migrations.upgrade(connection)
    return connection


def upgraded(config: DatasetConfig) -> sqlite3.Connection:
    connection = upgraded_from_nothing()
    for name, kind in config.fields.items():
        column = CreateColumn(field_column(name, kind)).compile(dialect=DIALECT)
        connection.execute(f"ALTER TABLE datum ADD COLUMN {column}")
    for statement in Tables(config).field_statements():
        connection.execute(statement)
    return connection


def schema(connection: sqlite3.Connection) -> dict[str, Any]:
    """Describe what SQLite understood, not how it was written."""
    result: dict[str, Any] = {}
    for name, kind, strict in connection.execute("SELECT name, type, strict FROM pragma_table_list ORDER BY name"):
        columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
        indices = {
            index: (unique, origin, partial, connection.execute(f"PRAGMA index_xinfo('{index}')").fetchall())
            for _, index, unique, origin, partial in connection.execute(f"PRAGMA index_list('{name}')")
        }
        result[name] = kind, strict, columns, indices
    # Expressions of indices, and the view, are known by their text only.
    texts = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type IN ('index', 'view') AND sql NOT NULL")
    return result | {f"{name} as text": re.sub(r"\s+", " ", text) for name, text in texts}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_upgraded_index_has_the_schema_of_a_created_one(config):
    expected = schema(created(config))
    assert {name for name, (_, strict, *_) in expected.items() if strict == 1} == {
        "dataset",
        "segment",
        "value",
        "deletion",
        "datum",
    }
    assert schema(upgraded(config)) == expected


def test_the_newest_revision_is_the_one_that_ondisk_makes():
    assert migrations.head() == tables.REVISION
    stamped = upgraded_from_nothing().execute("SELECT version_num FROM alembic_version").fetchall()
    assert stamped == [(tables.REVISION,)]


def test_upgrading_an_index_that_is_new_enough_changes_nothing():
    connection = created(CONFIGS["every type"])
    before = schema(connection)
    migrations.upgrade(connection)
    assert schema(connection) == before


def test_alembic_finds_no_difference_between_revisions_and_tables():
    config = migrations._config()
    with create_engine("sqlite://", creator=lambda: upgraded(CONFIGS["no fields"])).connect() as connection:
        config.attributes["connection"] = connection
        command.check(config)


def test_an_upgrade_that_fails_leaves_the_index_as_it_was():
    connection = connect()
    connection.execute("CREATE TABLE datum (mine)")  # the last table that revision 1 makes
    before = schema(connection)
    with pytest.raises(Exception, match="table datum already exists"):
        migrations.upgrade(connection)
    assert schema(connection) == before
    assert not connection.in_transaction


# Forks one upgrade after the other; the n-th is killed as it begins its n-th statement, until one comes through.
KILLED = """
import itertools, os, signal, sqlite3, sys
from ondisk.index import migrations
migrations.upgrade(sqlite3.connect(":memory:", isolation_level=None))  # imports all there is
for n in itertools.count(1):
    child = os.fork()
    if not child:
        connection = sqlite3.connect(f"{sys.argv[1]}/{n}.sqlite", isolation_level=None)
        connection.execute("PRAGMA cache_size=0")  # so that half a transaction is on disk, and must be undone
        left = itertools.count(n - 1, -1)
        connection.set_trace_callback(lambda _: next(left) or os.kill(os.getpid(), signal.SIGKILL))
        migrations.upgrade(connection)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
    if not status:
        break
"""


def test_a_killed_upgrade_leaves_the_old_revision_or_the_new(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, check=True)
    codes = [int(line) for line in run.stdout.split()]
    assert len(codes) > 8
    assert codes == [-signal.SIGKILL] * (len(codes) - 1) + [0]
    old, new = schema(connect()), schema(upgraded_from_nothing())
    for n, code in enumerate(codes, 1):
        assert schema(connect(tmp_path / f"{n}.sqlite")) == (old if code else new)
