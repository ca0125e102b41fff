"""Update a dataset's index to this version of ondisk and to dataset.toml. A dry run without --yes.

ondisk migrate weather
ondisk migrate weather --yes
ondisk migrate weather --leave-out 2016 --yes
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import ondisk
from ondisk.cli.arguments import add_encrypted
from ondisk.cli.streams import Output, values_of
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, ConfigError, DuplicateDatum, counted

if TYPE_CHECKING:
    from ondisk.maintenance.migrate import Migration


def add(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--yes", action="store_true", help="migrate; without it, only print what would be done")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each archive, then the dataset")


def run(arguments: argparse.Namespace, output: Output) -> int:
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
    for segment, count in migration.superseded.items():
        yield f"{counted(count, 'datum')} in {segment} do not count: another datum has the same unique values"
    for name, why in migration.left_alone.items():
        yield f"the archive {name} is left alone: {why}"
    for name, path in migration.left_out.items():
        yield f"the archive {name} is a dataset of its own: {path}"
    for name, count in migration.forgotten.items():
        yield f"{counted(count, 'datum')} of the archive {name} count as lost"
    for name, count in migration.offline.items():
        yield f"the archive {name} with {counted(count, 'datum')} is offline; migrate again when it returns"
    for name in migration.unfinished:
        yield f"the archive {name} was taken over; its files get other names"
