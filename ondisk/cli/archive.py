"""Move segments to the archive, however old they are; `repack` does so by age. A dry run without --yes.

ondisk archive weather 2026/11-17.vm2
ondisk archive weather 2026/11-17.vm2 2026/11-18.vm2 --yes
"""

from __future__ import annotations

import argparse

from ondisk.cli.moved import add_move_arguments, move
from ondisk.cli.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_move_arguments(parser, "archive")


def run(arguments: argparse.Namespace, output: Output) -> int:
    return move(arguments, output, "archive", lambda dataset: dataset.archive(*arguments.segments))
