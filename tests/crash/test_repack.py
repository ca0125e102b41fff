"""A process that repacks is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import ondisk
from ondisk.maintenance.states import State

from .killpoints import needs_strace
from .maintenance import ordered
from .recovery import make
from .workload import (
    ALL_CONFIGS,
    Append,
    Beside,
    Delete,
    LeaveOut,
    LetAge,
    LoseSegment,
    Repack,
    Story,
    left_behind,
    line,
    random_lines,
)

pytestmark = needs_strace

_LINES = random_lines(1, 12)
_SIZES = (20_000, 30_000, 20_000, 150_000, 40_000)  # copied together, and alone
_LARGE = tuple(line(0, hour, hour, 2 * hour, "x" * size) for hour, size in enumerate(_SIZES))
_OLD = (line(-5000, 0, 1, 1), line(-5000, 1, 1, 2))  # December 2012 … of which 3650 days later nothing is left

_DIRTY = Story([Append(_LINES[6:]), Append(_LINES[:6]), Delete(3)], [Repack()])
_COPIED = Story([Append(_LARGE), Delete(1)], [Repack()])
_DROPPED = Story(
    [Append((*_LINES, *_OLD, line(5, 0, 88, 1))), Delete(88), LoseSegment(1), LetAge(3650)],
    [Repack()],
)
_GENERATIONS = Story(
    [
        Append(_LINES[6:]),
        Append(_LINES[:6]),
        Beside((Repack(), Delete(3), Repack(), Delete(5), Repack(), Append((line(1, 1, 77, 1),)), Delete(7))),
    ],
    [Repack()],
)
_GOES_ON = Story(
    [Append(tuple(sorted(_LINES[6:])))], [Append(_LINES[:6]), Repack(), Append(random_lines(2, 3)), Delete(5), Repack()]
)

STORIES = {
    ("vm2", "dirty"): _DIRTY,
    ("vm2", "copied"): _COPIED,
    ("vm2", "dropped"): _DROPPED,
    ("vm2", "generations"): _GENERATIONS,
    ("vm2", "goes on"): _GOES_ON,
    ("seg lz4", "dirty"): _DIRTY,
    ("seg lz4", "generations"): _GENERATIONS,
    ("seg lz4", "goes on"): _GOES_ON,
    ("seg plain", "dirty"): _DIRTY,
    ("grib", "dirty"): _DIRTY,
    ("seg ctr", "goes on"): _GOES_ON,
    ("seg gcm", "dirty"): _DIRTY,
    ("seg sequence", "dirty"): _DIRTY,
    ("seg sequence", "goes on"): _GOES_ON,
    ("odimh5", "dirty"): _DIRTY,
    ("blob", "dropped"): _DROPPED,
    ("blob", "generations"): _GENERATIONS,
    ("blob", "goes on"): _GOES_ON,
}
TO_FAIL = [case for case in STORIES if case[1] not in ("generations", "goes on")]


@pytest.mark.parametrize("case", STORIES)
def test_the_stories_are_what_they_are_called(case: tuple[str, str], tmp_path: Path) -> None:
    """So that the sweeps sweep what they should."""
    format, name = case
    path = make(tmp_path / "dataset", STORIES[case], ALL_CONFIGS[format])
    assert (len(left_behind(path)) > 4) == (name == "generations")
    with ondisk.open(path) as dataset:
        assert left_behind(path) == []
        states = State.OK
        for each in dataset.check():
            states |= each.state
        dropped = State.DELETED | State.MISSING | State.DELETE_AGE
        expected = {"dropped": dropped | State.DIRTY, "goes on": State.OK}.get(name, State.DIRTY)
        assert states & (State.DIRTY | dropped) == expected


@pytest.mark.parametrize(
    ("what", "caught"),
    [
        ("directories", "committed before these names are synced"),
        ("files and directories", "committed before these are"),
    ],
)
def test_a_repack_that_leaves_syncs_out_is_caught(
    what: Literal["directories", "files and directories"], caught: str, tmp_path: Path
) -> None:
    story = Story(_DIRTY.before, [LeaveOut(what), Repack()])
    with pytest.raises(AssertionError, match=caught):
        ordered({("vm2", what): story}, ("vm2", what), tmp_path)
