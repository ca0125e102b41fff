"""An `index.sqlite` that was damaged, or made by an attacker."""

from __future__ import annotations

import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crash.workload import datum_of
from worlds import lose_index

import ondisk
from ondisk.errors import (
    IndexCorrupt,
    IntegrityError,
    NeedsMigration,
    SegmentCorrupt,
    StateError,
    StorageError,
    VersionTooNew,
)

from .conftest import LINES, SEGMENT, Edit, errors, nothing_came_out, use


def check_refused(path: Path, kind: type[ondisk.OndiskError], code: int) -> None:
    """Neither a reader nor a writer opens it, and it does not change."""
    before = (path / "index.sqlite").read_bytes()
    for read_only in (True, False):
        with pytest.raises(kind) as caught:
            ondisk.open(path, read_only=read_only)
        assert caught.value.exit_code == code
        assert caught.value.hint
        assert str(path) in caught.value.message
    assert (path / "index.sqlite").read_bytes() == before


@pytest.mark.parametrize("table", ["datum", "segment", "block", "value", "deletion", "dataset", "alembic_version"])
def test_a_planted_trigger_is_refused_and_never_runs(table: str, path: Path, edit: Edit) -> None:
    edit(f"CREATE TRIGGER planted AFTER INSERT ON {table} BEGIN DELETE FROM datum; END")
    check_refused(path, IndexCorrupt, 63)


@pytest.mark.parametrize("table", ["datum", "segment", "block", "value", "deletion", "dataset"])
def test_a_view_in_place_of_a_table_is_refused(table: str, path: Path, edit: Edit) -> None:
    edit(f"ALTER TABLE {table} RENAME TO aside", f"CREATE VIEW {table} AS SELECT * FROM aside")
    check_refused(path, IndexCorrupt, 63)


@pytest.mark.parametrize(
    "column",
    ["planted INTEGER AS (length(zeroblob(1000000000)))", "planted INTEGER AS (seq) STORED", "planted INTEGER"],
)
def test_a_planted_column_is_refused(column: str, path: Path, edit: Edit) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as index:
        (sql,) = index.execute("SELECT sql FROM sqlite_schema WHERE name = 'datum'").fetchone()
        names = ", ".join(row[1] for row in index.execute("PRAGMA table_info(datum)"))
    head, tail = sql.split("(", 1)
    edit(
        "DROP VIEW data",
        "ALTER TABLE datum RENAME TO aside",
        f"{head} ({column}, {tail}",
        f"INSERT INTO datum ({names}) SELECT {names} FROM aside",
        "DROP TABLE aside",
    )
    check_refused(path, IndexCorrupt, 63)


def test_a_table_that_takes_any_type_is_refused(path: Path, edit: Edit) -> None:
    with closing(sqlite3.connect(path / "index.sqlite")) as index:
        (sql,) = index.execute("SELECT sql FROM sqlite_schema WHERE name = 'datum'").fetchone()
    edit(
        "DROP VIEW data",
        "ALTER TABLE datum RENAME TO aside",
        sql.replace("STRICT", ""),
        "INSERT INTO datum SELECT * FROM aside",
        "DROP TABLE aside",
    )
    check_refused(path, IndexCorrupt, 63)


def test_a_virtual_table_in_place_of_a_table_is_refused(path: Path, edit: Edit) -> None:
    edit("ALTER TABLE deletion RENAME TO aside")
    try:
        edit("CREATE VIRTUAL TABLE deletion USING fts5(seq, datum)")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    check_refused(path, IndexCorrupt, 63)


@pytest.mark.parametrize("table", ["datum", "segment", "block", "value", "deletion", "dataset", "alembic_version"])
def test_a_missing_table_is_refused(table: str, path: Path, edit: Edit) -> None:
    edit("DROP VIEW data", f"DROP TABLE {table}")
    check_refused(path, IndexCorrupt, 63)


@pytest.mark.parametrize(
    "rows",
    [
        "DELETE FROM dataset",
        "INSERT INTO dataset SELECT 2, uuid, seq, generation, config, committed_at, lost, expired FROM dataset",
        "UPDATE dataset SET config = '[]'",
        "UPDATE dataset SET config = '{\"step\": 1}'",
        "UPDATE dataset SET config = 'x'",
    ],
)
def test_a_description_that_cannot_be_is_refused(rows: str, path: Path, edit: Edit) -> None:
    edit(rows)
    check_refused(path, IndexCorrupt, 63)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 4080, b"\0" * 4096, b"x" * 100_000],
    ids=["empty", "one byte", "cut header", "bad header", "zeros", "garbage"],
)
def test_garbage_in_place_of_the_index_is_refused_and_left(content: bytes, path: Path) -> None:
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (path / name).unlink()
    (path / "index.sqlite").write_bytes(content)
    check_refused(path, IndexCorrupt, 63)


def damaged_copies(path: Path, damage: Callable[[bytes, int], bytes], step: int) -> Iterator[tuple[int, Path]]:
    """Copy the dataset again for each damage: where it does no harm, a commit would make the next one an older state.

    Args:
        damage: returns the damaged index.
    """
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (path / name).unlink(missing_ok=True)
    whole = (path / "index.sqlite").read_bytes()
    for place in range(0, len(whole), step):
        copy = Path(shutil.copytree(path, path.with_name("damaged")))
        (copy / "index.sqlite").write_bytes(damage(whole, place))
        yield place, copy
        shutil.rmtree(copy)


