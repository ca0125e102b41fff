"""A file that another program has changed, and in which a fix finds no data: each check names it, and nothing loops."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from worlds import KINDS, START, A, Kind, World

import ondisk
from ondisk import Datum
from ondisk.errors import SegmentCorrupt
from ondisk.maintenance.states import State


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind)


def spoil(world: World) -> None:
    """Overwrite everything after the beginning of the first datum, as a program with a bug does."""
    begin, size = world.ends[0] + 2, world.file(A).stat().st_size
    with world.file(A).open("r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * (size - begin))


def reasons(world: World) -> str:
    (found,) = (each for each in world.check() if each.state)
    assert "CORRUPTED" in found.state.names, found
    assert "UNALIGNED" not in found.state.names, found
    return "; ".join(found.reasons)


def test_after_a_fix_each_check_says_why_the_file_cannot_be_read(world: World) -> None:
    whole = world.path.with_name("whole")
    shutil.copy2(world.file(A), whole)
    seqs = world.sql("SELECT seq, reftime FROM datum ORDER BY seq")
    spoil(world)
    spoiled = world.file(A).read_bytes()
    first = world.fix()
    reason = reasons(world)
    (done,) = (each for each in first if each.state)
    assert set(reason.split("; ")) <= set("; ".join(done.reasons).split("; ")), "what the fix has said"
    for _ in range(2):
        world.fix()
        world.repack()
        assert reasons(world) == reason
    assert world.file(A).read_bytes() == spoiled
    assert world.sql("SELECT seq, reftime FROM datum ORDER BY seq") == seqs, "the index keeps its data"
    with pytest.raises(SegmentCorrupt) as caught:
        world.opened(lambda dataset: [*dataset.query()], read_only=True)
    assert caught.value.hint is not None
    is_read = "none of its data can be read" in caught.value.message  # else a check sees it without a fix
    assert (f"--salvage {world.name(A)}" if is_read else "or says why not") in caught.value.hint

    shutil.copy2(whole, world.file(A))  # from a backup
    world.fix()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == "0123"
    assert world.sql("SELECT seq, reftime FROM datum ORDER BY seq") == seqs


def test_a_file_that_is_changed_again_is_read_again(world: World) -> None:
    whole = world.file(A).read_bytes()
    spoil(world)
    world.fix()
    reasons(world)
    world.file(A).write_bytes(whole[: world.ends[2]] + world.file(A).read_bytes()[world.ends[2] :])
    world.fix()
    assert world.content() == "01"


def test_what_is_whole_can_be_salvaged(world: World) -> None:
    spoil(world)
    world.fix()
    world.opened(lambda dataset: dataset.fix(salvage=[world.name(A)]))
    world.repack()
    assert world.states(world.check(accurate=True)) == {}
    assert world.content() == ""


def test_a_directory_without_its_entries_is_named_by_each_check(tmp_path: Path) -> None:
    fields = {"unique": ["reftime"], "fields": {"n": "integer"}}
    with ondisk.create(
        tmp_path / "dataset", {"format": "blob", "extension": "h5", "step": "daily", **fields}
    ) as dataset:
        dataset.append([Datum(START + timedelta(hours=n), {"n": n}, b"%d" % n) for n in range(3)])
        entries = dataset.path / "2026/11-20.h5/.metadata"
        shutil.copy2(entries, tmp_path / "whole")
        entries.write_bytes(b"\0" * entries.stat().st_size)
        for _ in range(3):
            dataset.fix()
            (found,) = dataset.check()
            assert found.state is State.CORRUPTED
            assert "3 files are damaged" in found.reasons[0]
            with pytest.raises(SegmentCorrupt) as caught:
                [*dataset.query()]
            assert "--salvage 2026/11-20.h5" in str(caught.value)
        shutil.copy2(tmp_path / "whole", entries)
        dataset.fix()
        assert not [each for each in dataset.check(accurate=True) if each.state]
        assert [each.data for each in dataset.query()] == [b"0", b"1", b"2"]
