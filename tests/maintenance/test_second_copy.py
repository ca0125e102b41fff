"""Segments that the dataset and its archive both have files of: after a kill, or since somebody copied them by hand."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kit.crashes import Killed, killed_at, killed_in
from worlds import lose_index

import ondisk
from ondisk import Datum
from ondisk.dataset.access import Access
from ondisk.errors import DiskFull, SegmentCorrupt, StateError
from ondisk.index import Index
from ondisk.maintenance import archive as archiving
from ondisk.maintenance import repack as repacking
from ondisk.maintenance.archive import planned
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.repack import repacked
from ondisk.maintenance.states import State

T = datetime(2026, 11, 20, tzinfo=UTC)
LAST = ".archive/last"


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


def copy(source, target):
    (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)


def of_file(path):
    """Return the path of the segment's file, or of its first."""
    return path / f"000000{path.suffix}" if path.is_dir() else path


def every(dataset):
    """Return at how many calls from the last one to kill next; tests/crash kills at each of those of one file."""
    return 2 if dataset.config.format == "blob" else 7


EVERYTHING = [*range(6), *range(10, 16)]


@pytest.mark.parametrize("verbs", [["fix", "repack"], ["repack", "fix", "repack"], ["maintain"]], ids=" ".join)
@pytest.mark.parametrize("where", ["back to the dataset", "to the archive"])
def test_a_segment_copied_by_hand_is_not_read_a_second_time_and_its_copy_goes(dataset, where, verbs):
    name = name_of(dataset, 0 if where == "back to the dataset" else 1)
    places = [dataset.path / LAST / name, dataset.path / name]
    if where == "to the archive":
        places.reverse()
    dataset.close()
    copy(*places)
    for verb in verbs:
        if verb == "maintain":
            assert maintain(dataset.path).exit_code == 0
            continue
        with ondisk.open(dataset.path) as again:
            getattr(again, verb)()
            assert numbers(again) == EVERYTHING
    assert places[0].exists()
    assert not places[1].exists()
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == EVERYTHING
        assert again.check(accurate=True).is_clean


def test_a_datum_that_was_stored_again_after_its_deletion_in_the_archive_survives_the_loss_of_the_index(dataset):
    """Its file begins as the archived one, where a repack removes the deleted datum."""
    dataset.delete("n: 0")
    dataset.append(data(dataset, [0]))
    assert numbers(dataset) == EVERYTHING
    dataset.close()
    lose_index(dataset.path)
    assert maintain(dataset.path).exit_code == 0
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == EVERYTHING
        assert again.check(accurate=True).is_clean


def test_data_with_the_bytes_of_archived_data_and_other_metadata_are_no_second_copies(dataset):
    (archived,) = data(dataset, [0])
    dataset.append([Datum(archived.reftime, {"n": 100}, archived.data)])
    dataset.close()
    lose_index(dataset.path)
    assert maintain(dataset.path).exit_code == 0
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == [*EVERYTHING, 100]


def test_a_copy_of_a_segment_whose_file_is_damaged_now_is_read(dataset):
    """Somebody has a backup of the archived segment, and puts it in the wrong place."""
    archived, back = dataset.path / LAST / name_of(dataset), dataset.path / name_of(dataset)
    dataset.close()
    copy(archived, back)
    file = of_file(archived)
    content = bytearray(file.read_bytes())
    content[-8:] = bytes(len(content[-8:]))
    file.write_bytes(content)
    with ondisk.open(dataset.path) as again:
        again.fix()
        again.repack()
    assert back.exists()
    with ondisk.open(dataset.path, read_only=True) as again:
        found = {datum.metadata["n"] for datum in again.query(f"reftime: >={T + timedelta(days=1):%Y-%m-%d}")}
        assert found == set(range(10, 16))
        parts = sorted(datum.location.segment for datum in again.query(with_data=False))
        assert name_of(dataset) in parts


