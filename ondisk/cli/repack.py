"""Free space: remove holes and deleted segments, archive and delete by age. A dry run without --yes.

ondisk repack weather
ondisk repack weather --yes
ondisk repack weather --yes --by-age
ondisk repack weather --yes --rewrite
ondisk repack weather --yes --spark spark://host:7077
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_dataset, add_keys, add_spark
from ondisk.cli.dataset import examined, executors
from ondisk.cli.fix import mend, would_mend
from ondisk.cli.streams import Output

if TYPE_CHECKING:
    from ondisk.dataset.dataset import Progress
    from ondisk.maintenance.states import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    add_keys(parser)
    parser.add_argument("--yes", action="store_true", help="repack; without it, only print what would be done")
    parser.add_argument("--by-age", action="store_true", help="delete by age even if the clock or amount looks wrong")
    parser.add_argument("--rewrite", action="store_true", help="also rewrite segments not stored as dataset.toml says")
    parser.add_argument("--second-copies", action="store_true", help="also remove copies of segments that people made")
    add_spark(parser, "write the segments")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance.states import REPACKED

    options = {name: getattr(arguments, name) for name in ("by_age", "rewrite", "second_copies")}
    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        if arguments.yes:
            with executors(arguments.spark) as spark:

                def repack(progress: Progress) -> Report:
                    return dataset.repack(**options, progress=progress, spark=spark)

                return mend(dataset, "repack", repack, output)
        report, error = examined(lambda: dataset.repack(**options, dry_run=True))
    return would_mend(report, error, "repack", REPACKED, output)
