"""Move segments to the archive, however old they are; `repack` does so by age. A dry run without --yes.

ondisk archive weather 2026/11-17.vm2
ondisk archive weather 2026/11-17.vm2 2026/11-18.vm2 --yes
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_dataset
from ondisk.cli.opened import opened
from ondisk.cli.output import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument(
        "segments", metavar="SEGMENT", nargs="+", help="a segment's name, as `ondisk check --all` tells"
    )
    parser.add_argument("--yes", action="store_true", help="archive; without it, only say what would be archived")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    with opened(arguments.dataset, read_only=not arguments.yes) as dataset:
        if arguments.yes:
            output.moved(dataset.archive(*arguments.segments))
            return EXIT_DONE
        output.would_move("archive", arguments.segments)
    return EXIT_FINDINGS
