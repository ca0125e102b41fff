"""A process that consumes a queue is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import beats
import pytest

import ondisk
from ondisk.queue import Consumer

from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .workload import Consume, Fix

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


@pytest.mark.check
def test_killed_at_a_few_points_each_event_is_delivered_in_order(room: Path, sweep: Sweep) -> None:
    sweep(bench(room, "version 2").killed(most=8), lambda run: check(run, "version 2"))


def replaced(room: Path) -> Bench:
    """Fix a queue in which 0.seg is another one than that of the position: Beats has sent all, and begun again."""
    path = room / "template"
    path.mkdir(parents=True)
    size = _write(path, range(30, 35))
    ondisk.adopt(path, {"fields": {"number": "integer"}})
    (path / "state.dat").write_bytes(struct.pack("<IQQQ", 1, 0, size, 5))
    _write(path, range(40, 52))
    return Bench(room / "runs", path, [Fix()])


def _write(path: Path, numbers: range) -> int:
    frames = b"".join(beats.frame(beats.event(number)) for number in numbers)
    (path / "0.seg").write_bytes(struct.pack("<III", 2, len(numbers), 0) + frames)
    return 12 + len(frames)


def check_nothing_skipped(run: Run) -> None:
    """What the index has now comes, to Beats and to ondisk, and what was sent before is not lost."""
    with ondisk.open(run.path, read_only=True) as dataset:
        is_read = any(each.metadata["number"] == 40 for each in dataset.query(with_data=False))
    if is_read:
        assert _for_beats(run.path) == [*range(40, 52)]
    with ondisk.open(run.path) as dataset:
        assert dataset.fix().lost == 0
        assert _for_beats(run.path) == [*range(40, 52)]
        assert [each.metadata["number"] for batch in Consumer(dataset) for each in batch] == [*range(40, 52)]
        assert dataset.info()["lost"] == 0


def _for_beats(path: Path) -> list[int]:
    return [each.event[2]["number"] for each in beats.restarted(path)]


@pytest.mark.crash
def test_a_fix_that_is_killed_anywhere_lets_no_consumer_skip_another_file(room: Path, sweep: Sweep) -> None:
    sweep(replaced(room).killed(), check_nothing_skipped)


def test_a_fix_that_is_killed_at_a_few_points_lets_no_consumer_skip_another_file(room: Path, sweep: Sweep) -> None:
    sweep(replaced(room).killed(most=8), check_nothing_skipped)
