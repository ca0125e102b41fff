"""Which segments are old enough, and what prevents that they are archived or deleted.

`test_holds.py` has whole datasets, `test_diagnosis.py` segments that end exactly at a limit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import access_to

import ondisk
from ondisk.maintenance.ages import NO_LIMITS, AgeLimits, Ages
from ondisk.maintenance.states import State
from ondisk.step import DAY

SECONDS = 86_400  # of a day
BOTH = State.DIRTY | State.DELETE_AGE


def test_the_archive_age_counts_from_the_clock_and_the_delete_age_from_what_is_believed(
    create: Callable[..., ondisk.Dataset],
) -> None:
    with create(archive_age=10, delete_age=20) as dataset, access_to(dataset.path) as access:
        now, believed = 1000.0 * SECONDS, Ages(995.0 * SECONDS)
        assert AgeLimits.of(access, now, believed) == AgeLimits(990 * DAY, 975 * DAY)
        assert AgeLimits.of(access, now, None) == AgeLimits(990 * DAY, 980 * DAY)


def test_without_ages_no_segment_is_old_enough(create: Callable[..., ondisk.Dataset]) -> None:
    with create() as dataset, access_to(dataset.path) as access:
        assert AgeLimits.of(access, None, Ages(0.0)) == NO_LIMITS


@pytest.mark.parametrize(
    ("state", "held"),
    [(State.OK, None), (State.DIRTY, None), (State.ARCHIVE_AGE, "away"), (State.DELETE_AGE, "doubt"), (BOTH, "doubt")],
)
def test_only_what_its_age_would_move_is_held(
    state: State, held: str | None, create: Callable[..., ondisk.Dataset]
) -> None:
    with create() as dataset, access_to(dataset.path) as access:
        reason = Ages(0.0, doubt="doubt", away="away").why_held(access, state)
        assert (reason is None) if held is None else (reason is not None and reason.startswith(held))
        assert Ages(0.0).why_held(access, state) is None
