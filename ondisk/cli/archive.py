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
from ondisk.cli.output import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, OndiskError, SegmentMissing, command

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
    from ondisk.maintenance.states import Diagnosis, Report

    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        if arguments.yes:
            try:
                report = Report(str(dataset.path), segments=[*moved(dataset)])
            except OndiskError as error:
                if (before := error.context.get("report")) is not None and before.segments:
                    output.mended(before, examined(dataset.check)[0])  # the segments before the error were moved
                raise
            output.mended(report, examined(dataset.check)[0])
            return EXIT_FINDINGS if dataset.quarantine.kept else EXIT_DONE
        report, denied = examined(dataset.check)
    known = {each.segment: each for each in report if isinstance(each, Diagnosis)}
    for name in arguments.segments:
        if name not in known:
            if denied is not None:
                raise denied
            hint = f"{command('check', arguments.dataset, '--all')} lists the segments."
            raise SegmentMissing(f"{arguments.dataset} has no segment {name!r}", hint=hint, segment=name)
    work = [planned(known[name], verb) for name in arguments.segments]
    left = [each for each in work if each.action is None]
    output.would_mend(report, verb, [each for each in work if each.action is not None], left)
    return EXIT_FINDINGS
