"""A syntax tree as SQL: the condition of a query, and the values that it binds.

Values are always bound; names come from the tables. SQLAlchemy does not write the text: it takes 84 µs for a look-up,
ten times as long as SQLite takes to answer it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

from ondisk.datum import METADATA, NO_METADATA
from ondisk.errors import MatchError, shown
from ondisk.index.connection import Connection
from ondisk.index.tables import MISSING, Columns
from ondisk.matcher import (
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
    Or,
    Scalar,
    StartsWith,
    TimeOfDay,
    Undeclared,
    matches,
    nodes,
    reftime_interval,
    undeclared_in,
)
from ondisk.named_tuple import NamedTuple
from ondisk.step import ALWAYS, DAY

MATCHES = "ondisk_matches"
ROW = "datum.reftime, datum.segment, datum.offset, datum.size"
"""The first arguments of the function."""

Read: TypeAlias = Callable[[tuple[Any, ...]], Mapping[str, Any]]
"""Returns the undeclared metadata of a row: reftime, segment id, offset, size."""


class StoredMetadata:
    """What the function of one connection evaluates.

    Attributes:
        read: set while a snapshot or a transaction uses the connection.
        conditions: the numbers of the conditions that its statements contain.
        error: why the last statement failed; SQLite itself reports only that a function raised an error.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.read: Read | None = None
        self.conditions: dict[Undeclared, int] = {}
        self.error: BaseException | None = None
        self._last: tuple[tuple[Any, ...], Mapping[str, Any]] = (), NO_METADATA
        connection.create_function(MATCHES, 5, self._matches)

    def number(self, condition: Undeclared) -> int:
        return self.conditions.setdefault(condition, len(self.conditions))

    def take_error(self) -> BaseException | None:
        """Return why the last statement failed, once: a later statement fails for a reason of its own."""
        error, self.error = self.error, None
        return error

    def clear(self) -> None:
        """Forget everything at the end of a snapshot or transaction."""
        if self.read is not None:
            self.read = self.error = None
            self.conditions.clear()
            self._last = (), NO_METADATA

    def _matches(self, *arguments: Any) -> bool:
        *row, number = arguments
        try:
            metadata = self._metadata(tuple(row))
            return matches([*self.conditions][number], lambda name: metadata.get(name.removeprefix(METADATA)))
        except BaseException as error:
            self.error = error
            raise

    def _metadata(self, row: tuple[Any, ...]) -> Mapping[str, Any]:
        if row != self._last[0]:
            assert self.read is not None
            self._last = row, self.read(row)
        return self._last[1]


_MAX_NODES = 500  # SQLite refuses expressions deeper than 1000
_MAX_DEPTH = 16  # SQLite's parser has a stack of 100; a level takes up to 5 of it
_MAX_VALUES = 30_000  # SQLite binds at most 32,766 values
_RESOLVED = 64
_SECOND = 1_000_000
# SQLite sorts texts before blobs. The empty blob is the first blob.
_FIRST_BLOB = "x''"
_LIKELY = "likelihood({}, 0.9)"
COMPONENTS = "ondisk_components"
ITEM = "ondisk_item"
# In the newest segments: all counts would take longer than many a query. A value that is not there is rare.
_COUNT_SOME = (
    "SELECT ifnull(sum(value_count.count), 0) FROM (SELECT segment, day FROM day_sum ORDER BY segment DESC, day DESC"
    " LIMIT 8) AS some CROSS JOIN value_count ON value_count.segment = some.segment AND value_count.day = some.day"
    " AND field = ? AND value = ?"
)

_OnValue: TypeAlias = StartsWith | Components | Item | OneOf


class Condition(NamedTuple):
    """The SQL after WHERE, and the values of its question marks, in order."""

    sql: str
    values: Sequence[Scalar]


class _IdIn(Expression):
    """The value of the field has one of these ids in the table `value`."""

    field: str
    ids: tuple[int, ...]


class _Common(Expression):
    """An equality that more data fulfil than another one of the same query: SQLite uses the index of that."""

    equality: Expression


class _Stored(Expression):
    """The condition on undeclared metadata to which the connection gave this number."""

    number: int


