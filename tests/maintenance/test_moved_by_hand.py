"""Segments that people move or copy by hand, and folders of the archive that they rename: all data stay, each once."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from concurrency.test_readers import mounted_read_only
from kit.crashes import Killed, killed_at, killed_in
from worlds import change_config, clock, content, lose_index, rot, sql

import ondisk
from ondisk import Datum
from ondisk.backup.point import Kept
from ondisk.dataset.access import Access
from ondisk.dataset.unreadable_data import Skipped
from ondisk.errors import DataOffline, NeedsCheck, NotFound, SegmentMissing, StateError, StorageError
from ondisk.filesystem import Directory, files
from ondisk.index import INDEX
from ondisk.index.transaction import Transaction
from ondisk.maintenance import archive as archive_module
from ondisk.maintenance import fix as fix_module
from ondisk.maintenance import moved_by_hand as moved_module
from ondisk.maintenance.durable_steps import sync_found
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.states import Action, State
from ondisk.segments.concat_writer import ConcatWriter
from ondisk.segments.dir_writer import DirWriter

T = datetime(2026, 11, 20, tzinfo=UTC)
LAST = ".archive/last"
EVERYTHING = [*range(6), *range(10, 16)]


@pytest.fixture(params=["jsonl", "seg", "blob"])
def format(request):
    return request.param


@pytest.fixture(params=["unique", "not unique"])
def dataset(request, format, tmp_path):
    """A dataset with two days of data, the first of them archived."""
    unique = ["reftime", "n"] if request.param == "unique" else []
    config = {"format": format, "step": "daily", "fields": {"n": "integer"}, "unique": unique}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, range(6)))
        dataset.append(data(dataset, range(10, 16), 1))
        dataset.archive(name_of(dataset))
        yield dataset


def data(dataset, numbers, day=0):
    as_bytes = dataset.config.format == "blob"
    return [
        Datum(T + timedelta(days=day, hours=n), {"n": n}, b"%d" % n if as_bytes else {"is": f"{n}" * 50})
        for n in numbers
    ]


def name_of(dataset, day=0):
    return f"2026/11-{20 + day}.{dataset.config.format}"


def numbers(dataset):
    return sorted(datum.metadata["n"] for datum in dataset.query())


def seqs(path):
    return sql(path, "SELECT f_n, seq FROM datum ORDER BY f_n")


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)


def remove(path):
    (shutil.rmtree if path.is_dir() else Path.unlink)(path)


def of_file(path):
    """Return the path of the segment's file, or of its first."""
    return path / f"000000{path.suffix}" if path.is_dir() else path


def check_whole(path, expected=EVERYTHING, *, clean=True):
    with ondisk.open(path) as dataset:
        assert numbers(dataset) == expected
        assert dataset.info()["lost"] == 0
        assert dataset.check(accurate=True).is_clean or not clean
        assert not dataset.quarantine.total().items


def fix(path):
    with ondisk.open(path) as dataset:
        return dataset.fix()


def repack(path):
    with ondisk.open(path) as dataset:
        return dataset.repack()


# Moved

WAYS = [("", LAST), (LAST, ""), (LAST, ".archive/2025"), ("", ".archive/2025"), (".archive/2025", LAST)]


def moved(dataset, way):
    """Return the old and the new path of a segment to be moved, and close the dataset."""
    source, target = (dataset.path / place for place in way)
    if way[0] == ".archive/2025":
        dataset.rename_archive("last", "2025")
    dataset.close()
    name = name_of(dataset, 0 if way[0] else 1)
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    return source / name, target / name


@pytest.mark.parametrize("verb", [repack, fix, maintain])
def test_a_place_from_which_all_was_moved_may_go(dataset, verb):
    path, name = dataset.path, name_of(dataset)
    (path / ".archive/2026/2026").mkdir(parents=True)
    (path / LAST / name).rename(path / ".archive/2026" / name)
    verb(path)
    shutil.rmtree(path / LAST)
    verb(path)
    assert dataset.check().is_clean
    assert numbers(dataset) == EVERYTHING


@pytest.mark.parametrize("verb", [fix, repack, maintain])
@pytest.mark.parametrize("way", WAYS, ids=lambda each: " to ".join(map(repr, each)))
def test_a_segment_moved_between_any_two_folders_is_followed_by_the_first_fix_or_repack(dataset, way, verb):
    source, target = moved(dataset, way)
    before = seqs(dataset.path)
    source.rename(target)
    with ondisk.open(dataset.path) as reader:
        if all(way):  # a reader looks in the other folders of the archive
            assert numbers(reader) == EVERYTHING
        else:
            with pytest.raises(SegmentMissing) as caught:
                numbers(reader)
            assert "fix" in caught.value.hint
        names = [str(each.relative_to(dataset.path)) for each in (source, target)]
        (found,) = reader.check().findings
        assert [found.segment, found.moved] == names
        assert found.action == "follow"
    assert verb(dataset.path).lost == 0
    assert seqs(dataset.path) == before
    assert target.exists()
    check_whole(dataset.path)
    assert not source.exists()


@pytest.mark.parametrize("way", WAYS, ids=lambda each: " to ".join(map(repr, each)))
def test_data_that_are_deleted_after_their_segment_was_moved_by_hand_stay_deleted(dataset, way):
    source, target = moved(dataset, way)
    source.rename(target)
    with ondisk.open(dataset.path) as dataset:
        dataset.delete("n: <10" if way[0] else "n: >=10")
    assert maintain(dataset.path).lost == 0
    with ondisk.open(dataset.path) as dataset:
        assert numbers(dataset) == [each for each in EVERYTHING if (each >= 10) == bool(way[0])]


@pytest.mark.parametrize("keeps_times", [True, False])
@pytest.mark.parametrize("way", WAYS[:3], ids=lambda each: " to ".join(map(repr, each)))
def test_a_segment_moved_from_another_filesystem_has_its_numbers_still(dataset, way, keeps_times):
    source, target = moved(dataset, way)
    before = seqs(dataset.path)
    copy(source, target)
    remove(source)
    if not keeps_times:
        for each in (target, *target.glob("*")):
            os.utime(each, ns=(10**18, 10**18))
    done = fix(dataset.path)
    assert done.lost == maintain(dataset.path).lost == 0
    if target.is_file():
        assert [each.action for each in done] == [Action.FOLLOW]
    if target.is_file() or keeps_times:
        assert [each[0] for each in seqs(dataset.path)] == [each[0] for each in before]
    if target.is_file():
        assert seqs(dataset.path) == before
    check_whole(dataset.path)


@pytest.mark.parametrize("way", WAYS, ids=lambda each: " to ".join(map(repr, each)))
def test_maintenance_while_a_segment_is_moved_slowly_removes_neither_file(dataset, way):
    """`mv` to another disk copies for hours, and then removes: both are there meanwhile, first one of them in part."""
    source, target = moved(dataset, way)
    if source.is_file():
        whole = source.read_bytes()
        half = len(whole) // 2
        with target.open("xb", buffering=0) as file:  # one descriptor: what is unlinked meanwhile is lost
            for part in (b"", whole[:half]):
                file.write(part)
                maintain(dataset.path)
                with ondisk.open(dataset.path) as reader:
                    assert numbers(reader) == EVERYTHING
            file.write(whole[half:])
    else:
        copy(source, target)
    for _ in range(2):
        assert maintain(dataset.path).lost == 0
        assert source.exists()
        assert target.exists()
        with ondisk.open(dataset.path) as reader:
            assert numbers(reader) == EVERYTHING
    remove(source)
    maintain(dataset.path)
    maintain(dataset.path)
    with ondisk.open(dataset.path) as reader:
        assert numbers(reader) == EVERYTHING
        assert reader.info()["lost"] == 0
    assert target.exists()


def test_a_folder_of_the_archive_that_is_renamed_is_read_at_once_and_followed(dataset):
    before = seqs(dataset.path)
    (dataset.path / LAST).rename(dataset.path / ".archive/2025")
    assert numbers(dataset) == EVERYTHING
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert numbers(reader) == EVERYTHING
        (found,) = reader.check().findings
    assert (found.segment, found.moved, found.action) == (LAST, ".archive/2025", "follow")
    assert maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before
    assert {each.name for each in (dataset.path / ".archive").iterdir()} == {"2025", "2025.place"}
    check_whole(dataset.path)


