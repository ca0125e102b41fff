"""Add the present state of a dataset to a backup, for `ondisk restore`. The first time, begin it with --create.

ondisk backup weather /mnt/backup/weather --create
ondisk backup weather /mnt/backup/weather
ondisk backup weather /mnt/backup/weather --keep 14
"""

from __future__ import annotations

import argparse

import ondisk
from ondisk.cli.arguments import add_dataset, count, path
from ondisk.cli.progress import segments_progress
from ondisk.cli.streams import Output, complain
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("target", metavar="TARGET", type=path, help="the backup: a folder of its own")
    parser.add_argument(
        "--create", action="store_true", help="begin the backup, in a folder that is empty or does not exist"
    )
    parser.add_argument(
        "--keep",
        metavar="N",
        type=count,
        help="afterwards keep only the newest N points, and remove what only others need",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    with ondisk.open(arguments.dataset, read_only=True) as dataset, segments_progress("backup") as progress:
        done = dataset.backup(arguments.target, create=arguments.create, keep=arguments.keep, progress=progress)
        away = [name for name in done.offline if name not in dataset.info()["offline"]]  # else it is on purpose
    output.backed_up(done)
    for name in away:
        complain("warning", f"the archive {name!r} is away: the backup has what earlier points have of it")
    return EXIT_DATA_SKIPPED if done.problems or away else EXIT_DONE
