"""Report what is wrong with a dataset: the states of its segments, the reasons, and what fix or repack would do.

ondisk check weather
ondisk check weather --accurate --json
ondisk check weather --max-duration 10m
ondisk check weather --accurate --spark spark://host:7077
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_dataset, add_keys, add_spark, duration
from ondisk.cli.dataset import examined, executors
from ondisk.cli.progress import segments_progress
from ondisk.cli.reports import show_checked
from ondisk.cli.streams import Output, complain
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, InvalidInput, OndiskError

if TYPE_CHECKING:
    from ondisk.maintenance.states import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("--accurate", action="store_true", help="also read all data and compare them with the index")
    parser.add_argument(
        "--max-duration",
        metavar="D",
        type=duration,
        help="read data for this long (90s, 1h30m, 1d), least recently read segments first; writes the findings"
        " to the index",
    )
    add_spark(parser, "read the data")
    parser.add_argument("--all", action="store_true", help="also list the segments that are OK")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance import last_report

    writes = arguments.max_duration is not None
    if arguments.spark is not None and (writes or not arguments.accurate):
        raise InvalidInput("--spark needs --accurate, and cannot be combined with --max-duration")
    with (
        ondisk.open(arguments.dataset, read_only=not writes) as dataset,
        executors(arguments.spark) as spark,
        segments_progress("check") as progress,
    ):
        options = {"max_duration": arguments.max_duration, "progress": progress, "spark": spark}
        report, error = examined(lambda: dataset.check(arguments.accurate, **options))
    if arguments.accurate:
        _record(arguments.dataset, report)
    last_report.save(arguments.dataset, "check", report, error=error)
    show_checked(report, report.segments if arguments.all else report.findings, output)
    if error is not None:
        raise error
    return EXIT_DONE if report.is_clean else EXIT_FINDINGS


def _record(path: str, report: Report) -> None:
    """Record damage in the index. A check without damage needs no right to write."""
    from ondisk.maintenance.check import record
    from ondisk.maintenance.states import Diagnosis

    if not any(isinstance(each, Diagnosis) and each.noted for each in report):
        return
    try:
        with ondisk.open(path) as dataset:
            record(dataset._access, report)
    except OndiskError as error:
        complain("note", f"the damage was not recorded, so a fix does not report it: {error.message}")
