"""Repack: segments without holes and in query order, byte by byte; readers keep what they saw; damage is left."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from worlds import DAY, DELETE_AGE, KINDS, START, A, B, C, Kind, World, access_to, number_of, rot

import ondisk
from ondisk import Datum
from ondisk.errors import DiskFull, StorageError
from ondisk.filesystem import Directory
from ondisk.formats.diskqueue.blocks import END_MARK
from ondisk.index.changes import Removal
from ondisk.maintenance import durable_steps
from ondisk.maintenance.states import Done, Report, State
from ondisk.segments import generations

from .test_matrix import flip

LZ4, PLAIN, VM2, JSONL = KINDS


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind, [0, 2, 1, 3])


def done(report: Report, segment: str = A) -> Done:
    (found,) = (each for each in report if each.segment.startswith(segment))
    assert isinstance(found, Done)
    return found


def fresh(world: World, *numbers: int) -> bytes:
    """Return the bytes of a segment to which these data were appended at once, sealed where it can be."""
    other = World(world.path.with_name("fresh"), world.kind)
    with ondisk.create(other.path, world.kind.config) as dataset:
        dataset.append(map(world.kind.datum, numbers))
    return other.file(A).read_bytes() + (END_MARK if world.kind is LZ4 else b"")


def test_a_repacked_segment_is_what_one_append_of_its_data_in_order_would_have_made(world: World) -> None:
    world.delete(2)
    before = world.file(A).stat().st_size
    report = done(world.repack())
    assert world.file(A).read_bytes() == fresh(world, 0, 1, 3)
    assert (report.action, report.state) == ("repack", State.DIRTY)
    assert report.freed == before - world.file(A).stat().st_size
    assert [each.name for each in world.file(A).parent.iterdir()] == [world.file(A).name]


def test_a_file_that_goes_while_it_is_repacked_costs_the_other_segments_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.delete(2, 10)
    take = generations.link_old

    def removed_before(directory: Directory, name: str, *generation: Any) -> None:
        if name.startswith(A):
            directory.unlink(name)
        take(directory, name, *generation)

    monkeypatch.setattr(generations, "link_old", removed_before)
    with pytest.raises(StorageError) as error:
        world.repack()
    report = error.value.context["report"]
    assert "could not be repacked" in done(report, A).reasons[-1]
    assert done(report, B).action is not None


def test_data_keep_their_numbers_and_their_metadata(world: World) -> None:
    seqs = world.sql("SELECT seq, f_area, reftime FROM datum ORDER BY seq")
    world.repack()
    assert world.sql("SELECT seq, f_area, reftime FROM datum ORDER BY seq") == seqs
    assert world.states(world.check(accurate=True)) == {}


def test_a_repacked_segment_grows_on(world: World) -> None:
    world.delete(3)
    world.repack()
    world.append(3)
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


@pytest.mark.parametrize("kind", [PLAIN, VM2], ids=lambda kind: kind.name)
def test_large_data_are_copied_and_small_ones_between_them_laid_together(kind: Kind, tmp_path: Path) -> None:
    """Some pieces are copied in the kernel and some written, in one segment."""
    if kind is VM2:
        config = {"format": "jsonl", "step": "daily", "fields": {"n": "integer"}}
    else:
        config = {"format": "seg", "step": "daily", "compression": "none", "fields": {"n": "integer"}}
    sizes = [5, 3_000_000, 3_000_000, 7, 20, 2_500_000, 9, 4_000_000, 11]
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        data = [
            Datum(START + timedelta(hours=at), {"n": at}, {"text": chr(97 + at) * size})
            for at, size in enumerate(sizes)
        ]
        dataset.append(data[::2])
        dataset.append(data[1::2])
        assert dataset.delete(dataset.fields.n == 3) == 1
        dataset.repack()
        assert [(datum.metadata["n"], datum.data) for datum in dataset.query()] == [
            (at, each.data) for at, each in enumerate(data) if at != 3
        ]
        assert not [each for each in dataset.check(accurate=True) if each.state]
        dataset.append([data[3]])
        assert len([*dataset.query()]) == len(data)


def test_a_query_that_began_before_returns_what_was_there_and_then_the_space_comes_back(world: World) -> None:
    with ondisk.open(world.path) as dataset:
        query = dataset.query()
        first = next(query)
        dataset.delete('area: "VM2,1"')
        report = dataset.repack()
        assert done(report).action == "repack"
        hidden = [each for each in world.file(A).parent.iterdir() if each.name.startswith(".")]
        assert len(hidden) == 1
        assert [number_of(each) for each in (first, *query)] == [0, 1, 2, 3, 10, 11]
        assert [number_of(each) for each in dataset.query()] == [0, 2, 3, 10, 11]
        dataset.append([world.kind.datum(1)])  # a commit, behind which nobody is
        assert not hidden[0].exists()


def test_a_segment_whose_bytes_cannot_be_read_is_left_and_noted(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", LZ4)
    world.delete(3)
    content = bytearray(world.file(A).read_bytes())
    content[world.ends[1] + 4 : world.ends[2]] = b"\xff" * (world.ends[2] - world.ends[1] - 4)
    rot(world.file(A), content)
    report = done(world.repack())
    assert report.state == State.DIRTY | State.CORRUPTED
    assert report.action is None
    assert world.file(A).read_bytes() == content
    assert world.states(world.check()) == {A: "DIRTY|CORRUPTED"}
    assert [each.name for each in world.file(A).parent.iterdir()] == [world.file(A).name]
    assert done(world.repack()).action is None


@pytest.mark.check
def test_a_flipped_byte_does_not_hide_behind_a_repack(tmp_path: Path) -> None:
    """A repack copies bytes as they are: an accurate check still finds what was damaged before."""
    for number, kind in enumerate(KINDS):
        world = World.make(tmp_path / str(number), kind)
        world.delete(3)
        flip(world)
        world.repack()
        assert "CORRUPTED" in world.states(world.check(accurate=True))[A]


def test_what_a_repack_frees_is_reported_beforehand(world: World) -> None:
    world.delete(1, 10, 11)
    told = {each.segment: each.freed for each in world.check() if each.state}
    report = world.repack()
    freed = {each.segment: each.freed for each in report if isinstance(each, Done)}
    assert freed[world.name(B)] == told[world.name(B)] > 0
    assert told.keys() == freed.keys()
    assert report.freed == sum(freed.values())
    if world.kind is not LZ4:
        assert told == freed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_repack_deletes_unknown_segments_only_if_the_configuration_says_so_and_check_says_so(
    kind: Kind, tmp_path: Path
) -> None:
    world = World.make(tmp_path / "keeping", kind)
    world.put(C, world.foreign(), newer=False)
    world.repack()
    assert world.states(world.check()) == {C: "UNALIGNED"}
    world = World.make(tmp_path / "deleting", Kind(kind.name, {**kind.values, "unknown_segments": "delete"}))
    world.put(C, world.foreign(), newer=False)
    told = {each.segment for each in world.check() if each.action == "delete"}  # type: ignore[union-attr]
    files = set(world.path.rglob(f"*.{world.kind.extension}"))
    world.repack()
    gone = files - set(world.path.rglob(f"*.{world.kind.extension}"))
    assert {str(each.relative_to(world.path)) for each in gone} == told == {world.name(C)}


@pytest.mark.parametrize("left", [0, 2])
def test_a_segment_of_which_a_killed_repack_left_some_data_is_removed_by_the_next(left: int, world: World) -> None:
    """On a full disk the data of one that is too old go some at a time."""
    seqs = world.sql("SELECT seq FROM datum ORDER BY seq")
    with access_to(world.path) as access, access.transaction("test") as transaction:
        (segment,) = transaction.segments([world.name(A)]).values()
        assert transaction.remove_some(segment, 4 - left, Removal.AGED) == 4 - left
        transaction.commit()
    world.now += DELETE_AGE * DAY
    assert "DELETE" in world.states(world.check())[A]
    assert done(world.repack()).action == "delete"
    assert not world.file(A).exists()
    assert world.states(world.check()) == {}
    assert world.content() == ""
    assert world.sql("SELECT datum FROM deletion ORDER BY datum") == seqs[2:]


def test_no_bytes_that_have_rotten_are_written_again(create: Callable[..., ondisk.Dataset]) -> None:
    dataset = create(format="vm2", fields={"area": "text"})
    dataset.append_file(io.BytesIO(b"202611200600,5,227,1.2,,,\n202611200700,6,227,1.2,,,\n"))
    dataset.delete("area: VM2,5")
    path = dataset.path / "2026/11-20.vm2"
    rot(path, path.read_bytes().replace(b",6,227,1.2", b",6,227,9.2"))
    before = path.read_bytes()
    (done,) = dataset.repack()
    assert State.CORRUPTED in done.state
    assert "do not have their checksum" in done.reasons[-1]
    assert path.read_bytes() == before


@pytest.mark.check
def test_a_deleted_datum_that_returns_from_a_second_copy_is_reported(world: World) -> None:
    copy = world.path / ".archive/bar" / world.name(A)
    copy.parent.mkdir(parents=True)
    shutil.copy2(world.file(A), copy)
    world.fix()
    with ondisk.open(world.path) as dataset:
        dataset.delete([next(dataset.query()).location])
        dataset.repack()
        count = dataset.summary().count
        report = dataset.repack(second_copies=True)
        returned = dataset.summary().count - count
    told = sum("read that the index did not have; if you had deleted any" in " ".join(each.reasons) for each in report)
    assert bool(told) == bool(returned)


def test_lost_data_whose_rows_a_killed_repack_removed_come_back_with_their_file(world: World) -> None:
    whole = world.file(A).read_bytes()
    world.file(A).unlink()
    with access_to(world.path) as access, access.transaction("test") as transaction:
        (segment,) = transaction.segments([world.name(A)]).values()
        assert transaction.remove_some(segment, 2, Removal.LOST) == 2
        transaction.commit()
    world.file(A).write_bytes(whole)
    world.fix()
    world.repack()
    assert world.content() == "0123"


def test_a_full_disk_gets_no_copy_of_the_same_bytes_each_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.make(tmp_path / "dataset", JSONL)
    world.delete(0)
    with world.file(A).open("ab") as file:
        file.write(b"of somebody")
    world.fix()
    monkeypatch.setattr(durable_steps, "lay", Mock(side_effect=DiskFull("no space left")))
    with pytest.raises(DiskFull):
        world.repack()
    assert world.opened(lambda dataset: [*dataset.quarantine]) == []
