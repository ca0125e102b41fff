"""Rows of the index in temporary tables, while a fix reads a segment again and finds out which data are there."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeAlias

from ondisk.index.changes import Removal
from ondisk.index.connection import sqlite_errors
from ondisk.index.snapshot import Segment
from ondisk.index.tables import insert_rows
from ondisk.index.transaction import Transaction
from ondisk.segment import Block

_TOGETHER = 10_000

Place: TypeAlias = tuple[int, int]
"""The offset of a datum in the old file, and in the new file."""


class Held:
    """Copies of the rows of other segments, for data without unique values: each may have one copy elsewhere."""

    def __init__(self, transaction: Transaction, segments: Sequence[Segment]) -> None:
        self._connection = transaction.connection
        self._directory = transaction.directory
        fields = [f"f_{name}" for name in transaction.schema.kinds]
        equal = "".join(f" AND {each} IS ?" for each in fields)
        columns = ", ".join(["seq", "reftime", "segment", "offset", "size", *fields])  # tables may have another order
        self._like = f"SELECT {columns} FROM held WHERE reftime = ? AND size = ?{equal} ORDER BY offset"
        with sqlite_errors(self._directory):
            execute = self._connection.execute
            self._drop()
            execute("CREATE TEMP TABLE held AS SELECT * FROM datum WHERE 0")  # a rollback drops it
            for segment in segments:
                rows = f"SELECT datum.* FROM {transaction.data_of(segment)} WHERE segment.id = ?"
                execute(f"INSERT INTO held {rows}", (segment.id,))
            execute(f"CREATE INDEX temp.held_by_key ON held ({', '.join(['reftime', 'size', *fields])})")
        transaction.after_commit(self._drop)

    def _drop(self) -> None:
        self._connection.execute("DROP TABLE IF EXISTS temp.held")

    def like(self, row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the rows that have the reftime, size and fields of a row of `datum`."""
        with sqlite_errors(self._directory):
            return self._connection.execute(self._like, (row[1], *row[4:])).fetchall()

    def take(self, row: tuple[Any, ...]) -> None:
        """Note that a copy of a row was found."""
        with sqlite_errors(self._directory):
            self._connection.execute("DELETE FROM held WHERE seq = ?", row[:1])


