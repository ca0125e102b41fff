"""The index that a dataset finds: of another version, or somebody else's."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

import pytest

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import (
    IndexCorrupt,
    NeedsMigration,
    VersionTooNew,
)
from ondisk.index import INDEX

T = datetime(2026, 11, 20, 6, tzinfo=UTC)


@pytest.mark.each
@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("0000", NeedsMigration),
        ("0001", NeedsMigration),
        ("0008", VersionTooNew),
        ("9999", VersionTooNew),
        ("x'; --", IndexCorrupt),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_an_index_of_another_version_is_refused_and_left_alone(create, version, kind, read_only):
    dataset = create()
    dataset.append([Datum(T)])
    dataset.close()
    connection = sqlite3.connect(dataset.path / INDEX)
    connection.execute("UPDATE alembic_version SET version_num = ?", (version,))
    connection.commit()
    connection.close()
    before = (dataset.path / INDEX).read_bytes()
    with pytest.raises(kind) as caught:
        ondisk.open(dataset.path, read_only)
    assert caught.value.hint
    assert (dataset.path / INDEX).read_bytes() == before
    assert not (dataset.path / SENTINEL).exists()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER evil AFTER INSERT ON datum BEGIN DELETE FROM datum; END",
        "DROP TABLE deletion",
        "DROP TABLE value; CREATE VIEW value AS SELECT 1 AS id, 'a' AS value",
        "ALTER TABLE datum ADD COLUMN evil INTEGER AS (abs(seq))",
        "DELETE FROM dataset",
        "UPDATE dataset SET config = '[]'",
        "UPDATE dataset SET config = 'no json'",
        "DROP TABLE alembic_version",
        "DELETE FROM alembic_version",
    ],
)
def test_an_index_that_ondisk_did_not_make_is_refused(create, sql):
    dataset = create()
    dataset.close()
    connection = sqlite3.connect(dataset.path / INDEX)
    connection.executescript(sql)
    connection.close()
    for read_only in (False, True):
        with pytest.raises(IndexCorrupt) as caught:
            ondisk.open(dataset.path, read_only)
        assert "--rebuild --yes` moves " in caught.value.hint
