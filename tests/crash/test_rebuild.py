"""A process that rebuilds a damaged index is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk
from ondisk.errors import IndexCorrupt

from . import workload
from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .recovery import LATER, make
from .workload import CONFIGS, Append, Story, check_index, datum_of, lines_of, random_lines

pytestmark = needs_strace

STORY = Story([Append(random_lines(1, 40))], [Append(())])


def bench(tmp_path: Path) -> Bench:
    """Make a dataset with an archive, and damage the second half of its index."""
    template = make(tmp_path / "template", STORY, CONFIGS["vm2"])
    with ondisk.open(template) as dataset:
        dataset.archive(next(each.segment for each in dataset.check()))
    index = template / "index.sqlite"
    for suffix in ("-wal", "-shm"):
        index.with_name(index.name + suffix).unlink(missing_ok=True)
    half = index.stat().st_size // 2
    with index.open("r+b") as file:
        file.seek(half)
        file.write(bytes(half))
    return Bench(tmp_path / "runs", template, STORY.steps, target=workload.rebuild)


def check_rebuilt(run: Run, template: Path) -> None:
    """The damaged index is still there; readers get an error, or a warning; repeated, it ends well."""
    content = (template / "index.sqlite").read_bytes()
    assert content in [each.read_bytes() for each in run.path.glob("index.sqlite*")]
    try:
        with ondisk.open(run.path, read_only=True) as dataset:
            assert dataset.needs_check
    except IndexCorrupt:
        assert not run.acked
    if not run.acked:
        ondisk.rebuild(run.path)
    with ondisk.open(run.path) as dataset:
        dataset.fix()
        assert lines_of(dataset) == STORY.end
        assert not dataset.needs_check
        assert dataset.append([datum_of(LATER, dataset.config.format)]).imported == 1
        assert len(lines_of(dataset)) == len(STORY.end) + 1
    check_index(run.path)
    assert [each.name for each in run.path.iterdir() if each.name.startswith(".index")] == []


@pytest.mark.crash
def test_killed_anywhere_a_rebuild_loses_neither_data_nor_the_damaged_index(room: Path, sweep: Sweep) -> None:
    place = bench(room)
    sweep(place.killed(), lambda run: check_rebuilt(run, place.template))


@pytest.mark.check
def test_killed_at_a_few_points_a_rebuild_loses_neither_data_nor_the_damaged_index(
    tmp_path: Path, sweep: Sweep
) -> None:
    place = bench(tmp_path)
    sweep(place.killed(most=6), lambda run: check_rebuilt(run, place.template))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("call", "error"),
    [("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("fsync", "EIO"), ("fdatasync", "EIO"), ("renameat", "EIO"),
     ("linkat", "ENOSPC"), ("unlinkat", "EIO")],
)  # fmt: skip
def test_on_a_disk_that_fails_a_rebuild_can_be_tried_again(call: str, error: str, room: Path, sweep: Sweep) -> None:
    place = bench(room)
    sweep(place.failed(error, call), lambda run: check_rebuilt(run, place.template))
