"""The power is cut while a process writes: what it acknowledged is on the disk. And without syncs it is not."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import pytest

import ondisk
from ondisk.maintenance.states import State

from . import workload
from .conftest import POINTS
from .killpoints import server
from .powercut import Disk, cuts_power
from .recovery import check
from .test_append import Record
from .workload import (
    CONFIGS,
    SEG,
    Append,
    Archive,
    Delete,
    Fix,
    LeaveOut,
    LoseIndex,
    Repack,
    Step,
    Story,
    Unarchive,
    random_lines,
)

pytestmark = cuts_power

_MANY = 3000
_STEP: dict[str, Callable[[int], Step]] = {
    "append": lambda number: (
        Delete(number % 9) if number % 10 == 9 else Append(random_lines(number, 6, days=2 + number // 20), batch_size=3)
    ),
    "repack": lambda number: [
        Append(random_lines(number, 6, days=2 + number // 60)),
        Delete(number % 9),
        Repack(),
    ][number % 3],
    "fix": lambda number: [
        Append(random_lines(number, 6, days=2 + number // 60)),
        Delete(number % 9),
        LoseIndex(),
        Fix(),
        Repack(),
    ][number % 5],
    "archive": lambda number: [
        Append(random_lines(number, 9, days=2)),
        Archive((0, 1)),
        Append(random_lines(number, 9, days=2)),
        Archive((0,)),
        Unarchive((1,)),
        Delete(number % 9),
        Repack(),
    ][number % 7],
}


@cache
def steps_of(verb: str) -> list[Step]:
    """Make more steps than a test takes; when it begins, since they take a second."""
    return [_STEP[verb](number) for number in range(_MANY)]


class Writer:
    """A process that carries out steps, and its acknowledgements as they come."""

    def __init__(self, process: BaseProcess, acks: int) -> None:
        self.process = process
        self.acked = 0
        self.failed = False
        self._acks = acks
        self._rest = b""

    def wait_for(self, acked: int) -> None:
        """Read acknowledgements until there are so many."""
        while self.acked < acked:
            assert self.read(), f"the writer ended after {self.acked} steps"

    def read(self) -> bool:
        """Read what was acknowledged, waiting for something; False at the end."""
        assert select.select([self._acks], [], [], 60)[0], "the writer hangs"
        content = os.read(self._acks, 65536)
        *lines, self._rest = (self._rest + content).split(b"\n")
        self.acked += lines.count(b"null")
        self.failed = self.failed or lines.count(b"null") < len(lines)
        return content != b""

    def wait_for_failure(self) -> None:
        """Read acknowledgements until the process meets an error."""
        while not self.failed:
            assert self.read(), f"the writer ended after {self.acked} steps without an error"

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the process stand still, for the length of the block, with everything read that it acknowledged."""
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        state = Path(f"/proc/{pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            os.sched_yield()
        while select.select([self._acks], [], [], 0)[0] and self.read():
            pass
        yield
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def writing(path: Path, room: Path, steps: list[Step]) -> Iterator[Writer]:
    """Run a process that takes steps on a new dataset at `path`."""
    fifo = room / "acks"
    os.mkfifo(fifo)
    acks = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    context = server()
    receive, start = context.Pipe()
    process = context.Process(target=workload.run, args=(path, steps, fifo, None, receive))
    process.start()
    start.send_bytes(b"go")
    try:
        yield Writer(process, acks)
    finally:
        process.kill()
        process.join()
        os.close(acks)
        start.close()
        receive.close()
        fifo.unlink()


def check_disk(disk: Disk, acked: int, steps: list[Step]) -> None:
    with disk.mounted() as path:
        check(path / "dataset", acked, Story([], steps[: acked + 1]))


@pytest.mark.parametrize(
    ("format", "verb", "seed"),
    [("vm2", "append", seed) for seed in range(12)]
    + [(format, "append", seed) for format in SEG for seed in range(5)]
    + [(format, verb, seed) for verb in ("repack", "fix", "archive") for format in CONFIGS for seed in range(5)],
)
def test_what_was_acknowledged_survives_the_filesystem_going_away(
    format: str, verb: str, seed: int, tmp_path: Path, record_property: Record
) -> None:
    disk = Disk.make(tmp_path / "disk")
    with disk.mounted() as path:
        ondisk.create(path / "dataset", CONFIGS[format]).close()
        with writing(path / "dataset", tmp_path, steps_of(verb)) as writer:
            writer.wait_for(random.Random(seed).randrange(1, 150))
            disk.cut()
            writer.wait_for_failure()
    check_disk(disk, writer.acked, steps_of(verb))
    record_property(POINTS, 1)


@pytest.mark.parametrize(
    ("format", "verb", "cuts"),
    [("vm2", "append", 20), ("seg lz4", "append", 10), ("seg plain", "append", 10)]
    + [(format, verb, 15) for verb in ("repack", "fix", "archive") for format in CONFIGS],
)
def test_what_was_acknowledged_survives_a_cut_at_many_moments_of_one_run(
    format: str, verb: str, cuts: int, tmp_path: Path, record_property: Record
) -> None:
    disk, chance = Disk.make(tmp_path / "disk"), random.Random(1)
    with disk.mounted() as path:
        ondisk.create(path / "dataset", CONFIGS[format]).close()
        with writing(path / "dataset", tmp_path, steps_of(verb)) as writer:
            for number in range(cuts):
                writer.wait_for(writer.acked + chance.randrange(1, 12))
                with writer.stopped():
                    copy = disk.copied(tmp_path / f"copy{number}")
                    check_disk(copy, writer.acked, steps_of(verb))
                copy.image.unlink()
    record_property(POINTS, cuts)


def test_a_dataset_is_there_as_soon_as_create_has_returned(tmp_path: Path) -> None:
    disk = Disk.make(tmp_path / "disk")
    with disk.mounted() as path:
        ondisk.create(path / "some" / "where" / "dataset", CONFIGS["vm2"]).close()
        disk.cut()
    with disk.mounted() as path, ondisk.open(path / "some" / "where" / "dataset") as dataset:
        assert not dataset.needs_check
        dataset.append([workload.datum_of(workload.line(0, 0, 1, 1))])


BLOB = {"format": "blob", "segments": "dir", "step": "daily", "fields": {"n": "integer"}}


@pytest.mark.parametrize("config", [*CONFIGS.values(), BLOB], ids=[*CONFIGS, "blob"])
def test_a_backup_and_what_was_restored_from_it_survive_a_cut(config: dict[str, Any], tmp_path: Path) -> None:
    disk, lines = Disk.make(tmp_path / "disk"), random_lines(1, 40)
    data = [workload.datum_of(each, "vm2" if config is BLOB else config["format"]) for each in lines]
    if config is BLOB:
        data = [ondisk.Datum(each.reftime, {"n": number}, each.data) for number, each in enumerate(data)]
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        dataset.append(data[:30])
        with disk.mounted() as path:
            dataset.backup(path / "backup", create=True)
            dataset.append(data[30:])
            dataset.backup(path / "backup", keep=1)
            disk.cut()
        expected = sorted(str(each.data) for each in dataset.query())
    with disk.mounted() as path:
        assert [each.damage for each in ondisk.backup.points(path / "backup", verify=True)] == [[]]
        ondisk.restore(path / "backup", path / "restored")
        disk.cut()
    with disk.mounted() as path, ondisk.open(path / "restored") as restored:
        assert sorted(str(each.data) for each in restored.query()) == expected
        assert not any(each.state & ~State.DIRTY for each in restored.check(accurate=True))


@pytest.mark.parametrize("config", [*CONFIGS.values(), BLOB], ids=[*CONFIGS, "blob"])
def test_what_was_put_back_from_a_backup_is_durable_when_a_fix_has_read_it(
    config: dict[str, Any], tmp_path: Path
) -> None:
    disk, lines = Disk.make(tmp_path / "disk"), random_lines(1, 40)
    data = [workload.datum_of(each, "vm2" if config is BLOB else config["format"]) for each in lines]
    if config is BLOB:
        data = [ondisk.Datum(each.reftime, {"n": number}, each.data) for number, each in enumerate(data)]
    with ondisk.create(tmp_path / "backup", config) as backup:
        backup.append(data)
        before = sorted(str(each.data) for each in backup.query())
    with disk.mounted() as path, ondisk.create(path / "dataset", config) as dataset:
        os.sync()
        shutil.copytree(tmp_path / "backup" / "2026", path / "dataset" / "2026")
        assert {each.action for each in dataset.fix()} == {"rescan"}
        disk.cut()
    with disk.mounted() as path, ondisk.open(path / "dataset") as dataset:
        assert sorted(str(each.data) for each in dataset.query()) == before
        assert not any(each.state & ~State.DIRTY for each in dataset.check(accurate=True))


@pytest.mark.parametrize(
    ("format", "verb", "left_out"),
    [
        pytest.param("vm2", "append", ["files and directories"], id="segments"),
        pytest.param("vm2", "append", ["index"], id="index"),
        pytest.param("vm2", "append", ["files and directories", "index"], id="both"),
        *(pytest.param(format, "append", ["files and directories"], id=f"segments of {format}") for format in SEG),
        *(pytest.param(format, "repack", ["files and directories"], id=f"repacked {format}") for format in CONFIGS),
        *(pytest.param(format, "archive", ["files and directories"], id=f"archived {format}") for format in CONFIGS),
    ],
)
def test_without_syncs_a_cut_loses_data_and_these_tests_see_it(
    format: str,
    verb: str,
    left_out: list[Literal["files and directories", "index"]],
    tmp_path: Path,
) -> None:
    disk = Disk.make(tmp_path / "disk")
    steps: list[Step] = [*map(LeaveOut, left_out), *steps_of(verb)]
    with disk.mounted() as path:
        with ondisk.create(path / "dataset", CONFIGS[format]):
            os.sync()  # the dataset itself is there
        with writing(path / "dataset", tmp_path, steps) as writer:
            writer.wait_for(30)
            disk.cut()
            writer.wait_for_failure()
    acked = writer.acked - len(left_out)
    assert acked >= 28
    with pytest.raises((AssertionError, ondisk.OndiskError)):
        check_disk(disk, acked, steps_of(verb))


def test_the_writer_takes_steps_of_every_kind() -> None:
    """So that what survives above is no empty dataset."""
    contents = [len(Story([], steps_of("append")[:count]).end) for count in (10, 50, 150)]
    assert contents[0] > 20
    assert contents == sorted(contents)
