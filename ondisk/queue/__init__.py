"""The consumer of a queue: reads a dataset with the step `sequence` in the order of the queue, and acknowledges."""

from ondisk.queue.acknowledge import Acknowledged, acknowledge
from ondisk.queue.consumer import Batch, Consumer

__all__ = ["Acknowledged", "Batch", "Consumer", "acknowledge"]
