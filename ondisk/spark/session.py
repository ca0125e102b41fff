"""Spark sessions with settings that suit ondisk; docs/spark-reference.md has another one for writing small data."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ondisk.errors import StateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Workers communicate over Unix sockets: a small query takes a fifth to two fifths less time.
    "spark.python.unix.domain.socket.enabled": "true",
    # Workers are forked after the imports, which take half a second.
    "spark.python.daemon.module": "ondisk.spark.daemon",
    # Reftimes are in UTC everywhere else in ondisk.
    "spark.sql.session.timeZone": "UTC",
    # The console shows results only.
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of `session`; its arguments override them."""

CONNECTOR = Path(__file__).with_name("ondisk-spark.jar")
"""With it, `where` and `select` reach the index."""


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Say what to do if an import in the block fails.

    Raises:
        StateError: Spark, or a package that ondisk uses with it, is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise StateError(f"Spark is not installed: {error}", hint="pip install 'ondisk[spark]'") from None


def session(master: str | None = None, **settings: str) -> SparkSession:
    """Start a Spark session, or return the running one; its static settings stay as they are.

    Args:
        master: such as `local[4]` or `spark://host:7077`; None for the master of spark-submit, else `local[*]`.
        settings: names with `__` for a dot, such as `spark__driver__memory="4g"`; they override `SETTINGS`.

    Raises:
        StateError: Spark is not installed.
    """
    with installed():
        from pyspark.sql import SparkSession

    # Spark starts its Python workers with the `python3` of PATH, which is not that of a venv that is not activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ondisk")
    if master is not None:
        builder = builder.master(master)
    given = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
    # Only a jar that Spark is started with is there in all threads.
    given["spark.jars"] = ",".join(filter(None, (given.get("spark.jars"), str(CONNECTOR))))
    for name, value in given.items():
        builder = builder.config(name, value)
    is_running = SparkSession.getActiveSession() is not None
    spark = builder.getOrCreate()
    if is_running:
        _add_connector(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Add the connector to a running session, and the data source `ondisk`; also with Spark Connect.

    Spark finds the data source without this, unless it fails to import any package with a name that begins with
    `pyspark_`. The connector can also be an option of `spark-submit`: `--jars "$(ondisk spark-jar)"`.
    """
    with installed():
        from pyspark_ondisk import DefaultSource

    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:  # with Spark Connect, if the session has the connector already
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _add_connector(spark)


def _add_connector(spark: SparkSession) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.addArtifacts(str(CONNECTOR))
    else:
        spark.sql(f"ADD JAR '{CONNECTOR}'")
