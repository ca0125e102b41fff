"""The syntax tree of match expressions: what to match, not how.

    Expression = Everything | Compare | OneOf | IsMissing | StartsWith | Components
               | Item | TimeOfDay | EverySeconds | Undeclared
               | And(Expression…) | Or(Expression…) | Not(Expression)

The parser and the Python operators of `dataset.fields` build it; SQL, the interval of reftimes and the Python evaluator
read it. A leaf does not match a datum without its field, and `Not` matches exactly the data that its child does not
match. Times are integer microseconds since 1970, UTC; the field `reftime` always exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, dataclass_transform

from ondisk.datum import METADATA

Scalar: TypeAlias = int | float | str | bool | bytes
Operator: TypeAlias = Literal["=", "<", "<=", ">", ">="]


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
    """The field's value equals one of `values`."""

    field: str
    values: tuple[Scalar, ...]


class IsMissing(Expression):
    """The datum does not have the field."""

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
    """Every child matches."""

    children: tuple[Expression, ...]


class Or(Expression):
    """At least one child matches."""

    children: tuple[Expression, ...]


class Not(Expression):
    """The child does not match."""

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
    """Return the names of the undeclared metadata in a tree."""
    return [node.name for node, _ in nodes(tree) if isinstance(node, Undeclared)]
