"""A process that stages and commits data is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import clock

import ondisk
from ondisk.staging.jobs import ABANDONED

from .conftest import Sweep
from .killpoints import SYNCS, Bench, Run, needs_strace
from .maintenance import check_failed
from .recovery import check, make
from .workload import ALL_CONFIGS, ENCRYPTED, Append, Archive, Commit, Story, line, random_lines

pytestmark = needs_strace

_KNOWN = random_lines(21, 20, days=2)
_MORE = random_lines(22, 30, days=4)
_OF_77 = (line(0, 1, 77, 1), line(1, 2, 77, 2), line(0, 3, 77, 3))
_LARGE = line(1, 5, 8, 3, "x" * 70_000)  # spans blocks

STORIES = {
    "known and new segments": Story([Append(_KNOWN)], [Commit(_MORE), Append(random_lines(23, 5))]),
    "first data": Story([], [Commit(_MORE), Append(random_lines(23, 5))]),
    "duplicates": Story([Append(_KNOWN)], [Commit((*_KNOWN[:8], *_MORE[:6], *_MORE[:3]), 9)]),
    "replacing": Story([Append(_KNOWN)], [Commit((*_KNOWN[:5], *random_lines(21, 8, days=2)), 7)], replace=True),
    "replacing what is archived": Story(
        [Append(_KNOWN), Archive((0,))],
        [Commit((*(each.replace(b",,", b",,new") for each in _KNOWN[:9]), *_MORE[:4]), 7)],
        replace=True,
    ),
    "overwriting": Story(
        [Append((*_KNOWN, *_OF_77)), Archive((0,)), Append(_KNOWN)],
        [Commit((_OF_77[1].replace(b",,", b",,new"), line(0, 4, 77, 4), *_KNOWN[:3]), 3, over=77), Archive((0,))],
    ),
}
# Without `unique`, marks alone tell what is there: of the first stages, and of all when a crash is over.
MARKED = Story([Commit(_MORE[:20], source="it")], [Commit(_MORE, source="it")])
OF_SEG = {"known and new segments": Story([Append(_KNOWN)], [Commit((*_MORE[:9], _KNOWN[0], _LARGE), 6)])}
CASES = [("vm2", name) for name in (*STORIES, "marks")] + [("seg lz4", name) for name in (*OF_SEG, "marks")]
CASES += [(format, name) for format in ENCRYPTED for name in OF_SEG]


def story_of(format: str, name: str) -> Story:
    return MARKED if name == "marks" else STORIES[name] if format == "vm2" else OF_SEG[name]


def bench(story: Story, tmp_path: Path, format: str) -> Bench:
    config = {**ALL_CONFIGS[format], "replace": "yes"} if story.replace else ALL_CONFIGS[format]
    if story is MARKED:
        config = {**config, "unique": []}
    return Bench(tmp_path / "runs", make(tmp_path / "template", story, config), story.steps)


def check_litter(run: Run) -> None:
    """What is staged is named by check, and goes with a repack when it is old; then nothing is left of it."""
    with ondisk.open(run.path) as dataset:
        left = sorted(str(each.relative_to(run.path)) for each in run.path.glob(".staged/*"))
        assert [each.segment for each in dataset.check() if each.segment.startswith(".staged")] == left
        later = max((each.stat().st_ctime for each in run.path.glob(".staged/*")), default=0) + ABANDONED + 60
        with clock(later):
            found = dataset.check()
            dataset.repack()
        assert [each.segment for each in found.findings if each.segment.startswith(".staged")] == left
        assert [*run.path.glob(".staged/*")] == []


def check_done(run: Run, story: Story) -> None:
    check(run.path, run.acked, story)
    check_litter(run)


@pytest.mark.crash
@pytest.mark.parametrize(("format", "name"), CASES)
def test_killed_anywhere_a_commit_is_done_or_not(format: str, name: str, room: Path, sweep: Sweep) -> None:
    story = story_of(format, name)
    sweep(bench(story, room, format).killed(), lambda run: check_done(run, story))


@pytest.mark.check
@pytest.mark.parametrize("name", [next(iter(STORIES)), "marks"])
def test_killed_at_a_few_points_a_commit_is_done_or_not(name: str, tmp_path: Path, sweep: Sweep) -> None:
    story = story_of("vm2", name)
    sweep(bench(story, tmp_path, "vm2").killed(most=6), lambda run: check_done(run, story))


@pytest.mark.crash
@pytest.mark.parametrize(("format", "name"), CASES)
def test_a_failed_sync_is_reported_and_ends_all_writing(format: str, name: str, room: Path, sweep: Sweep) -> None:
    story, seen = story_of(format, name), set[bytes]()

    def look(run: Run) -> None:
        check_failed(run, story, seen)
        check_litter(run)

    sweep(bench(story, room, format).failed("EIO", *SYNCS), look)
