"""What asking needs to know of the tables: their columns, by name. `tables.py` makes them, with SQLAlchemy.

Kept apart since importing SQLAlchemy takes longer than everything else that a query does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType

REVISION = "0003"
"""The Alembic revision of the schema."""
UNIQUE = "datum_unique"
"""The index of the unique fields."""

_TABLES = {
    "dataset": ("id", "uuid", "seq", "generation", "config", "committed_at"),
    "segment": (
        "id",
        "name",
        "format",
        "size",
        "begin",
        "end",
        "mtime",
        "checked_at",
        "checked",
        "length",
        "count",
        "compressed",
    ),
    "block": ("segment", "offset", "position", "stored"),
    "value": ("id", "value"),
    "deletion": ("seq", "datum"),
    "done": ("source", "part"),
    "datum": ("seq", "reftime", "segment", "offset", "size"),
}


class Columns:
    """The columns of one dataset's index.

    Attributes:
        kinds: field → its declared type; its column of `datum` is `f_NAME`.
        row: what a query selects of `datum`: reftime, segment, offset, size, the declared fields.
        unique_names: the fields of the UNIQUE index, reftime first where it is listed; empty without one.
        at_place: the SQL that finds the row of a segment, offset and size.
        at_place_and_reftime: the same, given the reftime too.
        at_place_of_key: the same, given also canonical values of the UNIQUE index's fields but reftime, `key_names`.
        of_key: the SQL that finds seq and row by canonical values of the UNIQUE index's fields; empty without one.
        of_table: table → the names of its columns.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self.kinds: Mapping[str, FieldType] = config.fields
        declared = [f"f_{name}" for name in self.kinds]
        names = ("reftime", "segment", "offset", "size", *declared)
        self.row = ", ".join(f"datum.{name}" for name in names)
        self.unique_names = sorted(config.unique, key=lambda name: name != "reftime")
        self.key_names = [name for name in self.unique_names if name != "reftime"]
        select, at = f"SELECT {self.row} FROM datum", "datum.segment = ? AND datum.offset = ? AND datum.size = ?"
        span = 'JOIN segment ON segment.id = datum.segment AND reftime >= "begin" AND reftime < "end"'
        self.at_place = f"{select} {span} WHERE {at}"
        self.at_place_and_reftime = f"{select} WHERE {at} AND datum.reftime = ?"
        self.at_place_of_key = self.at_place_and_reftime + "".join(map(self._equals, self.key_names))
        self.of_key = ""
        if self.unique_names:
            reftime = " AND datum.reftime = ?" * (self.unique_names[0] == "reftime")
            same = reftime + "".join(map(self._equals, self.key_names))
            self.of_key = f"SELECT datum.seq, {self.row} FROM datum WHERE {same.removeprefix(' AND ')}"
        self.of_table = {**_TABLES, "datum": (*_TABLES["datum"], *declared)}

    def _equals(self, name: str) -> str:
        if self.kinds[name].interned:
            known = "(SELECT id FROM value WHERE value = given)"  # NULL, which equals nothing, for a new one
            return f" AND datum.f_{name} = (SELECT iif(given IS NULL, 0, {known}) FROM (SELECT ? AS given))"
        return f" AND ifnull(datum.f_{name}, x'') = ifnull(?, x'')"  # by this expression the index knows it


def stored_columns(
    metadata: Sequence[Mapping[str, Any]], kinds: Mapping[str, FieldType], ids_of: Callable[[list[Any]], list[int]]
) -> list[list[Any]]:
    """Turn metadata into the columns of `datum`, one list a declared field.

    Args:
        metadata: canonical values.
        ids_of: gives the ids of texts and bytes, and 0 for None.
    """
    places = list(map(id, metadata))
    distinct = dict(zip(places, metadata, strict=True))
    if len(distinct) > len(metadata) // 4:
        return _columns(metadata, kinds, ids_of)
    # Data of one series share a mapping: each is looked at once.
    few = _columns(list(distinct.values()), kinds, ids_of)
    return [list(map(dict(zip(distinct, each, strict=True)).__getitem__, places)) for each in few]


def _columns(
    metadata: Sequence[Mapping[str, Any]], kinds: Mapping[str, FieldType], ids_of: Callable[[list[Any]], list[int]]
) -> list[list[Any]]:
    columns: list[list[Any]] = []
    for name, kind in kinds.items():
        values = [each.get(name) for each in metadata]
        columns.append(ids_of(values) if kind.interned else values)
    return columns