def check_size(tree: Expression) -> None:
    """Raise MatchError if a tree has too many parts or values for SQLite, or is nested too deep."""
    parts = values = deepest = 0
    for node, depth in nodes(tree):
        parts += 1
        deepest = max(deepest, depth)
        if isinstance(node, OneOf):
            values += len(node.values)
    if parts > _MAX_NODES:
        hint = "Request many values of one field with .isin(…), or in several queries."
        raise MatchError(f"the condition has {parts} parts, at most {_MAX_NODES} are allowed", hint=hint)
    if deepest > _MAX_DEPTH:
        hint = "Write it with fewer ~ and parentheses inside each other."
        raise MatchError(f"the condition is nested {deepest} deep, at most {_MAX_DEPTH} are allowed", hint=hint)
    if values > _MAX_VALUES:
        raise MatchError(
            f"the condition has {values} values, at most {_MAX_VALUES} are allowed", hint="Use several queries."
        )


def check_fields(tree: Expression, columns: Columns) -> None:
    """Raise MatchError unless the index has all fields that a tree names."""
    for node, _ in nodes(tree):
        if isinstance(node, Undeclared):
            if node.name in columns.kinds:
                hint = f"Use the field: `{node.name}: …`, or dataset.fields.{node.name}."
                raise MatchError(f"{shown(node.field)} is declared", hint=hint)
            continue
        field = getattr(node, "field", "reftime")
        if field != "reftime" and field not in columns.kinds:
            known = ", ".join(sorted({"reftime", *columns.kinds}))
            raise MatchError(f"the index has no field {shown(field)}", hint=f"The fields are {known}.")


def _with_leaves(tree: Expression, change: Callable[[Expression], Expression]) -> Expression:
    match tree:
        case And(children):
            return And(tuple(_with_leaves(child, change) for child in children))
        case Or(children):
            return Or(tuple(_with_leaves(child, change) for child in children))
        case Not(child):
            return Not(_with_leaves(child, change))
    return change(tree)


def condition(tree: Expression, columns: Columns) -> Condition:
    """Return a tree as SQL. The caller must have checked its size."""
    writer = _Writer(columns)
    sql = ""
    if _has_alternatives(tree):
        # SQLite does not derive from OR and NOT that only an interval of reftimes can match.
        interval = reftime_interval(tree)
        if interval.begin > ALWAYS.begin:
            sql += f"datum.reftime >= {writer.bind(interval.begin)} AND "
        if interval.end < ALWAYS.end:
            sql += f"datum.reftime < {writer.bind(interval.end)} AND "
    sql += writer.write(tree)
    return Condition(sql, writer.values)


def _has_alternatives(tree: Expression) -> bool:
    return isinstance(tree, Or | Not) or (isinstance(tree, And) and any(map(_has_alternatives, tree.children)))


def resolve(tree: Expression, columns: Columns, connection: Connection) -> Expression:
    """Replace conditions on texts or bytes that select few values by equality of ids, and number the undeclared ones.

    For equality SQLite uses the index on (field, reftime) and need not sort. Correct only in one snapshot.
    """

    def resolved(leaf: Expression) -> Expression:
        if isinstance(leaf, Undeclared):
            return _Stored(connection.stored.number(leaf))
        writer = _Writer(columns)
        if not isinstance(leaf, Compare | _OnValue) or not writer.is_interned(leaf.field):
            return leaf
        sql = f"SELECT id FROM value WHERE {writer.on_value(leaf)} LIMIT {_RESOLVED + 1}"
        ids = tuple(row[0] for row in connection.execute(sql, writer.values))
        return leaf if len(ids) > _RESOLVED else _IdIn(leaf.field, ids)

    found = _with_leaves(tree, resolved)
    if not isinstance(found, And):
        return found
    equal = {each: of for each in found.children if (of := _equality(each)) and of[0] in columns.counted}
    if len(equal) < 2:
        return found
    counts = {each: connection.execute(_COUNT_SOME, of).fetchone()[0] for each, of in equal.items()}
    least = min(counts.values())
    return And(tuple(_Common(each) if counts.get(each, least) > least else each for each in found.children))


