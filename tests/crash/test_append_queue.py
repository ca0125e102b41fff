"""A process that imports a queue is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from beats import Beats, event

import ondisk
from ondisk.maintenance.states import State

from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .workload import CONFIG, Import

pytestmark = needs_strace

_CONFIG = {**CONFIG, "format": "seg", "unique": [], "index": [], "fields": {"number": "integer"}}
_SENT, _BEFORE, _ALL = 7, 20, 48


def bench(room: Path) -> Bench:
    """Import a queue that was imported before, and one that Beats has sent a part of, in batches of 3."""
    room.mkdir(exist_ok=True)
    known, new = Beats(room / "known", 900), Beats(room / "new", 900)
    known.publish(*map(event, range(_BEFORE)))
    with ondisk.create(room / "template", _CONFIG) as dataset:
        for _ in dataset.append_queue(known.path):
            pass
    known.publish(*map(event, range(_BEFORE, _ALL)))
    new.publish(*map(event, range(_ALL, 2 * _ALL)))
    new.acknowledge(_SENT)
    steps = [Import(str(queue.path), 3) for queue in (known, new)]
    return Bench(room / "runs", room / "template", steps)


def check(run: Run) -> None:
    """What was acknowledged is there; another import stores the rest, and nothing twice."""
    with ondisk.open(run.path) as dataset:
        before = numbers(dataset)
        least = [_BEFORE, _ALL, 2 * _ALL - _SENT][run.acked]
        assert least <= len(before) == len({*before})
        for queue in ("known", "new"):
            for _ in dataset.append_queue(run.path.parents[2] / queue):
                pass
        assert numbers(dataset) == [*range(_ALL), *range(_ALL + _SENT, 2 * _ALL)]
        # A disk that fails only once lets the second queue come before the rest of the first.
        assert not any(each.state & ~State.DIRTY for each in dataset.check(accurate=True))


def numbers(dataset: ondisk.Dataset) -> list[int]:
    return [each.metadata["number"] for each in dataset.query()]


@pytest.mark.crash
def test_killed_anywhere_each_event_is_stored_once(room: Path, sweep: Sweep) -> None:
    sweep(bench(room).killed(), check)


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_on_a_failing_disk_each_event_is_stored_once(error: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room).failed(error), check)


@pytest.mark.check
def test_killed_at_a_few_points_each_event_is_stored_once(room: Path, sweep: Sweep) -> None:
    sweep(bench(room).killed(most=6), check)
