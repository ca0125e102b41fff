"""Spark sessions with the settings that favour ondisk; docs/spark.md has one more, for writing small data."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Workers are talked to by Unix sockets: a fifth to two fifths less time for a small query.
    "spark.python.unix.domain.socket.enabled": "true",
    # Reftimes are UTC everywhere else in ondisk.
    "spark.sql.session.timeZone": "UTC",
    # The console shows what is asked for, not how far it is.
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of `session`, which its arguments override."""


def session(master: str | None = None, **settings: str) -> SparkSession:
    """Start a Spark session, or give the one that runs, with which static settings stay as they are.

    Args:
        master: as `local[4]` or `spark://host:7077`; None for what spark-submit said, else `local[*]`.
        settings: names with `__` for a dot, as `spark__driver__memory="4g"`; they override `SETTINGS`.
    """
    from pyspark.sql import SparkSession

    # Spark starts its Python workers with the `python3` of PATH, which in a venv that is not activated is another.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ondisk")
    if master is not None:
        builder = builder.master(master)
    for name, value in (SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Let a session know the data source `ondisk`.

    Spark finds it by itself, but not where any package that is called `pyspark_…` cannot be imported.
    """
    from pyspark_ondisk import DefaultSource

    spark.dataSource.register(DefaultSource)