def test_data_are_not_lost_while_a_file_of_their_segment_is_in_a_folder_that_counts_as_away(dataset):
    """Two folders have changed places, and the identity of one is gone: nobody knows which is which."""
    archive, count = dataset.path / ".archive", len(numbers(dataset))
    dataset.rename_archive("last", "2025")
    dataset.archive(*(each.segment for each in dataset.check() if not each.segment.startswith(".")))
    (archive / "2025.place").unlink()
    for old, new in [("last", "other"), ("2025", "last"), ("other", "2025")]:
        (archive / old).rename(archive / new)
    for _ in range(2):
        assert maintain(dataset.path).lost == 0
    with ondisk.open(dataset.path) as after:
        assert sum(sql(dataset.path, "SELECT count(*) FROM datum")[0]) == count
        assert after.info()["lost"] == 0


def test_a_folder_that_somebody_makes_in_the_place_of_one_without_data_is_not_away(dataset):
    """What is moved or copied there is not passed over."""
    dataset.unarchive(*(each.segment for each in dataset.check() if each.segment.startswith(".archive/")))
    name = next(each.segment for each in dataset.check() if not each.segment.startswith("."))
    shutil.rmtree(dataset.path / LAST)
    copy(dataset.path / name, dataset.path / LAST / name)
    remove(dataset.path / name)
    assert [each.action for each in fix(dataset.path)] == [Action.FOLLOW]
    check_whole(dataset.path)


def check_synced(dataset, monkeypatch, wanted):
    """Look whether these files and folders are synced before the commit that follows them."""
    done: list[Path] = []
    sync, commit = files.sync, Transaction.commit
    monkeypatch.setattr(files, "can_sync_filesystem", lambda: False)
    monkeypatch.setattr(files, "sync", lambda descriptor, path: (sync(descriptor, path), done.append(Path(path))))
    monkeypatch.setattr(Transaction, "commit", lambda self: (done.append(Path("commit")), commit(self)))
    assert [each.action for each in fix(dataset.path)].count(Action.FOLLOW) == 1
    assert wanted <= {*done[: done.index(Path("commit"))]}


def test_a_segment_that_was_moved_is_durable_before_the_commit_that_follows_it(dataset, monkeypatch):
    source, target = moved(dataset, (LAST, ".archive/2025"))
    copy(source, target)
    remove(source)
    above = (dataset.path / each for each in (".", ".archive", ".archive/2025", target.parent))
    check_synced(dataset, monkeypatch, {*above, target, *target.rglob("*")})


def test_a_folder_that_was_renamed_is_durable_before_the_commit_that_follows_it(dataset, monkeypatch):
    """`mv` syncs nothing, and `archive --rename` may have been killed before it did."""
    archive = dataset.path / ".archive"
    (dataset.path / LAST).rename(archive / "2025")
    os.mkfifo(archive / "2025/.fifo")  # that of somebody else, and nothing to sync
    (archive / "2025/.link").symlink_to("nowhere")
    check_synced(dataset, monkeypatch, {dataset.path, archive, *(archive / "2025").rglob("[!.]*")})


def test_only_what_this_user_may_not_read_is_left_out_of_a_sync(dataset, monkeypatch):
    """Another error may be that of a disk: what is on it must not be relied on."""
    (dataset.path / LAST).rename(dataset.path / ".archive/2025")
    code = errno.EIO

    def broken(*_):
        raise StorageError("broken", errno=code)

    with Directory.open(dataset.path) as directory, monkeypatch.context() as patch:
        patch.setattr(files, "can_sync_filesystem", lambda: False)
        patch.setattr(Directory, "open_to_read", broken)
        with pytest.raises(StorageError, match="broken"):
            sync_found(directory, [".archive/2025"])
        code = errno.EACCES
        sync_found(directory, [".archive/2025"])


def test_the_file_of_a_killed_move_is_followed_if_somebody_renames_its_folder_and_the_identity(dataset):
    archive, name = dataset.path / ".archive", name_of(dataset)
    with dataset._access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(f"{LAST}/{name}")
    dataset.close()
    day = (archive / "last" / name).parent
    (archive / "last" / name).rename(day / f".{Path(name).name}.{segment.id}")  # as before its last step
    (archive / "last").rename(archive / "2025")
    (archive / "last.place").rename(archive / "2025.place")
    before = seqs(dataset.path)
    assert maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before
    check_whole(dataset.path)


@pytest.mark.parametrize("is_chain", [False, True])
def test_folders_of_the_archive_that_change_places_are_followed(dataset, is_chain):
    dataset.rename_archive("last", "2025")
    dataset.append(data(dataset, [7]))
    dataset.archive(name_of(dataset))  # a segment of this name is in both
    before, archive = seqs(dataset.path), dataset.path / ".archive"
    dataset.close()
    (archive / "2025").rename(archive / "2024")
    (archive / "last").rename(archive / "2025")
    if not is_chain:
        (archive / "2024").rename(archive / "last")
    assert fix(dataset.path).lost == 0
    assert seqs(dataset.path) == before
    check_whole(dataset.path, sorted([*EVERYTHING, 7]), clean=False)


def test_maintenance_while_a_folder_of_the_archive_is_moved_slowly_loses_nothing(dataset):
    old, new = dataset.path / LAST, dataset.path / ".archive/2025"
    dataset.close()
    new.mkdir()
    for each in sorted(old.iterdir(), key=lambda each: each.name, reverse=True):  # `.place` comes last
        copy(each, new / each.name)
        assert maintain(dataset.path).lost == 0
        assert (old / name_of(dataset)).exists()
        assert (new / name_of(dataset)).exists()
        with ondisk.open(dataset.path) as reader:
            assert numbers(reader) == EVERYTHING
    shutil.rmtree(old)
    maintain(dataset.path)
    maintain(dataset.path)
    assert (new / name_of(dataset)).exists()
    with ondisk.open(dataset.path) as reader:
        assert numbers(reader) == EVERYTHING
        assert reader.info()["lost"] == 0


def test_of_two_files_that_may_be_the_moved_one_the_data_count_once(dataset):
    source = dataset.path / name_of(dataset, 1)
    dataset.close()
    for place in (LAST, ".archive/2025"):
        copy(source, dataset.path / place / name_of(dataset, 1))
    remove(source)
    for _ in range(2):
        assert maintain(dataset.path).lost == 0
    check_whole(dataset.path, clean=False)
    assert all((dataset.path / place / name_of(dataset, 1)).exists() for place in (LAST, ".archive/2025"))


def test_a_segment_that_was_moved_and_damaged_is_counted_as_lost(tmp_path):
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, range(3)))
        dataset.archive(name_of(dataset))
        file = dataset.path / name_of(dataset)
        (dataset.path / LAST / name_of(dataset)).rename(file)
        file.write_bytes(file.read_bytes().replace(b"111", b"xxx", 1).ljust(8192, b"\n"))
        assert dataset.fix().lost == 3
        assert dataset.info()["lost"] == 3


@pytest.mark.parametrize("place", ["", LAST])
def test_a_segment_that_was_given_another_day_is_not_lost(dataset, place):
    before, now = (dataset.path / place / name_of(dataset, each) for each in (0 if place else 1, 9))
    before.rename(now)
    for file in now.iterdir() if now.is_dir() else ():
        file.rename(file.with_name(file.name.replace(before.name, now.name)))
    assert dataset.fix().lost == 0
    assert numbers(dataset) == EVERYTHING


def test_a_moved_segment_is_found_beside_another_file_that_has_its_name_now(dataset):
    if dataset.config.format == "blob":
        pytest.skip("only the facts of files are compared")
    dataset.unarchive(name_of(dataset))
    before = seqs(dataset.path)
    dataset.close()
    name = name_of(dataset)
    (dataset.path / name).rename(dataset.path / LAST / name)
    shutil.copy2(dataset.path / name_of(dataset, 1), dataset.path / name)  # somebody's mistake
    with suppress(ondisk.OndiskError):
        fix(dataset.path)
    assert [each for each in seqs(dataset.path) if each[0] < 6] == before[:6]
    with ondisk.open(dataset.path) as again:
        assert [each.metadata["n"] for each in again.query("reftime: =2026-11-20")][:6] == [*range(6)]


