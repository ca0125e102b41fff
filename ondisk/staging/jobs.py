"""Staging: a directory of the dataset in which the processes of a job write files, until one of them commits these.

    .staged/JOB/          the directory of one job
    .staged/JOB/.lock     held while the job runs, if one process runs as long as the job
    .staged/JOB/…         its files, which nobody else reads

Check reports what a killed job left, and repack removes it: if it has a lock, as soon as nobody holds that; otherwise
when nothing in it has changed for a day. The name of a job is never used again, so that its processes that still run
find no directory to write to.
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
"""Seconds without a change after which a job without a lock counts as killed."""


class Changed(Exception):
    """A segment has changed since a job read it, or what the job staged is missing or damaged."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job on disk."""

    name: str  # its name
    size: int  # bytes of its files
    changed: float  # when its directory or files last changed, seconds since 1970
    runs: bool  # whether it may still run


@contextlib.contextmanager
def staged(directory: Directory, verb: str) -> Iterator[str]:
    """Create the directory of a job for the length of the block, and yield its name.

    Locks: the caller must hold the writers' lock when the block begins.
    """
    job = uuid4().hex
    name = f"{STAGED}/{job}"
    with directory.inside(name, make=True, durable=False) as folder, WritersLock(folder).hold(verb):
        try:
            yield name
        finally:
            remove(directory, job)


def create_staged(directory: Directory, name: str) -> WritableFile:
    """Create a file of a job, but not its directory; raise StateError if the directory was removed."""
    try:
        return directory.create_file(name, make=False)
    except FileNotFoundError:
        raise StateError(f"{directory.path / name}: the job has ended", hint="Run it again if it was killed.") from None


def jobs(directory: Directory, now: float | None = None) -> Iterator[Job]:
    """Yield all jobs on disk, running or killed. `now`: seconds since 1970; None for the present."""
    for entry in directory.entries(STAGED):
        files = directory.entries(f"{STAGED}/{entry.name}") if entry.kind == "directory" else []
        changed = max(each.ctime for each in (entry, *files)) / 1e9
        runs = (time.time() if now is None else now) - changed < ABANDONED
        if any(each.name == LOCK for each in files):
            # If the lock cannot be read, or was just removed, the time of the last change decides.
            with (
                contextlib.suppress(FileNotFoundError, OndiskError),
                directory.inside(f"{STAGED}/{entry.name}") as folder,
            ):
                runs = is_locked(folder)
        yield Job(entry.name, sum(each.size for each in files if each.name != LOCK), changed, runs)


def remove(directory: Directory, job: str) -> None:
    """Remove the files and the directory of a job; check reports what cannot be removed."""
    folder = f"{STAGED}/{job}"
    with contextlib.suppress(OndiskError):
        # Remove its lock last: a job without one counts as running for a day.
        names = sorted(directory.names(folder), key=lambda each: each == LOCK)
        directory.discard(*(f"{folder}/{name}" for name in names))
        directory.remove_directory(folder)


def remove_all(directory: Directory, begin: str) -> None:
    """Remove the jobs whose names begin so."""
    for name in directory.names(STAGED):
        if name.startswith(begin):
            remove(directory, name)


def job_of(name: str) -> str:
    """Return a name for the job of one process that stages files with names that begin so, below `STAGED`."""
    return name.removeprefix(f"{STAGED}/").replace("/", "-")
