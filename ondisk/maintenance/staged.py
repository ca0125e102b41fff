"""What was staged for the dataset, see `ondisk.dataset.staged`: check names it, repack removes what is old of it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ondisk.dataset.access import Access
from ondisk.dataset.staged import ABANDONED, STAGED, jobs, remove
from ondisk.maintenance.states import Diagnosis, Done, State


def diagnosed(access: Access, now: float | None = None) -> Iterator[Diagnosis]:
    """Diagnose what stands there of each job: OK while somebody may be at work on it.

    Args:
        now: seconds since 1970; None for the present.
    """
    for job in jobs(access.directory):
        age = (time.time() if now is None else now) - job.changed
        name = f"{STAGED}/{job.name}"
        if age < ABANDONED:
            reason = "it is staged by a job that runs, or was killed less than a day ago"
            yield Diagnosis(name, State.OK, (reason,))
        else:
            reason = f"it was staged by a job that did not come through, {age / 3600:.0f} hours ago"
            yield Diagnosis(name, State.DELETED, (reason,), job.size)


def removed(access: Access, now: float | None = None) -> Iterator[Done]:
    """Remove what is left of jobs that are no more at work.

    Locks: none; a commit that comes all the same fails, and stores nothing.
    """
    for diagnosis in diagnosed(access, now):
        if diagnosis.state:
            remove(access.directory, diagnosis.segment.removeprefix(f"{STAGED}/"))
            yield Done(diagnosis.segment, diagnosis.state, diagnosis.reasons, diagnosis.action, diagnosis.freed)
