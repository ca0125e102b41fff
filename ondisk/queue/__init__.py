"""Datasets with the step `sequence`, whose segments are those of a disk queue: their layout, and their consumer."""

from ondisk.queue.acknowledge import Acknowledged, acknowledge
from ondisk.queue.consumer import Batch, Consumer

__all__ = ["Acknowledged", "Batch", "Consumer", "acknowledge"]