@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
def test_data_whose_file_was_damaged_count_once_after_it_is_put_back_too(dataset, tmp_path, is_killed):
    """First the backup was put in the wrong place, where a fix has read it, perhaps after another one was killed."""
    if not dataset.config.unique:
        pytest.skip("without unique, the same data may have been stored twice")
    name, call, ended = name_of(dataset), 0, False
    dataset.close()
    backup, damaged = dataset.path / LAST / name, tmp_path / "damaged"
    shutil.copytree(dataset.path, damaged)
    copy(backup, damaged / name)
    os.truncate(of_file(damaged / LAST / name), 0)
    while not ended:
        path = tmp_path / "run"
        shutil.copytree(damaged, path)
        with ondisk.open(path) as again:
            try:
                with killed_at(call if is_killed else 1_000_000):
                    again.fix()
                ended = True
            except Killed:
                pass
        with ondisk.open(path) as again:
            again.fix()
        shutil.rmtree(path / LAST / name) if backup.is_dir() else (path / LAST / name).unlink()
        copy(backup, path / LAST / name)
        with ondisk.open(path) as again:
            assert numbers(again) == EVERYTHING
        maintain(path)
        assert maintain(path).exit_code == 0
        with ondisk.open(path) as again:
            assert numbers(again) == EVERYTHING
            assert again.check(accurate=True).is_clean
        shutil.rmtree(path)
        call += 9


@pytest.fixture
def copied(dataset):
    """The dataset with a second copy, in the archive, of the segment that was not archived; a fix has compared it."""
    name = name_of(dataset, 1)
    copy(dataset.path / name, dataset.path / LAST / name)
    dataset.fix()
    assert [each.state for each in dataset.check() if each.state] == [State.DELETED]
    return dataset


def test_data_that_were_deleted_do_not_come_back_from_a_second_copy(copied):
    copied.delete("n: >=10")
    for _ in range(2):
        maintain(copied.path)
        assert numbers(copied) == [*range(6)]


def test_the_fix_of_an_archive_alone_does_not_read_a_second_copy(copied):
    with ondisk.open(copied.path / LAST) as archive:
        archive.fix()
    copied.fix()
    assert numbers(copied) == EVERYTHING
    maintain(copied.path)
    assert numbers(copied) == EVERYTHING
    assert copied.check().is_clean


def test_a_second_copy_of_which_the_other_one_is_away_goes_to_quarantine_and_is_not_read(copied):
    aside = copied.path.with_name("aside")
    maintain(copied.path)
    copied.archive(name_of(copied, 1))
    (copied.path / LAST).rename(other := copied.path / ".archive/other")
    copied.append(data(copied, [20], 2))
    copied.archive(name_of(copied, 2))
    copy(other / name_of(copied), copied.path / LAST / name_of(copied))
    copied.fix()
    other.rename(aside)
    result = maintain(copied.path)
    assert (result.exit_code, len(result.kept)) == (9, 1)
    aside.rename(other)
    maintain(copied.path)
    assert numbers(copied) == [*EVERYTHING, 20]


def test_a_second_copy_is_read_when_the_other_one_is_gone(copied):
    gone = copied.path / name_of(copied, 1)
    (shutil.rmtree if gone.is_dir() else Path.unlink)(gone)
    result = maintain(copied.path)
    assert (result.exit_code, result.lost) == (0, 0)
    assert numbers(copied) == EVERYTHING


def test_a_segment_whose_second_copy_is_missing_is_archived_and_comes_back(copied):
    name = name_of(copied, 1)
    gone = copied.path / LAST / name
    (shutil.rmtree if gone.is_dir() else Path.unlink)(gone)
    copied.archive(name)
    assert numbers(copied) == EVERYTHING
    copied.unarchive(name)
    assert numbers(copied) == EVERYTHING
    assert copied.check(accurate=True).is_clean
    assert not [*copied.quarantine]


