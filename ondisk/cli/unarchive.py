"""Move segments back from the archive. A dry run without --yes.

ondisk unarchive weather .archive/last/2026/11-17.vm2
ondisk unarchive weather .archive/last/2026/11-17.vm2 --yes
"""

from __future__ import annotations

import argparse

from ondisk.cli.archive import add_move_arguments, move
from ondisk.cli.streams import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_move_arguments(parser, "unarchive", "+")


def run(arguments: argparse.Namespace, output: Output) -> int:
    return move(arguments, output, "unarchive", lambda dataset: dataset.unarchive(*arguments.segments))
