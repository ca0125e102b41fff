"""Forks Spark's Python workers after the imports that ondisk needs; else each worker would import them again.

`ondisk.spark.session` sets `spark.python.daemon.module` to this.
"""

from __future__ import annotations

if __name__ == "__main__":
    import adbc_driver_sqlite  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import pyspark.sql.pandas.types
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import ondisk.spark.source
    import ondisk.spark.write  # noqa: F401

    manager()