def _equality(tree: Expression) -> tuple[str, Scalar] | None:
    """Return the field and its only value, as they are stored; None if a condition is another one."""
    match tree:
        case _IdIn(field, (id,)):
            return field, id
        case Compare(field, "=", value):
            return field, value
    return None


def check_declared(tree: Expression) -> None:
    """Raise MatchError if a tree names metadata that are not declared."""
    for name in undeclared_in(tree):
        hint = f"Declare {shown(name)} in dataset.toml, and run `ondisk migrate`."
        raise MatchError(f"the index cannot select by {shown(METADATA + name)}, which is not declared", hint=hint)


def without_functions(tree: Expression, columns: Columns, connection: sqlite3.Connection) -> Expression:
    """Replace conditions that need a function of ours by ids, for connections that do not have it.

    Correct for the data of this snapshot, also in a later one: an id never changes its value.

    Raises:
        MatchError: the tree contains metadata that are not declared.
    """
    check_declared(tree)

    def looked_up(leaf: Expression) -> Expression:
        writer = _Writer(columns)
        match leaf:
            case Components(field, parts) if None in parts:
                begin = writer.led_by(parts)
            case Item(field, pattern):
                begin = writer.begins_as(field, pattern)
            case _:
                return leaf
        rows = connection.execute(f"SELECT id, CAST(value AS BLOB) FROM value WHERE {begin}", writer.values)
        return _IdIn(field, tuple(id for id, text in rows if _matches_text(leaf, text.decode())))

    return _with_leaves(tree, looked_up)


def add_functions(connection: Connection) -> None:
    """Add the functions for conditions to a connection: those on texts are called once for each distinct text."""
    connection.stored = StoredMetadata(connection)
    connection.create_function(COMPONENTS, 2, _has_components_like, deterministic=True)
    connection.create_function(ITEM, 3, _is_item_like, deterministic=True)


def _has_components_like(text: str | bytes, pattern: str) -> bool:
    """Match components with a pattern, in which each part is `=` and a text, or `*` for any."""
    parts = tuple(part[1:] if part.startswith("=") else None for part in pattern.split(","))
    return isinstance(text, str) and _matches_text(Components("", parts), text)


def _is_item_like(text: str | bytes, field: str, pattern: str) -> bool:
    return isinstance(text, str) and _matches_text(Item(field, pattern), text)


def _matches_text(leaf: Expression, text: str) -> bool:
    return matches(leaf, lambda _: text)


