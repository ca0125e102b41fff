"""A process that fixes, repacks, archives or unarchives is killed, or its disk fails, wherever it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import test_archive, test_fix, test_repack
from .conftest import POINTS
from .killpoints import needs_strace
from .maintenance import CALLS, FAILING, failed, killed, ordered
from .test_append import Record

pytestmark = needs_strace

_VERBS = {"fix": test_fix, "repack": test_repack, "archive": test_archive}
CASES = [(verb, case) for verb, module in _VERBS.items() for case in module.STORIES]
TO_FAIL = [(verb, case) for verb, module in _VERBS.items() for case in module.TO_FAIL]
_ALWAYS = ("pwrite64", "fdatasync")
"""Calls that every commit makes."""


@pytest.mark.crash
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("verb", "case"), CASES)
def test_killed_anywhere_every_datum_is_there_once(
    verb: str, case: tuple[str, str], call: str, tmp_path: Path, record_property: Record
) -> None:
    points = killed(_VERBS[verb].STORIES, case, call, tmp_path)
    assert points or call not in _ALWAYS
    record_property(POINTS, points)


@pytest.mark.crash
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", FAILING)
@pytest.mark.parametrize(("verb", "case"), TO_FAIL)
def test_a_call_that_fails_is_told_and_nothing_is_lost_or_there_twice(
    verb: str, case: tuple[str, str], call: str, error: str, tmp_path: Path, record_property: Record
) -> None:
    points = failed(_VERBS[verb].STORIES, case, call, error, tmp_path)
    assert points or call not in _ALWAYS
    record_property(POINTS, points)


@pytest.mark.parametrize(("verb", "case"), CASES)
def test_all_commits_and_removals_stand_behind_syncs(verb: str, case: tuple[str, str], tmp_path: Path) -> None:
    assert ordered(_VERBS[verb].STORIES, case, tmp_path) >= 1
