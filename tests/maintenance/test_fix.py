"""Fix: what it reads back from files, what it leaves, and how damaged files come back from a backup."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
from worlds import KINDS, START, A, B, C, Kind, World, locked, lose_index, rot

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import LockError, ReadOnly, SegmentCorrupt, StorageError
from ondisk.filesystem import files
from ondisk.formats.lines import LineFormat
from ondisk.index.transaction import Transaction
from ondisk.maintenance.states import Done, Report, State
from ondisk.replication.feed import Kind as Change
from ondisk.segment import ScanResult, SegmentFile

from .test_matrix import cut, cut_in_datum, flip, in_lost_index

LZ4, PLAIN, VM2, JSONL = KINDS


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind)


def done(report: Report, segment: str = A) -> Done:
    (found,) = (each for each in report if each.segment.startswith(segment))
    assert isinstance(found, Done)
    return found


def put_back(world: World, content: bytes) -> None:
    world.file(A).write_bytes(content)


@pytest.mark.check
@pytest.mark.parametrize("touched", [(A,), (A, B)])
def test_a_fix_has_nothing_to_say_about_segments_that_were_only_touched(world: World, touched: tuple[str, ...]) -> None:
    for name in touched:
        os.utime(world.file(name))
    report = world.fix()
    assert report.segments == []
    assert world.fix().ok == report.ok


def test_a_damaged_segment_is_noted_and_whole_again_once_it_is_put_back(world: World) -> None:
    backup = world.file(A).read_bytes()
    in_lost_index(flip)(world)
    report = done(world.fix())
    assert report.action == "rescan"
    assert report.lost > 0
    assert "are damaged, at byte" in report.reasons[-1]
    assert world.content() == "023"
    assert State.CORRUPTED in world.check().segments[0].state
    put_back(world, backup)
    assert world.states(world.check()) == {A: "UNALIGNED"}  # the damage was noted about another file
    report = done(world.fix())
    assert (report.action, report.lost) == ("rescan", 0)
    assert report.reasons[-1].startswith("1 datum was read that the index did not have; if you had deleted any, delete")
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


def test_damage_that_an_accurate_check_noted_goes_when_the_file_is_put_back(world: World) -> None:
    backup = world.file(A).read_bytes()
    flip(world)
    world.opened(lambda dataset: dataset.check(max_duration=60))
    assert world.states(world.check()) == {A: "CORRUPTED"}
    for _ in range(2):
        assert done(world.fix()).action is None
        assert world.states(world.check()) == {A: "CORRUPTED"}
    put_back(world, backup)
    locations = world.opened(lambda dataset: [datum.location for datum in dataset.query()])
    world.fix()
    assert world.states(world.check(accurate=True)) == {}
    assert world.opened(lambda dataset: [datum.location for datum in dataset.query()]) == locations


def test_damage_that_a_check_noted_goes_when_all_data_of_the_segment_are_deleted(world: World) -> None:
    flip(world)
    world.opened(lambda dataset: dataset.check(max_duration=60))
    for verb in (world.fix, world.repack):
        assert world.states(verb()) == {A: "CORRUPTED"}
    world.delete(0, 1, 2, 3)
    assert "CORRUPTED" in world.states(world.repack())[A]
    assert "are deleted; a repack" in done(world.fix()).reasons[-1]
    assert world.states(world.check()) == {A: "DELETED"}
    world.repack()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == ""


def test_a_checksum_that_does_not_fit_stays_damage_until_it_is_salvaged_whatever_datum_is_deleted(world: World) -> None:
    """The datum that is known to be damaged may not be the only one."""
    flip(world)
    world.opened(lambda dataset: dataset.check(max_duration=60))
    world.delete(1)
    for verb in (world.repack, world.fix, world.repack, world.fix):
        assert world.states(verb()) == {A: "DIRTY|CORRUPTED"}
    world.opened(lambda dataset: dataset.fix(salvage=[world.name(A)]))
    world.repack()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "023"


def test_damage_that_kept_data_from_a_new_index_waits_for_a_backup_whatever_is_deleted(world: World) -> None:
    in_lost_index(flip)(world)
    world.fix()
    world.opened(lambda dataset: dataset.check(max_duration=60))  # notes it again
    world.delete(0, 2, 3)
    for verb in (world.fix, world.repack, world.fix):
        assert "CORRUPTED" in world.states(verb())[A]
    assert world.file(A).exists()


def test_a_file_that_had_data_of_another_time_is_ok_once_it_is_put_back(world: World) -> None:
    backup = world.file(A).read_bytes()
    other = backup.replace(b"2026", b"2426").replace(b"1763", b"9763")
    with ondisk.open(world.path) as dataset:
        seqs = world.sql("SELECT seq, reftime FROM datum ORDER BY seq")
        for _ in range(2):
            put_back(world, other)
            dataset.fix()
            put_back(world, backup)
            dataset.fix()
            assert {each.segment for each in dataset.check(accurate=True) if State.CORRUPTED in each.state} == set()
        assert len(world.sql("SELECT seq FROM datum")) == len(seqs)
    assert world.content() == "0123"


def test_an_index_that_says_otherwise_than_a_whole_file_is_made_to_agree_once_a_check_noted_it(world: World) -> None:
    world.sql("INSERT INTO value VALUES (999, 'another')")
    world.sql("UPDATE datum SET f_area = 999 WHERE seq = (SELECT max(seq) FROM datum)")
    assert world.opened(lambda dataset: dataset.summary('area: "VM2,3"').count) == 0
    world.opened(lambda dataset: dataset.check(max_duration=60))
    assert world.states(world.check()) == {A: "CORRUPTED"}
    world.fix()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


@pytest.mark.parametrize("damage", [flip, lambda world: cut_in_datum(world, 2)], ids=["flip", "cut"])
def test_a_file_put_back_too_short_is_not_believed(damage: Any, world: World) -> None:
    """A backup that is older than the last data must not make the index forget them."""
    backup = world.file(A).read_bytes()
    damage(world)
    world.opened(lambda dataset: dataset.check(max_duration=60))
    put_back(world, backup[: world.ends[3]])
    for _ in range(2):
        world.fix()
        assert "CORRUPTED" in world.states(world.check(accurate=True))[A]
    put_back(world, backup)
    world.fix()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


def test_data_that_the_index_lost_come_back_with_a_file_that_was_cut_when_it_was_fixed(tmp_path: Path) -> None:
    """The sentinel has gone with that fix, and yet no repack may take them for deleted."""
    for number, kind in enumerate(KINDS):
        world = World.make(tmp_path / str(number), kind, [0, 1])
        world.lose_index()
        world.append(2, 3)
        backup = world.file(A).read_bytes()
        cut(world, world.ends[-1] + 30)
        world.fix()
        assert not (world.path / SENTINEL).exists()
        put_back(world, backup)
        world.repack()
        assert world.file(A).read_bytes() == backup
        world.fix()
        assert world.states(world.check(accurate=True)) == {}
        assert world.content() == "0123"


def test_damage_before_data_that_the_index_knows_never_makes_them_unreadable(tmp_path: Path) -> None:
    for number, kind in enumerate(KINDS):
        world = World.make(tmp_path / str(number), kind, [0, 1, 2])
        backup = world.file(A).read_bytes()
        world.lose_index()
        world.append(3)
        whole = world.file(A).read_bytes()
        flip(world)
        world.fix()
        assert not (world.path / SENTINEL).exists()
        assert "CORRUPTED" in world.states(world.check())[A]
        assert world.content() == "023"
        before = world.file(A).read_bytes()
        world.repack()
        assert world.file(A).read_bytes() == before
        put_back(world, whole)
        world.fix()
        assert world.states(world.check(accurate=True)) == {}
        assert world.content() == "0123"
        assert len(whole) > len(backup)


def test_data_after_the_last_that_can_be_read_keep_their_rows_where_the_index_has_no_checksum(tmp_path: Path) -> None:
    """That of an older revision has none: only reading the file shows what has rotted."""
    for number, kind in enumerate(KINDS):
        world = World.make(tmp_path / str(number), kind, [1, 0, 2, 3])
        world.sql("UPDATE segment SET checksum = NULL")
        whole = world.file(A).read_bytes()
        rot(world.file(A), whole[:-12] + b"\x99" * 12)
        world.sentinel()
        world.fix()
        assert world.states(world.check()) == {A: "DIRTY|CORRUPTED"}
        assert world.content() == "012!"
        rot(world.file(A), whole)
        world.fix()
        assert world.states(world.check(accurate=True)) == {A: "DIRTY"}
        assert world.content() == "0123"


@pytest.mark.parametrize("kind", [LZ4, PLAIN], ids=lambda kind: kind.name)
def test_a_file_with_a_damaged_header_is_not_read_and_keeps_its_rows_until_it_is_put_back(
    kind: Kind, tmp_path: Path
) -> None:
    world = World.make(tmp_path / "dataset", kind)
    world.delete(0)
    whole = world.file(A).read_bytes()
    put_back(world, b"\x07" + whole[1:])
    assert world.states(world.check(accurate=True)) == {A: "DIRTY|CORRUPTED"}
    world.sentinel()
    world.fix()
    assert world.states(world.check()) == {A: "DIRTY|CORRUPTED"}
    assert world.content() == "!"
    assert world.opened(lambda dataset: dataset.summary().count) == 5
    put_back(world, whole)
    world.fix()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


@pytest.mark.parametrize("kind", [VM2, JSONL], ids=lambda kind: kind.name)
def test_lines_that_end_with_cr_lf_are_read_in_place_and_repacked_without(kind: Kind, tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", kind)
    content = world.foreign()
    world.put(C, content.replace(b"\n", b"\r\n"), newer=True)
    world.fix()
    assert world.states(world.check(accurate=True)) == {C: "DIRTY"}
    assert world.content() == "0123ab"
    world.repack()
    assert world.file(C).read_bytes() == content
    assert world.content() == "0123ab"


def foreign_seg(world: World, **options: Any) -> bytes:
    """Return the frames of C in an LZ4 frame of another writer."""
    plain = World(world.path, PLAIN).foreign()
    return plain[:8] + bytes([2, 0, 0, 0]) + lz4.frame.compress(plain[12:], **options)


FOREIGN = {
    "linked": {"block_linked": True},
    "with checksums": {"content_checksum": True, "block_checksum": True},
    "large blocks": {"block_size": lz4.frame.BLOCKSIZE_MAX4MB},
}


@pytest.mark.parametrize("options", FOREIGN.values(), ids=FOREIGN)
def test_a_file_with_lz4_of_another_writer_is_written_anew(options: dict[str, Any], tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", LZ4)
    world.put(C, foreign_seg(world, **options), newer=True)
    world.fix()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123ab"
    assert sorted(each.name for each in (world.path / "2026").iterdir()) == ["11-20.seg", "11-22.seg"]
    world.delete(20)
    world.repack()
    assert world.content() == "0123b"


def test_the_folder_of_a_file_that_is_written_anew_is_durable_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may have made it, and synced nothing."""
    world, done = World.make(tmp_path / "dataset", LZ4), list[Path]()
    shutil.rmtree(world.path / "2026")
    world.fix()
    world.put(C, foreign_seg(world, block_linked=True), newer=True)
    sync, commit = files.sync, Transaction.commit
    monkeypatch.setattr(files, "sync", lambda descriptor, path: (sync(descriptor, path), done.append(Path(path))))
    monkeypatch.setattr(Transaction, "commit", lambda self: (done.append(Path("commit")), commit(self)))
    world.fix()
    assert {world.path, world.path / "2026"} <= {*done[: done.index(Path("commit"))]}


