"""A process that opens a dataset without its index is killed at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk

from .conftest import Sweep
from .killpoints import Bench, Run, needs_strace
from .recovery import check, make
from .workload import CONFIGS, Append, Story, random_lines

pytestmark = needs_strace

BEFORE = Story([Append(random_lines(1, 40))], [])
STORY = Story([], [Append(random_lines(2, 40, days=4)), Append(random_lines(3, 20, days=4))])
"""What the new index knows: nothing of what was there before."""

SEG_BEFORE = Story([Append(random_lines(1, 12))], [])
SEG_STORY = Story([], [Append(random_lines(2, 8, days=4))])


def story_of(format: str) -> Story:
    return STORY if format == "vm2" else SEG_STORY


def bench(tmp_path: Path, format: str) -> Bench:
    """Make a dataset and lose its index; `-wal` and `-shm`, stale now, stay."""
    template = make(tmp_path / "template", BEFORE if format == "vm2" else SEG_BEFORE, CONFIGS[format])
    (template / "index.sqlite").unlink()
    assert (template / "index.sqlite-wal").exists()
    return Bench(tmp_path / "runs", template, story_of(format).steps)


def bytes_of(segment: Path) -> bytes:
    """Return a segment's bytes, but for the frame count of seg, which grows with the segment."""
    content = segment.read_bytes()
    return content[:4] + content[8:] if segment.suffix == ".seg" else content


def check_kept(run: Run, original: Path, format: str) -> None:
    """The dataset says that it needs a check; every byte that was there before the index was lost still is."""
    for read_only in (True, False):
        with ondisk.open(run.path, read_only) as dataset:
            assert dataset.needs_check
    check(run.path, run.acked, story_of(format))
    assert (run.path / "needs-check-do-not-pack").exists()
    segments = list(original.rglob(f"*.{CONFIGS[format]['format']}"))
    assert len(segments) == 3
    for segment in segments:
        assert bytes_of(run.path / segment.relative_to(original)).startswith(bytes_of(segment))


@pytest.mark.crash
@pytest.mark.parametrize("format", CONFIGS)
def test_killed_anywhere_an_opening_without_index_keeps_all_bytes_and_asks_for_a_check(
    format: str, room: Path, sweep: Sweep
) -> None:
    sweep(bench(room, format).killed(), lambda run: check_kept(run, room / "template", format))


@pytest.mark.check
def test_killed_at_a_few_points_an_opening_without_index_keeps_all_bytes(tmp_path: Path, sweep: Sweep) -> None:
    sweep(bench(tmp_path, "vm2").killed(most=6), lambda run: check_kept(run, tmp_path / "template", "vm2"))
