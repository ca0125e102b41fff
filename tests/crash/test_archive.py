"""A process that archives or unarchives is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk

from .killpoints import needs_strace
from .recovery import LAST, make
from .workload import (
    ALL_CONFIGS,
    Append,
    Archive,
    Delete,
    LetArchive,
    RenameArchive,
    Repack,
    Story,
    Unarchive,
    line,
    random_lines,
)

pytestmark = needs_strace

_LINES = tuple(sorted(random_lines(1, 12)))
_LATE = (line(0, 1, 77, 1), line(1, 23, 77, 2), line(0, 23, 78, 3))
_OLD = (line(-5000, 0, 1, 1), line(-5000, 1, 1, 2))  # December 2012 …
_REPLACED = tuple(each.replace(b",,", b",,new") for each in _LINES[:3])

_CLEAN = Story([Append(_LINES)], [Archive((0,))])
_TWO = Story([Append(_LINES)], [Archive((0, 1))])
_MERGED = Story([Append(_LINES), Archive((0, 1)), Append(_LATE)], [Archive((0, 1))])
_AGED = Story([Append((*_LINES, *reversed(_OLD))), Delete(3), LetArchive(3650)], [Repack()])
_BACK = Story([Append(_LINES), Archive((0, 1))], [Unarchive((0,))])
_MERGED_BACK = Story([Append(_LINES), Archive((0, 1)), Append(_LATE)], [Unarchive((0,))])
_REPLACING = Story([Append(_LINES), Archive((0, 1, 2))], [Append(_REPLACED)], replace=True)
_RENAMED = Story([Append(_LINES), Archive((0, 1))], [RenameArchive("2026")])
_DELETED = Story(
    [Append((*_LINES, *_LATE)), Archive((0,))],
    [Delete(77), Append((line(0, 5, 77, 5),)), Delete(int(_LINES[0].split(b",")[1])), Archive((0,))],
)

STORIES = {
    ("vm2", "clean"): _CLEAN,
    ("vm2", "two"): _TWO,
    ("vm2", "merged"): _MERGED,
    ("seg lz4", "merged"): _MERGED,
    ("blob", "clean"): _CLEAN,
    ("blob", "merged"): _MERGED,
    ("blob", "back"): _BACK,
    ("blob", "merged back"): _MERGED_BACK,
    ("vm2", "aged"): _AGED,
    ("blob", "aged"): _AGED,
    ("vm2", "back"): _BACK,
    ("seg lz4", "back"): _BACK,
    ("vm2", "merged back"): _MERGED_BACK,
    ("seg plain", "merged back"): _MERGED_BACK,
    ("seg ctr", "merged back"): _MERGED_BACK,
    ("seg gcm", "merged"): _MERGED,
    ("vm2", "replacing"): _REPLACING,
    ("vm2", "deleted"): _DELETED,
    ("vm2", "renamed"): _RENAMED,
    ("blob", "renamed"): _RENAMED,
}
TO_FAIL = [case for case in STORIES if len(STORIES[case].steps) == 1]


@pytest.mark.parametrize("case", STORIES)
def test_the_stories_are_what_they_are_called(case: tuple[str, str], tmp_path: Path) -> None:
    """So that the sweeps sweep what they should."""
    path = make(tmp_path / "dataset", STORIES[case], ALL_CONFIGS[case[0]])
    with ondisk.open(path) as dataset:
        both = [each for each in path.glob("2*/*") if (path / LAST / each.relative_to(path)).exists()]
        assert len(both) == {"merged": 2, "merged back": 2}.get(case[1], 0)
        assert (path / LAST).exists() == (case[1] not in ("clean", "two", "aged"))
        assert any(each.state for each in dataset.check()) == (case[1] in ("aged", "deleted"))
