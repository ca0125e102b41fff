"""Print the data that match, in order of reftime.

ondisk query weather
ondisk query weather 'reftime: >=2026-11-20; area: VM2,5' --sort -reftime --limit 10
ondisk query weather 'area: VM2,5' --data > station5.vm2
ondisk query events 'reftime: =2026-11-20; metadata.sensor: 7'
ondisk query photos 'site: north' --to north --name '{reftime:%Y%m%d_%H%M}_{site}.jpg'
ondisk query weather 'area: VM2,5' --also 'archive/*' --also /mnt/old/weather
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ondisk import Merged
from ondisk.cli.arguments import add_also, add_dataset, add_keys, add_match, count, names, path
from ondisk.cli.dataset import open_to_read
from ondisk.cli.mistaken import note_mistakes, noting
from ondisk.cli.output import Output, complain_of_input
from ondisk.cli.output_text import print_table
from ondisk.cli.streams import write_stdout
from ondisk.dataset.json_lines import names_of
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, InvalidInput, OndiskError

if TYPE_CHECKING:
    from ondisk import Dataset
    from ondisk.files import ExportResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    add_match(parser)
    add_also(parser)
    parser.add_argument(
        "--sort", metavar="S", help="[minute|hour|day|month|year:]field,-field...; - before a field: descending"
    )
    parser.add_argument("--limit", metavar="N", type=count, help="print at most N data")
    parser.add_argument("--fields", metavar="A,B", type=names, help="print only these metadata fields")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--table", action="store_true", help="print tables as wide as the terminal, or wider if needed")
    form.add_argument("--data", action="store_true", help="print the stored bytes, which can be appended again")
    parser.add_argument("--to", metavar="DIR", type=path, help="write each datum to a file in this folder")
    parser.add_argument(
        "--name",
        metavar="TEMPLATE",
        help="with --to: the names of the files, such as {reftime:%%Y%%m%%d_%%H%%M}_{site}.jpg; default: {path}, which"
        " `ondisk append --format blob` has stored",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.data and arguments.fields is not None:
        raise InvalidInput("--fields cannot be combined with --data, which prints the stored bytes")
    if arguments.to is None and arguments.name is not None:
        raise InvalidInput("--name is for files", hint="Write --to DIR, too.")
    if arguments.to is not None and (arguments.table or arguments.data or arguments.fields is not None):
        raise InvalidInput("--to writes files, and cannot be combined with --table, --data or --fields")
    doubts: list[str] = []
    refused = 0
    with open_to_read(arguments, doubts) as dataset:
        choice = {"sort": arguments.sort, "limit": arguments.limit}
        fields = names_of(arguments.fields, dataset.fields)
        if arguments.to is not None:
            refused = _export(dataset, arguments, choice, output)
        elif arguments.data:
            write_stdout(noting(dataset.payloads(arguments.match, **choice), dataset, arguments.match))
        else:
            found = noting(dataset.query(arguments.match, **choice), dataset, arguments.match)
            if arguments.table:
                known = [name for name in dataset.fields if name != "reftime"]
                print_table(found, known if fields is None else fields, datasets=isinstance(dataset, Merged))
            else:
                output.data(found, fields)
    return EXIT_DATA_SKIPPED if refused else EXIT_FINDINGS if doubts else EXIT_DONE


def _export(dataset: Dataset | Merged, arguments: argparse.Namespace, choice: dict[str, Any], output: Output) -> int:
    """Write data to files; return how many were refused."""
    from ondisk import files

    def report(result: ExportResult) -> int:
        output.files_written(result, arguments.to)
        if not (result.exported or result.present or result.refused):
            note_mistakes(dataset, arguments.match)
        complain_of_input([("", reason) for _, reason in result.refusals], result.refused, [], 0, [])
        return result.refused

    if arguments.name is not None:
        choice = {"name": arguments.name, **choice}
    try:
        return report(files.export(dataset, arguments.match, arguments.to, **choice))
    except OndiskError as error:
        if "result" in error.context:
            report(error.context["result"])  # the files before the error are written
        raise
