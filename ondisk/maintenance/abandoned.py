"""What was staged for the dataset, see `ondisk.staging.jobs`: check names it, repack removes what is left of it."""

from __future__ import annotations

from collections.abc import Iterator

from ondisk.dataset.access import Access
from ondisk.maintenance.states import Diagnosis, Done, State
from ondisk.staging.jobs import STAGED, jobs, remove


def diagnosed(access: Access, now: float | None = None) -> Iterator[Diagnosis]:
    """Diagnose what stands there of each job: OK while somebody may be at work on it.

    Args:
        now: seconds since 1970; None for the present.
    """
    for job in jobs(access.directory, now):
        name = f"{access.prefix}{STAGED}/{job.name}"
        if job.runs:
            reason = "it is staged by a job that runs, or was killed less than a day ago"
            yield Diagnosis(name, State.OK, (reason,))
        else:
            yield Diagnosis(name, State.DELETED, ("it was staged by a job that did not come through",), job.size)


def removed(access: Access, now: float | None = None) -> Iterator[Done]:
    """Remove what is left of jobs that are no more at work.

    Locks: none; a commit that comes all the same fails, and stores nothing.
    """
    for diagnosis in diagnosed(access, now):
        if diagnosis.state:
            remove(access.directory, diagnosis.segment.rpartition("/")[2])
            yield Done(diagnosis.segment, diagnosis.state, diagnosis.reasons, diagnosis.action, diagnosis.freed)
