"""Forks Spark's Python workers after the imports that ondisk needs; else each worker would import them again.

`ondisk.spark.session` sets `spark.python.daemon.module` to this.
"""

from __future__ import annotations

if __name__ == "__main__":
    import adbc_driver_sqlite  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.pandas.types
    import pyspark.worker

    import ondisk.spark.source
    import ondisk.spark.write  # noqa: F401
    from pyspark_ondisk import end_quietly

    end_quietly(pyspark.daemon)
    pyspark.daemon.manager()
