"""Everyday use stays quiet: what is healthy, copied, restored or moved is OK, and nothing goes to quarantine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .law import check_law
from .tools import cp, cp_p, mounted_over, mv, rsync, tar, tool
from .victim import KINDS, LAST, A, B, Victim, number_of

VICTIMS = [pytest.param(kind, place, id=f"{kind}-{place or 'dataset'}") for kind in KINDS for place in ("", LAST)]
pytestmark = pytest.mark.parametrize(("kind", "place"), VICTIMS)


def whole(path: Path, kind: str, place: str) -> Victim:
    """Make a dataset as it is after some use: with deleted data that were repacked, and others that were not."""
    victim = Victim.make(path, kind, place)
    victim.delete(number_of(B, 200))
    assert victim.maintain() == 0
    victim.append(number_of(A, 650), number_of(5, 0))
    return victim


def assert_quiet(victim: Victim, capfd: pytest.CaptureFixture[str], *, maintains: int = 2) -> None:
    """Maintain: exit 0, and not a word of anything unusual."""
    check_law(victim)
    capfd.readouterr()
    for _ in range(maintains):
        code = victim.maintain()
        assert (code, capfd.readouterr().err) == (0, "")
    assert [*victim.check(accurate=True).findings] == []
    assert victim.given - victim.deleted == check_law(victim)
    assert [*victim.path.rglob(".quarantine/*")] == []


@pytest.mark.check
def test_a_nightly_maintain_of_a_healthy_dataset(tmp_path, kind, place, capfd):
    victim = whole(tmp_path / "dataset", kind, place)
    for night in range(5):
        victim.append(number_of(A, 660 + night), number_of(6 + night % 3, night))
        if night == 2:
            victim.delete(number_of(A, 400))
        if night == 3:
            assert victim.run("archive", victim.name(6), "--yes") == 0
        assert_quiet(victim, capfd, maintains=1)


RESTORES = {"cp-r": cp, "cp-a": cp_p, "rsync-a": rsync, "tar": tar, "mv": mv}


@pytest.mark.parametrize("restore", RESTORES.values(), ids=RESTORES)
def test_a_dataset_that_was_restored_whole(tmp_path, kind, place, capfd, restore):
    victim = whole(tmp_path / "dataset", kind, place)
    restore(victim.path, tmp_path / "restored")
    victim.path = tmp_path / "restored"
    assert victim.fix() == 0
    assert_quiet(victim, capfd)


@pytest.mark.parametrize("restore", [cp, cp_p, tar], ids=["cp-r", "cp-a", "tar"])
def test_a_dataset_that_was_restored_whole_and_is_used_at_once(tmp_path, kind, place, capfd, restore):
    """Nobody runs a fix first."""
    victim = whole(tmp_path / "dataset", kind, place)
    restore(victim.path, tmp_path / "restored")
    victim.path = tmp_path / "restored"
    assert victim.query().error is None
    assert victim.append(number_of(A, 670), number_of(4, 670)) == 0
    victim.delete(number_of(A, 400))
    assert_quiet(victim, capfd)


@pytest.mark.root
def test_a_dataset_that_was_moved_to_another_filesystem(tmp_path, kind, place, capfd):
    victim = whole(tmp_path / "dataset", kind, place)
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted_over(disk):
        tool("mv", victim.path, disk / "dataset")
        victim.path = disk / "dataset"
        assert victim.fix() == 0
        assert_quiet(victim, capfd)


def reset(victim: Victim, time: Callable[[Path], int]) -> None:
    for each in victim.path.rglob("*"):
        os.utime(each, ns=(time(each), time(each)))


TIMES = {
    "whole-seconds": lambda each: each.stat().st_mtime_ns // 10**9 * 10**9,
    "one-time-for-all": lambda each: 1_700_000_000 * 10**9,
    "the-beginning-of-time": lambda each: 0,
    "the-future": lambda each: 4_000_000_000 * 10**9,
}


@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES)
def test_times_that_were_reset_by_git_checkout_or_a_filesystem(tmp_path, kind, place, capfd, time):
    victim = whole(tmp_path / "dataset", kind, place)
    reset(victim, time)
    assert victim.query().error is None
    assert victim.fix() == 0
    assert_quiet(victim, capfd)


def test_a_dataset_in_a_git_repository_is_checked_out(tmp_path, kind, place, capfd):
    victim = whole(tmp_path / "dataset", kind, place)
    git = ["git", "-C", victim.path, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
    tool(*git, "init", "-q")
    tool(*git, "add", "-A")
    tool(*git, "commit", "-q", "-m", "all")
    for each in ("2024", f"{LAST}/2024"):
        shutil.rmtree(victim.path / each, ignore_errors=True)
    tool(*git, "checkout", "-q", "--", ".")
    shutil.rmtree(victim.path / ".git")
    assert victim.fix() == 0
    assert_quiet(victim, capfd)


@pytest.mark.check
def test_a_segment_that_was_touched_or_copied_over_itself(tmp_path, kind, place, capfd):
    victim = whole(tmp_path / "dataset", kind, place)
    backup = victim.backup(victim.file(A))
    victim.file(A).touch()
    assert_quiet(victim, capfd, maintains=1)
    for copy in (cp, cp_p, mv):
        copy(backup, victim.file(A))
        assert victim.query().error is None
        assert_quiet(victim, capfd, maintains=1)
        backup = victim.backup(victim.file(A))


def test_an_archive_that_was_renamed(tmp_path, kind, place, capfd):
    victim = whole(tmp_path / "dataset", kind, place)
    if place:
        mv(victim.here, victim.path / ".archive/2024")
    assert_quiet(victim, capfd)


def test_a_dataset_without_its_tide_mark_and_locks(tmp_path, kind, place, capfd):
    """A backup that leaves hidden files out."""
    victim = whole(tmp_path / "dataset", kind, place)
    for each in victim.path.glob(".*"):
        if each.is_file():
            each.unlink()
    assert victim.query().error is None
    assert_quiet(victim, capfd)
