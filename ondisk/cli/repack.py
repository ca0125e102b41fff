"""Free space: remove holes and deleted segments, archive and delete by age. A dry run without --yes.

ondisk repack weather
ondisk repack weather --yes
ondisk repack weather --yes --spark spark://host:7077
"""

from __future__ import annotations

import argparse

import ondisk
from ondisk.cli.arguments import add_dataset
from ondisk.cli.dataset import examined
from ondisk.cli.fix import mend, would_mend
from ondisk.cli.output import Output
from ondisk.cli.spark import add_spark, executors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--yes", action="store_true", help="repack; without it, only print what would be done")
    add_spark(parser, "write the segments")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.layout import untrusted
    from ondisk.maintenance.states import REPACKED

    with ondisk.open(arguments.dataset, read_only=not arguments.yes) as dataset:
        if arguments.yes:
            with executors(arguments.spark) as spark:
                return mend(dataset, "repack", lambda progress: dataset.repack(progress=progress, spark=spark), output)
        report, error = examined(dataset.check)
    if report.needs_check:
        raise untrusted(report.dataset)
    return would_mend(report, error, "repack", REPACKED, output)
