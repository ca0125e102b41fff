"""A process that deletes is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import ondisk
from ondisk.step import place_of

from .killpoints import needs_strace
from .recovery import make
from .workload import ALL_CONFIGS, Append, Archive, Delete, RenameArchive, Story, day_of, line, random_lines

pytestmark = needs_strace
Record = Callable[[str, object], None]

_LINES = random_lines(1, 60)
_DATASET = Story([Append(_LINES)], [Delete(1), Append(_LINES[:30]), Delete(1), Delete(2)])

_LATER = tuple(each for each in _LINES if day_of(each) != day_of(line(0, 0, 0, 0)))[:30]
_ARCHIVED = [Append(_LINES), Archive((0,)), RenameArchive("2026"), Archive((1,))]
STORIES = {
    ("vm2", "dataset"): _DATASET,
    ("vm2", "one"): Story(_ARCHIVED, [Delete(1)]),
    ("vm2", "two"): Story(_ARCHIVED, [Delete(1), Append(_LATER), Delete(2), Archive((2,)), Delete(3)]),
    ("blob", "one"): Story(_ARCHIVED, [Delete(1)]),
}
"""Deletes of data in the dataset, and in the dataset and in two archives. A delete touches no segment."""
TO_FAIL = [case for case in STORIES if case[1] != "two"]
OVER_ARCHIVES = [case for case in STORIES if case[1] != "dataset"]


def test_the_stories_delete_something() -> None:
    sizes = [len(_DATASET.possible(acked)[0]) for acked in range(5)]
    assert sizes[0] > sizes[1] < sizes[2] > sizes[3] > sizes[4] > 0


@pytest.mark.parametrize("case", OVER_ARCHIVES)
def test_the_stories_over_archives_delete_something_in_each_of_them(case: tuple[str, str], tmp_path: Path) -> None:
    story = STORIES[case]
    path = make(tmp_path / "dataset", story, ALL_CONFIGS[case[0]])

    def counts(dataset: ondisk.Dataset) -> list[int]:
        found = Counter(place_of(each.location.segment) for each in dataset.query(with_data=False) if each.location)
        return [found[".archive/2026/"], found[".archive/last/"], found[""]]

    with ondisk.open(path) as dataset:
        before = counts(dataset)
        assert dataset.delete('area:"VM2,1"') == sum(before) - dataset.summary().count
        assert all(one > two for one, two in zip(before, counts(dataset), strict=True))
