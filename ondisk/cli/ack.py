"""Acknowledge data of a queue: what the consumer has read is removed. A dry run without --yes.

ondisk ack queue --count 1000
ondisk ack queue --count 1000 --yes
ondisk ack queue --through 3.seg:1260 --yes
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ondisk.cli.arguments import add_encrypted, positive
from ondisk.cli.dataset import open_dataset
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS, counted

if TYPE_CHECKING:
    from ondisk import Location
    from ondisk.queue import Acknowledged


def add(parser: argparse.ArgumentParser) -> None:
    add_encrypted(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--through", metavar="LOCATION", type=_location, help="up to this datum, such as 3.seg:1260")
    which.add_argument("--count", metavar="N", type=positive, help="how many data to acknowledge")
    parser.add_argument("--yes", action="store_true", help="acknowledge; without it, only print what would be done")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.queue import acknowledge

    with open_dataset(arguments.dataset, read_only=not arguments.yes) as dataset:
        done = acknowledge(dataset, through=arguments.through, count=arguments.count, dry_run=not arguments.yes)
        _show(done, output, dry_run=not arguments.yes)
        remains = bool(dataset.quarantine.kept) if arguments.yes else bool(done.count or done.removed)
    return EXIT_FINDINGS if remains else EXIT_DONE


def _show(done: Acknowledged, output: Output, *, dry_run: bool) -> None:
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
