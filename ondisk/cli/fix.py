"""Make the index agree with the disk. A dry run without --yes.

ondisk fix weather
ondisk fix weather --yes
ondisk fix weather --yes --forget
ondisk fix weather --rebuild --yes
ondisk fix weather --yes --spark spark://host:7077
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_dataset, add_keys, add_spark
from ondisk.cli.dataset import examined, executors
from ondisk.cli.progress import segments_progress
from ondisk.cli.reports import show_mended, show_would_mend, show_would_rebuild
from ondisk.cli.streams import Output, complain
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, OndiskError, counted

if TYPE_CHECKING:
    from ondisk import Dataset
    from ondisk.dataset.dataset import Progress
    from ondisk.maintenance.states import Diagnosis, Done, Report, State


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("--yes", action="store_true", help="fix; without it, only print what would be fixed")
    parser.add_argument(
        "--forget",
        nargs="?",
        const=True,
        default=False,
        metavar="NAME",
        help="also remove missing segments from the index if many are missing at once; or forget all of .archive/NAME",
    )
    parser.add_argument("--rebuild", action="store_true", help="first rebuild a damaged index from the segments")
    parser.add_argument(
        "--salvage",
        action="append",
        default=[],
        metavar="SEGMENT",
        help="keep what is whole of a damaged segment, and move its file to quarantine",
    )
    parser.add_argument("--acknowledge", action="store_true", help="first, set the number of lost data to 0")
    add_spark(parser, "read the segments")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import FIXED

    options = {name: getattr(arguments, name) for name in ("salvage", "acknowledge")}
    options |= {"forget": True} if arguments.forget is True else {"forget_place": arguments.forget or None}
    rebuilt: list[Diagnosis | Done] = []
    if arguments.rebuild:
        found = ondisk.rebuild(arguments.dataset, dry_run=not arguments.yes)
        if not arguments.yes:
            show_would_rebuild(found, output)
            complain("note", "deleted data that no repack has removed yet would come back")
            return EXIT_FINDINGS
        rebuilt = found.segments
    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        was_lost = dataset.needs_check

        def noted(report: Report) -> Report:
            if was_lost and any(each.action == "rescan" for each in report):
                back = "come back" if arguments.yes else "would come back"
                complain("note", f"the index was lost: deleted data that no repack has removed yet {back}")
            return report

        if not arguments.yes:
            report, error = examined(lambda: dataset.fix(**options, dry_run=True))
            lost = dataset.info()["lost"] if arguments.acknowledge else 0
            if lost:
                are = counted(lost, "datum", "is")
                complain("note", f"{are} lost, and would not be counted any more; --yes does it")
            code = would_mend(noted(report), error, "fix", FIXED, output)
            return EXIT_FINDINGS if lost else code
        with executors(arguments.spark) as spark:

            def fix(progress: Progress) -> Report:
                try:
                    report = noted(dataset.fix(**options, progress=progress, spark=spark))
                except OndiskError as error:  # the index was moved aside all the same
                    if "report" in error.context:
                        error.context["report"].segments[:0] = rebuilt
                    raise
                report.segments[:0] = rebuilt
                return report

            return mend(dataset, "fix", fix, output)


def would_mend(report: Report, error: OndiskError | None, verb: str, states: State, output: Output) -> int:
    """Print what fix or repack would do to segments; return the exit code, or raise the error of the check."""
    from ondisk.maintenance.states import Done, State

    asked = [each for each in report if each.action and isinstance(each, Done)]
    work = [*asked, *(each for each in report.mended_by(states) if each not in asked)]
    left = [each for each in report.held if each.state & states]
    left += [each for each in report if State.CORRUPTED in each.state and each not in asked]
    show_would_mend(report, verb, work, left, output)
    if error is not None:
        raise error
    return EXIT_DONE if report.is_clean and not work else EXIT_FINDINGS


def mend(dataset: Dataset, name: str, verb: Callable[[Progress], Report], output: Output) -> int:
    """Run fix or repack, and print what it did and the state after it. Return the exit code."""
    from ondisk.maintenance import last_report

    try:
        with segments_progress(name) as progress:
            report = verb(progress)
    except OndiskError as error:
        if "report" in error.context:
            left, _ = examined(dataset.check)
            report = error.context["report"]  # the segments before the error, or all others, were mended
            show_mended(report, left.after(report), output)
            last_report.save(dataset.path, name, left.after(report), report.segments, error)
        raise
    left, denied = examined(dataset.check)
    show_mended(report, left, output)
    last_report.save(dataset.path, name, left, report.segments, denied)
    if denied is not None:
        raise denied
    if report.lost:
        return EXIT_DATA_SKIPPED
    return EXIT_DONE if left.is_clean and not dataset.quarantine.kept else EXIT_FINDINGS
