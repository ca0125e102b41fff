"""Make a disk queue of Beats, or a dataset of arkimet, a dataset, where it is. A dry run without --yes.

Stop Beats or arkimet first. Beats can continue to write and read there while no command of ondisk runs; `ondisk fix`
then reads what is new. No segment is changed.

ondisk adopt /var/lib/filebeat/diskqueue --field host=text --index host
ondisk adopt /srv/arkimet/cosmo --field step=integer --yes
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_fields, add_keys, declared, path
from ondisk.cli.dataset import examined, segments_progress
from ondisk.cli.reports import show_mended, show_would_mend
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, DatasetNotFound, OndiskError

if TYPE_CHECKING:
    from ondisk.maintenance.states import Report


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=path, help="the folder with state.dat or arkimet's config")
    add_keys(parser)
    parser.add_argument("--yes", action="store_true", help="adopt; without it, only print what would be read")
    add_fields(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: argparse.Namespace, output: Output) -> int:
    config = declared(arguments)
    if not arguments.yes:
        report, error = examined(lambda: ondisk.adopt(arguments.folder, config, dry_run=True))
        _show_plan(report, output)
        if error is not None:
            raise error
        return EXIT_FINDINGS
    failed: OndiskError | None = None
    try:
        with segments_progress("adopt") as progress:
            report = ondisk.adopt(arguments.folder, config, progress=progress)
    except OndiskError as error:
        if "report" not in error.context:
            raise
        report, failed = error.context["report"], error
    try:
        with ondisk.open(arguments.folder, read_only=True) as dataset:
            left, denied = examined(dataset.check)
    except DatasetNotFound:
        if failed is None:
            raise
        _show_plan(report, output)  # nothing was adopted
        raise failed from None
    show_mended(report, left.after(report), output)
    if (error_left := failed or denied) is not None:
        raise error_left
    if report.lost:
        return EXIT_DATA_SKIPPED
    return EXIT_DONE if left.is_clean else EXIT_FINDINGS


def _show_plan(report: Report, output: Output) -> None:
    from ondisk.maintenance.states import FIXED

    work = report.mended_by(FIXED)
    told = [each for each in report if each not in work and (each.state or each.action is not None)]
    show_would_mend(report, "read", work, told, output)
