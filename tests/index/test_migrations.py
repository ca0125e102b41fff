"""An upgraded index equals a new one, or is not changed at all."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory

import ondisk
from ondisk.config import DatasetConfig
from ondisk.datum import Datum, FieldType
from ondisk.errors import NeedsMigration
from ondisk.index import INDEX, convert, tables
from ondisk.index.tables import Columns
from ondisk.step import Step

CONFIGS = {
    "no fields": DatasetConfig("vm2", Step.DAILY),
    "every type": DatasetConfig(
        "jsonl",
        Step.MONTHLY,
        unique=("reftime", "station", "name"),
        index=("station",),
        fields={
            "station": FieldType.INTEGER,
            "name": FieldType.TEXT,
            "area": FieldType.ITEM,
            **{f"f{kind}": kind for kind in FieldType if kind is not FieldType.ITEM},
        },
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
    for statement in Columns(config).create_statements():
        connection.execute(statement)
    return connection


def upgraded_from_nothing() -> sqlite3.Connection:
    connection = connect()
    convert.upgrade(connection)
    return connection


def upgraded(config: DatasetConfig) -> sqlite3.Connection:
    connection = upgraded_from_nothing()
    columns = Columns(config)
    for name in config.fields:
        connection.execute(f"ALTER TABLE datum ADD COLUMN {columns.declared(name)}")
    for statement in columns.field_statements():
        connection.execute(statement)
    return connection


def schema(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the schema as SQLite understands it, however it is written."""
    result: dict[str, Any] = {}
    tables = "SELECT name, type, strict, wr FROM pragma_table_list ORDER BY name"
    for name, kind, strict, without_rowid in connection.execute(tables):
        columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
        indices = {
            index: (unique, origin, partial, connection.execute(f"PRAGMA index_xinfo('{index}')").fetchall())
            for _, index, unique, origin, partial in connection.execute(f"PRAGMA index_list('{name}')")
        }
        result[name] = kind, strict, without_rowid, columns, indices
    # Expressions of indices, and the view, are known by their text only.
    texts = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type IN ('index', 'view') AND sql NOT NULL")
    return result | {f"{name} as text": re.sub(r"\s+", " ", text) for name, text in texts}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_upgraded_index_has_the_schema_of_a_created_one(config):
    expected = schema(created(config))
    assert {name for name, (_, strict, *_) in expected.items() if strict == 1} == {
        "dataset",
        "segment",
        "day_sum",
        "value_count",
        "block",
        "value",
        "deletion",
        "session",
        "done",
        "former",
        "moved",
        "source",
        "difference",
        "datum",
    }
    assert schema(upgraded(config)) == expected


def test_the_newest_revision_is_the_one_that_ondisk_makes():
    assert ScriptDirectory.from_config(convert.alembic()).get_current_head() == tables.REVISION
    stamped = upgraded_from_nothing().execute("SELECT version_num FROM alembic_version").fetchall()
    assert stamped == [(tables.REVISION,)]


def test_upgrading_an_index_that_is_new_enough_changes_nothing():
    connection = created(CONFIGS["every type"])
    before = schema(connection)
    convert.upgrade(connection)
    assert schema(connection) == before


@pytest.mark.parametrize(
    "table", ["datum", "block", "done", "difference", "value_count"]
)  # the last that each revision makes
def test_an_upgrade_that_fails_leaves_the_index_as_it_was(table):
    connection = connect()
    connection.execute(f"CREATE TABLE {table} (mine)")
    before = schema(connection)
    with pytest.raises(Exception, match=f"table {table} already exists"):
        convert.upgrade(connection)
    assert schema(connection) == before
    assert not connection.in_transaction


