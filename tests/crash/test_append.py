"""A process that appends is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import POINTS
from .killpoints import CHANGING, CHANGING_SEG, Bench, Run, needs_strace, synced_path
from .recovery import LAST, check, check_whole, make
from .workload import CONFIGS, SEG, Append, Story, line, random_lines

pytestmark = needs_strace
Record = Callable[[str, object], None]

_KNOWN = random_lines(1, 40, days=2)
_MORE = random_lines(2, 60, days=4)

STORIES = {
    "new segments": Story([], [Append(random_lines(3, 20)), Append(random_lines(4, 20), batch_size=10)]),
    "known and new segments": Story([Append(_KNOWN)], [Append(_MORE[:20]), Append(_MORE[20:], batch_size=20)]),
    "duplicates": Story([Append(_KNOWN)], [Append(_KNOWN[:20] + _MORE[:20]), Append(_MORE[:20] * 2 + _KNOWN[20:])]),
    "nothing but duplicates": Story([Append(_KNOWN)], [Append(_KNOWN), Append(_KNOWN[::-1], batch_size=20)]),
    "replacing": Story(
        [Append(_KNOWN)],
        [Append(_MORE[:20]), Append(_MORE[:10] + random_lines(5, 30)), Append(random_lines(6, 40))],
        replace=True,
    ),
}

_FEW = random_lines(7, 8, days=2)
_OTHERS = random_lines(8, 6, days=3)
_LARGE = line(1, 5, 8, 3, "x" * 70_000)  # spans blocks

# The index is written as for vm2; what differs is how a segment begins, goes on and is counted.
OF_SEG = {
    "known and new segments": Story(
        [Append(_FEW)], [Append((*_OTHERS[:4], _FEW[0], _LARGE)), Append((_OTHERS[4], _LARGE))]
    ),
    "replacing": Story([Append(_FEW)], [Append((*random_lines(7, 3, days=2), *_OTHERS[:2]))], replace=True),
}
CASES = [("vm2", name) for name in STORIES] + [(format, name) for format in SEG for name in OF_SEG]


def test_the_stories_of_seg_hold_duplicates_and_replacements() -> None:
    ends = {name: len(story.end) for name, story in OF_SEG.items()}
    assert ends == {"known and new segments": len(_FEW) + 6, "replacing": len(_FEW) + 2}
    assert set(_FEW) - set(OF_SEG["replacing"].end)


def story_of(format: str, name: str) -> Story:
    return STORIES[name] if format == "vm2" else OF_SEG[name]


def bench(story: Story, tmp_path: Path, format: str) -> Bench:
    config = {**CONFIGS[format], "replace": "yes"} if story.replace else CONFIGS[format]
    return Bench(tmp_path / "runs", make(tmp_path / "template", story, config), story.steps)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("format", "name", "call"),
    [(*case, call) for case in CASES for call in (CHANGING if case[0] == "vm2" else CHANGING_SEG)],
)
def test_killed_anywhere_an_append_loses_nothing_and_shows_no_batch_in_part(
    format: str, name: str, call: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = story_of(format, name), 0
    for run in bench(story, tmp_path, format).killed_at(call):
        check(run.path, run.acked, story)
        points += run.killed
    record_property(POINTS, points)


@pytest.mark.parametrize(("call", "every"), [("pwrite64", 17), ("fsync", 3), ("fdatasync", 4), ("write", 2)])
def test_killed_at_a_few_points_an_append_loses_nothing(
    call: str, every: int, tmp_path: Path, record_property: Record
) -> None:
    story, points = STORIES["known and new segments"], 0
    for run in bench(story, tmp_path, "vm2").killed_at(call, every):
        check(run.path, run.acked, story)
        points += run.killed
    assert points >= 1
    record_property(POINTS, points)


@pytest.mark.parametrize("call", ["pwrite64", "fsync"])
@pytest.mark.parametrize("format", SEG)
def test_killed_at_a_few_points_an_append_to_seg_loses_nothing(
    format: str, call: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = OF_SEG["known and new segments"], 0
    for run in bench(story, tmp_path, format).killed_at(call, 15 if call == "pwrite64" else 2):
        check(run.path, run.acked, story)
        points += run.killed
    assert points >= 2
    record_property(POINTS, points)


def check_failed_sync(run: Run, story: Story) -> None:
    """After a failed sync nothing more was acknowledged, the file was not synced again, and all before is there."""
    assert run.injected is not None
    failed, *later = run.calls[run.injected :]
    # SQLite does not mind when it cannot sync the directory of -wal; ondisk did, when it created the dataset.
    ignored = failed.startswith("fdatasync(") and synced_path(failed) in (str(run.path), f"{run.path}/{LAST}")
    first = next((place for place, ack in enumerate(run.acks) if ack is not None), len(run.acks))
    assert [ack and ack["code"] for ack in run.acks[first:]] == [52] * (len(story.steps) - first)
    assert (first == len(run.acks)) == ignored
    again = [
        call for call in later if call.startswith(("fsync(", "fdatasync(")) and synced_path(call) == synced_path(failed)
    ]
    assert again == [] or ignored, failed
    check(run.path, first, story)


@pytest.mark.crash
@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
@pytest.mark.parametrize(("format", "name"), CASES)
def test_a_failed_sync_is_told_never_tried_again_and_ends_all_writing(
    format: str, name: str, call: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = story_of(format, name), 0
    for run in bench(story, tmp_path, format).failed_at(call, "EIO"):
        check_failed_sync(run, story)
        points += 1
    record_property(POINTS, points)


def test_a_failed_sync_of_a_segment_or_of_the_index_is_told_and_never_tried_again(tmp_path: Path) -> None:
    story = STORIES["known and new segments"]
    for call in ("fsync", "fdatasync"):
        run = next(bench(story, tmp_path / call, "vm2").failed_at(call, "EIO"))
        check_failed_sync(run, story)


def check_full_disk(run: Run, story: Story) -> None:
    """The batch that met the full disk said so, or went through; all others went through."""
    assert len(run.acks) == len(story.steps)
    refused = {place: ack for place, ack in enumerate(run.acks) if ack is not None}
    assert [ack["code"] for ack in refused.values()] in ([], [51]), run.acks
    check_whole(run.path)  # the process could take back what it had written, the frame count included
    done = list(story.steps)
    for place, ack in refused.items():
        step = done[place]
        assert isinstance(step, Append)
        done[place] = Append(step.lines[: ack["done"]], step.batch_size)
    check(run.path, len(done), Story(story.before, done, replace=story.replace))


@pytest.mark.crash
@pytest.mark.parametrize(("format", "name"), CASES)
def test_a_full_disk_is_told_and_changes_nothing_and_writing_goes_on(
    format: str, name: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = story_of(format, name), 0
    for run in bench(story, tmp_path, format).failed_at("pwrite64", "ENOSPC"):
        check_full_disk(run, story)
        points += 1
    record_property(POINTS, points)


def test_a_full_disk_met_at_a_few_points_is_told_and_writing_goes_on(tmp_path: Path, record_property: Record) -> None:
    story, points = STORIES["known and new segments"], 0
    for run in bench(story, tmp_path, "vm2").failed_at("pwrite64", "ENOSPC", every=13):
        check_full_disk(run, story)
        points += 1
    assert points >= 2
    record_property(POINTS, points)