def test_a_segment_that_is_put_back_by_hand_after_it_was_moved_is_no_leftover_of_the_move(dataset, tmp_path):
    """A move was killed before it took the old name away; then somebody moves the file back."""
    before, name = seqs(dataset.path), name_of(dataset)
    dataset.close()
    for verb, places in (("unarchive", (name, f"{LAST}/{name}")), ("archive", (f"{LAST}/{name}", name))):
        with ondisk.open(dataset.path) as again, killed_in(Access, "leave_moved"):
            getattr(again, verb)(name)
        (dataset.path / places[0]).rename(dataset.path / places[1])
        assert maintain(dataset.path).lost == 0
        assert seqs(dataset.path) == before
        check_whole(dataset.path)
        with ondisk.open(dataset.path) as again:
            getattr(again, verb)(name)


# Copied


@pytest.mark.parametrize("way", WAYS, ids=lambda each: " to ".join(map(repr, each)))
def test_a_copy_is_counted_once_noted_and_removed_only_on_demand(dataset, way):
    source, target = moved(dataset, way)
    before = seqs(dataset.path)
    copy(source, target)
    for verb in (repack, fix, repack, maintain):
        verb(dataset.path)
        with ondisk.open(dataset.path) as again:
            assert numbers(again) == EVERYTHING
            assert seqs(dataset.path) == before
        assert source.exists()
        assert target.exists()
    with ondisk.open(dataset.path) as again:
        assert any("second cop" in reason for each in again.check().segments for reason in each.reasons)
        planned = again.repack(second_copies=True, dry_run=True)
        assert [each.segment for each in planned if each.action] == [str(target.relative_to(dataset.path))]
        assert target.exists()
        again.repack(second_copies=True)
    assert source.exists()
    assert not target.exists()
    assert seqs(dataset.path) == before
    check_whole(dataset.path)


@pytest.fixture
def copied(dataset):
    """The dataset with a second copy, in the archive, of the segment that was not archived; a fix has compared it."""
    name = name_of(dataset, 1)
    copy(dataset.path / name, dataset.path / LAST / name)
    dataset.fix()
    return dataset


def test_data_that_were_deleted_do_not_come_back_from_a_second_copy(copied):
    copied.delete("n: >=10")
    for _ in range(2):
        maintain(copied.path)
        assert numbers(copied) == [*range(6)]


def test_a_second_copy_takes_the_data_over_with_their_numbers_when_the_other_one_is_gone(copied):
    before = seqs(copied.path)
    remove(copied.path / name_of(copied, 1))
    assert maintain(copied.path).lost == 0
    assert numbers(copied) == EVERYTHING
    if copied.config.format != "blob":
        assert seqs(copied.path) == before


@pytest.mark.parametrize("accident", ["damaged", "gone", "changed copy"])
def test_a_second_copy_is_compared_again_before_it_is_removed(copied, accident):
    source, target = (copied.path / place / name_of(copied, 1) for place in ("", LAST))
    before, whole = content(copied), of_file(source).read_bytes()
    if accident == "gone":
        remove(source)
    else:
        rot(of_file(source if accident == "damaged" else target), whole[:-8] + bytes(len(whole[-8:])))
    copied.repack(second_copies=True)
    copied.check(accurate=True)
    maintain(copied.path)
    found = [*map(repr, content(copied, damaged="skip"))]
    assert {*map(repr, before)} <= {*found}
    assert len(found) == len(before) or not copied.config.unique


def test_a_copy_with_more_than_the_data_that_count_is_neither_read_nor_removed(copied):
    """The others may have been deleted: then they must not come back. Or lost: then they must not go."""
    copied.delete("n: 12")
    copied.repack()
    for dry_run in (True, False):
        report = copied.repack(second_copies=True, dry_run=dry_run)
        assert not [each.segment for each in report if each.action]
        assert any("perhaps of deleted data" in reason for each in report for reason in each.reasons)
    maintain(copied.path)
    assert numbers(copied) == [each for each in EVERYTHING if each != 12]
    assert (copied.path / LAST / name_of(copied, 1)).exists()


@pytest.mark.parametrize("unique", [["n"], []], ids=["unique", "not unique"])
def test_a_second_copy_is_read_when_the_other_one_is_damaged(tmp_path, unique):
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}, "unique": unique}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, [0, 1, 2]))
        source, target = dataset.path / name_of(dataset), dataset.path / LAST / name_of(dataset)
        copy(source, target)
        dataset.fix()
        rot(source, source.read_bytes()[:-9] + bytes(8) + b"\n")
        dataset.check(accurate=True)
        (done,) = [each for each in dataset.fix() if each.segment.startswith(LAST)]
        assert (done.lost, numbers(dataset)) == (0, [0, 1, 2])
        dataset.fix(salvage=[name_of(dataset)])
        maintain(dataset.path)
        assert (numbers(dataset), dataset.check(accurate=True).is_clean) == ([0, 1, 2], True)


@pytest.mark.parametrize("unique", [[], ["n"]], ids=["not unique", "unique"])
def test_data_of_a_damaged_file_count_once_if_the_file_comes_back_after_a_second_copy_was_read(tmp_path, unique):
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}, "unique": unique}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, [0, 1, 2]))
        source = dataset.path / name_of(dataset)
        copy(source, dataset.path / LAST / name_of(dataset))
        dataset.fix()
        before = source.read_bytes()
        rot(source, before[:-9] + bytes(8) + b"\n")
        dataset.check(accurate=True)
        dataset.fix()
        rot(source, before)
        for _ in range(2):
            maintain(dataset.path)
            assert (numbers(dataset), source.read_bytes() == before) == ([0, 1, 2], True)


@pytest.fixture
def partly_copied(tmp_path):
    """A dataset whose archive has a segment with copies of data, and with a datum of its own."""
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, [0, 1, 2]))
        source, target = dataset.path / name_of(dataset), dataset.path / LAST / name_of(dataset)
        before = source.read_bytes()
        dataset.delete("n: 2")
        dataset.repack()
        target.parent.mkdir(parents=True)
        target.write_bytes(before)
        dataset.fix()
        yield dataset


def test_copies_of_some_data_of_a_segment_go_into_quarantine_on_demand(partly_copied):
    target = partly_copied.path / LAST / name_of(partly_copied)
    before, size = content(partly_copied), target.stat().st_size
    partly_copied.repack(second_copies=True)
    assert content(partly_copied) == before
    assert target.stat().st_size < size
    assert partly_copied.quarantine.total().items == 1


def test_a_segment_with_copies_that_is_missing_is_dropped(partly_copied):
    (partly_copied.path / LAST / name_of(partly_copied)).unlink()
    report = partly_copied.repack()
    assert [(each.lost, each.failed) for each in report if each.action == "remove from the index"] == [(1, False)]
    assert numbers(partly_copied) == [0, 1]


def test_deleted_data_do_not_come_back_when_copies_are_removed(partly_copied):
    partly_copied.append([Datum(T + timedelta(hours=30), {"n": 30}, {})])
    partly_copied.delete("n: 2")
    partly_copied.repack(second_copies=True)
    assert numbers(partly_copied) == [0, 1, 30]


@pytest.mark.check
def test_a_moved_file_that_goes_meanwhile_is_not_followed(dataset, monkeypatch):
    source = dataset.path / name_of(dataset, 1)
    target = dataset.path / LAST / name_of(dataset, 1)
    source.rename(target)
    before = moved_module._at

    def gone(access, segment, name, generation):
        target.rename(source)
        return before(access, segment, name, generation)

    with monkeypatch.context() as patched:
        patched.setattr(moved_module, "_at", gone)
        assert dataset.fix().lost == 0
    assert numbers(dataset) == EVERYTHING


