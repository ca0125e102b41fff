"""Datasets in Spark: `spark.read.format("ondisk").load(path)`, `dataset.index_frame(spark)`; see docs/spark.md."""

from ondisk.spark.session import SETTINGS, register, session

__all__ = ["SETTINGS", "register", "session"]
