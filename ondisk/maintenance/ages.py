"""Which segments are old enough, by `archive_age` and `delete_age`, and what prevents it.

A diagnosis contains the result, `State.ARCHIVE_AGE` or `State.DELETE_AGE`. Then a repack archives or deletes the
segment, unless `Ages.why_held` returns a reason.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ondisk.dataset.access import Access
from ondisk.dataset.away import maintained, missing
from ondisk.errors import command
from ondisk.index import Snapshot, segment_rows
from ondisk.index.sums import totals
from ondisk.maintenance import holds
from ondisk.maintenance.states import State
from ondisk.matcher import Everything
from ondisk.segments.places import place
from ondisk.step import LAST, Interval, days_ago, place_of

_HOUR = 3600  # seconds


@dataclass(frozen=True, slots=True)
class Ages:
    """From when `delete_age`, `quarantine_age` and `deletions_kept` count.

    `ondisk.maintenance.holds` has the rules. `archive_age` counts from what the clock says.

    Attributes:
        now: seconds since 1970.
        doubt: why nothing is deleted by age; None if it may be.
        away: why nothing is archived by age; None if it may be.
        needs_commit: the last commit is so old that a repack commits without a change, see `holds.COMMIT_AFTER`.
    """

    now: float
    doubt: str | None = None
    needs_commit: bool = False
    away: str | None = None

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
        if by_age or (config.delete_age is config.deletions_kept is config.quarantine_age is None):
            return cls(now, away=away)
        clock = int(now * 1_000_000)
        with dataset.current().index.snapshot() as snapshot:
            committed_at = _last_commit(dataset, snapshot)
            newest = totals(snapshot, Everything()).end if clock - committed_at > holds.FAR else None
        counted_from = holds.counted_from(clock, committed_at, newest)
        if counted_from is None:
            return cls(now, holds.doubt(clock, committed_at, newest), away=away)
        needs_commit = clock - committed_at > holds.COMMIT_AFTER
        now = counted_from / 1_000_000
        if config.delete_age is None:
            return cls(now, None, needs_commit, away)
        with dataset.current().index.snapshot() as snapshot:
            before = days_ago(config.delete_age, now)
            expired, total = segment_rows.ended_by(snapshot, before, maintained(config))
        if holds.too_many(expired, total):
            return cls(now, f"{expired} of {total} segments are that old at once", needs_commit, away)
        return cls(now, None, needs_commit, away)

    def why_held(self, access: Access, state: State) -> str | None:
        """Return why a segment in this state is neither deleted nor archived; None if it may be."""
        if State.DELETE_AGE in state and self.doubt is not None:
            return by_age_remedy(access, self.doubt)
        return self.away if State.ARCHIVE_AGE in state else None


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """The times by which a segment must have ended to be archived or deleted.

    Attributes:
        archive_before, delete_before: microseconds since 1970; None: never.
        places: in which segments are deleted; they are archived from the dataset's own folders, "".
    """

    archive_before: int | None = None
    delete_before: int | None = None
    places: tuple[str, ...] = ("", LAST)

    @classmethod
    def of(cls, access: Access, now: float | None, ages: Ages | None) -> AgeLimits:
        """Return the limits of a dataset."""
        archive_age, delete_age = access.config.archive_age, access.config.delete_age
        return cls(
            None if archive_age is None else days_ago(archive_age, now),
            None if delete_age is None else days_ago(delete_age, now if ages is None else ages.now),
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
