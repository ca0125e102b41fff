"""The commands `completion` and `spark-jar`: for scripts and shells."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ondisk.cli.arguments import path
from ondisk.cli.streams import Output, write_stdout
from ondisk.errors import EXIT_DONE

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
