"""Summaries of the data that match."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ondisk.datum import METADATA, Value
from ondisk.errors import InvalidInput, MatchError, shown
from ondisk.index.field_values import FieldSummary, frequent
from ondisk.matcher.fields import Fields


class Summary(NamedTuple):
    """Counts of the data of a dataset, or of those that match.

    Attributes:
        count: number of data.
        size: bytes of data, without padding.
        begin: first reftime; None without data.
        end: last reftime; None without data.
        fields: field → its values.
        last_change: the number of the last change of the index, for a summary of everything in it; else None.
    """

    count: int  # type: ignore[assignment]  # not the method of tuples
    size: int
    begin: datetime | None
    end: datetime | None
    fields: dict[str, FieldSummary]
    last_change: int | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether the other counts the same; when the index last changed does not count."""
        return isinstance(other, Summary) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other


def counted_fields(chosen: Sequence[str] | None, known: Fields) -> list[str]:
    """Return the fields to summarise: the chosen ones, each once, or all declared; raise MatchError if unknown."""
    if chosen is None:
        return [name for name in known if name != "reftime"]
    if isinstance(chosen, str):
        hint = f"Write {[name.strip() for name in chosen.split(',')]}."
        raise InvalidInput(f"fields is a list of names, not {shown(chosen)}", hint=hint)
    return [*dict.fromkeys(declared(name, known) for name in chosen)]


def declared(name: str, known: Fields) -> str:
    """Return the name of a declared field; raise MatchError if it is unknown, or only metadata."""
    found = known[name].name
    if found.startswith(METADATA):
        hint = f"Declare {shown(found.removeprefix(METADATA))} in dataset.toml and run `ondisk migrate`."
        raise MatchError(f"{shown(found)} is not declared, and a summary counts declared fields only", hint=hint)
    return found


class FieldCounts:
    def __init__(self) -> None:
        self.values: dict[Value, int] = {}
        self.parts: list[FieldSummary] = []

    def add(self, part: FieldSummary) -> None:
        for value, count in part.values:
            self.values[value] = self.values.get(value, 0) + count
        self.parts.append(part._replace(values=[]))

    def summary(self, limit: int | None) -> FieldSummary:
        """Return the values of all, but at most so many of the most frequent ones."""
        lowest: list[Any] = [each.min for each in self.parts if each.min is not None]
        highest: list[Any] = [each.max for each in self.parts if each.max is not None]
        return FieldSummary(
            frequent(self.values.items(), limit),
            max(len(self.values), *(each.distinct for each in self.parts), 0),
            sum(each.missing for each in self.parts),
            min(lowest, default=None),
            max(highest, default=None),
        )
