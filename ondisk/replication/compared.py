"""What a comparison of a source with its replica has found: a temporary file, so that memory stays flat.

theirs    data of the source that the replica does not have under their numbers: seq, reftime, digest
mine      data of the replica that the source does not have under their numbers; and what becomes of them: `fate`
pair      data that are equal, and have different numbers: mine, theirs
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Self

from ondisk.replication.contents import Entry

_SOME = 10_000  # rows


class Fate(IntEnum):
    """What becomes of a datum of the replica."""

    APART = 0
    """It gets a number of the replica's own, and stays."""
    DELETED = 1
    """Somebody deleted it at the source."""
    GONE = 2
    """The source has forgotten why it does not have it: it was deleted, or has another number now."""
    LOST = 3
    """The source has lost it. It stays as it is, as with the next ones."""
    AGED = 4
    """The source has removed it because of its `delete_age`."""
    UNREADABLE = 5
    """The source cannot read it."""
    PENDING = 6
    """Somebody deleted it at the source, and the replica has not pulled this yet."""
    DAMAGED = 7
    """The replica cannot read it. If the source can, it is fetched again."""
    UNKNOWN = 8
    """Nobody knows why the source does not have it."""
    REPLACED = 9
    """The source has other bytes under its number."""
    UNWANTED = 10
    """Nobody knows why the source does not have it, and the user wants to have it deleted."""


NEITHER = f"fate = {Fate.DAMAGED:d} AND seq NOT IN (SELECT seq FROM theirs)"
"""The condition for data of the replica that neither side can read."""