@pytest.mark.check
def test_an_index_cut_anywhere_raises_documented_errors_only(path: Path) -> None:
    for size, copy in damaged_copies(path, lambda whole, size: whole[:size], 1500):
        gave = use(copy)
        assert nothing_came_out(gave)
        for error in errors(gave).values():
            assert isinstance(error, IntegrityError | StorageError), (size, error)


@pytest.mark.check
def test_an_index_with_bytes_changed_anywhere_raises_documented_errors_only(path: Path) -> None:
    for place, copy in damaged_copies(path, lambda whole, at: whole[:at] + b"\xa5" * 24 + whole[at + 24 :], 1997):
        assert nothing_came_out(use(copy)), place  # use raises any error that is not an OndiskError


def test_a_schema_damaged_by_what_is_no_text_is_reported(path: Path) -> None:
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (path / name).unlink()
    whole = (path / "index.sqlite").read_bytes()
    (path / "index.sqlite").write_bytes(whole.replace(b"CREATE TABLE datum", b"CREATE \xa5ABLE datum"))
    check_refused(path, IndexCorrupt, 63)


@pytest.mark.parametrize(
    ("revision", "kind", "code"),
    [("0000", NeedsMigration, 32), ("0001", NeedsMigration, 32), ("0002", NeedsMigration, 32),
     ("0008", VersionTooNew, 33), ("9999", VersionTooNew, 33), ("", IndexCorrupt, 63), ("2", IndexCorrupt, 63),
     ("0004; DROP TABLE datum", IndexCorrupt, 63), ("00020", IndexCorrupt, 63), ("abcd", IndexCorrupt, 63),
     ("٠٠٠٢", IndexCorrupt, 63)],
)  # fmt: skip
def test_another_revision_is_reported_and_nothing_is_changed(
    revision: str, kind: type[StateError], code: int, path: Path, edit: Edit
) -> None:
    edit(f"UPDATE alembic_version SET version_num = '{revision}'")
    check_refused(path, kind, code)


@pytest.mark.parametrize("rows", ["DELETE FROM alembic_version", "INSERT INTO alembic_version VALUES ('0001')"])
def test_no_revision_or_two_of_them_are_refused(rows: str, path: Path, edit: Edit) -> None:
    edit(rows)
    check_refused(path, IndexCorrupt, 63)


HUGE = 2**62
NUMBERS = [-1, -HUGE, 2**40, 2**63 - 1]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("column", ["datum.offset", "datum.size", "segment.size", "datum.reftime", "datum.segment",
                                    "datum.f_area", "datum.seq", 'segment."begin"', "segment.mtime", "segment.id",
                                    "dataset.seq", "dataset.generation", "segment.length", "segment.count",
                                    "segment.compressed"])  # fmt: skip
def test_a_number_that_cannot_be_raises_a_documented_error_and_takes_no_memory(
    column: str, number: int, path: Path, edit: Edit
) -> None:
    table, name = column.split(".", 1)
    first = f"(SELECT min(rowid) FROM {table})"
    edit(f"UPDATE {table} SET {name} = {number} WHERE rowid = {first}")
    tracemalloc.start()
    try:
        gave = use(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024
    assert nothing_came_out(gave)
    for error in errors(gave).values():
        is_as_of_a_replica = column == "datum.seq" and isinstance(error, StateError)
        assert is_as_of_a_replica or isinstance(error, IntegrityError | StorageError | ondisk.errors.NotFound), error
    if column in ("datum.offset", "datum.size") and number != -1:
        assert {"query", "query, read only"} <= errors(gave).keys()


@pytest.mark.parametrize("size", [-1, -36, 1000, 10**6])
def test_a_size_that_leads_into_other_data_returns_no_bytes(size: int, path: Path, edit: Edit) -> None:
    edit(f"UPDATE datum SET size = {size} WHERE seq = 3")
    gave = use(path)
    assert nothing_came_out(gave)
    assert "query" in errors(gave)


@pytest.mark.parametrize("name", [SEGMENT, "2026/11-21.vm2"])
def test_a_segment_shorter_than_the_index_says_is_reported(name: str, path: Path) -> None:
    with (path / name).open("rb+") as file:
        file.truncate(100)
    gave = use(path)
    assert nothing_came_out(gave)
    assert errors(gave)["query"].exit_code == errors(gave)["append"].exit_code == 62
    with ondisk.open(path) as dataset:
        if name == SEGMENT:
            with pytest.raises(SegmentCorrupt, match="ends at byte 100, but the index has data up to byte"):
                _ = next(dataset.query(limit=1)).data
        else:
            assert next(dataset.query(limit=1)).data == LINES[0]
        assert dataset.delete("") > 0


def test_text_in_the_index_that_is_no_unicode_raises_a_documented_error(path: Path, edit: Edit) -> None:
    edit("UPDATE value SET value = CAST(x'fffe' AS TEXT)  WHERE id = 1")
    gave = use(path)
    assert {"query", "summary"} <= errors(gave).keys()


def test_an_index_in_utf_16_works(path: Path, tmp_path: Path) -> None:
    """SQLite decodes it; ondisk does not compare its bytes."""
    with closing(sqlite3.connect(path / "index.sqlite")) as old:
        dump = list(old.iterdump())
    lose_index(path)
    with closing(sqlite3.connect(path / "index.sqlite")) as new:
        new.execute("PRAGMA encoding = 'UTF-16'")
        new.executescript("\n".join(dump))
    with ondisk.open(path) as dataset:
        assert [each.data for each in dataset.query('area:"VM2,1"')] == LINES[:10]
        assert dataset.append([datum_of(LINES[0])]).duplicates == 1
