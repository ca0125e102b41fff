"""The tables of `index.sqlite`, revision 6.

    dataset    one row: the dataset's UUID, its counters, the configuration that the index was built for, how many data
               are lost until somebody acknowledges it, and the number up to which tokens have expired
    segment    one row for each segment; its id is its generation, so a row of `datum` names exactly the bytes it points
               to; `size` is the size of the file, `length` that of its decompressed bytes; `mtime`, `inode`, `tail` and
               `checksum` are the facts of its file, see `ondisk.segments.facts`; `unread`: the bits of
               `ondisk.index.snapshot.Mark`; `begin` and `end`: the interval of its name; in a sequence, that of its
               data;
               `deleted`: bytes in it (files, of a dir segment) whose data were deleted or replaced, or that a fix has
               read and found to be no data of the dataset; NULL: unknown; `kind`: how the format stores data in it, see
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
               source's server, empty and 0 for a path; the bytes read so far; when it was committed; see
               `ondisk.replication.source_rows`
    difference one row for each datum of the source that is not here, or that the source has lost: its `seq`,
               `kind`: 0: it is not here; 1: the only copy is here; and why
    data       a view for people: names instead of ids, times as text

`seq` is the order of all changes. Times are microseconds since 1970, `mtime` nanoseconds. Tables are STRICT; `value`
and `part` have the type ANY, which STRICT tables store unchanged. `datum` has no foreign keys: to delete the row of a
segment would search all data. migrations/versions/ contains the same schema in steps; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import REAL, TEXT, Column, Index, Integer, LargeBinary, MetaData, Table, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import UserDefinedType

from ondisk.config import DatasetConfig
from ondisk.datum import FieldType
from ondisk.index.columns import REVISION, UNIQUE, Columns, column_of

DIALECT = sqlite.dialect()

# The same text that Alembic uses.
_VERSION_TABLE = (
    "CREATE TABLE alembic_version"
    " (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


class Any_(UserDefinedType[Any]):  # noqa: N801
    """SQLite's column type ANY."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "ANY"


class Tables:
    """The tables of one dataset's index."""

    def __init__(self, config: DatasetConfig) -> None:
        self._columns = Columns(config)
        self._indices = [*_indices(self._columns, config)]
        self.metadata = metadata = MetaData()
        _table("dataset", metadata, _key("id"), _column("uuid", TEXT), _column("seq"), _column("generation"),
               _column("config", TEXT), _column("committed_at"), _added("lost"), _added("expired"))  # fmt: skip
        _table("segment", metadata, _key("id"), Column("name", TEXT, nullable=False, unique=True),
               _column("format", TEXT), _column("size"), _column("begin"), _column("end"), _column("mtime"),
               Column("checked_at", Integer), Column("checked", TEXT), _added("length"), _added("count"),
               _added("compressed"), *(Column(name, Integer) for name in ("inode", "tail", "checksum")),
               _added("unread"), Column("deleted", Integer), _added("kind"), Column("summed", Integer))  # fmt: skip
        _table("day_sum", metadata, _key("segment"), _key("day"), _column("count"), _column("size"), _column("first"),
               _column("last"), sqlite_with_rowid=False)  # fmt: skip
        _table("value_count", metadata, _key("segment"), _key("day"), Column("field", TEXT, primary_key=True),
               Column("value", Any_, primary_key=True), _column("count"), sqlite_with_rowid=False)  # fmt: skip
        _table("block", metadata, _key("segment"), _key("offset"), _column("position"), _column("stored"),
               sqlite_with_rowid=False)  # fmt: skip
        _table("value", metadata, _key("id"), Column("value", Any_, nullable=False, unique=True))
        _table("deletion", metadata, _key("seq"), _column("datum"), _added("forgotten"))
        _table("session", metadata, _key("first"), _column("id"), _column("committed_at"))
        _table("done", metadata, Column("source", TEXT, primary_key=True), Column("part", Any_, primary_key=True),
               sqlite_with_rowid=False)  # fmt: skip
        _table("former", metadata, Column("uuid", TEXT, primary_key=True), _column("seq"), _column("count"),
               sqlite_with_rowid=False)  # fmt: skip
        _table("moved", metadata, _key("generation"), _column("name", TEXT), _column("format", TEXT), _column("size"),
               *(Column(name, Integer) for name in ("mtime", "inode", "tail", "checksum")))  # fmt: skip
        _table("source", metadata, Column("uuid", TEXT, primary_key=True), _column("replica", TEXT), _column("session"),
               _column("offset"), _column("index_start"), Column("key", LargeBinary, nullable=False),
               _column("host", TEXT), _column("port"), _column("bytes_read"), _column("committed_at"),
               sqlite_with_rowid=False)  # fmt: skip
        _table("difference", metadata, _key("seq"), _column("kind"), _column("reason", TEXT))
        declared = [field_column(name, kind) for name, kind in config.fields.items()]
        self.datum = _table("datum", metadata, _key("seq"), _column("reftime"), _column("segment"), _column("offset"),
                            _column("size"), *declared, *self._indices)  # fmt: skip

    def create_statements(self) -> Iterator[str]:
        """Yield the statements that create an empty index."""
        for table in self.metadata.sorted_tables:
            yield str(CreateTable(table).compile(dialect=DIALECT))
        yield from self.field_statements()
        yield _VERSION_TABLE
        yield f"INSERT INTO alembic_version VALUES ('{REVISION}')"

    def field_statements(self) -> Iterator[str]:
        """Yield the statements that create the indices and the view, which depend on the declared fields."""
        for index in self._indices:
            yield str(CreateIndex(index).compile(dialect=DIALECT))
        yield self._view()

    def _view(self) -> str:
        columns = [f"{_time_as_text('datum.reftime')} AS reftime"]
        taken = {"seq", "reftime", "segment", "offset", "size"}
        for name, kind in self._columns.kinds.items():
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


def field_column(name: str, kind: FieldType) -> Column[Any]:
    """Return the column of `datum` for a declared field."""
    if kind.interned:
        return Column(f"f_{name}", Integer, nullable=False, server_default=text("0"))
    return Column(f"f_{name}", REAL if kind is FieldType.REAL else Integer)


def _indices(columns: Columns, config: DatasetConfig) -> Iterator[Index]:
    if columns.unique_names:
        indexed = (text(columns.comparable(name, column_of(name))) for name in columns.unique_names)
        yield Index(UNIQUE, *indexed, unique=True)
    if columns.unique_names[:1] != ["reftime"]:
        yield Index("datum_by_reftime", "reftime")
    for name in config.index:
        if name != "reftime":
            yield Index(f"datum_by_{name}", column_of(name), "reftime")


def _table(name: str, metadata: MetaData, *parts: Column[Any] | Index, **options: Any) -> Table:
    return Table(name, metadata, *parts, sqlite_strict=True, **options)


def _key(name: str) -> Column[int]:
    return Column(name, Integer, primary_key=True, autoincrement=False)


def _column(name: str, kind: Any = Integer) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _added(name: str) -> Column[int]:
    """Return a column that a later revision added to existing rows."""
    return Column(name, Integer, nullable=False, server_default=text("0"))


def _time_as_text(column: str) -> str:
    """Return the SQL of microseconds as RFC 3339 text. Before 1970 SQLite's division rounds the wrong way."""
    rest = f"(({column} % 1000000 + 1000000) % 1000000)"
    second = f"strftime('%Y-%m-%dT%H:%M:%S', ({column} - {rest}) / 1000000, 'unixepoch')"
    return f"{second} || iif({rest}, printf('.%06d', {rest}), '') || 'Z'"
