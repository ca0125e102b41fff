"""Items in lists of a limited weight."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def batched(
    items: Iterable[_T], weight: Callable[[_T], int], most: int, count: int = sys.maxsize
) -> Iterator[list[_T]]:
    """Yield items in lists of at most this weight, or one heavier item, and of at most so many items."""
    some: list[_T] = []
    total = 0
    for each in items:
        total += (size := weight(each))
        if some and (total > most or len(some) >= count):
            yield some
            some, total = [], size
        some.append(each)
    if some:
        yield some
