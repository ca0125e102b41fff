"""The option `--spark`, and the Spark session that it starts."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ondisk.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = re.compile(r"|yarn|local(-cluster)?(\[.*\])?|[a-z0-9+]+://.+")


def add_spark(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option `--spark`.

    Args:
        what: the work of the executors, for the help.
    """
    parser.add_argument(
        "--spark",
        metavar="MASTER",
        nargs="?",
        const="",
        type=_master,
        help=f"let Spark's executors {what}; MASTER is for example spark://host:7077 or local[4];"
        " default: the master that spark-submit sets, else this machine",
    )


def _master(text: str) -> str:
    """Return a Spark master, or raise: `check --spark DATASET` must not use the dataset as the master."""
    if not _MASTER.fullmatch(text):
        problem = f"{text!r} is not a Spark master such as spark://host:7077 or local[4]"
        raise argparse.ArgumentTypeError(f"{problem}; write --spark without MASTER after all other arguments")
    return text


@contextlib.contextmanager
def executors(master: str | None) -> Iterator[SparkSession | None]:
    """Start Spark for the block and yield its session, or None if `master` is None.

    Raises:
        StateError: Spark is not installed, or does not start.
    """
    if master is None:
        yield None
        return
    try:
        from ondisk.spark import session

        started = session(master or None, spark__ui__enabled="false", spark__log__level="ERROR")
    except StateError:  # it is not installed
        raise
    except Exception as error:  # of Spark, Py4J or Java; in text from Java the message is the line after ": "
        reason = next((line[2:] for line in str(error).splitlines() if line.startswith(": ")), error)
        hint = "Spark needs Java 17 or newer, and a MASTER that it knows."
        raise StateError(f"Spark did not start: {reason}", hint=hint) from None
    try:
        yield started
    finally:
        started.stop()
