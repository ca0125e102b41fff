"""Pipelines import the files of a folder, each datum into the dataset that it matches; see docs/pipeline.md."""

from ondisk.pipeline.run import PipelineReport, pipeline

__all__ = ["PipelineReport", "pipeline"]
