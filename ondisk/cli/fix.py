"""Make the index agree with the disk. Without --yes nothing is changed: it is only said what would be.

ondisk fix weather
ondisk fix weather --yes
ondisk fix weather --yes --spark spark://host:7077
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_dataset
from ondisk.cli.mended import mended, would_mend
from ondisk.cli.output import Output, complain
from ondisk.cli.spark import add_spark, executors

if TYPE_CHECKING:
    from ondisk.maintenance.states import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--yes", action="store_true", help="fix; without it, only say what would be fixed")
    add_spark(parser, "read the segments")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import FIXED

    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        was_lost = dataset.needs_check

        def noted(report: Report) -> Report:
            if was_lost and any(each.action == "rescan" for each in report):
                back = "come back" if arguments.yes else "would come back"
                what = "data that were deleted, and not yet removed by a repack"
                complain("note", f"the index was lost: {what}, {back} with the others")
            return report

        if not arguments.yes:
            return would_mend(noted(dataset.check()), "fix", FIXED, output)
        with executors(arguments.spark) as spark:
            return mended(dataset, "fix", lambda progress: noted(dataset.fix(progress=progress, spark=spark)), output)
