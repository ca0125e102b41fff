"""The check, in each task, that the rows of an overwrite match what it replaces; Delta's `replaceWhere` has it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType, restored
from ondisk.errors import InvalidInput, shown
from ondisk.formats import Batch
from ondisk.matcher import Expression, Values, matches
from ondisk.matcher.tree import And, Compare, Everything

OPTION = "constraintCheck"
_HINT = (
    "Filter the rows, or widen the match."
    f' With .option("{OPTION}", "false") such rows are stored, too, beside what is there.'
)


class Constraint:
    """Checks batches of rows.

    Args:
        match: the tree as the user has written it, for messages.
    """

    def __init__(self, tree: Expression, match: str, config: DatasetConfig) -> None:
        self._match = match
        self._fields = config.fields
        children = tree.children if isinstance(tree, And) else (tree,)
        # The times that match a comparison are an interval: if the first and the last time match, all do.
        self._times = And(tuple(each for each in children if isinstance(each, Compare) and each.field == "reftime"))
        rest = tuple(each for each in children if each not in self._times.children and each != Everything())
        self._rest = And(rest) if rest else None

    def check(self, batch: Batch) -> None:
        """Raise unless all data of a batch match.

        Raises:
            InvalidInput: names the first that does not.

        Cost: one evaluation for each metadata mapping that data share; one for each datum if times of day matter.
        """
        if not batch.reftimes:
            return
        if not all(matches(self._times, {"reftime": time}.get) for time in (min(batch.reftimes), max(batch.reftimes))):
            for reftime, metadata in zip(batch.reftimes, batch.metadata, strict=True):
                if not matches(self._times, {"reftime": reftime}.get):
                    self._refuse(reftime, metadata)
        if self._rest is None:
            return
        known: set[int] = set()
        for reftime, metadata in zip(batch.reftimes, batch.metadata, strict=True):
            if id(metadata) not in known:
                values = Values(reftime, metadata)
                if not matches(self._rest, values):
                    self._refuse(reftime, metadata)
                if not values.reftime_read:
                    known.add(id(metadata))

    def _refuse(self, reftime: int, metadata: Mapping[str, Any]) -> NoReturn:
        kinds = {"reftime": FieldType.TIMESTAMP, **self._fields}
        values = {"reftime": reftime, **metadata}
        row = ", ".join(f"{name} {_text(restored(values[name], kinds[name]))}" for name in kinds if name in values)
        message = f"the row with {row} does not match {shown(self._match)}, which the write overwrites"
        raise InvalidInput(f"{message}; nothing was stored", hint=_HINT)


def _text(value: Any) -> str:
    return shown(value) if isinstance(value, str | bytes) else str(value)
