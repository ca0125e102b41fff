"""Reads an interval of reftimes from the syntax tree: which segments can contain matching data?"""

from __future__ import annotations

from functools import reduce
from operator import and_

from ondisk.matcher.tree import And, Compare, Everything, Expression, IsMissing, Not, OneOf, Operator, Or
from ondisk.step import ALWAYS, NEVER, Interval


def reftime_interval(expression: Expression) -> Interval:
    """Return an interval that contains every reftime that can match; perhaps a larger one than needed."""
    return _interval(expression, negated=False)


def exact_interval(expression: Expression) -> Interval | None:
    """Return the interval of all reftimes that match, if nothing else decides what matches; else None."""
    match expression:
        case Everything() | Compare("reftime", _, int()):
            return reftime_interval(expression)
        case And(children) if all(exact_interval(child) is not None for child in children):
            return reftime_interval(expression)
        case _:
            return None


def _interval(expression: Expression, *, negated: bool) -> Interval:
    """Return the interval of an expression or of its negation, which is passed down to the leaves (De Morgan)."""
    match expression:
        case Not(child):
            return _interval(child, negated=not negated)
        case And(children) | Or(children):
            parts = [_interval(child, negated=negated) for child in children]
            # not (a and b) is (not a) or (not b), and the other way round
            return _intersection(parts) if isinstance(expression, And) is not negated else _hull(parts)
        case Compare("reftime", operator, int(value)):
            return _compared(_COMPLEMENT[operator] if negated else operator, value)
        case OneOf("reftime", values) if values and not negated:
            times = [int(value) for value in values]
            return Interval(min(times), max(times) + 1)
        case OneOf(_, ()) | IsMissing("reftime"):  # both match nothing: reftime always exists
            return ALWAYS if negated else NEVER
        case Everything():
            return NEVER if negated else ALWAYS
        case _:
            return ALWAYS


_COMPLEMENT: dict[Operator, Operator | None] = {"=": None, "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _compared(operator: Operator | None, time: int) -> Interval:
    match operator:
        case "=":
            return Interval(time, time + 1)
        case "<":
            return Interval(end=time)
        case "<=":
            return Interval(end=time + 1)
        case ">":
            return Interval(begin=time + 1)
        case ">=":
            return Interval(begin=time)
        case None:  # any time but this one
            return ALWAYS


def _intersection(parts: list[Interval]) -> Interval:
    common = reduce(and_, parts, ALWAYS)
    return NEVER if common.is_empty else common


def _hull(parts: list[Interval]) -> Interval:
    parts = [part for part in parts if not part.is_empty]
    return Interval(min(part.begin for part in parts), max(part.end for part in parts)) if parts else NEVER
