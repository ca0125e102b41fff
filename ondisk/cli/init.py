"""Create an empty dataset: a directory with dataset.toml and an empty index.

ondisk init weather --format vm2 --step daily --field area=text --field product=text \\
    --unique reftime,area,product --index area,product
ondisk init weather --config dataset.toml
ondisk init stations --from year.csv
ondisk init objects --backend elliptics
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ondisk
from ondisk.cli.arguments import OF_TABLES, add_fields, add_table, check_options, count, declared, path, table_options
from ondisk.cli.streams import Input, Output, complain
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, ConfigError, InvalidInput

_NOT_OF_BACKEND = "--format --field --unique --index --replace --version-field --archive-age --delete-age --extension"
_OPTIONS = f"--step --compression {_NOT_OF_BACKEND} --backend"
_NEEDS = {f"--time --tz {OF_TABLES} --yes": "--from"}
_EXCLUDES = {"--config": f"--from {_OPTIONS}", "--from": _OPTIONS, "--backend": _NOT_OF_BACKEND}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=path, help="a directory that is empty or does not exist")
    parser.add_argument("--config", metavar="FILE", type=path, help="take the configuration of a file, or - for stdin")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", type=path, help="propose a configuration for CSV or JSON lines"
    )
    parser.add_argument("--yes", action="store_true", help="with --from: create the dataset that is proposed")
    add_table(parser)
    parser.add_argument("--backend", choices=("elliptics",), help="write the configuration that this backend needs")
    parser.add_argument("--format", metavar="F", help="format of appended data, see `ondisk formats`; default: seg")
    parser.add_argument("--step", metavar="STEP", help="hourly, daily, weekly, biweekly, monthly, yearly or sequence")
    add_fields(parser)
    parser.add_argument("--replace", choices=("no", "yes", "newer"), help="whether duplicates replace (default no)")
    parser.add_argument("--compression", choices=("lz4", "none"), help="compression of seg segments (default lz4)")
    parser.add_argument("--version-field", metavar="F", help="with --replace newer: the field that orders the versions")
    parser.add_argument("--archive-age", metavar="DAYS", type=count, help="days after which repack archives a segment")
    parser.add_argument("--delete-age", metavar="DAYS", type=count, help="days after which repack deletes a segment")
    parser.add_argument("--extension", metavar="E", help="extension of the files of blob, such as h5; default: blob")
    parser.add_argument("--json", action="store_true", help="print what `ondisk info --json` prints")


def run(arguments: argparse.Namespace, output: Output) -> int:
    config, text = _config(arguments)
    if arguments.source is not None and not arguments.yes:
        output.show([{"path": arguments.path, "toml": text}], (text or "").removesuffix("\n").split("\n"))
        if not arguments.json:
            complain("note", f"{arguments.path} was not created; --yes creates it with this configuration")
        return EXIT_FINDINGS
    with ondisk.create(arguments.path, config, text=text) as dataset:
        info = dataset.info()
        if arguments.json:
            output.info(info)
        else:
            output.show([], [f"made the dataset {info['path']}"])
    return EXIT_DONE


def _config(arguments: argparse.Namespace) -> tuple[ondisk.DatasetConfig, str | None]:
    keys = ("format", "step", "replace", "version_field", "compression", "archive_age", "delete_age", "extension")
    given = {key: value for key in keys if (value := getattr(arguments, key)) is not None} | declared(arguments)
    check_options(arguments, _NEEDS, _EXCLUDES)
    if arguments.config is not None:
        return _from_file(arguments.config)
    if arguments.source is not None:
        text = _proposal(arguments.source, table_options(arguments))
        return ondisk.DatasetConfig.from_toml(text), text
    if arguments.backend is not None:
        from ondisk.backends.elliptics import configuration

        return configuration(**given), None
    if "step" not in given:
        raise InvalidInput("init needs --step, --config or --from", hint="For example --step daily.")
    return ondisk.DatasetConfig.from_mapping(given), None


def _proposal(name: str, table: dict[str, Any]) -> str:
    from ondisk.tables.proposal import proposed

    if Path(name).is_dir():
        hint = "If each file in it is a datum, such as a photo: ondisk init PATH --format blob --step daily."
        raise InvalidInput(f"{name} is a folder, and --from takes a file", hint=hint)
    with Input(name) as file:
        try:
            return proposed(file, **table)
        except InvalidInput as error:
            raise type(error)(f"{name}: {error.message}", hint=error.hint, **error.context) from error


def _from_file(name: str) -> tuple[ondisk.DatasetConfig, str]:
    with Input(name) as file:
        content = file.readall()
    try:
        text = content.decode()
        return ondisk.DatasetConfig.from_toml(text, name), text
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error}", hint="Save it as UTF-8.") from None
