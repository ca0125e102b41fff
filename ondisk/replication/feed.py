"""The change feed of a dataset: what was appended and deleted after a token, in the order of changes.

A datum that was deleted since is not among the changes, and neither is the deletion of a datum that the token does not
cover. Still, a deletion may be of a datum that no answer had: one that was deleted between two answers. A replacement
is a datum, and the deletion of another one with a higher number. Where the bytes are does not matter, so a repack, an
archive and an unarchive change nothing.

The first answers, from the beginning on, contain the data that exist, without deletions of earlier ones. Their tokens
say with which change this reading began (`index_start`), until they have passed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeAlias, TypeVar

from ondisk.dataset.access import Opened
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.layout import untrusted
from ondisk.dataset.query import Query, Snapshots
from ondisk.datum import Datum
from ondisk.errors import (
    AuthenticationFailed,
    IndexCorrupt,
    IntegrityError,
    InvalidInput,
    KeyMissing,
    OndiskError,
    SegmentMissing,
    StateError,
    TokenExpired,
    TokenForeign,
    command,
    shown,
)
from ondisk.index import Row, Snapshot, changes, replica, segment_rows
from ondisk.matcher import Everything
from ondisk.replication.merge import Run, Stream, first_of, merged
from ondisk.replication.token import NO_COMPARISON, Token

MAX_BYTES = 1024 * 1024
_T = TypeVar("_T")
Parts: TypeAlias = Sequence[tuple[Opened, Snapshot]]
"""The indices of a dataset's archives, then that of the dataset."""
_UNDECRYPTED = (AuthenticationFailed, KeyMissing)
_SAMPLE = 1000  # numbers that are looked up to estimate the lag
_REMEDY = "Begin without a token: the answers then contain all data, also those that you have."


class Kind(Enum):
    """What a change is."""

    APPENDED = "appended"
    """A datum is new."""
    UNREADABLE = "unreadable"
    """A datum is new, and its bytes are damaged or missing."""
    DELETED = "deleted"
    """Somebody deleted or replaced a datum."""
    LOST = "lost"
    """The bytes of a datum were lost outside of ondisk. Nobody deleted it: who has a copy keeps it."""
    AGED = "aged"
    """A datum was older than `delete_age` of this dataset."""


