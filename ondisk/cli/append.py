"""Store the data of files, byte for byte as they came.

ondisk append weather observations.vm2 late.vm2
curl https://example.org/observations.jsonl | ondisk append weather - --format jsonl
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_dataset
from ondisk.cli.opened import opened
from ondisk.cli.output import Output, complain
from ondisk.cli.progress import progress
from ondisk.cli.streams import Input
from ondisk.errors import EXIT_DATA_LEFT_OUT, EXIT_DONE, OndiskError

if TYPE_CHECKING:
    from ondisk import AppendResult

_REFUSALS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", help="a file of data, - for standard input")
    parser.add_argument("--format", metavar="F", help="the files' format; else by extension, then by content")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk import AppendResult  # here, so that --help does not wait for it

    total = AppendResult()
    refusals: list[str] = []

    def add(name: str, result: AppendResult) -> None:
        total.extend(result)
        refusals.extend(f"{name}: {reason}" for _, reason in result.refusals)

    with opened(arguments.dataset) as dataset:
        try:
            with progress(arguments.files) as advance:
                for name in arguments.files:
                    with Input(name, advance) as file:
                        add(name, dataset.append_file(file, arguments.format))  # type: ignore[arg-type]  # a RawIOBase is one
        except OndiskError as error:
            if "result" in error.context:
                add(name, error.context["result"])
            _report(total, refusals, output)  # what was stored is stored
            raise
    _report(total, refusals, output)
    return EXIT_DATA_LEFT_OUT if total.refused else EXIT_DONE


def _report(total: AppendResult, refusals: list[str], output: Output) -> None:
    output.appended(total)
    for refusal in refusals[:_REFUSALS]:
        complain("refused", refusal)
    if total.refused > _REFUSALS:
        complain("refused", f"and {total.refused - _REFUSALS} more")
