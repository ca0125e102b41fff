"""Tables in: what the readers of CSV, JSON lines and Arrow have in common.

They read a table in pieces of some rows. Rows that cannot be data are refused alone, by their number.

Local times occur twice when clocks are put back: the order of the rows decides which moment is meant. Rows that follow
each other in such an hour are a run. The rows of one series, such as a station, are in the order of time, so the clock
was put back where the time of a series goes back, or between two rows if they are all and have the same time. If a run
has one such place, the rows before it are of the first hour and the others of the second. In all other cases both hours
are possible, and the rows of the series in this run are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ondisk.formats.base import BATCH_BYTES, Batch
from ondisk.table_options import INFER, TableOptions
from ondisk.tables.times import Twice

_MOST_ROWS = 100_000  # of a run

Piece = TypeVar("Piece", contravariant=True)
Answers: TypeAlias = dict[int, int | str]
"""Place of a row whose time occurs twice → its moment, microseconds since 1970; or why it is refused."""


class Timed(Protocol[Piece]):
    """Reads pieces of a table, some rows each. The place of a row is its number in its piece, from 0 on."""

    def times(self, piece: Piece) -> Sequence[int | str | None]:
        """Return the time of each row: its moment, or why it has none, perhaps a `Twice`; or None."""

    def series(self, piece: Piece) -> Iterable[object]:
        """Return to which series each row belongs, by something that can be a key."""

    def size(self, piece: Piece) -> int:
        """Return about how many bytes a piece has."""


def encoded(columns: Sequence[Sequence[Any]], refused: Mapping[int, str], encode: Callable[..., Batch]) -> Batch:
    if not refused and columns[0]:
        return encode(*columns)
    kept = [place for place in range(len(columns[0])) if place not in refused]
    batch = encode(*([column[place] for place in kept] for column in columns)) if kept else Batch()
    batch.refused = sorted([*((kept[place], why) for place, why in batch.refused), *refused.items()])
    return batch


def numbered(batch: Batch, numbers: Sequence[int], others: Mapping[int, str], word: str) -> Batch:
    """Return a batch whose reasons name the rows by their numbers, and which also has others, refused before."""
    if batch.refused or others:
        refused = {**others, **{numbers[place]: why for place, why in batch.refused}}
        places = {number: place for place, number in enumerate(sorted({*numbers, *others}))}
        batch.refused = [(places[number], f"{word} {number}: {refused[number]}") for number in sorted(refused)]
    return batch


def joined(batches: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
    whole, size = Batch(), 0
    for batch in batches:
        if len(whole) + len(batch) > batch_size:
            yield whole
            whole, size = Batch(), 0
        whole.extend(batch)
        size += sum(map(len, batch.payloads))
        if len(whole) >= batch_size or size >= BATCH_BYTES:
            yield whole
            whole, size = Batch(), 0
    if len(whole) or whole.notes:
        yield whole


class _Row(NamedTuple):
    answers: Answers
    place: int
    series: object
    time: Twice


def switches(times: Sequence[int]) -> list[int]:
    """Return the places of the rows of a series from which on the second hour can be, by their local times."""
    if len(times) == 2 and times[0] == times[1]:  # among more rows, one of two equal ones may be a repeated one
        return [1]
    return [place for place, (before, after) in enumerate(pairwise(times), 1) if after < before]


def decided(pieces: Iterable[Piece], rows: Timed[Piece], options: TableOptions) -> Iterator[tuple[Piece, Answers]]:
    """Yield the pieces of a table, each with what `INFER` decides about its times that occur twice.

    A piece is held back until the run at its end is complete.

    Memory: the rows of a run, at most `_MOST_ROWS` or `BATCH_BYTES`, and two pieces.
    """
    if options.ambiguous != INFER:
        yield from ((piece, {}) for piece in pieces)
        return
    runs, held, size = _Runs(), list[tuple[Piece, Answers]](), 0
    for piece in pieces:
        answers = Answers()
        held.append((piece, answers))
        runs.read(rows.times(piece), partial(rows.series, piece), answers)
        if runs.open:
            size += rows.size(piece)
            runs.limit(size)
        if not runs.open or runs.is_long:
            yield from held
            held, size = [], 0
    runs.end()
    yield from held


def of_one_series(times: Sequence[int | str]) -> Answers:
    runs, answers = _Runs(), Answers()
    runs.read(times, lambda: [()] * len(times), answers)
    runs.end()
    return answers


class _Runs:
    """The runs of a table.

    Attributes:
        open: the rows of a run that may go on; the last one, if it is too long.
        is_long: the run has too many rows, which are refused.
    """

    def __init__(self) -> None:
        self.open: list[_Row] = []
        self.is_long = False
        self._before: int | None = None  # the moment of the row before the run

    def read(self, times: Sequence[int | str | None], series: Callable[[], Iterable[object]], answers: Answers) -> None:
        """Read the next rows, and put into `answers` what is decided about them, now or later."""
        if not self.open and Twice not in {*map(type, times)}:
            self._before = next((time for time in reversed(times) if isinstance(time, int)), self._before)
            return
        for place, (time, key) in enumerate(zip(times, series(), strict=True)):
            if isinstance(time, Twice):
                if self.open and not time.is_near(self.open[-1].time):
                    self.end(time.moments[0])
                self.open.append(_Row(answers, place, key, time))
            elif isinstance(time, int):
                self.end(time)
                self._before = time

    def limit(self, size: int) -> None:
        """Refuse the rows of the run if it is too long. `size`: of the rows that are held for it, bytes."""
        if self.is_long or len(self.open) > _MOST_ROWS or size > BATCH_BYTES:
            self._refuse_long()
            self.open, self.is_long = self.open[-1:], True

    def end(self, after: int | None = None) -> None:
        """End the run, and decide about its rows. `after`: the moment of the next row; None at the end of the table."""
        if not self.open:
            return
        first, last = self.open[0].time.moments, self.open[-1].time.moments
        if self.is_long:
            self._refuse_long()
        elif (self._before is not None and self._before > first[1]) or (after is not None and after < last[0]):
            _refuse(self.open, "the rows before or after this hour are not in the order of time")
        else:
            self._decide()
        self._before, self.open, self.is_long = last[0], [], False

    def _refuse_long(self) -> None:
        _refuse(self.open, f"more than {_MOST_ROWS:,} rows, or {BATCH_BYTES >> 20} MiB, follow each other in this hour")

    def _decide(self) -> None:
        by_series = defaultdict[object, list[_Row]](list)
        for row in self.open:
            by_series[row.series].append(row)
        for some in by_series.values():
            places = switches([row.time.moments[0] for row in some])
            if len(places) != 1:
                _refuse(some, f"the second hour can begin at {len(places) or 'none'} of the rows of this series")
                continue
            for number, row in enumerate(some):
                row.answers[row.place] = row.time.moments[number >= places[0]]


def _refuse(rows: Iterable[_Row], why: str) -> None:
    for row in rows:
        row.answers[row.place] = f"{row.time}; the order of the rows does not tell which one is meant: {why}"