def test_a_second_copy_in_a_segment_that_is_old_enough_for_the_archive_is_kept(dataset):
    if dataset.config.format == "blob":
        pytest.skip("folders are merged by their files")
    own = dataset.path / name_of(dataset)
    copy(dataset.path / LAST / name_of(dataset), own)
    dataset.fix()
    dataset.append(data(dataset, [6, 7]))
    dataset.delete("n: 6")
    dataset.close()
    copies = own.read_bytes()
    change_config(dataset.path, 'step = "daily"', 'step = "daily"\narchive_age = 10')
    with clock((T + timedelta(days=100)).timestamp()), ondisk.open(dataset.path) as again:
        again.repack()
        assert numbers(again) == sorted([*EVERYTHING, 7])
        kept = dataset.path.with_name("kept")
        again.quarantine.export(next(iter(again.quarantine)).name, kept)
    assert kept.read_bytes() == copies


def test_a_copy_of_a_segment_whose_file_is_damaged_now_is_read(dataset):
    """Somebody has a backup of the archived segment, and puts it in the wrong place."""
    archived, back = dataset.path / LAST / name_of(dataset), dataset.path / name_of(dataset)
    dataset.close()
    copy(archived, back)
    file = of_file(archived)
    file.write_bytes(file.read_bytes()[:-8] + bytes(min(8, file.stat().st_size)))
    maintain(dataset.path)
    assert back.exists()
    with ondisk.open(dataset.path, read_only=True) as again:
        assert {each.metadata["n"] for each in again.query("reftime: >=2026-11-21")} == {*range(10, 16)}
        assert name_of(dataset) in {each.location.segment for each in again.query(with_data=False)}


def test_a_copy_in_a_place_that_is_away_does_not_count_and_is_not_touched(copied):
    remove(copied.path / LAST / name_of(copied, 1))
    copied.fix()
    copied.rename_archive("last", "2025")
    copy(copied.path / name_of(copied, 1), copied.path / ".archive/2025" / name_of(copied, 1))
    copied.set_offline("2025")
    maintain(copied.path)
    assert (copied.path / ".archive/2025" / name_of(copied, 1)).exists()
    copied.set_online("2025")
    maintain(copied.path)
    assert numbers(copied) == EVERYTHING


def test_data_appended_since_the_copy_was_made_stay(copied):
    copied.append(data(copied, [16], 1))
    maintain(copied.path)
    assert numbers(copied) == [*EVERYTHING, 16]
    copied.repack(second_copies=True)
    assert numbers(copied) == [*EVERYTHING, 16]


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_data_appended_to_a_copy_stay_when_the_other_one_is_gone(dataset, verb):
    """The index must not forget the row of the copy: it has data now."""
    archived, back = dataset.path / LAST / name_of(dataset), dataset.path / name_of(dataset)
    copy(archived, back)
    dataset.fix()
    dataset.append(data(dataset, [20]))  # on the day of the archived segment
    remove(archived)
    getattr(dataset, verb)()
    maintain(dataset.path)
    assert numbers(dataset) == sorted([*EVERYTHING, 20])


def test_a_second_copy_with_which_a_segment_was_merged_is_none_any_more_and_is_followed(copied):
    name = name_of(copied, 1)
    copied.archive(name)
    copied.delete("n: 10")
    kept = [each.name for each in copied.quarantine]
    (copied.path / ".archive/2024/2026").mkdir(parents=True)
    (copied.path / LAST / name).rename(copied.path / ".archive/2024" / name)
    report = copied.fix()
    assert [(each.action, each.lost) for each in report if each.action] == [(Action.FOLLOW, 0)]
    for _ in range(2):
        maintain(copied.path)
        assert numbers(copied) == [*range(6), *range(11, 16)]
    assert [each.name for each in copied.quarantine] == kept


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "part"])
def test_second_copies_of_a_folder_that_is_forgotten_have_its_data(dataset, is_whole):
    copy(dataset.path / LAST / name_of(dataset), dataset.path / name_of(dataset))
    dataset.fix()
    dataset.delete("n: 0")
    dataset.rename_archive("last", "2024")
    if not is_whole:
        sql(dataset.path, "UPDATE segment SET tail = 0 WHERE name GLOB '.archive/*'")
    shutil.rmtree(dataset.path / ".archive/2024")
    lost = 0 if is_whole else 5
    assert dataset.fix(forget_place="2024", dry_run=True).lost == lost
    report = dataset.fix(forget_place="2024")
    assert (report.lost, dataset.info()["lost"]) == (lost, lost)
    assert sum(each.returned for each in report if each.action == "rescan") == (0 if is_whole else 6)
    maintain(dataset.path)
    assert numbers(dataset) == EVERYTHING[is_whole:]
    assert dataset.check(accurate=True).is_clean


def test_nothing_is_lost_and_all_keeps_its_number_if_data_were_appended_to_a_moved_file_before_a_fix(dataset):
    before = seqs(dataset.path)
    (dataset.path / LAST / name_of(dataset)).rename(dataset.path / name_of(dataset))
    dataset.append(data(dataset, [20]))
    report = dataset.fix()
    assert (report.lost, dataset.info()["lost"]) == (0, 0)
    assert numbers(dataset) == sorted([*EVERYTHING, 20])
    assert [each for each in seqs(dataset.path) if each[0] != 20] == before
    maintain(dataset.path)
    assert numbers(dataset) == sorted([*EVERYTHING, 20])


def test_a_copy_to_which_data_were_appended_is_followed(dataset):
    own, moved_to = dataset.path / name_of(dataset), dataset.path / ".archive/2025" / name_of(dataset)
    copy(dataset.path / LAST / name_of(dataset), own)
    dataset.fix()
    dataset.append(data(dataset, [20, 21]))
    dataset.delete("n: 20")
    before = seqs(dataset.path)
    moved_to.parent.mkdir(parents=True)
    own.rename(moved_to)
    assert maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before


@pytest.mark.parametrize("is_appended", [False, True])
def test_data_of_a_killed_append_are_followed_when_their_folder_is_moved(dataset, is_appended):
    writer = DirWriter if dataset.config.format == "blob" else ConcatWriter
    with killed_in(writer, "reveal"):
        dataset.append(data(dataset, [20, 21], 3))
    dataset.close()
    (dataset.path / "2026").rename(dataset.path / LAST / "moved")
    for each in (dataset.path / LAST / "moved").iterdir():
        each.rename(dataset.path / LAST / "2026" / each.name)
    expected = [*EVERYTHING, 20, 21]
    with ondisk.open(dataset.path) as again:
        if is_appended:
            again.append(data(again, [22], 4))
            expected.append(22)
        assert again.fix().lost == 0
    for _ in range(2):
        maintain(dataset.path)
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == expected
        assert again.check(accurate=True).is_clean


def test_a_segment_is_not_rewritten_before_a_copy_of_its_bytes_was_compared(dataset):
    dataset.append(data(dataset, [6, 7], 2))
    dataset.append(data(dataset, [5], 2))  # out of time order: a repack rewrites the segment
    name = name_of(dataset, 2)
    copy(dataset.path / name, dataset.path / LAST / name)
    dataset.repack()  # before any fix
    for _ in range(2):
        dataset.fix()
        dataset.repack()
    assert numbers(dataset) == sorted([*EVERYTHING, 5, 6, 7])
    assert dataset.quarantine.total().items == 0


@pytest.mark.parametrize("format", ["seg"])  # an emptied file lacks the header that the index knows
def test_an_accurate_check_misses_nothing_in_a_copy_that_was_emptied(dataset):
    own = dataset.path / name_of(dataset)
    copy(dataset.path / LAST / name_of(dataset), own)
    for size in (None, 26, 0):
        if size is not None:
            os.truncate(own, size)
        dataset.fix()
    assert dataset.check().is_clean
    assert dataset.check(accurate=True).is_clean


def test_an_archived_segment_that_was_copied_over_a_newer_one_is_a_second_copy(dataset):
    dataset.append(data(dataset, [6, 7]))
    own = dataset.path / name_of(dataset)
    own.rename(dataset.path.parent / "own")
    copy(dataset.path / LAST / name_of(dataset), own)
    assert dataset.fix().lost == 2
    dataset.repack(second_copies=True)
    assert numbers(dataset) == EVERYTHING


