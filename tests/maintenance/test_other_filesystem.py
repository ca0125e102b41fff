"""An archive on another filesystem than its dataset: files of segments are copied there and back, not linked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worlds import access_to, content, datum

import ondisk
from ondisk.index.transaction import Transaction
from ondisk.maintenance.kinds import kind_of

CONFIG = {"step": "daily", "unique": ["reftime", "station"], "fields": {"station": "text"}}

KINDS = [
    {"format": "jsonl"},
    {"format": "seg"},
    {"format": "seg", "compression": "none"},
    {"format": "blob"},
]


def data(format: str) -> list[ondisk.Datum]:
    """Make data of two days."""
    return [datum(hour, station, format=format) for hour in range(0, 48, 6) for station in "ab"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """Return the devices and inodes that are synced."""
    sync, found = os.fsync, set()

    def noted(descriptor: int) -> None:
        stat = os.fstat(descriptor)
        found.add((stat.st_dev, stat.st_ino))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def copied(source: Path, target: Path, name: str, commit: Callable[[Transaction], None]) -> bool:
    """Copy a segment to another dataset, as a move to an archive begins; return whether it was linked."""
    with access_to(source) as one, access_to(target) as other:
        with one.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
        assert segment is not None
        move = kind_of(one.format(segment.format)).move(one, other, segment)
        with other.transaction("archive") as transaction:
            move.copy(transaction)
            commit(transaction)
        return move.is_linked


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: "-".join(each.values()))
def test_a_copied_segment_is_whole_and_synced_before_the_commit(create, elsewhere, synced, kind):
    dataset = create(**CONFIG, **kind)
    dataset.append(data(kind["format"]))
    name = f"2026/11-20.{kind['format']}"
    target = elsewhere / "archive"
    ondisk.create(target, {**CONFIG, **kind}).close()
    before = content(dataset, "reftime: =2026-11-20")
    dataset.close()

    def commit(transaction: Transaction) -> None:
        made = [each.stat() for each in (target / "2026", *target.glob("2026/**/*"))]
        assert len(made) >= 2
        assert {(each.st_dev, each.st_ino) for each in made} <= synced
        transaction.commit()

    assert not copied(dataset.path, target, name, commit)
    with ondisk.open(target) as archive:
        assert content(archive) == before
        assert archive.check(accurate=True).is_clean
        archive.append([datum(23, "z", format=kind["format"])])
        assert archive.check(accurate=True).is_clean


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: "-".join(each.values()))
def test_a_copy_that_is_not_committed_leaves_nothing(create, elsewhere, kind):
    dataset = create(**CONFIG, **kind)
    dataset.append(data(kind["format"]))
    target = elsewhere / "archive"
    ondisk.create(target, {**CONFIG, **kind}).close()
    dataset.close()
    assert not copied(dataset.path, target, f"2026/11-20.{kind['format']}", lambda _: None)
    assert [*target.glob("2026/**/*")] == []


@pytest.fixture
def mount() -> Iterator[Callable[[Path], Path]]:
    """Mounts a filesystem in memory."""
    mounted = []

    def mount(place: Path) -> Path:
        place.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS, ids=lambda each: "-".join(each.values()))
def test_segments_move_to_an_archive_on_another_filesystem_and_back(create, mount, kind):
    dataset = create(**CONFIG, **kind)
    last = mount(dataset.path / ".archive/last")
    dataset.append(data(kind["format"]))
    before = sorted(map(str, content(dataset)))
    names = [f"2026/11-{day}.{kind['format']}" for day in (20, 21)]
    dataset.archive(*names)
    assert all((last / name).exists() and not (dataset.path / name).exists() for name in names)
    assert sorted(map(str, content(dataset))) == before
    late = [datum(23, "z", format=kind["format"])]
    dataset.append(late)
    dataset.archive(names[0])  # merged with what is there
    assert dataset.check(accurate=True).is_clean
    dataset.unarchive(*names)
    assert all((dataset.path / name).exists() and not (last / name).exists() for name in names)
    assert len(content(dataset)) == len(before) + 1
    assert dataset.check(accurate=True).is_clean
    dataset.close()
