"""Pipelines import the files of a folder, each datum into the dataset that it matches; see docs/pipeline.md."""

from ondisk.pipeline.report import PipelineReport
from ondisk.pipeline.run import pipeline

__all__ = ["PipelineReport", "pipeline"]
