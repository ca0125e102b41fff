"""A process that opens a dataset without its index is killed at every point where it touches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ondisk

from .conftest import POINTS
from .killpoints import CHANGING, Bench, Run, needs_strace
from .recovery import check, make
from .workload import Append, Story, random_lines

pytestmark = needs_strace
Record = Callable[[str, object], None]

BEFORE = Story([Append(random_lines(1, 40))], [])
STORY = Story([], [Append(random_lines(2, 40, days=4)), Append(random_lines(3, 20, days=4))])
"""What the new index knows: nothing of what was there before."""


def bench(tmp_path: Path) -> Bench:
    """Make a dataset and lose its index; `-wal` and `-shm`, stale now, stay."""
    template = make(tmp_path / "template", BEFORE)
    (template / "index.sqlite").unlink()
    assert (template / "index.sqlite-wal").exists()
    return Bench(tmp_path / "runs", template, STORY.steps)


def check_kept(run: Run, original: Path) -> None:
    """The dataset says that it needs a check; every byte that was there before the index was lost still is."""
    for read_only in (True, False):
        with ondisk.open(run.path, read_only) as dataset:
            assert dataset.needs_check
    check(run.path, run.acked, STORY)
    assert (run.path / "needs-check-do-not-pack").exists()
    segments = list(original.rglob("*.vm2"))
    assert len(segments) == 3
    for segment in segments:
        assert (run.path / segment.relative_to(original)).read_bytes().startswith(segment.read_bytes())


@pytest.mark.crash
@pytest.mark.parametrize("call", CHANGING)
def test_killed_anywhere_an_opening_without_index_keeps_all_bytes_and_asks_for_a_check(
    call: str, tmp_path: Path, record_property: Record
) -> None:
    points = 0
    for run in bench(tmp_path).killed_at(call):
        check_kept(run, tmp_path / "template")
        points += run.killed
    record_property(POINTS, points)


@pytest.mark.parametrize(("call", "every"), [("linkat", 1), ("renameat", 1), ("pwrite64", 25), ("unlinkat", 2)])
def test_killed_at_a_few_points_an_opening_without_index_keeps_all_bytes(
    call: str, every: int, tmp_path: Path, record_property: Record
) -> None:
    points = 0
    for run in bench(tmp_path).killed_at(call, every):
        check_kept(run, tmp_path / "template")
        points += run.killed
    assert points >= 1
    record_property(POINTS, points)
