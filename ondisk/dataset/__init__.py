"""Datasets: create, open, append, query, delete."""

from ondisk.dataset.append import AppendResult, Outcome
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.read import Summary

__all__ = ["AppendResult", "Dataset", "Outcome", "Summary"]
