"""Update a dataset's index to this version of ondisk and to dataset.toml. A dry run without --yes.

ondisk migrate weather
ondisk migrate weather --yes
"""

from __future__ import annotations

import argparse

import ondisk
from ondisk.cli.arguments import add_dataset, add_keys
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, ConfigError, DuplicateDatum


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("--yes", action="store_true", help="migrate; without it, only print what would be done")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each archive, then one for the dataset"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    try:
        migration = ondisk.migrate(arguments.dataset, dry_run=not arguments.yes)
    except (ConfigError, DuplicateDatum) as error:
        if "migration" in error.context:
            output.migrated(error.context["migration"])
        raise
    output.migrated(migration)
    return EXIT_FINDINGS if migration.is_needed and not arguments.yes else EXIT_DONE