_OF_DELETION = {0: Kind.DELETED, 1: Kind.LOST, 2: Kind.AGED, 3: Kind.AGED}


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a dataset.

    Attributes:
        seq: its number; that of the datum, if one is new.
        kind: what it is.
        datum: what is new.
        target: the number of the datum that is gone.
        error: why a datum cannot be read.
    """

    seq: int
    kind: Kind
    datum: Datum | None = None
    target: int | None = None
    error: OndiskError | None = None


class Lag(NamedTuple):
    """What is left after an answer.

    Attributes:
        changes: numbers that were given out since; some may belong to no change any more.
        bytes: of the data with these numbers; estimated from a thousand of them, if they are more.
    """

    changes: int
    bytes: int


class Answer(NamedTuple):
    """Some changes after a token.

    Attributes:
        changes: in the order of their numbers; empty only if there are no more.
        token: covers these changes, too.
        lag: what is left.
    """

    changes: list[Change]
    token: Token
    lag: Lag


class Broken(NamedTuple):
    """Why a datum cannot be read."""

    error: OndiskError


class Chosen(NamedTuple):
    """The changes of one answer, as the indices of the dataset and its archives have them.

    Attributes:
        parts: these indices; open until the end of the block in which they were chosen.
        runs: these changes, in the order of their numbers.
        token: covers these changes, too.
        lag: what is left.
        sessions: those that gave out the numbers after the token before, up to the new one: first number, id.
    """

    parts: Parts
    runs: Sequence[Run]
    token: Token
    lag: Lag
    sessions: Sequence[tuple[int, int]] = ()


def read(access: DatasetAccess, token: Token | None, max_bytes: int) -> Answer:
    """Return changes after a token; see `Dataset.changes`."""
    with chosen(access, token, max_bytes, whole=True) as (parts, runs, reached, lag, _):
        return Answer([*_read(parts, runs)], reached, lag)


@contextlib.contextmanager
def chosen(access: DatasetAccess, token: Token | None, max_bytes: int, *, whole: bool) -> Iterator[Chosen]:
    """Find the changes of one answer, for the length of the block; see `Dataset.changes`.

    Args:
        whole: the rows have the declared fields, too.
    """
    if type(max_bytes) is not int or max_bytes < 1:
        raise InvalidInput(f"max_bytes must be a whole number of 1 or more, not {shown(max_bytes)}")
    if access.needs_check():
        raise untrusted(access.path)
    with access.current().index.snapshot() as main:
        begin, last = _begin(main, token, access)
        reached = _passed(main, begin, last) if begin.offset == last else None
    if reached is not None:  # an idle poll touches no archive
        yield Chosen([], [], reached, Lag(0, 0))
        return
    with parts_of(access, begin.offset) as parts:
        main = parts[-1][1]
        begin, last = _begin(main, token, access)
        runs, is_all = first_of(merged(_streams(parts, begin, last, whole=whole), access.path), max_bytes)
        new = _passed(main, begin, last if is_all else runs[-1].seqs[-1])
        sessions = changes.sessions_between(main, begin.offset, max(new.offset, new.index_start))
        yield Chosen(parts, runs, new, _lag(parts, new.offset, last), sessions)


@contextlib.contextmanager
def parts_of(access: DatasetAccess, after: int | None = None) -> Iterator[Parts]:
    """Open the indices of a dataset's archives, then that of the dataset, for the length of the block.

    Args:
        after: only changes above this number are wanted. Archives without such changes may be away; an archive that the
            dataset does not know is skipped: when it is recorded, all tokens expire. None: all data are wanted.

    Raises:
        NeedsCheck, StateError: as `Dataset.changes`; or all data are wanted, and the dataset does not know an archive.
    """
    archives = access.archives
    archives.check_trusted()
    check = partial(archives.record.check_online, after=after or 0)
    with Snapshots(access.current(), archives, Query(), check) as snapshots:
        parts = [(opened, snapshot) for opened, snapshot, _ in snapshots.each()]
        known = {each.uuid for each in segment_rows.known_archives(parts[-1][1])}
        unknown = [part for part in parts[:-1] if part[1].dataset()["uuid"] not in known]
        if after is None:
            for opened, snapshot in unknown:
                if any(changes.numbers_between(snapshot, 0, 2 * changes.OWN - 1)):  # without those that are being moved
                    message = f"{access.path} has not recorded the archive {opened.index.directory.path} yet"
                    raise StateError(message, hint=f"Run {command('fix', access.path, '--yes')}, then this again.")
        yield [part for part in parts if part not in unknown]


def in_order(access: DatasetAccess, parts: Parts, rows: Callable[[Snapshot], Iterator[list[Row]]]) -> Iterator[Run]:
    """Yield data of a dataset and its archives, in the order of their numbers.

    Args:
        rows: returns those of one index.
    """
    streams = [Stream(part, rows(snapshot), is_new=True) for part, (_, snapshot) in enumerate(parts)]
    return merged(streams, access.path)


def _begin(main: Snapshot, token: Token | None, access: DatasetAccess) -> tuple[Token, int]:
    """Return a token to continue from, and the number of the last change.

    Raises:
        TokenForeign, TokenExpired: as `Dataset.changes`.
    """
    uuid, last = main.dataset()["uuid"], last_change(main)
    if token is None:
        token = Token(uuid)
    if not isinstance(token, Token):
        raise InvalidInput(f"a token must be what `changes` returned, not {shown(token)}", hint="Begin with None.")
    where, reached = access.path, max(token.offset, token.index_start)
    if token.dataset != uuid:
        message = f"{where}: the token is of {shown(token.dataset)}; this is another dataset, or its index was rebuilt"
        raise TokenForeign(message, hint=_REMEDY)
    if not 0 <= reached <= last or token.offset < 0:
        message = (
            f"{where}: the token covers {reached} changes, and this dataset has had {last}: an earlier state of it"
        )
        raise TokenForeign(f"{message} was put back", hint=_REMEDY)
    is_other = changes.session_at(main, reached) != token.session
    expired = changes.expired(main)
    if token.offset and (reached < expired or (is_other and reached == expired)):
        message = (
            f"{where}: the token covers {reached} changes, and not all deletions up to {expired} are known any more"
        )
        raise TokenExpired(message, hint=_REMEDY)
    if is_other:
        message = f"{where}: another session than the token's made the change {reached}"
        raise TokenForeign(f"{message}: an earlier state of the dataset was put back", hint=_REMEDY)
    if token.offset == 0:
        return Token(uuid, index_start=last), last
    return token, last


def _passed(main: Snapshot, begin: Token, reached: int) -> Token:
    """Return the token after some changes."""
    index_start = begin.index_start if begin.index_start > reached else NO_COMPARISON
    return Token(begin.dataset, changes.session_at(main, max(reached, index_start)), reached, index_start)


def _streams(parts: Parts, begin: Token, last: int, *, whole: bool) -> Iterator[Stream]:
    """Yield the new data and the deletions of each index after a token, up to a number."""
    first = max(begin.offset, begin.index_start)
    # A replica may have followed further before it was restored, and replicas of it have data that it has not now.
    up_to = begin.offset if whole or not begin.offset else changes.OWN
    for part, (_, snapshot) in enumerate(parts):
        yield Stream(part, changes.data_between(snapshot, begin.offset, last, whole=whole), is_new=True)
        yield Stream(part, changes.deletions_between(snapshot, first, last, up_to), is_new=False)


def read_some(
    opened: Opened, snapshot: Snapshot, rows: Sequence[Row], read: Callable[[Sequence[Row]], _T]
) -> Iterator[tuple[Sequence[Row], _T | Broken]]:
    """Read the data of some rows together. If some are damaged, read them one by one.

    If the bytes of a segment have changed, and none of its data has a checksum, nobody knows which are damaged: then
    none of them is read.

    Yields:
        Some of the rows, in their order, and what was read; or one, and why it cannot be read.

    Raises:
        KeyMissing, AuthenticationFailed: a key is missing or wrong. If the bytes of the segment have changed, its data
            are damaged instead.

    Cost: the first time, reads the whole segments; see `DatasetReader.check_whole`.
    """
    damaged = _damaged(opened, snapshot, rows)
    changed: dict[int, bool] = {}  # segments, by their ids
    for broken, run in groupby(rows, lambda row: damaged.get(row[1])) if damaged else [(None, rows)]:
        if broken is None:
            for some, result in _read_halves([*run], read):
                if isinstance(result, Broken) and isinstance(result.error, _UNDECRYPTED):
                    id_ = some[0][1]
                    if id_ not in changed:
                        changed[id_] = opened.reader.has_changed(snapshot, id_)
                    if not changed[id_]:
                        raise result.error
                yield some, result
        else:
            yield from (([row], broken) for row in run)


def _damaged(opened: Opened, snapshot: Snapshot, rows: Iterable[Row]) -> dict[int, Broken]:
    """Return why the data of segments, by their ids, cannot be believed."""
    found: dict[int, Broken] = {}
    by_segment: dict[int, list[Row]] = {}
    for row in rows:
        by_segment.setdefault(row[1], []).append(row)
    for id_, some in by_segment.items():
        try:
            opened.reader.check_whole(snapshot, id_, some)
        except IndexCorrupt:
            raise
        except (IntegrityError, SegmentMissing) as error:
            found[id_] = Broken(error)
    return found


def _read_halves(
    rows: Sequence[Row], read: Callable[[Sequence[Row]], _T]
) -> Iterator[tuple[Sequence[Row], _T | Broken]]:
    """Do what `read_some` does with data of segments that are whole, or whose data have checksums."""
    try:
        result = read(rows)
    except IndexCorrupt:
        raise
    except (IntegrityError, SegmentMissing, *_UNDECRYPTED) as error:
        if len(rows) == 1:
            yield rows, Broken(error)
            return
        half = len(rows) // 2
        yield from _read_halves(rows[:half], read)
        yield from _read_halves(rows[half:], read)
    else:
        yield rows, result


def deletions_in(run: Run) -> list[tuple[int, int, Kind]]:
    """Return number, number of the datum, and kind of deletions."""
    return [(seq, target, _OF_DELETION[forgotten]) for seq, target, forgotten in run.rows]


def kind_of(forgotten: int) -> Kind:
    """Return the kind of a deletion, from the column of the index."""
    return _OF_DELETION[forgotten]


def last_change(snapshot: Snapshot) -> int:
    """Return the number of the last change of a dataset; of a replica, the last one that it has applied.

    The counter of a replica may be higher: an earlier state of its source may have been put back.

    Raises:
        StateError: a full comparison of a replica with its source is not complete.
    """
    state, followed = snapshot.dataset(), replica.followed(snapshot)
    if followed is None or followed.replica != state["uuid"]:
        return int(state["seq"])
    if followed.comparison is not None:
        hint = "Run `ondisk replicate SOURCE REPLICA --reconcile --yes` for it."
        raise StateError(f"the comparison of replica {state['uuid']} with its source is not complete", hint=hint)
    return followed.offset


def _read(parts: Parts, runs: Iterable[Run]) -> Iterator[Change]:
    for run in runs:
        if not run.is_new:
            yield from (Change(seq, kind, target=target) for seq, target, kind in deletions_in(run))
            continue
        opened, snapshot = parts[run.part]

        def data(rows: Sequence[Row], opened: Opened = opened, snapshot: Snapshot = snapshot) -> list[Datum]:
            return [datum for some in opened.reader.rows(snapshot, [row[:-1] for row in rows]) for datum in some]

        for some, result in read_some(opened, snapshot, run.rows, data):
            if isinstance(result, Broken):
                yield Change(some[0][-1], Kind.UNREADABLE, error=result.error)
            else:
                yield from (Change(row[-1], Kind.APPENDED, datum) for row, datum in zip(some, result, strict=True))


def _lag(parts: Parts, reached: int, last: int) -> Lag:
    size = 0
    for _, snapshot in parts if reached < last else ():
        where = snapshot.where(Everything())
        step, data = changes.sample(snapshot, where.sql, where.values, reached, last, _SAMPLE)
        size += step * sum(each for _, each in data)
    return Lag(last - reached, size)
