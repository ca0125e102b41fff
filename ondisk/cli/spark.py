"""The Spark that a command shares its work out to, where it is asked for."""

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
        what: executors do.
    """
    parser.add_argument(
        "--spark",
        metavar="MASTER",
        nargs="?",
        const="",
        type=_master,
        help=f"let Spark's executors {what}; MASTER is for example spark://host:7077 or local[4];"
        " without MASTER: the master that spark-submit sets, or else this machine",
    )


def _master(text: str) -> str:
    """Refuse what is not a Spark master: `check --spark DATASET` would take the dataset for one."""
    if not _MASTER.fullmatch(text):
        problem = f"{text!r} is not a Spark master such as spark://host:7077 or local[4]"
        raise argparse.ArgumentTypeError(f"{problem}; write --spark without MASTER after all other arguments")
    return text


@contextlib.contextmanager
def executors(master: str | None) -> Iterator[SparkSession | None]:
    """Start Spark for the length of the block; None where nobody asked for it.

    Raises:
        StateError: it is not installed, or does not start.
    """
    if master is None:
        yield None
        return
    try:
        from ondisk.spark import session

        started = session(master or None, spark__ui__enabled="false", spark__log__level="ERROR")
    except ModuleNotFoundError as error:
        raise StateError(f"Spark is not installed: {error}", hint="pip install 'ondisk[spark]'") from None
    except Exception as error:  # of Spark, of Py4J, or of Java; of this, the words stand before its stack
        reason = next((line[2:] for line in str(error).splitlines() if line.startswith(": ")), error)
        hint = "It needs Java 17 or newer, and a MASTER that it knows."
        raise StateError(f"Spark did not start: {reason}", hint=hint) from None
    try:
        yield started
    finally:
        started.stop()
