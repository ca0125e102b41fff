"""The commands `adopt` and `ack`: queues of Beats, and datasets of arkimet."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.arguments import add_encrypted, add_fields, add_keys, declared, path, positive
from ondisk.cli.dataset import examined, open_dataset, segments_progress
from ondisk.cli.reports import show_mended, show_would_mend
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, EXIT_FINDINGS, DatasetNotFound, OndiskError, counted

if TYPE_CHECKING:
    from ondisk import Location
    from ondisk.maintenance.states import Report
    from ondisk.queue import Acknowledged


def add_adopt(parser: argparse.ArgumentParser) -> None:
    """Make a disk queue of Beats, or a dataset of arkimet, a dataset, where it is. A dry run without --yes.

    Stop Beats or arkimet first. Beats can continue to write and read there while no command of ondisk runs;
    `ondisk fix` then reads what is new. No segment is changed.

    ondisk adopt /var/lib/filebeat/diskqueue --field host=text --index host
    ondisk adopt /srv/arkimet/cosmo --field step=integer --yes
    """
    parser.add_argument("folder", metavar="FOLDER", type=path, help="the folder with state.dat or arkimet's config")
    add_keys(parser)
    parser.add_argument("--yes", action="store_true", help="adopt; without it, only print what would be read")
    add_fields(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run_adopt(arguments: argparse.Namespace, output: Output) -> int:
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


def add_ack(parser: argparse.ArgumentParser) -> None:
    """Acknowledge data of a queue: what the consumer has read is removed. A dry run without --yes.

    ondisk ack queue --count 1000
    ondisk ack queue --count 1000 --yes
    ondisk ack queue --through 3.seg:1260 --yes
    """
    add_encrypted(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--through", metavar="LOCATION", type=_location, help="up to this datum, such as 3.seg:1260")
    which.add_argument("--count", metavar="N", type=positive, help="how many data to acknowledge")
    parser.add_argument("--yes", action="store_true", help="acknowledge; without it, only print what would be done")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_ack(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.queue import acknowledge

    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        done = acknowledge(dataset, through=arguments.through, count=arguments.count, dry_run=not arguments.yes)
        _show_acknowledged(done, output, dry_run=not arguments.yes)
        remains = bool(dataset.quarantine.kept) if arguments.yes else bool(done.count or done.removed)
    return EXIT_FINDINGS if remains else EXIT_DONE


def _show_acknowledged(done: Acknowledged, output: Output, *, dry_run: bool) -> None:
    at, removed = done.position, done.removed
    values = {"would_acknowledge" if dry_run else "acknowledged": done.count, "segment": at.segment}
    values |= {"byte_index": at.byte_index, "frame_index": at.frame_index}
    data = f"{counted(done.count, 'datum')} {'would be ' if dry_run else ''}acknowledged"
    segments = f"{counted(len(removed), 'segment')} {'to remove' if dry_run else 'removed'}"
    how = "; --yes does it" * (dry_run and bool(done.count or removed))
    line = f"{data}: the consumer continues at byte {at.byte_index} of {at.segment}.seg; {segments}{how}"
    output.show([values | {"removed": removed}], [line])


def _location(text: str) -> Location:
    from ondisk import Location

    segment, colon, offset = text.rpartition(":")
    if not (segment and colon and offset.isascii() and offset.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a segment and an offset such as 3.seg:1260")
    return Location(segment, int(offset), 0)
