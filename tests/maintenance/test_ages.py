"""Which segments are old enough, and what prevents that they are archived or deleted.

`test_holds.py` has whole datasets, `test_diagnosis.py` segments that end exactly at a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from worlds import access_to

import ondisk
from ondisk import Datum
from ondisk.maintenance.ages import NO_LIMITS, AgeLimits, Ages
from ondisk.maintenance.states import State
from ondisk.step import DAY

SECONDS = 86_400  # of a day
BOTH = State.DIRTY | State.DELETE_AGE


def test_the_archive_age_counts_from_the_clock_and_the_delete_age_from_what_is_believed(
    create: Callable[..., ondisk.Dataset],
) -> None:
    with create(archive_age=10, delete_age=20) as dataset, access_to(dataset.path) as access:
        assert AgeLimits.of(access, Ages(1000.0 * SECONDS, 995.0 * SECONDS)) == AgeLimits(990 * DAY, 975 * DAY)
        assert AgeLimits.of(access, None) == NO_LIMITS


@pytest.mark.check
def test_the_hours_of_a_day_are_archived_together_and_a_lost_index_finds_them_again(
    create: Callable[..., ondisk.Dataset],
) -> None:
    """Ages are days, so that all 24 hours of a day go at once."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    data = [Datum(today - timedelta(hours=24 * 9 + 12 - at), {}, {"n": at}) for at in range(0, 24, 2)]
    with create(format="seg", step="hourly", archive_age=9, delete_age=400) as dataset:
        dataset.append([*data, Datum(today - timedelta(minutes=1), {}, None)])
        dataset.delete(f"reftime: ={data[3].reftime:%Y-%m-%d %H}")
        names = [f"{each.reftime:%Y/%m-%dT%H}.seg" for each in data]
        done = {each.segment: each.action for each in dataset.repack(by_age=True)}
        assert {name for name, action in done.items() if action == "archive"} == {*names[:3], *names[4:6]}
        assert sorted({each.location.segment for each in dataset.query()}) == sorted(
            [*(f".archive/last/{name}" for name in {*names[:3], *names[4:6]}), *names[6:],
             f"{today - timedelta(hours=1):%Y/%m-%dT%H}.seg"]
        )  # fmt: skip
        dataset.unarchive(*names[:3])
    (dataset.path / "index.sqlite").unlink()
    with ondisk.open(dataset.path) as again:
        again.fix()
        assert not [each for each in again.check(accurate=True) if each.state & ~State.ARCHIVE_AGE]
        assert again.summary().count == len(data)


def test_without_ages_no_segment_is_old_enough(create: Callable[..., ondisk.Dataset]) -> None:
    with create() as dataset, access_to(dataset.path) as access:
        assert AgeLimits.of(access, Ages(0.0, 0.0)) == NO_LIMITS


@pytest.mark.parametrize(
    ("state", "held"),
    [(State.OK, None), (State.DIRTY, None), (State.ARCHIVE_AGE, "away"), (State.DELETE_AGE, "doubt"), (BOTH, "doubt")],
)
def test_only_what_its_age_would_move_is_held(
    state: State, held: str | None, create: Callable[..., ondisk.Dataset]
) -> None:
    with create() as dataset, access_to(dataset.path) as access:
        reason = Ages(0.0, 0.0, doubt="doubt", away="away").why_held(access, state)
        assert (reason is None) if held is None else (reason is not None and reason.startswith(held))
        assert Ages(0.0, 0.0).why_held(access, state) is None