def test_each_bit_of_revision_6_becomes_a_column():
    hides = "to have them back, put the file back from a backup, and fix again"
    damage = {None: 0, "its bytes have changed": 0, f"{hides}, or not": 0, f"8 bytes are damaged; {hides}": 1}
    marks = [*product((0, 1), (0, 1, 2, 3), (0, 1), (0, 1), damage)]  # 3, which ondisk never wrote, becomes 2
    connection = connect()
    convert.upgrade(connection, "0006")
    values = "VALUES (?, 0, 0, 0, 0, 0, ?, ?)"
    before = f'INSERT INTO segment (name, format, size, "begin", "end", mtime, checked, unread) {values}'
    for at, (has_unknown, copies, shared, unproven, reason) in enumerate(marks):
        connection.execute(before, (at, reason, has_unknown + 2 * copies + 8 * shared + 16 * unproven))
    convert.upgrade(connection)
    columns = "has_unknown, copies, shared, unproven, damage, hides_data"
    found = connection.execute(f"SELECT {columns} FROM segment ORDER BY id").fetchall()
    assert found == [(known, min(2, copies), *rest, damage[rest[-1]]) for known, copies, *rest in marks]


# A dataset that an ondisk of revision 1 made

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = json.loads((GOLDEN / "revision-1" / "expected.json").read_text())
BEATS = GOLDEN / "diskqueue" / "v2-lz4" / "2.seg"


