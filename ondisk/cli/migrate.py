"""Update a dataset's index to this version of ondisk and to dataset.toml. A dry run without --yes.

ondisk migrate weather
ondisk migrate weather --yes
ondisk migrate weather --leave-out 2016 --yes
"""

from __future__ import annotations

import argparse

import ondisk
from ondisk.cli.arguments import add_dataset, add_keys
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, ConfigError, DuplicateDatum


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="NAME",
        help="make an archive of an older version a dataset of its own, DATASET-NAME; repeatable",
    )
    parser.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="NAME",
        help="count the data of an archive of an older version that is gone as lost; repeatable",
    )
    parser.add_argument("--yes", action="store_true", help="migrate; without it, only print what would be done")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each archive, then one for the dataset"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    try:
        migration = ondisk.migrate(
            arguments.dataset, leave_out=arguments.leave_out, forget=arguments.forget, dry_run=not arguments.yes
        )
    except (ConfigError, DuplicateDatum) as error:
        if "migration" in error.context:
            output.migrated(error.context["migration"])
        raise
    output.migrated(migration)
    if migration.is_needed and not arguments.yes:
        return EXIT_FINDINGS
    return EXIT_DATA_SKIPPED if migration.has_findings else EXIT_DONE