class Compared:
    """The differences of two datasets, which a comparison adds."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for each in ("theirs", "mine"):
            self._db.execute(f"CREATE TABLE {each} (seq INTEGER PRIMARY KEY, reftime INTEGER, digest BLOB)")
        self._db.execute(f"ALTER TABLE mine ADD COLUMN fate INTEGER NOT NULL DEFAULT {Fate.APART}")
        self._db.execute("CREATE TABLE pair (mine INTEGER PRIMARY KEY, theirs INTEGER NOT NULL UNIQUE)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, side: str, entries: Iterable[Entry]) -> None:
        """Add data of one side, or their digests if they were added without."""
        self._db.executemany(f"INSERT OR REPLACE INTO {side} (seq, reftime, digest) VALUES (?, ?, ?)", entries)

    def add_numbers(self, side: str, seqs: Iterable[int]) -> None:
        """Add data of one side by their numbers only: nothing else of them is compared."""
        self._db.executemany(f"INSERT INTO {side} VALUES (?, 0, x'', 0)" if side == "mine" else
                             f"INSERT INTO {side} VALUES (?, 0, x'')", ((seq,) for seq in seqs))  # fmt: skip

    def digest(self, side: str, entries: Iterable[Entry]) -> None:
        """Add the digests of data that were added as numbers; ignore others."""
        rows = ((each.reftime, each.digest, each.seq) for each in entries)
        self._db.executemany(f"UPDATE {side} SET reftime = ?, digest = ? WHERE seq = ?", rows)

    def drop_equal(self, *, by_digest: bool) -> None:
        """Remove the data that both sides have under the same number."""
        equal = "SELECT seq FROM theirs JOIN mine USING (seq)"
        if by_digest:
            equal += " WHERE theirs.digest = mine.digest AND theirs.digest != x''"
        self._db.execute(f"CREATE TEMP TABLE equal AS {equal}")
        for each in ("theirs", "mine"):
            self._db.execute(f"DELETE FROM {each} WHERE seq IN (SELECT seq FROM equal)")
        self._db.execute("DROP TABLE equal")

    def drop(self, side: str, seqs: Iterable[int]) -> None:
        self._db.executemany(f"DELETE FROM {side} WHERE seq = ?", ((seq,) for seq in seqs))

    def decide(self, seqs: Iterable[int], fate: Fate) -> None:
        """Say what becomes of data of the replica."""
        self._db.executemany("UPDATE mine SET fate = ? WHERE seq = ?", ((int(fate), seq) for seq in seqs))

    def decide_all(self, where: str, fate: Fate) -> None:
        """Say what becomes of the data of the replica that match a condition."""
        self._db.execute(f"UPDATE mine SET fate = {fate:d} WHERE {where}")

    def match(self) -> None:
        """Find the data that are equal, and have different numbers: each at most once, lower numbers first."""
        numbered = "SELECT seq, digest, row_number() OVER (PARTITION BY digest ORDER BY seq) AS at FROM"
        free = f"fate IN ({Fate.APART:d}, {Fate.GONE:d})"
        self._db.execute(
            f"INSERT INTO pair SELECT m.seq, t.seq FROM ({numbered} mine WHERE digest != x'' AND {free}) m"
            f" JOIN ({numbered} theirs WHERE digest != x'') t ON m.digest = t.digest AND m.at = t.at"
        )

    def moved(self, numbers: Iterable[tuple[int, int]]) -> None:
        """Record that data of the replica have new numbers: new and old one of each."""
        for new, old in numbers:
            self._db.execute("UPDATE mine SET seq = ? WHERE seq = ?", (new, old))
            self._db.execute("UPDATE pair SET mine = ? WHERE mine = ?", (new, old))

    def unpair(self, seqs: Iterable[int]) -> None:
        """Forget the pairs of data of the replica that do not exist any more."""
        self._db.executemany("DELETE FROM pair WHERE mine = ?", ((seq,) for seq in seqs))

    def both(self, after: int = 0) -> Iterator[tuple[Entry, Entry]]:
        """Yield the data that have the same number and are not equal: of the source, of the replica."""
        sql = "SELECT seq, theirs.reftime, theirs.digest, mine.reftime, mine.digest FROM theirs JOIN mine USING (seq)"
        for seq, *rest in self._rows(f"{sql} WHERE seq > ? ORDER BY seq LIMIT ?", after):
            yield Entry(seq, *rest[:2]), Entry(seq, *rest[2:])

    def of(self, side: str, where: str = "true") -> Iterator[list[Entry]]:
        """Yield data of one side that match a condition, in the order of their numbers, some at a time."""
        after = 0
        sql = f"SELECT seq, reftime, digest FROM {side} WHERE seq > ? AND ({where}) ORDER BY seq LIMIT {_SOME}"
        while some := self._db.execute(sql, (after,)).fetchall():
            yield [Entry(*row) for row in some]
            after = some[-1][0]

    def pairs(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the data that are equal and have different numbers, some at a time: number there, number here."""
        after = 0
        sql = f"SELECT theirs, mine FROM pair WHERE theirs > ? ORDER BY theirs LIMIT {_SOME}"
        while some := self._db.execute(sql, (after,)).fetchall():
            yield some
            after = some[-1][0]

    def count(self, side: str, where: str = "true") -> int:
        ((count,),) = self._db.execute(f"SELECT count(*) FROM {side} WHERE {where}")
        return int(count)

    def has(self, side: str, seqs: Sequence[int], where: str) -> bool:
        """Return whether some data of one side, by their numbers, match a condition."""
        sql = f"SELECT 1 FROM {side} WHERE seq IN (SELECT value FROM json_each(?)) AND ({where}) LIMIT 1"
        return bool(self._db.execute(sql, (json.dumps([*seqs]),)).fetchall())

    def _rows(self, sql: str, after: int) -> Iterator[tuple[Any, ...]]:
        while some := self._db.execute(sql, (after, _SOME)).fetchall():
            yield from some
            after = some[-1][0]


MISSING = "NOT EXISTS (SELECT 1 FROM pair WHERE pair.theirs = theirs.seq)"
"""The condition for data of the source that the replica does not have under any number."""
ONLY = "NOT EXISTS (SELECT 1 FROM pair WHERE pair.mine = mine.seq)"
"""The condition for data of the replica that the source does not have under any number."""
