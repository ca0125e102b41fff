"""A process that pulls is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import ondisk
from ondisk.errors import LockError, TokenExpired
from ondisk.replication import Replica
from ondisk.replication.feed import Kind

from .conftest import POINTS, Sweep
from .followed import CONFIGS, followed
from .killpoints import Bench, Run, needs_strace, server
from .workload import Pull, datum_of, line, random_lines

pytestmark = needs_strace

_ANSWER = 200  # bytes of an answer: a few changes
_FIRST = [line(day, hour, 1, hour) for day in range(2) for hour in range(3)]
_THEN = [line(0, 1, 1, 50, "new"), *(line(2, hour, 1, hour) for hour in range(2))]

State = tuple[int, dict[int, Any]]
"""How far a replica has followed its source, and its data by their numbers."""


def bench(room: Path, config: str) -> Bench:
    """Pull replacements, deletions of data in the dataset and in its archive, and new data, into a replica."""
    with followed(room, config, _FIRST) as source:
        source.append(datum_of(each, source.config.format) for each in _THEN)
        source.delete("reftime: <=2026-11-20 02:00")
        source.append([datum_of(line(3, 0, 1, 7), source.config.format)])
    return Bench(room / "runs", room / "template", [Pull(str(room / "source"), _ANSWER)])


def state(path: Path) -> State:
    with ondisk.open(path) as dataset:
        followed = Replica(dataset, None).followed  # type: ignore[arg-type]  # nothing is pulled
        assert followed is not None
        changes = dataset.changes(max_bytes=2**40).changes
        data = {each.seq: (each.datum.reftime, each.datum.data) for each in changes if each.datum is not None}
        assert len(data) == len([*dataset.query()])
        assert {each.kind for each in changes} <= {Kind.APPENDED}
        return followed.offset, data


def states(room: Path) -> list[State]:
    """Return what a replica has after each answer."""
    path = room / "undisturbed"
    shutil.copytree(room / "template", path)
    found = [state(path)]
    with Replica.open(path, room / "source") as replica:
        replica.pull(_ANSWER, on_answer=lambda _applied, _lag: found.append(state(path)))
    assert len(found) > 3
    return found


def check(room: Path, possible: list[State], run: Run) -> None:
    """The replica has what one of the answers has left; the next pull applies the rest, each change once."""
    found = state(run.path)
    assert found in possible
    assert found == possible[-1] or not run.acked
    with Replica.open(run.path, room / "source") as replica:
        assert replica.pull().present == 0
        replica.dataset.repack()
        assert not replica.dataset.check(accurate=True).findings
    assert state(run.path) == possible[-1]


@pytest.mark.crash
@pytest.mark.parametrize("config", CONFIGS)
def test_killed_anywhere_a_pull_continues_after_its_last_commit(config: str, room: Path, sweep: Sweep) -> None:
    runs = bench(room, config)
    sweep(runs.killed(), partial(check, room, states(room)))


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_on_a_failing_disk_a_pull_continues_after_its_last_commit(error: str, room: Path, sweep: Sweep) -> None:
    runs = bench(room, "vm2")
    sweep(runs.failed(error), partial(check, room, states(room)))


@pytest.mark.check
def test_killed_at_a_few_points_a_pull_continues_after_its_last_commit(room: Path, sweep: Sweep) -> None:
    runs = bench(room, "vm2")
    sweep(runs.killed(most=6), partial(check, room, states(room)))


def write(path: Path, seed: int) -> None:
    """Be the process that changes the source, in any way, until it is killed."""
    chance = random.Random(seed)
    with ondisk.open(path) as dataset:
        for number in count():
            names = sorted({each.location.segment for each in dataset.query(with_data=False) if each.location})
            name = chance.choice(names) if names else ""
            match chance.randrange(8):
                case 0:
                    dataset.delete(f'area: "VM2,{chance.randrange(9)}"')
                case 1:
                    dataset.repack()
                case 2:
                    dataset.fix()
                case 3 if name:
                    (dataset.unarchive if name.startswith(".archive") else dataset.archive)(name)
                case _:
                    lines = random_lines(seed * 1000 + number, 9, days=4)
                    dataset.append(datum_of(each, dataset.config.format) for each in lines)


def follow(path: Path, source: Path, seed: int) -> None:
    """Be the process that pulls, and maintains the replica, until it is killed."""
    chance = random.Random(seed)
    with Replica.open(path, source) as replica:
        while True:
            with contextlib.suppress(LockError, TokenExpired):
                replica.pull(chance.choice([1, 500, 1024 * 1024]))
            if chance.random() < 0.2:
                replica.dataset.repack()


@pytest.mark.crash
@pytest.mark.parametrize("config", CONFIGS)
def test_with_both_sides_killed_at_random_the_replica_equals_the_source(
    config: str, room: Path, record_property: Callable[[str, object], None]
) -> None:
    source, path, chance, context = room / "source", room / "replica", random.Random(config), server()
    ondisk.create(source, CONFIGS[config]).close()
    Replica.create(path, source).close()
    for seed in range(12):
        processes = [
            context.Process(target=write, args=(source, seed)),
            context.Process(target=follow, args=(path, source, seed)),
        ]
        for each in processes:
            each.start()
        for each in chance.sample(processes, 2):
            time.sleep(chance.uniform(0.1, 0.6))
            each.kill()
            each.join()
            assert each.exitcode == -signal.SIGKILL, "it ended by itself"
    with ondisk.open(source) as dataset:
        try:
            replica = Replica.open(path, source)
            replica.pull()
        except TokenExpired:  # a kill may leave an archive of which the source does not know that it has made it
            replica.close()
            shutil.rmtree(path)
            replica = Replica.create(path, source)
            replica.pull()
        assert replica.dataset.info()["count"] > 10 or config == "blob"
        replica.close()
        expected = {each.seq: each.datum.data for each in dataset.changes(max_bytes=2**40).changes if each.datum}
    assert state(path)[1].keys() == expected.keys()
    assert [data for _, data in state(path)[1].values()] == [*expected.values()]
    record_property(POINTS, 24)
