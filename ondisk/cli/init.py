"""Create an empty dataset: a directory with dataset.toml and an empty index.

  ondisk init weather --format vm2 --step daily --field area=text --field product=text \\
      --unique reftime,area,product --index area,product
  ondisk init weather --config dataset.toml
  ondisk init objects --backend elliptics
"""

from __future__ import annotations

import argparse
from typing import Any

import ondisk
from ondisk.cli.arguments import add_fields, declared, path
from ondisk.cli.output import Output
from ondisk.cli.streams import Input
from ondisk.config import DatasetConfig
from ondisk.errors import EXIT_DONE, ConfigError, InvalidInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=path, help="a directory that is empty or does not exist")
    parser.add_argument(
        "--config", metavar="FILE", type=path, help="read the configuration from a dataset.toml, or - for stdin"
    )
    parser.add_argument("--backend", choices=("elliptics",), help="write the configuration that this backend needs")
    parser.add_argument("--format", metavar="F", help="format of appended data: seg (default), vm2, jsonl, blob")
    parser.add_argument(
        "--step", metavar="STEP", help="span of a segment: daily, weekly, biweekly, monthly, yearly; or sequence"
    )
    add_fields(parser)
    parser.add_argument("--replace", choices=("no", "yes", "newer"), help="whether duplicates replace (default no)")
    parser.add_argument("--compression", choices=("lz4", "none"), help="compression of seg segments (default lz4)")
    parser.add_argument("--version-field", metavar="F", help="with --replace newer: the field that orders the versions")
    parser.add_argument("--json", action="store_true", help="print what `ondisk info --json` prints")


def run(arguments: argparse.Namespace, output: Output) -> int:
    with ondisk.create(arguments.path, _config(arguments)) as dataset:
        output.created(dataset.info())
    return EXIT_DONE


def _config(arguments: argparse.Namespace) -> DatasetConfig:
    keys = ("format", "step", "replace", "version_field", "compression")
    given = {key: value for key in keys if (value := getattr(arguments, key)) is not None} | declared(arguments)
    if arguments.config is not None:
        if given:
            raise InvalidInput("--config cannot be combined with other options", hint="Write them into the file.")
        if arguments.backend is not None:
            raise InvalidInput("--config cannot be combined with --backend", hint="Leave one of them out.")
        return _from_file(arguments.config)
    if arguments.backend is not None:
        return _of_backend(given)
    if "step" not in given:
        raise InvalidInput("init needs --step or --config", hint="For example --step daily.")
    return DatasetConfig.from_mapping(given)


def _of_backend(given: dict[str, Any]) -> DatasetConfig:
    """Return the configuration for elliptics."""
    from ondisk.backends.elliptics import configuration

    if others := given.keys() - {"step", "compression"}:
        option = "--" + min(others).replace("fields", "field").replace("_", "-")
        hint = "Only --step and --compression can be chosen; edit dataset.toml for other keys."
        raise InvalidInput(f"--backend cannot be combined with {option}", hint=hint)
    return configuration(**given)


def _from_file(name: str) -> DatasetConfig:
    with Input(name) as file:
        content = file.readall()
    try:
        return DatasetConfig.from_toml(content.decode(), name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error}", hint="Save it as UTF-8.") from None
