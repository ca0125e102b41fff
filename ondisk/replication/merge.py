"""Merge new data and deletions into the order of their numbers, many at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ondisk.index import Row

OVERHEAD = 64
"""Bytes for which a change counts, besides its datum's."""

_SIZE = 3  # where a row has the size of its datum


class Run(NamedTuple):
    """Changes of one kind, in the order of their numbers.

    Attributes:
        is_new: new data; else deletions.
        rows: of data: reftime, segment, offset, size, … and the number at the end. Of deletions: number, number of the
            datum, why.
    """

    is_new: bool
    rows: Sequence[Row]

    @property
    def seqs(self) -> list[int]:
        """The numbers of the changes."""
        at = -1 if self.is_new else 0
        return [row[at] for row in self.rows]


class Stream:
    """The changes of one kind.

    Args:
        chunks: their rows in the order of their numbers, some at a time; see `Run`.

    Attributes:
        head: the number of the next change; None at the end.
    """

    def __init__(self, chunks: Iterator[list[Row]], *, is_new: bool) -> None:
        self.is_new = is_new
        self.head: int | None = None
        self._chunks = chunks
        self._number: Callable[[Row], int] = (lambda row: row[-1]) if is_new else (lambda row: row[0])
        self._rows: list[Row] = []
        self._at = 0
        self._pass(0)

    def take(self, bound: int | None) -> Run:
        """Return the next changes: at least one, and only those with numbers below a bound if there is one."""
        end = len(self._rows)
        if bound is not None and self._number(self._rows[-1]) >= bound:
            end = bisect_left(self._rows, bound, self._at, key=self._number)
        taken = self._rows[self._at : end] if self._at or end < len(self._rows) else self._rows
        self._pass(end - self._at)
        return Run(self.is_new, taken)

    def _pass(self, count: int) -> None:
        self._at += count
        if self._at >= len(self._rows):
            self._rows, self._at = next(self._chunks, []), 0
        self.head = self._number(self._rows[self._at]) if self._rows else None


def merged(*streams: Stream) -> Iterator[Run]:
    """Yield changes in the order of their numbers; no two have the same."""
    while live := [stream for stream in streams if stream.head is not None]:
        first = min(live, key=_head)
        yield first.take(min((_head(stream) for stream in live if stream is not first), default=None))


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


def _head(stream: Stream) -> int:
    assert stream.head is not None
    return stream.head
