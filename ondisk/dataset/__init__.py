"""Datasets: create, open, append, query, delete."""

from ondisk.dataset.append import AppendResult, Outcome
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.merged import Merged
from ondisk.dataset.summaries import Summary
from ondisk.index.field_values import FieldSummary
from ondisk.index.groups import Group

__all__ = ["AppendResult", "Dataset", "FieldSummary", "Group", "Merged", "Outcome", "Summary"]
