"""A syntax tree as JSON, which is an option of the data source: `{"And": [[{"Compare": ["station", "=", 5]}, …]]}`.

A node becomes an object with one key, its name; a tuple becomes a list; values have the shapes of `ondisk.json_values`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

from ondisk import matcher
from ondisk.errors import MatchError
from ondisk.json_values import from_json, to_json
from ondisk.matcher import Expression

_NODES: dict[str, Any] = {
    name: node
    for name, node in vars(matcher).items()
    if isinstance(node, type) and issubclass(node, Expression) and node is not Expression
}
_DEPTH = 100


def _all(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(test, value))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str | bytes)


# Users can write anything as an option, and an operator becomes SQL unchanged: each node is checked.
_HOLDS: dict[Any, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int,
    "Operator": get_args(matcher.Operator).__contains__,
    "Scalar": _is_scalar,
    "tuple[Scalar, ...]": _all(_is_scalar),
    "tuple[str | None, ...]": _all(lambda value: value is None or isinstance(value, str)),
    "Expression": lambda value: isinstance(value, Expression),
    "tuple[Expression, ...]": _all(lambda value: isinstance(value, Expression)),
}


def dumps(expression: Expression) -> str:
    """Return a syntax tree as JSON."""
    return json.dumps(_to_json(expression))


def loads(text: str) -> Expression:
    """Return the syntax tree that `dumps` wrote.

    Raises:
        MatchError: the text has another form.
    """
    try:
        read = _from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        read = None
    if not isinstance(read, Expression):
        raise MatchError(f"the option tree contains no condition: {text:.60}", hint="Use the option match.")
    return read


def _to_json(value: Any) -> Any:
    if isinstance(value, Expression):
        return {type(value).__name__: [_to_json(getattr(value, name)) for name in value.__match_args__]}
    return list(map(_to_json, value)) if isinstance(value, tuple) else to_json(value, _DEPTH)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if isinstance(value, dict) and (name := next(iter(value), "")) in _NODES:
        node = _NODES[name](*map(_from_json, value[name]))
        if not all(_HOLDS[type_](getattr(node, name)) for name, type_ in node.__annotations__.items()):
            raise ValueError(f"wrong value in a {name}")
        return node
    return from_json(value)
