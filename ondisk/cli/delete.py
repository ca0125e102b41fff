"""Delete the data that match. A dry run without --yes.

ondisk delete weather 'reftime: <2020'
ondisk delete weather 'reftime: <2020' --yes
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_aliases, add_dataset, add_keys, use_aliases
from ondisk.cli.dataset import open_dataset
from ondisk.cli.mistaken import note_mistakes
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("match", metavar="MATCH", help="a match expression; '' matches all data")
    add_aliases(parser)
    parser.add_argument("--yes", action="store_true", help="delete; without it, only print what would be deleted")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    doubts: list[str] = []
    use_aliases(arguments)
    with open_dataset(arguments.dataset, read_only=not arguments.yes, doubts=doubts) as dataset:
        if arguments.yes:
            count = dataset.delete(arguments.match)
            output.show([{"deleted": count}], [f"{counted(count, 'datum')} deleted"])
            remains = bool(dataset.quarantine.kept)
        else:
            found = dataset.summary(arguments.match, fields=[])
            count = found.count
            remains = count > 0
            line = f"{counted(count, 'datum')} of {counted(found.size, 'byte')} would be deleted"
            output.show([{"would_delete": count, "size": found.size}], [line + "; --yes deletes them" * remains])
        if not count:
            note_mistakes(dataset, arguments.match)
    return EXIT_FINDINGS if remains or doubts else EXIT_DONE
