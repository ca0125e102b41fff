"""Tests of pipelines that need no Spark; tests/spark/test_pipeline.py has the others."""