class Aside:
    """The rows of a segment's data in a temporary table, and its blocks in another; the index loses the data.

    `find` notes what a scan finds, `match` then gives it numbers, and `rows` yields it. A rollback of the transaction
    brings the former rows back. One segment at a time is set aside.

    Args:
        may_move: a datum may have another offset than before. If False, a datum at another offset is another datum,
            even if it looks equal, such as an older version.
    """

    def __init__(self, transaction: Transaction, segment: Segment, *, may_move: bool = True) -> None:
        self._transaction = transaction
        self._may_move = may_move
        self._connection = transaction.connection
        self._directory = transaction.directory
        self._key = ["reftime", "size", *(f"f_{name}" for name in transaction.schema.kinds)]
        rows = f"SELECT datum.*, NULL AS found FROM {transaction.data_of(segment)} WHERE segment.id = ?"
        with sqlite_errors(self._directory):
            execute = self._connection.execute
            self._drop()  # those of another segment
            execute(f"CREATE TEMP TABLE aside AS {rows}", (segment.id,))  # a rollback drops it
            execute("CREATE UNIQUE INDEX temp.aside_by_seq ON aside (seq)")
            execute(f"CREATE TEMP TABLE found AS SELECT seq, offset, {', '.join(self._key)} FROM aside WHERE 0")
            execute("CREATE TEMP TABLE aside_block AS SELECT * FROM block WHERE segment = ?", (segment.id,))
            execute("DELETE FROM datum WHERE seq IN (SELECT seq FROM aside)")
        transaction.sums.clear(segment.id)
        transaction.after_commit(self._drop)

    def _drop(self) -> None:
        for table in ("aside", "found", "aside_block"):
            self._connection.execute(f"DROP TABLE IF EXISTS temp.{table}")

    def find(self, offsets: Sequence[int], *key: Sequence[Any]) -> None:
        """Note data that a scan has found.

        Args:
            key: reftimes, sizes and fields.
        """
        with sqlite_errors(self._directory):
            into = f"INSERT INTO found (offset, {', '.join(self._key)})"
            insert_rows(self._connection, into, [offsets, *key])

    def match(self) -> range:
        """Give all data that were found their former numbers, and new ones to those that the index did not know.

        A datum is known by its reftime, size and fields. Of equal data, one that is where the index has it keeps its
        number; the others get the numbers that are left in the order of their offsets, each once.

        Returns:
            The new numbers, in the order in which the data were found.
        """
        same = " AND ".join(f"aside.{each} IS found.{each}" for each in self._key)
        place = f"SELECT aside.seq FROM aside WHERE aside.offset = found.offset AND {same}"
        with sqlite_errors(self._directory):
            execute = self._connection.execute
            execute("CREATE INDEX temp.aside_by_offset ON aside (offset)")
            execute(f"UPDATE found SET seq = ({place})")
            execute("UPDATE aside SET found = offset WHERE seq IN (SELECT seq FROM found)")
            if self._may_move:
                self._match_moved()
            ((count,),) = execute("SELECT count(*) FROM found WHERE seq IS NULL")
            new = self._transaction.take_seqs(count)
            rest = "SELECT rowid AS place, row_number() OVER (ORDER BY rowid) AS nth FROM found WHERE seq IS NULL"
            execute(f"UPDATE found SET seq = {new.start - 1} + nth FROM ({rest}) WHERE found.rowid = place")
        return new

    def _match_moved(self) -> None:
        """Pair the data that are elsewhere now: both sides are numbered among their equals, in the order of offsets."""
        execute, key = self._connection.execute, ", ".join(self._key)
        nth = f"row_number() OVER (PARTITION BY {key} ORDER BY offset) AS nth"
        execute(f"CREATE TEMP TABLE gone AS SELECT seq, {key}, {nth} FROM aside WHERE found IS NULL")
        execute(f"CREATE INDEX temp.gone_by_key ON gone ({key}, nth)")
        come = f"SELECT rowid AS place, offset, {key}, {nth} FROM found WHERE seq IS NULL"
        same = " AND ".join(f"gone.{each} IS come.{each}" for each in (*self._key, "nth"))
        execute(f"CREATE TEMP TABLE moved AS SELECT seq, place, offset FROM ({come}) AS come CROSS JOIN gone ON {same}")
        execute("UPDATE found SET seq = moved.seq FROM moved WHERE found.rowid = place")
        execute("UPDATE aside SET found = moved.offset FROM moved WHERE aside.seq = moved.seq")
        for table in ("gone", "moved"):
            execute(f"DROP TABLE {table}")

    def rows(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield what was found, some at a time: columns of seqs, offsets, reftimes, sizes and fields."""
        with sqlite_errors(self._directory):
            cursor = self._connection.execute(f"SELECT seq, offset, {', '.join(self._key)} FROM found ORDER BY rowid")
            while some := cursor.fetchmany(_TOGETHER):
                yield [*zip(*some, strict=True)]

    def first_of(self, new: range) -> int | None:
        """Return the offset of the first datum with a new number."""
        with sqlite_errors(self._directory):
            ((offset,),) = self._connection.execute("SELECT min(offset) FROM found WHERE seq >= ?", (new.start,))
        return offset if new else None

    def is_same(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        """Return whether two rows of `datum` may be the same datum, the first of which was set aside."""
        if (one[1], *one[4:]) != (other[1], *other[4:]):
            return False
        with sqlite_errors(self._directory):
            return self._connection.execute("SELECT 1 FROM aside WHERE seq = ?", one[:1]).fetchone() is not None

    def move(self, seq: int, offset: int) -> None:
        """Note that a datum was found at another offset, after that which `match` has found."""
        with sqlite_errors(self._directory):
            self._connection.execute("UPDATE aside SET found = ? WHERE seq = ?", (offset, seq))

    @property
    def is_untouched(self) -> bool:
        """Whether none of the data was found."""
        with sqlite_errors(self._directory):
            return self._connection.execute("SELECT 1 FROM aside WHERE found IS NOT NULL LIMIT 1").fetchone() is None

    def forget(self, *, lost: bool = True) -> int:
        """Note the data that were not found as forgotten, and count them as lost. Return how many.

        Args:
            lost: False if they were read and removed on purpose: then note them as deleted.
        """
        transaction, missing = self._transaction, "SELECT seq FROM aside WHERE found IS NULL"
        with sqlite_errors(self._directory):
            ((count,),) = self._connection.execute(f"SELECT count(*) FROM ({missing})").fetchall()
        first = transaction.counters.seq
        if lost:
            transaction.note_lost(missing)
        transaction.note_deletions(missing, ())
        if lost:
            transaction.note_why(first, count, Removal.LOST)
        return int(count)

    def places(self) -> Generator[Place, None, None]:
        """Yield the places of the data that were found, in the order of the old file."""
        with sqlite_errors(self._directory):
            sql = "SELECT offset, found FROM aside WHERE found IS NOT NULL ORDER BY offset"
            yield from self._connection.execute(sql)

    def blocks(self) -> Generator[Block, None, None]:
        """Yield the blocks of the old file, in order."""
        with sqlite_errors(self._directory):
            sql = "SELECT offset, position, stored FROM aside_block ORDER BY offset"
            yield from map(Block._make, self._connection.execute(sql))
