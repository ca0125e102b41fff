"""The rows of one segment, set aside while a fix reads its file again and finds out which data are still there."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

from ondisk.index.connection import sqlite_errors
from ondisk.index.snapshot import Segment
from ondisk.index.transaction import Transaction
from ondisk.segment import Block

Place: TypeAlias = tuple[int, int]
"""The offset of a datum in the old file, and in the new file."""


class Aside:
    """The rows of a segment's data in a temporary table, and its blocks in another, for a `with` block.

    Entering removes the data from the index. A rollback of the transaction brings them back.

    Args:
        may_move: a datum may have another offset than before. If False, a datum at another offset is another datum,
            even if it looks equal, such as an older version.
    """

    def __init__(self, transaction: Transaction, segment: Segment, *, may_move: bool = True) -> None:
        self._transaction = transaction
        self._may_move = may_move
        self._connection = transaction.connection
        self._directory = transaction.directory
        self._segment = segment
        self._fields = [f"f_{name}" for name in transaction.schema.kinds]
        equal = "".join(f" AND {field} IS ?" for field in self._fields)
        known = "SELECT seq FROM aside WHERE found IS NULL AND reftime = ? AND size = ?" + equal
        self._find_in_place = known + " AND offset = ?"
        self._find = known + " ORDER BY offset LIMIT 1"

    def __enter__(self) -> Self:
        rows = f"SELECT datum.*, NULL AS found FROM {self._transaction.data_of(self._segment)} WHERE segment.id = ?"
        key = ", ".join(["reftime", "size", *self._fields, "offset"])
        with sqlite_errors(self._directory):
            execute = self._connection.execute
            execute(f"CREATE TEMP TABLE aside AS {rows}", (self._segment.id,))  # a rollback drops it
            execute(f"CREATE INDEX temp.aside_by_key ON aside ({key}) WHERE found IS NULL")
            execute("CREATE UNIQUE INDEX temp.aside_by_seq ON aside (seq)")
            execute("CREATE TEMP TABLE aside_block AS SELECT * FROM block WHERE segment = ?", (self._segment.id,))
            execute("DELETE FROM datum WHERE seq IN (SELECT seq FROM aside)")
            self._transaction.sums.clear(self._segment.id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            with sqlite_errors(self._directory):
                self._connection.execute("DROP TABLE aside")
                self._connection.execute("DROP TABLE aside_block")

    def seqs(self, found: Iterable[tuple[Any, ...]]) -> list[int]:
        """Return the seqs of data that a scan has found; a new one for each that the index did not know.

        A datum is known by its reftime, size and fields. Each seq is returned once: of equal data that are given
        together, to the one that is where the index has it. Of others, to the first one; the rest get new ones.

        Args:
            found: offset in the new file, reftime, size and fields of each.
        """
        found = [*found]
        with sqlite_errors(self._directory):
            known = [self._found(self._find_in_place, (*key, offset), offset) for offset, *key in found]
            for place, (offset, *key) in enumerate(found):
                if known[place] is None and self._may_move:
                    known[place] = self._found(self._find, key, offset)
            return [self._transaction.take_seqs(1)[0] if seq is None else seq for seq in known]

    def _found(self, sql: str, key: Sequence[Any], offset: int) -> int | None:
        row: tuple[int] | None = self._connection.execute(sql, key).fetchone()
        if row is None:
            return None
        self._connection.execute("UPDATE aside SET found = ? WHERE seq = ?", (offset, *row))
        return row[0]

    def is_same(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        """Return whether two rows of `datum` may be the same datum, the first of which was set aside."""
        if (one[1], *one[4:]) != (other[1], *other[4:]):
            return False
        with sqlite_errors(self._directory):
            return self._connection.execute("SELECT 1 FROM aside WHERE seq = ?", one[:1]).fetchone() is not None

    def move(self, seq: int, offset: int) -> None:
        """Note that a datum was found at another offset, after that which `seqs` was given."""
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
        first = transaction.seq
        if lost:
            transaction.note_lost(missing)
        transaction.note_deletions(missing, ())
        if lost:
            transaction.note_forgotten(first, count)
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