@pytest.mark.parametrize("plan", [False, True])
def test_a_segment_is_not_merged_with_one_whose_data_are_missing(dataset, plan):
    name = name_of(dataset)
    gone = dataset.path / LAST / name
    content = gone.rename(dataset.path / "aside")
    dataset.append(data(dataset, [7]))
    with pytest.raises(StateError, match="MISSING"):
        planned(dataset._access, [name], "archive") if plan else dataset.archive(name)
    content.rename(gone)
    assert numbers(dataset) == sorted([*EVERYTHING, 7])
    dataset.archive(name)
    assert numbers(dataset) == sorted([*EVERYTHING, 7])


@pytest.mark.parametrize("is_gone", [False, True])
def test_second_copies_are_compared_again_before_their_segment_is_archived(dataset, is_gone):
    if not dataset.config.unique:
        pytest.skip("without unique, only whole segments are second copies")
    original, name = dataset.path / name_of(dataset, 1), name_of(dataset, 5)
    copy(original, dataset.path / name)
    dataset.fix()
    dataset.append(data(dataset, [7], 5))
    if is_gone:
        (shutil.rmtree if original.is_dir() else Path.unlink)(original)
    dataset.archive(name)
    assert len([*dataset.quarantine]) == is_gone
    dataset.repack()
    assert numbers(dataset) == [*range(6), 7] + [*range(10, 16)] * (not is_gone)


def test_data_appended_since_the_copy_was_made_stay(dataset):
    name = name_of(dataset, 1)
    copy(dataset.path / name, dataset.path / LAST / name)
    dataset.append(data(dataset, [16], 1))
    dataset.fix()
    if dataset.config.format != "seg" or dataset.config.unique:  # the header counts more frames now
        assert numbers(dataset) == [*EVERYTHING, 16]
    dataset.repack()
    assert {*EVERYTHING, 16} == set(numbers(dataset))


@pytest.mark.check
def test_archive_ends_well_after_it_was_killed_at_any_call(dataset, tmp_path):
    name = name_of(dataset, 1)
    dataset.close()
    call, ended = 0, False
    while not ended:
        path = tmp_path / "run"
        shutil.copytree(dataset.path, path)
        killed = ondisk.open(path)
        try:
            with killed_at(call):
                killed.archive(name)
            ended = True
        except Killed:
            pass
        killed.close()
        with ondisk.open(path) as again:
            assert numbers(again) == EVERYTHING
            again.archive(*[name] * (path / name).exists())
            assert numbers(again) == EVERYTHING
            assert not (path / name).exists()
            again.fix()
            assert numbers(again) == EVERYTHING
            again.repack()
            assert numbers(again) == EVERYTHING
            assert again.check(accurate=True).is_clean
        shutil.rmtree(path)
        call += every(dataset)
    assert call > 10


@pytest.mark.check
def test_a_fix_after_a_killed_archive_stores_nothing_twice(dataset, tmp_path):
    name = name_of(dataset, 1)
    dataset.close()
    call, ended = 0, False
    while not ended:
        path = tmp_path / "run"
        shutil.copytree(dataset.path, path)
        killed = ondisk.open(path)
        try:
            with killed_at(call):
                killed.archive(name)
            ended = True
        except Killed:
            pass
        killed.close()
        assert maintain(path).exit_code == 0
        with ondisk.open(path) as again:
            assert numbers(again) == EVERYTHING
            assert again.check(accurate=True).is_clean
        shutil.rmtree(path)
        call += every(dataset)


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_the_segment_of_the_dataset_stays_where_the_archived_one_cannot_be_read(dataset, how):
    """A kill came between the two commits of a move; then the archive's disk failed."""
    name = name_of(dataset, 1)
    with killed_in(archiving, "_drop"):
        dataset.archive(name)
    dataset.close()
    archived = dataset.path / LAST / name
    file = of_file(archived)
    content = bytearray(file.read_bytes())
    file.unlink()
    if how == "damaged":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with ondisk.open(dataset.path) as again:
        assert numbers(again) == EVERYTHING
        assert (dataset.path / name).exists()
        with pytest.raises(SegmentCorrupt, match="differs from"):
            again.archive(name)
        assert numbers(again) == EVERYTHING


