"""The changes of an index in the order of their numbers, and the sessions of writers that made them.

A datum keeps its number, `seq`, until it is deleted, in whatever segment it is. A deletion has its own number, from the
same counter. So the changes after a number are the data and the deletions with higher numbers, wherever the bytes are.

A session is a writer that has the index open. The index records with which number a session began. If an older state
of a whole dataset is put back, other sessions give out its next numbers. So a number together with the session that
gave it out names one history, which a number alone does not.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ondisk.index.snapshot import Row, Snapshot
from ondisk.matcher import Everything

if TYPE_CHECKING:
    from ondisk.index.transaction import Transaction

OWN = 2**62
"""The first number of data that a dataset finds itself although it follows another, whose numbers are all lower."""
BETWEEN = "datum.seq > ? AND datum.seq <= ?"
"""The condition for data with numbers above one, up to another."""


class Removal(IntEnum):
    """Why a datum is gone, as the column `forgotten` of its deletion says it."""

    DELETED = 0
    """Somebody has deleted or replaced it."""
    LOST = 1
    """Nobody has deleted it: its file is gone, or damaged. It is counted as lost."""
    AGED_AND_KEPT = 2
    """Its whole segment was too old, and was dropped; readers of an older plan still find it, see `replaced_rows`."""
    AGED = 3
    """Its whole segment was too old, and was dropped."""


_PLACE = "datum.reftime, datum.segment, datum.offset, datum.size"
_TOGETHER = 2_000  # rows
_DENSE = 4  # numbers between the first and the last, for each that is wanted, which are read at once
_DAY = 86_400_000_000  # microseconds


def new_session() -> int:
    """Return a random number that names a session: SQLite can store 63 bits."""
    return int.from_bytes(os.urandom(8)) >> 1


def note_session(connection: sqlite3.Connection, session: int, first: int, now: int) -> None:
    """Record that a session gives out numbers from `first` on; once a day, if no other session has since.

    Args:
        now: microseconds since 1970.
    """
    connection.execute(
        "INSERT INTO session SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM session WHERE id = ?2"
        " AND abs(?3 - committed_at) < ?4 AND first = (SELECT max(first) FROM session))",
        (first, session, now, _DAY),
    )


def begin_session_at(connection: sqlite3.Connection, number: int, now: int) -> None:
    """Record another session for a number that was given out already: tokens that have reached it are not of this one.

    Args:
        now: microseconds since 1970.
    """
    connection.execute("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", (number, new_session(), now))


def session_at(snapshot: Snapshot, seq: int) -> int:
    """Return the session that gave out a number; 0 if an older ondisk did."""
    rows = snapshot.fetch("SELECT id FROM session WHERE first <= ? ORDER BY first DESC LIMIT 1", (seq,))
    return int(rows[0][0]) if rows else 0


def sessions_between(snapshot: Snapshot, first: int, last: int) -> list[tuple[int, int]]:
    """Return the sessions that assigned the numbers above `first`, up to `last`: their first numbers, and their ids."""
    sql = (
        "SELECT first, id FROM session WHERE first <= ?2 AND first >= (SELECT ifnull(max(first), 0) FROM session"
        " WHERE first <= ?1 + 1) ORDER BY first"
    )
    return snapshot.fetch(sql, (first, last))


def expired(snapshot: Snapshot) -> int:
    """Return the number up to which not all deletions are known any more."""
    return int(snapshot.fetch("SELECT expired FROM dataset")[0][0])


def last_before(snapshot: Snapshot, time: int) -> int:
    """Return a number so that it and all before it were given out before a time, microseconds; 0 for none."""
    # A run of changes ends after a day at most.
    sql = "SELECT ifnull(min(first) - 1, (SELECT seq FROM dataset)) FROM session WHERE committed_at >= ?"
    return int(snapshot.fetch(sql, (time - _DAY,))[0][0])


def has_deletions(snapshot: Snapshot, last: int) -> bool:
    """Return whether deletions with numbers up to one are noted, besides those of lost data."""
    sql = "SELECT 1 FROM deletion WHERE seq <= ? AND forgotten != ? LIMIT 1"
    return bool(snapshot.fetch(sql, (last, Removal.LOST)))


def data_between(snapshot: Snapshot, first: int, last: int, *, whole: bool) -> Iterator[list[Row]]:
    """Yield rows of the data with numbers above `first`, up to `last`: reftime, segment, offset, size, fields, seq.

    Args:
        whole: with the declared fields; otherwise without fields.
    """
    columns = snapshot.columns.row if whole else _PLACE
    return _select(snapshot, f"{columns}, datum.seq", BETWEEN, (first, last))


def data_of(snapshot: Snapshot, seqs: Sequence[int]) -> Iterator[list[Row]]:
    """Yield reftime, segment, offset, size and seq of the data with some numbers; skip those that do not exist."""
    among = "datum.seq IN (SELECT value FROM json_each(?))"
    return _select(snapshot, f"{_PLACE}, datum.seq", among, (json.dumps([*seqs]),))


def _select(snapshot: Snapshot, columns: str, which: str, values: Sequence[Any]) -> Iterator[list[Row]]:
    """Yield rows of data in the order of their numbers, some at a time."""
    where = snapshot.where(Everything())
    sql = f"SELECT {columns} FROM datum WHERE {which} AND {where.sql} ORDER BY datum.seq"
    return snapshot.select(sql, (*values, *where.values), _TOGETHER)


def deletions_between(snapshot: Snapshot, first: int, last: int, up_to: int) -> Iterator[list[Row]]:
    """Yield the deletions with numbers above `first`, up to `last`, in their order, some at a time.

    Args:
        up_to: those of data with higher numbers are skipped.

    Yields:
        Rows: seq, datum, `forgotten`.
    """
    sql = "SELECT seq, datum, forgotten FROM deletion WHERE seq > ? AND seq <= ? AND datum BETWEEN 1 AND ? ORDER BY seq"
    return snapshot.select(sql, (first, last, up_to), _TOGETHER)


def has_unnamed_losses(snapshot: Snapshot) -> bool:
    """Return whether data were lost whose numbers nobody knows."""
    return bool(snapshot.fetch("SELECT 1 FROM deletion WHERE datum = 0 LIMIT 1"))


def deletions_of(snapshot: Snapshot, seqs: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the deletions of some data, by their numbers: seq, datum, `forgotten`.

    Cost: reads all deletions.
    """
    sql = "SELECT seq, datum, forgotten FROM deletion WHERE datum IN (SELECT value FROM json_each(?))"
    return snapshot.fetch(sql, (json.dumps([*seqs]),))


