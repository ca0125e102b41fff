"""The logger `ondisk.spark`: a line for each plan and each write.

Plans and commits run in Python workers on the driver's machine. Nobody configures logging there, so a worker prints the
lines to its standard error, which Spark passes on to that of the driver. If `spark.sql.pyspark.worker.logging.enabled`
is true, Spark collects them, too: `spark.tvf.python_worker_logs()`.
"""

from __future__ import annotations

import logging
import sys
from functools import cache

LOGGER = logging.getLogger("ondisk.spark")


@cache
def print_lines() -> None:
    """Print the lines of this process. Call it in Spark's workers only: other programs configure logging themselves."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
