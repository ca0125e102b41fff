"""The Spark that a command shares its work out to, where it is asked for."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ondisk.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        help=f"let Spark's executors {what}: those of MASTER, as spark://host:7077, else of spark-submit, else of here;"
        " before FILE, write --spark=MASTER",
    )


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