def sample(
    snapshot: Snapshot, sql: str, values: Sequence[Any], first: int, last: int, most: int
) -> tuple[int, list[tuple[int, int]]]:
    """Return seq and size of the data with numbers above `first`, up to `last`: of all, or of some at equal distances.

    Args:
        most: how many numbers are looked up, about.

    Returns:
        The distance, 1 for all; then the data.
    """
    step = max(1, (last - first) // most)
    seqs = json.dumps([*range(first + 1, last + 1, step)])
    query = (
        f"SELECT datum.seq, datum.size FROM json_each(?) CROSS JOIN datum ON datum.seq = json_each.value WHERE {sql}"
    )
    return step, snapshot.connection.execute(query, [seqs, *values]).fetchall()


def present(state: Transaction | Snapshot, seqs: Sequence[int]) -> set[int]:
    """Return those of the numbers, which ascend, that belong to data in the index.

    Cost: of consecutive numbers, a look-up and those that do.
    """
    if not seqs:
        return set()
    if seqs[-1] - seqs[0] < _DENSE * len(seqs):
        between = state.connection.execute("SELECT seq FROM datum WHERE seq BETWEEN ? AND ?", (seqs[0], seqs[-1]))
        return {seq for (seq,) in between}.intersection(seqs)
    sql = "SELECT seq FROM datum WHERE seq IN (SELECT value FROM json_each(?))"
    return {seq for (seq,) in state.connection.execute(sql, (json.dumps([*seqs]),))}
