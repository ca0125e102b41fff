"""Compare a replica with its source: the one list of what differs, which `verify` reports, and others mend.

Digests of ranges of numbers are compared; where they differ, the data of both sides are listed. Then each datum that is
not the same on both sides gets its place in the list: how it differs, see `Differs`. What becomes of it is decided by
the caller: `reconcile` makes the replica equal to its source, `heal` returns data to the source.

The list is a temporary file, so that memory stays flat.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.dataset.place_checks import check_complete
from ondisk.datum import INTEGER_MIN
from ondisk.errors import IntegrityError, TokenExpired, TokenForeign
from ondisk.index.changes import OWN
from ondisk.index.connection import temporary_errors
from ondisk.replication.feed import Kind
from ondisk.replication.replica import Replica
from ondisk.replication.source import Contents, DatasetSource, Entry, Source, replicate_command
from ondisk.replication.source_rows import Followed, Mode
from ondisk.replication.token import Token
from ondisk.step import Step, days_ago, runs_of

_SOME = 10_000  # rows
_SHOWN = 100
OnRange = Callable[[int, int], object]  # called with how many numbers were compared, and how many are left


class Differs(IntEnum):
    """How a datum differs between a replica and its source. No file that stays has these values.

    From `EXTRA` on, only the replica has the datum: under a number of its own, or under one of its source.
    """

    MISSING = 0  # the replica lacks it
    UNREAD = 1  # the replica lacks it, and the source cannot read it
    OUTDATED = 2  # the replica has removed it because of its own `delete_age`
    CHANGED = 3  # both have a datum under its number, with other bytes
    DAMAGED = 4  # the replica cannot read it, and the source can
    NEITHER = 5  # neither side can read it
    UNREADABLE = 6  # the source cannot read it, and the replica can
    EXTRA = 7  # it has a number of the replica's own; or nobody has asked the source yet why it does not have the datum
    DELETED = 8  # somebody deleted it at the source
    PENDING = 9  # somebody deleted it at the source, and the replica has not pulled this yet
    LOST = 10  # the source has lost it
    AGED = 11  # the source has removed it because of its `delete_age`
    GONE = 12  # the source has forgotten why it does not have it: it was deleted, or has another number now
    UNKNOWN = 13  # nobody knows why the source does not have it


WANTED = (Differs.MISSING, Differs.UNREAD, Differs.CHANGED, Differs.DAMAGED)
"""The data of the source that the replica lacks, or has other bytes of."""

_NOTED = {Kind.DELETED: Differs.DELETED, Kind.LOST: Differs.LOST, Kind.AGED: Differs.AGED}
_FOUND = {
    "missing": (Differs.MISSING, Differs.UNREAD),
    "differs": (Differs.CHANGED,),
    "damaged": (Differs.DAMAGED, Differs.NEITHER),
    "lost": (Differs.LOST,),
    "unreadable": (Differs.UNREADABLE,),
    "extra": (Differs.EXTRA, Differs.DELETED, Differs.GONE, Differs.UNKNOWN),
}
"""The kinds of findings of `verify`."""


@dataclass(frozen=True, slots=True)
class Situation:
    uuid: str  # of the source
    last: int  # last, session: the last change of the source, and who made it
    session: int
    offset: int  # the last change that the replica has applied; 0 if this is of no use
    mode: Mode  # how to compare them
    is_begun: bool  # an earlier comparison has begun, and is not complete
    before: Followed | None  # the source and the token in the replica's index; None if it follows nobody


def situation(replicated: Replica) -> Situation:
    """Return the relation between a replica and its source; raise NeedsCheck if an index may not know all data."""
    access = replicated.dataset._access
    source, now = replicated.source, replicated.followed
    about = source.describe()
    with access.current().index.snapshot() as snapshot:
        check_complete(access, snapshot)
        mine = snapshot.dataset()["uuid"]
    begun = now.comparison if now is not None and now.replica == mine else None
    new = Situation(about.uuid, about.seq, about.session, 0, Mode.FOREIGN, begun is not None, now)
    if now is None or now.replica != mine or now.uuid != about.uuid:
        return new
    mode = Mode.VALID if begun is None else begun.mode
    try:
        source.changes(Token(now.uuid, now.session, now.offset) if now.offset else None, 1)
    except TokenForeign:
        return new
    except TokenExpired:
        if begun is not None:  # deletions since it began were forgotten: it begins again
            return replace(new, mode=mode)
        return replace(new, offset=now.offset, mode=Mode.EXPIRED)
    return replace(new, offset=now.offset, mode=mode)


class Differences:
    """The data that a comparison has found to differ.

    theirs      what the source has, and the replica lacks: number, reftime, digest, and how it differs
    mine        what the replica has, as well: what both have under one number is here
    pair        the numbers at the source and here of data that both have under different ones
    difference  `theirs` and `mine` together

    A digest is empty if the datum cannot be read, and NULL if only the number is known.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        columns = "(seq INTEGER PRIMARY KEY, reftime INTEGER, digest BLOB, kind INTEGER NOT NULL DEFAULT"
        self._db.execute(f"CREATE TABLE theirs {columns} {Differs.MISSING:d})")
        self._db.execute(f"CREATE TABLE mine {columns} {Differs.EXTRA:d})")
        self._db.execute("CREATE TABLE pair (here INTEGER PRIMARY KEY, seq INTEGER NOT NULL UNIQUE)")
        self._db.execute("CREATE VIEW difference AS SELECT * FROM theirs UNION ALL SELECT * FROM mine")

    def close(self) -> None:
        self._db.close()

    def list_data(self, side: str, data: Iterable[tuple[int, int, bytes]]) -> None:
        """Add data of one side, which may be equal."""
        self._db.executemany(f"INSERT INTO {side} (seq, reftime, digest) VALUES (?, ?, ?)", data)

    def drop_equal(self) -> None:
        self._db.execute(
            "CREATE TEMP TABLE equal AS SELECT seq FROM theirs JOIN mine USING (seq)"
            " WHERE theirs.digest IS mine.digest AND theirs.digest IS NOT x''"
        )
        for each in ("theirs", "mine"):
            self._db.execute(f"DELETE FROM {each} WHERE seq IN (SELECT seq FROM equal)")
        self._db.execute("DROP TABLE equal")

    def join_numbers(self) -> None:
        """Find out how the data that both sides have under one number differ: they are the same datum."""
        self._db.execute(
            "UPDATE mine SET kind = CASE"
            f" WHEN theirs.digest = x'' THEN iif(mine.digest = x'', {Differs.NEITHER:d}, {Differs.UNREADABLE:d})"
            f" ELSE iif(mine.digest = x'', {Differs.DAMAGED:d}, {Differs.CHANGED:d}) END"
            " FROM theirs WHERE theirs.seq = mine.seq"
        )
        self._db.execute("DELETE FROM theirs WHERE seq IN (SELECT seq FROM mine)")

    def settle(self, kinds: Iterable[tuple[int, Differs]]) -> None:
        """Record why only the replica has data: number and kind."""
        self._db.executemany("UPDATE mine SET kind = ? WHERE seq = ?", ((int(kind), seq) for seq, kind in kinds))

    def settle_missing(self, oldest: int) -> None:
        """Find out which of the data that the replica lacks are too old or unreadable."""
        self._db.execute(
            f"UPDATE theirs SET kind = iif(reftime < ?1, {Differs.OUTDATED:d}, {Differs.UNREAD:d})"
            " WHERE reftime < ?1 OR digest = x''",
            (oldest,),
        )

    def pair(self) -> None:
        """Find the data that are equal, and have different numbers: each at most once, lower numbers first."""
        numbered = "SELECT seq, digest, row_number() OVER (PARTITION BY digest ORDER BY seq) AS at FROM"
        free = f"kind IN ({Differs.EXTRA:d}, {Differs.GONE:d})"
        self._db.execute(
            f"INSERT INTO pair SELECT m.seq, t.seq FROM ({numbered} theirs WHERE digest != x'') t"
            f" JOIN ({numbered} mine WHERE digest != x'' AND {free}) m USING (digest, at)"
        )
        for side, column in (("theirs", "seq"), ("mine", "here")):
            self._db.execute(f"DELETE FROM {side} WHERE seq IN (SELECT {column} FROM pair)")

    def pairs(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the data that are equal and have different numbers, some at a time: number there, number here."""
        yield from self._pages("SELECT seq, here FROM pair WHERE true")

    def not_own(self) -> Iterator[list[int]]:
        """Yield the numbers here of pairs, and of data that only the replica has, but for its own; ascending."""
        here = f"(SELECT seq FROM mine WHERE kind = {Differs.EXTRA:d} UNION ALL SELECT here FROM pair)"
        for rows in self._pages(f"SELECT seq FROM {here} WHERE seq < {OWN}"):
            yield [seq for (seq,) in rows]

    def move(self, numbers: Iterable[tuple[int, int]]) -> None:
        """Record that data of pairs have other numbers here: new and old one of each."""
        self._db.execute("BEGIN")  # a commit for each would take longer
        self._db.executemany("UPDATE pair SET here = ? WHERE here = ?", numbers)
        self._db.execute("COMMIT")

    def miss(self, seqs: Iterable[int]) -> None:
        self.drop(seqs := [*seqs])
        self._db.executemany("INSERT OR IGNORE INTO theirs (seq, reftime) VALUES (?, 0)", ((seq,) for seq in seqs))

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget how damaged data of the replica differ."""
        where = f"seq = ? AND kind = {Differs.DAMAGED:d}"
        self._db.executemany(f"DELETE FROM mine WHERE {where}", ((seq,) for seq in seqs))

    def of(self, *kinds: Differs) -> Iterator[list[Entry]]:
        """Yield the data that differ in some ways, in the order of their numbers, some at a time.

        The digest of a datum is that of the replica; if only the source has it, that of the source.
        """
        for rows in self._pages(f"SELECT seq, reftime, ifnull(digest, x'') FROM difference WHERE {_in(kinds)}"):
            yield [Entry(*row) for row in rows]

    def count(self, *kinds: Differs) -> int:
        ((count,),) = self._db.execute(f"SELECT count(*) FROM difference WHERE {_in(kinds)}")
        return int(count)

    def has(self, seqs: Sequence[int], *kinds: Differs) -> bool:
        sql = f"SELECT 1 FROM difference WHERE seq IN (SELECT value FROM json_each(?)) AND {_in(kinds)} LIMIT 1"
        return bool(self._db.execute(sql, (json.dumps([*seqs]),)).fetchall())

    def _pages(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, which begin with a number, in the order of these."""
        after = 0
        while some := self._db.execute(f"{sql} AND seq > ? ORDER BY seq LIMIT {_SOME}", (after,)).fetchall():
            yield some
            after = some[-1][0]


@contextlib.contextmanager
def compared(
    replicated: Replica, uuid: str, mode: Mode, first: int, last: int, on_range: OnRange
) -> Iterator[Differences]:
    """Compare a replica with its source, and hold what differs for the length of the block.

    Args:
        first, last: the numbers of the source that are compared. `last` is also the last change that the replica has
            applied, if numbers mean the same data.

    Raises IntegrityError if the source does not answer what it was asked, and the errors of `Dataset.changes`, for
    both.

    Cost: reads all data of source and replica. 100 bytes travel for some megabytes that are equal, else 30 for each
        datum.
    """
    ask, here = partial(_answer, replicated.source, uuid), DatasetSource(replicated.dataset._access).contents
    with temporary_errors("what differs"), contextlib.closing(Differences()) as found:
        while first <= last:
            there = ask(first, last)
            mine, end = here(first, there.last), there.last
            if there.unreadable or mine.unreadable or (there.last, there.digest) != (mine.last, mine.digest):
                found.list_data("theirs", _listed_in(ask, first, end))
                found.list_data("mine", _listed_in(here, first, end))
                found.drop_equal()
            on_range(end + 1 - first, last - end)
            first = end + 1
        # numbers that the source had not given out, and the replica's own
        found.list_data("mine", _listed_in(here, last + 1, 2 * OWN - 1))
        if mode is not Mode.FOREIGN:
            found.join_numbers()
            find_reasons(replicated.source, found, last)
        found.settle_missing(_oldest(replicated.dataset.config))
        yield found


def _listed_in(read: Callable[..., Contents], first: int, last: int) -> Iterator[tuple[int, int, bytes]]:
    while first <= last:
        found = read(first, last, listed=True)
        yield from zip(found.seqs, found.reftimes, found.digests, strict=True)
        first = found.last + 1


def _answer(source: Source, uuid: str, first: int, last: int, *, listed: bool = False) -> Contents:
    """Return what a source has in a range of numbers; raise IntegrityError if it does not answer the request."""
    answer = source.contents(first, last, listed=listed)
    if answer.uuid != uuid or answer.first != first or not first <= answer.last <= last:
        hint = "Somebody may have exchanged or rebuilt its index meanwhile: run it again."
        raise IntegrityError(f"the source does not answer for the numbers {first} to {last}", hint=hint)
    return answer


def find_reasons(source: Source, found: Differences, offset: int) -> None:
    """Find out why the source lacks data of the replica, which has applied its deletions up to `offset`."""
    oldest = _oldest(DatasetConfig.from_toml(source.describe().config))
    for some in found.of(Differs.EXTRA):
        asked = [each for each in some if each.seq < OWN]
        removed = source.removed([each.seq for each in asked])
        reasons = dict.fromkeys((each.seq for each in asked), Differs.GONE)
        reasons |= {seq: Differs.UNKNOWN for seq in reasons if removed.is_partial or seq > removed.expired}
        reasons |= {each.seq: Differs.AGED for each in asked if each.reftime < oldest}  # its note may be forgotten, too
        for target, number, kind in removed.notes:
            if target in reasons:  # a server may send anything
                is_pending = kind is Kind.DELETED and number > offset
                reasons[target] = Differs.PENDING if is_pending else _NOTED[kind]
        found.settle(reasons.items())


def _oldest(config: DatasetConfig) -> int:
    return INTEGER_MIN if config.delete_age is None else days_ago(config.delete_age)


def _in(kinds: Iterable[Differs]) -> str:
    return f"kind IN ({', '.join(str(int(kind)) for kind in kinds)})"


@dataclass(frozen=True, slots=True)
class Finding:
    """A datum that is not the same on both sides."""

    seq: int  # its number
    # `missing`: the replica lacks it. `extra`: only the replica has it. `differs`: both have other bytes under this
    # number. `damaged`: the replica cannot read it. `unreadable`: the source cannot read it, and the replica can.
    # `lost`: the source has lost it, and the replica has it
    kind: str
    reftime: int  # microseconds since 1970


@dataclass(slots=True)
class Differing:
    """The findings of one kind in one segment."""

    kind: str  # as of each finding
    segment: str  # its name without the extension; of a sequence, that of a daily segment
    count: int  # how many
    first: Finding  # the finding with the lowest number


@dataclass(slots=True)
class Verified:
    """What a comparison of a replica with its source has found."""

    source: str  # the UUID of the source's index
    offset: int  # the changes up to this number were compared
    left: int  # how many later changes the source has; a pull fetches them
    # missing, extra, differs, damaged, unreadable, lost: how many findings of each kind, see `Finding`
    missing: int = 0
    extra: int = 0
    differs: int = 0
    damaged: int = 0
    unreadable: int = 0
    lost: int = 0
    aged: int = 0  # data that one side has removed because of its own `delete_age`. They are no findings
    findings: list[Finding] = field(default_factory=list)  # the first 100 of each kind
    segments: list[Differing] = field(default_factory=list)  # all findings, by kind and segment

    @property
    def count(self) -> int:
        """How many data are not the same."""
        return self.missing + self.extra + self.differs + self.damaged + self.unreadable + self.lost


def needs_reconcile(replica: Replica, problem: str) -> TokenForeign:
    path = replica.dataset.path
    return TokenForeign(f"{path}: {problem}", hint=f"Run {replicate_command(replica.source, path, '--reconcile')}.")


def verify(replica: Replica, *, on_range: OnRange = lambda _done, _left: None) -> Verified:
    """Compare a replica with its source, up to the last change that the replica has applied.

    Raises:
        TokenForeign: the same numbers mean different data in source and replica; see `reconcile`.
        NeedsCheck, StateError: as `Dataset.changes`, for both.

    Cost: reads all data of source and replica.
    """
    now = situation(replica)
    if now.mode is Mode.FOREIGN or now.is_begun:
        what = "is not complete" if now.is_begun else "is needed: their numbers are not those of its source"
        raise needs_reconcile(replica, f"a comparison of all data {what}")
    config = replica.dataset.config
    verified = Verified(now.uuid, now.offset, max(0, now.last - now.offset))
    with compared(replica, now.uuid, Mode.VALID, 1, now.offset, on_range) as found:
        _add(verified, found, Step.DAILY if config.is_sequence else config.step)
    return verified


def _add(verified: Verified, found: Differences, step: Step) -> None:
    verified.aged = found.count(Differs.AGED, Differs.OUTDATED)
    segments: dict[tuple[str, str], Differing] = {}
    for name, kinds in _FOUND.items():
        setattr(verified, name, found.count(*kinds))
        for at, some in enumerate(found.of(*kinds)):
            if not at:
                verified.findings += [Finding(each.seq, name, each.reftime) for each in some[:_SHOWN]]
            begin = 0
            for unit, count in runs_of(step.unit, [each.reftime for each in some]):
                first, stem = some[begin], step.stem_of(unit)
                new = Differing(name, stem, 0, Finding(first.seq, name, first.reftime))
                segments.setdefault((name, stem), new).count += count
                begin += count
    verified.segments = [*segments.values()]