def test_what_a_killed_creation_of_the_archive_left_goes_with_the_next_opening(tmp_path):
    with ondisk.create(
        tmp_path / "dataset", {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    ) as dataset:
        dataset.append(data(dataset, range(3)))
        with killed_in(Index, "create"):
            dataset.archive(name_of(dataset))
        last = dataset.path / LAST
        (last / ".index.sqlite.new").write_bytes(b"half")
        with ondisk.open(dataset.path) as another, another._access.locked("archive"):
            pass
        assert not last.exists()
        assert dataset.archive(name_of(dataset))[0].action == "archive"
        assert isinstance(dataset._archives.last(), Access)


def many(tmp_path, format):
    """Make a dataset of four days, of which three are archived; return it and the names of its segments."""
    config = {"format": format, "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "many", config) as dataset:
        for day in range(4):
            dataset.append(data(dataset, range(10 * day, 10 * day + 3), day))
        names = [name_of(dataset, day) for day in range(4)]
        dataset.archive(*names[:3])
    return dataset.path, names


def test_segments_moved_by_hand_are_not_missing_and_not_lost(tmp_path, format):
    path, names = many(tmp_path, format)
    for name in names[:3]:
        (path / LAST / name).rename(path / name)
    with ondisk.open(path) as dataset:
        missing = [each for each in dataset.check().findings if each.moved]
        assert [(each.segment, each.moved) for each in missing] == [
            (f"{LAST}/{each}", str(path / each)) for each in names[:3]
        ]
        dataset.repack()  # leaves them to fix
        assert len([each for each in dataset.check().findings if each.moved]) == 3
        result = dataset.fix()
        assert (result.lost, len(result.findings)) == (0, 6)
        assert dataset.check().is_clean
        assert dataset.info()["lost"] == 0
        assert numbers(dataset) == [10 * day + n for day in range(4) for n in range(3)]


def test_a_segment_that_was_moved_and_damaged_is_counted_as_lost(tmp_path):
    path, names = many(tmp_path, "jsonl")
    moved = path / names[0]
    (path / LAST / names[0]).rename(moved)
    moved.write_bytes(moved.read_bytes().replace(b"111", b"xxx", 1).ljust(8192, b"\n"))
    with ondisk.open(path) as dataset:
        assert dataset.fix().lost == 3
        assert dataset.info()["lost"] == 3


def test_an_archived_segment_that_was_copied_over_a_newer_one_is_a_second_copy(dataset):
    dataset.append(data(dataset, [6, 7]))
    name = name_of(dataset)
    own = dataset.path / name
    own.rename(dataset.path.parent / "own")
    copy(dataset.path / LAST / name, own)
    assert dataset.fix().lost == 2
    dataset.repack()
    assert numbers(dataset) == [*range(6), *range(10, 16)]
    assert not (dataset.path / name).exists()


def test_a_copy_of_a_segment_in_another_archive_is_known_without_an_index(dataset):
    name = name_of(dataset)
    (dataset.path / LAST).rename(dataset.path / ".archive/2025")
    copy(dataset.path / ".archive/2025" / name, dataset.path / name)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        again.repack()
        if again.config.unique:
            assert numbers(again) == [*range(6), *range(10, 16)]
        else:  # they may have been stored twice
            assert {*numbers(again)} == {*range(6), *range(10, 16)}


@pytest.mark.parametrize("place", ["", LAST])
def test_a_segment_that_was_renamed_is_not_lost(dataset, place):
    day = 0 if place else 1
    before, now = (dataset.path / place / name_of(dataset, each) for each in (day, 9))
    before.rename(now)
    for file in now.iterdir() if now.is_dir() else ():
        file.rename(file.with_name(file.name.replace(before.name, now.name)))
    report = dataset.fix()
    assert report.lost == 0
    if not dataset.config.unique:  # else its rows have the new name now
        assert any("from a file with another name" in reason for each in report for reason in each.reasons)
    assert numbers(dataset) == [*range(6), *range(10, 16)]


@pytest.mark.parametrize("first", ["fix", "repack", "maintain"])
def test_deleted_data_in_an_archive_that_are_all_that_is_left_are_read_again(dataset, first):
    """They were deleted, and stored again in the dataset, where they were lost."""
    name = name_of(dataset)
    dataset.delete("n: <10")
    dataset.append(data(dataset, range(6)))
    path, archived = dataset.path, of_file(dataset.path / LAST / name)
    if dataset.config.format == "blob":
        shutil.rmtree(path / name)
        shutil.copytree(path / LAST / name, path / name)
        with ondisk.open(path) as again:
            again.fix()
    else:
        assert (path / name).read_bytes() == archived.read_bytes()
    kept = path.parent / "kept"
    (path / name).rename(kept)
    if first == "repack":
        dataset.repack()
        assert archived.exists()
    if first == "maintain":
        maintain(path)
    dataset.fix()
    dataset.repack()
    assert numbers(dataset) == [*range(6), *range(10, 16)]
    assert dataset.info()["lost"] == 0


def test_a_segment_is_not_rewritten_before_a_copy_of_its_bytes_was_compared(dataset):
    dataset.append(data(dataset, [6, 7], 2))
    dataset.append(data(dataset, [5], 2))  # out of time order: a repack rewrites the segment
    name = name_of(dataset, 2)
    (dataset.path / LAST / name).parent.mkdir(exist_ok=True)
    copy(dataset.path / name, dataset.path / LAST / name)
    dataset.repack()  # before any fix
    for _ in range(2):
        dataset.fix()
        dataset.repack()
    assert numbers(dataset) == sorted([*range(6), *range(10, 16), 5, 6, 7])
    assert dataset.check(accurate=True).is_clean
    assert dataset.quarantine.total().items == 0


def test_a_full_disk_at_a_copy_does_not_end_the_repack(dataset, monkeypatch):
    """What is repacked after it may free the space that it lacks."""
    name = name_of(dataset)
    copy(dataset.path / LAST / name, dataset.path / name)
    dataset.fix()
    dataset.delete("n: >=10")
    tried = []

    def full_at_first(inspection, segment, *arguments):
        tried.append(segment)
        if tried == [name]:
            raise DiskFull("full")
        return repacked(inspection, segment, *arguments)

    monkeypatch.setattr(repacking, "repacked", full_at_first)
    dataset.repack()
    assert tried[:1] == [name]
    assert not (dataset.path / name).exists()
    assert not (dataset.path / name_of(dataset, 1)).exists()
    assert numbers(dataset) == [*range(6)]


def test_a_fix_goes_on_where_the_other_copy_is_in_a_segment_whose_name_does_not_fit_its_time(tmp_path):
    config = {"format": "blob", "step": "daily", "fields": {"n": "integer"}, "unique": ["n"]}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, range(6)))
        dataset.append(data(dataset, range(10, 16), 1))
        dataset.archive(name_of(dataset))
        name, other = name_of(dataset, 1), name_of(dataset, 2)
    copy(dataset.path / name, tmp_path / "copy")
    (dataset.path / name).rename(dataset.path / other)
    with ondisk.open(dataset.path) as again:
        again.fix()
    copy(tmp_path / "copy", dataset.path / LAST / name)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert numbers(again) == EVERYTHING


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="needs one index for a dataset and its archives")
@pytest.mark.parametrize("format", ["jsonl"], indirect=True)
def test_an_older_copy_in_another_order_of_a_segment_that_was_archived_since_is_a_second_copy(tmp_path, format):
    config = {"format": format, "step": "daily", "fields": {"n": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data(dataset, [5, 3, 7, 1]))
        shutil.copy2(dataset.path / name_of(dataset), tmp_path / "older")
        dataset.repack()
        dataset.archive(name_of(dataset))
        shutil.copy2(tmp_path / "older", dataset.path / name_of(dataset))
    maintain(tmp_path / "dataset")
    with ondisk.open(tmp_path / "dataset") as dataset:
        assert numbers(dataset) == [1, 3, 5, 7]
