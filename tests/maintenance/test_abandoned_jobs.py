"""What is staged and not committed: check names it, and repack removes it when it is old."""

from __future__ import annotations

import time

from staging.stages import CONFIG, stage
from worlds import clock, datum

from ondisk.maintenance.states import State
from ondisk.staging import jobs


def test_check_names_what_is_staged_and_repack_removes_it_when_it_is_old(create):
    dataset = create(**CONFIG, format="jsonl")
    stage(dataset, [datum(0)])
    [found] = dataset.check()
    assert (found.segment, found.state) == (".staged/job", State.OK)
    assert dataset.check().is_clean
    assert dataset.check().ok == 0  # it is no segment
    dataset.repack()
    assert (dataset.path / ".staged/job").exists()
    later = time.time() + jobs.ABANDONED + 60
    with clock(later):
        [found] = dataset.check().findings
        assert (found.segment, found.state, found.action) == (".staged/job", State.DELETED, "delete")
        assert found.freed == sum(each.stat().st_size for each in dataset.path.glob(".staged/job/*"))
        [done] = dataset.repack().findings
    assert (done.segment, done.action) == (".staged/job", "delete")
    assert [*dataset.check()] == []
    assert not (dataset.path / ".staged/job").exists()
