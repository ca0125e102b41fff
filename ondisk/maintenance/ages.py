"""Which segments are old enough, by `archive_age` and `delete_age`, and what prevents it.

A diagnosis contains the result, `State.ARCHIVE_AGE` or `State.DELETE_AGE`. Then a repack archives or deletes the
segment, unless `Ages.why_held` returns a reason.

A disk that is not mounted looks like deleted files, and a wrong clock makes data look old. Both hit many segments at
the same time, so fix and repack leave everything if too much would go at once: see `kept` and `too_many`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from ondisk.dataset.access import Access
from ondisk.dataset.place_checks import maintained, missing
from ondisk.datum import from_microseconds
from ondisk.errors import command
from ondisk.index import Snapshot, segment_rows
from ondisk.index.sums import totals
from ondisk.maintenance.states import Diagnosis, State
from ondisk.matcher import Everything
from ondisk.segments.generations import parent_of
from ondisk.segments.places import place
from ondisk.step import DAY, LAST, Interval, days_ago, interval_of, place_of

_HOUR = 3600  # seconds

FAR = 10 * DAY
"""How far the clock may be ahead of the last commit: longer than a week, so that a weekly maintain is enough."""

COMMIT_AFTER = 3 * DAY // 2
"""If the last commit is older, a repack commits without a change: so data age although nobody writes.

