"""Print the formats of data: the extensions of their files, what a segment of them is, and what they need.

ondisk formats
ondisk formats --json
"""

from __future__ import annotations

import argparse

from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.cli.output_text import in_columns
    from ondisk.formats import listed  # here, so that --help does not wait for it

    found, rows = [*listed()], []
    for each in found:
        needs = f"; needs ondisk[{each['extra']}]" if each["extra"] else ""
        rows.append((each["format"], f"{' '.join(each['extensions'])}; {each['segments']} segments{needs}"))
    output.show(found, in_columns(rows))
    return EXIT_DONE
