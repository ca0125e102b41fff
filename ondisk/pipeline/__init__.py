"""Pipelines: folders of files divided among datasets; see docs/pipeline.md."""

from ondisk.pipeline.run import PipelineReport, pipeline

__all__ = ["PipelineReport", "pipeline"]
