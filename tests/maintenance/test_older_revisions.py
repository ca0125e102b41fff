"""Datasets of older revisions become those of this one, and nothing in them is lost or doubted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from old_datasets import with_indices
from sums import wrong_sums
from worlds import sql

import ondisk
from ondisk.datum import Datum
from ondisk.errors import IndexCorrupt
from ondisk.index import INDEX
from ondisk.maintenance.states import State

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = json.loads((GOLDEN / "revision-3" / "expected.json").read_text())


@pytest.fixture(params=sorted(EXPECTED))
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Put a dataset of revision 3 on the disk, with files that were changed now."""
    return copied("revision-3", request.param, tmp_path)


def copied(revision: str, kind: str, tmp_path: Path) -> Path:
    path = tmp_path / kind
    shutil.copytree(GOLDEN / revision / kind, path)
    for part in parts(path):
        with contextlib.closing(sqlite3.connect(part / INDEX)) as index:
            index.executescript((part / "index.sql").read_text())
        (part / "index.sql").unlink()
    return path


def parts(path: Path) -> tuple[Path, Path]:
    return path, path / ".archive/last"


def restore_mtimes(path: Path) -> None:
    for part in parts(path):
        for name, mtime in sql(part, "SELECT name, mtime FROM segment"):
            file = part / name
            os.utime(file / ".sequence" if file.is_dir() else file, ns=(mtime, mtime))


def change_mtimes(path: Path) -> None:
    for part in parts(path):
        for file in part.glob("2026/**/*"):
            os.utime(file, ns=(1_800_000_000_000_000_001, 1_800_000_000_000_000_001))


def answers(dataset: ondisk.Dataset) -> list[dict[str, object]]:
    return [
        {
            "reftime": each.reftime.isoformat(),
            "metadata": dict(each.metadata),
            "data": each.data.decode() if isinstance(each.data, bytes) else each.data,
            "location": [each.location.segment, each.location.offset, each.location.size],
        }
        for each in dataset.query()
    ]


def left(dataset: ondisk.Dataset, **options: bool) -> list[tuple[str, State]]:
    """Return what is not OK: the segment whose datum was deleted only."""
    return [(each.segment, each.state) for each in dataset.check(**options) if each.state]


def seqs(path: Path) -> list[tuple[int]]:
    found = [sql(part, "SELECT seq FROM datum") for part in parts(path) if (part / INDEX).exists()]
    return sorted(each for part in found for each in part)


def test_files_as_recorded_are_trusted_and_get_their_facts(before: Path) -> None:
    name = before.name
    restore_mtimes(before)
    numbers = seqs(before)
    done = ondisk.migrate(before)
    assert done.revision == ("0003", "0007")
    dirty = [(f"2026/11-21.{name}", State.DIRTY)]
    with ondisk.open(before) as dataset:
        assert not dataset.needs_check
        assert answers(dataset) == EXPECTED[name]
        assert left(dataset) == left(dataset, accurate=True) == dirty
        dataset.fix()
        assert answers(dataset) == EXPECTED[name]
        assert seqs(before) == numbers
        assert sql(before, "SELECT 1 FROM deletion WHERE forgotten") == []
        dataset.repack()
        assert dataset.check(accurate=True).is_clean
        assert [each["data"] for each in answers(dataset)] == [each["data"] for each in EXPECTED[name]]
        assert [*dataset.quarantine] == []
    facts = sql(before, "SELECT mtime, inode, tail, checksum FROM segment WHERE name = ?", f"2026/11-21.{name}")[0]
    file = before / f"2026/11-21.{name}"
    assert facts[0] == (file / ".sequence" if file.is_dir() else file).stat().st_mtime_ns
    if name != "blob":  # whose entries have the checksum of each file
        assert facts[1] == file.stat().st_ino
        assert None not in facts


def test_files_that_were_copied_are_answered_and_one_fix_makes_them_ok(before: Path) -> None:
    name = before.name
    change_mtimes(before)
    numbers = seqs(before)
    ondisk.migrate(before)
    with ondisk.open(before) as dataset:
        assert answers(dataset) == EXPECTED[name], "before the fix"
        reasons = {each.segment: each.reasons for each in dataset.fix()}
        assert (
            reasons[f"2026/11-21.{name}"][-1]
            == "1 datum was read that the index did not have; if you had deleted any, delete them again"
        )
        assert left(dataset) == left(dataset, accurate=True) == []
        found = answers(dataset)
        assert [each for each in found if each in EXPECTED[name]] == EXPECTED[name]
        returned = [each for each in found if each not in EXPECTED[name]]
        assert [each["reftime"] for each in returned] == ["2026-11-21T01:00:00+00:00"], "what was deleted, and is there"
        assert {*numbers} <= {*seqs(before)}, "each datum keeps its number"
        assert sql(before, "SELECT 1 FROM deletion WHERE forgotten") == []
        assert [*dataset.quarantine] == []
        assert dataset.info()["lost"] == 0


