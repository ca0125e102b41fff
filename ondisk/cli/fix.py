"""Make the index agree with the disk. Without --yes nothing is changed: it is only said what would be.

ondisk fix weather
ondisk fix weather --yes
"""

from __future__ import annotations

import argparse

import ondisk
from ondisk.cli.arguments import add_dataset
from ondisk.cli.mended import mended, would_mend
from ondisk.cli.output import Output, complain

_BACK = "data that were deleted, and not yet removed by a repack, {} with the others"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--yes", action="store_true", help="fix; without it, only say what would be fixed")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import FIXED

    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        if dataset.needs_check:
            complain("note", f"the index was lost: {_BACK.format('come back' if arguments.yes else 'would come back')}")
        if not arguments.yes:
            return would_mend(dataset.check(), "fix", FIXED, output)
        return mended(dataset, "fix", dataset.fix, output)