# With the index lost


def test_a_copy_counts_once_after_the_index_was_lost(dataset):
    copy(dataset.path / LAST / name_of(dataset), dataset.path / name_of(dataset))
    dataset.close()
    lose_index(dataset.path)
    assert maintain(dataset.path).lost == 0
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == EVERYTHING or not again.config.unique
        assert {*numbers(again)} == {*EVERYTHING}
    assert all((dataset.path / place / name_of(dataset)).exists() for place in ("", LAST))


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
@pytest.mark.parametrize("is_merged", [False, True])
def test_what_was_moved_beside_a_reader_counts_once_after_the_index_was_lost(dataset, verb, is_merged):
    name = name_of(dataset)
    if verb == "archive" and not is_merged:
        dataset.unarchive(name)
    if is_merged:
        dataset.append(data(dataset, [7]))
    expected = sorted([*EVERYTHING, *[7] * is_merged])
    with dataset.query() as reader:
        next(reader)
        getattr(dataset, verb)(name)
        assert [*dataset.path.rglob(".11-*.moved")]  # what the reader needs is hidden
        for suffix in ("", "-wal", "-shm"):
            (dataset.path / f"index.sqlite{suffix}").rename(dataset.path.parent / f"lost{suffix}")
        assert maintain(dataset.path).lost == 0
    dataset.close()
    maintain(dataset.path)
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == expected


def test_a_datum_that_was_stored_again_after_its_deletion_in_the_archive_survives(dataset):
    """Its file begins as the archived one, where a repack removes the deleted datum."""
    dataset.delete("n: 0")
    dataset.append(data(dataset, [0]))
    dataset.close()
    lose_index(dataset.path)
    maintain(dataset.path)
    with ondisk.open(dataset.path) as again:
        assert {*numbers(again)} == {*EVERYTHING}
        again.repack(second_copies=True)
        assert {*numbers(again)} == {*EVERYTHING}


def test_a_copy_of_a_whole_segment_counts_once_also_after_the_index_was_lost(dataset):
    source, target = (dataset.path / place / name_of(dataset) for place in (LAST, ".archive/2025"))
    dataset.close()
    target.parent.mkdir(parents=True)
    copy(source, target)
    lose_index(dataset.path)
    assert maintain(dataset.path).lost == 0
    check_whole(dataset.path)
    with ondisk.open(dataset.path) as dataset:
        dataset.repack(second_copies=True)
    check_whole(dataset.path)
    assert source.exists()
    assert not target.exists()


def test_data_with_the_bytes_of_archived_data_and_other_metadata_are_no_second_copies(dataset):
    (archived,) = data(dataset, [0])
    dataset.append([Datum(archived.reftime, {"n": 100}, archived.data)])
    dataset.close()
    lose_index(dataset.path)
    assert maintain(dataset.path).exit_code == 0
    check_whole(dataset.path, [*EVERYTHING, 100])


def test_an_older_copy_in_another_order_of_a_segment_that_was_archived_since_counts_once(tmp_path):
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, [5, 3, 7, 1]))
        shutil.copy2(dataset.path / name_of(dataset), tmp_path / "older")
        dataset.repack()
        dataset.archive(name_of(dataset))
        shutil.copy2(tmp_path / "older", dataset.path / name_of(dataset))
    maintain(tmp_path / "dataset")
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert numbers(dataset) == [1, 3, 5, 7]
        assert not [each for each in dataset.check() if State.CORRUPTED in each.state]
        dataset.repack(second_copies=True)
        assert numbers(dataset) == [1, 3, 5, 7]
        assert not (dataset.path / name_of(dataset)).exists()


def test_a_datum_without_unique_values_is_a_copy_of_one_other_only(tmp_path):
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, [5, 3, 3, 1]))
        lines = (dataset.path / name_of(dataset)).read_bytes().splitlines(keepends=True)
        dataset.archive(name_of(dataset))
    (tmp_path / "dataset" / name_of(dataset)).write_bytes(b"".join([*lines, lines[1], lines[0]]))
    assert maintain(tmp_path / "dataset").lost == 0
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert numbers(dataset) == [1, 3, 3, 3, 5, 5]
        dataset.repack(second_copies=True)
        assert numbers(dataset) == [1, 3, 3, 3, 5, 5]


def test_a_file_that_may_be_that_of_two_segments_is_followed_by_neither(tmp_path):
    """Two segments of one day had equal bytes, and one copy is left: the data would count twice."""
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for _ in range(2):
            dataset.append(data(dataset, range(3)))
            if not (dataset.path / LAST).exists():
                dataset.archive(name_of(dataset))
        own, archived = dataset.path / name_of(dataset), dataset.path / LAST / name_of(dataset)
        assert own.read_bytes() == archived.read_bytes()
        copy(own, dataset.path / ".archive/2024" / name_of(dataset))
        own.unlink()
        archived.unlink()
        dataset.fix()
        assert numbers(dataset) == [0, 1, 2]


def test_two_segments_of_one_name_that_were_exchanged_are_both_followed(dataset):
    dataset.append(data(dataset, [6, 7]))
    own, archived, between = (dataset.path / each for each in (name_of(dataset), f"{LAST}/{name_of(dataset)}", "x"))
    dataset.delete("n: 6")
    before = seqs(dataset.path)
    own.rename(between)
    archived.rename(own)
    between.rename(archived)
    assert dataset.fix().lost == maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before
    check_whole(dataset.path, sorted([*EVERYTHING, 7]))


def test_a_segment_that_took_the_name_of_one_that_was_moved_on_is_followed_like_that_one(dataset):
    dataset.append(data(dataset, [6, 7]))
    own, archived = (dataset.path / each for each in (name_of(dataset), f"{LAST}/{name_of(dataset)}"))
    before, on = seqs(dataset.path), dataset.path / ".archive/2025" / name_of(dataset)
    on.parent.mkdir(parents=True)
    archived.rename(on)
    own.rename(archived)
    assert dataset.fix().lost == maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before


def test_a_copy_of_a_segment_whose_data_are_all_deleted_brings_none_back(dataset):
    dataset.delete("n: >=10")
    copy(dataset.path / name_of(dataset, 1), dataset.path / LAST / name_of(dataset, 1))
    maintain(dataset.path)
    assert numbers(dataset) == [*range(6)]


@pytest.mark.parametrize("accident", ["removed", "renamed"])
def test_a_folder_of_second_copies_may_go(dataset, accident):
    copies = dataset.path / ".archive/copies"
    copy(dataset.path / name_of(dataset, 1), copies / name_of(dataset, 1))
    dataset.fix()
    remove(copies) if accident == "removed" else copies.rename(copies.with_name("more"))
    assert maintain(dataset.path).lost == 0
    check_whole(dataset.path)


@pytest.mark.parametrize("way", ["gone", "empty"])
def test_an_older_copy_of_a_place_that_is_away_is_neither_it_nor_read(dataset, tmp_path, way):
    last = dataset.path / LAST
    copy(last, last.with_name("copy"))
    dataset.archive(name_of(dataset, 1))
    before = seqs(dataset.path)
    last.rename(tmp_path / "disk")
    if way == "empty":
        last.mkdir()
    assert maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before
    if way == "empty":
        last.rmdir()
    (tmp_path / "disk").rename(last)
    assert maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_an_index_from_before_a_merge_is_recognised_as_older(dataset, verb):
    dataset.append(data(dataset, [6, 7]))
    dataset.close()
    state = {each: each.read_bytes() for each in dataset.path.glob("index.sqlite*")}
    with ondisk.open(dataset.path) as again:
        getattr(again, verb)(name_of(again))
    for each in dataset.path.glob("index.sqlite*"):
        each.unlink()
    for each, content_ in state.items():
        each.write_bytes(content_)
    maintain(dataset.path)
    with ondisk.open(dataset.path) as again:
        assert {*numbers(again)} == {*EVERYTHING, 6, 7}


