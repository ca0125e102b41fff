"""Datasets in Spark: `spark.read.format("ondisk").load(path)` and `dataset.index_frame(spark)`; see docs/spark.md."""

from ondisk.spark.pipeline import PipelineReport, pipeline
from ondisk.spark.session import SETTINGS, register, session

__all__ = ["SETTINGS", "PipelineReport", "pipeline", "register", "session"]
