"""Arguments that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ondisk.errors import ConfigError, InvalidInput

OF_TABLES = (
    "--time-format --ambiguous --null --delimiter --decimal --thousands --header --skip-lines --comment --encoding"
)
"""The options of `add_table` besides `--time` and `--tz`."""

_MASTER = r"|yarn|local(-cluster)?(\[.*\])?|[a-z0-9+]+://.+"


def add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", type=path, help="the dataset's directory")


def add_encrypted(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)


def add_also(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--also",
        metavar="D",
        type=path,
        action="append",
        help="read the dataset D as one with DATASET; D may be a pattern, such as 'sites/*'; repeat it for each",
    )


def add_keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-file", metavar="FILE", type=path, help="the keys of encrypted segments, lines `ID HEX`")


def check_options(arguments: argparse.Namespace, needs: Mapping[str, str], excludes: Mapping[str, str]) -> None:
    """Raise InvalidInput if an option is given without one of those that it needs, or with one that it excludes.

    Options are separated by blanks; `--format=blob` is the option with this value.
    """
    for options, others in excludes.items():
        for option in options.split():
            both = [each for each in others.split() if _is_given(arguments, option) and _is_given(arguments, each)]
            if both:
                raise InvalidInput(f"{option} cannot be combined with {both[0]}", hint="Omit one of them.")
    for options, others in needs.items():
        for option in options.split():
            if _is_given(arguments, option) and not any(_is_given(arguments, each) for each in others.split()):
                *first, last = others.split()
                wanted = f"{', '.join(first)} or {last}" if first else last
                raise InvalidInput(f"{option} needs {wanted}", hint=f"Write {wanted}, too, or omit {option}.")


def _is_given(arguments: argparse.Namespace, option: str) -> bool:
    name, equals, value = option.removeprefix("--").replace("-", "_").lower().partition("=")
    given = getattr(arguments, {"from": "source", "field": "fields"}.get(name, name))
    return bool(given == value) if equals else given is not None and given is not False


def use_key_file(path: str) -> None:
    """Use the keys of a file in this process, and in those that it starts."""
    from ondisk import keys

    keys.use(path)
    for name in keys.VARIABLES:
        os.environ.pop(name, None)
    os.environ[keys.FILE] = str(Path(path).absolute())


def add_fields(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--field",
        dest="fields",
        metavar="NAME=TYPE",
        type=_field,
        action="append",
        help="declare a metadata field: integer, real, text, boolean, timestamp, bytes, item; repeat it for each",
    )
    parser.add_argument("--unique", metavar="A,B", type=names, help="the fields that together identify a datum")
    parser.add_argument("--index", metavar="A,B", type=names, help="fields with an index of their own")


def add_table(parser: argparse.ArgumentParser, default: str = "reftime") -> None:
    """Add the options for the rows of tables. `default`: what is taken for `--time` without it, for its help."""
    parser.add_argument(
        "--time",
        metavar="T",
        help=f"the column of a table, or the key of JSON lines, that is the reftime; default: {default}",
    )
    parser.add_argument(
        "--time-format", metavar="F", help="how times are written: '%%d.%%m.%%Y %%H:%%M', unix, unix-ms"
    )
    parser.add_argument("--tz", metavar="ZONE", help="zone of times without offset; tables need it: UTC, Europe/Rome")
    parser.add_argument(
        "--ambiguous",
        metavar="HOW",
        help="local times that occur twice: raise (default) refuses their rows, infer decides by their order",
    )
    parser.add_argument(
        "--null",
        metavar="TEXT,TEXT",
        type=lambda text: text.split(","),
        action="extend",
        help="cells of CSV with one of these texts have no value, as empty ones: NA,-999",
    )
    parser.add_argument(
        "--delimiter",
        metavar="C",
        help="between cells: a character, tab or blanks; append takes a comma without it, or a tab in a .tsv",
    )
    parser.add_argument("--decimal", metavar="C", help="the decimal mark in CSV: . (append takes it by default) or ,")
    parser.add_argument("--thousands", metavar="C", help="between three digits in CSV: one of . , ' _ or a blank")
    parser.add_argument("--header", metavar="NAME,NAME", type=names, help="the columns of CSV without a line of names")
    parser.add_argument("--skip-lines", metavar="N", type=count, help="lines of CSV before the names of the columns")
    parser.add_argument("--comment", metavar="TEXT", help="ignore lines of CSV that begin with this text, such as #")
    parser.add_argument("--encoding", metavar="E", help="the encoding of CSV, such as windows-1252; default: UTF-8")


def table_options(arguments: argparse.Namespace) -> dict[str, Any]:
    from ondisk.table_options import TableArguments

    return {name: value for name in TableArguments.__annotations__ if (value := getattr(arguments, name)) is not None}


def declared(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a configuration that were given by the arguments of `add_fields`."""
    given = {key: value for key in ("unique", "index") if (value := getattr(arguments, key)) is not None}
    if arguments.fields is None:
        return given
    fields = dict(arguments.fields)
    if len(fields) < len(arguments.fields):
        raise ConfigError("a field is declared twice", hint="Write one --field for each field.")
    return {"fields": fields, **given}


def add_spark(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option `--spark`. `what`: the work of the executors, for the help."""
    parser.add_argument(
        "--spark",
        metavar="MASTER",
        nargs="?",
        const="",
        type=_master,
        help=f"let Spark's executors {what}; MASTER is for example spark://host:7077 or local[4];"
        " default: the master that spark-submit sets, else this machine",
    )


def add_match(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "match",
        metavar="MATCH",
        nargs="?",
        help="a match expression, such as 'reftime: >=2026; area: 5'; default: all data",
    )


def add_aliases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--aliases", metavar="FILE", type=path, help="the aliases of MATCH; default: those of dataset.toml"
    )


def use_aliases(arguments: argparse.Namespace) -> None:
    """Let the match expression of a command use the aliases of its option."""
    if arguments.aliases is not None:
        from ondisk.dataset.expression import read_aliases
        from ondisk.matcher.aliases import WithAliases

        arguments.match = WithAliases(arguments.match or "", read_aliases(arguments.aliases))


def decoded(argument: str) -> str:
    """Return an argument of the process, decoded as UTF-8 in any locale; other bytes are escaped as surrogates."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def path(text: str) -> str:
    """Return a path in the locale's encoding, as `open` needs it: the reverse of `decoded`."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def count(text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return number


def positive(text: str) -> int:
    return count(text, 1)


def duration(text: str) -> float:
    from ondisk.config import seconds_of

    seconds = seconds_of(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 1h30m or 7d")
    return float(seconds)


def _master(text: str) -> str:
    """Return a Spark master, or raise: `check --spark DATASET` must not use the dataset as the master."""
    if not re.fullmatch(_MASTER, text):
        problem = f"{text!r} is not a Spark master such as spark://host:7077 or local[4]"
        raise argparse.ArgumentTypeError(f"{problem}; write --spark without MASTER after all other arguments")
    return text


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")] if text.strip() else []


def column_types(text: str) -> dict[str, str | None]:
    from ondisk.tables.columns import column_types

    try:
        return column_types(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _field(text: str) -> tuple[str, str]:
    name, equals, kind = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TYPE, such as station=integer")
    return name, kind
