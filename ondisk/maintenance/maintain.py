"""Maintain: fix and repack of a dataset, for cron."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ondisk.dataset.dataset import Dataset
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, OndiskError
from ondisk.filesystem import Directory, MaintainLock
from ondisk.maintenance.dry_run import would_do
from ondisk.maintenance.states import Action, Diagnosis, Done, Report, State

_LOG = logging.getLogger("ondisk.maintenance")
_BUG = 1
_APPENDED = State.DIRTY
"""What a segment is after its repack if somebody has appended to it meanwhile."""


@dataclass(slots=True)
class Maintained:
    """What was done to one dataset, and its state afterwards.

    Attributes:
        dataset: its path, absolute.
        dry_run: nothing was to be changed.
        done: the segments that fix and repack changed.
        left: the report of a check after that, or instead of it (dry run); None if it could not be checked.
        missing: segments that the fix found missing; None if there was no fix, for example in a dry run.
        count: data in the dataset; None if they could not be counted.
        lost: data that are lost, in this run and before, until somebody acknowledges it; None if unknown.
        pending: what another program still has to read, as `info` reports it; None if there is none.
        rebuilt: its index was lost, and segments were read again. Data are back that were deleted, but not yet removed
            by a repack.
        kept: names of what was moved to quarantine: files, or pieces of files. After a lost index, all names there.
        error: the first error that maintenance ended with, or that left a segment unchanged.
        duration: seconds.
        ended: seconds since 1970.
    """

    dataset: str
    dry_run: bool = False
    done: list[Done] = field(default_factory=list)
    left: Report | None = None
    missing: int | None = None
    count: int | None = None
    lost: int | None = None
    pending: dict[str, Any] | None = None
    rebuilt: bool = False
    kept: list[str] = field(default_factory=list)
    error: Exception | None = None
    duration: float = 0.0
    ended: float = 0.0

    @property
    def freed(self) -> int:
        """Bytes that were freed; negative if more are used than before."""
        return sum(each.freed for each in self.done)

    @property
    def findings(self) -> list[Diagnosis | Done]:
        """The segments that are not OK; of a dry run also those that another program has read and removed."""
        return [each for each in self.left or () if each.state or (self.dry_run and each.action)]

    @property
    def exit_code(self) -> int:
        """The exit code of a command that did this."""
        if self.error is not None:
            return self.error.exit_code if isinstance(self.error, OndiskError) else _BUG
        if any(each.lost for each in self.done):
            return EXIT_DATA_SKIPPED
        if self.kept or self.findings or (self.left is not None and self.left.needs_check):
            return EXIT_FINDINGS
        return EXIT_DONE


def maintain(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    max_duration: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Maintained:
    """Fix and repack a dataset, and report its state afterwards.

    Errors are returned, not raised, so that a caller can continue with other datasets.

    Args:
        dry_run: change nothing; report what would be done.
        max_duration: seconds in which data are read and checked. Segments that were not read for the longest time are
            read first; see `ondisk.maintenance.check`.

    Locks: `.maintain.lock` for the whole run, without waiting: a second run ends at once with LockError. The writers'
        lock once for each segment, so an append does not wait for the whole run.
    """
    result = Maintained(str(Path(path).absolute()), dry_run)
    began = time.monotonic()
    _LOG.info("%s: maintain begins", result.dataset)
    try:
        if dry_run:
            with Dataset.open(path, read_only=True) as dataset:
                _look(dataset, result, partial(would_do, dataset._access, Action.RESCAN, Action.REPACK))
        else:
            _mend(path, max_duration, progress, result)
    except Exception as error:  # even if it is a bug, the caller continues with the other datasets
        result.error = error
    result.duration, result.ended = time.monotonic() - began, time.time()
    found = f"; {result.error}" if result.error is not None else ""
    _LOG.info("%s: maintain ended after %.1f s with %d%s", result.dataset, result.duration, result.exit_code, found)
    return result


def worst(codes: Iterable[int]) -> int:
    """Return the worst exit code: an error is worse than skipped or lost data, and these are worse than findings."""
    mild = {EXIT_DONE: -3, EXIT_FINDINGS: -2, EXIT_DATA_SKIPPED: -1}
    return max(codes, key=lambda code: mild.get(code, code), default=EXIT_DONE)


def _look(dataset: Dataset, result: Maintained, check: Callable[[], Report]) -> None:
    info = dataset.info()
    result.count, result.lost, result.pending = info["count"], info["lost"], info["pending"]
    try:
        result.left = check()
    except OndiskError as error:
        result.left = error.context.get("report")
        raise


def _mend(
    path: str | os.PathLike[str], max_duration: float | None, progress: Callable[[str], None], result: Maintained
) -> None:
    """Do each step although the one before it failed: a repack may free the space that a fix lacked."""
    errors: list[OndiskError] = []

    def run(verb: Callable[[], Report | None]) -> None:
        try:
            report = verb()
        except OndiskError as error:
            errors.append(error)
            report = error.context.get("report")
        found = [each for each in report or () if isinstance(each, Done)]
        result.done += [each for each in found if each.action is not None]
        if verb is fix and report is not None:
            result.missing = sum(State.MISSING in each.state for each in found)

    def fix() -> Report:
        return dataset.fix(progress=progress)

    # The dataset is opened first: its errors say best what is wrong with a path.
    with Dataset.open(path) as dataset, Directory.open(path) as directory, MaintainLock(directory).hold("maintain"):
        was_lost = dataset.needs_check
        run(fix)
        result.rebuilt = was_lost and any(each.action == Action.RESCAN for each in result.done)
        if max_duration is not None:  # before the repack, which then does not touch what is damaged
            run(lambda: dataset.check(max_duration=max_duration, progress=progress))
        run(lambda: dataset.repack(progress=progress))
        # A rebuild that was killed has reported nothing of what it moved there.
        result.kept = [each.name for each in dataset.quarantine] if was_lost else dataset.quarantine.kept
        run(lambda: _look(dataset, result, dataset.check))
    if errors:
        raise errors[0]
    if result.left is not None:
        result.left.segments = [each for each in result.left.segments if each.state != _APPENDED or each.held]