def test_an_append_goes_on_where_the_release_before_ended(before: Path) -> None:
    name = before.name
    restore_mtimes(before)
    ondisk.migrate(before)
    with ondisk.open(before) as dataset:
        last = [*dataset.query()][-1]
        assert dataset.append([last]).duplicates == 1
        metadata = dict(last.metadata) | {"area": "VM2,999"}
        data = last.data.replace(b",104,", b",999,") if name == "vm2" else last.data
        result = dataset.append([Datum(last.reftime, metadata, data)])
        assert result.imported == 1, result
        assert answers(dataset)[: len(EXPECTED[name])] == EXPECTED[name]
        assert [each for each in left(dataset, accurate=True) if each[1] != State.DIRTY] == []


def test_an_index_of_revision_4_gets_its_sums_without_reading_a_segment(tmp_path: Path) -> None:
    path = copied("revision-4", "vm2", tmp_path)
    for file in path.rglob("*.vm2"):
        file.rename(tmp_path / file.name)
    assert ondisk.migrate(path).revision == ("0004", "0007")
    assert wrong_sums(path) == []
    assert sql(path, "SELECT count(*) FROM segment WHERE summed IS NULL") == [(0,)]
    with ondisk.open(path, read_only=True) as dataset:
        expected = json.loads((GOLDEN / "revision-4" / "expected.json").read_text())["vm2"]
        assert dataset.summary().count == len(expected) == 11
        found = [(each.reftime.isoformat(), dict(each.metadata)) for each in dataset.query(with_data=False)]
        assert found == [(each["reftime"], each["metadata"]) for each in expected]


def test_an_index_of_revision_6_keeps_the_marks_of_its_segments(tmp_path: Path) -> None:
    path = with_indices(Path(shutil.copytree(GOLDEN / "revision-6" / "marks", tmp_path / "marks")))
    expected = json.loads((GOLDEN / "revision-6" / "expected.json").read_text())
    assert ondisk.migrate(path).revision == ("0006", "0007")
    columns = "has_unknown, copies, shared, unproven, hides_data"
    found = {name: marks for name, *marks in sql(path, f"SELECT name, {columns} FROM segment")}
    assert {name: marks for name, marks in found.items() if any(marks)} == {
        ".archive/last/2026/11-18.jsonl": [0, 2, 0, 1, 0],
        ".archive/last/2026/11-19.jsonl": [0, 1, 0, 1, 0],
        "2026/11-22.jsonl": [0, 0, 0, 1, 1],
        "2026/11-23.jsonl": [1, 0, 0, 0, 0],
    }
    with ondisk.open(path) as dataset:
        assert [[each.segment, each.state.names, [*each.reasons]] for each in dataset.check()] == expected["check"]
        data = dataset.query(with_data=False)
        assert expected["data"] == [
            [each.reftime.isoformat(), dict(each.metadata), each.location.segment] for each in data
        ]
        damaged = {name: why for name, _, why in expected["check"]}["2026/11-22.jsonl"]
        assert [*next(each for each in dataset.fix() if each.segment == "2026/11-22.jsonl").reasons] == damaged, (
            "what hides data is not cleared because nothing that the index has is damaged"
        )


def test_a_view_of_somebody_does_not_stop_a_migration(tmp_path: Path) -> None:
    path = with_indices(Path(shutil.copytree(GOLDEN / "revision-6" / "marks", tmp_path / "marks")))
    sql(path, "CREATE VIEW mine AS SELECT name FROM segment WHERE unread")
    assert ondisk.migrate(path).done


def test_an_older_index_that_is_damaged_is_not_migrated(tmp_path: Path) -> None:
    path = with_indices(Path(shutil.copytree(GOLDEN / "revision-6" / "marks", tmp_path / "marks")))
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    ((page, size),) = sql(path, "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema"
                                " WHERE name = 'datum_by_reftime'")  # fmt: skip
    content = bytearray((path / INDEX).read_bytes())
    content[page * size - 40 : page * size] = bytes(40)  # the end of the page, where its cells are
    (path / INDEX).write_bytes(content)
    with pytest.raises(IndexCorrupt, match="is damaged") as caught:
        ondisk.migrate(path)
    assert "--rebuild" in caught.value.hint
    assert (path / INDEX).read_bytes() == content
