"""Count the data that match: their number, bytes, first and last reftime, and the values of fields.

The 20 most frequent values of each field are listed, and of numbers and times the lowest and the highest.

ondisk summary weather
ondisk summary weather 'reftime: =2026-11' --json
ondisk summary weather --fields area --all-values
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_dataset, add_keys, add_match, names
from ondisk.cli.dataset import open_dataset
from ondisk.cli.mistaken import note_mistakes
from ondisk.cli.output import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    add_match(parser)
    parser.add_argument("--fields", metavar="A,B", type=names, help="count only the values of these fields")
    parser.add_argument("--all-values", action="store_true", help="list all values, not only the 20 most frequent")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    doubts: list[str] = []
    with open_dataset(arguments.dataset, read_only=True, doubts=doubts) as dataset:
        choice = {"values": None} if arguments.all_values else {}
        found = dataset.summary(arguments.match, fields=arguments.fields, **choice)
        output.summary(found)
        if not found.count:
            note_mistakes(dataset, arguments.match)
    return EXIT_FINDINGS if doubts else EXIT_DONE