def test_data_of_a_segment_that_was_renamed_over_another_are_no_news(tmp_path: Path) -> None:
    config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}, "unique": ["reftime", "n"]}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append([Datum(START + timedelta(days=n // 2), {"n": n}, {"x": n}) for n in range(4)])
        first, second = sorted(dataset.path.glob("*/*.jsonl"))
        second.rename(first)
        report = dataset.fix()
        assert [(each.lost, each.returned) for each in report if isinstance(each, Done)] == [(2, 0), (0, 0)]
        assert [each.metadata["n"] for each in dataset.query()] == [2, 3]


def test_a_damaged_file_that_is_written_anew_is_kept_in_quarantine(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", LZ4)
    content = bytearray(foreign_seg(world, block_linked=False, content_checksum=True))
    content[-30] ^= 0x80
    for number in (1, 2):
        world.put(C, bytes(content), newer=True)
        report = done(world.fix(), C)
        *_, kept = sorted((world.path / "2026/.quarantine").glob("*-11-22.seg"))
        assert f"the original file is now {kept.relative_to(world.path)}" in "; ".join(report.reasons)
        assert report.lost > 0
        assert world.opened(lambda dataset: dataset.info()["lost"]) == number * report.lost
        assert kept.read_bytes() == content
        assert len(world.opened(lambda dataset: [*dataset.quarantine])) == number
        assert world.states(world.check(accurate=True)) in ({}, {C: "DELETED"})
        world.opened(lambda dataset: dataset.delete("reftime: =2026-11-22"))
        world.repack()
        assert not world.file(C).exists()
    assert world.content() == "0123"


def test_a_known_segment_replaced_by_a_foreign_file_is_read_anew_where_the_index_is_not_trusted(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", LZ4)
    world.append(20, 21)
    world.delete(20)
    world.sentinel()
    world.file(C).write_bytes(foreign_seg(world) + b"\0" * 500)
    world.fix()
    assert not (world.path / SENTINEL).exists()
    assert world.content() == "0123ab"


OTHER_CONTENTS = "have the same unique values as other data but different contents"


def test_of_equal_data_in_one_segment_the_last_wins_and_of_those_in_two_the_first(tmp_path: Path) -> None:
    config = {"format": "jsonl", "step": "daily", "unique": ["key"], "replace": "yes", "fields": {"key": "integer"}}
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for value in range(3):
            dataset.append([Datum(START, {"key": 1}, {"value": value})])
        dataset.append([Datum(START.replace(day=21), {"key": 2}, {"value": 3})])
        dataset.append([Datum(START.replace(day=22), {"key": 2}, {"value": 4})])
    lose_index(tmp_path / "dataset")
    with ondisk.open(tmp_path / "dataset") as dataset:
        report = dataset.fix()
        assert [datum.data["value"] for datum in dataset.query()] == [2, 3]
        assert done(report, "2026/11-20").reasons[-1] == f"2 data {OTHER_CONTENTS}: its file was linked into quarantine"
        assert (
            done(report, "2026/11-22").reasons[-1]
            == f"1 datum {OTHER_CONTENTS.replace('have', 'has', 1)}: its file was linked into quarantine"
        )
        assert done(report, "2026/11-22").lost == report.lost == 0  # it stands there already
        states = {each.segment: each.state for each in dataset.check() if each.state}
        assert states == {"2026/11-20.jsonl": State.DIRTY, "2026/11-22.jsonl": State.DELETED}
        assert [each.segment for each in dataset.quarantine] == ["2026/11-20.jsonl", "2026/11-22.jsonl"]


def test_data_deleted_since_come_back_with_a_lost_index(world: World) -> None:
    world.delete(1)
    world.lose_index()
    world.fix()
    assert world.content() == "0123"


def test_a_lost_index_without_any_segment_needs_no_check_after_a_fix(tmp_path: Path) -> None:
    world = World(tmp_path / "dataset", VM2)
    ondisk.create(world.path, VM2.config).close()
    world.lose_index()
    assert not world.fix().needs_check
    assert not world.opened(lambda dataset: dataset.needs_check)


def test_an_index_that_is_lost_while_the_dataset_is_open_is_made_anew(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", VM2)
    with ondisk.open(world.path) as dataset:
        world.lose_index()
        assert dataset.needs_check
        assert not dataset.fix().needs_check
    assert world.content() == "0123"


def test_who_opened_a_dataset_to_read_cannot_fix_it(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", VM2)
    world.sentinel()
    with ondisk.open(world.path, read_only=True) as dataset, pytest.raises(ReadOnly):
        dataset.fix()
    assert (world.path / SENTINEL).exists()


def test_a_fix_that_does_not_get_the_lock_says_so_and_leaves_the_sentinel(tmp_path: Path) -> None:
    kind = Kind("vm2", {"format": "vm2", "lock_timeout": 0})
    world = World.make(tmp_path / "dataset", kind)
    world.sentinel()
    with ondisk.open(world.path) as dataset, locked(world.path), pytest.raises(LockError):
        dataset.fix()
    assert (world.path / SENTINEL).exists()


def test_what_cannot_be_read_is_reported_the_rest_is_fixed_and_the_sentinel_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.make(tmp_path / "dataset", VM2)
    world.lose_index()
    pread, bad = os.pread, world.file(A).stat().st_ino

    def failing(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(5, "Input/output error")
        return pread(descriptor, size, offset)

    def from_now_on(_: str) -> None:
        monkeypatch.setattr(os, "pread", failing)

    with ondisk.open(world.path) as dataset:
        with pytest.raises(StorageError, match="Input/output error") as caught:
            dataset.fix(progress=from_now_on)
        monkeypatch.undo()
        report = caught.value.context["report"]
        assert "it could not be fixed" in done(report).reasons[-1]
        assert report.needs_check
        assert (world.path / SENTINEL).exists()
        assert dataset.summary().count == 2
        assert not dataset.fix().needs_check
    assert world.content() == "0123"


def test_an_index_that_is_lost_while_a_fix_runs_keeps_its_sentinel(tmp_path: Path) -> None:
    """The fix has looked at what the first index lacked; a repack would remove all other files of the second."""
    world = World.make(tmp_path / "dataset", VM2)
    world.delete(0)
    world.sentinel()

    def lose(_: str) -> None:
        world.lose_index()
        world.opened(lambda dataset: None)

    with ondisk.open(world.path) as dataset:
        assert dataset.fix(progress=lose).needs_check
    assert world.states(world.check()) == {B: "UNALIGNED"}
    world.fix()
    world.repack()
    assert world.content() == "0123"
    assert world.opened(lambda dataset: dataset.summary().count) == 6


def test_a_sentinel_that_appears_while_a_fix_runs_stays(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", VM2)
    world.put(C, world.foreign(), newer=True)
    with ondisk.open(world.path) as dataset:
        assert dataset.fix(progress=lambda _: world.sentinel()).needs_check
        assert not dataset.fix().needs_check
    assert world.content() == "0123ab"


def test_a_fix_that_ends_in_the_middle_says_what_it_did(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", Kind("vm2", {"format": "vm2", "lock_timeout": 0}))
    world.file(A).unlink()
    world.put(C, world.foreign(), newer=True)
    with contextlib.ExitStack() as stack:
        dataset = stack.enter_context(ondisk.open(world.path))

        def lock(segment: str) -> None:
            if segment == world.name(A):
                stack.enter_context(locked(world.path))

        with pytest.raises(LockError) as caught:
            dataset.fix(progress=lock)
    report = caught.value.context["report"]
    assert {each.segment: each.action for each in report} == {world.name(C): "rescan"}


def test_files_that_are_newer_than_the_index_stay_so_while_others_are_fixed(tmp_path: Path) -> None:
    """A fix commits; what it reads next must not look older for that, and be left to a repack that deletes it."""
    world = World.make(tmp_path / "dataset", VM2)
    for name in (B, C):
        world.put(name, b"", newer=False)
        world.file(name).write_bytes(VM2.datum(10 if name == B else 20).data + b"\n")
    world.sql("DELETE FROM datum")
    world.sql("DELETE FROM segment")
    for name in (A, B, C):
        world.file(name).touch()
    assert set(world.states(world.check()).values()) == {"UNALIGNED"}
    world.fix()
    assert world.states(world.check()) == {}
    assert world.opened(lambda dataset: dataset.summary().count) == 6


def test_a_folder_that_is_away_is_not_forgotten(tmp_path: Path) -> None:
    """As where a disk is not mounted: the index would forget all, and a repack delete it when it is back."""
    world = World.make(tmp_path / "dataset", VM2)
    away = tmp_path / "away"
    (world.path / "2026").rename(away)
    for verb in (world.fix, world.repack):
        report = verb()
        assert "is a disk not mounted?" in done(report).reasons[-1]
        assert done(report).action is None
    away.rename(world.path / "2026")
    assert world.states(world.check()) == {}
    assert world.content() == "0123"
    world.file(A).unlink()
    report = done(world.fix())
    assert (report.action, report.lost) == ("remove from the index", 4)


@pytest.mark.parametrize("sql", ['UPDATE segment SET "begin" = 0, "end" = 1', 'UPDATE segment SET "end" = "begin"'])
def test_a_segment_whose_span_is_damaged_is_left_alone(world: World, sql: str) -> None:
    world.sql(sql)
    assert set(world.states(world.check()).values()) == {"CORRUPTED"}
    before = world.file(A).read_bytes()
    world.fix()
    world.repack()
    assert world.file(A).read_bytes() == before
    assert set(world.states(world.check()).values()) == {"CORRUPTED"}


def test_a_segment_with_data_of_other_times_is_forgotten_with_them_also_by_who_fixed_before_it_was_there(
    world: World,
) -> None:
    with ondisk.open(world.path) as dataset:
        world.file(B).unlink()
        assert done(dataset.fix(), B).lost == 2
        world.file(A).rename(world.file(C))
        world.fix()
        world.file(C).unlink()
        assert done(dataset.fix(), C).lost == 4
    assert world.states(world.check()) == {}


def test_nothing_is_appended_to_a_segment_that_is_gone_with_its_data_of_other_times(world: World) -> None:
    world.file(A).rename(world.file(C))
    world.fix()
    world.file(C).rename(world.path / "away")
    refused = world.opened(lambda dataset: dataset.append([world.kind.datum(20)]).refusals)
    assert [reason for _, reason in refused if "is in the index, but not on disk" in reason]
    (world.path / "away").rename(world.file(C))
    assert world.content() == "0123"


def test_data_of_other_times_than_the_name_of_their_segment_are_deleted_by_location(world: World) -> None:
    world.file(A).rename(world.file(C))
    world.fix()
    with ondisk.open(world.path) as dataset:
        found = [datum.location for datum in dataset.query()]
        assert dataset.delete(each for each in found if each.segment == world.name(C)) == 4
    assert world.states(world.check()) == {C: "DELETED"}


@pytest.mark.parametrize("sql", ["DELETE FROM block", "UPDATE block SET position = position - 1"])
def test_damaged_places_of_blocks_are_found_and_healed(tmp_path: Path, sql: str) -> None:
    world = World.make(tmp_path / "dataset", LZ4)
    world.sql(sql)
    assert State.CORRUPTED in world.check(accurate=True).segments[0].state
    with ondisk.open(world.path) as dataset:
        dataset.check(max_duration=60)
        dataset.fix()
    assert world.content() == "0123"
    assert world.states(world.check(accurate=True)) == {}


def test_names_on_disk_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", VM2)
    strange = world.path / os.fsdecode(b"2026/caf\xe9.vm2")
    strange.write_bytes(b"x")
    for verb in (world.check, world.fix, world.repack):
        assert verb().counts["corrupted"] == 1
    assert strange.exists()


@pytest.mark.parametrize("kind", [LZ4, PLAIN], ids=lambda kind: kind.name)
@pytest.mark.parametrize("appended", [False, True], ids=["", "appended"])
def test_data_that_a_header_counts_and_its_file_lacks_are_lost_with_the_index(
    kind: Kind, appended: bool, tmp_path: Path
) -> None:
    """The count is the only proof. An append before the fix leaves it; later fixes have an index to believe."""
    world = World.make(tmp_path / "dataset", kind)
    cut(world, world.ends[2])
    world.lose_index()
    if appended:
        world.append(2)
    report = done(world.fix())
    assert report.lost == 2
    assert any("up to 2 data are lost: its header counts more" in each for each in report.reasons)
    assert world.content() == "01" + "2" * appended
    assert world.fix().lost == 0
    world.append(3)  # now the count is that of the index
    world.lose_index()
    assert done(world.fix()).lost == 0


@pytest.mark.parametrize("format", ["jsonl", "blob"])
def test_a_generation_without_its_name_is_read_when_the_index_is_lost(
    create: Callable[..., ondisk.Dataset], format: str
) -> None:
    """As after a kill between the commit of a new segment and its rename."""
    dataset = create(format=format)
    dataset.append([Datum(START, {}, b"one" if format == "blob" else {"n": 1})])
    before = [*dataset.query()]
    dataset.close()
    path = dataset.path / f"2026/11-20.{format}"
    path.rename(path.with_name(f".11-20.{format}.1"))
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert [*again.query()] == before
        assert not again.needs_check
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_file_that_changes_while_a_fix_reads_it_is_left_to_the_next(
    create: Callable[..., ondisk.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = create()
    dataset.append([Datum(START, {}, {"n": 1})])
    dataset.close()
    lose_index(dataset.path)
    path, scan = dataset.path / "2026/11-20.jsonl", LineFormat.scan
    line = path.read_bytes().replace(b"1}", b"2}")

    def changing(format: LineFormat, file: SegmentFile) -> Iterator[ScanResult]:
        yield from scan(format, file)
        with path.open("ab") as other:
            other.write(line)

    with ondisk.open(dataset.path) as again:
        with monkeypatch.context() as patch:
            patch.setattr(LineFormat, "scan", changing)
            with pytest.raises(StorageError, match="was changed while it was read"):
                again.fix()
        assert again.needs_check
        assert [*again.query()] == []
        again.fix()
        assert [each.data["n"] for each in again.query()] == [1, 2]


def test_a_datum_keeps_its_number_if_equal_data_before_it_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    config = {"format": "jsonl", "step": "daily", "unique": ["reftime", "station"], "replace": "yes"}
    with ondisk.create(path, {**config, "fields": {"station": "integer", "level": "real"}}) as dataset:
        for metadata in ({}, {"level": 1.0}, {"station": 1}):
            dataset.append([Datum(START, metadata, {})])
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.append([Datum(START, {}, {})])
        dataset.fix()
        changes = dataset.changes().changes
        assert [each.kind for each in changes] == [Change.APPENDED] * 2
        assert [dict(each.datum.metadata) for each in changes if each.datum] == [{}, {"station": 1}]


@pytest.mark.parametrize("other", ["link", "folder", "nothing"])
def test_data_are_read_from_the_name_to_which_their_file_was_copied_whatever_is_at_the_old_one(
    other: str, create: Callable[..., ondisk.Dataset], tmp_path: Path
) -> None:
    with create(step="daily", fields={"n": "integer"}, unique=["reftime", "n"]) as dataset:
        dataset.append(Datum(START.replace(day=day), {"n": day}, {}) for day in (20, 21))
        first, second = (dataset.path / each.segment for each in dataset.check())
        second.write_bytes(first.read_bytes())
        first.rename(tmp_path / "elsewhere")
        if other == "link":
            first.symlink_to(tmp_path / "elsewhere")
        elif other == "folder":
            first.mkdir()
        report = dataset.fix()
        assert not any(each.failed for each in report if isinstance(each, Done))
        assert [each.metadata["n"] for each in dataset.query(with_data=False)] == [20]


def test_a_block_of_lz4_without_data_ends_no_fix(create):
    dataset = create(format="seg")
    dataset.append([Datum(START + timedelta(days=day), {}, {"n": day}) for day in range(3)])
    path = dataset.path
    dataset.close()
    file = path / f"{START + timedelta(1):%Y/%m-%d}.seg"
    content = file.read_bytes()  # header, head of the LZ4 frame, blocks
    file.write_bytes(content[:19] + (0x80000000).to_bytes(4, "little") + content[19:])
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert [datum.data["n"] for datum in dataset.query()] == [0, 1, 2]


def test_an_append_leaves_entries_of_files_that_an_older_index_does_not_know(create, tmp_path):
    dataset = create(format="blob", fields={"n": "integer"})
    dataset.append([Datum(START, {"n": 0}, b"0")])
    path = dataset.path
    dataset.close()
    shutil.copytree(path, tmp_path / "older")
    with ondisk.open(path) as dataset:
        dataset.append([Datum(START, {"n": n}, b"%d" % n) for n in (1, 2)])
    for log in path.glob("index.sqlite-*"):
        log.unlink()
    for name in ("index.sqlite", ".tide"):
        shutil.copy(tmp_path / "older" / name, path / name)
    (path / SENTINEL).touch()
    with ondisk.open(path) as dataset:
        dataset.append([Datum(START, {"n": 3}, b"3")])
        dataset.fix()
        assert sorted(datum.metadata["n"] for datum in dataset.query()) == [0, 1, 2, 3]
        assert [each for each in dataset.check(accurate=True).findings if each.state != State.DIRTY] == []


def test_what_a_new_index_could_not_read_is_not_deleted_as_unknown_when_it_is_back(tmp_path):
    world = World.make(tmp_path / "dataset", Kind("jsonl", {"format": "seg", "unknown_segments": "delete"}))
    whole = world.file(A).read_bytes()
    put_back(world, bytes(len(whole)))
    world.lose_index()
    with pytest.raises(SegmentCorrupt, match="cannot be read into a new index"):
        world.fix()
    put_back(world, whole)
    world.fix()
    world.repack()
    assert world.content() == "0123"


def test_a_file_that_is_cut_before_its_turn_is_reported(world: World) -> None:
    world.sentinel()
    os.utime(world.file(A), ns=(1, 1))
    with ondisk.open(world.path) as dataset:
        report = dataset.fix(progress=lambda name: os.truncate(world.file(A), 2))
    assert "CORRUPTED" in world.states(report)[A]


def test_a_lost_segment_is_not_taken_for_an_older_one_with_the_same_bytes(create, tmp_path):
    dataset = create(format="seg", step="sequence", segment_size=1)
    for _ in range(2):
        dataset.append([Datum(START, {}, {"n": 1})])
    (tmp_path / "dataset/1.seg").unlink()
    assert [each.lost for each in dataset.fix()] == [1]


def test_copies_are_recognised_also_when_the_fields_have_another_order_in_the_configuration(create, tmp_path):
    dataset = create(format="jsonl", fields={"a": "integer", "b": "integer"})
    dataset.append(Datum(START, {"a": n, "b": 10 + n}, {}) for n in range(3))
    dataset.close()
    config = tmp_path / "dataset/dataset.toml"
    config.write_text(config.read_text().replace("a = ", "c = ").replace("b = ", "a = ").replace("c = ", "b = "))
    copy = tmp_path / "dataset/.archive/old/2026/11-20.jsonl"
    copy.parent.mkdir(parents=True)
    first, second, _ = (tmp_path / "dataset/2026/11-20.jsonl").read_bytes().splitlines(keepends=True)
    copy.write_bytes(first + second + first.replace(b"10", b"77"))
    with ondisk.open(tmp_path / "dataset") as again:
        assert list(again.config.fields) == ["b", "a"]
        again.fix()
        assert sorted(each.metadata["b"] for each in again.query()) == [10, 11, 12, 77]
