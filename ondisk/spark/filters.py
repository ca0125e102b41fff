"""Spark's filters as syntax trees.

Spark's conditions are three-valued, the trees are two-valued: each filter becomes two trees, one that matches where it
is true and one where it is false. Where it is neither, for a missing value, none of them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import isnan
from typing import Any, TypeAlias

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ondisk import matcher
from ondisk.datum import FieldType, canonical
from ondisk.errors import InvalidInput, MatchError
from ondisk.index.where import check_size
from ondisk.matcher import And, Compare, Contains, EndsWith, Everything, Expression, IsMissing, OneOf, StartsWith
from ondisk.matcher.tree import Operator

# Spark hands times over by a calendar that changed on that day: some that stand before it come shifted.
_GREGORIAN = datetime(1582, 11, 1, tzinfo=UTC)
_Two: TypeAlias = tuple[Expression, Expression]
_COMPARED: dict[type[Filter], Operator] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}
_TEXT: dict[type[Filter], Any] = {
    StringStartsWith: StartsWith,
    StringEndsWith: EndsWith,
    StringContains: Contains,
}


def pushed(filters: Iterable[Filter], fields: Mapping[str, tuple[str, FieldType]]) -> tuple[Expression, list[Filter]]:
    """Make a syntax tree of filters that must all hold.

    Args:
        fields: column → the field that it is of, and its type.

    Returns:
        The tree, and the filters that are not in it, which Spark has to see to.
    """
    taken: list[Expression] = []
    left = []
    for each in filters:
        two = _trees(each, fields)
        try:
            if two is not None:
                check_size(And((*taken, two[0])))
                taken.append(two[0])
                continue
        except MatchError:  # larger than SQLite takes
            pass
        left.append(each)
    return (And(tuple(taken)) if taken else Everything()), left


def _trees(given: Filter, fields: Mapping[str, tuple[str, FieldType]]) -> _Two | None:
    """Give the trees that match where a filter is true, and where it is false; None where there are none."""
    if isinstance(given, Not):
        two = _trees(given.child, fields)
        return None if two is None else (two[1], two[0])
    path: Any = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in fields:
        return None
    name, kind = fields[path[0]]
    if kind is FieldType.TIMESTAMP and any(map(_is_shifted, _values_of(given))):
        return None
    try:
        return _leaf(given, name, kind)
    except InvalidInput:  # a value that no datum can have, or of another type
        return None


def _leaf(given: Any, name: str, kind: FieldType) -> _Two | None:
    missing, never = IsMissing(name), OneOf(name, ())
    tree: Expression
    if isinstance(given, IsNull):
        return missing, matcher.Not(missing)
    if isinstance(given, IsNotNull):
        return matcher.Not(missing), missing
    if isinstance(given, EqualNullSafe):
        if given.value is None:
            return missing, matcher.Not(missing)
        tree = never if _is_nan(given.value) else Compare(name, "=", canonical(_plain(given.value), kind))
        return tree, matcher.Not(tree)
    if isinstance(given, In):
        wanted = [value for value in given.value if value is not None and not _is_nan(value)]
        tree = OneOf(name, tuple(canonical(_plain(value), kind) for value in wanted))
        return tree, never if None in given.value else _false(tree, name)
    if type(given) in _COMPARED:
        if given.value is None:
            return never, never
        operator = _COMPARED[type(given)]
        if _is_nan(given.value):  # greater than every number, and no datum has it
            is_less = operator in ("<", "<=")
            return (matcher.Not(missing), never) if is_less else (never, matcher.Not(missing))
        tree = Compare(name, operator, canonical(_plain(given.value), kind))
        return tree, _false(tree, name)
    if type(given) in _TEXT and kind is FieldType.TEXT:
        if given.value is None:
            return never, never
        tree = _TEXT[type(given)](name, str(canonical(given.value, kind)))
        return tree, _false(tree, name)
    return None


def _false(tree: Expression, name: str) -> Expression:
    """Match where a condition on one field is false: it does not hold, and the field is there."""
    return And((matcher.Not(tree), matcher.Not(IsMissing(name))))


def _values_of(given: Filter) -> Iterable[Any]:
    return given.value if isinstance(given, In) else (getattr(given, "value", None),)


def _is_shifted(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None and value < _GREGORIAN


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