# Places


@pytest.fixture
def three(dataset):
    """Three folders of the archive with segments of the same names and other data."""
    dataset.rename_archive("last", "2023")
    for name, found in (("2024", range(16, 20)), ("2025", range(20, 23))):
        dataset.append(data(dataset, found))
        dataset.archive(name_of(dataset))
        dataset.rename_archive("last", name)
    dataset.delete("n: 0")
    dataset.close()
    return dataset.path


def rename(path, **names):
    """Rename folders of the archive: all at once."""
    archive = path / ".archive"
    for old in names:
        (archive / old[1:]).rename(archive / f"moving-{old}")
    for old, new in names.items():
        (archive / f"moving-{old}").rename(archive / new)


def outside(path):
    return sorted(each.name for each in (path / ".archive").glob("*.place"))


@pytest.mark.check
@pytest.mark.parametrize("format", ["jsonl", "blob"])
@pytest.mark.parametrize("last", ["2023", "2026"])
def test_places_that_took_each_others_names_are_followed_once_wherever_a_fix_is_killed(three, last, tmp_path):
    rename(three, _2023="2024", _2024="2025", _2025=last)
    before, call, is_killed = seqs(three), 0, True
    while is_killed:
        path, is_killed = tmp_path / str(call), False
        shutil.copytree(three, path)
        try:
            with killed_at(call):
                fix(path)
        except Killed:
            is_killed = True
        assert maintain(path).lost == 0
        assert seqs(path) == before
        assert outside(path) == sorted([f"{last}.place", "2024.place", "2025.place"])
        with ondisk.open(path) as dataset:
            assert dataset.check(accurate=True).is_clean
        call += 1
    assert call > 5


def test_a_wrong_disk_in_a_place_is_not_taken_for_a_renamed_one(three, tmp_path):
    before = seqs(three)
    (three / ".archive/2023").rename(tmp_path / "2023")
    rename(three, _2024="2023")
    assert maintain(three).lost == 0
    rename(three, _2023="2024")
    (tmp_path / "2023").rename(three / ".archive/2023")
    assert maintain(three).lost == 0
    assert seqs(three) == before


def test_a_copy_of_a_place_without_its_files_is_not_the_place(three, tmp_path):
    before = seqs(three)
    copy(three / ".archive/2024", three / ".archive/copy")
    fix(three)
    with ondisk.open(three) as dataset:
        dataset.repack(second_copies=True)
    (three / ".archive/2024").rename(tmp_path / "2024")
    assert maintain(three).lost == 0
    (tmp_path / "2024").rename(three / ".archive/2024")
    assert maintain(three).lost == 0
    assert seqs(three) == before


@pytest.mark.parametrize("is_known", [False, True])
def test_a_copy_of_a_place_is_used_when_the_place_itself_is_gone(three, is_known):
    copy(three / ".archive/2024", three / ".archive/copy")
    if is_known:
        fix(three)
    remove(three / ".archive/2024")
    before = seqs(three)
    assert maintain(three).lost == 0
    assert seqs(three) == before


def test_a_place_is_away_although_some_of_its_segments_were_moved_to_a_copy_of_it(three, tmp_path, monkeypatch):
    """The copy can only be read, so a fix does not give it an identity of its own."""
    monkeypatch.setattr(archive_module, "_is_writable", lambda *_: False)
    with ondisk.open(three) as dataset:
        dataset.append(data(dataset, [8], 2))
        for day in (1, 2):
            dataset.archive(name_of(dataset, day))
        dataset.rename_archive("last", "2026")
    before = seqs(three)
    copy(three / ".archive/2026", three / ".archive/2027")
    for name, day in (("2026", 1), ("2027", 2)):
        remove(three / ".archive" / name / name_of(dataset, day))
    fix(three)
    (three / ".archive/2026").rename(tmp_path / "2026")
    assert maintain(three).lost == 0
    (tmp_path / "2026").rename(three / ".archive/2026")
    assert maintain(three).lost == 0
    assert seqs(three) == before


def test_the_folder_of_a_place_that_is_offline_is_not_read_under_another_name(three, tmp_path):
    before = seqs(three)
    with ondisk.open(three) as dataset:
        dataset.set_offline("2024")
    rename(three, _2024="tape")
    assert maintain(three).lost == 0
    with ondisk.open(three) as dataset, pytest.warns(DataOffline) as warned:
        numbers(dataset)
    assert [each.message.args[0].endswith("2024/ is offline; its data were left out") for each in warned] == [True]
    with ondisk.open(three) as dataset:
        with pytest.raises(NotFound, match="tape is not offline"):
            dataset.set_online("tape")
        with pytest.raises(SegmentMissing) as raised:
            dataset.set_online("2024")
        assert ".archive/tape is it" in raised.value.hint
    rename(three, _tape="2024")
    with ondisk.open(three) as dataset:
        dataset.set_online("2024")
    assert maintain(three).lost == 0
    assert seqs(three) == before


@pytest.mark.parametrize("accident", ["renamed", "offline", "in the place of another"])
def test_a_place_whose_folder_is_in_the_archive_is_not_forgotten(three, accident):
    with ondisk.open(three) as dataset:
        if accident == "offline":
            dataset.set_offline("2024")
        elif accident == "renamed":
            rename(three, _2024="other")
        else:
            remove(three / ".archive/2023")
            rename(three, _2024="2023")
        for dry_run in (True, False):
            with pytest.raises(StateError, match="are not forgotten"):
                dataset.fix(forget_place="2024", dry_run=dry_run)


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_a_killed_move_is_finished_when_the_disk_is_back(dataset, verb, tmp_path):
    name = name_of(dataset, 1) if verb == "archive" else name_of(dataset)
    with killed_in(Access, "leave_moved"):
        getattr(dataset, verb)(name)
    dataset.close()
    (dataset.path / LAST).rename(tmp_path / "disk")
    with ondisk.open(dataset.path) as again:
        again.append(data(again, [8], 5))
        again.delete("n: 0" if verb == "unarchive" else "n: 10")
    before = seqs(dataset.path)
    assert maintain(dataset.path).lost == 0
    (tmp_path / "disk").rename(dataset.path / LAST)
    assert maintain(dataset.path).lost == 0
    assert seqs(dataset.path) == before


# Away


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_deleted_data_do_not_come_back_with_their_disk(dataset, verb, tmp_path):
    dataset.delete("n: >=10")
    (dataset.path / "2026").rename(tmp_path / "disk")
    getattr(dataset, verb)()
    (tmp_path / "disk").rename(dataset.path / "2026")
    maintain(dataset.path)
    assert numbers(dataset) == [*range(6)]


def test_data_deleted_from_a_copy_do_not_come_back_with_their_place(three, tmp_path):
    """The copy has had their rows since the place was away. Its own file stays: it is the second copy now."""
    archived = next((three / ".archive/2024").rglob("11-20.*"))
    own = three / "2026" / archived.name
    (three / ".archive/2024").rename(tmp_path / "disk")
    copy(tmp_path / "disk/2026" / archived.name, own)
    fix(three)
    with ondisk.open(three) as dataset:
        dataset.delete("n: 16")
        dataset.repack()
    before = seqs(three)
    (tmp_path / "disk").rename(three / ".archive/2024")
    for _ in range(2):
        assert maintain(three).lost == 0
        assert seqs(three) == before
    assert archived.exists()


def test_a_copy_of_a_place_that_is_offline_is_no_place(three, tmp_path):
    copy(three / ".archive/2024", three / ".archive/copy")
    fix(three)
    with ondisk.open(three) as dataset:
        dataset.set_offline("2024")
        with pytest.warns(DataOffline) as warned:
            numbers(dataset)
        assert len(warned) == 1
        assert dataset.check().is_clean
        held = [each for each in dataset.repack(second_copies=True) if each.segment.startswith(".archive/copy")]
        assert ["which is away" in each.reasons[-1] for each in held] == [True]


