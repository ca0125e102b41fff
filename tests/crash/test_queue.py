"""A process that consumes a queue is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import beats
import pytest

import ondisk
from ondisk.queue import Consumer

from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .workload import Consume

pytestmark = needs_strace

_CONFIG = {"format": "seg", "step": "sequence", "segment_size": 800, "fields": {"number": "integer"}}
_VERSIONS = {
    "version 0": {"version": 0},
    "version 1": {"version": 1},
    "version 2": {},
    "lz4": {"compression": "lz4"},
    "protobuf": {"payload": "protobuf"},
}
_ALL, _BEFORE = 24, 4
_START = datetime(2026, 11, 20, tzinfo=UTC)


def bench(room: Path, version: str) -> Bench:
    """Consume a queue of which a part was acknowledged before."""
    room.mkdir(exist_ok=True)
    with ondisk.create(room / "template", _CONFIG | _VERSIONS[version]) as dataset:
        for begin in range(0, _ALL, 12):
            numbers = range(begin, begin + 12)
            dataset.append(
                ondisk.Datum(_START + timedelta(hours=37 * n % 100), {"number": n}, {"text": "x" * 20}) for n in numbers
            )
        next(iter(Consumer(dataset, _BEFORE))).ack()
    return Bench(room / "runs", room / "template", [Consume(5)])


def check(run: Run, version: str) -> None:
    """Nothing is lost, nothing is out of order, and only what was delivered is acknowledged."""
    delivered = _delivered(run)
    with ondisk.open(run.path) as dataset:
        rest = [each.metadata["number"] for batch in Consumer(dataset, 3) for each in batch]
        first = rest[0] if rest else _ALL
        assert rest == [*range(first, _ALL)]
        assert delivered == [*range(_BEFORE, _BEFORE + len(delivered))]
        assert _BEFORE <= first <= _BEFORE + len(delivered)
        if version in ("version 0", "version 2"):  # what a Beat of today reads
            _compare_with_beats(run.path, rest, version)
        if run.acked:
            assert rest == []
        for batch in Consumer(dataset, 7):
            batch.ack()
        assert len(beats.segments(run.path)) == 1
        assert dataset.check().is_clean


def test_a_segment_is_removed_after_the_position_is_durable(room: Path) -> None:
    """A power cut could otherwise leave the old position, and data that were not delivered would be gone."""
    run = bench(room, "version 2").recorded()
    moved = synced = removed = 0
    for call in run.calls:
        if re.search(r'^rename.*"state\.dat"\)', call):
            moved, synced = moved + 1, False
        elif re.search(rf"^fsync\([0-9]+<{re.escape(str(run.path))}>", call):
            synced = True
        elif re.search(r'^rename.*"[0-9]+\.seg"', call) and '".state' not in call:
            removed += 1
            assert moved
            assert synced
    assert min(moved, removed) > 1


def _compare_with_beats(path: Path, rest: list[int], version: str) -> None:
    segment = beats.position(path)[0]
    assert segment == beats.segments(path)[0], "what is acknowledged is removed"
    if version == "version 2":
        assert [each.event[2]["number"] for each in beats.restarted(path)] == rest


def _delivered(run: Run) -> list[int]:
    found = run.path.parent / "delivered"
    return [int(line) for line in found.read_text().split("\n")[:-1]] if found.exists() else []


@pytest.mark.crash
@pytest.mark.parametrize("version", _VERSIONS)
def test_killed_anywhere_each_event_is_delivered_in_order(version: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room, version).killed(), lambda run: check(run, version))


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_on_a_failing_disk_each_event_is_delivered_in_order(error: str, room: Path, sweep: Sweep) -> None:
    sweep(bench(room, "version 2").failed(error), lambda run: check(run, "version 2"))


def test_killed_at_a_few_points_each_event_is_delivered_in_order(room: Path, sweep: Sweep) -> None:
    sweep(bench(room, "version 2").killed(most=8), lambda run: check(run, "version 2"))
