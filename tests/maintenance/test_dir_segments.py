"""Dir segments damaged in every way: what check says, what fix and repack make of it, what a query gives then."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest
from kit.crashes import Killed, killed_in
from worlds import access_to, clock, lose_index, renew_index

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import (
    DiskFull,
    FrameCorrupt,
    IntegrityError,
    NeedsCheck,
    NotFound,
    SegmentCorrupt,
    StateError,
    counted,
)
from ondisk.filesystem import Directory
from ondisk.maintenance.diagnosis import Circumstances, Files, OnDisk, diagnose
from ondisk.maintenance.inspect import all_known
from ondisk.maintenance.states import State
from ondisk.segments import generations
from ondisk.step import Step

T = datetime(2026, 11, 20, tzinfo=UTC)
NAME = "2026/11-20.h5"
CONFIG = {"format": "blob", "step": "daily", "extension": "h5", "unique": ["reftime", "station"],
          "fields": {"station": "integer"}}  # fmt: skip


def some(count=4, day=0):
    return [Datum(T + timedelta(days=day, hours=n), {"station": n, "x": f"x{n}"}, b"data %d" % n) for n in range(count)]


@pytest.fixture
def dataset(create):
    dataset = create(**CONFIG)
    dataset.append(some())
    return dataset


@pytest.fixture
def path(dataset):
    return dataset.path / NAME


def without_index(dataset):
    """Delete the index of a dataset, and open it again."""
    lose_index(dataset.path)
    dataset.close()
    return ondisk.open(dataset.path)


def states(report):
    return {each.segment: "|".join(each.state.names) for each in report if each.state}


def reasons(dataset, **options):
    return "; ".join(reason for each in dataset.check(**options) for reason in each.reasons)


def numbers(dataset):
    return [each.data[-1:] for each in dataset.query()]


def sequence(path):
    return int.from_bytes((path / ".sequence").read_bytes(), "little")


def newer(path):
    os.utime(path / ".sequence")


def hidden_of(path):
    """Return the hidden names of a segment."""
    return [*path.parent.glob(f".{path.name}.*")]


def older(path, seconds=1000):
    """Make what stands there older than the index."""
    for each in (path, path / ".sequence"):
        if each.exists():
            then = time.time() - seconds
            os.utime(each, (then, then))
    renew_index(path.parents[1])


def test_what_is_whole_is_ok(dataset, path):
    assert states(dataset.check(accurate=True)) == states(dataset.fix()) == states(dataset.repack()) == {}
    assert numbers(dataset) == [b"0", b"1", b"2", b"3"]


def cut(path):
    (path / "000001.h5").write_bytes(b"cut")


def grow(path):
    (path / "000001.h5").write_bytes(b"data 1 and more")


def remove_file(path):
    (path / "000001.h5").unlink()


def directory_for_a_file(path):
    (path / "000001.h5").unlink()
    (path / "000001.h5").mkdir()


def link_for_a_file(path):
    (path / "000001.h5").rename(path.parent / "elsewhere")
    (path / "000001.h5").symlink_to(path.parent / "elsewhere")


def remove_metadata(path):
    (path / ".metadata").unlink()


@pytest.mark.parametrize("damage", [cut, grow, remove_file, directory_for_a_file, link_for_a_file, remove_metadata])
def test_what_is_not_as_the_index_says_is_corrupted_and_left(dataset, path, damage):
    dataset.append([Datum(T, {"station": 99}, b"deleted")])
    dataset.delete("station:99")
    damage(path)
    for report in (dataset.check(), dataset.fix(), dataset.repack(), dataset.check()):
        assert states(report) == {NAME: "DIRTY|CORRUPTED"}
    assert (path / "000004.h5").exists()


def test_every_reason_is_reported(dataset, path):
    cut(path)
    (path / "000002.h5").unlink()
    said = reasons(dataset)
    assert "1 file is missing, the first 000002.h5" in said
    assert "1 file has another size, the first 000001.h5, which has 3 bytes instead of 6" in said


def test_a_flipped_byte_is_seen_by_an_accurate_check_and_by_every_read(dataset, path):
    whole = [*dataset.query()]
    (path / "000001.h5").write_bytes(b"dAta 1")
    found = []
    with pytest.raises(FrameCorrupt, match=r"offset 1: its checksum is") as caught:
        found.extend(dataset.query())
    assert [each.data for each in found] == [b"data 0"]
    assert caught.value.context["location"] == whole[1].location
    for read in (
        lambda: dataset.read(whole[1].location),
        lambda: [*dataset.payloads()],
        lambda: [*dataset.query("station: 1")],
    ):
        with pytest.raises(FrameCorrupt):
            read()
    assert dataset.read(whole[2].location).data == b"data 2"
    assert states(dataset.check()) == {}
    assert states(dataset.check(accurate=True)) == {NAME: "CORRUPTED"}
    assert "1 of its data are not as the index says, the first at file 1" in reasons(dataset, accurate=True)


def test_two_files_that_were_swapped_are_seen_by_an_accurate_check(dataset, path):
    (path / "000001.h5").rename(path / "x")
    (path / "000002.h5").rename(path / "000001.h5")
    (path / "x").rename(path / "000002.h5")
    assert states(dataset.check(accurate=True)) == {NAME: "CORRUPTED"}


def test_metadata_that_are_not_those_of_the_index_replace_its_rows(create, dataset, path):
    other = create("other", **CONFIG)
    other.append([Datum(each.reftime, {"station": 7, "x": "x"}, each.data) for each in some()])
    shutil.copy(other.path / NAME / ".metadata", path / ".metadata")
    assert states(dataset.check()) == states(dataset.repack()) == {NAME: "UNALIGNED"}
    with pytest.raises(SegmentCorrupt, match="is not the"):
        dataset.append(some(1))
    (done,) = (each for each in dataset.fix() if each.segment == NAME)
    assert "4 data are gone from the segment" in done.reasons
    assert {each.metadata["station"] for each in dataset.query()} == {7}


def test_a_file_that_was_touched_is_read_once(dataset, path):
    before = (path / "000001.h5").stat()
    (path / "000001.h5").touch()
    assert states(dataset.check()) == states(dataset.repack()) == states(dataset.fix()) == {}
    os.utime(path / "000001.h5", ns=(before.st_atime_ns, before.st_mtime_ns))
    (path / "000001.h5").write_bytes(b"dAta 1")
    os.utime(path / "000001.h5", ns=(before.st_atime_ns, before.st_mtime_ns))
    (done,) = dataset.fix()
    assert done.lost == 1
    assert states(dataset.check()) == states(dataset.repack()) == {NAME: "DIRTY|CORRUPTED"}
    assert numbers(dataset) == [b"0", b"2", b"3"]
    assert (path / "000001.h5").exists()


def test_a_damaged_file_goes_with_its_datum_when_that_is_deleted(dataset, path):
    (path / "000001.h5").write_bytes(b"dAta 1")
    dataset.check(max_duration=60)
    dataset.delete("station:1")
    dataset.repack()
    assert (path / "000001.h5").exists()
    dataset.fix()
    assert states(dataset.check()) == {NAME: "DIRTY"}
    dataset.repack()
    assert sorted(each.name for each in path.glob("*.h5")) == ["000000.h5", "000001.h5", "000002.h5"]
    assert states(dataset.check(accurate=True)) == {}
    assert numbers(dataset) == [b"0", b"2", b"3"]


def test_damaged_metadata_are_seen(dataset, path):
    text = bytearray((path / ".metadata").read_bytes())
    text[30] ^= 1
    (path / ".metadata").write_bytes(text)
    assert states(dataset.check()) == {NAME: "UNALIGNED"}
    assert states(dataset.fix()) == {NAME: "UNALIGNED"}
    assert states(dataset.check()) == {NAME: "DIRTY|CORRUPTED"}


def test_an_older_state_is_seen_also_where_inode_and_time_are_those_of_the_newer(dataset, path, tmp_path):
    """A freed inode is used again, and clocks are coarse: neither may decide alone."""
    shutil.copytree(path, tmp_path / "backup")
    dataset.delete("station:1")
    dataset.repack()
    recorded = (path / ".sequence").stat()
    for each in (tmp_path / "backup").iterdir():
        (path / each.name).write_bytes(each.read_bytes())
    os.utime(path / ".sequence", ns=(recorded.st_atime_ns, recorded.st_mtime_ns))
    assert (path / ".sequence").stat().st_ino == recorded.st_ino
    assert states(dataset.check()) == states(dataset.repack()) == {NAME: "UNALIGNED"}
    with pytest.raises(SegmentCorrupt, match="is not the file that the index describes"):
        dataset.append(some(1))
    assert (path / "000001.h5").exists()
    dataset.fix()
    assert numbers(dataset) == [b"0", b"1", b"2", b"3"]
    assert states(dataset.check(accurate=True)) == states(dataset.repack()) == {}


def test_files_of_deleted_data_are_removed_by_a_repack_that_renumbers_the_others(dataset, path):
    size, inode = (path / ".metadata").stat().st_size, (path / "000003.h5").stat().st_ino
    dataset.delete("station:1 or 2")
    for found in (dataset.check(), dataset.fix(), dataset.check(accurate=True)):
        assert states(found) == {NAME: "DIRTY"}
        assert found.segments[0].reasons == ("2 files are of deleted data, not yet repacked, the first 000001.h5",)
    assert dataset.check().freed == 12
    report = dataset.repack()
    assert (states(report), report.freed, [each.action for each in report if each.state]) == (
        {NAME: "DIRTY"}, 12, ["repack"])  # fmt: skip
    assert sorted(each.name for each in path.glob("*.h5")) == ["000000.h5", "000001.h5"]
    assert (path / "000001.h5").stat().st_ino == inode, "it is linked, not copied"
    assert not hidden_of(path)
    assert (path / ".metadata").stat().st_size < size
    assert states(dataset.check(accurate=True)) == states(dataset.repack()) == {}
    assert [dict(each.metadata) for each in dataset.query()] == [{"station": 0, "x": "x0"}, {"station": 3, "x": "x3"}]
    dataset.append(some(5))
    assert (path / "000004.h5").exists()
    assert numbers(dataset) == [b"0", b"1", b"2", b"3", b"4"]
    with without_index(dataset) as again:
        again.fix()
        assert numbers(again) == [b"0", b"1", b"2", b"3", b"4"]


def test_unused_numbers_and_data_out_of_time_order_are_dirty(dataset, path):
    dataset.append([Datum(T, {"station": 9}, b"early")])
    assert reasons(dataset) == "1 datum is out of time order, the first 000004.h5"
    dataset.repack()
    assert numbers(dataset) == [b"0", b"y", b"1", b"2", b"3"]
    assert (path / "000001.h5").read_bytes() == b"early"
    assert states(dataset.check(accurate=True)) == {}
    dataset.delete("station:0 or 3")
    before = dataset.check().segments[0].reasons
    assert before == ("2 files are of deleted data, not yet repacked, the first 000000.h5",)
    for each in (path / "000000.h5", path / "000004.h5"):
        each.unlink()
    assert reasons(dataset) == "2 numbers before, between or after its data have no file"
    dataset.repack()
    assert (sequence(path), states(dataset.check(accurate=True))) == (2, {})
    assert numbers(dataset) == [b"y", b"1", b"2"]


def test_a_directory_from_before_a_repack_is_not_read_by_numbers_of_now(dataset, path, tmp_path):
    """All its files agree with its entries, and each number has another datum."""
    shutil.copytree(path, tmp_path / "backup")
    dataset.delete("station:1")
    dataset.repack()
    assert (path / "000001.h5").read_bytes() == b"data 2"
    shutil.rmtree(path)
    (tmp_path / "backup").rename(path)
    with ondisk.open(dataset.path) as again, pytest.raises(SegmentCorrupt, match="another program has changed"):
        [*again.query("station: 2")]
    dataset.fix()
    assert numbers(dataset) == [b"0", b"1", b"2", b"3"]


def test_a_repack_does_not_take_over_a_file_that_somebody_touched(dataset, path):
    dataset.delete("station:1")
    (path / "000002.h5").write_bytes(b"dAta 2")
    dataset.repack()
    assert (path / "000001.h5").read_bytes() == b"dAta 2"
    (done,) = dataset.fix()
    assert done.lost == 1
    assert numbers(dataset) == [b"0", b"3"]


def test_a_changed_file_of_a_deleted_datum_goes_to_quarantine(dataset, path):
    dataset.delete("station:1 or 2")
    (path / "000001.h5").write_bytes(b"theirs")
    dataset.repack()
    (item,) = dataset.quarantine
    assert (dataset.path / item.name).read_bytes() == b"theirs"
    assert numbers(dataset) == [b"0", b"3"]


def test_files_stay_while_a_query_may_still_read_them(dataset, path):
    reader = dataset.query()
    first = next(reader)
    dataset.delete("station:1 or 2")
    report = dataset.repack()
    assert "an older query may still read its old files" in report.segments[0].reasons[-1]
    assert (report.segments[0].action, report.freed) == ("repack", 0)
    assert len([*hidden_of(path)]) == 1
    assert [first, *reader] == some()
    dataset.append([Datum(T + timedelta(days=1), {}, b"later")])
    assert not hidden_of(path), "nobody reads it any more"
    assert states(dataset.check()) == {}


def test_a_segment_without_data_is_removed_when_nobody_reads_it(dataset, path):
    reader = dataset.query()
    next(reader)
    dataset.delete("")
    assert states(dataset.check()) == {NAME: "DELETED"}
    assert dataset.repack().freed == 0, "the query may still read its files"
    assert hidden_of(path)
    assert [each.data for each in reader] == [each.data for each in some()[1:]]
    dataset.append([Datum(T + timedelta(days=1), {}, b"later")])
    assert not hidden_of(path), "nobody reads it any more"
    assert not path.exists()
    assert states(dataset.check()) == {}
    dataset.append(some())
    assert numbers(dataset) == [b"0", b"1", b"2", b"3", b"r"]


@pytest.mark.parametrize("left", [[".sequence", ".metadata"], [".sequence"], []])
def test_an_unknown_folder_without_files_stays_until_data_come(dataset, path, left):
    dataset.delete("")
    dataset.repack()
    path.mkdir()
    for name in left:
        (path / name).write_bytes(b"")
    older(path)
    for verb in (dataset.check, dataset.fix, dataset.repack):
        assert states(verb()) == {}
    assert path.exists()
    dataset.append(some())
    assert numbers(dataset) == [b"0", b"1", b"2", b"3"]


def test_an_unknown_directory_with_a_file_that_cannot_be_read_is_left(dataset, path):
    dataset.delete("")
    dataset.repack()
    path.mkdir()
    for name in ("000002.h5", ".sequence", ".metadata"):
        (path / name).write_bytes(b"")
    assert states(dataset.check()) == {NAME: "UNALIGNED"}
    assert dataset.fix().lost == 1
    for _ in range(2):
        assert states(dataset.repack()) == states(dataset.check()) == states(dataset.fix()) == {NAME: "CORRUPTED"}
    assert (path / "000002.h5").exists()


@pytest.mark.parametrize("deleted", ["station:1 or 2", "station:3", "station:0"])
def test_a_copy_of_a_dataset_is_as_good_as_the_dataset_after_a_repack(dataset, deleted, tmp_path):
    dataset.delete(deleted)
    dataset.repack()
    expected = [*numbers(dataset), b"9"]
    dataset.close()
    shutil.copytree(dataset.path, tmp_path / "copy", copy_function=shutil.copyfile)
    with ondisk.open(tmp_path / "copy") as copy:
        assert states(copy.check()) == {}
        copy.append([Datum(T + timedelta(hours=9), {}, b"new 9")])
        assert states(copy.check(accurate=True)) == states(copy.fix()) == {}
        assert numbers(copy) == expected


def test_the_index_is_built_again_from_the_directory_alone(dataset, path):
    expected = [*dataset.query()]
    with without_index(dataset) as again:
        assert states(again.check()) == {NAME: "UNALIGNED"}
        with pytest.raises(NeedsCheck):
            again.repack()
        assert states(again.fix()) == {NAME: "UNALIGNED"}
        assert [*again.query()] == expected
        assert not (again.path / SENTINEL).exists()
        assert states(again.check(accurate=True)) == states(again.fix()) == states(again.repack()) == {}


def test_an_index_that_was_lost_and_appended_to_gets_all_data(dataset, path):
    with without_index(dataset) as again:
        again.append([*some(2, day=0), *some(1, day=1)])
        again.append([Datum(T + timedelta(hours=9), {}, b"new 9")])
        assert states(again.check())[NAME] == "UNALIGNED"
        again.fix()
        assert sorted(numbers(again)) == [b"0", b"0", b"1", b"2", b"3", b"9"]
        assert states(again.check()) == {NAME: "DIRTY"}  # the same datum twice: the later file has it
        again.repack()
        assert states(again.check(accurate=True)) == {}
        assert sorted(numbers(again)) == [b"0", b"0", b"1", b"2", b"3", b"9"]


@pytest.mark.parametrize("damage", [cut, lambda path: (path / "000001.h5").write_bytes(b"dAta 1")])
def test_what_cannot_be_read_back_is_named_and_left(dataset, path, damage):
    damage(path)
    with without_index(dataset) as again:
        report = again.fix()
        assert "1 file is damaged, at file 1: it" in report.segments[0].reasons[-1]
        assert numbers(again) == [b"0", b"2", b"3"]
        again.repack()
        assert states(again.check()) == {NAME: "DIRTY|CORRUPTED"}
        assert (path / "000001.h5").exists()


@pytest.mark.parametrize("lost", [[1], [0, 3], [0, 1, 2, 3]], ids=str)
def test_files_that_are_lost_with_the_index_are_reported_and_come_back_from_a_backup(dataset, path, lost):
    expected = numbers(dataset)
    for number in lost:
        (path / f"{number:06}.h5").rename(path.parent / f"{number}")
    with without_index(dataset) as again:
        report = again.fix()
        assert report.lost == len(lost)
        assert (
            f"{counted(len(lost), 'file', 'is')} damaged, at file {lost[0]}: its file is missing"
            in report.segments[0].reasons[-1]
        )
        assert numbers(again) == [each for each in expected if int(each) not in lost]
        for _ in range(2):
            again.repack()
            assert {states(again.check())[NAME], states(again.fix())[NAME]} <= {"CORRUPTED", "DIRTY|CORRUPTED"}
        for number in lost:
            (path.parent / f"{number}").rename(path / f"{number:06}.h5")
        again.fix()
        assert numbers(again) == expected
        assert states(again.check(accurate=True)) == {}


def test_files_that_a_killed_repack_has_removed_are_not_missed_when_the_index_is_lost(dataset, monkeypatch):
    dataset.delete("station:1 or 2")
    unlink, removed = Directory.unlink, []

    def killed(folder, name, *_):
        if len(removed) == 2:
            raise Killed
        unlink(folder, name)
        removed.append(name)

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "unlink", killed)
        with pytest.raises(Killed):
            dataset.repack()
    assert removed == ["000000.h5", "000001.h5"]
    with without_index(dataset) as again:
        report = again.fix()
        assert report.lost == 0
        again.repack()
        assert states(again.check(accurate=True)) == {}
        assert numbers(again) == [b"0", b"3"]


def test_nothing_is_deleted_where_all_metadata_are_lost_with_the_index(dataset, path):
    remove_metadata(path)
    with without_index(dataset) as again:
        again.fix()
        again.repack()
        assert numbers(again) == []
        assert states(again.check()) == {NAME: "CORRUPTED"}
        assert len([*path.glob("*.h5")]) == 4


@pytest.mark.parametrize("content_of_last", [b"whole", b""])
def test_files_above_the_last_number_given_out_are_passed_over_and_their_numbers_never_used(
    dataset, path, content_of_last
):
    (path / "000009.h5").write_bytes(content_of_last)
    assert states(dataset.check()) == {NAME: "DIRTY|UNALIGNED"}
    assert ".sequence contains 3, but the highest file is 9" in reasons(dataset)
    dataset.fix()
    assert sequence(path) == 9
    assert states(dataset.check()) == {NAME: "DIRTY"}
    dataset.repack()
    assert not (path / "000009.h5").exists()
    assert len([*dataset.quarantine]) == 1, "nobody knows whose it is"
    dataset.append(some(5))
    assert (path / "000004.h5").exists()
    assert states(dataset.check()) == {}


@pytest.mark.parametrize("said", [None, b"", (1).to_bytes(8, "little"), b"\xff" * 8])
def test_the_last_number_is_found_again_where_it_is_lost_or_low(dataset, path, said):
    (path / ".sequence").unlink()
    if said is not None:
        (path / ".sequence").write_bytes(said)
    for _ in range(2):
        assert states(dataset.check()) == {NAME: "UNALIGNED"}
    assert states(dataset.repack()) == {NAME: "UNALIGNED"}
    dataset.fix()
    assert sequence(path) == 3
    assert states(dataset.check()) == {}
    dataset.append(some(5))
    assert numbers(dataset) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_first_append_that_was_killed_is_read_back_as_far_as_it_came(create):
    dataset = create(**CONFIG)
    path = dataset.path / NAME
    path.mkdir(parents=True)
    (path / ".sequence").write_bytes(b"")
    (path / "000000.h5").write_bytes(b"cut")
    assert states(dataset.check()) == {NAME: "UNALIGNED"}
    dataset.fix()
    assert states(dataset.check()) == {NAME: "DELETED"}
    dataset.repack()
    assert not path.exists()


@pytest.mark.parametrize("verb", ["fix", "repack"])
def test_a_folder_of_directories_that_is_away_is_not_forgotten(dataset, path, tmp_path, verb):
    """As where a disk is not mounted: the index would forget all, and a repack delete it when it is back."""
    path.parent.rename(tmp_path / "away")
    (done,) = getattr(dataset, verb)()
    assert "is a disk not mounted?" in done.reasons[-1]
    assert (done.action, done.lost) == (None, 0)
    (tmp_path / "away").rename(path.parent)
    assert states(dataset.check(accurate=True)) == {}
    assert dataset.summary().count == 4
    shutil.rmtree(path)
    (done,) = getattr(dataset, verb)()
    assert (done.action, done.lost) == ("remove from the index", 4)


def test_a_missing_directory_is_removed_from_the_index(dataset, path):
    shutil.rmtree(path)
    assert states(dataset.check()) == {NAME: "MISSING"}
    dataset.fix()
    assert (numbers(dataset), states(dataset.check())) == ([], {})


@pytest.mark.parametrize("stray", [b"stray", None])
def test_what_is_no_directory_is_left_and_its_data_go_from_the_index(dataset, path, stray):
    shutil.move(path, dataset.path.with_name("away"))
    if stray is None:
        path.symlink_to(dataset.path.with_name("away"))
    else:
        path.write_bytes(stray)
    assert states(dataset.check()) == {NAME: "MISSING"}
    assert dataset.fix().lost == 4
    assert numbers(dataset) == []
    assert states(dataset.check()) == states(dataset.fix()) == states(dataset.repack()) == {NAME: "CORRUPTED"}
    assert path.is_symlink() or path.read_bytes() == stray
    assert len([*dataset.path.with_name("away").iterdir()]) == 6


def test_an_empty_file_in_its_place_stays(dataset):
    path = dataset.path / "2026/11-23.h5"
    path.write_bytes(b"")
    dataset.repack()
    assert path.exists()
    assert dataset.check().is_clean


def test_unknown_directories_are_judged_as_unknown_files(dataset, path):
    shutil.copytree(path, dataset.path / "2026/11-21.h5")
    newer(dataset.path / "2026/11-21.h5")
    shutil.copytree(path, dataset.path / "2026/2026-1.h5")
    older(dataset.path / "2026/11-21.h5")
    assert states(dataset.check()) == {"2026/11-21.h5": "UNALIGNED", "2026/2026-1.h5": "CORRUPTED"}
    dataset.repack()
    assert (dataset.path / "2026/11-21.h5").exists()
    assert (dataset.path / "2026/2026-1.h5").exists()


def test_data_that_another_segment_holds_are_left_out_by_a_rescan(dataset, path):
    shutil.copytree(path, dataset.path / "2026/11-21.h5")
    newer(dataset.path / "2026/11-21.h5")
    report = dataset.fix()
    assert "4 data were skipped, because other segments have them: the datum at" in report.segments[0].reasons[-1]
    assert numbers(dataset) == [b"0", b"1", b"2", b"3"]
    dataset.repack()
    assert states(dataset.check()) == {}


def test_other_names_in_a_directory_are_named_and_left(dataset, path):
    for name in ("notes.txt", "1.h5", "000004.nc"):
        (path / name).write_bytes(b"mine")
    assert states(dataset.check()) == {}
    dataset.delete("")
    assert "3 names do not belong to the segment: 000004.nc, 1.h5, notes.txt" in reasons(dataset)
    dataset.repack()
    (item,) = dataset.quarantine
    assert sorted(each.name for each in (dataset.path / item.name).iterdir()) == ["000004.nc", "1.h5", "notes.txt"]
    assert states(dataset.check()) == states(dataset.repack()) == {}


def test_data_of_other_times_and_names_of_other_steps_are_corrupted(dataset, path):
    files = Files(highest=3, sequence=3)
    files.repeated.add("000001.h5")
    found = OnDisk(True, 16, is_dir=True, files=files)
    with access_to(dataset.path) as access, access.current().index.snapshot() as snapshot:
        (known,) = all_known(access, snapshot)
    known.rows.end += 10**12
    diagnosis = diagnose(NAME, known, found, Circumstances(Step.DAILY, needs_check=False), 0)
    assert diagnosis.state is State.CORRUPTED
    assert diagnosis.reasons == ("it has data of other times than its name says", *files.corrupted)


@pytest.mark.parametrize("dirty", [False, True])
def test_ages_are_those_of_the_name(create, dirty):
    dataset = create(**CONFIG)
    dataset.append([*some(), *some(day=-30)])
    if dirty:
        dataset.delete("station:1")
    dataset.close()
    text = (dataset.path / "dataset.toml").read_text()
    (dataset.path / "dataset.toml").write_text("delete_age = 5\n" + text)
    with ondisk.open(dataset.path) as again:
        found = states(again.check())
        assert found["2026/10-21.h5"] == "DIRTY|DELETE_AGE" if dirty else "DELETE_AGE"
        again.repack()
        assert not (again.path / "2026/10-21.h5").exists()
        assert states(again.check()).keys() <= {NAME}


def test_deleting_and_repacking_work_on_a_full_disk(dataset, path, monkeypatch):
    dataset.delete("")

    def full(*_):
        raise DiskFull("full")

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "create_file", full)
        assert dataset.repack().freed == 24
    assert not path.exists()
    assert states(dataset.check(accurate=True)) == {}
    with without_index(dataset) as again:
        again.fix()
        assert numbers(again) == []


def test_a_read_only_check_writes_nothing(dataset, path):
    before = {each: each.stat().st_mtime_ns for each in dataset.path.rglob("*")}
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as again:
        again.check(accurate=True)
    assert {each: each.stat().st_mtime_ns for each in dataset.path.rglob("*.h5")}.items() <= before.items()


def test_segments_move_to_the_archive_and_back(dataset, path):
    expected = [*dataset.query()]
    dataset.archive(NAME)
    assert not path.exists()
    archived = dataset.path / ".archive/last" / NAME
    assert (archived / "000003.h5").read_bytes() == b"data 3"
    assert [*dataset.query()] == expected
    dataset.append([Datum(T + timedelta(hours=20), {"station": 5}, b"late 5")])
    dataset.archive(NAME)
    assert [*dataset.query()] == [*expected, Datum(T + timedelta(hours=20), {"station": 5}, b"late 5")]
    assert len([*archived.glob("*.h5")]) == 5
    assert states(dataset.check(accurate=True)) == {}
    dataset.unarchive(NAME)
    assert not archived.exists()
    assert len([*dataset.query()]) == len([*path.glob("*.h5")]) == 5
    assert states(dataset.check(accurate=True)) == {}


def test_a_file_that_a_killed_move_left_in_the_other_folder_is_no_sign_of_removed_rows(dataset, path):
    dataset.archive(NAME)
    dataset.append([Datum(T + timedelta(hours=20), {"station": 5}, b"late 5")])
    (dataset.path / ".archive/last" / NAME / "000004.h5").write_bytes(b"late 5")
    dataset.archive(NAME)
    assert states(dataset.check()) == {f".archive/last/{NAME}": "DIRTY"}
    assert dataset.fix().lost == 0
    dataset.repack()
    assert states(dataset.check(accurate=True)) == {}
    assert len([*dataset.query()]) == 5


@pytest.mark.check
def test_a_field_declared_later_is_read_back_from_what_is_beside_the_files(dataset):
    dataset.append(some(600, day=1))
    dataset.close()
    with (dataset.path / "dataset.toml").open("a") as file:
        file.write('x = "text"\n')
    ondisk.migrate(dataset.path)
    with ondisk.open(dataset.path) as again:
        assert [each.data for each in again.query("x: x3")] == [b"data 3"] * 2
        assert again.summary().count == 604
        assert states(again.check(accurate=True)) == {}


def test_a_low_last_number_keeps_only_its_own_segment_from_the_archive(create):
    dataset = create(**CONFIG, archive_age=10)
    dataset.append([*some(), *some(day=1)])
    (dataset.path / NAME / ".sequence").write_bytes(b"")
    with clock((T + timedelta(days=100)).timestamp()):
        done = dataset.repack()
    assert [each.action for each in done] == [None, "archive"]
    assert len(numbers(dataset)) == 8


def out_of_order(path):
    with ondisk.open(path) as dataset:
        dataset.append([Datum(T, {"station": 9}, b"early 9")])


def renamed(path):
    (path / NAME).rename(path / OTHER)
    older(path / OTHER)


def emptied(path):
    for file in (path / NAME).glob("*.h5"):
        file.write_bytes(b"")


def without_files(path):
    for file in (path / NAME).glob("*.h5"):
        file.unlink()


def delete(path, match):
    with ondisk.open(path) as dataset:
        dataset.delete(match)


def unknown(path):
    shutil.copytree(path / NAME, path / OTHER)
    entries = Datum(T + timedelta(days=1), {"station": 8, "x": "x8"}, b"other 8")
    with ondisk.create(path.with_name("other"), CONFIG) as other:
        other.append([entries])
    shutil.rmtree(path / OTHER)
    shutil.move(path.with_name("other") / OTHER, path / OTHER)
    shutil.rmtree(path.with_name("other"))
    older(path / OTHER)


def sentinel(*before):
    def damage(path):
        for each in before:
            each(path)
        (path / SENTINEL).touch()

    return damage


def killed_behind_commit(verb, *before):
    def damage(path):
        for each in before:
            with ondisk.open(path) as dataset:
                getattr(dataset, each)(NAME)
        with ondisk.open(path) as dataset, killed_in(generations, "leave"):
            getattr(dataset, verb)(NAME)

    return damage


def archived_beside_a_reader(path):
    """The commits were made, the files not yet removed."""
    with ondisk.open(path) as dataset, contextlib.closing(dataset.query()) as query:
        next(query)
        dataset.archive(NAME)


OTHER = "2026/11-21.h5"
OK = "0123"
STAGES = {
    "out of order": (
        out_of_order, ({NAME: "DIRTY"}, "09123"), ({NAME: "DIRTY"}, "09123"), ({}, "09123"), ({}, "09123")),
    "renamed": (
        renamed, ({NAME: "MISSING", OTHER: "UNALIGNED"}, "!"), ({OTHER: "CORRUPTED"}, OK), ({OTHER: "CORRUPTED"}, OK),
        ({OTHER: "UNALIGNED"}, "")),
    "emptied": (emptied, *[({NAME: "CORRUPTED"}, "!")] * 4),
    "without files": (without_files, *[({NAME: "CORRUPTED"}, "!")] * 4),
    "newer than the index": (lambda path: newer(path / NAME), *[({}, OK)] * 4),
    "sentinel on clean": (sentinel(), ({}, OK), ({}, OK), ({}, OK), None),
    "sentinel on dirty": (
        sentinel(lambda path: delete(path, "station:1")), ({NAME: "UNALIGNED"}, "023"), ({}, OK), ({}, OK), None),
    "sentinel on all deleted": (
        sentinel(lambda path: delete(path, "")), ({NAME: "UNALIGNED"}, ""), ({}, OK), ({}, OK), None),
    "sentinel on unknown": (
        sentinel(unknown), ({OTHER: "UNALIGNED"}, OK), ({}, "01238"), ({}, "01238"), None),
    # In a copy of the dataset, the old folder has another inode: somebody may have put a copy there.
    "archive killed after its commit": (
        killed_behind_commit("archive"), ({}, OK), ({}, OK), ({}, OK), ({NAME: "UNALIGNED"}, OK)),
    "unarchive killed after its commit": (
        killed_behind_commit("unarchive", "archive"), ({}, OK), ({}, OK), ({}, OK),
        ({f".archive/last/{NAME}": "UNALIGNED"}, OK)),
    "archived beside a reader": (archived_beside_a_reader, *[({}, OK)] * 4),
}  # fmt: skip


def look(path, expected):
    with ondisk.open(path, read_only=True) as dataset:
        try:
            found = "".join(each.data[-1:].decode() for each in dataset.query())
        except (NotFound, IntegrityError):
            found = "!"
        assert (states(dataset.check()), found) == expected


@pytest.mark.parametrize("name", STAGES)
def test_a_damaged_directory_is_found_fixed_and_repacked_as_the_table_says(dataset, name, tmp_path):
    damage, found, fixed, repacked, unfixed = STAGES[name]
    dataset.close()
    damage(dataset.path)
    look(dataset.path, found)
    other = shutil.copytree(dataset.path, tmp_path / "unfixed", symlinks=True)
    renew_index(other)
    for verb, expected in (("fix", fixed), ("fix", fixed), ("repack", repacked), ("repack", repacked)):
        with ondisk.open(dataset.path) as again:
            getattr(again, verb)()
        look(dataset.path, expected)
    with ondisk.open(other) as again, pytest.raises(NeedsCheck) if unfixed is None else contextlib.nullcontext():
        again.repack()
    if unfixed is not None:
        look(other, unfixed)


@pytest.mark.check
def test_what_was_never_of_a_segment_goes_to_quarantine_when_that_is_deleted(create):
    dataset = create(**CONFIG, unknown_segments="delete")
    dataset.append(some())
    unknown = dataset.path / "2026/11-21.h5"
    shutil.copytree(dataset.path / NAME, unknown)
    (unknown / "000009.h5").write_bytes(b"mine")
    (dataset.path / "2026/.11-20.h5.99").write_bytes(b"mine, too")
    dataset.close()
    with ondisk.open(dataset.path) as dataset:
        dataset.repack()
        assert not unknown.exists()
        kept = [each.read_bytes() for each in (dataset.path / "2026/.quarantine").glob("*") if each.suffix != ".json"]
        assert sorted(kept) == [b"mine", b"mine, too"]
        assert dataset.summary().count == 4


@pytest.mark.check
def test_a_second_copy_that_is_a_folder_cannot_be_moved(dataset, path):
    copy = ".archive/bar/" + NAME
    shutil.copytree(path, dataset.path / copy)
    dataset.fix()
    dataset.archive(NAME)
    with pytest.raises(StateError, match="cannot be moved: all its data are deleted or elsewhere"):
        dataset.unarchive(copy)
    assert dataset.summary().count == 4


def test_a_move_keeps_files_that_others_have_put_into_the_folder(dataset, path):
    (path / "000777.h5").write_bytes(b"of somebody")
    dataset.fix()
    dataset.archive(NAME)
    (item,) = dataset.quarantine
    assert (dataset.path / item.name).read_bytes() == b"of somebody"
    assert numbers(dataset) == [b"0", b"1", b"2", b"3"]


def test_a_merge_keeps_files_that_others_have_put_into_the_other_folder(dataset, tmp_path):
    shutil.copytree(dataset.path, tmp_path / "newer")
    with ondisk.open(tmp_path / "newer") as newer:
        newer.append(some(5)[4:])
    dataset.archive(NAME)
    shutil.copytree(tmp_path / "newer" / NAME, dataset.path / ".archive/last" / NAME, dirs_exist_ok=True)
    dataset.fix()
    dataset.append(some(6)[5:])
    dataset.archive(NAME)
    dataset.repack()
    assert numbers(dataset) == [b"0", b"1", b"2", b"3", b"5"]
    assert [(dataset.path / each.name).read_bytes() for each in dataset.quarantine] == [b"data 4"]


def test_a_fix_reads_files_that_were_changed_before_their_segment_was_moved(dataset, path):
    dataset.append(some(1, day=1))
    (path / "000001.h5").write_bytes(b"atad 1")
    dataset.archive(NAME)
    assert dataset.fix().lost == 1