def test_no_opening_waits_for_the_lock_while_the_place_of_a_killed_move_is_away(dataset, tmp_path, monkeypatch):
    with killed_in(Access, "leave_moved"):
        dataset.archive(name_of(dataset, 1))
    dataset.close()
    (dataset.path / LAST).rename(tmp_path / "disk")
    monkeypatch.setattr(Access, "transaction", None)
    with ondisk.open(dataset.path) as again:
        assert again.summary().count == 12


def test_what_the_index_has_lost_of_a_place_is_missed_until_a_fix_has_read_it(three, tmp_path):
    (three / ".archive/2024").rename(tmp_path / "disk")
    lose_index(three)
    fix(three)
    (tmp_path / "disk").rename(three / ".archive/2024")
    with ondisk.open(three) as dataset:
        with pytest.raises(SegmentMissing, match="may not be in the index"):
            numbers(dataset)
        assert ["fix" in each for each in dataset.doubts()] == [True]
        dataset.repack()
        assert len(dataset.doubts()) == 1
    fix(three)
    with ondisk.open(three) as dataset:
        assert {*range(16, 20)} < {*numbers(dataset)}
        assert dataset.doubts() == []


def lost_while_away(dataset, tmp_path):
    """Return the path of a dataset whose archive has come back after a fix has made a lost index again."""
    path = dataset.path
    dataset.close()
    (path / LAST).rename(tmp_path / "disk")
    lose_index(path)
    fix(path)
    (tmp_path / "disk").rename(path / LAST)
    return path


def moved_out(path, name):
    (path / "2026").mkdir(exist_ok=True)
    (path / LAST / name).rename(path / name)


def moved_on(path, name):
    (path / ".archive/2030").mkdir()
    (path / LAST / "2026").rename(path / ".archive/2030/2026")


def renamed(path, name):
    (path / LAST).rename(path / ".archive/2030")


def archived(path, name):
    with ondisk.open(path) as dataset:
        dataset.archive(name.replace("-20", "-21"))
        dataset.repack()


def set_offline(path, name):
    with ondisk.open(path) as dataset:
        dataset.archive(name.replace("-20", "-21"))
        dataset.rename_archive("last", "2030")
        dataset.set_offline("2030")


@pytest.mark.parametrize("act", [set_offline, archived, moved_out, moved_on, renamed])
def test_what_an_index_has_lost_of_a_place_is_missed_until_a_fix_whatever_happens_there(dataset, tmp_path, act):
    name = name_of(dataset)
    path = lost_while_away(dataset, tmp_path)
    act(path, name)
    with ondisk.open(path) as again:
        with pytest.warns(DataOffline) if act is set_offline else pytest.raises(SegmentMissing):
            [*again.query("reftime:=2026-11-20")]
        assert not again.check().is_clean
        if act is set_offline:
            (problem,) = again.backup(tmp_path / "backup", create=True).problems
            assert (problem.segment, problem.kept) == (".archive/2030", Kept.MISSING)
            again.set_online("2030")
        else:
            with pytest.raises(NeedsCheck):
                again.backup(tmp_path / "backup", create=True)
    fix(path)
    with ondisk.open(path) as again:
        assert numbers(again) == EVERYTHING
        assert again.doubts() == []
        assert again.check().is_clean


def test_a_fix_that_ends_before_it_has_read_all_that_is_back_leaves_that_in_doubt(dataset, tmp_path, monkeypatch):
    dataset.archive(name_of(dataset, 1))
    path = lost_while_away(dataset, tmp_path)
    commit, commits = Transaction.commit, []

    def commit_twice(transaction):
        commits.append(commit(transaction))
        if len(commits) == 2:
            raise Killed

    with ondisk.open(path) as again, monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(fix_module, "_GROUP", 1)
        patched.setattr(Transaction, "commit", commit_twice)
        again.fix()
    assert len(commits) == 2
    with ondisk.open(path) as again, pytest.raises(SegmentMissing):
        numbers(again)
    fix(path)
    with ondisk.open(path) as again:
        assert numbers(again) == EVERYTHING


def test_all_that_a_place_had_is_counted_as_lost_when_it_is_forgotten(dataset, tmp_path):
    path = lost_while_away(dataset, tmp_path)
    archived(path, name_of(dataset))
    shutil.rmtree(path / LAST)
    with ondisk.open(path) as again:
        assert again.fix(forget_place="last").lost == len(EVERYTHING)


def test_a_place_that_comes_back_while_a_lost_index_is_made_again_is_missed(dataset, tmp_path, monkeypatch):
    path = dataset.path
    dataset.close()
    lose_index(path)
    (path / LAST).rename(tmp_path / "disk")
    restore = fix_module._restore_sums

    def back(access):
        restore(access)
        (tmp_path / "disk").rename(path / LAST)

    with ondisk.open(path) as again, monkeypatch.context() as patched:
        patched.setattr(fix_module, "_restore_sums", back)
        again.fix()
    with ondisk.open(path) as again, pytest.raises(SegmentMissing):
        numbers(again)
    fix(path)
    with ondisk.open(path) as again:
        assert numbers(again) == EVERYTHING


@pytest.mark.parametrize("accident", ["older index", "sentinel"])
def test_a_place_that_is_offline_is_known_after_a_fix_that_has_found_all_else(dataset, tmp_path, accident):
    path = dataset.path
    dataset.rename_archive("last", "tape")
    dataset.set_offline("tape")
    dataset.delete("n: 0")
    dataset.close()
    (path / ".archive/tape").rename(tmp_path / "tape")
    shutil.copy2(path / INDEX, tmp_path / INDEX)
    with ondisk.open(path) as again:
        again.append(data(again, range(16, 19), 1))
    if accident == "sentinel":
        (path / "needs-check-do-not-pack").touch()
    else:
        shutil.copy2(tmp_path / INDEX, path / INDEX)
    fix(path)
    with ondisk.open(path) as again:
        assert again.check().is_clean
        assert again.doubts() == [f"{path}: .archive/tape/ is offline; its data were left out"]
        assert again.summary().count == 14


def test_nothing_is_deleted_as_unknown_while_the_index_lacks_what_a_place_had(dataset, tmp_path):
    name = name_of(dataset)
    change_config(dataset.path, "[fields]", 'unknown_segments = "delete"\n[fields]')
    path = lost_while_away(dataset, tmp_path)
    moved_out(path, name)
    with ondisk.open(path) as again:
        again.repack()
    assert maintain(path).lost == 0
    with ondisk.open(path) as again:
        assert numbers(again) == EVERYTHING


@pytest.mark.parametrize("act", [Path.rename, copy])
def test_a_folder_that_somebody_made_is_missed_once_a_fix_has_followed_into_it(dataset, tmp_path, act):
    path, name = dataset.path, name_of(dataset, 1)
    dataset.close()
    (path / ".archive/2026" / name).parent.mkdir(parents=True)
    act(path / name, path / ".archive/2026" / name)
    if act is copy:
        remove(path / name)
    fix(path)
    (path / ".archive/2026").rename(tmp_path / "disk")
    lose_index(path)
    fix(path)
    with ondisk.open(path) as again:
        assert [".archive/2026" in each for each in again.doubts()] == [True]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_query_answers_what_it_can_while_the_index_is_not_trusted(three, read_only):
    lose_index(three)
    fix(three)  # from now on, the index must know what is in the places
    lose_index(three)
    with ondisk.open(three, read_only=read_only) as dataset:
        assert dataset.needs_check
        assert numbers(dataset) == []
        assert [each.segment for each in dataset.check() if State.MISSING in each.state] == []


def test_a_place_from_which_all_segments_were_moved_may_go(three, tmp_path):
    rename(three, _2024="2026")
    (three / ".archive/2024").mkdir()
    (three / ".archive/2026/.place").rename(three / ".archive/2024/.place")
    before = seqs(three)
    assert fix(three).lost == 0
    remove(three / ".archive/2024")
    assert maintain(three).lost == 0
    with ondisk.open(three) as dataset:
        assert dataset.check().is_clean
        numbers(dataset)
    assert seqs(three) == before
    (three / ".archive/2026").rename(tmp_path / "disk")
    lose_index(three)
    assert any("4 data, which the index does not know" in reason for each in fix(three) for reason in each.reasons)


