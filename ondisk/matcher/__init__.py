"""Match expressions: one syntax tree, which text or Python operators build, and three readers of it.

text ── parse ──┐                ┌── SQL (ondisk/index)
                ├── Expression ──┼── reftime_interval: which segments
Fields ─ == < ──┘                └── matches: one datum, in Python
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ondisk.matcher.tree import And as And
from ondisk.matcher.tree import Compare as Compare
from ondisk.matcher.tree import Components as Components
from ondisk.matcher.tree import EverySeconds as EverySeconds
from ondisk.matcher.tree import Everything as Everything
from ondisk.matcher.tree import Expression as Expression
from ondisk.matcher.tree import IsMissing as IsMissing
from ondisk.matcher.tree import Item as Item
from ondisk.matcher.tree import Not as Not
from ondisk.matcher.tree import OneOf as OneOf
from ondisk.matcher.tree import Operator as Operator
from ondisk.matcher.tree import Or as Or
from ondisk.matcher.tree import Scalar as Scalar
from ondisk.matcher.tree import StartsWith as StartsWith
from ondisk.matcher.tree import TimeOfDay as TimeOfDay
from ondisk.matcher.tree import Undeclared as Undeclared
from ondisk.matcher.tree import Values as Values
from ondisk.matcher.tree import exact_interval as exact_interval
from ondisk.matcher.tree import matches as matches
from ondisk.matcher.tree import reftime_interval as reftime_interval
from ondisk.matcher.tree import undeclared_in as undeclared_in

if TYPE_CHECKING:
    from ondisk.matcher.fields import Field as Field
    from ondisk.matcher.fields import Fields as Fields
    from ondisk.matcher.parser import parse as parse
    from ondisk.matcher.sort import Sort as Sort
    from ondisk.matcher.sort import SortInterval as SortInterval
    from ondisk.matcher.sort import SortKey as SortKey
    from ondisk.matcher.sort import parse_sort as parse_sort

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
