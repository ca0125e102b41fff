"""Move segments to the archive, whatever their age; repack archives by age. A dry run without --yes.

ondisk archive weather 2026/11-17.vm2
ondisk archive weather 2026/11-17.vm2 2026/11-18.vm2 --yes
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_dataset, add_keys
from ondisk.cli.dataset import examined, open_dataset
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, OndiskError

if TYPE_CHECKING:
    from ondisk import Dataset
    from ondisk.maintenance.states import Done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_move_arguments(parser, "archive")


def run(arguments: argparse.Namespace, output: Output) -> int:
    return move(arguments, output, "archive", lambda dataset: dataset.archive(*arguments.segments))


def add_move_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of archive and unarchive."""
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("segments", metavar="SEGMENT", nargs="+", help="a segment, as `ondisk check --all` names it")
    parser.add_argument("--yes", action="store_true", help=f"{verb}; without it, only print what would be moved")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def move(arguments: argparse.Namespace, output: Output, verb: str, moved: Callable[[Dataset], list[Done]]) -> int:
    """Move segments to or from the archive, or print what would be moved. Return the exit code."""
    from ondisk.maintenance.archive import planned
    from ondisk.maintenance.states import Report

    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:

        def show(report: Report) -> None:
            left = examined(dataset.check)[0]
            if arguments.yes:
                output.mended(report, left)
            else:
                output.would_mend(left, verb, report.segments)

        try:
            done = moved(dataset) if arguments.yes else planned(dataset._access, arguments.segments, verb)
        except OndiskError as error:
            if (before := error.context.get("report")) is not None and before.segments:
                show(before)  # the segments before the error were moved, or would be
            raise
        show(Report(str(dataset.path), segments=[*done]))
        return EXIT_FINDINGS if dataset.quarantine.kept or not arguments.yes else EXIT_DONE
