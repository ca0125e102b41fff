"""Print the data that match, in order of reftime.

ondisk query weather
ondisk query weather 'reftime: >=2026-11-20; area: VM2,5' --sort -reftime --limit 10
ondisk query weather 'area: VM2,5' --data > station5.vm2
ondisk query events 'reftime: =2026-11-20; metadata.sensor: 7'
"""

from __future__ import annotations

import argparse

from ondisk.cli.arguments import add_dataset, add_keys, add_match, count, names
from ondisk.cli.dataset import open_dataset
from ondisk.cli.mistaken import noting
from ondisk.cli.output import Output
from ondisk.cli.output_text import print_table
from ondisk.cli.streams import write_stdout
from ondisk.dataset.json_lines import names_of
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    add_match(parser)
    parser.add_argument(
        "--sort", metavar="S", help="[minute|hour|day|month|year:]field,-field...; - before a field: descending"
    )
    parser.add_argument("--limit", metavar="N", type=count, help="print at most N data")
    parser.add_argument("--fields", metavar="A,B", type=names, help="print only these metadata fields")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--table", action="store_true", help="print tables as wide as the terminal, or wider if needed")
    form.add_argument("--data", action="store_true", help="print the stored bytes, which can be appended again")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.data and arguments.fields is not None:
        raise InvalidInput("--fields cannot be combined with --data, which prints the stored bytes")
    doubts: list[str] = []
    with open_dataset(arguments.dataset, read_only=True, doubts=doubts) as dataset:
        choice = {"sort": arguments.sort, "limit": arguments.limit}
        fields = names_of(arguments.fields, dataset.fields)
        if arguments.data:
            write_stdout(noting(dataset.payloads(arguments.match, **choice), dataset, arguments.match))
            return EXIT_FINDINGS if doubts else EXIT_DONE
        found = noting(dataset.query(arguments.match, **choice), dataset, arguments.match)
        if arguments.table:
            print_table(found, list(dataset.config.fields) if fields is None else fields)
        else:
            output.data(found, fields)
    return EXIT_FINDINGS if doubts else EXIT_DONE
