"""A process that fixes is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk
from ondisk.maintenance.states import State

from .killpoints import needs_strace
from .maintenance import bench, check_read
from .recovery import make
from .workload import ALL_CONFIGS, Append, Delete, Fix, LoseIndex, LoseSegment, MakeForeign, Story, random_lines

pytestmark = needs_strace

_LINES, _OTHERS = random_lines(1, 12), random_lines(2, 6)

_LOST = Story([Append(_LINES), Delete(3), LoseIndex()], [Fix()])
_LOST_AND_APPENDED = Story([Append(_LINES), LoseIndex(), Append((*_LINES[:2], *_OTHERS))], [Fix()])
_MISSING = Story([Append(_LINES), LoseSegment(1)], [Fix()])
_FOREIGN = Story([Append(_LINES), LoseIndex(), MakeForeign(0), MakeForeign(2)], [Fix()])

STORIES = {
    ("vm2", "lost index"): _LOST,
    ("vm2", "lost index, then appended"): _LOST_AND_APPENDED,
    ("vm2", "missing segment"): _MISSING,
    ("seg lz4", "lost index"): _LOST,
    ("seg lz4", "lost index, then appended"): _LOST_AND_APPENDED,
    ("seg lz4", "foreign"): _FOREIGN,
    ("grib", "lost index"): _LOST,
    ("seg plain", "foreign"): _FOREIGN,
    ("seg ctr", "lost index"): _LOST,
    ("seg gcm", "lost index, then appended"): _LOST_AND_APPENDED,
    ("seg sequence", "lost index"): _LOST,
    ("seg sequence", "lost index, then appended"): _LOST_AND_APPENDED,
    ("odimh5", "lost index"): _LOST,
    ("blob", "lost index, then appended"): _LOST_AND_APPENDED,
    ("blob", "missing segment"): _MISSING,
}
TO_FAIL = [case for case in STORIES if case[1] != "lost index, then appended"]


def content_of(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in path.rglob("2026/**/*") if each.is_file()}


@pytest.mark.parametrize("case", STORIES)
def test_the_stories_are_what_they_are_called(case: tuple[str, str], tmp_path: Path) -> None:
    """So that the sweeps sweep what they should."""
    format, name = case
    path = make(tmp_path / "dataset", STORIES[case], ALL_CONFIGS[format])
    before = content_of(path)
    with ondisk.open(path) as dataset:
        assert dataset.needs_check == (name != "missing segment")
        states = [each.state for each in dataset.check() if each.state & ~State.DIRTY]
        assert states == ([State.MISSING] if name == "missing segment" else [State.UNALIGNED] * len(states))
        assert len(states) == (1 if name == "missing segment" else 3) or "sequence" in format
        dataset.fix()
    after = content_of(path)
    changed = [each for each in before if before[each] != after[each]]
    assert len(changed) == 2 * (name == "foreign")


@pytest.mark.parametrize("format", sorted(ALL_CONFIGS.keys() - {"seg sequence"}))  # whose folder has other files, too
def test_what_a_fix_has_read_is_durable_before_its_commit(format: str, tmp_path: Path) -> None:
    """Another process wrote it, and perhaps synced nothing."""
    case = (format, "lost index")
    assert check_read(bench({case: _LOST}, case, tmp_path).recorded().calls) >= 4
