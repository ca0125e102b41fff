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
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ondisk.formats.base import BATCH_BYTES, Batch
from ondisk.table_options import INFER, TableOptions
from ondisk.tables.times import Twice, of_reftime

_MOST_ROWS = 100_000  # of a run


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a table. The place of a row is its number among them, from 0 on."""

    numbers: Sequence[int]  # those of the rows in the table, or of their lines
    times: list[int | str]  # the moment of each, microseconds since 1970; or why it is refused, perhaps a `Twice`
    encode: Callable[[], Batch]  # returns their data, see `encoded`
    series: Callable[[], Sequence[Sequence[object]]]  # returns the columns that say to which series each row belongs
    size: Callable[[], int]  # returns about how many bytes they have
    unread: Mapping[int, str] = field(default_factory=dict)  # number of a row that is not among them → why


def batches_of(tables: Iterable[Rows], options: TableOptions, word: str, batch_size: int) -> Iterator[Batch]:
    """Yield the rows of a table as data, in batches of at most `batch_size` data or `BATCH_BYTES`.

    The reason of a row that is refused begins with `word` and its number.
    """
    return _joined((numbered(rows.encode(), rows, word) for rows in decided(tables, options)), batch_size)


def encoded(columns: Sequence[Sequence[Any]], refused: Mapping[int, str], encode: Callable[..., Batch]) -> Batch:
    """Return rows in columns as data; those that are refused have their places. The first column has the times."""
    times = columns[0]
    if {*map(type, times)} - {int}:
        without = {place: of_reftime(time) for place, time in enumerate(times) if isinstance(time, str)}
        refused = {**refused, **without}
    if not refused and times:
        return encode(*columns)
    kept = [place for place in range(len(times)) if place not in refused]
    batch = encode(*([column[place] for place in kept] for column in columns)) if kept else Batch()
    batch.refused = sorted([*((kept[place], why) for place, why in batch.refused), *refused.items()])
    return batch


def numbered(batch: Batch, rows: Rows, word: str) -> Batch:
    """Return the data of rows with those that were not read, and with reasons that name the rows by their numbers."""
    if batch.refused or rows.unread:
        refused = {**rows.unread, **{rows.numbers[place]: why for place, why in batch.refused}}
        whole = enumerate(sorted([*rows.numbers, *rows.unread]))
        batch.refused = [(place, f"{word} {number}: {refused[number]}") for place, number in whole if number in refused]
    return batch


def _joined(batches: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
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
    if len(whole):
        yield whole


class _Row(NamedTuple):
    times: list[int | str]  # those of the rows that it is among
    place: int
    series: object
    time: Twice


def switches(times: Sequence[int]) -> list[int]:
    """Return the places of the rows of a series from which on the second hour can be, by their local times."""
    if len(times) == 2 and times[0] == times[1]:  # among more rows, one of two equal ones may be a repeated one
        return [1]
    return [place for place, (before, after) in enumerate(pairwise(times), 1) if after < before]


def decided(tables: Iterable[Rows], options: TableOptions) -> Iterator[Rows]:
    """Yield rows, with what `INFER` decides about times that occur twice in place of these.

    Rows are held back until the run at their end is complete.

    Memory: the rows of a run, at most `_MOST_ROWS` or `BATCH_BYTES`, and two pieces.
    """
    if options.ambiguous != INFER:
        yield from tables
        return
    runs, held, size = _Runs(), list[Rows](), 0
    for rows in tables:
        held.append(rows)
        runs.read(rows.times, rows.series)
        if runs.open:
            size += rows.size()
            runs.limit(size)
        if not runs.open or runs.is_long:
            yield from held
            held, size = [], 0
    runs.end()
    yield from held


def decide(times: list[int | str]) -> None:
    """Put what the order of the rows decides in place of times that occur twice; all rows are of one series."""
    runs = _Runs()
    runs.read(times, list)
    runs.end()


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

    def read(self, times: list[int | str], series: Callable[[], Sequence[Sequence[object]]]) -> None:
        """Read the next rows; what is decided about their times, now or later, takes the place of these."""
        if not self.open and Twice not in {*map(type, times)}:
            self._before = next((time for time in reversed(times) if isinstance(time, int)), self._before)
            return
        columns = series()
        keys = zip(*columns, strict=True) if columns else [()] * len(times)
        for place, (time, key) in enumerate(zip(times, keys, strict=True)):
            if isinstance(time, Twice):
                if self.open and not time.is_near(self.open[-1].time):
                    self.end(time.moments[0])
                self.open.append(_Row(times, place, key, time))
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
                row.times[row.place] = row.time.moments[number >= places[0]]


def _refuse(rows: Iterable[_Row], why: str) -> None:
    for row in rows:
        row.times[row.place] = f"{row.time}; the order of the rows does not tell which one is meant: {why}"
