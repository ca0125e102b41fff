"""A process that keeps, restores or drops what is in quarantine is killed, or its disk fails, at every such point."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk
from ondisk.segments.quarantine import UNKNOWN

from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .workload import CONFIG, PIECE, Quarantine, carry_out

pytestmark = needs_strace

_FILES = [f"2026/11-{day}.vm2" for day in range(20, 25)]
_FOLDERS = [f"2026/11-{day}.blob" for day in range(25, 29)]
_BEFORE = [Quarantine("keep", name) for name in (*_FILES[3:], *_FOLDERS[2:])]
_STEPS = [
    Quarantine("keep", _FILES[0]),
    Quarantine("link", _FILES[1]),
    Quarantine("piece", _FILES[2]),
    Quarantine("restore", _FILES[3]),
    Quarantine("drop", _FILES[4]),
    Quarantine("keep", _FOLDERS[0]),
    Quarantine("link", _FOLDERS[1]),
    Quarantine("restore", _FOLDERS[2]),
    Quarantine("drop", _FOLDERS[3]),
]


def content_of(name: str) -> dict[str, bytes]:
    """Return the files of a segment: name below it → content."""
    text = f"{name} is what somebody put there".encode()
    return {"": text} if name.endswith(".vm2") else {"000000.blob": text + b", too", "000001.blob": text}


def bench(tmp_path: Path) -> Bench:
    template = tmp_path / "template"
    with ondisk.create(template, CONFIG) as dataset:
        for name in (*_FILES, *_FOLDERS):
            for below, content in content_of(name).items():
                path = template / name / below
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for step in _BEFORE:
            carry_out(dataset, step)
    return Bench(tmp_path / "runs", template, [*_STEPS])


def check(run: Run) -> None:
    """Each segment is whole at its name or in quarantine; so is each piece; what was dropped is whole or has gone."""
    with ondisk.open(run.path) as dataset:
        dropped = {step.name for step in _STEPS if step.act == "drop"}
        found = check_items(run.path, dataset, dropped)
        for name in {*_FILES, *_FOLDERS} - found - dropped:
            assert is_whole(run.path / name, name), name
        for step, ack in zip(_STEPS, run.acks, strict=False):
            if ack is None:
                assert (step.name in found) == (step.act in ("keep", "link")) or step.act == "piece", step
        dataset.fix()
        dataset.repack()
        assert check_items(run.path, dataset, dropped) == found
        names = {path.name for path in (run.path / "2026/.quarantine").iterdir()}
        items = {item.name.rpartition("/")[2] for item in dataset.quarantine}
        assert names == items | {f"{name}.json" for name in items}


def check_items(path: Path, dataset: ondisk.Dataset, dropped: set[str]) -> set[str]:
    """Look at every item; gives the segments that are whole in quarantine."""
    found = set()
    for item in dataset.quarantine:
        assert item.why != UNKNOWN or item.segment in dropped
        if item.offset is not None:
            assert (item.offset, item.length) == PIECE
            begin, size = PIECE
            assert (path / item.name).read_bytes() == content_of(item.segment)[""][begin : begin + size]
        elif item.segment not in dropped:
            assert is_whole(path / item.name, item.segment), item
            found.add(item.segment)
    return found


def is_whole(path: Path, name: str) -> bool:
    return all((path / below).read_bytes() == content for below, content in content_of(name).items())


@pytest.mark.crash
def test_killed_anywhere_everything_is_whole_somewhere(room: Path, sweep: Sweep) -> None:
    sweep(bench(room).killed(), check)


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failing_disk_is_reported_and_loses_nothing(error: str, room: Path, sweep: Sweep) -> None:
    def look(run: Run) -> None:
        for ack in run.acks:
            assert ack is None or 50 <= ack["code"] < 60, ack
        check(run)

    sweep(bench(room).failed(error), look)


@pytest.mark.check
def test_killed_at_a_few_points_everything_is_whole_somewhere(tmp_path: Path, sweep: Sweep) -> None:
    sweep(bench(tmp_path).killed(most=6), check)
