"""The commands `init` and `migrate`: a dataset gets a configuration, or another one."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ondisk
from ondisk.cli.arguments import (
    OF_TABLES,
    add_encrypted,
    add_fields,
    add_table,
    check_options,
    count,
    declared,
    path,
    table_options,
)
from ondisk.cli.streams import Input, Output, complain, values_of
from ondisk.errors import (
    EXIT_DATA_SKIPPED,
    EXIT_DONE,
    EXIT_FINDINGS,
    ConfigError,
    DuplicateDatum,
    InvalidInput,
    command,
    counted,
)

if TYPE_CHECKING:
    from ondisk.maintenance.migrate import Migration

_NOT_OF_BACKEND = "--format --field --unique --index --replace --version-field --archive-age --delete-age --extension"
_OPTIONS = f"--step --compression {_NOT_OF_BACKEND} --backend"
_NEEDS = {f"--time --tz {OF_TABLES} --yes": "--from"}
_EXCLUDES = {"--config": f"--from {_OPTIONS}", "--from": _OPTIONS, "--backend": _NOT_OF_BACKEND}


def add_init(parser: argparse.ArgumentParser) -> None:
    """Create an empty dataset: a directory with dataset.toml and an empty index.

    ondisk init weather --format vm2 --step daily --field area=text --field product=text \\
        --unique reftime,area,product --index area,product
    ondisk init weather --config dataset.toml
    ondisk init stations --from year.csv
    ondisk init objects --backend elliptics
    """
    parser.add_argument("path", metavar="PATH", type=path, help="a directory that is empty or does not exist")
    parser.add_argument("--config", metavar="FILE", type=path, help="take the configuration of a file, or - for stdin")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", type=path, help="propose a configuration for CSV or JSON lines"
    )
    parser.add_argument("--yes", action="store_true", help="with --from: create the dataset that is proposed")
    add_table(parser, "what is found in it")
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


def run_init(arguments: argparse.Namespace, output: Output) -> int:
    config, text = _config(arguments)
    if arguments.source is not None and not arguments.yes:
        _check_free(arguments.path)
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


def _check_free(path: str) -> None:
    from ondisk.dataset.auxiliary_files import check_free
    from ondisk.filesystem import Directory

    if Path(path).is_dir():
        with Directory.open(path) as directory:
            check_free(directory)


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
    from ondisk.tables.propose_config import proposed

    if os.path.isdir(name):  # noqa: PTH112 - that of Path raises for a name that is too long
        hint = "If each file in it is a datum, such as a photo: ondisk init PATH --format blob --step daily."
        raise InvalidInput(f"{name} is a folder, and --from takes a file", hint=hint)
    with Input(name) as file:
        try:
            return proposed(file, **table)
        except InvalidInput as error:
            raise type(error)(f"{name}: {error.message}", hint=error.hint, **error.context) from error


def _from_file(name: str) -> tuple[ondisk.DatasetConfig, str]:
    from ondisk.dataset.auxiliary_files import CONFIG_LIMIT

    with io.BufferedReader(Input(name)) as file:
        content = file.read(CONFIG_LIMIT + 1)
    if len(content) > CONFIG_LIMIT:
        raise InvalidInput(f"{name} is larger than {CONFIG_LIMIT} bytes", hint="Is it the right file?")
    try:
        text = content.decode()
        return ondisk.DatasetConfig.from_toml(text, name), text
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8: {error}", hint="Save it as UTF-8.") from None


def add_migrate(parser: argparse.ArgumentParser) -> None:
    """Update a dataset's index to this version of ondisk and to dataset.toml. A dry run without --yes.

    ondisk migrate weather
    ondisk migrate weather --yes
    ondisk migrate weather --leave-out 2016 --yes
    """
    add_encrypted(parser)
    parser.add_argument(
        "--leave-out", action="append", default=[], metavar="NAME", help="make this older archive a dataset of its own"
    )
    parser.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="NAME",
        help="count the data of an archive of an older version that is gone as lost; repeatable",
    )


def run_migrate(arguments: argparse.Namespace, output: Output) -> int:
    try:
        migration = ondisk.migrate(
            arguments.dataset, leave_out=arguments.leave_out, forget=arguments.forget, dry_run=not arguments.yes
        )
    except (ConfigError, DuplicateDatum) as error:
        if "migration" in error.context:
            _show(error.context["migration"], output)
        raise
    _show(migration, output)
    if migration.is_needed and not arguments.yes:
        return EXIT_FINDINGS
    return EXIT_DATA_SKIPPED if migration.has_findings else EXIT_DONE


def _show(migration: Migration, output: Output) -> None:
    each_of = (*migration.archives, migration)
    output.show(map(_values, each_of), chain.from_iterable(map(_lines, each_of)))


def _values(migration: Migration) -> dict[str, Any]:
    names = ("dataset", "done", "revision", "added", "dropped", "retyped", "rules", "unique", "index", "count",
             "offending", "superseded", "left_alone", "left_out", "forgotten", "offline", "unfinished")  # fmt: skip
    taken = migration.taken
    return values_of(migration, *names) | {
        "needed": migration.is_needed or taken is not None,
        "offenders": [
            {**values_of(each.location, "segment", "offset", "size"), "reason": each.reason, "values": each.values}
            for each in migration.offenders
        ],
        "old_index": migration.old_index or "",
        "taken": None if taken is None else values_of(taken, "count", "renumbered", "twice", "deleted"),
    }


def _lines(migration: Migration) -> Iterator[str]:
    from ondisk.cli.output import shown_value

    yield f"{migration.dataset}: {_migrated(migration)}"
    for line in chain(_changes(migration), _archives(migration)):
        yield f"  {line}"
    for offender in migration.offenders:
        at = offender.location
        values = "".join(f"  {name}={shown_value(value)}" for name, value in offender.values.items())
        yield f"  {at.segment}, byte {at.offset}: {offender.reason}{values}"
    if migration.offending > len(migration.offenders):
        yield f"  and {migration.offending - len(migration.offenders)} more"


def _changes(migration: Migration) -> Iterator[str]:
    before, after = migration.revision
    if before != after:
        yield f"revision {before} becomes {after}"
    yield from (f"data of {name} get the values that this version of ondisk reads" for name in migration.rules)
    yield from (f"field {name}, {kind}, is added" for name, kind in migration.added.items())
    yield from (
        f"field {name}, {kind}, is dropped; its values stay with the data" for name, kind in migration.dropped.items()
    )
    for name, (was, now) in migration.retyped.items():
        yield f"field {name} is read again" if was == now else f"field {name} is {now} instead of {was}"
    for key, (names, wanted) in (("unique", migration.unique), ("index", migration.index)):
        if names != wanted:
            yield f"{key} is {', '.join(wanted) or 'empty'} instead of {', '.join(names) or 'empty'}"
    if migration.count:
        yield f"the metadata of {counted(migration.count, 'datum')} are read from the segments"
    if migration.old_index:
        yield f"the old index is kept in {migration.old_index}"


def _migrated(migration: Migration) -> str:
    if migration.taken is not None:
        count = counted(migration.taken.count, "datum")
        return f"{count} taken over" if migration.done else f"{count} to be taken over"
    if not migration.is_needed:
        return "nothing to do"
    return "migrated" if migration.done else "to be migrated"


def _archives(migration: Migration) -> Iterator[str]:
    if (taken := migration.taken) is not None:
        if taken.renumbered:
            yield f"{counted(taken.renumbered, 'datum', 'has')} another number now: theirs are taken"
        if taken.twice:
            yield f"{counted(taken.twice, 'datum')} of an interrupted move, which the dataset has, too, count once"
        if taken.deleted:
            yield f"{counted(taken.deleted, 'datum')} that the dataset has deleted do not return"
    for segment, number in migration.superseded.items():
        yield f"{counted(number, 'datum')} in {segment} do not count: another datum has the same unique values"
    for name, why in migration.left_alone.items():
        yield f"the archive {name} is left alone: {why}"
    for name, place in migration.left_out.items():
        yield f"the archive {name} is a dataset of its own: {place}"
    for name, number in migration.forgotten.items():
        yield f"{counted(number, 'datum')} of the archive {name} count as lost"
    for name, number in migration.offline.items():
        yield f"the archive {name} with {counted(number, 'datum')} is offline; migrate again when it returns"
    for name in migration.unfinished:
        yield f"the archive {name} was taken over; its files get other names"
    if any(each.taken for each in migration.archives):
        yield "no folder in .archive is a dataset any more: query the dataset with a condition for reftime"
        yield "replicas, backups, servers and Spark jobs of such a folder must use the dataset, too"
        rename = command("archive", migration.dataset, "--rename", "NAME", "NEW", "--yes")
        yield f"move none out of .archive: {rename} renames it"
        if not migration.done:
            yield "if one is large and rarely queried, --leave-out NAME makes it a dataset beside this one"
