"""Merge what a query finds in several datasets into one order, without opening all of them at once."""

from __future__ import annotations

import contextlib
import heapq
import resource
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from operator import itemgetter
from threading import Semaphore
from typing import Any, Generic, TypeAlias, TypeVar

from ondisk.dataset.dataset import Dataset
from ondisk.dataset.delete import State
from ondisk.dataset.query import Query
from ondisk.datum import Datum, microseconds
from ondisk.errors import StateError
from ondisk.matcher import Everything
from ondisk.matcher.sort import Sort
from ondisk.step import Interval

_T = TypeVar("_T")
_MOST = 256  # datasets that are open at once
_SHARE = 32  # of the files that a process may open, one in so many is a dataset: with archives, it may need 20
_SOME, _BYTES = 200, 1024 * 1024  # data and bytes of a dataset that is not kept open


@dataclass(frozen=True, slots=True)
class Candidate:
    """A dataset that may have matching data, and the times that these may have."""

    name: str
    times: Interval
    uuid: str | None  # of its index when the times were looked at; None if it may not know all data


Opener: TypeAlias = Callable[[Candidate], contextlib.AbstractContextManager[Dataset]]


@dataclass(frozen=True, slots=True)
class Kind(Generic[_T]):
    """What a query returns of each datum."""

    read: Callable[[str, Dataset, Query], Generator[_T, None, None]]  # yields it, from a dataset of a name
    datum: Callable[[_T], Datum]  # returns a datum with its reftime and its declared fields
    size: Callable[[_T], int]  # returns its bytes in memory


def most_open() -> int:
    """Return how many datasets may be open at once."""
    return max(1, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE))


def merged(
    candidates: Iterable[Candidate], opened: Opener, query: Query, order: Sort, kind: Kind[_T]
) -> Generator[_T, None, None]:
    """Yield what a query finds in several datasets in one order, up to its limit."""
    room = Semaphore(most_open())
    streams = [_Stream(opened, each, query, order, kind, room) for each in candidates]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(contextlib.closing(stream.read())) for stream in streams]
        found = (item for _, item in heapq.merge(*running, key=itemgetter(0)) if item is not None)
        yield from islice(found, query.limit)


class _Stream(Generic[_T]):
    """What a query finds in one dataset, in order."""

    def __init__(
        self,
        opened: Opener,
        candidate: Candidate,
        query: Query,
        order: Sort,
        kind: Kind[_T],
        room: Semaphore,
    ) -> None:
        self._opened = opened
        self._candidate = candidate
        self._query = query
        self._order = order
        self._kind = kind
        self._room = room
        self._state: State | None = None
        self._left = query.limit  # data that may still be returned
        self._last: datetime | None = None  # the reftime of the last datum that was returned
        self._same = 0  # the data with this reftime that were returned

    def read(self) -> Generator[tuple[Any, _T | None], None, None]:
        """Yield what is found, with its sort key; but first None with a key before all others, and only then open."""
        yield self._order.bound(self._candidate.times), None
        is_complete = False
        while not is_complete:
            with self._opened(self._candidate) as dataset:
                self._check_unchanged(dataset)
                if self._room.acquire(blocking=False):
                    try:
                        with contextlib.closing(self._rest(dataset, self._left)) as found:
                            yield from self._keyed(found)
                    finally:
                        self._room.release()
                    return
                self._state = dataset.state()
                some, is_complete = self._some(dataset)
            yield from self._keyed(some)

    def _keyed(self, found: Iterable[_T]) -> Iterator[tuple[Any, _T | None]]:
        key_of, datum_of = self._order.key_of, self._kind.datum
        return ((key_of(datum_of(item)), item) for item in found)

    def _check_unchanged(self, dataset: Dataset) -> None:
        """Raise StateError if the dataset has changed since some data were returned: others might be missed."""
        if self._state is not None and self._state != dataset.state():
            message = f"{self._candidate.name} was changed while its data were merged with those of many datasets"
            hint = (
                "Query again, or fewer datasets at once. More stay open with a higher limit of open files: ulimit -n."
            )
            raise StateError(message, hint=hint)

    def _some(self, dataset: Dataset) -> tuple[list[_T], bool]:
        """Return the next data, a few in memory, and whether they are the last ones."""
        # As many as are skipped, so that those of one reftime are not read again and again.
        most = max(_SOME, self._same)
        if self._left is not None:
            most = min(most, self._left)
        some: list[_T] = []
        size = 0
        with contextlib.closing(self._rest(dataset, most)) as found:
            for item in found:
                some.append(item)
                size += self._kind.size(item)
                if size >= _BYTES:
                    break
        is_complete = len(some) < most and size < _BYTES
        for item in some:
            reftime = self._kind.datum(item).reftime
            self._same = self._same + 1 if reftime == self._last else 1
            self._last = reftime
        if self._left is not None:
            self._left -= len(some)
        return some, is_complete or self._left == 0

    def _rest(self, dataset: Dataset, most: int | None) -> Generator[_T, None, None]:
        """Yield the data that were not returned yet. `most`: the highest number of them; None for all."""
        tree = self._query.tree(dataset._access.current().index)
        if self._order.is_by_time:
            # Data that were stored since the query looked at the span may precede it, and so what was returned already.
            begin = self._order.begin(self._candidate.times) if self._last is None else microseconds(self._last)
            since = self._order.since(begin)
            tree = since if tree == Everything() else tree & since
        limit = None if most is None else most + self._same
        found = self._kind.read(self._candidate.name, dataset, self._query._replace(match=tree, equal={}, limit=limit))
        with contextlib.closing(found):
            yield from islice(found, self._same, None)
