"""A restored dataset is the same dataset; what the backup does not have whole is reported, and never believed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google_crc32c import value
from worlds import content, datum, sql

import ondisk
from ondisk.backup.point import Kept
from ondisk.errors import (
    AlreadyExists,
    IntegrityError,
    InvalidInput,
    NotFound,
    OndiskError,
    TokenForeign,
    VersionTooNew,
)
from ondisk.filesystem import Directory
from ondisk.index import tide
from ondisk.replication import Replica


@pytest.fixture
def dataset(create):
    made = create(fields={"station": "text"}, unique=["reftime", "station"])
    made.append([datum(0), datum(1), datum(24)])
    return made


@pytest.fixture
def target(dataset, tmp_path) -> Path:
    dataset.backup(tmp_path / "backup", create=True)
    return tmp_path / "backup"


def copy_of(target: Path, name: str) -> Path:
    (found,) = (target / "segments/dataset/2026").glob(f"{name}*")
    return found


def test_a_point_is_chosen_by_time(dataset, tmp_path):
    target, points = tmp_path / "backup", []
    for hour in range(2, 5):
        dataset.append([datum(hour)])
        points.append((dataset.backup(target, create=not points).point, content(dataset)))
    for number, (time, expected) in enumerate(points):
        for at in (time, time + timedelta(microseconds=1)):
            path = tmp_path / f"{number}-{at.microsecond}"
            assert ondisk.restore(target, path, at).point == time
            with ondisk.open(path, read_only=True) as restored:
                assert content(restored) == expected
    with pytest.raises(NotFound, match="oldest"):
        ondisk.restore(target, tmp_path / "never", points[0][0] - timedelta(microseconds=1))
    with pytest.raises(InvalidInput, match="zone"):
        ondisk.restore(target, tmp_path / "never", datetime(2026, 11, 20))
    assert not (tmp_path / "never").exists()


def test_a_backup_without_points_is_an_error(target, tmp_path):
    for each in (target / "points").iterdir():
        each.rename(each.with_name(".old"))
    with pytest.raises(NotFound, match="no points"):
        ondisk.restore(target, tmp_path / "restored")


def test_nothing_is_read_again_and_nothing_must_be_fixed(target, tmp_path):
    ondisk.restore(target, tmp_path / "restored")
    for name, mtime, inode in sql(tmp_path / "restored", "SELECT name, mtime, inode FROM segment"):
        found = (tmp_path / "restored" / name).stat()
        assert (mtime, inode) == (found.st_mtime_ns, found.st_ino)
    with ondisk.open(tmp_path / "restored") as restored:
        assert not any(each.state or each.is_touched for each in restored.fix(dry_run=True).segments)
        assert restored.append([datum(0), datum(2)]).duplicates == 1


def test_the_tide_mark_and_the_files_of_the_index_are_there_for_readers(target, tmp_path):
    ondisk.restore(target, tmp_path / "restored")
    names = {each.name for each in (tmp_path / "restored").iterdir()}
    assert {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm", ".tide", ".lock", "dataset.toml", "2026"} == names
    with Directory.open(tmp_path / "restored") as directory:
        mark = tide.read(directory)
    assert (mark.uuid, mark.seq, mark.generation) == sql(directory.path, "SELECT uuid, seq, generation FROM dataset")[0]


def test_the_time_of_the_last_commit_is_that_of_the_backup(target, tmp_path):
    """Ages of data to delete count up to it."""
    ondisk.restore(target, tmp_path / "restored")
    both = [sql(tmp_path / name, "SELECT committed_at FROM dataset") for name in ("dataset", "restored")]
    assert both[0] == both[1]


def test_a_replica_notices_that_its_source_was_restored(dataset, target, tmp_path):
    with Replica.create(tmp_path / "replica", dataset.path) as replica:
        replica.pull()
    ondisk.restore(target, tmp_path / "restored")
    with Replica.open(tmp_path / "replica", tmp_path / "restored") as replica:
        replica.pull()  # the state that it has
    dataset.append([datum(2)])
    with Replica.open(tmp_path / "replica", dataset.path) as replica:
        replica.pull()
    with ondisk.open(tmp_path / "restored") as restored:
        restored.append([datum(3), datum(4)])
    with Replica.open(tmp_path / "replica", tmp_path / "restored") as replica, pytest.raises(TokenForeign):
        replica.pull()


def test_a_replica_that_is_restored_follows_its_source_again(dataset, tmp_path):
    with Replica.create(tmp_path / "replica", dataset.path) as replica:
        replica.pull()
    with ondisk.open(tmp_path / "replica", read_only=True) as replica:
        replica.backup(tmp_path / "backup", create=True)
    dataset.append([datum(2)])
    ondisk.restore(tmp_path / "backup", tmp_path / "restored")
    with Replica.open(tmp_path / "restored", dataset.path) as replica:
        assert replica.pull().stored == 1
    with ondisk.open(tmp_path / "restored", read_only=True) as restored:
        assert content(restored) == content(dataset)


@pytest.mark.parametrize("place", ["backup", "backup/restored", "."])
def test_a_dataset_is_not_restored_into_its_backup(place, target, tmp_path):
    with pytest.raises(InvalidInput):
        ondisk.restore(target, tmp_path / place)


class Stop(Exception):
    """Ends a restore."""


def interrupted(target: Path, path: Path, at: datetime | None = None) -> None:
    def stop(name: str) -> None:
        if "11-21" in name:
            raise Stop

    with pytest.raises(Stop):
        ondisk.restore(target, path, at, progress=stop)


def test_a_restore_that_was_interrupted_is_no_dataset_and_can_be_repeated(dataset, target, tmp_path):
    interrupted(target, tmp_path / "restored")
    with pytest.raises(NotFound):
        ondisk.open(tmp_path / "restored")
    ondisk.restore(target, tmp_path / "restored")
    with ondisk.open(tmp_path / "restored") as restored:
        assert content(restored) == content(dataset)
        assert restored.check(accurate=True).is_clean
    assert not (tmp_path / "restored/.restoring").exists()


def test_another_point_does_not_continue_an_interrupted_restore(dataset, target, tmp_path):
    interrupted(target, tmp_path / "restored")
    dataset.append([datum(2)])
    dataset.backup(target)
    with pytest.raises(AlreadyExists, match="interrupted") as caught:
        ondisk.restore(target, tmp_path / "restored")
    assert f"rm -r {tmp_path / 'restored'}" in caught.value.hint
    for damaged in ("", "[]", "{}", "[" * 60000):
        (tmp_path / "restored/.restoring").write_text(damaged)
        with pytest.raises(AlreadyExists, match="interrupted") as caught:
            ondisk.restore(target, tmp_path / "restored")
        assert f"remove the folder: rm -r {tmp_path / 'restored'}" in caught.value.hint


def test_a_damaged_copy_is_reported_and_its_data_are_not_believed(dataset, target, tmp_path):
    copy = copy_of(target, "11-20")
    before = copy.read_bytes()
    copy.write_bytes(
        before.replace(b'"value":0', b'"value":7', 1)
    )  # whole lines, which no checksum of their own protects
    (problem,) = ondisk.restore(target, tmp_path / "restored").problems
    assert (problem.segment, problem.kept) == ("2026/11-20.jsonl", Kept.DAMAGED)
    with ondisk.open(tmp_path / "restored") as restored:
        assert restored.count("reftime: >=2026-11-21") == 1
        with pytest.raises(OndiskError):
            [*restored.query()]
        restored.fix()
        assert restored.count() == 3
        assert restored.check(accurate=True).is_clean


def test_a_copy_that_is_gone_is_reported_and_the_others_are_restored(target, tmp_path):
    copy_of(target, "11-20").unlink()
    (problem,) = ondisk.restore(target, tmp_path / "restored").problems
    assert (problem.segment, problem.kept, problem.reason) == ("2026/11-20.jsonl", Kept.MISSING, "its copy is missing")
    with ondisk.open(tmp_path / "restored") as restored:
        assert restored.count("reftime: >=2026-11-21") == 1
        restored.fix()
        assert restored.count() == 1


def test_a_backup_without_any_copies_restores_nothing_and_names_all(create, tmp_path):
    made = create(format="blob", fields={"station": "text"})
    made.append([datum(hour, format="blob") for hour in (0, 24)])
    made.backup(tmp_path / "backup", create=True)
    shutil.rmtree(tmp_path / "backup/segments")
    restored = ondisk.restore(tmp_path / "backup", tmp_path / "restored")
    assert [each.kept for each in restored.problems] == [Kept.MISSING] * 2
    assert (restored.count, restored.size) == (0, 0)


def test_concat_segments_without_any_copies_are_named(target, tmp_path):
    shutil.rmtree(target / "segments/dataset/2026")
    restored = ondisk.restore(target, tmp_path / "restored")
    assert [each.kept for each in restored.problems] == [Kept.MISSING] * 2


@pytest.mark.parametrize("name", ["index.sqlite", "segments.jsonl", "dataset.toml"])
def test_a_damaged_index_or_list_is_an_error(name, target, tmp_path):
    (file,) = (target / "points").glob(f"*/dataset/{name}")
    content = file.read_bytes()
    file.write_bytes(content[:-2] + b"??")
    with pytest.raises(IntegrityError, match=name):
        ondisk.restore(target, tmp_path / "restored")
    with pytest.raises(NotFound):
        ondisk.open(tmp_path / "restored")
    file.write_bytes(content)
    assert ondisk.restore(target, tmp_path / "restored").problems == []


@pytest.mark.parametrize("name", ["000000.blob", "metadata"])
def test_a_damaged_file_of_a_folder_is_reported(name, create, tmp_path):
    dataset, target = create(format="blob", fields={"station": "text"}), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in range(3)])
    dataset.backup(target, create=True)
    (file,) = (target / "segments/dataset/2026/11-20.blob.1").glob(f"{name}.*")
    file.write_bytes(bytes(file.stat().st_size))
    (problem,) = ondisk.restore(target, tmp_path / "restored").problems
    assert (problem.segment, problem.kept) == ("2026/11-20.blob", Kept.DAMAGED)
    with ondisk.open(tmp_path / "restored", read_only=True) as restored, pytest.raises(OndiskError):
        [*restored.query()]


def forge(target: Path, **values: object) -> None:
    """Change the first line of the list of segments, and the checksum of the list."""
    (lines,) = (target / "points").glob("*/dataset/segments.jsonl")
    first, rest = lines.read_bytes().split(b"\n", 1)
    lines.write_bytes(json.dumps(json.loads(first) | values).encode() + b"\n" + rest)
    (point,) = (target / "points").glob("*/point.json")
    described = json.loads(point.read_text())
    described["parts"][0]["files"]["segments.jsonl"] = [lines.stat().st_size, value(lines.read_bytes())]
    point.write_text(json.dumps(described))


def test_the_list_cannot_lead_out_of_the_new_dataset(target, tmp_path):
    forge(target, segment="../out/11-20.jsonl")
    with pytest.raises(InvalidInput):
        ondisk.restore(target, tmp_path / "restored")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "values",
    [{"stored": -1}, {"stored": "x"}, {"size": 10**30}, {"mark": "zz"}, {"file": 5}, {"segment": 5}, {"count": 0.5},
     {"numbers": ["x"]}, {"numbers": [[0, 10**15]]}, {"zeros": [-5, 4]}, {"kept": "lost"}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_a_line_that_no_backup_writes_is_an_error(values, dataset, target, tmp_path):
    forge(target, **values)
    with pytest.raises(IntegrityError, match=r"segments\.jsonl"):
        ondisk.restore(target, tmp_path / "restored")
    with pytest.raises(IntegrityError, match=r"segments\.jsonl"):
        dataset.backup(target)
    (listed,) = ondisk.backup.points(target, verify=True)
    assert "segments.jsonl" in listed.damage[0].reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_backup_is_read_without_permission_to_write(dataset, target, tmp_path):
    for each in (target, *target.rglob("*")):
        each.chmod(0o555)
    ondisk.restore(target, tmp_path / "restored")
    with ondisk.open(tmp_path / "restored", read_only=True) as restored:
        assert content(restored) == content(dataset)


def test_the_time_of_a_point_is_in_utc(target):
    (point,) = ondisk.backup.points(target)
    assert point.time.tzinfo is UTC


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("format", ["jsonl", "blob"])
def test_segments_without_recorded_checksums_are_restored_as_they_are(format, touched, create, tmp_path):
    """As an index of an older revision describes them."""
    dataset, target = create("old", format=format, fields={"station": "text"}), tmp_path / "backup"
    dataset.append([datum(hour, format=format) for hour in range(3)])
    dataset.close()
    sql(tmp_path / "old", "UPDATE segment SET tail = NULL, checksum = NULL, inode = NULL")
    if touched:
        for each in (tmp_path / "old/2026").rglob("*"):
            os.utime(each)
    with ondisk.open(tmp_path / "old", read_only=True) as old:
        assert old.backup(target, create=True).problems == []
        assert old.backup(target).copied == 0
        assert ondisk.restore(target, tmp_path / "restored").problems == []
        with ondisk.open(tmp_path / "restored", read_only=True) as restored:
            assert content(restored) == content(old)
            assert [each.state for each in restored.check(accurate=True)] == [each.state for each in old.check()]


def test_an_index_of_a_newer_revision_is_left_to_the_newer_version(target, tmp_path):
    """A restore by an older version must not change what it does not know."""
    (index,) = (target / "points").glob("*/dataset/index.sqlite")
    with contextlib.closing(sqlite3.connect(index)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    (point,) = (target / "points").glob("*/point.json")
    values = json.loads(point.read_text())
    values["parts"][0]["files"]["index.sqlite"] = [index.stat().st_size, value(index.read_bytes())]
    point.write_text(json.dumps(values))
    with pytest.raises(VersionTooNew):
        ondisk.restore(target, tmp_path / "restored", progress=pytest.fail)  # before it has copied a segment
    with pytest.raises(NotFound):
        ondisk.open(tmp_path / "restored")
