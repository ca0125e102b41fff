"""Accidents that need a place of their own: another user's permissions, a full disk, a process that really dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ondisk
from ondisk.errors import DiskFull, OndiskError

from .law import check_law, check_query, must_fail
from .table import ORDERS
from .test_table import NEW
from .tools import cp_p, tool
from .victim import KINDS, LAST, A, Victim, datum, number_of

NOBODY = 65_534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="changing user and mounting take root")


@pytest.fixture
def public() -> Iterator[Path]:
    """Make a directory that every user may use, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user without rights in this process."""
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def use(victim: Victim) -> None:
    victim.file(A).touch()
    victim.maintain()
    victim.run("check", "--accurate")
    victim.delete(*victim.given)
    victim.repack()


UNREADABLE = {
    "segment": lambda victim: victim.file(A),
    "index": lambda victim: victim.path / "index.sqlite",
    "folder": lambda victim: victim.folder,
}


@ROOT
@pytest.mark.root
@pytest.mark.parametrize("order", [each for each in ORDERS if each != "append"])
@pytest.mark.parametrize("what", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("place", ["", LAST], ids=["dataset", "archive"])
@pytest.mark.parametrize("kind", ["vm2", "lz4", "blob"])
def test_25_what_this_user_may_not_read_is_an_error_that_names_it(public, kind, place, what, order):
    use(Victim.make(public / "before", kind, place))  # imports modules that nobody may not read
    with nobody():
        victim = Victim.make(public / "dataset", kind, place)
        victim.maintain()
        path = what(victim)
        path.chmod(0o000)
        error = must_fail(victim)
        assert isinstance(error, OndiskError)
        assert error.exit_code == 50, repr(error)
        assert str(path) in str(error)
        assert "ermission" in str(error)
        code = victim.run(order, *(["--yes"] if order != "maintain" else []))
        assert code == 50 or (code == 0 and path == victim.file(A)), code  # nothing has to read the segment
        assert victim.run("check", "--accurate") == 50
        assert victim.append(NEW) in (0, 34, 50)
        path.chmod(0o755 if path.is_dir() else 0o644)
        assert victim.maintain() == 0
        assert check_law(victim) == victim.given


@ROOT
@pytest.mark.root
def test_25_a_folder_of_the_archive_that_this_user_may_not_read_is_not_away(public):
    use(Victim.make(public / "before", "vm2", LAST))
    with nobody():
        victim = Victim.make(public / "dataset", "vm2", LAST)
        victim.maintain()
        place = victim.path / LAST
        place.chmod(0o000)
        assert str(place) in str(must_fail(victim))
        for verb in (["check"], ["repack", "--yes"], ["fix", "--yes"], ["fix", "--forget", "last", "--yes"]):
            assert victim.run(*verb) == 50
        place.chmod(0o755)
        assert check_law(victim) == victim.given


@ROOT
@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_23_a_full_disk_is_usable_again_when_data_are_deleted(tmp_path, kind):
    """An append fails with 51; everything is deleted and repacked; then data can be appended again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    tool("mount", "-t", "tmpfs", "-o", "size=3m", "none", disk)
    try:
        victim = Victim.make(disk / "dataset", kind)
        each_day = min(1000, 150 * 1024 // len(datum(NEW, kind).data))
        victim.maybe = {number_of(day, minute) for day in (5, 6, 7, 8) for minute in range(each_day)}
        batch = [datum(number, kind) for number in sorted(victim.maybe)]
        free = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize - 150 * 1024))
        with ondisk.open(victim.path) as dataset, pytest.raises(DiskFull):
            dataset.append(batch)
        victim.delete(*victim.given)
        with ondisk.open(victim.path) as dataset:
            dataset.delete("")
        victim.maybe = set()
        assert victim.maintain() == 0
        assert victim.append(NEW) == 0
        assert check_law(victim) == {NEW}
    finally:
        tool("umount", disk)


WRITER = """
import sys; sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import ondisk
from accidents.victim import datum
with ondisk.open(sys.argv[3]) as dataset:
    for minute in range(1, 999):
        numbers = [1000 * day + minute for day in (1, 5, 6) if minute % 200]
        if dataset.append([datum(each, sys.argv[4]) for each in numbers]).imported == len(numbers):
            print(*numbers, flush=True)
"""


@contextmanager
def writer(victim: Victim) -> Iterator[subprocess.Popen[str]]:
    """Start a process that appends, and prints what was acknowledged."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", WRITER, tests, tests.parent, victim.path, victim.kind]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def acknowledged(process: subprocess.Popen[str], lines: int) -> set[int]:
    assert process.stdout is not None
    return {int(number) for _ in range(lines) for number in process.stdout.readline().split()}


@pytest.mark.parametrize("order", ["fix", "repack", "maintain"])
@pytest.mark.parametrize("kind", KINDS)
def test_17_a_process_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path, kind, order):
    victim = Victim.make(tmp_path / "dataset", kind)
    with writer(victim) as process:
        victim.given |= acknowledged(process, 5)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=60)
    victim.given |= {int(number) for number in rest.split()}
    victim.maybe = {number_of(day, minute) for day in (A, 5, 6) for minute in range(1, 999)}
    victim.acts = [{number_of(day, minute) for day in (A, 5, 6)} for minute in range(1, 999) if minute % 200]
    check_query(victim, complete=True)
    victim.run(order, *(["--yes"] if order != "maintain" else []))
    victim.maintain()
    assert check_law(victim) >= victim.given


@pytest.mark.check
@pytest.mark.parametrize("order", ["fix", "repack", "maintain"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_was_taken_while_data_are_appended_ends_well(tmp_path, kind, order):
    """What was acknowledged before the copy began is there, or reported; nothing in the copy is wrong."""
    victim = Victim.make(tmp_path / "dataset", kind)
    with writer(victim) as process:
        victim.given |= acknowledged(process, 3)
        cp_p(victim.path, tmp_path / "copy")
        time.sleep(0.01)
    victim.path = tmp_path / "copy"
    victim.maybe = {number_of(day, minute) for day in (A, 5, 6) for minute in range(1, 999)}
    victim.destroyed = {*victim.maybe}
    victim.run(order, *(["--yes"] if order != "maintain" else []))
    victim.maintain()
    check_law(victim)
