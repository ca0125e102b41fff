"""An archive on another filesystem than its dataset: files of segments are copied there and back, not linked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worlds import content, datum, lose_index

import ondisk
from ondisk.dataset.access import Access
from ondisk.filesystem import Directory, ReadableFile, WritableFile
from ondisk.index.transaction import Transaction

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


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: "-".join(each.values()))
@pytest.mark.parametrize("is_committed", [True, False])
def test_what_is_copied_without_a_link_is_whole_and_synced_before_the_commit(
    create, monkeypatch, synced, kind, is_committed
):
    dataset = create(**CONFIG, **kind)
    dataset.append(data(kind["format"]))
    before, commit = content(dataset), Transaction.commit
    name, last = f"2026/11-20.{kind['format']}", dataset.path / ".archive/last"

    def checked(transaction: Transaction) -> None:
        made = [*last.glob("2026/.*"), *last.glob("2026/.*/*"), last, last / "2026"]
        assert len(made) >= 3
        assert {(each.stat().st_dev, each.stat().st_ino) for each in made} <= synced
        if not is_committed:
            raise ZeroDivisionError
        commit(transaction)

    monkeypatch.setattr(Directory, "link", lambda *_: False)  # as on another filesystem
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", checked)
        patch.setattr(Access, "finish_moves", lambda _: None)
        with contextlib.nullcontext() if is_committed else pytest.raises(ZeroDivisionError):
            dataset.archive(name)
    assert content(dataset) == before
    assert (dataset.path / name).exists() is not is_committed
    assert [each.name for each in last.glob("2026/*")] == [name[5:]] * is_committed
    assert dataset.check(accurate=True).is_clean


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: "-".join(each.values()))
@pytest.mark.parametrize("part", [0.5, 0, 1])
def test_data_count_once_if_the_copy_of_their_segment_was_killed_and_then_the_index_is_lost(create, kind, part):
    dataset = create(**CONFIG | {"unique": []}, **kind)
    dataset.append(data(kind["format"]))
    before, name = sorted(map(str, content(dataset))), f"2026/11-20.{kind['format']}"
    dataset.close()
    killed_while_it_copies(dataset.path, name, part)
    lose_index(dataset.path)
    with ondisk.open(dataset.path) as rebuilt:
        rebuilt.fix()
        assert sorted(map(str, content(rebuilt))) == before


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: "-".join(each.values()))
def test_a_copy_that_was_killed_goes_when_the_dataset_is_opened_for_writing(create, kind):
    dataset = create(**CONFIG, **kind)
    dataset.append(data(kind["format"]))
    dataset.close()
    killed_while_it_copies(dataset.path, f"2026/11-20.{kind['format']}", 0.5)
    with ondisk.open(dataset.path) as opened:
        opened.append([])
        assert not [*dataset.path.glob(".archive/last/2026/.*")]
        assert opened.check(accurate=True).is_clean


def killed_while_it_copies(path: Path, name: str, part: float) -> None:
    """Archive a segment in a process that is killed with a part of it copied."""
    child = os.fork()
    if child == 0:
        try:
            copy = WritableFile.copy

            def killed(self: WritableFile, source: ReadableFile, begin: int, size: int, offset: int) -> None:
                copy(self, source, begin, int(size * part), offset)
                os.kill(os.getpid(), signal.SIGKILL)

            WritableFile.copy, Directory.link = killed, lambda *_: False  # type: ignore[method-assign,assignment]
            with ondisk.open(path) as dataset:
                dataset.archive(name)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


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
