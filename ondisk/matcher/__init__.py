"""Match expressions: one syntax tree, which text or Python operators build, and three readers of it.

text ── parse ──┐                ┌── SQL (ondisk/index)
                ├── Expression ──┼── reftime_interval: which segments
Fields ─ == < ──┘                └── matches: one datum, in Python
"""

from ondisk.matcher.evaluate import Values, matches
from ondisk.matcher.fields import Field, Fields
from ondisk.matcher.interval import exact_interval, reftime_interval
from ondisk.matcher.parser import parse
from ondisk.matcher.sort import Sort, SortInterval, SortKey, parse_sort
from ondisk.matcher.tree import (
    METADATA,
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Expression,
    IsMissing,
    Not,
    OneOf,
    Operator,
    Or,
    Scalar,
    StartsWith,
    TimeOfDay,
    Undeclared,
    undeclared_in,
)

__all__ = [
    "METADATA",
    "And",
    "Compare",
    "Components",
    "EverySeconds",
    "Everything",
    "Expression",
    "Field",
    "Fields",
    "IsMissing",
    "Not",
    "OneOf",
    "Operator",
    "Or",
    "Scalar",
    "Sort",
    "SortInterval",
    "SortKey",
    "StartsWith",
    "TimeOfDay",
    "Undeclared",
    "Values",
    "exact_interval",
    "matches",
    "parse",
    "parse_sort",
    "reftime_interval",
    "undeclared_in",
]
