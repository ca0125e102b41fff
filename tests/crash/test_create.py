"""A process that creates a dataset is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk
from ondisk.errors import DatasetNotFound

from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .recovery import check
from .workload import CONFIG, Append, Story, random_lines

pytestmark = needs_strace

STORY = Story([], [Append(random_lines(1, 20))])


def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "runs", tmp_path / "none", STORY.steps, create=CONFIG)


def check_created(run: Run) -> None:
    """What was acknowledged is there; else the path holds an empty dataset, or one can be created there."""
    if not run.acks:
        try:
            ondisk.open(run.path, read_only=True).close()
        except DatasetNotFound:
            ondisk.create(run.path, CONFIG).close()
    check(run.path, max(0, run.acked - 1), STORY)
    with ondisk.open(run.path) as dataset:
        assert not dataset.needs_check


@pytest.mark.crash
def test_killed_anywhere_what_create_leaves_opens_or_can_be_created_again(room: Path, sweep: Sweep) -> None:
    sweep(bench(room).killed(), check_created)


@pytest.mark.check
def test_killed_at_a_few_points_what_create_leaves_opens_or_can_be_created_again(tmp_path: Path, sweep: Sweep) -> None:
    sweep(bench(tmp_path).killed(most=6), check_created)


@pytest.mark.crash
@pytest.mark.parametrize(("call", "error", "code"), [("pwrite64", "ENOSPC", 51), ("fsync", "EIO", 52)])
def test_a_disk_that_fails_while_creating_is_reported_and_create_can_be_tried_again(
    call: str, error: str, code: int, room: Path, sweep: Sweep
) -> None:
    def look(run: Run) -> None:
        if run.acks[0] is not None:
            # SQLite does not say why it could not turn to WAL mode: that is a StorageError, 50
            assert [ack and ack["code"] for ack in run.acks] in ([code], [50])
            run.acks.clear()
        elif run.acks[1] is not None:
            assert run.acks[1]["code"] == code
        check_created(run)

    sweep(bench(room).failed(error, call), look)
