"""Conditions on metadata that no field declares: they are only in segments, so SQLite calls a function for each row.

The function reads the datum's bytes and evaluates the condition in Python. SQLite calls it last, only for rows that
match everything else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ondisk.datum import METADATA, NO_METADATA
from ondisk.matcher import Undeclared, matches

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
        """Return the number by which a statement names a condition."""
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
