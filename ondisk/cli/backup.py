"""Add the present state of a dataset to a backup, for `ondisk restore`. The first time, begin it with --create.

ondisk backup weather /mnt/backup/weather --create
ondisk backup weather /mnt/backup/weather
ondisk backup weather /mnt/backup/weather --keep 14
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ondisk
from ondisk.cli.arguments import add_dataset, count, path
from ondisk.cli.progress import segments_progress
from ondisk.cli.streams import Output, complain, values_of
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, counted

if TYPE_CHECKING:
    from ondisk.backup import Backup, Listed, Problem, Restored

_KEPT = {
    "whole": "the backup has it whole",
    "older": "the backup keeps an older copy",
    "damaged": "it was copied as it is",
    "partly": "its other files were copied",
    "missing": "the backup has nothing of it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("target", metavar="TARGET", type=path, help="the backup: a folder of its own")
    parser.add_argument("--create", action="store_true", help="begin the backup, in a folder that is empty or new")
    parser.add_argument("--keep", metavar="N", type=count, help="afterwards keep only the newest N points")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.dataset.json_lines import time_text  # here, so that --help does not wait for it

    with ondisk.open(arguments.dataset, read_only=True) as dataset, segments_progress("backup") as progress:
        done = dataset.backup(arguments.target, create=arguments.create, keep=arguments.keep, progress=progress)
        away = [name for name in done.offline if name not in dataset.info()["offline"]]  # else it is on purpose
    point = done.point
    values = {**values_of(done, "dataset", "target", "point", "segments", "count", "size", "copied", "bytes")}
    removed = f"; {counted(len(done.removed), 'older point')} removed" * bool(done.removed)
    line = f"{done.dataset}: point {time_text(point)}: {amount(done)}; {done.copied} copied, "
    lines = [f"{line}{counted(done.bytes, 'byte')}{removed}"]
    output.show([values | problems_of(done) | {"removed": done.removed}], told(done.problems, _KEPT, lines))
    for name in away:
        complain("warning", f"the archive {name!r} is away: the backup has what earlier points have of it")
    return EXIT_DATA_SKIPPED if done.problems or away else EXIT_DONE


def amount(what: Backup | Restored | Listed) -> str:
    """Return how much a point of a backup has, or a dataset that was restored from one."""
    return f"{counted(what.count, 'datum')} in {counted(what.segments, 'segment')} of {counted(what.size, 'byte')}"


def problems_of(done: Backup | Restored) -> dict[str, Any]:
    names = ("segment", "reason", "kept")
    return {"problems": [values_of(each, *names) for each in done.problems], "offline": done.offline}


def told(problems: Iterable[Problem], effects: Mapping[str, str], lines: Iterable[str]) -> Iterator[str]:
    """Print what is wrong with segments, and what the backup has of them; then yield the lines."""
    for each in problems:
        effect = f"; {effects[each.kept]}" if each.kept in effects else ""
        complain("damaged", f"{each.segment}: {each.reason}{effect}")
    yield from lines
