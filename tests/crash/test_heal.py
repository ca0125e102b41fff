"""A process that returns data to a source is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import replicas

import ondisk
from ondisk.errors import TokenForeign
from ondisk.replication import Replica
from ondisk.replication.compare import verify
from ondisk.replication.heal import heal
from ondisk.replication.reconcile import reconcile

from .conftest import Sweep
from .followed import CONFIGS, followed
from .killpoints import Bench, Run, needs_strace
from .workload import Heal, datum_of, line

pytestmark = needs_strace

_DATA = [line(day, hour, station, hour) for day in (2, 1, 0) for hour in range(2) for station in (1, 2)]
# So that what changes is not at the end, which is compared after a copy, in a compressed segment either.
_NEW = line(1, 1, 1, 50, random.Random(1).randbytes(9000).hex())
_ACCIDENTS = ["lost", "changed"]
_CASES = [(config, accident) for config in CONFIGS for accident in _ACCIDENTS]
_CASES.remove(("seg ctr", "changed"))  # nothing can be appended to its copy

Data = list[tuple[Any, ...]]


def bench(room: Path, config: str, accident: str) -> tuple[Bench, Data]:
    """Make a source that has lost a segment, or in which a disk has changed bytes; and its replica, which has all."""
    with followed(room, config, _DATA) as source:
        source.append([datum_of(_NEW, source.config.format)])
        source.delete('area: "VM2,2"; reftime: =2026-11-20')
        with Replica.open(room / "template", source.path) as replica:
            replica.pull()
        before = replicas.numbered(source)
        name = next(each.location.segment for each in source.query("reftime: =2026-11-21") if each.location)
        if accident == "lost":
            remove(room / "source" / name)
            source.fix(forget=True)
            source.append([datum_of(line(1, 5, 1, 8), source.config.format)])
            with Replica.open(room / "template", source.path) as replica:
                replica.pull()
    if accident == "changed":
        change(room / "source" / name)
    return Bench(room / "runs", room / "template", [Heal("source")], beside=room / "source"), before


def remove(segment: Path) -> None:
    shutil.rmtree(segment) if segment.is_dir() else segment.unlink()


def change(segment: Path) -> None:
    """Change a byte near the beginning, as a disk does."""
    file = segment if segment.is_file() else min(segment.glob("0*"))
    content = file.read_bytes()
    some = content[min(70, len(content) // 2) :][:30]
    replicas.rot(file, some, bytes([some[0] ^ 1]) + some[1:])


def check(before: Data, run: Run) -> None:
    """Nothing is lost, wrong or there twice; another run does the rest, and pulls go on.

    If the replica has not noted any more what it has returned, its token has expired as those of other replicas.
    """
    source = run.path.parent / "source"
    with ondisk.open(run.path, read_only=True) as replica:
        assert all(each in replicas.numbered(replica) for each in before)
    with ondisk.open(source) as dataset:
        seqs = [each[0] for each in replicas.numbered(dataset)]
        assert len(seqs) == len({*seqs})
        assert not [each for each in replicas.numbered(dataset) if each not in before and each[0] <= before[-1][0]]
    with Replica.open(run.path, source) as replica:
        try:
            heal(replica, yes=True)
        except TokenForeign:
            reconcile(replica, yes=True)
            heal(replica, yes=True)
        assert heal(replica, yes=True).left == 0
        replica.pull()
        assert not verify(replica).count
    with ondisk.open(source) as dataset:
        assert all(each in replicas.numbered(dataset) for each in before)


@pytest.mark.crash
@pytest.mark.parametrize(("config", "accident"), _CASES)
def test_killed_anywhere_what_was_lost_returns(config: str, accident: str, room: Path, sweep: Sweep) -> None:
    begun, before = bench(room, config, accident)
    sweep(begun.killed(), partial(check, before))


@pytest.mark.crash
@pytest.mark.parametrize("accident", _ACCIDENTS)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_on_a_failing_disk_what_was_lost_returns(error: str, accident: str, room: Path, sweep: Sweep) -> None:
    begun, before = bench(room, "vm2", accident)
    sweep(begun.failed(error), partial(check, before))


@pytest.mark.check
@pytest.mark.parametrize("accident", _ACCIDENTS)
def test_killed_at_a_few_points_what_was_lost_returns(accident: str, room: Path, sweep: Sweep) -> None:
    begun, before = bench(room, "vm2", accident)
    sweep(begun.killed(most=6), partial(check, before))
