"""Datasets with the step `sequence`, whose segments are those of a disk queue: their layout, and their consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ondisk.queue.consumer import Acknowledged, Batch, Consumer, acknowledge

__all__ = ["Acknowledged", "Batch", "Consumer", "acknowledge"]


# Imported when they are used: whoever appends to such a dataset needs its layout only.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ondisk.queue import consumer

    return getattr(consumer, name)
