"""A process that deletes is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import POINTS
from .killpoints import CHANGING, Bench, needs_strace
from .recovery import check, make
from .workload import Append, Delete, Story, random_lines

pytestmark = needs_strace
Record = Callable[[str, object], None]

_LINES = random_lines(1, 60)
STORY = Story([Append(_LINES)], [Delete(1), Append(_LINES[:30]), Delete(1), Delete(2)])


def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "runs", make(tmp_path / "template", STORY), STORY.steps)


def test_the_story_deletes_something() -> None:
    sizes = [len(STORY.possible(acked)[0]) for acked in range(5)]
    assert sizes[0] > sizes[1] < sizes[2] > sizes[3] > sizes[4] > 0


@pytest.mark.crash
@pytest.mark.parametrize("call", CHANGING)
def test_killed_anywhere_a_delete_is_made_whole_or_not_at_all(
    call: str, tmp_path: Path, record_property: Record
) -> None:
    points = 0
    for run in bench(tmp_path).killed_at(call):
        check(run.path, run.acked, STORY)
        points += run.killed
    record_property(POINTS, points)


@pytest.mark.parametrize(("call", "every"), [("pwrite64", 16), ("fdatasync", 5)])
def test_killed_at_a_few_points_a_delete_is_made_whole_or_not_at_all(
    call: str, every: int, tmp_path: Path, record_property: Record
) -> None:
    points = 0
    for run in bench(tmp_path).killed_at(call, every):
        check(run.path, run.acked, STORY)
        points += run.killed
    assert points >= 2
    record_property(POINTS, points)


@pytest.mark.crash
def test_a_full_disk_met_by_a_delete_is_told_and_writing_goes_on(tmp_path: Path, record_property: Record) -> None:
    points = 0
    for run in bench(tmp_path).failed_at("pwrite64", "ENOSPC"):
        refused = {place: ack["code"] for place, ack in enumerate(run.acks) if ack is not None}
        assert list(refused.values()) in ([], [51])
        done = [step for place, step in enumerate(STORY.steps) if place not in refused]
        check(run.path, len(done), Story(STORY.before, done))
        points += 1
    record_property(POINTS, points)
