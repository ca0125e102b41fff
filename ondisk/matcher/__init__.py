"""Match expressions: one syntax tree, which text or Python operators build, and three readers of it.

text ── parse ──┐                ┌── SQL (ondisk/index)
                ├── Expression ──┼── reftime_interval: which segments
Fields ─ == < ──┘                └── matches: one datum, in Python

    Expression = Everything | Compare | OneOf | IsMissing | StartsWith | Components
               | Item | TimeOfDay | EverySeconds | Undeclared
               | And(Expression…) | Or(Expression…) | Not(Expression)

A leaf does not match a datum without its field, and `Not` matches exactly the data that its child does not
match. Times are integer microseconds since 1970, UTC; the field `reftime` always exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from importlib import import_module
from operator import and_, eq, ge, gt, le, lt, or_
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias, dataclass_transform

from ondisk.datum import METADATA
from ondisk.errors import InvalidInput
from ondisk.step import ALWAYS, DAY, NEVER, NOTHING, Interval

if TYPE_CHECKING:
    from ondisk.matcher.fields import Field as Field
    from ondisk.matcher.fields import Fields as Fields
    from ondisk.matcher.parser import parse as parse
    from ondisk.matcher.sort import Sort as Sort
    from ondisk.matcher.sort import SortInterval as SortInterval
    from ondisk.matcher.sort import SortKey as SortKey
    from ondisk.matcher.sort import parse_sort as parse_sort

Scalar: TypeAlias = int | float | str | bool | bytes
Operator: TypeAlias = Literal["=", "<", "<=", ">", ">="]


# Imported when they are first used: most queries have no sort order, and many no text to parse.
_MODULES = {
    **dict.fromkeys(("Field", "Fields"), "ondisk.matcher.fields"),
    **dict.fromkeys(("Sort", "SortInterval", "SortKey", "parse_sort"), "ondisk.matcher.sort"),
    "parse": "ondisk.matcher.parser",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ondisk.matcher' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_MODULES[name]), name)
    return found


@dataclass_transform(frozen_default=True)
class Expression:
    """A condition on a datum. Combine conditions with `&`, `|` and `~`.

    A subclass declares its fields as a frozen dataclass does, and takes them by position. `dataclasses` would compile
    several methods for each, whenever a process starts.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = tuple(cls.__annotations__)  # type: ignore[misc]

    def __init__(self, *args: Any) -> None:
        for name, value in zip(self.__match_args__, args, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to {name!r}: a condition does not change")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __and__(self, other: object) -> Expression:
        return And((*_children(And, self), *_children(And, other))) if isinstance(other, Expression) else NotImplemented

    def __or__(self, other: object) -> Expression:
        return Or((*_children(Or, self), *_children(Or, other))) if isinstance(other, Expression) else NotImplemented

    def __invert__(self) -> Expression:
        return Not(self)

    def __bool__(self) -> bool:
        # `a and b`, `not a` and `1 < f < 3` would silently drop a condition.
        raise TypeError("a condition has no truth value: combine conditions with &, | and ~, each in parentheses")


class Everything(Expression):
    """Matches every datum."""


class Compare(Expression):
    """The comparison of the field's value with `value`, of the same type (times: microseconds), is true."""

    field: str
    operator: Operator
    value: Scalar


class OneOf(Expression):
    field: str
    values: tuple[Scalar, ...]


class IsMissing(Expression):
    field: str


class StartsWith(Expression):
    """The text starts with `prefix`; case matters."""

    field: str
    prefix: str


class Components(Expression):
    """The text's first comma-separated components equal `parts`; None matches any component.

    `("VM2", "2")` matches `VM2,2` and `VM2,2,x`, not `VM2,227`; `("GRIB1", None, "5")` matches `GRIB1,98,5`.
    """

    field: str
    parts: tuple[str | None, ...]


class Item(Expression):
    """The text is an item that one alternative of an expression matches; the field's name says how both are read.

    See `ondisk.items`, which must have accepted the pattern for this field.
    """

    field: str
    pattern: str


class TimeOfDay(Expression):
    """The time of day is in [begin, end), in whole seconds after midnight UTC, 0 ≤ begin < end ≤ 86400."""

    field: str
    begin: int
    end: int


class EverySeconds(Expression):
    """The whole second of the day differs from `base` by a multiple of `period`, in either direction.

    `period` > 0 and 0 ≤ base < 86400; steps restart at midnight.
    """

    field: str
    period: int
    base: int


Kind: TypeAlias = Literal["text", "number", "boolean", "bytes", "time"]
"""A type that a value of undeclared metadata has; a text that is an RFC 3339 time is a time, too."""


class Undeclared(Expression):
    """The datum has metadata with this name, which no field declares, and their value matches.

    `readings` are conditions on the value, each for values of one type; None matches any value, also lists and
    mappings, which have no type here. Numbers are compared as numbers: 7 equals 7.0.
    """

    name: str
    readings: tuple[tuple[Kind, Expression], ...] | None

    @property
    def field(self) -> str:
        """The name with a prefix that no declared field can have."""
        return METADATA + self.name


class And(Expression):
    children: tuple[Expression, ...]


class Or(Expression):
    children: tuple[Expression, ...]


class Not(Expression):
    child: Expression


def _children(kind: type[And] | type[Or], expression: Expression) -> tuple[Expression, ...]:
    """Return the operands to join. Long chains of `&` or `|` stay flat, so that readers do not recurse."""
    return expression.children if isinstance(expression, kind) else (expression,)


def nodes(tree: Expression) -> Iterator[tuple[Expression, int]]:
    """Yield every node of a tree with its depth. No recursion, since the tree may be too deep for it."""
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        if isinstance(node, And | Or):
            waiting += [(child, depth + 1) for child in node.children]
        elif isinstance(node, Not):
            waiting.append((node.child, depth + 1))


def undeclared_in(tree: Expression) -> list[str]:
    return [node.name for node, _ in nodes(tree) if isinstance(node, Undeclared)]


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
            if isinstance(expression, And) is not negated:
                found = reduce(and_, parts, ALWAYS)
            else:
                found = reduce(or_, (part for part in parts if not part.is_empty), NOTHING)
            return NEVER if found.is_empty else found
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
    """Return whether a datum matches; `value_of` returns the value of a field in stored form, or None if it is missing.

    Times, also `reftime`, are in microseconds. `metadata.NAME` → the value as a query returns it. A leaf does not match
    a datum without its field, and `Not` matches exactly the data that its child does not match.
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
        from ondisk.json_values import parse_time

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
