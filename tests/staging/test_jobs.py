"""Staging directories: there as long as their job runs, and told from those of jobs that were killed."""

from __future__ import annotations

import os
from pathlib import Path

from ondisk.filesystem import Directory
from ondisk.staging.jobs import ABANDONED, Job, jobs, remove, staged


def write(directory: Directory, name: str) -> None:
    with directory.create_file(name) as file:
        file.write(0, b"12345")


def found(directory: Directory, later: int = 0) -> Job:
    (job,) = jobs(directory)
    (job,) = jobs(directory, job.changed + later)
    return job


def test_the_directory_of_a_job_goes_with_it(directory: Directory) -> None:
    with staged(directory, "repack") as name:
        write(directory, f"{name}/1-0")
        job = found(directory, ABANDONED + 1)  # however long it takes
        assert (f".staged/{job.name}", job.size, job.runs) == (name, 5, True)
    assert [*jobs(directory)] == []


def test_a_job_whose_lock_nobody_holds_runs_no_more(directory: Directory) -> None:
    pid = os.fork()
    if not pid:
        with staged(directory, "repack") as name:
            write(directory, f"{name}/1-0")
            os._exit(0)
    os.waitpid(pid, 0)
    job = found(directory)
    assert (job.size, job.runs) == (5, False)
    remove(directory, job.name)
    assert [*jobs(directory)] == []


def test_a_job_without_a_lock_runs_for_a_day_behind_its_last_change(directory: Directory) -> None:
    write(directory, ".staged/job/1-0")
    assert found(directory, ABANDONED - 1).runs
    assert not found(directory, ABANDONED + 1).runs
    remove(directory, "job")
    assert [*jobs(directory)] == []


def test_a_lock_that_cannot_be_looked_at_tells_nothing(directory: Directory, tmp_path: Path) -> None:
    write(directory, ".staged/job/1-0")
    (tmp_path / ".staged/job/.lock").symlink_to("elsewhere")
    assert found(directory, ABANDONED - 1).runs
    assert not found(directory, ABANDONED + 1).runs
