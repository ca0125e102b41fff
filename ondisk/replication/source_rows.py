"""What the index of a replica records about the dataset that it follows, and how the changes of that become rows.

The row of the table `source` is the token: how far the replica has followed its source. It is committed with the data
that it covers. It holds only in the index that wrote it: the data of a rebuilt or exchanged one may have other numbers.

The table `difference` lists data of the source that the replica lacks because they could not be read or stored, or
because it has lost them (`UNREADABLE`), and data that the source has lost and the replica has (`LOST`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from ondisk.index.changes import OWN, Removal, present
from ondisk.index.snapshot import Snapshot

if TYPE_CHECKING:
    from ondisk.index.transaction import Transaction

UNREADABLE, LOST = 0, 1
_KEPT = "the source has lost it; quarantine has a copy, too"


class Mode(StrEnum):
    """What the token of a replica is worth, and so how the replica is compared with its source."""

    EXPIRED = "expired"  # the source has forgotten deletions; numbers still mean the same data
    FOREIGN = "foreign"  # numbers mean nothing: data are compared, whatever their numbers are
    VALID = "valid"  # nothing is wrong with it: data are compared under their numbers


_STORED = {Mode.EXPIRED: b"numbers", Mode.FOREIGN: b"foreign", Mode.VALID: b"contents"}
_MODES = {stored: mode for mode, stored in _STORED.items()}


class Comparison(NamedTuple):
    """A full comparison of a replica with its source that has begun and is not complete. Pulls wait for it."""

    mode: Mode  # how they are compared
    done: int = 0  # numbers up to this one are done


class Followed(NamedTuple):
    uuid: str  # of the source's index
    replica: str  # the UUID of the replica's index when this was written
    # session, offset: of the token: pulls continue after this change, if a comparison is in progress after its end
    session: int = 0
    offset: int = 0
    reading: int = -1  # with which change the first reading began; -1 if that change was passed
    comparison: Comparison | None = None  # what is in progress
    host: str = ""  # host, port: of the source's server; "" and 0 for a path
    port: int = 0
    bytes_read: int = 0  # of data, so far
    committed_at: int = 0  # microseconds since 1970


class Difference(NamedTuple):
    seq: int  # its number
    kind: int  # `UNREADABLE` or `LOST`
    reason: str  # why

    @property
    def is_lost(self) -> bool:
        return self.kind == LOST


def followed(state: Transaction | Snapshot) -> Followed | None:
    """Return how far a replica has followed its source; None if it has no source yet."""
    sql = (
        "SELECT uuid, replica, session, offset, index_start, key, host, port, bytes_read, committed_at FROM source"
        " ORDER BY committed_at DESC LIMIT 1"
    )
    row = state.connection.execute(sql).fetchone()
    if row is None:
        return None
    # The columns have the names of the fields of a token, and two meanings; see `ondisk.replication.token`.
    uuid, replica, session, offset, index_start, key, *place = row
    if not key:
        return Followed(uuid, replica, session, offset, index_start, None, *place)
    comparison = Comparison(_MODES.get(key, Mode.FOREIGN), max(0, index_start))
    return Followed(uuid, replica, session, offset, -1, comparison, *place)


def follow(transaction: Transaction, now: Followed) -> None:
    """Record how far the replica has followed its source, with this commit."""
    values = (now.uuid, now.replica, now.session, now.offset, *progress(now), now.host, now.port,
              now.bytes_read, time.time_ns() // 1000)  # fmt: skip
    transaction._execute("DELETE FROM source")
    transaction._execute(f"INSERT INTO source VALUES ({', '.join('?' * len(values))})", values)
    transaction.counters.advance(now.offset)


def progress(now: Followed) -> tuple[int, bytes]:
    """Return the last two fields of the token, index start and key: how far a reading or a comparison is."""
    if now.comparison is None:
        return now.reading, b""
    return now.comparison.done, _STORED[now.comparison.mode]


def note_sessions(transaction: Transaction, sessions: Iterable[tuple[int, int]]) -> None:
    """Record the sessions of the source's numbers: first number, id. The tokens of the replica's replicas name them."""
    rows = ((first, id_, time.time_ns() // 1000) for first, id_ in sessions)
    transaction._execute_many("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", rows)


def delete(transaction: Transaction, deletions: Sequence[tuple[int, int]]) -> set[int]:
    """Delete data, and note their deletions under the numbers of the source; return the data that are not here."""
    # Also those of data that are not here: a replica of this one may have them.
    transaction._execute_many("INSERT OR IGNORE INTO deletion (seq, datum) VALUES (?, ?)", deletions)
    targets = sorted(target for _, target in deletions)
    here = present(transaction, targets)
    transaction.drop_rows(sorted(here))
    settle(transaction, targets)
    return {*targets} - here


def differ(transaction: Transaction, differences: Iterable[Difference]) -> None:
    rows = ((each.seq, each.kind, each.reason) for each in differences)
    transaction._execute_many("INSERT OR REPLACE INTO difference VALUES (?, ?, ?)", rows)


def settle(transaction: Transaction, seqs: Iterable[int]) -> None:
    transaction._execute_many("DELETE FROM difference WHERE seq = ?", ((seq,) for seq in seqs))


def differences(state: Snapshot, kind: int | None = None, after: int = 0, limit: int = -1) -> list[Difference]:
    """Return the differences of a kind, or all, with numbers above one, in their order."""
    sql = "SELECT seq, kind, reason FROM difference WHERE seq > ? AND kind = ifnull(?, kind) ORDER BY seq LIMIT ?"
    return [Difference(*row) for row in state.fetch(sql, (after, kind, limit))]


def reasons(state: Snapshot) -> list[tuple[Difference, int]]:
    """Return the first difference of each kind and reason, offsets aside, and how many have it, in order."""
    sql = (
        "SELECT min(seq) AS first, kind, reason, count(*) FROM difference"
        " GROUP BY kind, substr(reason, 1, instr(reason || ', offset ', ', offset ')) ORDER BY first"
    )
    return [(Difference(seq, kind, reason), count) for seq, kind, reason, count in state.fetch(sql, ())]


def count_differences(state: Snapshot) -> dict[int, int]:
    return dict(state.fetch("SELECT kind, count(*) FROM difference GROUP BY kind"))


def renumber_own(transaction: Transaction, first: int) -> None:
    """Assign the numbers from `first` on to the data that the replica has numbered itself."""
    own = transaction.connection.execute("SELECT seq FROM datum WHERE seq >= ? ORDER BY seq", (OWN,)).fetchall()
    renumber(transaction, ((at, seq) for at, (seq,) in enumerate(own, first)))
    transaction.counters.advance(first + len(own) - 1)


def found_again(transaction: Transaction, seqs: Sequence[int]) -> None:
    """Forget that data were lost: they have returned."""
    rows = ((seq, Removal.LOST) for seq in seqs)
    transaction._execute_many("DELETE FROM deletion WHERE datum = ? AND forgotten = ?", rows)
    transaction._execute("UPDATE dataset SET lost = max(0, lost - ?)", (len(seqs),))


def reftimes(transaction: Transaction, seqs: Sequence[int]) -> dict[int, int]:
    sql = "SELECT seq, reftime FROM datum WHERE seq IN (SELECT value FROM json_each(?))"
    return dict(transaction.connection.execute(sql, (json.dumps([*seqs]),)).fetchall())


def lost_among(transaction: Transaction, seqs: Iterable[int]) -> dict[int, bool]:
    """Return which of some data the source has lost: number → whether quarantine has the segment of the datum."""
    sql = "SELECT seq, reason = ? FROM difference WHERE kind = ? AND seq IN (SELECT value FROM json_each(?))"
    rows = transaction.connection.execute(sql, (_KEPT, LOST, json.dumps([*seqs])))
    return {seq: bool(is_kept) for seq, is_kept in rows}


def note_kept(transaction: Transaction, segment: int) -> None:
    """Record that quarantine has a segment, by its id, with the data in it that the source has lost."""
    mine = "(SELECT segment FROM datum WHERE datum.seq = difference.seq)"  # no index has the segments of all data
    transaction._execute(f"UPDATE difference SET reason = ? WHERE kind = ? AND {mine} = ?", (_KEPT, LOST, segment))


def settle_lost(transaction: Transaction) -> None:
    transaction._execute("DELETE FROM difference WHERE kind = ?", (LOST,))


def set_apart(transaction: Transaction, seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Assign numbers of the replica's own to data whose numbers the source uses for others; return new and old ones."""
    pairs = [*zip(transaction.take_seqs(len(seqs)), seqs, strict=True)]
    renumber(transaction, pairs)
    return pairs


def renumber(transaction: Transaction, pairs: Iterable[tuple[int, int]]) -> None:
    """Assign to data the numbers that they have at the source: pairs of a new number, free here, and the old."""
    transaction._execute_many("UPDATE datum SET seq = ? WHERE seq = ?", pairs)


def forget_history(transaction: Transaction) -> None:
    """Remove what is noted about numbers of another history: deletions and differences."""
    for table in ("deletion", "difference", "session"):
        transaction._execute(f"DELETE FROM {table}")
    transaction._execute("UPDATE dataset SET expired = 0")


def forget_source(transaction: Transaction) -> None:
    """Remove what is known of the source, so that nothing follows it any more."""
    transaction._execute("DELETE FROM source")
    transaction._execute("DELETE FROM difference")
