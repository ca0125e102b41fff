"""Salvage: what is whole of a damaged segment stays, and its file goes to quarantine. Nobody does that unasked."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from worlds import GRIB, KINDS, START, A, B, C, Kind, World, rot, sql

import ondisk
from ondisk import Datum
from ondisk.errors import InvalidInput, SegmentCorrupt, SegmentMissing, counted
from ondisk.maintenance.states import Done, Report

from .test_matrix import cut_in_datum, flip

LAST = ".archive/last/"
DIRS = {"format": "blob", "step": "daily", "extension": "h5", "unique": ["reftime"], "fields": {"n": "integer"}}


@pytest.fixture(params=[*KINDS, GRIB], ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind)


def salvage(world: World, segment: str = "") -> Done:
    report: Report = world.opened(lambda dataset: dataset.fix(salvage=[segment or world.name(A)]))
    (found,) = (each for each in report if isinstance(each, Done) and each.action == "salvage")
    return found


def kept(world: World) -> list[bytes]:
    """Return the files in quarantine."""
    return [(world.path / each.name).read_bytes() for each in world.opened(lambda dataset: [*dataset.quarantine])]


def lost(world: World) -> int:
    ((count,),) = world.sql("SELECT lost FROM dataset")
    return int(count)


def touched(world: World) -> None:
    flip(world)
    world.file(A).touch()


def cut(world: World) -> None:
    cut_in_datum(world, 1)


@pytest.mark.parametrize(("damage", "left"), [(flip, "023"), (cut, "0")], ids=["bit rot", "cut"])
def test_what_is_whole_stays_under_its_number_and_the_file_goes_to_quarantine(
    damage: Callable[[World], None], left: str, world: World
) -> None:
    seqs = set(world.sql("SELECT seq, reftime FROM datum"))
    damage(world)
    damaged = world.file(A).read_bytes()
    done = salvage(world)
    gone = 4 - len(left)
    assert done.lost == lost(world) == gone
    assert f"{counted(gone, 'datum', 'is')} gone from the segment" in done.reasons
    assert kept(world) == [damaged]
    (item,) = world.opened(lambda dataset: [*dataset.quarantine])
    assert any(reason.endswith(f"the original file is now {item.name}") for reason in done.reasons)
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == left
    assert set(world.sql("SELECT seq, reftime FROM datum")) < seqs
    assert [*world.opened(lambda dataset: dataset.fix())] == []


def test_damage_that_a_fix_has_counted_is_not_counted_again(world: World) -> None:
    touched(world)
    assert world.fix().lost == lost(world) == 1
    for _ in range(2):
        assert world.fix().lost == 0
        assert world.states(world.repack()) == {A: "DIRTY|CORRUPTED"}
    assert world.content() == "023"
    salvage(world)
    assert lost(world) == 1
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "023"


def test_data_can_be_appended_afterwards(world: World) -> None:
    flip(world)
    salvage(world)
    world.append(1)
    assert sorted(world.content()) == [*"0123"]
    world.repack()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


def test_a_segment_that_is_whole_cannot_be_salvaged(world: World) -> None:
    before = world.file(A).read_bytes()
    with pytest.raises(InvalidInput, match="cannot be salvaged: it is OK"):
        salvage(world)
    assert world.file(A).read_bytes() == before
    assert kept(world) == []


def test_nothing_is_salvaged_if_one_of_the_names_is_refused(world: World) -> None:
    flip(world)
    before = world.file(A).read_bytes()
    with pytest.raises(InvalidInput, match="cannot be salvaged: it is OK") as raised:
        world.opened(lambda dataset: dataset.fix(salvage=[world.name(A), world.name(B)]))
    assert [*raised.value.context["report"]] == []
    assert world.file(A).read_bytes() == before
    assert (kept(world), lost(world)) == ([], 0)


def test_a_name_that_is_given_twice_is_salvaged_once(world: World) -> None:
    flip(world)
    report = world.opened(lambda dataset: dataset.fix(salvage=[world.name(A), world.name(A) + "/"]))
    assert (report.lost, lost(world)) == (1, 1)


def test_a_segment_with_data_of_other_times_cannot_be_salvaged(world: World) -> None:
    other = "2026/11-23"
    world.put(other, world.foreign(), newer=True)
    world.fix()
    (found,) = (each for each in world.check() if each.state)
    assert found.reasons == ("it has data of other times than its name says",)
    before = world.file(other).read_bytes()
    with pytest.raises(InvalidInput, match=f"cannot be salvaged: {found.reasons[0]}") as caught:
        salvage(world, world.name(other))
    assert "query" in str(caught.value.hint)
    assert world.file(other).read_bytes() == before
    assert kept(world) == []


@pytest.mark.parametrize("name", ["2026/11-23", LAST + "2026/11-20"])
def test_a_segment_that_is_nowhere_cannot_be_salvaged(name: str, world: World) -> None:
    with pytest.raises(SegmentMissing, match="has no file"):
        salvage(world, world.name(name))


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.name)
def test_a_file_of_garbage_goes_to_quarantine(kind: Kind, tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", kind)
    world.put(C, b"garbage", newer=True)
    assert salvage(world, world.name(C)).lost == 0
    assert kept(world) == [b"garbage"]
    world.repack()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.name)
def test_a_segment_without_its_header_is_left_with_its_rows(kind: Kind, tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", kind)
    content = b"\x07" + world.file(A).read_bytes()[1:]
    world.file(A).write_bytes(content)
    with pytest.raises(SegmentCorrupt, match="nothing in it can be read"):
        salvage(world)
    assert world.file(A).read_bytes() == content
    assert world.opened(lambda dataset: dataset.summary().count) == 6
    assert kept(world) == []
    assert len([*world.file(A).parent.iterdir()]) == 1


def test_a_segment_of_the_archive_is_salvaged_in_the_archive(world: World) -> None:
    world.opened(lambda dataset: dataset.archive(world.name(A)))
    file = world.path / LAST / world.name(A)
    content = bytearray(file.read_bytes())
    content[world.ends[1] + 10] ^= 0x80
    rot(file, bytes(content))
    assert salvage(world, LAST + world.name(A)).lost == 1
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "023"


def test_a_directory_in_which_nothing_is_whole_is_empty_afterwards(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", DIRS) as dataset:
        dataset.append([Datum(START, {"n": 1}, b"1")])
        (dataset.path / "2026/11-20.h5/.metadata").unlink()
        assert dataset.fix(salvage=["2026/11-20.h5"]).lost == 1
        dataset.repack()
        assert not [each for each in dataset.check(accurate=True) if each.state]
        assert [*dataset.query()] == []
        (item, *_) = dataset.quarantine
        assert (dataset.path / item.name / "000000.h5").read_bytes() == b"1"


@pytest.mark.parametrize("damage", [os.unlink, lambda path: path.write_bytes(b"other")], ids=["missing", "changed"])
def test_of_a_directory_the_whole_files_stay(damage: Callable[[Path], None], tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", DIRS) as dataset:
        dataset.append([Datum(START + timedelta(hours=n), {"n": n}, b"%d" % n) for n in range(3)])
        damage(dataset.path / "2026/11-20.h5/000001.h5")
        assert dataset.fix(salvage=["2026/11-20.h5"]).lost == 1
        assert [each.data for each in dataset.query()] == [b"0", b"2"]
        dataset.repack()
        assert not [each for each in dataset.check(accurate=True) if each.state]
        assert [each.data for each in dataset.query()] == [b"0", b"2"]
        assert not [*dataset.fix()]
        assert (dataset.path / next(iter(dataset.quarantine)).name / "000002.h5").read_bytes() == b"2"


def test_an_older_version_of_a_lost_datum_is_another_datum(tmp_path: Path) -> None:
    """Both have the same size, so only their place tells them apart: the lost one is counted, under its number."""
    with ondisk.create(tmp_path / "dataset", DIRS | {"replace": "yes"}) as dataset:
        for version in (b"old version", b"new version"):
            dataset.append([Datum(START, {"n": 1}, version)])
        [[seq]] = sql(dataset.path, "SELECT seq FROM datum")
        (name,) = (path.name for path in (dataset.path / f"{START:%Y}").glob("*.h5"))
        segment = f"{START:%Y}/{name}"
        Path(dataset.path, segment, "000001.h5").unlink()
        (done,) = (each for each in dataset.fix(salvage=[segment]) if each.action == "salvage")
        assert "1 datum is gone from the segment" in "; ".join(done.reasons)
        assert [datum.data for datum in dataset.query()] == [b"old version"]
        assert dataset.info()["lost"] == 1
        [[other]] = sql(dataset.path, "SELECT seq FROM datum")
        assert other > seq
        assert sql(dataset.path, "SELECT datum FROM deletion WHERE forgotten") == [(seq,)]


def test_an_older_version_of_an_edited_datum_is_another_datum(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", DIRS | {"replace": "yes"}) as dataset:
        for version in (b"old version", b"new version"):
            dataset.append([Datum(START, {"n": 1}, version)])
        [[seq]] = sql(dataset.path, "SELECT seq FROM datum")
        (file,) = (dataset.path / f"{START:%Y}").glob("*.h5/000001.h5")
        file.write_bytes(b"NEW VERSION")
        dataset.fix()
        assert dataset.info()["lost"] == 1
        assert [(datum.data) for datum in dataset.query()] == [b"old version"]
        [[other]] = sql(dataset.path, "SELECT seq FROM datum")
        assert other > seq
