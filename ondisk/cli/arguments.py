"""Arguments that several commands have."""

from __future__ import annotations

import argparse


def add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="the dataset's directory")


def add_match(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("match", metavar="MATCH", nargs="?", help="a match expression; without it, all data")


def names(text: str) -> list[str]:
    """Read a list of names with commas between them; an empty text is an empty list."""
    return [name.strip() for name in text.split(",")] if text.strip() else []
