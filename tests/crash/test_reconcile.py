"""A process that compares a replica with its source is killed at every point where it touches the disk."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import replicas

import ondisk
from ondisk.replication import Replica
from ondisk.replication.reconcile import reconcile

from .conftest import Sweep
from .followed import CONFIGS, followed
from .killpoints import Bench, Run, needs_strace
from .workload import Reconcile, datum_of, line

pytestmark = needs_strace

_DATA = [line(day, hour, station, hour) for day in (2, 1, 0) for hour in range(2) for station in (1, 2)]


def bench(room: Path, config: str, accident: str) -> Bench:
    """Make a replica, with an archive, whose token is of no use any more."""
    with followed(room, config, _DATA) as source:
        source.append([datum_of(line(0, 1, 1, 50, "new"), source.config.format)])
        source.delete('area: "VM2,2"')
        source.repack()
        if accident == "expired":
            with source._access.transaction("repack") as transaction:
                transaction.trim_deletions(transaction.counters.seq, 100)
                transaction.commit()
    if accident == "foreign":
        (room / "source/index.sqlite").unlink()
        with ondisk.open(room / "source") as source:
            source.fix()
    return Bench(room / "runs", room / "template", [Reconcile(str(room / "source"))])


def numbered(path: Path) -> list[Any]:
    with ondisk.open(path, read_only=True) as dataset:
        return replicas.numbered(dataset)


def content(path: Path) -> Counter[str]:
    with ondisk.open(path, read_only=True) as dataset:
        return replicas.content(dataset)


def check(room: Path, accident: str, run: Run) -> None:
    """Nothing is lost, nothing is there twice; another run does the rest, and pulls go on."""
    source, before = content(room / "source"), content(room / "template")
    found = content(run.path)
    assert max(found.values()) == 1
    assert not (source & before) - found, "what both had is gone"
    assert not found - (source | before)
    if accident == "foreign" and _unique(room):
        assert len(found) >= len(before) - 1  # but for the one that the source has replaced
    with Replica.open(run.path, room / "source") as replica:
        reconcile(replica, yes=True)
        replica.pull()
        replica.dataset.repack()
        assert not replica.dataset.check(accurate=True).findings
    assert numbered(run.path) == numbered(room / "source")
    if accident == "expired":
        assert content(run.path) == source


def _unique(room: Path) -> bool:
    with ondisk.open(room / "source", read_only=True) as source:
        return bool(source.config.unique)


@pytest.mark.crash
@pytest.mark.parametrize("accident", ["expired", "foreign"])
@pytest.mark.parametrize("config", CONFIGS)
def test_killed_anywhere_a_comparison_continues(config: str, accident: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room, config, accident).killed(), partial(check, room, accident))


@pytest.mark.check
@pytest.mark.parametrize("accident", ["expired", "foreign"])
def test_killed_at_a_few_points_a_comparison_continues(accident: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room, "vm2", accident).killed(most=6), partial(check, room, accident))
