"""What `delete_age` and `quarantine_age` count from, and whether so much is old that the clock may be wrong.

`inspect`, `diagnosis` and `repack` apply `archive_age`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess
from ondisk.errors import command
from ondisk.index import Snapshot, segment_rows
from ondisk.maintenance import holds
from ondisk.matcher import Everything
from ondisk.step import days_ago

_HOUR = 3600  # seconds


@dataclass(frozen=True, slots=True)
class Ages:
    """What the ages that delete, in one dataset and its archive, count from; see `ondisk.maintenance.holds`.

    Attributes:
        now: seconds since 1970.
        doubt: why nothing is deleted by age; None if nothing speaks against it.
        away: why nothing is archived by age; None if nothing speaks against it.
        is_visit_due: the last commit is so old that a repack must commit its visit.
    """

    now: float
    doubt: str | None = None
    is_visit_due: bool = False
    away: str | None = None

    @classmethod
    def of(cls, dataset: DatasetAccess, now: float | None = None, *, by_age: bool = False) -> Ages:
        """Compare the clock with the index.

        Args:
            now: what the clock says, seconds since 1970; None to read it.
            by_age: somebody looked at the dates: believe the clock, and delete however much is old.
        """
        now = time.time() if now is None else now
        config = dataset.config
        away = None if config.archive_age is None else dataset.archives.record.why_not_archived()
        if by_age or (config.delete_age is config.deletions_kept is config.quarantine_age is None):
            return cls(now, away=away)
        clock = int(now * 1_000_000)
        with dataset.current().index.snapshot() as snapshot:
            committed_at = _last_commit(dataset, snapshot)
            newest = snapshot.totals(Everything()).end if clock - committed_at > holds.FAR else None
        counted_from = holds.counted_from(clock, committed_at, newest)
        if counted_from is None:
            return cls(now, holds.doubt(clock, committed_at, newest), away=away)
        is_visit_due = clock - committed_at > holds.VISIT
        now = counted_from / 1_000_000
        if config.delete_age is None:
            return cls(now, None, is_visit_due, away)
        expired = total = 0
        for access in dataset.archives.maintained():
            with access.current().index.snapshot() as snapshot:
                old, count = segment_rows.ended_by(snapshot, days_ago(config.delete_age, now))
            expired, total = expired + old, total + count
        if holds.too_many(expired, total):
            return cls(now, f"{expired} of {total} segments are that old at once", is_visit_due, away)
        return cls(now, None, is_visit_due, away)


def by_age_remedy(access: Access, doubt: str) -> str:
    """Return the reason for which something is not deleted by age, and the command that deletes it."""
    return f"{doubt}; to delete it, run {command('repack', access.dataset_path, '--yes', '--by-age')}"


def _last_commit(dataset: DatasetAccess, snapshot: Snapshot) -> int:
    """Return when the index was last changed, as it was an hour ago if the dataset was already open then.

    What a fix, a repack and a check do one after the other must not make a wrong clock look right.
    """
    now = time.monotonic()
    if dataset.last_commit is None or now - dataset.last_commit[0] > _HOUR:
        dataset.last_commit = now, int(snapshot.dataset()["committed_at"] or 0)
    return dataset.last_commit[1]
