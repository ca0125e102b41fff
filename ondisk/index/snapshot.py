"""One state of the index: data in order, segments, metadata, counts."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ondisk.datum import INTEGER_MIN, restored
from ondisk.errors import IndexCorrupt
from ondisk.filesystem import components
from ondisk.formats import has_extension, is_dir
from ondisk.index.connection import SQLITE_ERRORS, Connection, damaged, own_error, translated
from ondisk.index.tables import begin_of, formatted
from ondisk.index.where import Condition, condition, resolve
from ondisk.matcher import Expression, undeclared_in
from ondisk.named_tuple import NamedTuple
from ondisk.segment import End, Facts
from ondisk.segments.file_facts import Committed
from ondisk.step import DAY, Step, inner_of, place_of

if TYPE_CHECKING:
    from ondisk.index.index import Index
    from ondisk.matcher.sort import Sort, SortInterval

Row: TypeAlias = tuple[Any, ...]
"""A row of a query: by default reftime, segment id, offset, size, then the declared fields as stored."""

SEGMENT_COLUMNS = (
    "id, name, format, size, length, count, compressed, kind, mtime, inode, tail, checksum, "
    "has_unknown, copies, shared, unproven"
)
"""The columns from which `Segment.of` makes a segment."""

ROWS = 200
"""Rows in a list: with more, the garbage collector visits live rows again and again (15 % of a query)."""

_CACHED = 50_000
LONG = 256  # characters or bytes: a longer value is not kept in memory
_VALUES = "SELECT id, value FROM value WHERE id IN (SELECT value FROM json_each(?))"
_FEW = 2  # blocks that are read together: most data that are not in one are in two
# Returns the declared fields of a row. A query calls it for each row, so it is not written in Python.
_fields_of: Callable[[Row], Row] = itemgetter(slice(4, None))
_TRUNCATED: dict[SortInterval, int | str] = {
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY,
    "month": "%Y-%m",
    "year": "%Y",
}


class Copies(IntEnum):
    """Which data in a segment have no rows, because they are second copies."""

    NONE = 0
    SOME = 1
    """Some are equal to data of other segments."""
    ALL = 2
    """All are also in the segment of the same name in another place."""


class Segment(NamedTuple):
    """A segment in the index. Its id is its generation, so for one id the name and the format never change.

    Attributes:
        has_unknown: the file has data that the index may not know: somebody else's, which a fix must read.
        copies: the second copies in it, which a repack removes if the others are still there.
        unproven: a fix has taken bytes over that nobody knows to be those that were stored.
        shared: it is a segment of a sequence that another program has made, and may append to: ondisk never does.
    """

    id: int
    name: str
    format: str
    end: End
    facts: Facts = Facts()
    has_unknown: bool = False
    copies: Copies = Copies.NONE
    shared: bool = False
    unproven: bool = False

    @classmethod
    @lru_cache
    def of(cls, row: Row) -> Segment:
        """Return the segment of a row of `SEGMENT_COLUMNS`; cached, as each read of one datum needs it.

        Raises:
            ValueError: it has values that ondisk never writes.
        """
        id_, name, format, size, length, count, compressed, kind, *facts, has_unknown, copies, shared, unproven = row
        if not has_extension(format, name.rpartition(".")[2]):
            raise ValueError(f"{name!r} is not the name of a {format!r} segment")
        if min(size, length, count) < 0 or not (compressed or length == size or is_dir(format)):
            raise ValueError(f"{name!r} cannot have {size=}, {length=}, {count=}")
        end, marks = End(size, length, count, bool(compressed), kind), (bool(shared), bool(unproven))
        return cls(id_, name, format, end, Facts(*facts), bool(has_unknown), Copies(copies), *marks)

    def committed(self, mutable: range) -> Committed:
        """Return the committed bytes, to compare a file with.

        Args:
            mutable: the bytes that the format may change in place.
        """
        return Committed(self.end.size, self.facts, mutable)


_SEGMENT_NAMED = f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE name = ?"
_BLOCKS_BEFORE = (
    "SELECT offset, position, stored, (SELECT iif(hides_data, NULL, coalesce((SELECT min(later.offset)"
    " FROM block AS later WHERE later.segment = block.segment AND later.offset > block.offset), length))"
    " FROM segment WHERE id = block.segment)"
    " FROM block WHERE segment = ? AND offset < ? ORDER BY offset DESC"
)


class KnownBlock(NamedTuple):
    """A block of a compressed segment as the index knows it: a `Block`, and where it ends."""

    offset: int  # of its first decompressed byte
    position: int  # of its first byte in the file
    stored: int  # bytes that it occupies in the file
    end: int | None  # offset after its last decompressed byte; None if its segment has damage that hides data


class Snapshot:
    """One state of the index, for a `with` block in one thread.

    Several may be open at once, of several datasets. So `select` and `fetch` translate the errors of SQLite where they
    occur: at the end of the block nobody knows which index an error came from.

    Attributes:
        left_out: the places that queries skip, as bounds of names; see `leave_out`.
        read_metadata: reads the metadata of a row that are not declared; None for that of the index.
    """

    connection: Connection
    read_metadata: Callable[[Row], Mapping[str, Any]] | None = None

    def __init__(self, index: Index) -> None:
        self.columns = index.columns
        self.left_out: list[tuple[str, str]] = []
        self._of_places: dict[int, Segment] = {}
        self.index = index
        self._is_apart = False

    def __enter__(self) -> Self:
        self.connection = self.index.connections.borrow()
        try:
            self.connection.execute("BEGIN")
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    @classmethod
    def inside(cls, index: Index, connection: Connection) -> Snapshot:
        """Return the state that a transaction sees; it ends with the transaction."""
        snapshot = cls(index)
        snapshot.connection = connection
        return snapshot

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if (known := own_error(error, self.connection, self.index.directory)) is not None:
                raise known from error
        finally:
            self.connection.stored.clear()
            if self._is_apart:
                self.connection.close()
            self.index.connections.give_back(self.connection)

    def renew(self) -> None:
        """Begin again, with the newest state. Only before anything is read: else one answer would mix two states."""
        self.connection.execute("COMMIT")
        self.connection.execute("BEGIN")

    def set_apart(self, segment: Segment) -> None:
        """From now on read one segment from a copy of its rows, and release the state of the index.

        A long reader that holds the state blocks checkpoints, and so the freeing of space.

        Cost: the segment's rows, in a temporary file.
        """
        self._is_apart = True
        execute = self.connection.execute
        execute("PRAGMA query_only=0")  # the index itself is open read-only
        self.copy(segment, "temp")  # SQLite looks for names without a schema in the temporary tables first
        execute("COMMIT")

    def attach(self, address: str, schema: str) -> None:
        """Attach another SQLite file, until the end of this snapshot."""
        self._is_apart = True
        self.connection.execute("PRAGMA query_only=0")  # the index itself is open read-only
        self.connection.execute(f"ATTACH ? AS {schema}", (address,))

    def copy(self, segment: Segment, schema: str) -> None:
        """Copy the rows of one segment to tables of the same names in an attached file."""
        execute = self.connection.execute
        execute(f"CREATE TABLE {schema}.segment AS SELECT * FROM main.segment WHERE id = ?", (segment.id,))
        execute(
            f"CREATE TABLE {schema}.datum AS SELECT datum.* FROM main.datum, main.segment"
            ' WHERE segment.id = ? AND reftime >= "begin" AND reftime < "end" AND segment = segment.id',
            (segment.id,),
        )
        execute(f"CREATE TABLE {schema}.block AS SELECT * FROM main.block WHERE segment = ?", (segment.id,))
        execute(f"CREATE INDEX {schema}.block_at ON block (segment, offset)")
        execute(f"CREATE TABLE {schema}.value (id INTEGER PRIMARY KEY, value)")
        for name, kind in self.columns.kinds.items():
            if kind.interned:
                used = f"SELECT DISTINCT f_{name} FROM {schema}.datum"
                execute(f"INSERT OR IGNORE INTO {schema}.value SELECT * FROM main.value WHERE id IN ({used})")

    def select(self, sql: str, values: Sequence[Any] = (), count: int = ROWS) -> Iterator[list[Row]]:
        """Execute a query now, and yield its rows as they are read, up to `count` at a time."""
        try:
            cursor = self.connection.execute(sql, values)
        except SQLITE_ERRORS as error:
            raise self._translated(error) from error
        return self._read(cursor, count)

    def _read(self, cursor: sqlite3.Cursor, count: int) -> Iterator[list[Row]]:
        try:
            while rows := cursor.fetchmany(count):
                yield rows
        except SQLITE_ERRORS as error:
            raise self._translated(error) from error
        finally:
            with contextlib.suppress(sqlite3.ProgrammingError):  # its connection was closed
                cursor.close()

    def fetch(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Execute a query with a small result, and return all of its rows."""
        try:
            return self.connection.execute(sql, values).fetchall()
        except SQLITE_ERRORS as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> BaseException:
        """Return the error of ondisk for one of SQLite, or what a look-up of undeclared metadata has raised in it."""
        return self.connection.stored.take_error() or translated(error, self.index.directory)

    def rows(
        self,
        tree: Expression,
        sort: Sort | None = None,
        limit: int | None = None,
        *,
        select: str | None = None,
        count: int = ROWS,
    ) -> Iterator[list[Row]]:
        """Yield the rows that match, up to `count` at a time, in the order of `sort`, then reftime, then appending.

        Args:
            select: SQL expressions over `datum`, for other columns than those of `Row`.
        """
        where = self.where(tree)
        keys = [*self._order(sort)] if sort else []
        # If ORDER BY named reftime twice, SQLite would not use its index.
        if not sort or all(key.field != "reftime" for key in sort.keys):
            keys.append("datum.reftime")
        order = ", ".join([*keys, "datum.seq"])
        condition = where.sql
        if limit is not None and limit <= ROWS and order.startswith("datum.reftime"):
            # Without a bound on reftime, SQLite reads and sorts all rows to find the first few.
            condition = f"({condition}) AND datum.reftime >= {INTEGER_MIN}"
        sql = f"SELECT {select or self.columns.row} FROM datum WHERE {condition} ORDER BY {order}"
        if limit is not None:
            sql += f" LIMIT {int(limit)}"
        return self.select(sql, where.values, count)

    def row_at(
        self, segment: Segment, offset: int, size: int, described: tuple[int, Mapping[str, Any]] | None = None
    ) -> Row | None:
        """Return the row of the datum at a place; None if no datum is there.

        Args:
            described: its reftime and canonical metadata, if known: they make the search a look-up.
        """
        columns, place = self.columns, (segment.id, offset, size)
        if described is None:
            return self._row(columns.find.at_place, place)
        reftime, metadata = described
        row = self._row(columns.find.at_place_of_key, (*place, reftime, *map(metadata.get, columns.key_names)))
        return row or self._row(columns.find.at_place_and_reftime, (*place, reftime))

    def of_key(self, reftime: int, metadata: Mapping[str, Any]) -> Row | None:
        """Return the row of the datum that has these unique fields, with `seq` as first value; None without one."""
        names = self.columns.unique_names
        return self._row(
            self.columns.find.of_key, tuple(reftime if name == "reftime" else metadata.get(name) for name in names)
        )

    def _row(self, sql: str, values: tuple[Any, ...]) -> Row | None:
        try:
            row: Row | None = self.connection.execute(sql, values).fetchone()
        except SQLITE_ERRORS as error:
            raise translated(error, self.index.directory) from error
        return row

    def segment(self, id: int) -> Segment:
        """Look up a segment by its generation; raise IndexCorrupt if there is none that ondisk made."""
        if (known := self.index.segments.get(id) or self._of_places.get(id)) is not None:
            return known
        row = self._row(f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE id = ?", (id,))
        if row is None:
            raise self.corrupt(f"it has data of a segment {id} that it does not know")
        segment = self.segment_of(row)
        if not any(step.interval(inner_of(segment.name).rpartition(".")[0]) for step in Step):
            raise self.corrupt(f"{segment.name!r} is not the name of a segment")
        components(segment.name)
        if place_of(segment.name):  # people rename its folder
            self._of_places[segment.id] = segment
        else:
            self.index.segments[segment.id] = segment
        return segment

    def fresh(self, segment: Segment) -> Segment:
        """Return a segment with its end and its facts in this state of the index; `segment` may have older ones."""
        row = self._row(f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE id = ?", (segment.id,))
        return segment if row is None else self.segment_of(row)

    def segment_named(self, name: str) -> Segment | None:
        """Look up a segment by its name, with its present end; None if the index does not know it."""
        try:
            row = self._row(_SEGMENT_NAMED, (name,))
        except UnicodeEncodeError:  # a name on disk that is not UTF-8
            return None
        if row is None:
            return None
        self.segment(row[0])  # checks it, once
        return self.segment_of(row)

    def segment_of(self, row: Row) -> Segment:
        """Return the segment of a row of `SEGMENT_COLUMNS`; raise IndexCorrupt if ondisk never writes such a row."""
        try:
            return Segment.of(row)
        except ValueError as error:
            raise self.corrupt(str(error), segment=row[1]) from None

    def blocks(self, segment: int, begin: int, end: int) -> list[KnownBlock]:
        """Return the blocks of a compressed segment that contain decompressed bytes from `begin` to `end`, in order.

        Raises:
            IndexCorrupt: no block begins at `begin` or before it, or blocks overlap.
        """
        nearest = self._row(_BLOCKS_BEFORE, (segment, end))
        if nearest is not None and 0 <= nearest[0] <= begin and nearest[1] >= 0 <= nearest[2]:
            return [KnownBlock(*nearest)]  # most data are in one block
        found: list[KnownBlock] = []
        for row in chain.from_iterable(self.select(_BLOCKS_BEFORE, (segment, end), _FEW)):
            found.append(KnownBlock(*row))
            if row[0] <= begin:
                break
        else:
            raise self.corrupt(f"it has no block of segment {segment} with byte {begin}")
        found.reverse()
        last_end = 0
        for block in found:
            # Damaged bytes that a fix found may be between them.
            if block.stored < 0 or block.position < last_end:
                raise self.corrupt(f"the blocks of segment {segment} near byte {block.position} overlap")
            last_end = block.position + block.stored
        return found

    def segments(self) -> int:
        return int(self.fetch("SELECT count(*) FROM segment")[0][0])

    def metadata(self, key: Row) -> Mapping[str, Any]:
        """Do as `metadata_of_rows` with the stored fields of one row, `row[4:]`."""
        cached = self.index.metadata.get(key)
        return self._restored([key])[0] if cached is None else cached

    def metadata_of_rows(self, rows: Sequence[Row]) -> list[Mapping[str, Any]]:
        """Turn the stored fields of rows into metadata, read-only and shared by rows with equal fields.

        Raises:
            IndexCorrupt: a value is missing.

        Cost: one query for all rows that are not in the cache.
        """
        try:
            return [*map(self.index.metadata.__getitem__, map(_fields_of, rows))]
        except KeyError:
            return self._restored([*map(_fields_of, rows)])

    def _restored(self, keys: Sequence[Row]) -> list[Mapping[str, Any]]:
        """Return the metadata of stored fields, and keep them in the cache; see `metadata_of_rows`."""
        known = self.index.metadata  # of all threads: another one may clear it at any time
        found = {key: metadata for key in keys if (metadata := known.get(key)) is not None}
        unknown = {*keys}.difference(found)
        kinds = [*self.columns.kinds.items()]
        interned = [place for place, (_, kind) in enumerate(kinds) if kind.interned]
        values = self._values({key[place] for key in unknown for place in interned} - {0, None})
        for key in unknown:
            fields_of_row: dict[str, Any] = {}
            for (name, kind), stored in zip(kinds, key, strict=True):
                if kind.interned:
                    if stored:
                        fields_of_row[name] = values[stored]
                elif stored is not None:
                    fields_of_row[name] = restored(stored, kind)
            found[key] = MappingProxyType(fields_of_row)
        if len(known) + len(unknown) > _CACHED:
            known.clear()
        long = {id for id, value in values.items() if len(value) > LONG}
        known.update((key, found[key]) for key in unknown if long.isdisjoint(key))
        return [found[key] for key in keys]

    def canonical(self, key: Row) -> Mapping[str, Any]:
        """Turn the stored fields of a row into canonical values; see `ondisk.formats.metadata`."""
        metadata = self.metadata(key)
        kinds = self.columns.kinds.items()
        return {
            name: metadata[name] if kind.interned else stored
            for (name, kind), stored in zip(kinds, key, strict=True)
            if name in metadata
        }

    def dataset(self) -> dict[str, Any]:
        """Return uuid, seq, generation and committed_at of the dataset, and how many of its data are lost."""
        sql = "SELECT uuid, seq, generation, committed_at, lost FROM dataset"
        names = ("uuid", "seq", "generation", "committed_at", "lost")
        return dict(zip(names, self._row(sql, ()) or (None, 0, 0, None, 0), strict=True))

    def leave_out(self, places: Collection[str]) -> None:
        """From now on skip the data of some places in queries."""
        self.left_out = [(place, f"{place[:-1]}0") for place in places]

    def where(self, tree: Expression) -> Condition:
        """Return a condition as SQL, for this snapshot."""
        if undeclared_in(tree):
            self.connection.stored.read = self.read_metadata or partial(self.index.read_metadata, self)
        try:
            where = condition(resolve(tree, self.columns, self.connection), self.columns)
        except SQLITE_ERRORS as error:
            raise translated(error, self.index.directory) from error
        if not self.left_out:
            return where
        places = " OR ".join(["name > ? AND name < ?"] * len(self.left_out))
        held = f"datum.segment NOT IN (SELECT id FROM segment WHERE {places})"
        values = [*chain.from_iterable(self.left_out)]
        # First skip what is left out: its bytes may be needed for undeclared metadata.
        return Condition(f"{held} AND ({where.sql})", [*values, *where.values])

    def _values(self, ids: Collection[int]) -> dict[int, str | bytes]:
        if not ids:
            return {}
        values: dict[int, Any] = dict(self.fetch(_VALUES, (json.dumps([*ids]),)))
        for id in ids:
            if not isinstance(values.get(id), str | bytes):
                raise self.corrupt(f"the value {id} is missing")
        return values

    def _order(self, sort: Sort) -> Iterator[str]:
        if sort.interval is not None:
            unit = _TRUNCATED[sort.interval]
            yield begin_of("datum.reftime", unit) if isinstance(unit, int) else formatted("datum.reftime", unit)
        for key in sort.keys:
            column = "datum.reftime" if key.field == "reftime" else f"datum.f_{key.field}"
            if key.field != "reftime" and self.columns.kinds[key.field].interned:
                column = f"(SELECT value FROM value WHERE id = {column})"
            yield f"{column} DESC" if key.descending else column

    def corrupt(self, problem: str, **context: Any) -> IndexCorrupt:
        return damaged(self.index.directory, f" is damaged: {problem}", **context)
