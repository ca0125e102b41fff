"""A process that changes what a dataset holds is killed, or its disk fails, wherever it touches the disk.

After each the dataset goes on, with its index, and without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import test_append, test_archive, test_delete, test_fix, test_repack
from .conftest import POINTS
from .killpoints import needs_strace
from .maintenance import failed, killed, ordered
from .test_append import Record

pytestmark = needs_strace

_VERBS = {
    "append": test_append,
    "delete": test_delete,
    "fix": test_fix,
    "repack": test_repack,
    "archive": test_archive,
}
CASES = [(verb, case) for verb, module in _VERBS.items() for case in module.STORIES]
TO_FAIL = [(verb, case) for verb, module in _VERBS.items() for case in module.TO_FAIL]
WAITING: dict[tuple[str, tuple[str, str]], str] = {}
"""What does not end well yet."""

SAMPLE = [
    ("append", ("vm2", "known and new segments")),
    ("append", ("seg lz4", "replacing")),
    ("append", ("blob", "known and new segments")),
    ("append", ("seg sequence", "known and new segments")),
    ("delete", ("vm2", "two")),
    ("fix", ("seg plain", "foreign")),
    ("fix", ("blob", "lost index, then appended")),
    ("repack", ("vm2", "dropped")),
    ("repack", ("seg lz4", "generations")),
    ("repack", ("blob", "dropped")),
    ("archive", ("vm2", "merged")),
    ("archive", ("seg lz4", "back")),
    ("archive", ("blob", "clean")),
]
"""What is swept at a few points in each run of the tests."""


def named(cases: list[tuple[str, tuple[str, str]]]) -> list[Any]:
    waits = {each: [pytest.mark.xfail(strict=False, reason=reason)] for each, reason in WAITING.items()}
    return [pytest.param(*each, marks=waits.get(each, []), id=" ".join((each[0], *each[1]))) for each in cases]


@pytest.mark.crash
@pytest.mark.parametrize(("verb", "case"), named(CASES))
def test_killed_anywhere_every_datum_is_there_once(
    verb: str, case: tuple[str, str], room: Path, record_property: Record
) -> None:
    points = killed(_VERBS[verb].STORIES, case, room)
    assert points >= 5
    record_property(POINTS, points)


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize(("verb", "case"), named(TO_FAIL))
def test_a_call_that_fails_is_reported_and_nothing_is_lost_or_there_twice(
    verb: str, case: tuple[str, str], error: str, room: Path, record_property: Record
) -> None:
    points = failed(_VERBS[verb].STORIES, case, error, room)
    assert points >= 5
    record_property(POINTS, points)


@pytest.mark.parametrize(("verb", "case"), named(CASES))
def test_all_commits_and_removals_are_after_syncs(verb: str, case: tuple[str, str], tmp_path: Path) -> None:
    looked_at = ordered(_VERBS[verb].STORIES, case, tmp_path)
    if "nothing but duplicates" in case:
        assert looked_at == 0  # nothing is written, and so nothing is synced
    else:
        assert looked_at >= (verb != "delete")


@pytest.mark.parametrize(("verb", "case"), named(SAMPLE))
def test_killed_at_a_few_points_every_datum_is_there_once(
    verb: str, case: tuple[str, str], tmp_path: Path, record_property: Record
) -> None:
    points = killed(_VERBS[verb].STORIES, case, tmp_path, most=4)
    assert points >= 3
    record_property(POINTS, points)


@pytest.mark.check
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize(("verb", "case"), named(SAMPLE[::4]))
def test_a_few_calls_that_fail_are_reported_and_nothing_is_lost_or_there_twice(
    verb: str, case: tuple[str, str], error: str, tmp_path: Path, record_property: Record
) -> None:
    points = failed(_VERBS[verb].STORIES, case, error, tmp_path, most=3)
    assert points >= 2
    record_property(POINTS, points)
