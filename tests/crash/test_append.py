"""A process that appends is killed, or its disk fails, at every point where it touches the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import POINTS
from .killpoints import CHANGING, Bench, Run, needs_strace, synced_path
from .recovery import check, make
from .workload import CONFIG, REPLACING, Append, Story, random_lines

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


def bench(story: Story, tmp_path: Path) -> Bench:
    config = REPLACING if story.replace else CONFIG
    return Bench(tmp_path / "runs", make(tmp_path / "template", story, config), story.steps)


@pytest.mark.crash
@pytest.mark.parametrize("call", CHANGING)
@pytest.mark.parametrize("name", STORIES)
def test_killed_anywhere_an_append_loses_nothing_and_shows_no_batch_in_part(
    name: str, call: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = STORIES[name], 0
    for run in bench(story, tmp_path).killed_at(call):
        check(run.path, run.acked, story)
        points += run.killed
    record_property(POINTS, points)


@pytest.mark.parametrize(("call", "every"), [("pwrite64", 17), ("fsync", 3), ("fdatasync", 4), ("write", 2)])
def test_killed_at_a_few_points_an_append_loses_nothing(
    call: str, every: int, tmp_path: Path, record_property: Record
) -> None:
    story, points = STORIES["known and new segments"], 0
    for run in bench(story, tmp_path).killed_at(call, every):
        check(run.path, run.acked, story)
        points += run.killed
    assert points >= 1
    record_property(POINTS, points)


def check_failed_sync(run: Run, story: Story) -> None:
    """After a failed sync nothing more was acknowledged, the file was not synced again, and all before is there."""
    assert run.injected is not None
    failed, *later = run.calls[run.injected :]
    # SQLite does not mind when it cannot sync the directory of -wal; ondisk did, when it created the dataset.
    ignored = failed.startswith("fdatasync(") and synced_path(failed) == str(run.path)
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
@pytest.mark.parametrize("name", STORIES)
def test_a_failed_sync_is_told_never_tried_again_and_ends_all_writing(
    name: str, call: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = STORIES[name], 0
    for run in bench(story, tmp_path).failed_at(call, "EIO"):
        check_failed_sync(run, story)
        points += 1
    record_property(POINTS, points)


def test_a_failed_sync_of_a_segment_or_of_the_index_is_told_and_never_tried_again(tmp_path: Path) -> None:
    story = STORIES["known and new segments"]
    for call in ("fsync", "fdatasync"):
        run = next(bench(story, tmp_path / call).failed_at(call, "EIO"))
        check_failed_sync(run, story)


def check_full_disk(run: Run, story: Story) -> None:
    """The batch that met the full disk said so, or went through; all others went through."""
    assert len(run.acks) == len(story.steps)
    refused = {place: ack for place, ack in enumerate(run.acks) if ack is not None}
    assert [ack["code"] for ack in refused.values()] in ([], [51]), run.acks
    done = list(story.steps)
    for place, ack in refused.items():
        step = done[place]
        assert isinstance(step, Append)
        done[place] = Append(step.lines[: ack["done"]], step.batch_size)
    check(run.path, len(done), Story(story.before, done, replace=story.replace))


@pytest.mark.crash
@pytest.mark.parametrize("name", STORIES)
def test_a_full_disk_is_told_and_changes_nothing_and_writing_goes_on(
    name: str, tmp_path: Path, record_property: Record
) -> None:
    story, points = STORIES[name], 0
    for run in bench(story, tmp_path).failed_at("pwrite64", "ENOSPC"):
        check_full_disk(run, story)
        points += 1
    record_property(POINTS, points)


def test_a_full_disk_met_at_a_few_points_is_told_and_writing_goes_on(tmp_path: Path, record_property: Record) -> None:
    story, points = STORIES["known and new segments"], 0
    for run in bench(story, tmp_path).failed_at("pwrite64", "ENOSPC", every=13):
        check_full_disk(run, story)
        points += 1
    assert points >= 2
    record_property(POINTS, points)
