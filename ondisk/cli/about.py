"""The commands `info`, `formats` and `scan`: what there is; `completion` and `spark-jar`, for shells and scripts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_dataset, path
from ondisk.cli.streams import Output, complain_of_input, write_stdout
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS

if TYPE_CHECKING:
    from ondisk.segment import Damage

_LISTED = 100  # places with damage
_DIRECTORIES = ("dataset", "datasets", "to")
_STORED = ("seg", "vm2", "jsonl", "grib", "bufr", "odimh5", "netcdf", "blob")
_STEPS = ("daily", "weekly", "biweekly", "monthly", "yearly", "hourly", "sequence")
_VALUES: dict[str, dict[str, Sequence[str]]] = {
    "init": {"format": _STORED, "step": _STEPS},
    "scan": {"format": _STORED},
    "append": {"format": (*_STORED, "csv", "parquet", "arrow", "diskqueue")},
    "summary": {"by": ("hour", "day", "month", "year")},
}
"""Command → option → likely values; others are possible. The library has them, too, and is not imported for them."""


def add_info(parser: argparse.ArgumentParser) -> None:
    """Print a dataset's configuration, how many data it contains, their size and time span.

    ondisk info weather
    ondisk info weather --json
    """
    add_dataset(parser)


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


def run_scan(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.scan import scan  # here, so that --help does not wait for it

    damage: list[Damage] = []
    output.data(scan(arguments.file, arguments.format, damage), None)
    complain_of_input([], 0, [(arguments.file, each) for each in damage[:_LISTED]], len(damage), [], [])
    return EXIT_DATA_SKIPPED if damage else EXIT_DONE


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Print a script that makes a shell complete commands, options and paths.

    ondisk completion bash > ~/.local/share/bash-completion/completions/ondisk
    ondisk completion zsh > ~/.zfunc/_ondisk   # a folder of fpath, before compinit runs
    ondisk completion fish > ~/.config/fish/completions/ondisk.fish
    """
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def run_completion(arguments: argparse.Namespace, output: None) -> int:
    import shtab  # here, because no other command waits for it

    from ondisk.cli import whole_parser

    parser = whole_parser()
    for name, command in parser._subparsers._group_actions[0].choices.items():  # type: ignore[union-attr]  # commands
        for action in command._actions:
            action.choices = _VALUES.get(name, {}).get(action.dest, action.choices)
            if action.type is path:
                action.complete = shtab.DIRECTORY if action.dest in _DIRECTORIES else shtab.FILE
    write_stdout([shtab.complete(parser, arguments.shell).encode()])
    return EXIT_DONE


def add_spark_jar(parser: argparse.ArgumentParser) -> None:
    """Print the path of the connector, with which `where` and `select` of Spark reach the index.

    ondisk spark-jar
    spark-submit --jars "$(ondisk spark-jar)" job.py
    """


def run_spark_jar(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.spark.session import CONNECTOR

    write_stdout([f"{CONNECTOR}\n".encode()])
    return EXIT_DONE
