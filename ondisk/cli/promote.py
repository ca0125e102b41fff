"""Make a replica an ordinary dataset, which takes all writes and follows its source no more. A dry run without --yes.

ondisk promote /backup/weather
ondisk promote /backup/weather --yes
"""

from __future__ import annotations

import argparse
from typing import Any

from ondisk.cli.arguments import path
from ondisk.cli.dataset import open_dataset
from ondisk.cli.streams import Output
from ondisk.errors import EXIT_DONE, EXIT_FINDINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("replica", metavar="REPLICA", type=path, help="the replica's directory")
    parser.add_argument("--yes", action="store_true", help="promote it; without it, only print what would be done")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ondisk.replication.replica import check_replica, promote

    if arguments.yes:
        with promote(arguments.replica) as dataset:
            _show(dataset.info(), "is an ordinary dataset now, with the UUID {uuid}", arguments, output)
        return EXIT_DONE
    with open_dataset(arguments.replica, read_only=True) as dataset:
        check_replica(dataset)
        _show(dataset.info(), "would become an ordinary dataset; --yes does it", arguments, output)
    return EXIT_FINDINGS


def _show(info: dict[str, Any], what: str, arguments: argparse.Namespace, output: Output) -> None:
    values = {"dataset": info["path"], "uuid": info["uuid"], "dry_run": not arguments.yes}
    output.show([values], [f"{info['path']} {what.format(**info)}"])
