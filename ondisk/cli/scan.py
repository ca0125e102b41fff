"""Print what there is in a file: what `ondisk append` would store of it, without a dataset.

ondisk scan model.grib2
ondisk scan model.grib2 --json
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ondisk.cli.arguments import path
from ondisk.cli.streams import Output, complain_of_input
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE

if TYPE_CHECKING:
    from ondisk.segment import Damage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=path, help="the file to read")
    parser.add_argument("--format", metavar="F", help="format of the file; default: by extension, then by content")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.scan import scan  # here, so that --help does not wait for it

    damage: list[Damage] = []
    output.data(scan(arguments.file, arguments.format, damage), None)
    complain_of_input([], 0, [(arguments.file, each) for each in damage], len(damage), [], [])
    return EXIT_DATA_SKIPPED if damage else EXIT_DONE
