"""Import the new files of a folder into the datasets they belong to, with Spark, then maintain these datasets.

ondisk pipeline weather.toml
ondisk pipeline weather.toml --dry-run
ondisk pipeline weather.toml --json
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_keys, path
from ondisk.cli.maintain import show
from ondisk.cli.output import Output, complain_of_input
from ondisk.cli.progress import bytes_progress, segments_progress
from ondisk.cli.spark import executors
from ondisk.cli.streams import complain

if TYPE_CHECKING:
    from ondisk.pipeline.run import PipelineReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=path, help="the pipeline's configuration, a TOML file")
    add_keys(parser)
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only print what would be done")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and one for each dataset maintained"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.pipeline.run import Pipeline  # here, so that --help does not wait for it

    with Pipeline.open(arguments.config, dry_run=arguments.dry_run) as pipeline:
        report = pipeline.report
        try:
            if pipeline.waiting:  # starting Spark takes seconds
                size = sum(file.size for file in pipeline.waiting)
                with executors(pipeline.config.master or "") as spark, bytes_progress("pipeline", size) as advance:
                    from ondisk.spark.append import imports

                    assert spark is not None
                    pipeline.import_files(imports(spark), advance)
        finally:
            output.imported(report)  # also after an error: the files before it are stored
            _complain_of(report)
        try:
            with segments_progress("maintain") as progress:
                pipeline.maintain(progress)
        finally:
            for result in report.maintained:
                show(result, output, dry_run=False)
    return report.exit_code


def _complain_of(report: PipelineReport) -> None:
    """Print on standard error what was not imported, and why."""
    for name, reason in report.failed:
        complain("error", f"{name}: {reason}")
    for name in report.changed:
        complain("note", f"{name}: it changed while it was read; the next run imports it")
    for item in report.kept:
        complain("warning", f"data were in the way, and are kept in quarantine: {item}")
    complain_of_input(report.refusals, report.refused, report.damage, report.damaged, report.notes)
