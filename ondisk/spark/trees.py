"""A syntax tree as JSON, to hand it to Spark as an option: `{"And": [[{"Compare": ["station", "=", 5]}, …]]}`.

A node is an object with one key, its name; a tuple is a list; values are as in `ondisk.json_shapes`.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from ondisk.errors import MatchError
from ondisk.json_shapes import from_json, to_json
from ondisk.matcher import Expression, tree

_NODES: dict[str, Any] = {
    name: node
    for name, node in vars(tree).items()
    if isinstance(node, type) and issubclass(node, Expression) and node is not Expression
}
_DEPTH = 100


def dumps(expression: Expression) -> str:
    """Write a syntax tree as JSON."""
    return json.dumps(_to_json(expression))


def loads(text: str) -> Expression:
    """Read what `dumps` wrote.

    Raises:
        MatchError: it is no such text.
    """
    try:
        read = _from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        read = None
    if not isinstance(read, Expression):
        raise MatchError(f"the option tree holds no condition: {text:.60}", hint="Use the option match.")
    return read


def _to_json(value: Any) -> Any:
    if isinstance(value, Expression):
        return {type(value).__name__: [_to_json(getattr(value, each.name)) for each in fields(value)]}  # type: ignore[arg-type]
    return list(map(_to_json, value)) if isinstance(value, tuple) else to_json(value, _DEPTH)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if isinstance(value, dict) and (name := next(iter(value), "")) in _NODES:
        return _NODES[name](*map(_from_json, value[name]))
    return from_json(value)