@pytest.fixture(params=["wal", "delete"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the dataset, with the index in the form of a local filesystem or of a network filesystem."""
    path = tmp_path / "dataset"
    path.mkdir()
    for name in ("dataset.toml", "2026"):
        copy: Callable[..., object] = shutil.copytree if name == "2026" else shutil.copyfile
        copy(GOLDEN / "revision-1" / name, path / name)
    index = sqlite3.connect(path / INDEX)
    index.execute(f"PRAGMA journal_mode={request.param}")
    index.executescript((GOLDEN / "revision-1" / "index.sql").read_text())
    index.close()
    return path


def upgrade(path: Path) -> None:
    index = sqlite3.connect(path / INDEX, isolation_level=None)
    convert.upgrade(index)
    index.close()


def found(dataset: ondisk.Dataset, match: str | None = None) -> list[dict[str, Any]]:
    """Return the data of a query, in the form of `expected.json`."""
    return [
        {
            "reftime": datum.reftime.isoformat(),
            "metadata": datum.metadata,
            "data": datum.data.decode(),
            "location": [datum.location.segment, datum.location.offset, datum.location.size],
        }
        for datum in dataset.query(match)
    ]


def test_an_index_of_revision_1_is_left_alone_until_it_is_upgraded(old):
    before = (old / INDEX).read_bytes()
    for read_only in (True, False):
        with pytest.raises(NeedsMigration, match="has revision 0001, this ondisk needs 0007"):
            ondisk.open(old, read_only)
    assert (old / INDEX).read_bytes() == before


def test_an_upgraded_index_of_revision_1_has_the_schema_of_a_created_one(old):
    upgrade(old)
    config = DatasetConfig.from_toml((old / "dataset.toml").read_text())
    assert schema(connect(old / INDEX)) == schema(created(config))


@pytest.mark.parametrize("read_only", [True, False])
def test_after_an_upgrade_from_revision_1_all_data_are_as_they_were(old, read_only):
    files = {name: (old / name).read_bytes() for name in ("2026/11-20.vm2", "2026/11-21.vm2")}
    upgrade(old)
    with ondisk.open(old, read_only) as dataset:
        assert not dataset.needs_check
        assert found(dataset) == EXPECTED
        some = [each for each in EXPECTED if each["metadata"]["area"] == "VM2,101"]
        assert found(dataset, 'area:"VM2,101"') == some != []
        for each in EXPECTED:
            datum = dataset.read(ondisk.Location(*each["location"]))
            assert (datum.data.decode(), datum.metadata) == (each["data"], each["metadata"])
            again = list(dataset.query(reftime=datum.reftime, **datum.metadata))
            assert [one.data for one in again] == [datum.data], "found by its whole unique key"
        summary = dataset.summary()
        assert (summary.count, summary.size) == (7, sum(len(each["data"]) for each in EXPECTED))
        assert summary.fields["area"].values == [("VM2,101", 3), ("VM2,102", 2), ("VM2,103", 1), ("VM2,104", 1)]
    assert {name: (old / name).read_bytes() for name in files} == files


def test_an_upgrade_keeps_every_row_and_says_of_each_segment_how_far_it_goes(old):
    before = connect(":memory:")
    before.executescript((GOLDEN / "revision-1" / "index.sql").read_text())
    upgrade(old)
    after = connect(old / INDEX)
    for table in ("dataset", "datum", "value", "deletion", "data"):
        added = {"dataset": (0, 0), "deletion": (0,)}.get(table, ())
        sql = f"SELECT * FROM {table} ORDER BY 1, 2, 3" if table in ("dataset", "data") else f"SELECT * FROM {table}"
        assert after.execute(sql).fetchall() == [(*row, *added) for row in before.execute(sql)] != []
    ends = [
        (*row, row[3], 0, 0, None, None, None, None, 0, None, 0, 0, 0, 0, 0)
        for row in before.execute("SELECT * FROM segment ORDER BY id")
    ]
    assert after.execute("SELECT * FROM segment ORDER BY id").fetchall() == ends
    assert after.execute("SELECT * FROM block").fetchall() == after.execute("SELECT * FROM done").fetchall() == []


def test_after_an_upgrade_from_revision_1_data_come_and_go(old):
    upgrade(old)
    size = (old / "2026/11-21.vm2").stat().st_size
    known, new = b"202611210100,103,1,8.75,,,000000000", b"202611210200,103,1,8.25,,,000000000"
    noon = datetime(2026, 11, 21, tzinfo=UTC)
    with ondisk.open(old) as dataset:
        result = dataset.append([Datum(noon.replace(hour=1), {}, known), Datum(noon.replace(hour=2), {}, new)])
        assert (result.imported, result.replaced) == (1, 1)
        data = [(datum.data, datum.location.offset) for datum in dataset.query('area:"VM2,103"')]
        assert data == [(known, size), (new, size + len(known) + 1)], "behind what was there"
        assert dataset.delete("reftime:=2026-11-21") == 3
    with ondisk.open(old) as dataset:
        assert found(dataset) == [each for each in EXPECTED if each["location"][0] == "2026/11-20.vm2"]
    numbers = connect(old / INDEX).execute("SELECT seq FROM datum UNION ALL SELECT seq FROM deletion").fetchall()
    assert len(set(numbers)) == len(numbers), "seq goes on where revision 1 left it"
    assert max(numbers) == connect(old / INDEX).execute("SELECT seq FROM dataset").fetchone()


def test_after_an_upgrade_from_revision_1_compressed_segments_are_beside_the_old(old):
    upgrade(old)
    with ondisk.open(old) as dataset:
        assert dataset.append_file(BEATS).imported == 20
    with ondisk.open(old, read_only=True) as dataset:
        events = json.loads((BEATS.parent / "expected.json").read_text())["files"][BEATS.name]["events"]
        events.sort(key=lambda event: event["timestamp_ns"])
        beats = [datum for datum in dataset.query() if datum.location.segment.endswith(".seg")]
        assert [datum.data["message"] for datum in beats] == [event["fields"]["message"] for event in events]
        assert {datum.location.segment[:4] for datum in beats} == {"1969", "1970", "2020", "2262"}
        assert found(dataset, "reftime:=2026") == EXPECTED
    index = connect(old / INDEX)
    for id_, name, length, compressed in index.execute("SELECT id, name, length, compressed FROM segment"):
        blocks = [offset for (offset,) in index.execute("SELECT offset FROM block WHERE segment = ?", (id_,))]
        assert bool(blocks) == bool(compressed) == name.endswith(".seg")
        assert all(12 <= offset < length for offset in blocks)
