"""A backup has the dataset of one time, copies only what is new, and never puts damaged bytes in the place of good."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import KINDS, START, A, content, datum, lose_index, rot, sql

import ondisk
from ondisk import Datum, keys
from ondisk.backup import points
from ondisk.backup.point import Kept
from ondisk.backup.target import BackupLock
from ondisk.errors import DurabilityLost, InvalidInput, LockError, NeedsCheck, StateError
from ondisk.filesystem import Directory
from ondisk.keys import Key, KeyRing
from ondisk.maintenance.maintain import maintain
from ondisk.queue import Consumer

BLOB = {"format": "blob", "extension": "h5", "fields": {"station": "text"}}
PLAIN = {"fields": {"station": "text"}}
FIELDS = {"fields": {"station": "text"}, "unique": ["reftime", "station"], "replace": "yes"}
_numbers = count()


def files(path: Path) -> dict[str, tuple[int, int]]:
    """Return the copies in a backup, with what changes when they are written to again."""
    found = (each for each in (path / "segments").rglob("*") if each.is_file())
    return {str(each.relative_to(path)): (each.stat().st_ino, each.stat().st_mtime_ns) for each in found}


def restored(target: Path, at: Any = None) -> list[Any]:
    """Restore a backup, check the dataset, and return its content."""
    path = target.with_name(f"restored-{next(_numbers)}")
    assert ondisk.restore(target, path, at).problems == []
    with ondisk.open(path, read_only=True) as dataset:
        assert dataset.check(accurate=True).is_clean
        found = content(dataset)
    shutil.rmtree(path)
    return found


def days(dataset: ondisk.Dataset, *numbers: int, value: int = 0) -> None:
    """Append a datum for each of some days."""
    format = dataset.config.format
    dataset.append([datum(24 * number + 6, value=value, format=format) for number in numbers])


@pytest.mark.parametrize("kind", [*KINDS, BLOB], ids=lambda kind: getattr(kind, "name", "blob"))
def test_a_restored_dataset_answers_as_the_dataset_did(kind, tmp_path):
    config = BLOB | {"step": "daily"} if kind is BLOB else kind.config
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for hour in range(0, 72, 6):
            each = datum(hour, "VM2,5", format="blob") if kind is BLOB else kind.datum(hour // 12)
            dataset.append([each])
        dataset.delete("reftime: =2026-11-20 06:00")
        done = dataset.backup(tmp_path / "backup", create=True)
        assert (done.problems, done.offline, done.removed) == ([], [], [])
        assert done.segments == done.copied == dataset.info()["segments"]
        assert done.count == dataset.count()
        before = content(dataset), [each.location for each in dataset.query()], dataset.info()["uuid"]
    ondisk.restore(tmp_path / "backup", tmp_path / "restored")
    with ondisk.open(tmp_path / "restored") as dataset:
        assert (content(dataset), [each.location for each in dataset.query()], dataset.info()["uuid"]) == before
        assert not dataset.needs_check
        assert all(
            not finding.action or finding.action == "repack" for finding in dataset.check(accurate=True).findings
        )


def test_only_segments_that_changed_are_copied_again(create, tmp_path):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    days(dataset, 0, 1, 2)
    first = dataset.backup(target, create=True)
    assert (first.segments, first.copied, first.bytes) == (3, 3, first.size)
    before = files(target)
    days(dataset, 2, value=1)
    size = (tmp_path / "dataset/2026/11-22.jsonl").stat().st_size
    second = dataset.backup(target)
    assert (second.segments, second.copied, second.bytes) == (3, 1, size)
    assert second.size == first.size + size // 2
    after = files(target)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1
    third = dataset.backup(target)
    assert (third.copied, third.bytes, files(target)) == (0, 0, after)


def test_only_new_files_of_a_folder_are_copied(create, tmp_path):
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in range(5)])
    dataset.backup(target, create=True)
    before = files(target)
    dataset.append([datum(5, format="blob")])
    dataset.backup(target)
    after = files(target)
    assert {name: after[name] for name in before} == before
    assert Path(min(after.keys() - before)).name.rpartition(".")[0] == "000005.h5"
    assert len(after) == len(before) + 2  # the file, and the entries
    assert restored(target) == content(dataset)


@pytest.mark.parametrize("name", ["000001.h5.*", "metadata.*", "*"])
def test_copies_of_a_folder_that_are_gone_are_made_again(name, create, tmp_path):
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in range(3)])
    dataset.backup(target, create=True)
    for each in (target / "segments/dataset/2026/11-20.h5.1").glob(name):
        each.unlink()
    assert dataset.backup(target).copied == 1
    assert [each.damage for each in ondisk.backup.points(target, verify=True)] == [[], []]


def test_a_copy_has_the_header_of_its_own_commit(tmp_path):
    """An append changes the count in the header in place. Other programs that read the file see the right one."""
    with ondisk.create(tmp_path / "dataset", {"step": "daily", "compression": "none"}) as dataset:
        dataset.append([Datum(START, {}, {"n": 1})])
        before = (tmp_path / "dataset/2026/11-20.seg").read_bytes()

        def append(_: str) -> None:
            dataset.append([Datum(START, {}, {"n": 2})])

        dataset.backup(tmp_path / "backup", create=True, progress=append)
    (copy,) = (tmp_path / "backup/segments/dataset/2026").iterdir()
    assert copy.read_bytes() == before
    ondisk.restore(tmp_path / "backup", tmp_path / "restored")
    assert (tmp_path / "restored/2026/11-20.seg").read_bytes() == before


def test_a_backup_never_shares_a_file_with_the_dataset(create, tmp_path):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    days(dataset, 0)
    dataset.backup(target, create=True)
    ondisk.restore(target, tmp_path / "restored")
    for folder in (target, tmp_path / "restored", tmp_path / "dataset"):
        assert {each.stat().st_nlink for each in folder.rglob("*") if each.is_file()} == {1}


ACTS = st.one_of(
    st.tuples(
        st.just("append"), st.lists(st.tuples(st.integers(0, 90), st.sampled_from("ab")), min_size=1, max_size=4)
    ),
    st.tuples(st.just("delete"), st.sampled_from(["station: a", "reftime: =2026-11-21", "reftime: <2026-11-21 12:00"])),
    st.tuples(st.sampled_from(["repack", "backup"]), st.none()),
    st.tuples(st.sampled_from(["archive", "unarchive"]), st.integers(0, 3)),
)


def act(dataset: ondisk.Dataset, what: str, value: Any, target: Path, number: int) -> None:
    match what:
        case "append":
            dataset.append([datum(hour, station, number, format=dataset.config.format) for hour, station in value])
        case "delete":
            dataset.delete(value)
        case "repack":
            dataset.repack()
        case "backup":
            dataset.backup(target, create=not target.exists())
        case "archive" | "unarchive":
            prefix = ".archive/last/" * (what == "unarchive")
            name = (
                f"{prefix}{START + timedelta(days=value):%Y/%m-%d}.{dataset.config.extension or dataset.config.format}"
            )
            with contextlib.suppress(StateError):  # all its data may be deleted
                if (dataset.path / name).exists():
                    getattr(dataset, what)(name)


@pytest.mark.check
@pytest.mark.parametrize("config", [FIELDS | {"format": "jsonl"}, FIELDS, FIELDS | BLOB], ids=["jsonl", "seg", "blob"])
@settings(max_examples=up_to(12))
@given(before=st.lists(ACTS, max_size=8), beside=st.lists(ACTS, max_size=4), after=st.lists(ACTS, max_size=3))
def test_a_point_has_the_state_in_which_the_backup_began_whatever_others_do(
    config, before, beside, after, tmp_path_factory
):
    """What others do beside it happens between the copies of two segments, where a snapshot must keep what it needs."""
    place = tmp_path_factory.mktemp("history")
    target, numbers = place / "backup", count()
    with (
        ondisk.create(place / "dataset", {"step": "daily"} | config) as dataset,
        ondisk.open(place / "dataset", read_only=True) as reader,
    ):
        for what, value in before:
            act(dataset, what, value, target, next(numbers))
        expected, left = content(reader), [each for each in beside if each[0] not in ("backup", "unarchive")]

        def others(_: str) -> None:
            if left:
                act(dataset, *left.pop(), target, next(numbers))

        point = reader.backup(target, create=not target.exists(), progress=others).point
        for what, value in after:
            act(dataset, what, value, target, next(numbers))
        second, later = reader.backup(target).point, content(reader)
        path = place / "restored"
        for at, wanted in ((point, expected), (second, later)):
            assert ondisk.restore(target, path, at).problems == []
            with ondisk.open(path) as again:
                assert content(again) == wanted
                assert {finding.action for finding in again.check(accurate=True).findings} <= {"repack", "delete", None}
                again.repack()
                assert again.check(accurate=True).is_clean
                assert content(again) == wanted
            shutil.rmtree(path)
    assert not [each.damage for each in ondisk.backup.points(target, verify=True) if each.damage]
    shutil.rmtree(place)


def test_archives_are_part_of_the_point(create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    days(dataset, 0, 1, 2)
    dataset.archive("2026/11-20.jsonl")
    (tmp_path / "dataset/.archive/last").rename(tmp_path / "dataset/.archive/2025")
    days(dataset, 3)
    dataset.archive("2026/11-21.jsonl")
    done = dataset.backup(target, create=True)
    assert (done.segments, done.copied, done.problems) == (4, 4, [])
    assert restored(target) == content(dataset)
    ondisk.restore(target, tmp_path / "again")
    folders = [each.name for each in (tmp_path / "again/.archive").iterdir() if each.is_dir()]
    assert sorted(folders) == ["2025", "last"]
    dataset.unarchive(".archive/last/2026/11-21.jsonl")
    assert dataset.backup(target).problems == []
    assert restored(target) == content(dataset)
    assert restored(target, done.point) == content(dataset)[:1] + content(dataset)[1:]


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("config", [PLAIN, BLOB], ids=["file", "folder"])
def test_what_has_moved_is_not_copied_again(create, tmp_path, monkeypatch, config, has_links):
    dataset, target = create(step="daily", **config), tmp_path / "backup"
    days(dataset, 0, 1, 2)
    (segment,) = (f"2026/{each.name}" for each in (dataset.path / "2026").glob("11-20.*"))
    assert dataset.backup(target, create=True).copied == 3
    before = content(dataset)

    def old_part() -> None:
        """As backups of datasets whose archives had an index of their own."""
        (target / "segments/archive").mkdir()
        shutil.move(target / "segments/dataset/.archive/last", target / "segments/archive/last")

    if not has_links:
        monkeypatch.setattr(Directory, "link", lambda *_: False)
    for move in (
        lambda: dataset.archive(segment),
        lambda: dataset.rename_archive("last", "2016"),
        lambda: dataset.unarchive(f".archive/2016/{segment}"),
        lambda: dataset.archive(segment),
        old_part,
    ):
        move()
        done = dataset.backup(target, keep=1)
        assert (done.bytes == 0 if config is PLAIN else done.bytes < 200, done.problems) == (True, [])
        assert restored(target) == before


@pytest.mark.parametrize("config", [PLAIN, BLOB], ids=["file", "folder"])
def test_a_copy_that_has_rotted_is_no_copy_of_what_has_moved(create, tmp_path, config):
    dataset, target = create(step="daily", **config), tmp_path / "backup"
    days(dataset, 0, 1)
    (segment,) = (f"2026/{each.name}" for each in (dataset.path / "2026").glob("11-20.*"))
    dataset.backup(target, create=True)
    for copy in (target / "segments/dataset/2026").glob("11-20.*"):
        file = next(copy.glob("0*")) if copy.is_dir() else copy
        rot(file, bytes(file.stat().st_size))
    dataset.archive(segment)
    done = dataset.backup(target)
    assert (done.bytes > 0, done.problems) == (True, [])
    assert restored(target) == content(dataset)


@pytest.mark.parametrize("config", [PLAIN, BLOB], ids=["file", "folder"])
def test_a_sync_that_fails_for_a_second_name_ends_the_backup(create, tmp_path, monkeypatch, config):
    dataset, target = create(step="daily", **config), tmp_path / "backup"
    days(dataset, 0)
    (segment,) = (f"2026/{each.name}" for each in (dataset.path / "2026").glob("11-20.*"))
    dataset.backup(target, create=True)
    dataset.archive(segment)

    def link(*_: object) -> bool:
        raise DurabilityLost("a sync failed")

    monkeypatch.setattr(Directory, "link", link)
    with pytest.raises(DurabilityLost):
        dataset.backup(target)


def test_no_point_goes_while_an_index_has_lost_what_is_offline(create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    days(dataset, 0, 1)
    dataset.archive("2026/11-20.jsonl")
    dataset.rename_archive("last", "2016")
    point = dataset.backup(target, create=True).point
    before = content(dataset)
    dataset.set_offline("2016")
    shutil.move(dataset.path / ".archive/2016", tmp_path / "away")
    dataset.close()
    (dataset.path / "index.sqlite").write_bytes(b"damaged" * 1000)
    ondisk.rebuild(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        done = again.backup(target, keep=1)
        assert [each.segment for each in done.problems] == [".archive/2016"]
        assert (done.removed, done.offline) == ([], ["2016"])
        assert [each.incomplete for each in points(target)] == [0, 1]
        assert [each.segment for each in ondisk.restore(target, tmp_path / "part").problems] == [".archive/2016"]
        assert again.backup(target).copied == 0
    assert restored(target, point) == before


def test_of_an_archive_that_is_away_the_copies_of_earlier_points_are_kept(create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    days(dataset, 0, 1, 2)
    dataset.archive("2026/11-20.jsonl")
    before = content(dataset)
    dataset.backup(target, create=True)
    shutil.move(tmp_path / "dataset/.archive/last", tmp_path / "away")
    done = dataset.backup(target)
    assert (done.offline, done.problems) == (["last"], [])
    assert restored(target, done.point) == before
    shutil.move(tmp_path / "away", tmp_path / "dataset/.archive/last")
    days(dataset, 3)
    dataset.archive("2026/11-23.jsonl")
    shutil.move(tmp_path / "dataset/.archive/last", tmp_path / "away")
    done = dataset.backup(target)
    assert [(each.segment, each.kept) for each in done.problems] == [(".archive/last/2026/11-23.jsonl", Kept.MISSING)]


@pytest.mark.parametrize(("config", "kept"), [(BLOB, [Kept.OLDER]), (FIELDS, [])], ids=["folder", "file"])
def test_of_a_segment_that_is_away_under_another_name_the_copy_of_the_last_point_is_kept(
    create, tmp_path, config, kept
):
    dataset, target = create(step="daily", **config), tmp_path / "backup"
    days(dataset, 0, 1, 2)
    (segment,) = (f"2026/{each.name}" for each in (dataset.path / "2026").glob("11-20.*"))
    dataset.backup(target, create=True)
    dataset.archive(segment)
    before = content(dataset)
    shutil.move(tmp_path / "dataset/.archive/last", tmp_path / "away")
    for path in (tmp_path / "first", tmp_path / "second"):
        done = dataset.backup(target, keep=1)
        assert ([each.kept for each in done.problems], done.copied) == (kept, 0)
        assert [each.kept for each in ondisk.restore(target, path).problems] == kept
        with ondisk.open(path) as again:
            assert again.fix().lost == 0
            assert content(again) == before


def test_what_is_offline_in_every_point_stays_offline(create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    days(dataset, 0, 1)
    dataset.archive("2026/11-20.jsonl")
    dataset.rename_archive("last", "2026")
    dataset.set_offline("2026")
    shutil.move(tmp_path / "dataset/.archive/2026", tmp_path / "away")
    assert dataset.backup(target, create=True).offline == ["2026"]
    assert ondisk.restore(target, tmp_path / "restored").offline == ["2026"]
    with ondisk.open(tmp_path / "restored", read_only=True) as again:
        assert again.info()["offline"] == ["2026"]
        assert again.count() == dataset.count() == 2
        assert not [each for each in again.check() if each.state]


@pytest.mark.parametrize("how", ["lost", "sentinel"])
def test_an_index_that_may_not_know_all_data_is_not_backed_up(how, create, tmp_path):
    dataset = create(**PLAIN)
    days(dataset, 0)
    dataset.close()
    if how == "lost":
        lose_index(tmp_path / "dataset")
    else:
        (tmp_path / "dataset/needs-check-do-not-pack").touch()
    with ondisk.open(tmp_path / "dataset", read_only=True) as dataset, pytest.raises(NeedsCheck):
        dataset.backup(tmp_path / "backup", create=True)
    assert not (tmp_path / "backup").exists()


def damage(path: Path, how: str) -> None:
    """Damage the file of a segment in one way."""
    before = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "cut":
            path.write_bytes(before[: len(before) // 2])
        case "other":
            path.write_bytes(bytes(len(before)))
        case "rotten":
            rot(path, before[:10] + bytes([before[10] ^ 1]) + before[11:])


@pytest.mark.parametrize("how", ["missing", "cut", "other"])
def test_a_damaged_segment_is_whole_in_the_backup_that_has_it(how, create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    days(dataset, 0, 1)
    expected = content(dataset)
    dataset.backup(target, create=True)
    before = files(target)
    damage(tmp_path / "dataset/2026/11-20.jsonl", how)
    days(dataset, 2)
    done = dataset.backup(target)
    assert [(each.segment, each.kept) for each in done.problems] == [("2026/11-20.jsonl", Kept.WHOLE)]
    assert {name: files(target)[name] for name in before} == before
    assert restored(target)[:2] == expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_bytes_that_rotted_after_an_earlier_copy_are_taken_from_it(kind, tmp_path):
    """Bytes of a generation change only at their end, so the old copy and the new end make all of it."""
    target = tmp_path / "backup"
    with ondisk.create(tmp_path / "dataset", kind.config) as dataset:
        dataset.append([kind.datum(0), kind.datum(1)])
        dataset.backup(target, create=True)
        dataset.append([kind.datum(2), kind.datum(3)])
        expected = content(dataset)
        damage(tmp_path / f"dataset/{A}.{kind.extension}", "rotten")
        done = dataset.backup(target)
    assert [(each.segment, each.kept) for each in done.problems] == [(f"{A}.{kind.extension}", Kept.WHOLE)]
    assert restored(target) == expected


@pytest.mark.each
@pytest.mark.parametrize("how", ["missing", "cut", "other", "rotten"])
def test_an_older_copy_is_kept_if_the_present_bytes_are_damaged(how, create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    dataset.append([datum(hour, "a") for hour in range(4)])
    dataset.backup(target, create=True)
    dataset.delete("reftime: =2026-11-20 03:00")
    dataset.repack()  # another generation
    damage(tmp_path / "dataset/2026/11-20.jsonl", how)
    done = dataset.backup(target, keep=1)
    assert [(each.segment, each.kept) for each in done.problems] == [("2026/11-20.jsonl", Kept.OLDER)]
    again = ondisk.restore(target, tmp_path / "restored")
    assert [(each.segment, each.kept) for each in again.problems] == [("2026/11-20.jsonl", Kept.OLDER)]
    with ondisk.open(tmp_path / "restored") as found:
        with pytest.raises(ondisk.OndiskError):
            [*found.query()]
        found.fix()
        assert [each.reftime.hour for each in found.query()] == [0, 1, 2, 3]  # what was deleted since is back
        assert found.check(accurate=True).is_clean


@pytest.mark.parametrize(("how", "kept"), [("missing", Kept.MISSING), ("cut", Kept.DAMAGED), ("rotten", Kept.DAMAGED)])
def test_damaged_bytes_without_an_older_copy_are_kept_as_they_are(how, kept, create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    dataset.append([datum(hour) for hour in range(4)])
    days(dataset, 1)
    whole = (tmp_path / "dataset/2026/11-20.jsonl").read_bytes()
    damage(tmp_path / "dataset/2026/11-20.jsonl", how)
    for copied in (2, 0) if kept is Kept.DAMAGED else (1, 0):
        done = dataset.backup(target, create=not target.exists())
        assert ([(each.segment, each.kept) for each in done.problems], done.copied) == (
            [("2026/11-20.jsonl", kept)],
            copied,
        )
    again = ondisk.restore(target, tmp_path / "restored")
    assert [(each.segment, each.kept) for each in again.problems] == [("2026/11-20.jsonl", kept)]
    with ondisk.open(tmp_path / "restored") as found:
        found.fix()
        assert found.count("reftime: >=2026-11-21") == 1
        assert found.count() >= (1 if how == "missing" else 2)
    (tmp_path / "dataset/2026/11-20.jsonl").write_bytes(whole)
    assert dataset.backup(target).problems == []
    assert restored(target) == content(dataset)


def test_the_command_on_the_page_puts_the_newest_good_copy_back(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/backup.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (cp .*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    copies, segment = Path("saved/segments/dataset/2026"), Path("weather/2026/11-18.vm2")
    copies.mkdir(parents=True)
    segment.parent.mkdir(parents=True)
    good = ("4.900.ffffffff", "10.50.ffffffff", "10.200.00000000")
    for name in (*good, "10.200.ffffffff.damaged", "12.900.ffffffff.damaged"):
        (copies / f"{segment.name}.{name}").write_text(name)
    subprocess.run(command, shell=True, check=True)
    assert segment.read_text() == good[-1]


def test_damage_that_a_fix_has_left_is_reported_by_each_run(create, tmp_path):
    """The index describes what is left, so the bytes are as it says. Older points have the segment whole."""
    dataset, target = create(**FIELDS), tmp_path / "backup"
    dataset.append([datum(hour) for hour in range(4)])
    dataset.backup(target, create=True)
    path = tmp_path / "dataset/2026/11-20.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:10] + bytes(5) + whole[15:])
    dataset.fix()
    for copied in (1, 0):
        done = dataset.backup(target)
        assert [(each.segment, each.kept) for each in done.problems] == [("2026/11-20.jsonl", Kept.DAMAGED)]
        assert (done.count, done.copied) == (3, copied)
    path.write_bytes(whole)
    dataset.fix()
    done = dataset.backup(target)
    assert (done.count, done.problems) == (4, [])


def test_bytes_that_a_check_found_rotten_are_whole_in_the_backup(create, tmp_path):
    dataset, target = create(**FIELDS), tmp_path / "backup"
    dataset.append([datum(hour) for hour in range(4)])
    dataset.backup(target, create=True)
    damage(tmp_path / "dataset/2026/11-20.jsonl", "rotten")
    maintain(tmp_path / "dataset", max_duration=60)
    done = dataset.backup(target)
    assert [(each.segment, each.kept) for each in done.problems] == [("2026/11-20.jsonl", Kept.WHOLE)]


def test_a_damaged_file_of_a_folder_is_reported_and_the_others_are_copied(create, tmp_path):
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in range(4)])
    folder = tmp_path / "dataset/2026/11-20.h5"
    rot(folder / "000001.h5", bytes(len((folder / "000001.h5").read_bytes())))
    (folder / "000002.h5").unlink()
    (problem,) = dataset.backup(target, create=True).problems
    assert (problem.segment, problem.kept) == ("2026/11-20.h5", Kept.PARTLY)
    assert "000001.h5" in problem.reason
    assert "1 more file" in problem.reason
    assert [each.kept for each in ondisk.restore(target, tmp_path / "restored").problems] == [Kept.PARTLY]
    with ondisk.open(tmp_path / "restored", read_only=True) as found:
        assert [each.reftime.hour for each in found.query(with_data=False)] == [0, 1, 2, 3]
        assert found.first("reftime: =2026-11-20 03:00").data == b"3 a 0"


def test_a_folder_of_which_nothing_could_be_salvaged_is_restored_with_the_others(create, tmp_path):
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in (0, 24)])
    (tmp_path / "dataset/2026/11-20.h5/000000.h5").unlink()
    dataset.fix(salvage=["2026/11-20.h5"])
    assert dataset.backup(target, create=True).problems == []
    ondisk.restore(target, tmp_path / "restored")
    with ondisk.open(tmp_path / "restored", read_only=True) as found:
        assert content(found) == content(dataset) != []


def test_a_folder_that_is_gone_is_whole_in_the_backup_that_has_it(create, tmp_path):
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in range(4)])
    expected = content(dataset)
    dataset.backup(target, create=True)
    shutil.rmtree(tmp_path / "dataset/2026/11-20.h5")
    assert [each.kept for each in dataset.backup(target).problems] == [Kept.WHOLE]
    assert restored(target) == expected


def test_a_folder_without_data_and_entries_is_missing_in_a_backup(create, tmp_path):
    dataset = create(**BLOB)
    dataset.append([datum(1, format="blob")])
    dataset.delete("")
    (tmp_path / "dataset/2026/11-20.h5/.metadata").unlink()
    dataset.fix()
    (problem,) = dataset.backup(tmp_path / "backup", create=True).problems
    assert problem.kept is Kept.MISSING


def test_deleted_files_of_a_folder_are_in_the_point_as_long_as_they_are_on_disk(create, tmp_path):
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(hour, format="blob") for hour in range(4)])
    dataset.delete("reftime: =2026-11-20 01:00")
    dataset.backup(target, create=True)
    ondisk.restore(target, tmp_path / "restored")
    with ondisk.open(tmp_path / "restored") as found:
        (finding,) = found.check(accurate=True).findings
        assert finding.action == "repack"
        found.repack()
        assert content(found) == content(dataset)
    dataset.repack()
    dataset.backup(target)
    assert restored(target) == content(dataset)


@pytest.mark.each
@pytest.mark.parametrize("encryption", ["aes-256-gcm", "aes-128-ctr"])
def test_encrypted_segments_are_copied_without_their_key(encryption, create, tmp_path):
    keys.use(KeyRing([Key(1, bytes(range(32 if encryption.endswith("gcm") else 16)))], "a test"))
    try:
        dataset, target = create(format="seg", encryption=encryption), tmp_path / "backup"
        dataset.append([Datum(START, {"station": "a"}, {"secret": 1})])
        expected = content(dataset)
        dataset.close()
        ring, _ = keys.current(), keys.use(KeyRing([], "no keys"))
        with ondisk.open(tmp_path / "dataset", read_only=True) as dataset:
            assert dataset.backup(target, create=True).problems == []
        assert ondisk.restore(target, tmp_path / "restored").problems == []
        assert not any(b"secret" in each.read_bytes() for each in target.rglob("*") if each.is_file())
        keys.use(ring)
        with ondisk.open(tmp_path / "restored") as found:
            assert content(found) == expected
            before = (found.path / "2026/11-20.seg").read_bytes()
            found.append([Datum(START + timedelta(hours=1), {"station": "b"}, {"secret": 2})])
            after = (found.path / "2026/11-20.seg").read_bytes()
            assert found.check(accurate=True).is_clean
        # Nothing may be written twice to the same place with one IV: the original may have been appended to.
        assert after[8:].startswith(before[8:]) == (encryption == "aes-256-gcm")
    finally:
        keys.use(None)


def test_a_queue_is_restored_with_the_position_of_its_consumer(tmp_path):
    with ondisk.create(tmp_path / "dataset", {"step": "sequence", "segment_size": 200}) as dataset:
        dataset.append([Datum(START + timedelta(seconds=number), {}, {"n": number}) for number in range(20)])
        next(iter(Consumer(dataset, batch_size=7))).ack()
        dataset.backup(tmp_path / "backup", create=True)
        expected, following = content(dataset), next(iter(Consumer(dataset)))[0].data
    ondisk.restore(tmp_path / "backup", tmp_path / "restored")
    assert (tmp_path / "restored/state.dat").read_bytes() == (tmp_path / "dataset/state.dat").read_bytes()
    with ondisk.open(tmp_path / "restored") as found:
        assert content(found) == expected
        assert found.check(accurate=True).is_clean
        assert next(iter(Consumer(found)))[0].data == following != {"n": 0}


def test_a_position_that_its_consumer_removes_meanwhile_is_left_out(tmp_path, monkeypatch):
    with ondisk.create(tmp_path / "dataset", {"step": "sequence"}) as dataset:
        dataset.append([Datum(START, {}, {})])
        next(iter(Consumer(dataset))).ack()
        real = Directory.read

        def read(directory, name, limit):
            if name == "state.dat":
                (tmp_path / "dataset/state.dat").unlink(missing_ok=True)
            return real(directory, name, limit)

        monkeypatch.setattr(Directory, "read", read)
        assert dataset.backup(tmp_path / "backup", create=True).problems == []


def test_what_beats_has_read_and_removed_is_not_missing(tmp_path):
    with ondisk.create(tmp_path / "dataset", {"step": "sequence", "segment_size": 200}) as dataset:
        dataset.append([Datum(START + timedelta(seconds=number), {}, {"n": number}) for number in range(20)])
        next(iter(Consumer(dataset, batch_size=3))).ack()
        (tmp_path / "dataset/0.seg").unlink()
        assert dataset.backup(tmp_path / "backup", create=True).problems == []
    assert ondisk.restore(tmp_path / "backup", tmp_path / "restored").problems == []
    with ondisk.open(tmp_path / "restored") as found:
        assert [each.state.names for each in found.check(accurate=True).segments if each.state] == []
        assert next(iter(Consumer(found)))[0].data == {"n": 3}


def test_the_segments_of_beats_are_restored_as_they_were(tmp_path):
    """Those that it has not ended have no end mark. Their headers count the events that are in the copy."""
    queue = Path(__file__).parents[2] / "sample_datasets/beats-queue"
    shutil.copytree(queue, tmp_path / "queue")
    ondisk.adopt(tmp_path / "queue")
    with ondisk.open(tmp_path / "queue", read_only=True) as dataset:
        assert dataset.backup(tmp_path / "backup", create=True).problems == []
    ondisk.restore(tmp_path / "backup", tmp_path / "restored")
    with ondisk.open(tmp_path / "restored", read_only=True) as dataset:
        assert dataset.check(accurate=True).is_clean
    for each in queue.glob("*.seg"):
        before, after = each.read_bytes(), (tmp_path / "restored" / each.name).read_bytes()
        assert (after[:4], after[8:]) == (before[:4], before[8:])


def test_older_points_are_removed_with_what_only_they_need(create, tmp_path):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    for number in range(4):
        days(dataset, 0, number + 1, value=number)
        done = dataset.backup(target, create=number == 0, keep=2)
    points = [each.time for each in ondisk.backup.points(target, verify=True) if not each.damage]
    assert len(points) == 2
    assert points[-1] == done.point
    assert len(done.removed) == 1
    assert sum("11-20" in name for name in files(target)) == 2
    assert restored(target) == content(dataset)
    assert restored(target, points[0]) == content(dataset)[:3] + content(dataset)[4:7]


@pytest.mark.parametrize("keep", [0, -1, True, "2"])
def test_keep_is_a_number_of_points(keep, create, tmp_path):
    with pytest.raises(InvalidInput, match="keep"):
        create(**PLAIN).backup(tmp_path / "backup", create=True, keep=keep)


def test_a_restore_in_progress_keeps_what_it_needs(create, tmp_path):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    days(dataset, 0, 1)
    dataset.backup(target, create=True)
    expected = content(dataset)
    dataset.delete("reftime: <2026-11-21")
    dataset.repack()
    point = next(iter(ondisk.backup.points(target))).time
    ondisk.restore(target, tmp_path / "restored", point, progress=lambda _: dataset.backup(target, keep=1) and None)
    with ondisk.open(tmp_path / "restored", read_only=True) as found:
        assert content(found) == expected
    assert len(dataset.backup(target, keep=1).removed) > 1


def test_two_runs_do_not_write_to_one_backup(create, tmp_path):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    dataset.backup(target, create=True)
    with Directory.open(target) as directory, BackupLock(directory).hold("test"), pytest.raises(LockError):
        dataset.backup(target)


def test_the_clock_may_go_back(create, tmp_path, monkeypatch):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    first = dataset.backup(target, create=True).point
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    days(dataset, 0)
    assert dataset.backup(target).point > first
    assert restored(target) == content(dataset)


def test_numbers_that_an_older_state_gives_out_again_do_not_mix_up_the_copies(create, tmp_path):
    """After an older point was restored, other bytes get the generations and sizes that the backup knows."""
    dataset, target = create(**PLAIN), tmp_path / "backup"
    days(dataset, 0)
    first = dataset.backup(target, create=True).point
    days(dataset, 1, value=1)
    second, expected = dataset.backup(target).point, content(dataset)
    dataset.close()
    shutil.rmtree(tmp_path / "dataset")
    ondisk.restore(target, tmp_path / "dataset", first)
    with ondisk.open(tmp_path / "dataset") as again:
        days(again, 1, value=2)
        third = again.backup(target).point
        assert sql(again.path, "SELECT max(id) FROM segment") == [(2,)]
        assert restored(target, third) == content(again)
    assert restored(target, second) == expected


def test_entries_of_another_history_are_not_those_of_a_copy_with_the_same_end(create, tmp_path):
    """After an older point was restored, entries differ before the bytes whose checksum the index knows."""
    dataset, target = create(**BLOB), tmp_path / "backup"
    dataset.append([datum(0, format="blob")])
    first = dataset.backup(target, create=True).point
    same = [datum(2, value=number, format="blob") for number in range(80)]
    dataset.append([datum(1, value=1, format="blob"), *same])
    dataset.backup(target)
    dataset.close()
    shutil.rmtree(tmp_path / "dataset")
    ondisk.restore(target, tmp_path / "dataset", first)
    with ondisk.open(tmp_path / "dataset") as again:
        again.append([datum(1, value=2, format="blob"), *same])
        again.backup(target)
        assert restored(target) == content(again)
        assert again.backup(target).copied == 0


def test_a_rebuilt_index_continues_the_backup(create, tmp_path):
    dataset, target = create(**PLAIN), tmp_path / "backup"
    days(dataset, 0)
    dataset.backup(target, create=True)
    dataset.close()
    lose_index(tmp_path / "dataset")
    with ondisk.open(tmp_path / "dataset") as again:
        again.fix()
        assert again.backup(target).problems == []
        assert restored(target) == content(again)


def test_a_damaged_index_is_an_error(create, tmp_path):
    """Also if nothing that a backup reads is damaged."""
    dataset = create(**PLAIN, index=["station"])
    days(dataset, 0, 1)
    dataset.close()
    ((page,),) = sql(dataset.path, "SELECT rootpage FROM sqlite_schema WHERE name = 'datum_by_station'")
    index = dataset.path / "index.sqlite"
    content = index.read_bytes()
    index.write_bytes(content[: (page - 1) * 4096] + b"\xff" * 4096 + content[page * 4096 :])
    with ondisk.open(tmp_path / "dataset", read_only=True) as dataset, pytest.raises(ondisk.errors.IndexCorrupt):
        dataset.backup(tmp_path / "backup", create=True)