Longer than a day, so that a clock that is a day ahead is not recorded; shorter than two nights, so that of daily
segments never three are deleted at once.
"""

_MANY = 3


@dataclass(frozen=True, slots=True)
class Ages:
    """From when ages count, and what prevents deleting and archiving by age. Times are seconds since 1970."""

    clock: float  # what the clock says: `archive_age` counts from it
    now: float  # `delete_age`, `quarantine_age` and `deletions_kept` count from it
    doubt: str | None = None  # why nothing is deleted by age; None if it may be
    needs_commit: bool = False  # the last commit is so old that a repack commits without a change, see `COMMIT_AFTER`
    away: str | None = None  # why nothing is archived by age; None if it may be

    @classmethod
    def of(cls, dataset: Access, now: float | None = None, *, by_age: bool = False) -> Ages:
        """Return from when ages count, and what prevents deleting and archiving.

        Args:
            by_age: a person has looked at the dates: believe the clock, and delete however much is old.
        """
        now = time.time() if now is None else now
        config = dataset.config
        away = None
        if config.archive_age is not None and (last := place(dataset.directory, LAST)).identity is not None:
            away = None if last.why_away is None else missing(dataset.directory, last).message
        if by_age or all(each is None for each in (config.delete_age, config.deletions_kept, config.quarantine_age)):
            return cls(now, now, away=away)
        clock = int(now * 1_000_000)
        with dataset.current().index.snapshot() as snapshot:
            committed_at = _last_commit(dataset, snapshot)
            newest = totals(snapshot, Everything()).end if clock - committed_at > FAR else None
        start = counted_from(clock, committed_at, newest)
        if start is None:
            return cls(now, now, doubt(clock, committed_at, newest), away=away)
        needs_commit = clock - committed_at > COMMIT_AFTER
        counted = start / 1_000_000
        if config.delete_age is None:
            return cls(now, counted, None, needs_commit, away)
        with dataset.current().index.snapshot() as snapshot:
            before = days_ago(config.delete_age, counted)
            expired, total = segment_rows.ended_by(snapshot, before, maintained(config))
        if too_many(expired, total):
            return cls(now, counted, f"{expired} of {total} segments are that old at once", needs_commit, away)
        return cls(now, counted, None, needs_commit, away)

    def why_held(self, access: Access, state: State) -> str | None:
        """Return why a segment in this state is neither deleted nor archived; None if it may be.

        None as well for one that a fix reads first: a repack leaves it anyway.
        """
        if state & (State.UNALIGNED | State.CORRUPTED):
            return None
        if State.DELETE_AGE in state and self.doubt is not None:
            return by_age_remedy(access, self.doubt)
        return self.away if State.ARCHIVE_AGE in state else None


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """The times by which a segment must have ended to be archived or deleted."""

    # microseconds since 1970; None: never
    archive_before: int | None = None
    delete_before: int | None = None
    # in which segments are deleted; they are archived from the dataset's own folders, ""
    places: tuple[str, ...] = ("", LAST)

    @classmethod
    def of(cls, access: Access, ages: Ages | None) -> AgeLimits:
        """Return the limits of a dataset; without `ages`, nothing is too old."""
        archive_age, delete_age = access.config.archive_age, access.config.delete_age
        return cls(
            None if ages is None or archive_age is None else days_ago(archive_age, ages.clock),
            None if ages is None or delete_age is None else days_ago(delete_age, ages.now),
            tuple(maintained(access.config)),
        )

    def state_of(self, name: str, interval: Interval) -> tuple[State, list[str]]:
        """Return DELETE_AGE or ARCHIVE_AGE and the reason for a segment, or OK and no reason."""
        mine = place_of(name)
        if self.delete_before is not None and interval.end <= self.delete_before and mine in self.places:
            return State.DELETE_AGE, ["it is old enough to be deleted"]
        if self.archive_before is not None and interval.end <= self.archive_before and not mine:
            return State.ARCHIVE_AGE, ["it is old enough to be archived"]
        return State.OK, []


NO_LIMITS = AgeLimits()


def aged_at(access: Access, name: str, ages: Ages) -> Diagnosis | None:
    """Return the diagnosis of a segment at the name that it gets; None if it is not too old there."""
    interval = interval_of(name, access.config.step)
    state, reasons = (State.OK, []) if interval is None else AgeLimits.of(access, ages).state_of(name, interval)
    if not state:
        return None
    found = Diagnosis(name, state, tuple(reasons))
    why = ages.why_held(access, state)
    return found if why is None else found.hold(why)


def by_age_remedy(access: Access, doubt: str) -> str:
    """Return the reason for which something is not deleted by age, and the command that deletes it."""
    return f"{doubt}; to delete it, run {command('repack', access.path, '--yes', '--by-age')}"


def _last_commit(dataset: Access, snapshot: Snapshot) -> int:
    """Return when the index was last changed, as it was when this was read, at most an hour ago.

    Otherwise the commits of a fix would make a wrong clock look right to the repack after it.
    """
    now, remembered = time.monotonic(), dataset.remembered
    if remembered.last_commit is None or now - remembered.last_commit[0] > _HOUR:
        remembered.last_commit = now, int(snapshot.dataset()["committed_at"] or 0)
    return remembered.last_commit[1]


def kept(missing: Collection[str], known: Collection[str], absent: Collection[str]) -> dict[str, str]:
    """Return the missing segments that the index must keep, each with the reason.

    Args:
        absent: the folders of missing segments that are not on disk either.
    """
    of_folder, gone = Counter(map(parent_of, known)), Counter(map(parent_of, missing))
    reasons = {}
    for name in missing:
        folder = parent_of(name)
        if folder in absent:
            reasons[name] = f"its folder {folder} does not exist"
        elif gone[folder] >= _MANY and 2 * gone[folder] > of_folder[folder]:
            where = folder or "its directory"
            reasons[name] = f"{gone[folder]} of {of_folder[folder]} segments in {where} are missing"
        elif len(missing) >= _MANY and 2 * len(missing) > len(known):
            reasons[name] = f"{len(missing)} of {len(known)} segments are missing"
    return reasons


def counted_from(clock: int, committed_at: int, newest: int | None) -> int | None:
    """Return the time from which ages count; None if the clock cannot be believed. All in microseconds.

    Ages count from the last commit if the clock is ahead of it, so a clock that is a day or a week ahead makes nothing
    old. If the clock is far ahead of the last commit, it is believed only if it is near the newest reftime.

    Args:
        committed_at: when the index was last changed.
        newest: the newest reftime of the data; None without data.
    """
    if clock - committed_at <= FAR:
        return min(clock, committed_at)
    if newest is not None and 0 <= clock - newest <= FAR:
        return newest
    return None


def too_many(expired: int, total: int) -> bool:
    """Return whether so many of all segments are old enough to be deleted that the clock or the age may be wrong."""
    return expired >= _MANY and 2 * expired >= total


def doubt(clock: int, committed_at: int, newest: int | None) -> str:
    """Return why the clock is not believed."""
    last = f"the last change of the index was on {_day(committed_at)}"
    data = "" if newest is None else f", and the newest datum is of {_day(newest)}"
    return f"the clock says {_day(clock)}, but {last}{data}: is the clock wrong?"


def _day(time: int) -> str:
    try:
        return f"{from_microseconds(time):%Y-%m-%d}"
    except OverflowError:  # a damaged index
        return f"{time} µs after 1970"
