"""Staging: a directory of the dataset for what the processes of a job write, until one of them commits it.

    .staged/JOB/          of one job
    .staged/JOB/.lock     held as long as the job runs, where one process lasts so long
    .staged/JOB/…         its files, which nobody else reads

What a killed job leaves is named by check and removed by repack: at once where nobody holds its lock, else when nothing
in it has changed for a day. Its name is never used again, so that processes of it which still run find no directory to
write to.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

from ondisk.errors import OndiskError, StateError
from ondisk.filesystem import LOCK, Directory, WritableFile, WritersLock, is_locked

STAGED = ".staged"
ABANDONED = 24 * 3600
"""Seconds for which nothing in the directory of a job without a lock changes, after which it runs no more."""


class Changed(Exception):
    """What a job has staged is of another state of a segment than it is in now."""


@dataclass(frozen=True, slots=True)
class Job:
    """What stands on disk of a job.

    Attributes:
        name: that of the job.
        size: bytes.
        changed: when anything of it changed last, seconds since 1970.
        runs: somebody may be at work on it.
    """

    name: str
    size: int
    changed: float
    runs: bool


@contextlib.contextmanager
def staged(directory: Directory, verb: str) -> Iterator[str]:
    """Make the directory of a job, for the length of the block; gives its name. To be begun under the writers' lock.

    Args:
        verb: what the job does, which its lock tells.
    """
    job = uuid4().hex
    name = f"{STAGED}/{job}"
    with directory.inside(name, make=True, durable=False) as folder, WritersLock(folder).hold(verb):
        try:
            yield name
        finally:
            remove(directory, job)


def create_staged(directory: Directory, name: str) -> WritableFile:
    """Create a file of a job, whose directory is not made anew where it was removed.

    Raises:
        StateError: the directory is gone.
    """
    try:
        return directory.create_file(name, make=False)
    except FileNotFoundError:
        raise StateError("the job that this was for has ended", hint="Run it again if it was killed.") from None


def jobs(directory: Directory, now: float | None = None) -> Iterator[Job]:
    """Give the jobs that are staged: those at work, and what is left of others.

    Args:
        now: seconds since 1970; None for the present.
    """
    for entry in directory.entries(STAGED):
        files = directory.entries(f"{STAGED}/{entry.name}") if entry.kind == "directory" else []
        changed = max(each.ctime for each in (entry, *files)) / 1e9
        runs = (time.time() if now is None else now) - changed < ABANDONED
        if any(each.name == LOCK for each in files):
            # Who may not read there, or comes too late, knows no more than when it changed last.
            suppressed = contextlib.suppress(FileNotFoundError, OndiskError)
            with suppressed, directory.inside(f"{STAGED}/{entry.name}") as folder:
                runs = is_locked(folder)
        yield Job(entry.name, sum(each.size for each in files if each.name != LOCK), changed, runs)


def remove(directory: Directory, job: str) -> None:
    """Remove all that a job has staged; what cannot be removed stays, and check names it."""
    place = f"{STAGED}/{job}"
    with contextlib.suppress(OndiskError):
        # Its lock goes last: of a job without one, nobody knows for a day whether it runs.
        for name in sorted(directory.names(place), key=lambda each: each == LOCK):
            with contextlib.suppress(FileNotFoundError):
                directory.unlink(f"{place}/{name}")
        directory.remove_directory(place)
