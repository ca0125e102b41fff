"""The names of the columns of the index, and the statements that depend on the declared fields.

`tables.py` defines the columns, with SQLAlchemy, whose import takes longer than a query. So only what creates or
migrates an index imports it. A test compares the two.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType

REVISION = "0006"
"""The Alembic revision of the schema."""
UNIQUE = "datum_unique"
"""The index of the unique fields."""
MISSING = "x''"
"""What the UNIQUE index contains for a missing value."""

# Rows in one INSERT. With 500 fields they have fewer than SQLite's 32,766 values.
_TOGETHER = 50

FORMER = "INSERT OR IGNORE INTO former VALUES (?, 0, 0)"
"""Records the UUID that an index had before; see `former` in `ondisk.index.tables`."""

_TABLES = {
    table: tuple(names.split())
    for table, names in {
        "dataset": "id uuid seq generation config committed_at lost expired",
        "segment": "id name format size begin end mtime checked_at checked length count compressed inode tail checksum"
        " unread deleted kind summed",
        "day_sum": "segment day count size first last",
        "value_count": "segment day field value count",
        "block": "segment offset position stored",
        "value": "id value",
        "deletion": "seq datum forgotten",
        "session": "first id committed_at",
        "done": "source part",
        "former": "uuid seq count",
        "moved": "generation name format size mtime inode tail checksum",
        "source": "uuid replica session offset index_start key host port bytes_read committed_at",
        "difference": "seq kind reason",
        "datum": "seq reftime segment offset size",
    }.items()
}


class Columns:
    """The columns of one dataset's index, and the statements that depend on its declared fields.

    Attributes:
        kinds: field → its declared type; its column of `datum` is `f_NAME`.
        of_table: table → the names of its columns.
        counted: the fields whose values are counted, see `ondisk.index.sums`.
        row: the columns of `datum` that a query selects: reftime, segment, offset, size, the declared fields.
        unique_names: the fields of the UNIQUE index, reftime first where it is listed; empty without one.
        key_names: the same without reftime.
        insert_into, on_conflict: the begin and the end of a statement that inserts into `datum` and skips duplicates.
    """

    def __init__(self, config: DatasetConfig) -> None:
        self.kinds: Mapping[str, FieldType] = config.fields
        self.counted = [name for name in config.index if name != "reftime"]
        self.of_table = {**_TABLES, "datum": (*_TABLES["datum"], *(f"f_{name}" for name in self.kinds))}
        names = self.of_table["datum"]
        self.row = ", ".join(f"datum.{name}" for name in names[1:])
        self.unique_names = sorted(config.unique, key=lambda name: name != "reftime")
        self.key_names = [name for name in self.unique_names if name != "reftime"]
        self._key_places = [names.index(column_of(name)) for name in self.unique_names]
        # OR FAIL: an error ends the transaction anyway, so SQLite need not keep a journal to undo one statement, which
        # would take as long as the insertion.
        self.insert_into = f"INSERT OR FAIL INTO datum ({', '.join(names)})"
        indexed = ", ".join(self.comparable(name, column_of(name)) for name in self.unique_names)
        self.on_conflict = f"ON CONFLICT ({indexed}) DO NOTHING" if indexed else ""
        self.insert = f"{self.insert_into} VALUES ({', '.join('?' * len(names))}) {self.on_conflict}"
        self.find = Find(self)

    def comparable(self, name: str, value: str) -> str:
        """Return the SQL that the UNIQUE index contains for a value of a field. Missing values are equal."""
        # An empty blob is not of a declared type's storage class, so it never equals a value.
        return value if name == "reftime" or self.kinds[name].interned else f"ifnull({value}, {MISSING})"

    def keys_of(self, table: str) -> list[str]:
        """Return the expressions of the UNIQUE index, for `datum` under an alias."""
        return [self.comparable(name, f"{table}.{column_of(name)}") for name in self.unique_names]

    def key_of(self, row: Sequence[Any]) -> list[Any]:
        """Return the values of a row of `datum` that the UNIQUE index contains."""
        return [row[place] for place in self._key_places]

    def equals(self, name: str) -> str:
        """Return the condition that a field has a canonical value, which is bound."""
        if name != "reftime" and self.kinds[name].interned:
            known = "(SELECT id FROM value WHERE value = given)"  # for a new value NULL, which equals nothing
            return f"datum.f_{name} = (SELECT iif(given IS NULL, 0, {known}) FROM (SELECT ? AS given))"
        return self.equals_stored(name)

    def equals_stored(self, name: str) -> str:
        """Return the condition that a field has the value of a row, which is bound."""
        return f"{self.comparable(name, f'datum.{column_of(name)}')} = {self.comparable(name, '?')}"


class Find:
    """The SQL of the statements that find one row of `datum`.

    Attributes:
        at_place: by segment, offset and size.
        at_place_and_reftime: the same, and by the reftime.
        at_place_of_key: the same, and by the canonical values of `key_names`.
        of_key: by the canonical values of `unique_names`; empty without a UNIQUE index.
        duplicate: by the values `key_of`; empty without a UNIQUE index.
    """

    def __init__(self, columns: Columns) -> None:
        select, at = f"SELECT {columns.row} FROM datum", "datum.segment = ? AND datum.offset = ? AND datum.size = ?"
        span = 'JOIN segment ON segment.id = datum.segment AND reftime >= "begin" AND reftime < "end"'
        self.at_place = f"{select} {span} WHERE {at}"
        self.at_place_and_reftime = f"{select} WHERE {at} AND datum.reftime = ?"
        self.at_place_of_key = " AND ".join((self.at_place_and_reftime, *map(columns.equals, columns.key_names)))
        self.of_key = self.duplicate = ""
        if columns.unique_names:
            select = f"SELECT datum.seq, {columns.row} FROM datum WHERE "
            self.of_key = select + " AND ".join(map(columns.equals, columns.unique_names))
            self.duplicate = select + " AND ".join(map(columns.equals_stored, columns.unique_names))


def insert_rows(
    connection: sqlite3.Connection, into: str, columns: Sequence[Sequence[Any]], conflict: str = ""
) -> None:
    """Insert rows, given as columns of one length.

    Args:
        into, conflict: the begin and the end of the statement, around VALUES.

    Cost: three fifths of the time of one statement for each row.
    """
    row = f"({', '.join('?' * len(columns))})"
    rows = zip(*columns, strict=True)  # zip reuses one tuple
    count = len(columns[0])
    for together, some in ((_TOGETHER, islice(rows, count - count % _TOGETHER)), (1, rows)):
        values = chain.from_iterable(some)
        sql = f"{into} VALUES {', '.join([row] * together)} {conflict}"
        connection.executemany(sql, zip(*[values] * (len(columns) * together), strict=True))


def column_of(name: str) -> str:
    """Return the column of `datum` that holds reftime or a declared field."""
    return name if name == "reftime" else f"f_{name}"


def stored_columns(
    metadata: Sequence[Mapping[str, Any]], kinds: Mapping[str, FieldType], ids_of: Callable[[list[Any]], list[int]]
) -> list[list[Any]]:
    """Turn metadata into columns of `datum`, one list for each declared field.

    Args:
        metadata: canonical values.
        ids_of: returns the ids of texts and bytes, and 0 for None.
    """
    places = list(map(id, metadata))
    distinct = dict(zip(places, metadata, strict=True))
    if len(distinct) > len(metadata) // 4:
        return _columns(metadata, kinds, ids_of)
    # Data of one series share a mapping. Convert each mapping once.
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
