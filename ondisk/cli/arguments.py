"""Arguments that several commands have."""

from __future__ import annotations

import argparse
import os
import re


def add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", type=path, help="the dataset's directory")


def add_match(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("match", metavar="MATCH", nargs="?", help="a match expression; without it, all data")


def decoded(argument: str) -> str:
    """Read an argument of the process as UTF-8, whatever the locale; bytes that are none are escaped."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def path(text: str) -> str:
    """Take a path, as the locale spells it: the other way round than `decoded`."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def count(text: str) -> int:
    """Read a whole number of 0 or more."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more; without it, all data come")
    return number


def duration(text: str) -> float:
    """Read a span of time, such as 90s, 10m or 1h30m; gives seconds."""
    parts = re.fullmatch(r"(?=.)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text, re.ASCII)
    if parts is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time such as 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return float((hours * 60 + minutes) * 60 + seconds)


def names(text: str) -> list[str]:
    """Read a list of names with commas between them; an empty text is an empty list."""
    return [name.strip() for name in text.split(",")] if text.strip() else []
