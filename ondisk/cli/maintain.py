"""Fix and repack datasets, and archive and delete by age. Made for cron: it acts without --yes.

ondisk maintain /data/weather /data/events
ondisk maintain weather --dry-run
ondisk maintain weather --max-duration 30m --metrics /var/lib/node_exporter/ondisk.prom
"""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_keys, duration, path
from ondisk.cli.progress import segments_progress
from ondisk.cli.reports import show_maintained
from ondisk.cli.streams import Output, complain
from ondisk.errors import OndiskError

if TYPE_CHECKING:
    from ondisk.maintenance.maintain import Maintained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("datasets", metavar="DATASET", nargs="+", type=path, help="a dataset's directory")
    add_keys(parser)
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only print what would be done")
    parser.add_argument(
        "--max-duration",
        metavar="D",
        type=duration,
        help="read the data of each dataset for this long (90s, 1h30m, 1d), least recently read segments first",
    )
    parser.add_argument("--metrics", metavar="FILE", type=path, help="write metrics for Prometheus; not in a dry run")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each dataset")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.maintenance import last_report
    from ondisk.maintenance.maintain import maintain, worst
    from ondisk.maintenance.metrics import write

    results = []
    options = {"dry_run": arguments.dry_run, "max_duration": arguments.max_duration}
    for dataset in dict.fromkeys(str(Path(each).absolute()) for each in arguments.datasets):
        with segments_progress(f"maintain {dataset}") as progress:
            result = maintain(dataset, **options, progress=progress)
        show(result, output, dry_run=arguments.dry_run)
        if not arguments.dry_run:
            last_report.save(dataset, "maintain", result.left, result.done, result.error)
        results.append(result)
    if arguments.metrics is not None and not arguments.dry_run:
        write(arguments.metrics, results)
    return worst(result.exit_code for result in results)


def show(result: Maintained, output: Output, *, dry_run: bool) -> None:
    """Print what was done to one dataset, and the error that stopped it."""
    show_maintained(result, output, dry_run=dry_run)
    if result.error is not None:
        complain("error", _error_text(result))


def _error_text(result: Maintained) -> str:
    error = result.error
    text = str(error) if isinstance(error, OndiskError) else "".join(traceback.format_exception(error))
    return text if result.dataset in text else f"{result.dataset}: {text}"