class _Writer:
    """Writes conditions and collects the values they bind, in the order of their question marks."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.values: list[Scalar] = []

    def bind(self, value: Scalar) -> str:
        self.values.append(value)
        return "?"

    def write(self, tree: Expression) -> str:
        match tree:
            case Everything():
                return "1"
            case And(children) | Or(children):
                if not children:
                    return "1" if isinstance(tree, And) else "0"
                word = " AND " if isinstance(tree, And) else " OR "
                return f"({word.join(map(self.write, children))})"
            case Not(child):
                # A comparison with a missing value is NULL, and NOT NULL is NULL.
                return f"NOT coalesce({self.write(child)}, 0)"
            case _Stored(number):
                # In a subquery, so that SQLite evaluates it after the conditions that read no segment.
                return f"(SELECT {MATCHES}({ROW}, {self.bind(number)}))"
            case IsMissing("reftime"):
                return "0"
            case IsMissing(field):
                return f"{self.column(field)} = 0" if self.is_interned(field) else f"{self.column(field)} IS NULL"
            case _Common(Compare() as equality):
                return self.compared(equality, _LIKELY)
            case _Common(equality):
                return _LIKELY.format(self.write(equality))
            case _IdIn(field, ids) if len(ids) > _RESOLVED:
                return f"{self.column(field)} IN (SELECT value FROM json_each({self.bind(json.dumps(ids))}))"
            case _IdIn(field, ids):
                return f"{self.column(field)} {self.one_of(ids)}"
            case TimeOfDay(field, begin, end):
                second = self.second_of_day(field)
                return f"({second} >= {self.bind(begin)} AND {second} < {self.bind(end)})"
            case EverySeconds(field, period, base):
                return f"({self.second_of_day(field)} - {self.bind(base)}) % {self.bind(period)} = 0"
            case Compare(field, "=", value) if self.is_interned(field):
                return f"{self.column(field)} = (SELECT id FROM value WHERE value = {self.bind(value)})"
            case _ if isinstance(tree, Compare | _OnValue) and self.is_interned(tree.field):
                return f"{self.column(tree.field)} IN (SELECT id FROM value WHERE {self.on_value(tree)})"
            case Compare():
                return self.compared(tree)
            case OneOf(field, values):
                return f"{self.column(field)} {self.one_of(values)}"
        raise TypeError(f"{tree!r} is not a condition on stored fields")

    def column(self, field: str) -> str:
        return "datum.reftime" if field == "reftime" else f"datum.f_{field}"

    def is_interned(self, field: str) -> bool:
        return field in self.columns.kinds and self.columns.kinds[field].interned

    def compared(self, tree: Compare, form: str = "{}") -> str:
        column = self.column(tree.field)
        if tree.operator == "=" and tree.field != "reftime" and tree.field in self.columns.unique_names:
            # The UNIQUE index contains this expression, not the column. IS, because SQLite would put the value of
            # `column = value` into the expression, and then not recognize it.
            equal = form.format(f"{column} IS {self.bind(tree.value)}")
            return f"({equal} AND ifnull({column}, {MISSING}) = {self.bind(tree.value)})"
        return form.format(f"{column} {tree.operator} {self.bind(tree.value)}")

    def one_of(self, values: Sequence[Scalar]) -> str:
        if len(values) == 1:
            return f"= {self.bind(values[0])}"
        return f"IN ({', '.join(map(self.bind, values))})"

    def on_value(self, tree: Compare | _OnValue) -> str:
        """Return a condition on the table `value`."""
        match tree:
            case Compare(_, "=", value):
                return f"value = {self.bind(value)}"
            case Compare(field, operator, value):
                texts = self.columns.kinds[field].is_text
                kind = f" AND value < {_FIRST_BLOB}" if texts else f" AND value >= {_FIRST_BLOB}"
                return f"value {operator} {self.bind(value)}{kind}"
            case OneOf(_, values):
                return f"value {self.one_of(values)}"
            case StartsWith(_, prefix):
                return self.prefixed(prefix)
            case Components(_, parts):
                return self.with_components(parts)
            case Item(field, pattern):
                begin = self.begins_as(field, pattern)
                return f"{begin} AND {ITEM}(value, {self.bind(field)}, {self.bind(pattern)})"

    def prefixed(self, prefix: str) -> str:
        begin = f"value >= {self.bind(prefix)}"
        after = _after(prefix)
        return f"{begin} AND value < {_FIRST_BLOB if after is None else self.bind(after)}"

    def with_components(self, parts: tuple[str | None, ...]) -> str:
        if None not in parts:
            whole = ",".join(part for part in parts if part is not None)
            return f"(value = {self.bind(whole)} OR ({self.prefixed(whole + ',')}))"
        prefixed = self.led_by(parts)
        pattern = ",".join("*" if part is None else f"={part}" for part in parts)
        return f"{prefixed} AND {COMPONENTS}(value, {self.bind(pattern)})"

    def led_by(self, parts: tuple[str | None, ...]) -> str:
        """Return the condition that a text starts with the components before the first `None`."""
        return self.prefixed("".join(f"{part}," for part in takewhile(lambda part: part is not None, parts)))

    def begins_as(self, field: str, pattern: str) -> str:
        """Return the condition that a text begins as the items do that an expression can match."""
        from ondisk.items import pattern as read  # here, as most datasets have no items

        prefixes = map(self.prefixed, read(field, pattern).prefixes)
        return f"({' OR '.join(f'({each})' for each in prefixes)})"

    def second_of_day(self, field: str) -> str:
        # SQLite's % has the sign of the number, and its / rounds towards zero. Both are wrong before 1970.
        return f"((({self.column(field)} % {DAY}) + {DAY}) % {DAY} / {_SECOND})"


def _after(prefix: str) -> str | None:
    """Return the first text after all that start with a prefix, by code points; None if no text is."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1  # surrogates are not text
            return prefix[:at] + chr(following)
    return None
