"""Import the new files of a folder into the datasets they belong to, then maintain these datasets.

Processes of this machine read the files, one for each core; with --spark, executors of Spark.

ondisk pipeline weather.toml
ondisk pipeline weather.toml --dry-run
ondisk pipeline weather.toml --spark spark://host:7077
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_keys, add_spark, path
from ondisk.cli.dataset import bytes_progress, executors, segments_progress
from ondisk.cli.maintenance import show
from ondisk.cli.streams import Output, complain, complain_of_input, damage_and_notes, printable, values_of
from ondisk.errors import counted

if TYPE_CHECKING:
    from ondisk.pipeline.report import PipelineReport
    from ondisk.pipeline.run import Pipeline


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=path, help="the pipeline's configuration, a TOML file")
    add_keys(parser)
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only print what would be done")
    add_spark(parser, "read the files")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.pipeline.run import Pipeline  # here, so that --help does not wait for it

    with Pipeline.open(arguments.config, dry_run=arguments.dry_run) as pipeline:
        report = pipeline.report
        try:
            if pipeline.to_read:  # starting Spark takes seconds
                _import(pipeline, pipeline.config.master if arguments.spark is None else arguments.spark)
        finally:
            _show(report, output)  # also after an error: the files before it are stored
            _complain_of(report)
        try:
            with segments_progress("maintain") as progress:
                pipeline.maintain(progress)
        finally:
            for result in report.maintained:
                show(result, output, dry_run=False)
    return report.exit_code


def _show(report: PipelineReport, output: Output) -> None:
    keys = ("imported", "duplicates", "replaced", "refused")
    datasets = [
        {"dataset": name} | values_of(result, *keys)
        | {"again": report.again.get(name, 0), "lacking": report.lacking.get(name, 0)}
        for name, result in report.datasets.items()
    ]  # fmt: skip
    values = {
        "pipeline": report.name,
        "dry_run": report.dry_run,
        "files": values_of(report, "found", "known", "imported"),
        "changed": report.changed,
        "failed": [{"file": name, "reason": reason} for name, reason in report.failed],
        "datasets": datasets,
        "refused": [{"file": name, "reason": reason} for name, reason in report.refusals],
    }
    parts = [f"{counted(report.imported, 'file')} {'to import' if report.dry_run else 'imported'}"]
    parts.append(f"{report.known} known")
    parts += [
        f"{len(files)} {what}" for files, what in ((report.changed, "changed"), (report.failed, "failed")) if files
    ]
    lines = [f"{report.name}: {', '.join(parts)}"]
    for name, result in report.datasets.items():
        counts = [f"{getattr(result, key)} {key}" for key in keys if key == "imported" or getattr(result, key)]
        lines.append(f"  {name}: {', '.join(counts)}")
    output.show([values | damage_and_notes(report.damage, report.notes)], lines)


def _import(pipeline: Pipeline, master: str | None) -> None:
    """Import the files: with Spark, if there is a master; "" is that of spark-submit, else this machine."""
    with executors(master) as spark, bytes_progress("pipeline", sum(file.size for file in pipeline.to_read)) as advance:
        pipeline.import_files(spark, advance)


def _complain_of(report: PipelineReport) -> None:
    for name, reason in report.failed:
        complain("error", f"{printable(name)}: {reason}")
    for name, count in report.again.items():
        verb = "would be" if report.dry_run else "were"
        complain("note", f"{name}: files that were imported before, and that it lacked, {verb} imported again: {count}")
    for name, count in report.lacking.items():
        complain("warning", f"{name}: files that were imported before, that it lacks, and that are gone: {count}")
    for name in report.changed:
        complain("note", f"{printable(name)}: it changed while it was read; the next run imports it")
    for item in report.kept:
        complain("warning", f"data were in the way, and are kept in quarantine: {item}")
    complain_of_input(report.refusals, report.refused, report.damage, report.damaged, [], report.notes)
