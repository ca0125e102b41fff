"""The shapes of what others send as JSON or CBOR, which may be hostile."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

COUNT = range(2**63)

Shape: TypeAlias = Any
"""A type, a range of whole numbers, a pattern or a set of texts, `[each]` of a list, or a tuple of its items."""


def fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, type):
        return type(value) is shape
    if isinstance(shape, range):
        return type(value) is int and value in shape
    if isinstance(shape, re.Pattern):
        return type(value) is str and shape.fullmatch(value) is not None
    if isinstance(shape, frozenset):
        return type(value) is str and value in shape
    if type(value) is not list:
        return False
    if isinstance(shape, list):
        return all(fits(each, shape[0]) for each in value)
    return len(value) == len(shape) and all(map(fits, value, shape))
