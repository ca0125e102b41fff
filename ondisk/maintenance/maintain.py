"""Maintain: all that keeps a dataset in order for years, for cron."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ondisk.dataset import Dataset
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, OndiskError
from ondisk.filesystem import Directory, MaintainLock
from ondisk.maintenance.states import Diagnosis, Done, Report

_BUG = 1


@dataclass(slots=True)
class Maintained:
    """What was done to one dataset, and how it is now.

    Attributes:
        dataset: its path, absolute.
        done: what fix and repack did; those segments of which they did something.
        left: what a check says behind that, or instead of it (dry run); None where it could not be checked.
        count: data in the dataset, those in its archives not counted; None where they could not be counted.
        rebuilt: its index was lost, and segments were read anew: data are back that were deleted and not yet repacked.
        error: what kept it from being maintained, the first of several.
        duration: seconds.
        ended: seconds since 1970.
    """

    dataset: str
    done: list[Done] = field(default_factory=list)
    left: Report | None = None
    count: int | None = None
    rebuilt: bool = False
    error: Exception | None = None
    duration: float = 0.0
    ended: float = 0.0

    @property
    def freed(self) -> int:
        """Bytes given back."""
        return sum(each.freed for each in self.done)

    @property
    def findings(self) -> list[Diagnosis | Done]:
        """The segments that are not OK."""
        return [] if self.left is None else self.left.findings

    @property
    def exit_code(self) -> int:
        """What a command that did this ends with."""
        if self.error is not None:
            return self.error.exit_code if isinstance(self.error, OndiskError) else _BUG
        if any(each.lost for each in self.done):
            return EXIT_DATA_SKIPPED
        return EXIT_DONE if self.left is None or self.left.is_clean else EXIT_FINDINGS


def maintain(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    max_duration: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Maintained:
    """Fix and repack a dataset, and say how it is then. What goes wrong is told and not raised: others wait for it.

    Args:
        dry_run: change nothing, and read no data: only check.
        max_duration: seconds in which data are read, of segments that were not read for the longest time first; see
            `ondisk.maintenance.check`.
        progress: is told the name of each segment that is worked on.

    Locks: `.maintain.lock` for the whole run, without waiting: of two runs, the second ends at once with LockError.
        The writers' lock for each segment anew: who appends does not wait for the run.
    """
    result = Maintained(str(Path(path).absolute()))
    began = time.monotonic()
    try:
        if dry_run:
            with Dataset.open(path, read_only=True) as dataset:
                _look(dataset, result)
        else:
            _mend(path, max_duration, progress, result)
    except Exception as error:  # also of a bug: the other datasets are maintained all the same
        result.error = error
    result.duration, result.ended = time.monotonic() - began, time.time()
    return result


def worst(codes: Iterable[int]) -> int:
    """Choose the exit code that tells of the worst: errors before data left out before findings."""
    mild = {EXIT_DONE: -3, EXIT_FINDINGS: -2, EXIT_DATA_SKIPPED: -1}
    return max(codes, key=lambda code: mild.get(code, code), default=EXIT_DONE)


def _look(dataset: Dataset, result: Maintained) -> None:
    result.left = dataset.check()
    result.count = dataset.info()["count"]


def _mend(
    path: str | os.PathLike[str], max_duration: float | None, progress: Callable[[str], None], result: Maintained
) -> None:
    """Do everything there is to do, each as far as it goes: a repack may make the space that a fix did not find."""
    errors: list[OndiskError] = []

    def take(verb: Callable[[], Report | None]) -> None:
        try:
            report = verb()
        except OndiskError as error:
            errors.append(error)
            report = error.context.get("report")
        result.done += [each for each in report or () if isinstance(each, Done) and each.action is not None]

    # Opened first, since it tells well what is wrong with a path.
    with Dataset.open(path) as dataset, Directory.open(path) as directory, MaintainLock(directory).hold("maintain"):
        was_lost = dataset.needs_check
        take(lambda: dataset.fix(progress=progress))
        result.rebuilt = was_lost and any(each.action == "rescan" for each in result.done)
        if max_duration is not None:  # before the repack, which leaves alone what is found damaged here
            take(lambda: dataset.check(max_duration=max_duration, progress=progress))
        take(lambda: dataset.repack(progress=progress))
        take(lambda: _look(dataset, result))
    if errors:
        raise errors[0]
