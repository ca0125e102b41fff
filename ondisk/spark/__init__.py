"""Datasets in Spark: `spark.read.format("ondisk").load(path)`, `dataset.index_frame(spark)`; see docs/spark.md.

For tables in SQL, set a catalog: `spark.sql.catalog.NAME=ondisk.spark.OndiskCatalog`, and its folder with `.NAME.root`.
"""

from ondisk.spark.report import WriteReport, last_write
from ondisk.spark.session import SETTINGS, register, session

__all__ = ["SETTINGS", "WriteReport", "last_write", "register", "session"]
