"""Print a dataset's configuration, how many data it contains, their size and time span.

ondisk info weather
ondisk info weather --json
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_dataset
from ondisk.cli.dataset import open_dataset
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    doubts: list[str] = []
    with open_dataset(arguments.dataset, read_only=True, doubts=doubts) as dataset:
        output.info(dataset.info())
    return EXIT_FINDINGS if doubts else EXIT_DONE
