"""A process that deletes is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ondisk

from .conftest import POINTS
from .killpoints import CHANGING, CHANGING_SEG, Bench, needs_strace
from .maintenance import CALLS, FAILING, failed, killed
from .recovery import check, make
from .workload import CONFIGS, Append, Archive, Delete, RenameArchive, Story, day_of, line, random_lines

pytestmark = needs_strace
Record = Callable[[str, object], None]

_LINES = random_lines(1, 60)
STORY = Story([Append(_LINES)], [Delete(1), Append(_LINES[:30]), Delete(1), Delete(2)])

_FEW = random_lines(1, 14, days=1)
OF_SEG = Story([Append(_FEW)], [Delete(1), Append(_FEW[:10])])

_LATER = tuple(each for each in _LINES if day_of(each) != day_of(line(0, 0, 0, 0)))[:30]
_ARCHIVED = [Append(_LINES), Archive((0,)), RenameArchive("2026"), Archive((1,))]
OVER_ARCHIVES = {
    ("vm2", "one"): Story(_ARCHIVED, [Delete(1)]),
    ("vm2", "two"): Story(_ARCHIVED, [Delete(1), Append(_LATER), Delete(2), Archive((2,)), Delete(3)]),
    ("seg lz4", "one"): Story(_ARCHIVED, [Delete(1)]),
}
"""Deletes of data in the dataset and in two archives."""


def story_of(format: str) -> Story:
    return STORY if format == "vm2" else OF_SEG


def bench(tmp_path: Path, format: str) -> Bench:
    story = story_of(format)
    return Bench(tmp_path / "runs", make(tmp_path / "template", story, CONFIGS[format]), story.steps)


def test_the_stories_delete_something() -> None:
    sizes = [len(STORY.possible(acked)[0]) for acked in range(5)]
    assert sizes[0] > sizes[1] < sizes[2] > sizes[3] > sizes[4] > 0
    sizes = [len(OF_SEG.possible(acked)[0]) for acked in range(3)]
    assert sizes[0] > sizes[1] < sizes[2]


@pytest.mark.parametrize("case", OVER_ARCHIVES)
def test_the_stories_over_archives_delete_something_in_each_of_them(case: tuple[str, str], tmp_path: Path) -> None:
    story = OVER_ARCHIVES[case]
    path = make(tmp_path / "dataset", story, CONFIGS[case[0]])
    parts = (path / ".archive/2026", path / ".archive/last")

    def counts() -> list[int]:
        found = []
        for part in parts:
            with ondisk.open(part, read_only=True) as archive:
                found.append(archive.summary().count)
        return found

    before = counts()
    with ondisk.open(path) as dataset:
        before.append(dataset.summary().count)
        assert dataset.delete('area:"VM2,1"') == before[2] - dataset.summary().count
        after = [*counts(), dataset.summary().count]
        assert all(one > two for one, two in zip(before, after, strict=True))
        assert sum(before[:2]) - sum(after[:2]) < before[2] - after[2]


@pytest.mark.parametrize(
    ("case", "call", "every"),
    [
        (("vm2", "one"), "pwrite64", 5),
        (("vm2", "one"), "fdatasync", 1),
        (("vm2", "two"), "fdatasync", 4),
        (("seg lz4", "one"), "fdatasync", 2),
    ],
)
def test_killed_at_a_few_points_a_delete_over_archives_is_one_act(
    case: tuple[str, str], call: str, every: int, tmp_path: Path, record_property: Record
) -> None:
    points = killed(OVER_ARCHIVES, case, call, tmp_path, every)
    assert points >= 2
    record_property(POINTS, points)


@pytest.mark.crash
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", OVER_ARCHIVES)
def test_killed_anywhere_a_delete_over_archives_is_one_act(
    case: tuple[str, str], call: str, tmp_path: Path, record_property: Record
) -> None:
    record_property(POINTS, killed(OVER_ARCHIVES, case, call, tmp_path))


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", FAILING)
@pytest.mark.parametrize("case", [case for case in OVER_ARCHIVES if case[1] == "one"])
def test_whatever_fails_a_delete_over_archives_is_one_act(
    case: tuple[str, str], call: str, error: str, tmp_path: Path, record_property: Record
) -> None:
    record_property(POINTS, failed(OVER_ARCHIVES, case, call, error, tmp_path))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("format", "call"),
    [(format, call) for format in CONFIGS for call in (CHANGING if format == "vm2" else CHANGING_SEG)],
)
def test_killed_anywhere_a_delete_is_made_whole_or_not_at_all(
    format: str, call: str, tmp_path: Path, record_property: Record
) -> None:
    points = 0
    for run in bench(tmp_path, format).killed_at(call):
        check(run.path, run.acked, story_of(format))
        points += run.killed
    record_property(POINTS, points)


@pytest.mark.parametrize(("call", "every"), [("pwrite64", 16), ("fdatasync", 5)])
def test_killed_at_a_few_points_a_delete_is_made_whole_or_not_at_all(
    call: str, every: int, tmp_path: Path, record_property: Record
) -> None:
    points = 0
    for run in bench(tmp_path, "vm2").killed_at(call, every):
        check(run.path, run.acked, STORY)
        points += run.killed
    assert points >= 2
    record_property(POINTS, points)


@pytest.mark.crash
@pytest.mark.parametrize("format", CONFIGS)
def test_a_full_disk_met_by_a_delete_is_told_and_writing_goes_on(
    format: str, tmp_path: Path, record_property: Record
) -> None:
    points, story = 0, story_of(format)
    for run in bench(tmp_path, format).failed_at("pwrite64", "ENOSPC"):
        refused = {place: ack["code"] for place, ack in enumerate(run.acks) if ack is not None}
        assert list(refused.values()) in ([], [51])
        done = [step for place, step in enumerate(story.steps) if place not in refused]
        check(run.path, len(done), Story(story.before, done))
        points += 1
    record_property(POINTS, points)
