"""Dir segments, and a process that is killed at every call that changes the disk: nothing is lost or in the way."""

from __future__ import annotations

import contextlib
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from kit.crashes import Killed, killed_at
from worlds import content, lose_index

import ondisk
from ondisk import Datum
from ondisk.maintenance.states import State

pytestmark = pytest.mark.crash

T = datetime(2026, 11, 20, tzinfo=UTC)
NAME = "2026/11-20.h5"
CONFIG = {"format": "blob", "step": "daily", "extension": "h5", "unique": ["reftime"], "fields": {"n": "integer"}}


def some(numbers, value=b"data"):
    return [Datum(T + timedelta(hours=n), {"n": n, "x": f"x{n}"}, b"%s %d" % (value, n)) for n in numbers]


def append(dataset):
    dataset.append(some([*range(2, 5), *range(24, 27)]))


def append_to_nothing(dataset):
    dataset.append(some(range(48, 52)))


def repack(dataset):
    dataset.repack()


def drop(dataset):
    dataset.delete("reftime:=2026-11-20")
    dataset.repack()


def drop_and_append(dataset):
    """Drop a segment; the append then removes its files."""
    drop(dataset)
    dataset.append(some([30]))


def fix(dataset):
    dataset.fix()


def archive(dataset):
    dataset.archive(NAME)


def archive_again(dataset):
    dataset.archive(NAME)


def unarchive(dataset):
    dataset.unarchive(NAME)


def before(verb, path):
    """Make the dataset that a verb works on."""
    with ondisk.create(path, CONFIG) as dataset:
        dataset.append(some([0, 1, 6, 7]))
        if verb is repack:
            dataset.delete("n:1 or 6")
        if verb in (archive_again, unarchive):
            dataset.archive(NAME)
        if verb is archive_again:
            dataset.append(some([2, 3, 9]))
    if verb is fix:
        (path / NAME / "000009.h5").write_bytes(b"of a crash")
        lose_index(path)
        ondisk.open(path).close()


def killed_at_every_call(verb, room):
    """Return the dataset as each kill left it, until the verb comes through."""
    template = room / "template"
    before(verb, template)
    for at in range(1000):
        path = room / "dataset"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(template, path)
        dataset = ondisk.open(path)
        is_done = False
        with contextlib.suppress(Killed), killed_at(at):
            verb(dataset)
            is_done = True
        dataset.close()
        yield path
        if is_done:
            assert at > 3
            return


def is_damaged(dataset):
    return any(each.state & (State.CORRUPTED | State.MISSING) for each in dataset.check(accurate=True))


VERBS = [append, append_to_nothing, repack, drop, fix, archive, archive_again, unarchive]


@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_leaves_all_or_nothing_and_nothing_that_maintenance_cannot_mend(verb, tmp_path):
    seen = []
    for path in killed_at_every_call(verb, tmp_path):
        with ondisk.open(path) as dataset:
            found = content(dataset)
            assert not is_damaged(dataset)
            if found not in seen:
                seen.append(found)
            if verb is append:
                verb(dataset)
                found = content(dataset)
            dataset.fix()
            assert [each for each in found if each not in content(dataset)] == []
            found = content(dataset)
            dataset.repack()
            assert content(dataset) == found
            assert not any(each.state for each in dataset.check(accurate=True)), "nothing is left to be mended"
    assert len(seen) <= 2


@pytest.mark.parametrize("verb", [append, append_to_nothing, repack, drop_and_append, fix])
def test_a_kill_and_the_loss_of_the_index_lose_no_data(verb, tmp_path):
    for path in killed_at_every_call(verb, tmp_path):
        with ondisk.open(path) as dataset:
            found = content(dataset)
        lose_index(path)
        with ondisk.open(path) as dataset:
            dataset.fix()
            assert [each for each in found if each not in content(dataset)] == []
            assert not is_damaged(dataset)


def test_an_append_that_was_killed_and_repeated_before_the_index_was_lost_counts_none_as_lost(tmp_path):
    for path in killed_at_every_call(append, tmp_path):
        with ondisk.open(path) as dataset:
            append(dataset)
            found = content(dataset)
        lose_index(path)
        with ondisk.open(path) as dataset:
            assert dataset.fix().lost == 0
            assert content(dataset) == found
            assert not is_damaged(dataset)
            dataset.repack()
            assert content(dataset) == found
            assert not any(each.state for each in dataset.check(accurate=True))


@pytest.mark.parametrize("verb", [archive, unarchive])
def test_a_kill_and_the_loss_of_all_indices_lose_no_data_and_count_none_as_lost(verb, tmp_path):
    for path in killed_at_every_call(verb, tmp_path):
        with ondisk.open(path, read_only=True) as dataset:
            found = content(dataset)
        for part in (path, *path.glob(".archive/*/")):
            lose_index(part)
        with ondisk.open(path) as dataset:
            assert dataset.fix().lost == 0
            assert content(dataset) == found
            assert not is_damaged(dataset)
