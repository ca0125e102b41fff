"""Files of jobs that stage data, see `ondisk.staging.jobs`: check reports them, repack removes those of dead jobs."""

from __future__ import annotations

from collections.abc import Iterator

from ondisk.dataset.access import Access
from ondisk.maintenance.states import Diagnosis, Done, State
from ondisk.staging.jobs import STAGED, jobs, remove


def diagnosed(access: Access, now: float | None = None) -> Iterator[Diagnosis]:
    """Diagnose the staged files of each job. They are OK while the job may still run."""
    for job in jobs(access.directory, now):
        name = f"{STAGED}/{job.name}"
        if job.runs:
            reason = "a job staged it that is running, or was killed less than a day ago"
            yield Diagnosis(name, State.OK, (reason,))
        else:
            yield Diagnosis(name, State.DELETED, ("a job staged it, and was interrupted",), job.size)


def removed(access: Access, now: float | None = None) -> Iterator[Done]:
    """Remove the staged files of jobs that no longer run.

    Locks: none; if such a job commits after all, its commit fails and stores nothing.
    """
    for diagnosis in diagnosed(access, now):
        if diagnosis.state:
            remove(access.directory, diagnosis.segment.rpartition("/")[2])
            yield Done(diagnosis.segment, diagnosis.state, diagnosis.reasons, diagnosis.action, diagnosis.freed)
