"""The change feed of a dataset: what was appended and deleted after a token, in the order of changes.

A datum that was deleted since is not among the changes, and neither is the deletion of a datum that the token does not
cover. Still, a deletion may be of a datum that no answer had: one that was deleted between two answers. A replacement
is a datum, and the deletion of another one with a higher number. Where the bytes are does not matter, so maintenance
changes nothing.

The first answers, from the beginning on, contain the data that exist, without deletions of earlier ones. Their tokens
say with which change this reading began (`index_start`), until they have passed it.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.place_checks import check_complete
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
    shown,
)
from ondisk.index import Row, Snapshot, changes
from ondisk.index.changes import Removal
from ondisk.matcher import Everything
from ondisk.replication import source_rows
from ondisk.replication.token import NO_COMPARISON, Token

MAX_BYTES = 1024 * 1024
_T = TypeVar("_T")
Part: TypeAlias = tuple[Opened, Snapshot]  # an index, and the state of it that is read
_UNDECRYPTED = (AuthenticationFailed, KeyMissing)
_SAMPLE = 1000  # numbers that are looked up to estimate the lag
_REMEDY = "Begin without a token: the answers then contain all data, also those that you have."
OVERHEAD = 64  # bytes for which a change counts, besides its datum's
_SIZE = 3  # where a row has the size of its datum


class Kind(Enum):
    APPENDED = "appended"  # a datum is new
    UNREADABLE = "unreadable"  # a datum is new, and its bytes are damaged or missing
    DELETED = "deleted"  # somebody deleted or replaced a datum
    LOST = "lost"  # the bytes of a datum were lost outside of ondisk. Nobody deleted it: who has a copy keeps it
    AGED = "aged"  # a datum was older than `delete_age` of this dataset


_OF_DELETION = {
    Removal.DELETED: Kind.DELETED,
    Removal.LOST: Kind.LOST,
    Removal.AGED_AND_KEPT: Kind.AGED,
    Removal.AGED: Kind.AGED,
}


@dataclass(frozen=True, slots=True)
class Change:
    seq: int  # its number; that of the datum, if one is new
    kind: Kind  # what it is
    datum: Datum | None = None  # what is new
    target: int | None = None  # the number of the datum that is gone
    error: OndiskError | None = None  # why a datum cannot be read


class Lag(NamedTuple):
    """What is left after an answer."""

    changes: int  # numbers that were given out since; some may belong to no change any more
    bytes: int  # of the data with these numbers; estimated from a thousand of them, if they are more


class Answer(NamedTuple):
    changes: list[Change]  # in the order of their numbers; empty only if there are no more
    token: Token  # covers these changes, too
    lag: Lag  # what is left


class Chosen(NamedTuple):
    part: Part  # the index, open until the end of the block in which they were chosen
    runs: Sequence[Run]  # these changes, in the order of their numbers
    token: Token  # covers these changes, too
    lag: Lag  # what is left
    # those that gave out the numbers after the token before, up to the new one: first number, id
    sessions: Sequence[tuple[int, int]] = ()


def read(access: Access, token: Token | None, max_bytes: int) -> Answer:
    with chosen(access, token, max_bytes, whole=True) as (part, runs, reached, lag, _):
        return Answer([*_read(part, runs)], reached, lag)


@contextlib.contextmanager
def chosen(access: Access, token: Token | None, max_bytes: int, *, whole: bool) -> Iterator[Chosen]:
    """Find the changes of one answer, for the block; see `Dataset.changes`. `whole`: with the declared fields."""
    if type(max_bytes) is not int or max_bytes < 1:
        raise InvalidInput(f"max_bytes must be a whole number of 1 or more, not {shown(max_bytes)}")
    with reading(access) as (opened, snapshot):
        begin, last = _begin(snapshot, token, access)
        # A replica may have followed further before it was restored, and replicas of it have data that it has not now.
        up_to = begin.offset if whole or not begin.offset else changes.OWN
        data = changes.data_between(snapshot, begin.offset, last, whole=whole)
        deletions = changes.deletions_between(snapshot, max(begin.offset, begin.index_start), last, up_to)
        runs, is_all = first_of(_merged(data, deletions), max_bytes)
        reached = last if is_all else runs[-1].seqs[-1]
        start = begin.index_start if begin.index_start > reached else NO_COMPARISON
        new = Token(begin.dataset, changes.session_at(snapshot, max(reached, start)), reached, start)
        sessions = changes.sessions_between(snapshot, begin.offset, max(new.offset, new.index_start))
        yield Chosen((opened, snapshot), runs, new, _lag(snapshot, new.offset, last), sessions)


@contextlib.contextmanager
def reading(access: Access) -> Iterator[Part]:
    """Open the index of a dataset for the length of the block; raise NeedsCheck if it may not know all data."""
    opened = access.current()
    with opened.index.snapshot() as snapshot:
        check_complete(access, snapshot)
        yield opened, snapshot


def runs_of(rows: Iterator[list[Row]]) -> Iterator[Run]:
    return (Run(True, some) for some in rows)


def _begin(main: Snapshot, token: Token | None, access: Access) -> tuple[Token, int]:
    """Return a token to continue from, and the number of the last change; errors are those of `Dataset.changes`."""
    uuid, last = main.dataset()["uuid"], last_change(main)
    if token is None:
        token = Token(uuid)
    if not isinstance(token, Token):
        raise InvalidInput(f"a token must be what `changes` returned, not {shown(token)}", hint="Begin with None.")
    where, reached = access.path, max(token.offset, token.index_start)
    if token.dataset != uuid:
        message = f"{where}: the token is of {shown(token.dataset)}; this is another dataset, or its index was rebuilt"
        raise TokenForeign(message, hint=_REMEDY)
    is_other = token.offset < 0 or reached > last or changes.session_at(main, reached) != token.session
    expired = changes.expired(main)
    if is_other and not (token.offset > 0 and reached == expired):  # tokens of that number may have been let expire
        message = f"{where}: it has not made the change {reached} of the token, or not then"
        raise TokenForeign(f"{message}: an earlier state of the dataset was put back", hint=_REMEDY)
    if token.offset > 0 and (reached < expired or is_other):
        message = (
            f"{where}: the token covers {reached} changes, and not all deletions up to {expired} are known any more"
        )
        raise TokenExpired(message, hint=_REMEDY)
    if token.offset == 0:
        return Token(uuid, index_start=last), last
    return token, last


def read_some(
    opened: Opened, snapshot: Snapshot, rows: Sequence[Row], read: Callable[[Sequence[Row]], _T]
) -> Iterator[tuple[Sequence[Row], _T | OndiskError]]:
    """Yield some rows, in their order, and what was read of their data; or one, and why it cannot be read.

    If the bytes of a segment have changed, and none of its data has a checksum, nobody knows which are damaged: then
    none of them is read. If they have not, a missing or wrong key raises KeyMissing or AuthenticationFailed.

    Cost: the first time, reads the whole segments; see `DatasetReader.check_whole`.
    """
    damaged = _damaged(opened, snapshot, rows)
    changed: dict[int, bool] = {}  # segments, by their ids
    for broken, run in groupby(rows, lambda row: damaged.get(row[1])) if damaged else [(None, rows)]:
        if broken is None:
            for some, result in _read_halves([*run], read):
                if isinstance(result, _UNDECRYPTED):
                    id_ = some[0][1]
                    if id_ not in changed:
                        changed[id_] = opened.reader.has_changed(snapshot, id_)
                    if not changed[id_]:
                        raise result
                yield some, result
        else:
            yield from (([row], broken) for row in run)


def _damaged(opened: Opened, snapshot: Snapshot, rows: Iterable[Row]) -> dict[int, OndiskError]:
    """Return why the data of segments, by their ids, cannot be believed."""
    found: dict[int, OndiskError] = {}
    by_segment: dict[int, list[Row]] = {}
    for row in rows:
        by_segment.setdefault(row[1], []).append(row)
    for id_, some in by_segment.items():
        try:
            opened.reader.check_whole(snapshot, id_, some)
        except IndexCorrupt:
            raise
        except (IntegrityError, SegmentMissing) as error:
            found[id_] = error
    return found


def _read_halves(
    rows: Sequence[Row], read: Callable[[Sequence[Row]], _T]
) -> Iterator[tuple[Sequence[Row], _T | OndiskError]]:
    """Do what `read_some` does with data of segments that are whole, or whose data have checksums."""
    try:
        result = read(rows)
    except IndexCorrupt:
        raise
    except (IntegrityError, SegmentMissing, *_UNDECRYPTED) as error:
        if len(rows) == 1:
            yield rows, error
            return
        half = len(rows) // 2
        yield from _read_halves(rows[:half], read)
        yield from _read_halves(rows[half:], read)
    else:
        yield rows, result


def deletions_in(run: Run) -> list[tuple[int, int, Kind]]:
    return [(seq, target, kind_of(why)) for seq, target, why in run.rows]


def kind_of(why: int) -> Kind:
    return _OF_DELETION[Removal(why)]


def last_change(snapshot: Snapshot) -> int:
    """Return the number of the last change of a dataset; of a replica, the last one that it has applied.

    The counter of a replica may be higher: an earlier state of its source may have been put back. Raises StateError
    while a comparison of it is not complete.
    """
    state, followed = snapshot.dataset(), source_rows.followed(snapshot)
    if followed is None or followed.replica != state["uuid"]:
        return int(state["seq"])
    if followed.comparison is not None:
        hint = "Run `ondisk replicate SOURCE REPLICA --reconcile --yes` for it."
        raise StateError(f"the comparison of replica {state['uuid']} with its source is not complete", hint=hint)
    return followed.offset


def _read(part: Part, runs: Iterable[Run]) -> Iterator[Change]:
    opened, snapshot = part

    def data(rows: Sequence[Row]) -> list[Datum]:
        return [datum for some in opened.reader.rows(snapshot, [row[:-1] for row in rows]) for datum in some]

    for run in runs:
        if not run.is_new:
            yield from (Change(seq, kind, target=target) for seq, target, kind in deletions_in(run))
            continue
        for some, result in read_some(opened, snapshot, run.rows, data):
            if isinstance(result, OndiskError):
                yield Change(some[0][-1], Kind.UNREADABLE, error=result)
            else:
                yield from (Change(row[-1], Kind.APPENDED, datum) for row, datum in zip(some, result, strict=True))


def _lag(snapshot: Snapshot, reached: int, last: int) -> Lag:
    if reached == last:
        return Lag(0, 0)
    where = snapshot.where(Everything())
    step, data = changes.sample(snapshot, where.sql, where.values, reached, last, _SAMPLE)
    return Lag(last - reached, step * sum(each for _, each in data))


class Run(NamedTuple):
    """Changes of one kind, in the order of their numbers."""

    is_new: bool  # new data; else deletions
    # of data: reftime, segment, offset, size, … and the number at the end. Of deletions: number, number of the datum,
    # why
    rows: Sequence[Row]

    @property
    def seqs(self) -> list[int]:
        at = -1 if self.is_new else 0
        return [row[at] for row in self.rows]


def _merged(new: Iterator[list[Row]], gone: Iterator[list[Row]]) -> Iterator[Run]:
    """Yield new data and deletions in the order of their numbers; no two have the same."""
    data, deletions = next(new, []), next(gone, [])
    while data or deletions:
        if not deletions or (data and data[0][-1] < deletions[0][0]):
            end = bisect_left(data, deletions[0][0], key=itemgetter(-1)) if deletions else len(data)
            yield Run(True, data[:end])
            data = data[end:] or next(new, [])
        else:
            end = bisect_left(deletions, data[0][-1], key=itemgetter(0)) if data else len(deletions)
            yield Run(False, deletions[:end])
            deletions = deletions[end:] or next(gone, [])


def first_of(runs: Iterable[Run], max_bytes: int) -> tuple[list[Run], bool]:
    """Return changes up to a number of bytes, at least one; and whether these are all."""
    some: list[Run] = []
    weight = 0
    for run in runs:
        if run.is_new:
            weights = [*accumulate((row[_SIZE] + OVERHEAD for row in run.rows), initial=weight)]
        else:
            weights = [*range(weight, weight + OVERHEAD * len(run.rows) + 1, OVERHEAD)]
        fitting = bisect_right(weights, max_bytes) - 1
        if fitting < len(run.rows):
            fitting = max(fitting, 0 if some else 1)
            if fitting:
                some.append(run._replace(rows=run.rows[:fitting]))
            return some, len(run.rows) == fitting and next(iter(runs), None) is None
        some.append(run)
        weight = weights[-1]
    return some, True
