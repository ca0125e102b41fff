"""What fix and repack share: they say what they would do, or do it and say what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ondisk.cli.output import Output
from ondisk.cli.progress import segments
from ondisk.errors import EXIT_DATA_LEFT_OUT, EXIT_DONE, EXIT_FINDINGS, OndiskError

if TYPE_CHECKING:
    from ondisk import Dataset
    from ondisk.dataset.dataset import Progress
    from ondisk.maintenance.states import Report, State


def would_mend(report: Report, verb: str, states: State, output: Output) -> int:
    """Print what a verb that mends these states would do; gives the exit code."""
    output.would_mend(report, verb, report.mended_by(states))
    return EXIT_DONE if report.is_clean else EXIT_FINDINGS


def mended(dataset: Dataset, name: str, verb: Callable[[Progress], Report], output: Output) -> int:
    """Let a verb do its work, and print what it did, and how the dataset is then; gives the exit code."""
    try:
        with segments(name) as progress:
            report = verb(progress)
    except OndiskError as error:
        if "report" in error.context:
            output.mended(error.context["report"], dataset.check())  # what was done is done
        raise
    left = dataset.check()
    output.mended(report, left)
    if report.lost:
        return EXIT_DATA_LEFT_OUT
    return EXIT_DONE if left.is_clean else EXIT_FINDINGS
