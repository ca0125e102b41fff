"""The archive: a place of the one index. What is moved there is found, replaced, deleted and mended as before."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain

import pytest
from kit import STEPS_OF_TIME
from kit.crashes import Killed, killed_at, killed_in
from worlds import access_to, change_config, clock, connections, content, datum, lose_index, renew_index, rot, same, sql

import ondisk
from ondisk.dataset import place_checks
from ondisk.dataset.query import Query
from ondisk.errors import (
    AlreadyExists,
    DataOffline,
    DurabilityLost,
    IntegrityError,
    InvalidInput,
    NeedsCheck,
    NotFound,
    OndiskError,
    SegmentMissing,
    StateError,
    StorageError,
)
from ondisk.index import INDEX, segment_rows
from ondisk.index.connections import Connections
from ondisk.index.snapshot import Snapshot
from ondisk.maintenance import fix as fix_module
from ondisk.maintenance import repack as repack_module
from ondisk.maintenance.archive import planned
from ondisk.maintenance.maintain import maintain
from ondisk.maintenance.states import State
from ondisk.segments import generations, places
from ondisk.step import ALWAYS

T = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)
BASE = {"step": "daily", "unique": ["reftime", "station"], "fields": {"station": "integer", "version": "integer"}}
KINDS = {"seg lz4": {"format": "seg"}, "jsonl": {"format": "jsonl"}, "dir": {"format": "blob"}}
LAST = ".archive/last"


@pytest.fixture(params=KINDS)
def kind(request):
    return {**BASE, **KINDS[request.param]}


@pytest.fixture
def make(tmp_path, kind):
    """Makes the dataset, with three days of data."""
    made = []

    def make(data=None, **config):
        dataset = ondisk.create(tmp_path / "dataset", {**kind, **config})
        made.append(dataset)
        dataset.append(some(dataset, range(0, 72, 3)) if data is None else [one(dataset, *each) for each in data])
        return dataset

    yield make
    for dataset in made:
        dataset.close()


def one(dataset, hour, station, value=0, **metadata):
    return datum(hour, station, value, format=dataset.config.format, **metadata)


def some(dataset, hours, stations=range(2), value=0):
    return [one(dataset, hour, station, value) for hour in hours for station in stations]


def values(dataset):
    """Return the values of all data, sorted."""
    found = [each.data for each in dataset.query()]
    return sorted(int(each.split()[-1]) if isinstance(each, bytes) else each["value"] for each in found)


def segment(dataset, day=0):
    return f"2026/11-{20 + day}.{dataset.config.format}"


def spoil(path, statement):
    """Change the index as damage would."""
    with closing(sqlite3.connect(path / INDEX)) as connection, connection:
        connection.execute(statement)


def check_sound(dataset):
    if dataset.config.format == "blob":
        dataset.repack()  # a merge adds files at the end, out of time order
    assert dataset.check(accurate=True).is_clean
    assert not [each for each in dataset.path.rglob(".*") if ".11-" in each.name]  # no hidden names


# Moved


def test_what_is_archived_is_found_counted_and_read_as_before_in_one_order(make):
    dataset = make()
    before, counted, joined = content(dataset), dataset.summary(), dataset.summary("station: 1")
    orders = {sort: content(dataset, sort=sort) for sort in ("-reftime", "station,-reftime", "day:-station")}
    dataset.archive(segment(dataset, 1))
    assert content(dataset) == before
    assert content(dataset, limit=20) == before[:20]
    assert {sort: content(dataset, sort=sort) for sort in orders} == orders
    assert (dataset.summary(), dataset.summary("station: 1")) == (counted, joined)
    assert dataset.info()["archives"] == ["last"]
    first = next(dataset.query("reftime: =2026-11-21"))
    assert first.location.segment == f"{LAST}/{segment(dataset, 1)}"
    assert dataset.read(first.location) == first
    assert content(dataset, reftime=first.reftime, station=0) == [(first.reftime, dict(first.metadata), first.data)]
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert content(reader) == before
    check_sound(dataset)


def test_a_datum_keeps_its_number_and_no_change_is_noted(make):
    dataset = make()

    def numbers():
        found = "SELECT seq, reftime, f_station FROM datum ORDER BY seq"
        return sql(dataset.path, found), *sql(dataset.path, "SELECT seq FROM dataset, (SELECT count(*) FROM deletion)")

    before, state = numbers(), dataset.state()
    dataset.archive(segment(dataset))
    assert (numbers(), dataset.state()) == (before, state)
    dataset.unarchive(segment(dataset))
    assert (numbers(), dataset.state()) == (before, state)


def test_what_is_archived_already_is_not_archived_again(make):
    dataset = make()
    dataset.archive(segment(dataset))
    before = values(dataset)
    for act in (dataset.archive, lambda name: planned(dataset._access, [name], "archive")):
        with pytest.raises(StateError, match="is archived already") as caught:
            act(f"{LAST}/{segment(dataset)}")
        assert "unarchive" in caught.value.hint
    assert values(dataset) == before
    check_sound(dataset)


def test_a_name_that_is_given_twice_is_archived_once(make):
    dataset = make()
    names = [segment(dataset), segment(dataset) + "/"]
    would_do = [each.segment for each in planned(dataset._access, names, "archive")]
    assert would_do == [each.segment for each in dataset.archive(*names)] == names[:1]


def test_unarchive_brings_a_segment_back(make):
    dataset = make()
    before = content(dataset)
    dataset.archive(segment(dataset), segment(dataset, 1))
    (done,) = dataset.unarchive(segment(dataset))
    assert done.action == "unarchive"
    assert (dataset.path / segment(dataset)).exists()
    assert not (dataset.path / LAST / segment(dataset)).exists()
    dataset.unarchive(f"{LAST}/{segment(dataset, 1)}")
    assert content(dataset) == before
    check_sound(dataset)
    with pytest.raises(SegmentMissing, match="has no segment"):
        dataset.unarchive(segment(dataset))


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
def test_a_move_goes_on_beside_a_query_which_returns_all_data(make, verb):
    dataset = make()
    before = content(dataset)
    if verb == "unarchive":
        dataset.archive(segment(dataset))
    with closing(dataset.query()) as query:
        found = [next(query)]
        getattr(dataset, verb)(segment(dataset))
        assert content(dataset) == before
        found += query
        assert [(each.reftime, dict(each.metadata), each.data) for each in found] == before
    dataset.append([one(dataset, 80, 1)])
    check_sound(dataset)


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.check
def test_a_move_that_is_killed_at_any_call_is_done_or_not_done(make, tmp_path, verb, is_merged):
    dataset = make()
    name, path = segment(dataset), tmp_path / "run"
    if verb == "unarchive" or is_merged:
        dataset.archive(name)
    if is_merged:
        dataset.append(some(dataset, range(1, 20, 6)))
    before = content(dataset)
    dataset.close()
    for call in range(0, 400, 11 if dataset.config.format == "blob" else 7):  # tests/crash kills at each
        shutil.copytree(dataset.path, path)
        ended, killed = False, ondisk.open(path)
        with suppress(Killed), killed_at(call):
            getattr(killed, verb)(name)
            ended = True
        killed.close()
        with ondisk.open(path) as again:
            assert content(again) == before
            again.fix()
            again.repack()
            assert content(again) == before
            check_sound(again)
        places = [path / name, path / LAST / name]
        assert sum(each.exists() for each in places) <= (2 if is_merged else 1)
        shutil.rmtree(path)
        if ended:
            break
    else:
        raise AssertionError("the move does not end")
    assert call > 10


def test_late_data_are_there_after_a_merge_that_was_killed_and_the_loss_of_the_index(make, monkeypatch):
    dataset = make(unique=[])
    name, leave = segment(dataset), generations.leave
    dataset.archive(name)
    dataset.append(some(dataset, range(1, 20, 6)))
    before = dataset.summary()

    def die(*arguments):
        leave(*arguments)
        raise Killed

    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(generations, "leave", die)
        dataset.archive(name)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert again.summary() == before


@pytest.mark.parametrize("unique", [["reftime", "station"], []])
def test_data_of_a_merge_of_folders_that_was_killed_count_once_after_the_loss_of_the_index(make, unique):
    dataset = make(unique=unique)
    if dataset.config.format != "blob":
        pytest.skip("of files, the one that is not finished has a hidden name")
    name = segment(dataset)
    dataset.archive(name)
    dataset.append(some(dataset, range(1, 20, 6)))
    before = content(dataset)
    with killed_in(generations, "leave"):
        dataset.archive(name)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert content(again) == before
        again.repack(second_copies=True)
        check_sound(again)
        assert content(again) == before
        assert not (again.path / name).exists()


@pytest.mark.check
@pytest.mark.parametrize("step", STEPS_OF_TIME)
def test_the_name_of_an_archived_segment_is_one_of_the_datasets_own_step(make, step):
    """`2026/11-1` stands for another time by weeks than by half months."""
    dataset = make([(24 * day, 1) for day in range(-18, 40)], step=step)
    before = content(dataset)
    dataset.archive(*{each.location.segment for each in dataset.query()})
    check_sound(dataset)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        check_sound(again)
        assert content(again) == before


def test_a_segment_of_another_step_is_read_in_the_archive_and_not_moved_to_the_dataset(make, tmp_path, kind):
    dataset = make()
    with ondisk.create(tmp_path / "other", {**kind, "step": "yearly"}) as other:
        other.append([one(other, -9000, 1, 5)])
    (found,) = (tmp_path / "other").glob("20/*")
    shutil.copytree(tmp_path / "other/20", dataset.path / ".archive/old/20")
    assert dataset.fix().lost == 0
    assert values(dataset)[-1] == 5
    assert dataset.check(accurate=True).is_clean
    with pytest.raises(StateError, match="its name is not one of the step"):
        dataset.unarchive(f".archive/old/20/{found.name}")


# Late data


@pytest.mark.parametrize("replace", ["no", "yes"])
def test_late_data_go_to_the_dataset_and_are_merged_into_the_archived_segment(make, replace):
    dataset = make(replace=replace)
    dataset.archive(segment(dataset))
    late = some(dataset, (23, 2, 5), [9], 1)
    assert dataset.append(late).imported == 3
    assert (dataset.path / segment(dataset)).exists()
    before = content(dataset)
    assert before == sorted(before, key=lambda each: each[0])
    dataset.archive(segment(dataset))
    assert content(dataset) == before
    assert not (dataset.path / segment(dataset)).exists()
    check_sound(dataset)
    dataset.append(some(dataset, [22], [9]))
    dataset.unarchive(segment(dataset))  # merged, too
    assert len(content(dataset)) == len(before) + 1
    check_sound(dataset)


@pytest.mark.parametrize("place", ["last", "2025"])
def test_a_duplicate_of_data_in_any_archive_is_skipped(make, place):
    dataset = make()
    dataset.archive(segment(dataset))
    if place != "last":
        dataset.rename_archive("last", place)
    new = [one(dataset, *each) for each in ((0, 1, 7), (1, 8, 7), (30, 1, 7), (1, 8, 8))]
    result = dataset.append(new, outcomes=True)
    assert [each.status for each in result.outcomes] == ["duplicate", "imported", "duplicate", "duplicate"]
    assert values(dataset)[-2:] == [0, 7]


def test_a_duplicate_of_data_in_any_archive_replaces_them(make):
    dataset = make(replace="yes")
    dataset.archive(segment(dataset))
    dataset.rename_archive("last", "2025")
    dataset.archive(segment(dataset, 1))
    new = [one(dataset, *each) for each in ((0, 1, 7), (1, 8, 7), (30, 1, 7), (0, 1, 8))]
    result = dataset.append(new, outcomes=True)
    assert [each.status for each in result.outcomes] == ["replaced", "imported", "replaced", "replaced"]
    assert values(dataset)[-4:] == [0, 7, 7, 8]
    found = content(dataset)
    dataset.archive(segment(dataset))
    dataset.repack()
    assert content(dataset) == found


def test_only_a_newer_version_replaces_archived_data(make):
    dataset = make([(1, 1, 5), (2, 1, 5)], replace="newer", version_field="version")
    dataset.append([one(dataset, 1, 1, 5, version=5)])
    dataset.archive(segment(dataset))
    new = [(1, 4), (2, 1), (1, None), (1, 6), (1, 5)]
    data = [one(dataset, hour, 1, hour, **({"version": each} if each else {})) for hour, each in new]
    result = dataset.append(data, outcomes=True)
    statuses = ["duplicate", "replaced", "duplicate", "replaced", "duplicate"]
    assert [each.status for each in result.outcomes] == statuses
    assert values(dataset) == [1, 2]


# Deleted


def test_a_delete_over_the_dataset_and_its_archives_is_one_commit(make):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.rename_archive("last", "2025")
    dataset.archive(segment(dataset, 1))
    before = content(dataset)
    with access_to(dataset.path) as access, access.transaction("delete") as transaction:
        transaction.delete(dataset.fields.station == 1)
    assert content(dataset) == before  # it was not committed
    assert dataset.delete("station: 1") == 24
    assert {each[1]["station"] for each in content(dataset)} == {0}
    location = next(dataset.query()).location
    other = next(dataset.query("reftime: >=2026-11-22")).location
    assert dataset.delete([location, other, location]) == 2
    assert dataset.delete([location, other]) == 0
    left = content(dataset)
    states = {each.segment: each.state for each in dataset.check()}
    assert states[f"{LAST}/{segment(dataset, 1)}"] == State.DIRTY
    assert not any(each.action for each in dataset.fix())
    dataset.repack()
    assert content(dataset) == left


def test_a_place_that_is_not_maintained_is_neither_rewritten_nor_deleted_by_age(make):
    dataset = make(delete_age=100, archive_age=50)
    dataset.archive(segment(dataset))
    dataset.rename_archive("last", "2025")
    dataset.archive(segment(dataset, 1))
    file = dataset.path / ".archive/2025" / segment(dataset)
    before = file.stat()
    dataset.delete("station: 1")
    (found,) = [each for each in dataset.check() if each.segment.startswith(".archive/2025")]
    assert not found.state
    assert "maintain_archives" in found.reasons[-1]
    with clock((T + 200 * DAY).timestamp()):
        dataset.repack(by_age=True)
    assert {each[0].day for each in content(dataset)} == {20}
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    dataset.close()
    change_config(dataset.path, "delete_age", 'maintain_archives = ["2025"]\ndelete_age')
    with ondisk.open(dataset.path) as again:
        with clock((T + 200 * DAY).timestamp()):
            again.repack(by_age=True)
        assert content(again) == []
    assert not file.exists()


def test_repack_archives_by_age(make):
    dataset = make(archive_age=10)
    before = content(dataset)
    dataset.delete("station: 0; reftime: =2026-11-20")
    with clock((T + 12 * DAY).timestamp()):
        report = dataset.repack()
        assert [each.action for each in report] == ["repack and archive", "archive"]
        assert len(content(dataset)) == len(before) - 8
        dataset.append(some(dataset, [4], [9]))
        assert [each.action for each in dataset.repack()] == ["archive"]  # merged
        again = dataset.repack()
    assert not again.segments
    assert again.ok == 3


def test_files_that_could_not_be_put_in_order_after_their_move_are_by_the_next_repack(make, monkeypatch):
    dataset = make(archive_age=10)
    with clock((T + 12 * DAY).timestamp()):
        dataset.repack()
        dataset.append(some(dataset, [4], [9]))
        before, real = content(dataset), repack_module.repacked

        def fails(inspection, name, *rest):
            if name.startswith(LAST):
                raise StorageError("no")
            return real(inspection, name, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(repack_module, "repacked", fails)
            assert [each.action for each in dataset.repack()] == ["archive"]
        assert content(dataset) == before
        dataset.repack()
        assert {each.state for each in dataset.check()} == {State.OK}
        assert content(dataset) == before


def test_what_is_too_old_is_deleted_from_the_archive_also_by_an_age_that_is_set_later(make):
    dataset = make(archive_age=10)
    dataset.archive(segment(dataset))
    dataset.close()
    change_config(dataset.path, "archive_age = 10", "archive_age = 10\ndelete_age = 20")
    with ondisk.open(dataset.path) as again, clock((T + 22 * DAY).timestamp()):
        done = {each.segment: each.action for each in again.repack(by_age=True)}
        assert done[f"{LAST}/{segment(again)}"] == "delete"
        assert done[segment(again, 1)] == "delete"
        assert {each[0].day for each in content(again)} == {22}


# What is not moved


@pytest.mark.each
@pytest.mark.parametrize("state", ["missing", "corrupted", "rotten", "unaligned"])
def test_what_is_damaged_is_not_archived(make, state):
    dataset = make()
    path = dataset.path / segment(dataset)
    if state == "missing":
        path.rename(dataset.path.with_name("aside"))
    elif state == "rotten":  # nothing but the check that read it knows
        file = next(each for each in path.iterdir() if each.suffix == ".blob") if path.is_dir() else path
        rot(file, file.read_bytes()[:-2] + b"\xff\xff")
        assert not dataset.check(accurate=True).is_clean
    elif path.is_dir():
        next(each for each in path.iterdir() if each.suffix == ".blob").unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    if state == "unaligned":
        (dataset.path / "needs-check-do-not-pack").touch()
    error, said = (NeedsCheck, "needs a check") if state == "unaligned" else (StateError, "cannot be moved: it is")
    with pytest.raises(error, match=said):
        dataset.archive(segment(dataset))
    assert not [*dataset.path.glob(f"{LAST}/2026/*")]


def damage_index(dataset, name):
    spoil(dataset.path, f"UPDATE segment SET damage = 'its bytes are not what they were' WHERE name = '{name}'")


def test_a_damaged_segment_of_the_archive_keeps_no_other_from_it(make):
    dataset = make(archive_age=10)
    dataset.archive(segment(dataset))
    dataset.append(some(dataset, [1], [9]))
    damage_index(dataset, f"{LAST}/{segment(dataset)}")
    with clock((T + 100 * DAY).timestamp()):
        done = {each.segment: each for each in dataset.repack(by_age=True)}
    assert done[segment(dataset)].reasons[-1] == (
        f"it is not archived: {LAST}/{segment(dataset)} is CORRUPTED: its bytes are not what they were"
    )
    assert {*dataset.path.glob("2026/*")} == {dataset.path / segment(dataset)}
    assert len([*dataset.path.glob(f"{LAST}/2026/*")]) == 3


@pytest.mark.parametrize("rotten", ["archived", "late"])
def test_rotten_bytes_are_not_merged_as_if_they_were_whole(make, rotten):
    dataset = make()
    name = segment(dataset)
    dataset.archive(name)
    dataset.append(some(dataset, [1], [9]))
    path = dataset.path / (f"{LAST}/{name}" if rotten == "archived" else name)
    if path.is_dir():
        pytest.skip("a merge of folders links their files, whose checksums stay")
    content = path.read_bytes()
    rot(
        path,
        content.replace(b":0}", b":7}", 1)
        if dataset.config.format == "jsonl"
        else content[:-9] + b"\xff" + content[-8:],
    )
    before = dataset.summary()
    with pytest.raises(IntegrityError):
        dataset.archive(name)
    assert dataset.summary() == before
    assert path.exists()


def test_bytes_that_nobody_has_proven_stay_so_in_a_repack_and_in_a_merge(make):
    """Else a replica returns them to its source as if they were right."""
    dataset = make()
    name = segment(dataset)
    spoil(dataset.path, f"UPDATE segment SET unproven = 1 WHERE name = '{name}'")
    dataset.delete("reftime: <=2026-11-20 03:00:00")
    dataset.repack()
    dataset.archive(name)
    dataset.append(some(dataset, [1], [9]))
    dataset.archive(name)
    with access_to(dataset.path) as access, access.current().index.snapshot() as snapshot:
        assert snapshot.segment_named(f"{LAST}/{name}").unproven


def test_what_a_merge_does_not_write_is_kept(make):
    """Bytes that somebody has appended to the archived file."""
    dataset = make()
    name = segment(dataset)
    dataset.archive(name)
    dataset.append(some(dataset, [1], [9]))
    path = dataset.path / LAST / name
    if path.is_dir():
        pytest.skip("a merge of folders moves each file")
    rot(path, path.read_bytes() + b"theirs")
    dataset.archive(name)
    assert [item.why.split(":")[0] for item in dataset.quarantine] == ["bytes after the last datum that is whole"]


def test_a_segment_that_has_data_of_other_times_is_not_moved_without_them(make):
    dataset = make()
    spoil(dataset.path, "UPDATE datum SET reftime = reftime + 864000000000 WHERE seq = 2")
    before = dataset.summary()
    with pytest.raises(StateError, match="data of other times"):
        dataset.archive(segment(dataset))
    assert dataset.summary() == before


def test_nothing_is_merged_into_a_segment_that_is_missing_with_its_data_of_other_times(make):
    dataset = make()
    name = segment(dataset)
    dataset.archive(name)
    (dataset.path / LAST / name).rename(there := dataset.path / LAST / "2026" / f"12-10.{name.rpartition('.')[2]}")
    dataset.fix()
    there.rename(aside := dataset.path.with_name("aside"))
    name = there.relative_to(dataset.path / LAST).as_posix()
    dataset.append([one(dataset, 20 * 24, 9)])
    with pytest.raises(StateError, match="MISSING"):
        dataset.archive(name)
    aside.rename(there)
    assert dataset.summary().count == 49


@pytest.mark.parametrize("direction", ["archive", "unarchive"])
def test_nothing_is_merged_into_a_segment_that_is_damaged_or_missing(make, direction):
    dataset = make()
    name = segment(dataset)
    dataset.archive(name)
    dataset.append(some(dataset, [1], [9]))
    there = f"{LAST}/{name}" if direction == "archive" else name
    (dataset.path / there).rename(aside := dataset.path.with_name("aside"))
    for act in (lambda: planned(dataset._access, [name], direction), lambda: getattr(dataset, direction)(name)):
        with pytest.raises(StateError, match="MISSING"):
            act()
    aside.rename(dataset.path / there)
    damage_index(dataset, there)
    with pytest.raises(StateError, match="not what they were"):
        getattr(dataset, direction)(name)
    assert (dataset.path / name).exists()
    assert (dataset.path / LAST / name).exists()


@pytest.mark.parametrize("direction", ["archive", "unarchive"])
def test_nothing_is_merged_into_a_file_with_data_that_the_index_may_not_know(make, direction):
    dataset = make(data=[(0, 1), (3, 1)])
    if dataset.config.format == "blob":
        pytest.skip("a merge of folders keeps all files")
    name = segment(dataset)
    stranger = dataset.path.with_name("stranger")
    (dataset.path / name).rename(stranger)
    dataset.fix()
    dataset.append([one(dataset, 6, 1)])
    dataset.archive(name)
    there = dataset.path / (f"{LAST}/{name}" if direction == "archive" else name)
    if direction == "archive":
        dataset.append([one(dataset, 9, 1)])
        spoil(dataset.path, f"UPDATE segment SET has_unknown = 1 WHERE name = '{LAST}/{name}'")
    else:
        stranger.rename(there)
        dataset.append([one(dataset, 9, 1)])
    with pytest.raises(StateError, match="cannot be merged: it is UNALIGNED"):
        getattr(dataset, direction)(name)
    dataset.fix()
    getattr(dataset, direction)(name)
    assert dataset.summary().count == (2 if direction == "archive" else 4)


def test_a_stranger_in_the_place_of_a_segment_is_kept(make):
    dataset = make(archive_age=10)
    before = content(dataset)
    dataset.archive(segment(dataset, 2))
    stray = dataset.path / LAST / segment(dataset)
    stray.write_bytes(b"somebody's")
    with clock((T + 100 * DAY).timestamp()), suppress(AlreadyExists):
        dataset.repack()
    kept = [*dataset.path.glob(".quarantine/*"), stray]
    assert b"somebody's" in [each.read_bytes() for each in kept if each.is_file()]
    assert (dataset.path / LAST / segment(dataset, 1)).exists()  # others are archived all the same
    assert content(dataset) == before


def test_nothing_is_moved_while_the_index_may_not_know_all_data(make):
    dataset = make()
    dataset.archive(segment(dataset))
    before = len(content(dataset))
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.append(some(again, [1], [8]))
        with pytest.raises(NeedsCheck):
            again.unarchive(segment(again))
        again.fix()
        again.unarchive(segment(again))
        assert len(content(again)) == before + 1
        check_sound(again)


def test_an_unknown_file_in_the_archive_is_never_deleted(make):
    dataset = make(unknown_segments="delete")
    dataset.archive(segment(dataset))
    stray = dataset.path / LAST / segment(dataset, 5)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"somebody's")
    renew_index(dataset.path)
    for _ in range(2):
        with suppress(ondisk.OndiskError):
            dataset.fix()
        with suppress(ondisk.OndiskError):
            dataset.repack()
    assert stray.read_bytes() == b"somebody's"


def test_a_folder_of_the_archive_is_no_dataset_and_the_error_names_the_dataset(make):
    dataset = make()
    dataset.archive(segment(dataset))
    for path in (dataset.path / LAST, dataset.path / LAST / "2026"):
        for act in (ondisk.open, ondisk.migrate, lambda each: ondisk.create(each, BASE | {"format": "jsonl"})):
            with pytest.raises(StateError, match=rf"is a folder of the archive of {dataset.path}, and no dataset"):
                act(path)
        assert isinstance(maintain(path).error, StateError)
    assert not (dataset.path / LAST / INDEX).exists()


# The index lost


@pytest.mark.check
def test_of_different_data_with_one_key_that_of_the_dataset_counts_after_the_index_was_lost(make):
    """The dataset is read first, then `last`, then others by name."""
    dataset = make([(0, 1, 1), (24, 1, 1)], replace="yes")
    dataset.archive(segment(dataset), segment(dataset, 1))
    dataset.rename_archive("last", "2025")
    dataset.append([one(dataset, 0, 1, 2), one(dataset, 24, 1, 2)])
    dataset.archive(segment(dataset), segment(dataset, 1))
    dataset.append([one(dataset, 0, 1, 3)])
    assert values(dataset) == [2, 3]
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        assert again.fix().lost == 0
        assert values(again) == [2, 3]


def test_no_number_and_no_generation_is_used_twice_after_the_index_was_lost(make):
    dataset = make()
    dataset.archive(segment(dataset), segment(dataset, 1))
    seq, generation = sql(dataset.path, "SELECT seq, generation FROM dataset")[0]
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        again.delete("station: 0; reftime: =2026-11-20")
        again.append(some(again, [100]))
    assert sql(dataset.path, "SELECT min(id) FROM segment")[0][0] > generation
    numbers = [each for (each,) in sql(dataset.path, "SELECT seq FROM datum UNION ALL SELECT seq FROM deletion")]
    assert len(numbers) == len({*numbers})
    assert min(numbers) > seq


# Renamed, away, offline


def gone(dataset, place="last"):
    """Unmount the disk of a place: its folder is empty then."""
    folder = dataset.path / ".archive" / place
    aside = folder.rename(dataset.path.with_name(f"disk of {place}"))
    folder.mkdir()
    return aside


def lose_index_without_the_archive(dataset):
    """Archive a segment, unmount its disk, and lose the index; return where the disk is."""
    dataset.archive(segment(dataset))
    aside = gone(dataset)
    dataset.close()
    lose_index(dataset.path)
    return aside


def test_an_archive_is_renamed_in_one_commit_and_a_running_query_goes_on(make):
    dataset = make()
    dataset.archive(segment(dataset))
    before = content(dataset)
    with closing(dataset.query()) as query:
        next(query)
        done = dataset.rename_archive("last", "2026")
        assert len([*query]) == len(before) - 1
    assert done.action == "rename"
    assert dataset.info()["archives"] == ["2026"]
    assert content(dataset) == before
    dataset.archive(segment(dataset, 1))
    with pytest.raises(AlreadyExists):
        dataset.rename_archive("last", "2026")
    for name in ("a/b", "..", ""):
        with pytest.raises(InvalidInput):
            dataset.rename_archive("last", name)
    with pytest.raises(NotFound):
        dataset.rename_archive("other", "x")
    dataset.unarchive(f".archive/2026/{segment(dataset)}")
    assert content(dataset) == before
    check_sound(dataset)


def test_a_query_whose_state_is_older_than_a_move_misses_no_place(make):
    dataset = make()
    for move in (partial(dataset.archive, segment(dataset)), partial(dataset.rename_archive, "last", "2026")):
        with access_to(dataset.path) as access, access.current().index.snapshot() as before:
            assert segment_rows.count_of(before, before.segment_named(segment(dataset, 1)))
            move()
            assert place_checks.check_there(before, ALWAYS, complete=True) == []
            assert [*place_checks.doubts(before, offline=True)] == []


@pytest.mark.parametrize("verbs", [("unarchive", "rename"), ("rename", "unarchive"), ("merge", "rename")])
def test_a_query_goes_on_beside_a_move_and_a_rename(make, verbs):
    """What was moved or replaced before its place was renamed has its hidden name there."""
    dataset = make()
    dataset.archive(segment(dataset, 2))
    before, place, query = content(dataset), "last", Query()
    with access_to(dataset.path) as access, access.current().index.snapshot() as snapshot:
        assert [*segment_rows.places(snapshot)] == [f"{LAST}/"]
        for verb in verbs:
            if verb == "unarchive":
                dataset.unarchive(f".archive/{place}/{segment(dataset, 2)}")
            elif verb == "rename":
                place = "2026" if dataset.rename_archive(place, "2026") else place
            else:  # with another file of the same size and the same end
                dataset.delete("reftime: =2026-11-22T00:00:00Z; station: 0")
                dataset.append([one(dataset, 48, 9)])
                dataset.archive(segment(dataset, 2))
        index, reader = access.current()
        found = chain.from_iterable(
            reader.query(snapshot, query.tree(index), query.order(index), None, with_data=True, on_damage=None)
        )
        assert same(before, [(each.reftime, dict(each.metadata), each.data) for each in found])


def test_a_place_that_was_emptied_while_a_query_looked_is_not_missed(make, monkeypatch):
    dataset = make()
    with access_to(dataset.path) as access, access.current().index.snapshot() as before:
        assert [*segment_rows.places(before)] == []
        dataset.archive(segment(dataset))

        def emptied(snapshot):
            dataset.unarchive(f"{LAST}/{segment(dataset)}")
            renew(snapshot)

        renew = Snapshot.renew
        monkeypatch.setattr(Snapshot, "renew", emptied)
        assert place_checks.check_there(before, ALWAYS, complete=True) == []


def test_a_query_that_begins_beside_a_fix_of_what_was_lost_answers_all_or_fails(make):
    dataset = make()
    before = content(dataset)
    aside = lose_index_without_the_archive(dataset)
    with ondisk.open(dataset.path) as again:
        again.fix()
        (again.path / LAST).rmdir()
        aside.rename(again.path / LAST)
        with access_to(again.path) as access, access.current().index.snapshot() as early:
            assert [*segment_rows.places(early)] == []
            again.fix()
            assert place_checks.check_there(early, ALWAYS, complete=True) == []
            assert [*segment_rows.places(early)] == [f"{LAST}/"]
        assert same(content(again), before)


@pytest.mark.check
def test_a_rename_that_is_killed_at_any_call_is_done_or_not_done(make, tmp_path):
    dataset = make()
    dataset.archive(segment(dataset))
    before = content(dataset)
    dataset.close()
    for call in range(0, 100, 3):
        path = shutil.copytree(dataset.path, tmp_path / "run")
        ended, killed = False, ondisk.open(path)
        with suppress(Killed), killed_at(call):
            killed.rename_archive("last", "2026")
            ended = True
        killed.close()
        with ondisk.open(path) as again:
            assert again.fix().lost == 0
            assert content(again) == before
            check_sound(again)
        assert len([*path.glob(".archive/*/2026/*")]) == 1
        shutil.rmtree(path)
        if ended:
            return
    raise AssertionError("the rename does not end")


@pytest.mark.parametrize("is_killed", [False, True], ids=["by hand", "killed after the commit"])
def test_a_folder_that_was_renamed_and_not_followed_is_renamed_again_after_a_fix(make, is_killed):
    """Else it would get another identity, and its data would be missed under the old name until a fix forgets that."""
    dataset = make()
    dataset.archive(segment(dataset))
    before = content(dataset)
    if is_killed:
        with killed_in(places, "rename"):
            dataset.rename_archive("last", "2024")
    else:
        (dataset.path / LAST).rename(dataset.path / ".archive/2024")
    dataset.close()
    with ondisk.open(dataset.path) as again:
        with pytest.raises(StateError, match=r"\.archive/2024 was \.archive/last before somebody renamed it") as caught:
            again.rename_archive("2024", "2025")
        assert "ondisk fix" in caught.value.hint
        again.fix()
        again.rename_archive("2024", "2025")
        assert content(again) == before
        check_sound(again)


@pytest.mark.parametrize("accident", ["no folder", "an empty mount point", "the wrong disk", "an older tape"])
def test_an_archive_that_is_away_is_told_apart_and_nothing_is_done_there(make, tmp_path, accident):
    dataset = make(archive_age=10)
    dataset.archive(segment(dataset))
    place = dataset.path / LAST
    tape = shutil.copytree(place, tmp_path / "tape")
    dataset.archive(segment(dataset, 1))
    before = content(dataset)
    aside = gone(dataset)
    if accident == "no folder":
        place.rmdir()
    elif accident != "an empty mount point":
        place.rmdir()
        shutil.copytree(tape, place)
    if accident == "the wrong disk":
        (place / ".place").write_text((place / ".place").read_text().replace('"id": "', '"id": "0'))
    there = sorted(place.rglob("*"))
    why = {"no folder": "its folder is not there", "an empty mount point": "its folder is empty",
           "the wrong disk": "another folder is in its place", "an older tape": "an older state of it"}  # fmt: skip
    for act in (lambda: next(dataset.query()), lambda: dataset.archive(segment(dataset, 2)),
                lambda: dataset.unarchive(segment(dataset)),
                lambda: dataset.fix(salvage=[f"{LAST}/{segment(dataset)}".replace("//", "/")])):  # fmt: skip
        with pytest.raises(SegmentMissing, match=why[accident]):
            act()
    assert dataset.summary().count == len(before)
    assert len(content(dataset, "reftime: >=2026-11-22")) == 16
    assert [each.metadata["station"] for each in dataset.query(with_data=False)] == [0, 1] * 24
    with clock((T + 100 * DAY).timestamp()):
        result = maintain(dataset.path)
    assert result.exit_code == 9
    assert result.lost == 0
    (found,) = [each for each in dataset.check() if each.segment == LAST]
    assert why[accident] in found.reasons[0]
    assert sorted(place.rglob("*")) == there
    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    assert content(dataset) == before
    check_sound(dataset)


def test_what_is_away_is_known_after_the_index_was_lost_too(make):
    dataset = make()
    before = content(dataset)
    aside = lose_index_without_the_archive(dataset)
    with ondisk.open(dataset.path) as again:
        assert again.fix().lost == 0
        assert any("data in .archive/last/ may not be in the index" in each for each in again.doubts())
        with pytest.raises(SegmentMissing):
            again.archive(segment(again, 1))
        (again.path / LAST).rmdir()
        aside.rename(again.path / LAST)
        again.fix()
        assert content(again) == before
        assert again.doubts() == []


@pytest.mark.parametrize("accident", ["lost", "rebuilt"])
def test_what_is_away_is_known_if_a_fix_that_was_interrupted_has_read_a_part_of_it(make, monkeypatch, accident):
    """Else a query for the rest finds nothing, and says nothing."""
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.archive(segment(dataset, 1))
    before = content(dataset)[:32]
    dataset.close()
    if accident == "lost":
        lose_index(dataset.path)
    else:
        there = dataset.path / segment(dataset, 2)  # the index keeps what it knows of missing segments
        there.rename(there.with_name("away"))
        ondisk.rebuild(dataset.path)

    def interrupt(name):
        if name == f"{LAST}/{segment(dataset, 1)}":
            raise KeyboardInterrupt

    with ondisk.open(dataset.path) as again:
        monkeypatch.setattr(fix_module, "_GROUP", 1)  # each segment has a commit of its own
        with pytest.raises(KeyboardInterrupt):
            again.fix(progress=interrupt)
        aside = gone(again, "last")
        again.fix()
        for day in (T, T + DAY):
            with pytest.raises(SegmentMissing):
                content(again, f"reftime: ={day:%Y-%m-%d}")
        shutil.rmtree(again.path / LAST, ignore_errors=True)
        aside.rename(again.path / LAST)
        again.fix()
        assert content(again)[:32] == before
        assert again.doubts() == []


@pytest.mark.each
@pytest.mark.parametrize("accident", ["older index", "rebuilt"])
def test_what_an_index_lacks_of_an_archive_that_is_away_is_missed(make, tmp_path, accident):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.close()
    sql(dataset.path, "PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(dataset.path / INDEX, tmp_path / INDEX)
    with ondisk.open(dataset.path) as again:
        again.append(some(again, range(3), [9]))
        again.archive(segment(again))
        before = content(again)
        aside = gone(again)
    for each in dataset.path.glob(f"{INDEX}-*"):
        each.unlink()
    shutil.copy(tmp_path / INDEX, dataset.path / INDEX)
    if accident == "rebuilt":
        (dataset.path / INDEX).write_bytes(b"damaged")
        ondisk.rebuild(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert any("may not be in the index" in each for each in again.doubts())
        with pytest.raises(SegmentMissing):
            content(again, "reftime: =2026-11-20")
        shutil.rmtree(again.path / LAST)
        aside.rename(again.path / LAST)
        for act in (again.repack, partial(again.unarchive, segment(again)), partial(again.archive, segment(again, 1))):
            with suppress(OndiskError):  # that a fix must read it first
                act()
        again.append(some(again, [1], [8]))
        with suppress(OndiskError):
            again.archive(segment(again))
        again.fix()
        again.repack()
        assert [each for each in content(again) if each[1]["station"] != 8] == before
        assert len(content(again, "station: 8")) == 1
        assert again.doubts() == []


@pytest.mark.each
def test_what_was_archived_since_an_older_index_is_read_when_the_archive_is_back(make, tmp_path):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.append(some(dataset, [1], [9]))
    dataset.close()
    sql(dataset.path, "PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(dataset.path / INDEX, tmp_path / INDEX)
    with ondisk.open(dataset.path) as again:
        again.archive(segment(again))
        before, aside = content(again), gone(again)
    for each in dataset.path.glob(f"{INDEX}-*"):
        each.unlink()
    shutil.copy(tmp_path / INDEX, dataset.path / INDEX)
    with ondisk.open(dataset.path) as again:
        again.fix()
        shutil.rmtree(again.path / LAST)
        aside.rename(again.path / LAST)
        again.repack()
        again.fix()
        again.repack()
        assert content(again) == before


@pytest.mark.each
def test_what_an_older_index_lacks_of_an_archive_that_is_offline_is_read_when_it_is_back(make, tmp_path):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.rename_archive("last", "tape")
    dataset.close()
    sql(dataset.path, "PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(dataset.path / INDEX, tmp_path / INDEX)
    with ondisk.open(dataset.path) as again:
        again.rename_archive("tape", "last")
        again.append(some(again, range(3), [9]))
        again.archive(segment(again))
        again.rename_archive("last", "tape")
        before = content(again)
        again.set_offline("tape")
        aside = gone(again, "tape")
    for each in dataset.path.glob(f"{INDEX}-*"):
        each.unlink()
    shutil.copy(tmp_path / INDEX, dataset.path / INDEX)
    with ondisk.open(dataset.path) as again:
        again.fix()
        (again.path / ".archive/tape").rmdir()
        aside.rename(again.path / ".archive/tape")
        again.set_online("tape")
        again.repack()
        again.fix()
        again.repack()
        assert content(again) == before


@pytest.mark.each
def test_equal_data_in_an_archive_that_was_away_when_the_index_was_lost_all_count(make):
    """They were appended one after the other: no file is a copy that somebody has made."""
    dataset = make(unique=[])
    dataset.archive(segment(dataset))
    dataset.append(some(dataset, range(0, 72, 3)) + some(dataset, [1]))  # else the whole file would be the same
    before, aside = content(dataset), gone(dataset)
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        shutil.rmtree(again.path / LAST)
        aside.rename(again.path / LAST)
        again.fix()
        again.repack(second_copies=True)
        assert same(content(again), before)


@pytest.mark.parametrize("offline", [True, False])
def test_who_needs_all_data_waits_for_what_an_index_has_lost_while_it_was_away(make, tmp_path, offline):
    dataset = make()
    dataset.archive(segment(dataset))
    dataset.rename_archive("last", "tape")
    if offline:
        dataset.set_offline("tape")
    aside = gone(dataset, "tape")
    dataset.close()
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        for verb in (again.fix, again.check, again.repack):
            (found,) = [each for each in verb() if each.state & State.MISSING]
            assert found.segment == ".archive/tape"
            assert "16 data, which the index does not know" in found.reasons[0]
        backup = partial(again.backup, tmp_path / "backup", create=True)
        if offline:
            assert [each.segment for each in backup().problems] == [".archive/tape"]
        for act in (again.changes, *[backup] * (not offline)):
            with pytest.raises(NeedsCheck, match=r"data in \.archive/tape/ may not be in the index") as caught:
                act()
            assert caught.value.hint.endswith("--yes` then reads its data.")
        with ondisk.merged([again.path]) as merged, pytest.raises(DataOffline if offline else SegmentMissing):
            [*merged.query("reftime: =2026-11-20")]
        with suppress(FileNotFoundError):
            (again.path / ".archive/tape").rmdir()
        aside.rename(again.path / ".archive/tape")
        if offline:
            again.set_online("tape")
        again.fix()
        assert again.check().is_clean
        done = again.backup(tmp_path / "backup", create=not offline)
        assert (done.count, done.problems) == (again.summary().count, [])


@pytest.mark.parametrize("name", ["x.place", "n" * 201, "\udcff"], ids=["place", "long", "no text"])
def test_a_folder_whose_name_allows_for_no_identity_beside_it_is_no_place(make, name):
    dataset = make()
    dataset.archive(segment(dataset))
    with pytest.raises(InvalidInput, match="is not the name of a folder"):
        dataset.rename_archive("last", name)
    (dataset.path / LAST).rename(dataset.path / ".archive" / name)
    for verb in (dataset.fix, dataset.check, dataset.repack):
        (found,) = [each for each in verb() if each.state & State.MISSING]
        assert "its folder is not there" in found.reasons[0]
    (dataset.path / ".archive" / name).rename(dataset.path / LAST)
    check_sound(dataset)


def test_an_archive_that_is_offline_is_left_out_with_a_warning_and_returns(make):
    dataset = make()
    dataset.archive(segment(dataset))
    before, whole = content(dataset), dataset.summary()
    with pytest.raises(StateError, match="cannot be offline"):
        dataset.set_offline("last")
    dataset.rename_archive("last", "tape")
    aside = gone(dataset, "tape")
    dataset.set_offline("tape")
    (dataset.path / ".archive/tape").rmdir()
    with pytest.warns(DataOffline, match="tape/ is offline"):
        assert content(dataset) == before[16:]
    assert dataset.summary() == whole
    assert dataset.check(accurate=True).is_clean
    assert maintain(dataset.path).exit_code == 0
    assert dataset.info()["offline"] == ["tape"]
    assert dataset.delete("station: 1; reftime: =2026-11-20T00") == 1
    with pytest.raises(SegmentMissing):
        dataset.unarchive(f".archive/tape/{segment(dataset)}")
    (dataset.path / ".archive/tape").mkdir()  # an empty mount point
    with pytest.raises(SegmentMissing, match="is not there"):
        dataset.set_online("tape")
    (dataset.path / ".archive/tape").rmdir()
    aside.rename(dataset.path / ".archive/tape")
    with pytest.warns(DataOffline):
        assert content(dataset) == before[16:]  # not before somebody says so
    dataset.set_online("tape")
    assert content(dataset) == [before[0], *before[2:]]
    assert dataset.check(accurate=True).is_clean
    with pytest.raises(NotFound, match="is not offline"):
        dataset.set_online("tape")


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "index lost"])
def test_an_archive_that_is_gone_for_good_is_forgotten_on_demand_and_its_data_count_as_lost(make, is_lost):
    dataset = make()
    dataset.archive(segment(dataset))
    left = content(dataset, "reftime: >=2026-11-21")
    with pytest.raises(StateError, match="is there, and is not forgotten"):
        dataset.fix(forget_place="last")
    gone(dataset)
    if is_lost:
        dataset.close()
        lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert again.fix(forget_place="last", dry_run=True).lost == 16
        assert again.fix(forget_place="last").lost == 16
        assert again.info()["lost"] == 16
        assert content(again) == left
        assert again.check(accurate=True).is_clean
        again.archive(segment(again, 1))
        assert content(again) == left


# What the disk refuses


@contextmanager
def failing_checkpoints():
    """Let no commit of the index be moved into its main file, as on a disk that fails."""

    def fail(index):
        raise StorageError("the disk fails")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connections, "checkpoint", fail)
        yield


def test_what_is_archived_before_the_disk_fails_is_in_the_report_and_nothing_is_removed(make):
    dataset = make()
    before = content(dataset)
    with failing_checkpoints(), pytest.raises(DurabilityLost) as caught:
        dataset.archive(segment(dataset), segment(dataset, 1))
    assert len([*caught.value.context["report"]]) <= 1
    with pytest.raises(DurabilityLost, match="nothing more is written"):
        dataset.append(some(dataset, [100]))
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert content(reader) == before
    with ondisk.open(dataset.path) as again:
        assert content(again) == before
        assert again.check(accurate=True).is_clean


def test_no_repack_removes_the_old_bytes_where_the_disk_fails_after_its_commit(make):
    dataset = make()
    dataset.delete("station: 0")
    before = content(dataset)
    with failing_checkpoints(), pytest.raises(DurabilityLost):
        dataset.repack()
    dataset.close()
    with ondisk.open(dataset.path, read_only=True) as reader:
        assert same(content(reader), before)
    with ondisk.open(dataset.path) as again:
        again.repack()
        assert same(content(again), before)
        assert not again.check(accurate=True).findings


@pytest.mark.check
def test_removing_a_segment_looks_at_its_own_data(make):
    dataset = make()
    if dataset.config.format == "blob":
        pytest.skip("it is about the index")
    dataset.append(some(dataset, [30 + n / 10_000 for n in range(10_000)], [10]))
    counted = []
    prepare = connections(lambda each: each.set_progress_handler(lambda: counted.append(1) and None, 100))
    with prepare, access_to(dataset.path) as access:
        for day in (0, 2):
            counted.clear()  # the first one looks for data of other times
            name = segment(dataset, day)
            with access.transaction("fix") as transaction:
                transaction.remove(transaction.segments([name])[name])
                transaction.commit()
    assert len(counted) < 200


def test_data_of_a_place_that_is_forgotten_are_counted_once_whoever_is_killed(make):
    dataset = make()
    dataset.archive(segment(dataset))
    shutil.rmtree(dataset.path / LAST)
    with killed_in(places, "forget"):
        dataset.fix(forget_place="last")
    dataset.close()
    with ondisk.open(dataset.path) as again:
        again.fix(forget_place="last")
        assert again.info()["lost"] == 16
