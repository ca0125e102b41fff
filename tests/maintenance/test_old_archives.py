"""A migration takes the archives of revision 5, which had their own indices, over into the one index of the dataset."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sums import wrong_sums
from worlds import sql

import ondisk
from ondisk.datum import Datum, Location
from ondisk.errors import AlreadyExists, ArchiveOffline, NotFound, OndiskError, StateError
from ondisk.filesystem import Directory
from ondisk.index import INDEX
from ondisk.index.tide import TIDE
from ondisk.maintenance.migrate import Migration
from ondisk.maintenance.old_archives import Fault, Known, Summary, away, faults
from ondisk.maintenance.states import State
from ondisk.segments import places
from ondisk.step import Interval
from ondisk.testing import crashes

GOLDEN = Path(__file__).parents[1] / "golden" / "revision-5"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def old(name: str, tmp_path: Path) -> Path:
    """Put a dataset of revision 5 on the disk."""
    with tarfile.open(GOLDEN / "datasets.tar.xz") as tar:
        members = [each for each in tar.getmembers() if each.name == name or each.name.startswith(f"{name}/")]
        tar.extractall(tmp_path, members, filter="data")
    path = tmp_path / name
    for text in path.rglob("index.sql"):
        with contextlib.closing(sqlite3.connect(text.parent / INDEX)) as index:
            index.executescript(text.read_text())
            index.execute("PRAGMA journal_mode=wal")
            for (segment,) in index.execute("SELECT name FROM segment").fetchall():
                if (text.parent / segment).exists():
                    found = (text.parent / segment).stat()
                    facts = found.st_ino, found.st_mtime_ns, segment
                    index.execute("UPDATE segment SET inode = ?, mtime = ? WHERE name = ?", facts)
            index.commit()
        text.unlink()
    return path


def answers(path: Path) -> list[list[Any]]:
    with ondisk.open(path, read_only=True) as dataset:
        return [[each.reftime.isoformat(), dict(each.metadata), each.location.segment] for each in dataset.query()]


def unordered(found: list[list[Any]]) -> list[list[Any]]:
    return sorted(found, key=json.dumps)


def data_of(found: list[list[Any]]) -> list[list[Any]]:
    """Return the answers without the names of segments."""
    return unordered([each[:2] for each in found])


def files(path: Path) -> dict[str, bytes]:
    """Return what is on disk, but for locks and SQLite's files for readers."""
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != ".lock" and not each.name.endswith(("-wal", "-shm"))
    }


def check_whole(path: Path) -> None:
    """Check the new index: its rows, sums, files and identities."""
    assert wrong_sums(path) == []
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    with ondisk.open(path) as dataset:
        assert not dataset.needs_check
        found = dataset.check(accurate=True)
        assert [each for each in found.segments if each.state not in (State.OK, State.DIRTY)] == []
    for folder in (path / ".archive").iterdir():
        if folder.is_dir() and any(folder.glob("[0-9]*/*")):
            assert not (folder / INDEX).exists()
            assert not (folder / "dataset.toml").exists()
            with Directory.open(path) as directory:
                place = places.place(directory, f".archive/{folder.name}/")
            assert place.why_away is None
            assert place.is_ours
            pattern = f"{place.name}%"
            count = sql(path, "SELECT ifnull(sum(summed), 0) FROM segment WHERE name LIKE ?", pattern)[0][0]
            assert place.identity is not None
            assert place.identity.count == count


def migrated(path: Path, **options: Any) -> Migration:
    """Migrate a dataset, after a dry run that changed nothing and said the same."""
    before = files(path)
    plan = ondisk.migrate(path, dry_run=True, **options)
    assert files(path) == before
    done = ondisk.migrate(path, **options)
    assert plan.is_needed
    assert done.done
    for name in ("superseded", "left_alone", "left_out", "forgotten", "offline"):
        assert getattr(plan, name) == getattr(done, name)
    assert [each.taken for each in plan.archives] == [each.taken for each in done.archives]
    again = ondisk.migrate(path, dry_run=True)
    assert not again.is_needed
    assert again.left_alone == done.left_alone
    check_whole(path)
    return done


def test_all_that_a_query_read_is_read_from_one_index(tmp_path: Path) -> None:
    path = old("archived", tmp_path)
    seqs = {seq for part in (path, *(path / ".archive").iterdir()) for (seq,) in sql(part, "SELECT seq FROM datum")}
    uuid = sql(path, "SELECT uuid FROM dataset")
    done = migrated(path)
    assert done.revision == ("0005", "0006")
    assert [Path(each.dataset).name for each in done.archives] == ["2024", "last"]
    assert unordered(answers(path)) == unordered(EXPECTED["archived"])
    assert [each[0] for each in answers(path)] == sorted(each[0] for each in EXPECTED["archived"]), "in one order"
    assert {seq for (seq,) in sql(path, "SELECT seq FROM datum")} == seqs
    assert sql(path, "SELECT uuid FROM dataset") == uuid
    names = {each.name for each in (path / ".archive" / "last").iterdir()}
    assert {f"{name}.before-0006" for name in (INDEX, "dataset.toml")} <= names
    assert (path / f"{INDEX}.before-0006").exists()
