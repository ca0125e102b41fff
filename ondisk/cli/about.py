"""The commands `info`, `formats` and `scan`: what there is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_dataset, path
from ondisk.cli.streams import Output, complain_of_input
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS

if TYPE_CHECKING:
    from ondisk.segment import Damage

_LISTED = 100  # places with damage


def add_info(parser: argparse.ArgumentParser) -> None:
    """Print a dataset's configuration, how many data it contains, their size and time span.

    ondisk info weather
    ondisk info weather --json
    """
    add_dataset(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_info(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.dataset import open_dataset  # here, as the others have no dataset

    doubts: list[str] = []
    with open_dataset(arguments.dataset, read_only=True, doubts=doubts) as dataset:
        output.info(dataset.info())
    return EXIT_FINDINGS if doubts else EXIT_DONE


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Print the formats of data: the extensions of their files, what a segment of them is, and what they need.

    ondisk formats
    ondisk formats --json
    """
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run_formats(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.output import in_columns
    from ondisk.formats import listed  # here, so that --help does not wait for it

    found, rows = [*listed()], []
    for each in found:
        needs = f"; needs ondisk[{each['extra']}]" if each["extra"] else ""
        rows.append((each["format"], f"{' '.join(each['extensions'])}; {each['segments']} segments{needs}"))
    output.show(found, in_columns(rows))
    return EXIT_DONE


def add_scan(parser: argparse.ArgumentParser) -> None:
    """Print what there is in a file: what `ondisk append` would store of it, without a dataset.

    ondisk scan model.grib2
    ondisk scan model.grib2 --json
    """
    parser.add_argument("file", metavar="FILE", type=path, help="the file to read")
    parser.add_argument("--format", metavar="F", help="format of the file; default: by extension, then by content")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run_scan(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.scan import scan  # here, so that --help does not wait for it

    damage: list[Damage] = []
    output.data(scan(arguments.file, arguments.format, damage), None)
    complain_of_input([], 0, [(arguments.file, each) for each in damage[:_LISTED]], len(damage), [], [])
    return EXIT_DATA_SKIPPED if damage else EXIT_DONE
