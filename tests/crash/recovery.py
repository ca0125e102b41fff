"""What must hold after a crash, whatever it was."""

from __future__ import annotations

from pathlib import Path

import ondisk

from .workload import CONFIG, Story, carry_out, check_index, content, datum, line

LATER = line(3650, 0, 1, 1)
"""A datum of a day that no workload touches."""


def check(path: Path, acked: int, story: Story) -> None:
    """Open the dataset after a crash: readers first, then a writer that takes the steps that are left.

    The steps may be taken again, whole or in part as they were done before: `unique` tells what is there.
    """
    possible = story.possible(acked)
    with ondisk.open(path, read_only=True) as dataset:
        found = content(dataset)
    assert found in possible, f"{acked} steps were acknowledged, {len(found)} data are there"
    check_index(path)
    with ondisk.open(path) as dataset:
        assert content(dataset) == found
        for step in story.steps[acked:]:
            carry_out(dataset, step)
        assert content(dataset) == story.end
        result = dataset.append([datum(LATER)])
        assert result.imported == 1
    with ondisk.open(path) as dataset:
        assert content(dataset) == sorted([*story.end, LATER])
        assert dataset.append([datum(LATER)]).imported == 0
    check_index(path)


def make(path: Path, story: Story, config: dict[str, object] = CONFIG) -> Path:
    """Make the dataset that a story begins with."""
    with ondisk.create(path, config) as dataset:
        for step in story.before:
            carry_out(dataset, step)
    return path
