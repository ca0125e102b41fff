"""Count the data that match: their number, bytes, first and last reftime, and the values of the declared fields.

ondisk summary weather
ondisk summary weather 'reftime: =2026-11' --json
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_dataset, add_match
from ondisk.cli.dataset import open_dataset
from ondisk.cli.output import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_match(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    doubts: list[str] = []
    with open_dataset(arguments.dataset, read_only=True, doubts=doubts) as dataset:
        output.summary(dataset.summary(arguments.match))
    return EXIT_FINDINGS if doubts else EXIT_DONE
