"""Match expressions: one syntax tree, which text or Python operators build, and three readers of it.

text ── parse ──┐                ┌── SQL (ondisk/index)
                ├── Expression ──┼── reftime_interval: which segments
Fields ─ == < ──┘                └── matches: one datum, in Python
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ondisk.matcher.tree import (
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Expression,
    IsMissing,
    Item,
    Not,
    OneOf,
    Operator,
    Or,
    Scalar,
    StartsWith,
    TimeOfDay,
    Undeclared,
    Values,
    exact_interval,
    matches,
    reftime_interval,
    undeclared_in,
)

if TYPE_CHECKING:
    from ondisk.matcher.fields import Field, Fields
    from ondisk.matcher.parser import parse
    from ondisk.matcher.sort import Sort, SortInterval, SortKey, parse_sort

__all__ = [
    "And",
    "Compare",
    "Components",
    "EverySeconds",
    "Everything",
    "Expression",
    "Field",
    "Fields",
    "IsMissing",
    "Item",
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
