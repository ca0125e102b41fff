"""Evaluates the syntax tree in Python: does one datum match?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt
from typing import Any, TypeAlias

from ondisk.errors import InvalidInput
from ondisk.matcher.tree import (
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Expression,
    IsMissing,
    Item,
    Kind,
    Not,
    OneOf,
    Operator,
    Or,
    Scalar,
    StartsWith,
    TimeOfDay,
    Undeclared,
)
from ondisk.step import DAY

_Leaf: TypeAlias = Compare | OneOf | StartsWith | Components | Item | TimeOfDay | EverySeconds
_TYPES: dict[Kind, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "bytes": (bytes,),
    "time": (),
}
# Texts compare by code point. SQLite's BINARY compares bytes of UTF-8, which have the same order.
_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


def matches(expression: Expression, value_of: Callable[[str], Scalar | None]) -> bool:
    """Return whether a datum matches.

    A leaf does not match a datum without its field, and `Not` matches exactly the data that its child does not match.

    Args:
        expression: the tree.
        value_of: field → its value in stored form (times, also `reftime`, in microseconds); None if it is missing. Of
            metadata that are not declared, `metadata.NAME` → the value as a query returns it.
    """
    match expression:
        case Everything():
            return True
        case And(children):
            return all(matches(child, value_of) for child in children)
        case Or(children):
            return any(matches(child, value_of) for child in children)
        case Not(child):
            return not matches(child, value_of)
        case IsMissing(field):
            return value_of(field) is None
        case Compare() | OneOf() | StartsWith() | Components() | Item() | TimeOfDay() | EverySeconds():
            value = value_of(expression.field)
            return value is not None and _holds(expression, value)
        case Undeclared(_, readings):
            value = value_of(expression.field)
            return value is not None and (readings is None or any(_reads(*each, value) for each in readings))
        case _:
            raise TypeError(f"{expression!r} is not a match expression")


class Values:
    """The values of a datum by name, for `matches`; notes whether the reftime was read: else it does not matter."""

    __slots__ = ("_metadata", "_reftime", "reftime_read")

    def __init__(self, reftime: int, metadata: Mapping[str, Any]) -> None:
        self._reftime = reftime
        self._metadata = metadata
        self.reftime_read = False

    def __call__(self, name: str) -> Any:
        if name == "reftime":
            self.reftime_read = True
            return self._reftime
        return self._metadata.get(name)


def _reads(kind: Kind, condition: Expression, value: Any) -> bool:
    """Return whether a value of undeclared metadata is of a type, and matches a condition on values of this type."""
    if kind == "time" and type(value) is str:
        from ondisk.json_shapes import parse_time

        try:
            value = parse_time(value)
        except InvalidInput:
            return False
    elif type(value) not in _TYPES[kind]:
        return False
    return matches(condition, lambda _: value)


def _holds(leaf: _Leaf, value: Any) -> bool:
    match leaf:
        case Compare(_, operator, wanted):
            return _COMPARE[operator](value, wanted)
        case OneOf(_, values):
            return value in values
        case StartsWith(_, prefix):
            return bool(value.startswith(prefix))
        case Components(_, parts):
            given = value.split(",", len(parts))[: len(parts)]
            return len(given) == len(parts) and all(part in (None, own) for part, own in zip(parts, given, strict=True))
        case Item(field, pattern):
            from ondisk.items import matches as matches_item

            return matches_item(field, pattern, value)
        case TimeOfDay(_, begin, end):
            return begin <= _second_of_day(value) < end
        case EverySeconds(_, period, base):
            return (_second_of_day(value) - base) % period == 0


def _second_of_day(microseconds: int) -> int:
    return microseconds % DAY // 1_000_000
