"""Count the data that match: their number, bytes, first and last reftime, and the values of fields.

The 20 most frequent values of each field are listed, and of numbers and times the lowest and the highest.

ondisk summary weather
ondisk summary weather 'reftime: =2026-11' --json
ondisk summary weather --fields area --all-values
ondisk summary weather 'reftime: =2026' --by day --min-max temperature --plot 2026.svg
ondisk summary weather --by day,station --tz Europe/Rome
ondisk summary weather --also 'archive/*'
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_aliases, add_also, add_dataset, add_keys, add_match, names, path, use_aliases
from ondisk.cli.dataset import open_to_read
from ondisk.cli.mistaken import check_numbers, note_mistakes, noting
from ondisk.cli.streams import Output, complain
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, InvalidInput, counted

if TYPE_CHECKING:
    from ondisk import Dataset, Merged

_PLOT = ".svg"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    add_match(parser)
    add_also(parser)
    add_aliases(parser)
    parser.add_argument("--fields", metavar="A,B", type=names, help="count only the values of these fields")
    parser.add_argument("--all-values", action="store_true", help="list all values, not only the 20 most frequent")
    parser.add_argument("--by", metavar="G,H", help="count by hour, day, month, year or declared field, or by several")
    parser.add_argument("--tz", metavar="ZONE", help="with --by: the zone of days and hours, Europe/Rome; default: UTC")
    parser.add_argument(
        "--min-max",
        metavar="FIELD",
        help="with --by: also the lowest, mean and highest value of a declared field, or of data.NAME in the data",
    )
    parser.add_argument("--plot", metavar="FILE.svg", type=path, help="with --by: draw the groups to a file")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --plot")
    parser.add_argument("--json", action="store_true", help="print one JSON object; with --by, one for each group")


def run(arguments: argparse.Namespace, output: Output) -> int:
    _check(arguments)
    use_aliases(arguments)
    doubts: list[str] = []
    with open_to_read(arguments, doubts) as dataset:
        if arguments.by is not None:
            _groups(dataset, arguments, output)
        else:
            choice = {"values": None} if arguments.all_values else {}
            found = dataset.summary(arguments.match, fields=arguments.fields, **choice)
            output.summary(found)
            if not isinstance(dataset, ondisk.Dataset) and arguments.fields is None:
                from ondisk.dataset.merged import differing_types

                for name, types in differing_types(dataset.configs).items():
                    complain("note", f"{name} is {types}: its values are not counted")
            if not found.count:
                note_mistakes(dataset, arguments.match)
    return EXIT_FINDINGS if doubts else EXIT_DONE


def _check(arguments: argparse.Namespace) -> None:
    """Raise unless the options for groups, and those without, are given together."""
    of_groups = {"--tz": arguments.tz, "--min-max": arguments.min_max, "--plot": arguments.plot}
    if arguments.by is None and (option := next((name for name, value in of_groups.items() if value), None)):
        raise InvalidInput(f"{option} is for groups", hint="Write --by day, too; or month, year, hour or a field.")
    if arguments.by is not None and (arguments.fields is not None or arguments.all_values):
        raise InvalidInput("--by cannot be combined with --fields or --all-values, which are for all data together")
    if arguments.plot is not None and not arguments.plot.endswith(_PLOT):
        raise InvalidInput(f"a plot is an SVG file, not {arguments.plot}", hint=f"Write a name that ends with {_PLOT}.")
    if arguments.overwrite and arguments.plot is None:
        raise InvalidInput("--overwrite is for --plot only")


def _groups(dataset: Dataset | Merged, arguments: argparse.Namespace, output: Output) -> None:
    from ondisk.dataset.output_file import check_free, output_file
    from ondisk.datum import CONTENT

    by, of = names(arguments.by), arguments.min_max
    if arguments.plot is not None:
        check_free(arguments.plot, overwrite=arguments.overwrite)  # before the data are counted
    with dataset.summary_by(arguments.by, arguments.match, min_max=of, tz=arguments.tz) as found:
        groups = noting(found, dataset, arguments.match)
        if of is not None and of.startswith(CONTENT):
            groups = check_numbers(groups, dataset, arguments.match, of)
        if arguments.plot is None:
            output.groups(groups, by, of)
            return
        from ondisk.cli.plot import MOST, plot  # here, because few commands draw

        drawn = [*islice(groups, MOST + 1)]
    if len(drawn) > MOST:
        raise InvalidInput(
            f"a plot has at most {MOST} groups", hint="Select fewer data, or group by day, month or year."
        )
    drawing = plot(drawn, by, of, "UTC" if arguments.tz is None else arguments.tz).encode()
    with output_file(arguments.plot, overwrite=arguments.overwrite) as file:
        file.write(0, drawing)
    line = f"{arguments.plot}: {counted(len(drawn), 'group')}"
    output.show([{"plot": arguments.plot, "groups": len(drawn)}], [line])
