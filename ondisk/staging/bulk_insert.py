"""Insert staged rows into the index: what one transaction does with a file that `ondisk.staging.rows` writes.

The file is attached. Temporary tables, which are dropped at the end, contain the intermediate results:

    placed    piece → its segment, and the number to add to its offsets
    own       id of a value in the file → its id in the index
    again     rows that were skipped as duplicates, and will replace others
    surplus   the duplicates that replace nothing
    chosen    the pieces that cannot be copied as a whole
    kept      the data of these pieces that are stored

No Python code runs for single rows, whatever their number, except for those that `kept_of` returns.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from ondisk.errors import StateError
from ondisk.index.precedence import Precedence
from ondisk.index.tables import UNIQUE, column_of
from ondisk.index.transaction import Transaction
from ondisk.segment import Block
from ondisk.staging.rows import Piece
from ondisk.step import Interval

_CACHE = -65_536  # KiB; unsorted rows change pages all over the indices, which a small cache writes again and again
_MANY = 2  # with so many times the rows that there were, it is faster to rebuild all indices
_JOINED = 50  # tables; SQLite joins 64 at most


class Incoming:
    """Staged rows in a transaction.

    Attributes:
        count: how many there are.
        first: the seq of the first one.

    Raises, in every method:
        StateError: the file is damaged.
        sqlite3.Error: for the transaction, which translates it.
    """

    def __init__(self, transaction: Transaction, path: str) -> None:
        self._transaction = transaction
        self._execute = transaction.connection.execute
        self._execute_many = transaction.connection.executemany
        self._columns = transaction.schema
        self._path = path
        self._file = transaction.attach(path)
        self.count: int
        self.count, last = self._execute(f"SELECT count(*), ifnull(max(seq), 0) FROM {self._file}.datum").fetchone()
        if self.count != last:
            raise self._damaged("rows are missing")
        self.first = transaction.take_seqs(self.count).start
        for table in (
            "placed (piece INTEGER PRIMARY KEY, segment INTEGER, shift INTEGER, padding INTEGER)",
            "surplus (seq INTEGER PRIMARY KEY)",
            "chosen (piece INTEGER PRIMARY KEY)",
            "kept (piece INTEGER, seq INTEGER, place INTEGER, size INTEGER, beside BLOB, PRIMARY KEY (piece, seq))",
        ):
            self._execute(f"CREATE TEMP TABLE {table}")
        # Last, because after an error here nobody calls `close`, which frees the memory.
        (self._cache,) = self._execute("PRAGMA cache_size").fetchone()
        self._execute(f"PRAGMA cache_size={_CACHE}")

    def close(self) -> None:
        """Drop the temporary tables, which a commit would keep, and free memory."""
        self._execute(f"PRAGMA cache_size={self._cache}")
        tables = "SELECT name FROM temp.sqlite_schema WHERE type = 'table'"
        for (table,) in self._execute(tables).fetchall():
            self._execute(f"DROP TABLE temp.{table}")

    def pieces(self) -> list[Piece]:
        """Return all pieces, in their order in the segments."""
        return [Piece(*row) for row in self._execute(f"SELECT * FROM {self._file}.piece ORDER BY id")]

    def blocks(self, piece: Piece) -> list[Block]:
        """Return the blocks of a compressed piece, with offsets and positions from its begin."""
        sql = f'SELECT "offset", position, stored FROM {self._file}.block WHERE piece = ? ORDER BY "offset"'
        return [*map(Block._make, self._execute(sql, (piece.id,)))]

    def place(self, placed: Iterable[tuple[int, int, int, int]]) -> None:
        """Say where pieces are to be stored, which may be elsewhere than before.

        Args:
            placed: id of the piece, generation of its segment, offset of its first datum there, and bytes after each of
                its data; -1 if data are files, and offsets their numbers.
        """
        self._execute_many("INSERT OR REPLACE INTO temp.placed VALUES (?, ?, ?, ?)", placed)

    def insert(self) -> int:
        """Insert all rows but duplicates, and return how many were inserted."""
        self._take_values()
        span = "SELECT (SELECT max(seq) FROM datum) - (SELECT min(seq) FROM datum)"  # there are at most as many rows
        (before,) = self._execute(span).fetchone()
        if (before is None or self.count > _MANY * before) and self._insert_at_once():
            return self.count
        return self._insert(self._columns.on_conflict)

    def add_to_sums(self) -> None:
        """Add the rows that were inserted to the sums of their segments, once they have their places."""
        self._transaction.sums.add_rows("SELECT seq FROM main.datum WHERE seq >= ?", (self.first,))

    def note_duplicates(self) -> None:
        """Note the rows that `insert` skipped, for `duplicates`. Call it before `settle`."""
        rows = f"SELECT {self._seq} FROM {self._file}.datum AS d WHERE {self._is_skipped}"
        self._execute(f"INSERT INTO temp.surplus {rows}")

    def duplicates(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield each piece with the place and size of its duplicates that were noted and replaced nothing."""
        sql = (
            f'SELECT d.piece, d."offset", d.size FROM {self._file}.datum AS d'
            f" CROSS JOIN temp.surplus ON surplus.seq = {self._seq} ORDER BY 1, d.seq"
        )
        for piece, rows in groupby(self._execute(sql), key=itemgetter(0)):
            yield piece, [(at, size) for _, at, size in rows]

    def settle(self, precedence: Precedence) -> int:
        """Let skipped rows replace those that they duplicate, and return how many did, as if one after another."""
        mine, equal = self._columns.keys_of("a"), self._equal()
        names = ", ".join(self._columns.of_table["datum"])
        execute = self._execute
        self._select_skipped()
        if precedence.version:
            self._drop_older(precedence, mine, equal)
        execute("DELETE FROM temp.surplus WHERE seq IN (SELECT seq FROM temp.again)")
        (replacing,) = execute("SELECT count(*) FROM temp.again").fetchone()
        last = f"SELECT max(seq) FROM temp.again AS a GROUP BY {', '.join(mine)}"
        execute(f"DELETE FROM temp.again WHERE seq NOT IN ({last})")
        execute("CREATE TEMP TABLE doomed (seq INTEGER PRIMARY KEY)")
        execute(f"INSERT INTO doomed SELECT datum.seq FROM temp.again AS a CROSS JOIN main.datum ON {equal}")
        seen = self._transaction.note_deletions("SELECT seq FROM doomed WHERE seq < ?", (self.first,))
        self._transaction.count_deleted(*seen)
        self._transaction.sums.remove_rows(*seen)
        execute("DELETE FROM main.datum WHERE seq IN (SELECT seq FROM doomed)")
        execute("DROP TABLE doomed")
        execute(f"{self._columns.insert_into} SELECT {names} FROM temp.again")
        return int(replacing)

    def has_duplicates_in(self, segments: Iterable[int]) -> bool:
        """Return whether a row that is not in the index duplicates a datum of some segments, given by their ids."""
        self._select_skipped()
        sql = (
            f"SELECT 1 FROM temp.again AS a CROSS JOIN main.datum ON {self._equal()}"
            " WHERE datum.segment IN (SELECT value FROM json_each(?)) LIMIT 1"
        )
        return self._execute(sql, (json.dumps([*segments]),)).fetchone() is not None

    def _equal(self) -> str:
        """Return the condition that a row of `again` and one of the index have the same unique values."""
        keys = zip(self._columns.keys_of("datum"), self._columns.keys_of("a"), strict=True)
        return " AND ".join(f"{key} = {own}" for key, own in keys)

    def _select_skipped(self) -> None:
        """Copy the rows that are not in the index to `temp.again`."""
        names = ", ".join(self._columns.of_table["datum"])
        self._execute("DROP TABLE IF EXISTS temp.again")
        self._execute(f"CREATE TEMP TABLE again AS SELECT {names} FROM main.datum WHERE false")
        self._execute(f"INSERT INTO temp.again {self._rows(self._seq)} WHERE {self._is_skipped}")

    def first_duplicate(self) -> dict[str, Any] | None:
        """Return the key of the first row that is not in the index; None if all are."""
        names, value = self._columns.unique_names, f"(SELECT value FROM {self._file}.value WHERE id = {{}})"
        is_id = {name for name, kind in self._columns.kinds.items() if kind.interned}
        own = {name: f"d.{column_of(name)}" for name in names}
        columns = ", ".join(value.format(own[name]) if name in is_id else own[name] for name in names)
        sql = f"SELECT {columns} FROM {self._file}.datum AS d WHERE {self._is_skipped} ORDER BY d.seq LIMIT 1"
        row = self._execute(sql).fetchone()
        return None if row is None else dict(zip(names, row, strict=True))

    def kept(self) -> dict[int, tuple[int, int]]:
        """Return piece → how many of its data are in the index, and their bytes."""
        counted = f"SELECT d.piece, count(*), sum(d.size) FROM {self._file}.datum AS d"
        rows = self._execute(f"{counted} WHERE NOT {self._is_skipped} GROUP BY 1")
        return {piece: (count, size) for piece, count, size in rows}

    def move(self) -> None:
        """Set the places of the data in the index: consecutive in each piece, which begins where `place` put it."""
        each = "iif(p.padding < 0, 1, d.size + p.padding)"
        at = f"p.shift + sum({each}) OVER (PARTITION BY d.piece ORDER BY d.seq) - {each}"
        columns = f"{self._seq} AS seq, p.segment AS segment, {at} AS at"
        moved = f"SELECT {columns} {self._from} WHERE NOT {self._is_skipped}"
        sets = 'segment = moved.segment, "offset" = moved.at'
        self._execute(f"UPDATE main.datum SET {sets} FROM ({moved}) AS moved WHERE datum.seq = moved.seq")

    def span_of(self, segment: int) -> Interval:
        """Return the interval of the rows that were inserted into a segment."""
        sql = "SELECT min(reftime), max(reftime) FROM main.datum WHERE seq >= ? AND +segment = ?"
        return Interval.around(self._execute(sql, (self.first, segment)).fetchone())

    def keep(self, pieces: Iterable[int]) -> None:
        """Select the data of some pieces that are in the index, for `kept_of`."""
        rows = [(piece,) for piece in pieces]  # there may be more than a statement can bind
        if not rows:
            return
        self._execute_many("INSERT INTO temp.chosen VALUES (?)", rows)
        self._execute(
            f'INSERT INTO temp.kept SELECT d.piece, d.seq, d."offset", d.size, beside.content'
            f" FROM {self._file}.datum AS d LEFT JOIN {self._file}.beside ON beside.seq = d.seq"
            f" WHERE d.piece IN temp.chosen AND NOT {self._is_skipped}"
        )

    def kept_of(self, piece: Piece) -> list[tuple[int, int, bytes]]:
        """Return place and size in the piece, and the bytes stored next to it, of each datum that is in the index."""
        sql = "SELECT place, size, beside FROM temp.kept WHERE piece = ? ORDER BY seq"
        return self._execute(sql, (piece.id,)).fetchall()

    def _take_values(self) -> None:
        """Give an id to each new value of the file, and note the ids of all its values."""
        execute, values = self._execute, f"{self._file}.value"
        execute("CREATE TEMP TABLE own (local INTEGER PRIMARY KEY, id INTEGER)")
        execute(f"INSERT OR IGNORE INTO main.value (value) SELECT value FROM {values} ORDER BY id")
        execute(
            f"INSERT INTO temp.own SELECT 0, 0 UNION ALL SELECT staged.id, value.id FROM {values} AS staged"
            " CROSS JOIN main.value ON value.value = staged.value"
        )

    def _insert_at_once(self) -> bool:
        """Insert all rows without indices, rebuild these, and return True; with duplicates change nothing.

        Cost: half the time of updating the indices, less for unsorted rows. Sorting takes as much memory as the cache,
            then temporary files.
        """
        execute = self._execute
        sql = "SELECT name, sql FROM main.sqlite_schema WHERE type = 'index' AND tbl_name = 'datum' ORDER BY name <> ?"
        indices = dict(execute(sql, (UNIQUE,)).fetchall())  # the unique one first, since it may fail
        execute("SAVEPOINT at_once")
        try:
            for name in indices:
                execute(f'DROP INDEX main."{name}"')
            self._insert("")
            for statement in indices.values():
                execute(statement)
            is_done = True
        except sqlite3.IntegrityError:
            execute("ROLLBACK TO at_once")
            is_done = False
        execute("RELEASE at_once")
        return is_done

    def _insert(self, conflict: str) -> int:
        """Insert all rows, skip those that the conflict clause applies to, and return how many were inserted."""
        # Without conflicts SQLite gives the others the same seqs, and need not check each.
        seq = self._seq if conflict else f"iif(d.seq = 1, {self._seq}, NULL)"
        rows = f"{self._rows(seq)} WHERE true ORDER BY d.seq"
        try:
            return self._execute(f"{self._columns.insert_into} {rows} {conflict}").rowcount
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:  # an outer join found nothing
                raise self._damaged("a row lacks its piece or a value") from error
            raise

    def _rows(self, seq: str) -> str:
        """Return the SELECT of all rows in the form of `datum`, without a WHERE."""
        fields: list[str] = []
        joins: list[str] = []
        for name, kind in self._columns.kinds.items():
            field = f"d.f_{name}"
            if kind.interned and len(joins) < _JOINED:  # a quarter faster than look-ups
                joins.append(f" LEFT JOIN temp.own AS o_{name} ON o_{name}.local = {field}")
                field = f"o_{name}.id"
            elif kind.interned:
                field = f"(SELECT id FROM temp.own WHERE local = {field})"
            fields.append(f", {field}")
        selected = f'{seq}, d.reftime, p.segment, d."offset" + p.shift, d.size{"".join(fields)}'
        return f"SELECT {selected} {self._from}{''.join(joins)}"

    @property
    def _from(self) -> str:
        # In this order, so that SQLite reads the rows in their order.
        return f"FROM {self._file}.datum AS d LEFT JOIN temp.placed AS p ON p.piece = d.piece"

    @property
    def _is_skipped(self) -> str:
        return f"(NOT EXISTS (SELECT 1 FROM main.datum WHERE seq = {self._seq}))"

    @property
    def _seq(self) -> str:
        """The SQL of the seq that a row gets."""
        return f"d.seq + {self.first - 1}"

    def _damaged(self, problem: str) -> StateError:
        return StateError(f"{self._path} is damaged: {problem}; nothing was stored", hint="Stage the data again.")

    def _drop_older(self, precedence: Precedence, mine: list[str], equal: str) -> None:
        """Remove from `again` the rows that are older than a row before them, or than one in the index."""
        at = f"f_{precedence.version}"
        keys = ", ".join(f"{key} AS k{place}" for place, key in enumerate(mine))
        partition = ", ".join(f"k{place}" for place in range(len(mine)))
        before = f"max(v) OVER (PARTITION BY {partition} ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        every = (
            f"SELECT seq, {at} AS v, {keys} FROM temp.again AS a UNION ALL"
            f" SELECT DISTINCT datum.seq, datum.{at}, {keys} FROM temp.again AS a CROSS JOIN main.datum ON {equal}"
        )
        older = f"SELECT seq, v, {before} AS most FROM ({every})"
        kept = f"SELECT seq FROM ({older}) WHERE {precedence.keeps_in_sql('most', 'v')}"
        self._execute(f"DELETE FROM temp.again WHERE seq IN ({kept})")
