"""What somebody put at the hidden name of a segment's generation: it takes the place of nothing, and is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from worlds import GRIB, KINDS, A, Kind, World


def garbage(place: Path) -> None:
    place.write_bytes(b"short")


def folder(place: Path) -> None:
    place.mkdir()
    (place / "file").write_bytes(b"somebody's")


def link(place: Path) -> None:
    place.symlink_to("../dataset.toml")


@pytest.fixture(params=[*KINDS, GRIB], ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind)


def place_of(world: World) -> Path:
    ((generation,),) = world.sql("SELECT id FROM segment WHERE name = ?", world.name(A))
    return world.hidden(A, generation)


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


@pytest.mark.parametrize("put", [garbage, folder, link])
@pytest.mark.parametrize("is_dirty", [False, True])
def test_a_good_segment_stays_whole_whatever_is_at_its_hidden_name(put, is_dirty: bool, world: World) -> None:
    if is_dirty:
        world.delete(1)
    before, place, content = world.file(A).read_bytes(), place_of(world), world.content()
    put(place)
    for _ in range(2):
        (found,) = (each for each in world.check() if each.state)
        assert "CORRUPTED" in found.state.names
        assert f"2026/{place.name} has the name of a generation of it" in found.reasons[0]
        world.fix()
        world.repack()
        assert world.file(A).read_bytes() == before
        assert world.content() == content, "readers do not take it for the segment"
    remove(place)
    assert world.states(world.check(accurate=True)) == ({A: "DIRTY"} if is_dirty else {})
    world.repack()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == content


@pytest.mark.parametrize("put", [garbage, folder, link])
def test_a_segment_without_data_is_not_removed_beside_a_stray(put, world: World) -> None:
    world.delete(0, 1, 2, 3)
    place = place_of(world)
    put(place)
    world.repack()
    assert world.states(world.check()) == {A: "DIRTY|CORRUPTED"}
    remove(place)
    world.repack()
    assert world.states(world.check()) == {}
