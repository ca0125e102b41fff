"""Tests that need Spark, or what comes with it."""