def test_all_segments_of_a_place_are_followed_if_its_folder_is_gone(three):
    archived = next((three / ".archive/2024").rglob("11-20.*"))
    with ondisk.open(three) as dataset:
        dataset.delete("n: 16")
    before = seqs(three)
    archived.rename(three / "2026" / archived.name)
    remove(three / ".archive/2024")
    assert maintain(three).lost == 0
    assert seqs(three) == before
    with ondisk.open(three) as dataset:
        assert dataset.check(accurate=True).is_clean


def test_a_copy_of_a_place_that_no_repack_rewrites_can_replace_it_after_a_delete(three, tmp_path):
    copy(three / ".archive/2024", tmp_path / "copy")
    with ondisk.open(three) as dataset:
        dataset.delete("n: 16")
        dataset.fix()
        dataset.repack()
    before = seqs(three)
    remove(three / ".archive/2024")
    (tmp_path / "copy").rename(three / ".archive/2024")
    assert maintain(three).lost == 0
    assert seqs(three) == before
    with ondisk.open(three) as dataset:
        assert {17, 18, 19} == {16, 17, 18, 19} & {*numbers(dataset)}


@pytest.mark.parametrize("format", ["jsonl", "blob"])
def test_segments_of_a_folder_that_is_gone_are_followed_wherever_a_fix_is_killed(three, tmp_path):
    archived = next((three / ".archive/2024").rglob("11-20.*"))
    archived.rename(three / "2026" / archived.name)
    remove(three / ".archive/2024")
    before, call, is_killed = seqs(three), 0, True
    while is_killed:
        path, is_killed = tmp_path / str(call), False
        subprocess.run(["cp", "-al", three, path], check=True)  # moved files keep their inodes
        for file in [*path.glob("index.sqlite*"), *path.glob(".archive/*.place")]:
            content = file.read_bytes()
            file.unlink()
            file.write_bytes(content)
        try:
            with killed_at(call):
                fix(path)
        except Killed:
            is_killed = True
        assert maintain(path).lost == 0
        assert seqs(path) == before
        with ondisk.open(path) as dataset:
            assert dataset.check().is_clean
        call += 1
    assert call > 3


def test_an_older_copy_of_a_place_that_was_rewritten_is_not_read(three, tmp_path):
    config = three / "dataset.toml"
    config.write_text(f'maintain_archives = ["2024"]\n{config.read_text()}')
    copy(three / ".archive/2024", tmp_path / "older")
    with ondisk.open(three) as dataset:
        dataset.delete("n: 16")
        dataset.repack()
    before = seqs(three)
    (three / ".archive/2024").rename(tmp_path / "newer")
    (tmp_path / "older").rename(three / ".archive/2024")
    assert any("an older state of it is in its place" in reason for each in fix(three) for reason in each.reasons)
    remove(three / ".archive/2024")
    (tmp_path / "newer").rename(three / ".archive/2024")
    assert maintain(three).lost == 0
    assert seqs(three) == before


def test_data_are_deleted_from_a_place_that_can_only_be_read(three):
    (three / ".archive/2024").rename(three / ".archive/.disk")
    with mounted_read_only(three / ".archive/.disk", three / ".archive/2024"), ondisk.open(three) as dataset:
        dataset.delete("n: 16")
        left = seqs(three)
        dataset.fix()
        assert dataset.repack().is_clean
    assert maintain(three).lost == 0
    assert seqs(three) == left


def test_a_place_whose_older_state_is_in_its_place_may_be_forgotten(dataset, tmp_path):
    last = dataset.path / LAST
    copy(last, tmp_path / "older")
    dataset.archive(name_of(dataset, 1))
    remove(last)
    (tmp_path / "older").rename(last)
    assert any("--forget last" in reason for each in dataset.fix() for reason in each.reasons)
    assert dataset.fix(forget_place="last").lost == 12


def test_a_place_that_a_copy_can_replace_says_so(three, tmp_path):
    copy(three / ".archive/2024", three / ".archive/copy")
    remove(three / ".archive/2024")
    (three / ".archive/2024").mkdir()
    reasons = [reason for each in fix(three) for reason in each.reasons]
    assert any(
        ".archive/copy is it, or a copy: mount its disk here, or move that folder here" in each for each in reasons
    )
    (three / ".archive/2024").rmdir()
    rename(three, _copy="2024")
    assert maintain(three).lost == 0


def test_data_of_a_place_that_is_away_are_skipped_as_damaged_ones_are(three, tmp_path):
    (three / ".archive/2024").rename(tmp_path / "disk")
    with ondisk.open(three) as dataset:
        skipped = Skipped()
        found = sorted(datum.metadata["n"] for datum in dataset.query(damaged=skipped))
        assert (skipped.count, {16, 17, 18, 19} & {*found}) == (4, set())
        dataset.delete("n: >=16")
        assert numbers(dataset) == [*range(1, 6), *range(10, 16)]


def test_a_place_without_its_segments_does_not_come_online(three, tmp_path):
    with ondisk.open(three) as dataset:
        dataset.set_offline("2024")
        (three / ".archive/2024").rename(tmp_path / "disk")
        copy(three / ".archive/2023/.place", three / ".archive/2024/.place")
        with pytest.raises(SegmentMissing) as raised:
            dataset.set_online("2024")
        assert ".place" not in raised.value.hint
        shutil.copy2(three / ".archive/2024.place", three / ".archive/2024/.place")
        with pytest.raises(SegmentMissing, match="none of its segments"):
            dataset.set_online("2024")


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_forgotten_place_leaves_its_data_to_a_copy_that_is_whole(three, tmp_path, is_edited):
    archived = next((three / ".archive/2024").rglob("11-20.*"))
    own = three / "2026" / archived.name
    copy(archived, own)
    fix(three)
    if is_edited:
        of_file(own).write_bytes(of_file(own).read_bytes()[:-3] + b"}}}")
    remove(three / ".archive/2024")
    with ondisk.open(three) as dataset:
        report = dataset.fix(forget_place="2024")
        (forgotten,) = [each for each in report if each.action == "forget"]
        is_checked = dataset.config.format != "blob"  # each file of a folder has its own checksum
        assert forgotten.lost == (4 if is_edited and is_checked else 0)


def test_a_repack_keeps_a_moved_segment_to_which_data_were_appended(dataset):
    archived = dataset.path / LAST / name_of(dataset)
    archived.rename(dataset.path / name_of(dataset))
    dataset.append(data(dataset, [20]))
    assert dataset.repack().lost == 0
    assert maintain(dataset.path).lost == 0
    assert numbers(dataset) == sorted([*EVERYTHING, 20])


def test_data_appended_to_a_copy_while_a_fix_waits_to_follow_stay(dataset, monkeypatch):
    archived, back = dataset.path / LAST / name_of(dataset), dataset.path / name_of(dataset)
    copy(archived, back)
    dataset.fix()
    remove(archived)
    look = moved_module.moved_segments

    def appended(access):
        found = look(access)
        monkeypatch.setattr(moved_module, "moved_segments", look)
        with ondisk.open(dataset.path) as other:
            other.append(data(other, [20]))
        return found

    monkeypatch.setattr(moved_module, "moved_segments", appended)
    dataset.fix()
    maintain(dataset.path)
    assert numbers(dataset) == sorted([*EVERYTHING, 20])


def test_a_place_that_is_last_now_is_not_deleted_by_age_all_at_once(tmp_path):
    path, days = tmp_path / "dataset", range(-95, -90)
    with clock(T.timestamp()):
        with ondisk.create(path, {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}) as dataset:
            for day in days:
                dataset.append([Datum(T + timedelta(days=day), {"n": day}, {})])
                dataset.archive(f"{T + timedelta(days=day):%Y/%m-%d}.jsonl")
            dataset.rename_archive("last", "2025")
        change_config(path, 'step = "daily"', 'step = "daily"\ndelete_age = 30')
        (path / ".archive/2025").rename(path / LAST)
        report = repack(path)
        assert any("that old at once" in reason for each in report for reason in each.reasons)
        with ondisk.open(path) as again:
            assert numbers(again) == [*days]
