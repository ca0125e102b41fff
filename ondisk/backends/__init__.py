"""Backends: protocols of other storage systems over a dataset."""
