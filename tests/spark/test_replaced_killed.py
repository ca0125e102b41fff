"""A repack that keeps what it deletes by age is killed: a plan that was made before is read all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from crash.killpoints import Bench, needs_strace
from crash.maintenance import check_order
from crash.recovery import check, check_rebuilt, make
from crash.workload import ALL_CONFIGS, Append, LetAge, Repack, Story, left_behind, line, random_lines

import ondisk
from ondisk.maintenance.repack import repack
from ondisk.spark import plan as planning

from .test_plan import contents, planned, rows, same

pytestmark = needs_strace

_LINES = random_lines(1, 12)
_OLD = (line(-5000, 0, 1, 1), line(-5000, 1, 1, 2))

_STORY = Story([Append((*_LINES, *_OLD)), LetAge(3650)], [Repack()])


@pytest.fixture(params=["vm2", "seg lz4", "blob"])
def bench(request, tmp_path, monkeypatch):
    """What is killed, the plan that was made before, and its rows."""
    monkeypatch.setattr(planning, "SMALL", 5)
    template = make(tmp_path / "template", _STORY, {**ALL_CONFIGS[request.param], "keep_replaced": "6h"})
    with ondisk.open(template, read_only=True) as dataset:
        partitions = planned(dataset)
        found = contents(rows(partitions, dataset.config))
        assert len(found) == len([*dataset.query()])

    def read(path):
        """Read the plan from a copy."""
        with ondisk.open(path, read_only=True) as dataset:
            return contents(rows([moved(each, template, path) for each in partitions], dataset.config))

    return Bench(tmp_path / "runs", template, _STORY.steps), read, found


def moved(partition, template, path):
    place = path / Path(partition.state.path).relative_to(template)
    pinned = partition.state.pinned._replace(inode=(place / "index.sqlite").stat().st_ino)
    state = replace(partition.state, path=str(place), pinned=pinned)
    return replace(partition, state=state)


def check_points(bench, most):
    run_of, read, found = bench
    points = 0
    for run in run_of.killed(most):
        assert same(read(run.path), found), "before anybody cleans up"
        check_rebuilt(run.path, run.acked, _STORY)
        check(run.path, run.acked, _STORY)
        assert same(read(run.path), found), "after the steps were done again"
        check_removed(run.path)
        points += 1
    return points


def check_removed(path):
    """What is kept goes with the first repack after its time, and nothing of it stays."""
    with ondisk.open(path) as dataset:
        dataset.repack()  # of data that came out of order since
        until = dataset.check().replaced.until
        before = [(each.reftime, each.metadata, each.data) for each in dataset.query()]
        repack(dataset._access, now=until + 1)
        assert [(each.reftime, each.metadata, each.data) for each in dataset.query()] == before
        assert not [*path.rglob(".replaced")]
        assert not left_behind(path)


@pytest.mark.check
def test_killed_at_a_few_points(bench):
    assert check_points(bench, 3) >= 2


@pytest.mark.crash
def test_killed_anywhere(bench):
    assert check_points(bench, None) >= 5


def test_all_commits_and_removals_are_after_syncs(bench):
    assert check_order(bench[0].recorded().calls)


def test_rows_are_not_there_before_they_are_whole(bench):
    """They are written under another name, and synced before they get their own."""
    calls = bench[0].recorded().calls
    renamed = [number for number, call in enumerate(calls) if call.startswith("rename") and '.rows"' in call]
    assert renamed
    for number in renamed:
        before = calls[:number]
        last = max(at for at, call in enumerate(before) if call.startswith("pwrite64") and ".rows.new" in call)
        assert any("sync(" in call and ".rows.new" in call for call in before[last:])
