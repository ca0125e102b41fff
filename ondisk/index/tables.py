"""The tables of `index.sqlite`, revision 7.

    dataset    one row: the dataset's UUID, its counters, the configuration that the index was built for, how many data
               are lost until somebody acknowledges it, and the number up to which tokens have expired
    segment    one row for each segment; its id is its generation, so a row of `datum` names exactly the bytes it points
               to; `size` is the size of the file, `length` that of its decompressed bytes; `mtime`, `inode`, `tail` and
               `checksum` are the facts of its file, see `ondisk.segments.file_facts`; `begin` and `end`: the interval
               of its name; in a sequence, that of its data; `checked_at`: when its data were last read; `damage`: what
               was wrong with them, `hides_data`: whether its file may contain data that the index has lost;
               `has_unknown`, `copies`, `shared`, `unproven`: see `ondisk.index.snapshot.Segment`; `deleted`: bytes in
               it (files, of a dir segment) whose data were deleted or replaced, or that a fix has read and found to be
               no data of the dataset; NULL: unknown; `kind`: how the format stores data in it, see
               `ondisk.segment.End`; `summed`: the number of data in its sums; NULL: it has none
    day_sum    one row for each segment and UTC day: number and bytes of its data, their first and last reftime; see
               `ondisk.index.sums`
    value_count
               one row for each value that data of a segment and day have in a field of `index`, with their number
    block      one row for each block of a compressed segment: the offset of its first decompressed byte, its position
               and its size in the file
    datum      one row for each datum: place, size, reftime, and a column `f_NAME` for each declared field
    value      texts and bytes, each once; `datum` contains their ids, 0 for a missing field
    deletion   one row for each deleted or replaced datum; its `seq` comes from the same counter as that of data;
               `forgotten`: why, see `ondisk.index.changes.Removal`. The datum 0 stands for lost data whose numbers
               nobody knows
    session    one row for each run of changes of one writer: the first number in it, the writer's session, and when
               it was committed; see `ondisk.index.changes`
    done       one row for each part of a source that was stored, see `ondisk.index.import_log`
    former     one row for each UUID that this index had before it was lost, rebuilt or exchanged; `count`: how many
               changes after the number `seq` were not found again since an older index was put back
    moved      one row for each generation that was moved to another folder, and whose file may still have its name:
               its name, format and facts; see `ondisk.segments.generations`
    source     the dataset that this one follows, by the UUID of that dataset's index; the UUID that this index
               had when the row was written; session, offset, index start and key of the token; host and port of the
               source's server, empty and 0 for a path; the bytes read so far; when it was committed
    difference one row for each datum of the source that is not here, or that the source has lost: its `seq`,
               `kind`: 0: it is not here; 1: the only copy is here; and why
    data       a view for people: names instead of ids, times as text

`seq` is the order of all changes. Times are microseconds since 1970, `mtime` nanoseconds. Tables are STRICT; `value`
and `part` have the type ANY, which STRICT tables store unchanged. `datum` has no foreign keys: to delete the row of a
segment would search all data. migrations/versions/ contains the same schema in steps; a test compares the two. It is
written as SQL here: to import SQLAlchemy takes longer than a query.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType

REVISION = "0007"
"""The Alembic revision of the schema."""
UNIQUE = "datum_unique"
"""The index of the unique fields."""
MISSING = "x''"
"""What the UNIQUE index contains for a missing value."""

# Rows in one INSERT. With 500 fields they have fewer than SQLite's 32,766 values.
_TOGETHER = 50

TOUCHED = "SELECT seq > 0 OR EXISTS (SELECT 1 FROM segment) FROM dataset"
"""Whether anything was ever stored; `seq` does not count what a fix finds in a dataset that follows another."""

FORMER = "INSERT OR IGNORE INTO former VALUES (?, 0, 0)"
"""Records the UUID that an index had before."""

_ADDED = "INTEGER NOT NULL DEFAULT 0"
"""A column that a later revision added to existing rows."""

_FACTS = "inode INTEGER, tail INTEGER, checksum INTEGER"
_TABLES = {
    "dataset": "id INTEGER NOT NULL PRIMARY KEY, uuid TEXT NOT NULL, seq INTEGER NOT NULL, generation INTEGER NOT NULL,"
    f" config TEXT NOT NULL, committed_at INTEGER NOT NULL, lost {_ADDED}, expired {_ADDED}",
    "segment": "id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE, format TEXT NOT NULL,"
    ' size INTEGER NOT NULL, "begin" INTEGER NOT NULL, "end" INTEGER NOT NULL, mtime INTEGER NOT NULL,'
    f" checked_at INTEGER, damage TEXT, length {_ADDED}, count {_ADDED}, compressed {_ADDED}, {_FACTS},"
    f" deleted INTEGER, kind {_ADDED}, summed INTEGER, has_unknown {_ADDED}, copies {_ADDED}, shared {_ADDED},"
    f" unproven {_ADDED}, hides_data {_ADDED}",
    "day_sum": "segment INTEGER NOT NULL, day INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,"
    " first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (segment, day)",
    "value_count": "segment INTEGER NOT NULL, day INTEGER NOT NULL, field TEXT NOT NULL, value ANY NOT NULL,"
    " count INTEGER NOT NULL, PRIMARY KEY (segment, day, field, value)",
    "block": "segment INTEGER NOT NULL, offset INTEGER NOT NULL, position INTEGER NOT NULL, stored INTEGER NOT NULL,"
    " PRIMARY KEY (segment, offset)",
    "value": "id INTEGER NOT NULL PRIMARY KEY, value ANY NOT NULL UNIQUE",
    "deletion": f"seq INTEGER NOT NULL PRIMARY KEY, datum INTEGER NOT NULL, forgotten {_ADDED}",
    "session": "first INTEGER NOT NULL PRIMARY KEY, id INTEGER NOT NULL, committed_at INTEGER NOT NULL",
    "done": "source TEXT NOT NULL, part ANY NOT NULL, PRIMARY KEY (source, part)",
    "former": "uuid TEXT NOT NULL PRIMARY KEY, seq INTEGER NOT NULL, count INTEGER NOT NULL",
    "moved": "generation INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, format TEXT NOT NULL,"
    f" size INTEGER NOT NULL, mtime INTEGER, {_FACTS}",
    "source": "uuid TEXT NOT NULL PRIMARY KEY, replica TEXT NOT NULL, session INTEGER NOT NULL,"
    " offset INTEGER NOT NULL, index_start INTEGER NOT NULL, key BLOB NOT NULL, host TEXT NOT NULL,"
    " port INTEGER NOT NULL, bytes_read INTEGER NOT NULL, committed_at INTEGER NOT NULL",
    "difference": "seq INTEGER NOT NULL PRIMARY KEY, kind INTEGER NOT NULL, reason TEXT NOT NULL",
    "datum": "seq INTEGER NOT NULL PRIMARY KEY, reftime INTEGER NOT NULL, segment INTEGER NOT NULL,"
    " offset INTEGER NOT NULL, size INTEGER NOT NULL",
}
_WITHOUT_ROWID = ("day_sum", "value_count", "block", "done", "former", "source")
_NAMES = re.compile(r'(?:^|, )"?([a-z_]+)"? (?:INTEGER|TEXT|ANY|BLOB)')

# The same text that Alembic uses.
_VERSION_TABLE = (
    "CREATE TABLE alembic_version"
    " (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


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
        self.of_table = {table: _NAMES.findall(sql) for table, sql in _TABLES.items()}
        self.of_table["datum"] += (f"f_{name}" for name in self.kinds)
        names = self.of_table["datum"]
        self.row = ", ".join(f"datum.{name}" for name in names[1:])
        self.unique_names = sorted(config.unique, key=lambda name: name != "reftime")
        self.key_names = [name for name in self.unique_names if name != "reftime"]
        self._key_places = [names.index(column_of(name)) for name in self.unique_names]
        # OR FAIL: an error ends the transaction anyway, so SQLite need not keep a journal to undo one statement, which
        # would take as long as the insertion.
        self.insert_into = f"INSERT OR FAIL INTO datum ({', '.join(names)})"
        self._indexed = ", ".join(self.comparable(name, column_of(name)) for name in self.unique_names)
        self.on_conflict = f"ON CONFLICT ({self._indexed}) DO NOTHING" if self._indexed else ""
        self.insert = f"{self.insert_into} VALUES ({', '.join('?' * len(names))}) {self.on_conflict}"
        self.find = Find(self)

    def create_statements(self) -> Iterator[str]:
        """Yield the statements that create an empty index."""
        yield from (self.create(table) for table in _TABLES)
        yield from self.field_statements()
        yield _VERSION_TABLE
        yield f"INSERT INTO alembic_version VALUES ('{REVISION}')"

    def create(self, table: str) -> str:
        """Return the statement that creates a table."""
        declared = (f", {self.declared(name)}" for name in self.kinds) if table == "datum" else ()
        options = "WITHOUT ROWID, STRICT" if table in _WITHOUT_ROWID else "STRICT"
        return f"CREATE TABLE {table} ({_TABLES[table]}{''.join(declared)}) {options}"

    def declared(self, name: str) -> str:
        """Return the definition of the column of a declared field."""
        kind = self.kinds[name]
        return f"f_{name} {_ADDED if kind.interned else 'REAL' if kind is FieldType.REAL else 'INTEGER'}"

    def field_statements(self) -> Iterator[str]:
        """Yield the statements that create the indices and the view, which depend on the declared fields."""
        if self.unique_names:
            yield f"CREATE UNIQUE INDEX {UNIQUE} ON datum ({self._indexed})"
        if self.unique_names[:1] != ["reftime"]:
            yield "CREATE INDEX datum_by_reftime ON datum (reftime)"
        for name in self.counted:
            yield f"CREATE INDEX datum_by_{name} ON datum ({column_of(name)}, reftime)"
        yield self._view()

    def _view(self) -> str:
        columns = [f"{_time_as_text('datum.reftime')} AS reftime"]
        taken = {"seq", "reftime", "segment", "offset", "size"}
        for name, kind in self.kinds.items():
            label = f"f_{name}" if name in taken else name
            column = f"datum.f_{name}"
            if kind.interned:
                column = f"(SELECT value FROM value WHERE id = {column})"  # SQLite joins at most 64 tables
            elif kind is FieldType.TIMESTAMP:
                column = _time_as_text(column)
            columns.append(f'{column} AS "{label}"')
        columns += ["segment.name AS segment", "datum.offset", "datum.size", "datum.seq"]
        joined = "datum JOIN segment ON segment.id = datum.segment"
        return f"CREATE VIEW data AS SELECT {', '.join(columns)} FROM {joined}"

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


def _time_as_text(column: str) -> str:
    """Return the SQL of microseconds as RFC 3339 text. Before 1970 SQLite's division rounds the wrong way."""
    rest = f"(({column} % 1000000 + 1000000) % 1000000)"
    second = f"strftime('%Y-%m-%dT%H:%M:%S', ({column} - {rest}) / 1000000, 'unixepoch')"
    return f"{second} || iif({rest}, printf('.%06d', {rest}), '') || 'Z'"


def begin_of(column: str, unit: int) -> str:
    """Return the SQL of the begin of the unit that contains a time, both in microseconds; SQLite's % has its sign."""
    return f"{column} - (({column} % {unit}) + {unit}) % {unit}"


def formatted(column: str, form: str) -> str:
    """Return the SQL of the text of a time in microseconds, as `strftime` writes it."""
    return f"strftime('{form}', ({begin_of(column, 1_000_000)}) / 1000000, 'unixepoch')"
