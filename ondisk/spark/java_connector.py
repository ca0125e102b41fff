"""What the connector, which is written in Java, hands over to Python: an option with JSON.

    {"where": [TREE, …], "limit": NUMBER,
     "aggregate": {"group": [COLUMN, …], "functions": [["count", null], ["max", COLUMN], …]},
     "state": {PATH: [UUID, …], …}}

The connector creates a data source of Python for each query, so the option holds what Spark has pushed in that query.
`ask` is a question that the schema answers, in the metadata of its first column; see `ondisk.spark.source.schema`.
A TREE has the form of `match_json`, with names of columns in place of those of fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.matcher import And, Everything, Expression, IsMissing, Not, Or, matches, nodes
from ondisk.spark.match_json import loads
from ondisk.spark.pinned_state import Pinned
from ondisk.tables.index_to_arrow import Column, all_columns

OPTION = "connector"
METADATA = "ondisk"
"""The key of the metadata of the first column of a schema, for answers."""

MOST_PARTS = 480  # of a condition, see `ondisk.index.where.check_size`
_DEEPEST = 14
NOTHING = Or(())


@dataclass(frozen=True, slots=True)
class Pushed:
    """What the connector has handed over; nothing without it.

    Attributes:
        ask: a question, in place of a query.
        where: conditions; all must be true.
        limit: the most rows that the query needs.
        aggregate: what to return instead of rows; None for rows.
        state: the states at the load, by path; None for the present.
        is_present: the connector is there.
    """

    ask: str | None = None
    where: tuple[Expression, ...] = ()
    limit: int | None = None
    aggregate: Mapping[str, Any] | None = None
    state: Mapping[str, Pinned] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    is_present: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Pushed:
        """Return what the options of a data source contain."""
        text = options.get(OPTION)
        if text is None:
            return cls()
        given = json.loads(text)
        state = given.get("state")
        return cls(
            given.get("ask"),
            tuple(loads(json.dumps(each)) for each in given.get("where", ())),
            given.get("limit"),
            given.get("aggregate"),
            None if state is None else {path: Pinned(*values) for path, values in state.items()},
            given,
            True,
        )

    def tree(
        self, match: Expression, config: DatasetConfig, several: DatasetConfig | None = None, path: str | None = None
    ) -> Expression:
        """Return a match expression and the pushed conditions as one tree, for a dataset.

        Args:
            several: the configuration of all datasets together, which have the column `dataset`; None of one.
            path: what that column shows.
        """
        if not self.where:
            return match
        dataset = None if several is None else path
        known = all_columns(several or config, several=several is not None)
        own = tuple(_of(each, config, dataset, known) for each in self.where)
        children = match.children if isinstance(match, And) else (match,)
        return _all((*children, *own))


def room_beside(match: Expression) -> int:
    """Return how many parts the pushed conditions may have beside a match expression: SQLite has limits."""
    found = [*nodes(match)]
    return max(0, MOST_PARTS - len(found)) if max(depth for _, depth in found) < _DEEPEST else 0


def _all(trees: Iterable[Expression]) -> Expression:
    children = tuple(each for each in trees if each != Everything())
    return children[0] if len(children) == 1 else And(children) if children else Everything()


def _of(tree: Expression, config: DatasetConfig, dataset: str | None, known: Mapping[str, Column]) -> Expression:
    """Return a condition on columns as one on the fields of a dataset; a field that it lacks is NULL."""

    def changed(tree: Expression) -> Expression:
        match tree:
            case Everything() | IsMissing("reftime"):
                return tree if tree == Everything() else NOTHING
            case And(children):
                return _all(map(changed, children))
            case Or(children):
                return Or(tuple(map(changed, children)))
            case Not(child):
                found = changed(child)
                return Everything() if found == NOTHING else NOTHING if found == Everything() else Not(found)
        label: str = tree.field  # type: ignore[attr-defined]  # each leaf has one
        column = known.get(label.lower())
        same = (None,) if column is None else column.of(config, dataset).same
        if same is not None:
            return Everything() if matches(tree, lambda _: same[0]) else NOTHING
        assert column is not None
        assert column.field is not None, "the connector pushes no condition on the location"
        return type(tree)(column.field[0], *(getattr(tree, name) for name in tree.__match_args__[1:]))

    return changed(tree)
