"""The segments that a batch appends to: those of the times of its data, or in a sequence the last one and new ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, chain, islice, repeat

from ondisk.config import DatasetConfig
from ondisk.dataset.batch_writer import BatchWriter, Destination
from ondisk.dataset.segment_layout import Roll
from ondisk.errors import SegmentMissing
from ondisk.formats import Batch, Format
from ondisk.index.transaction import Transaction
from ondisk.step import Interval, runs_of


class Destinations(ABC):
    """The segments that a batch appends to. `runs`: segments in the order of the data, each with their number."""

    runs: list[tuple[Destination, int]]

    def __init__(self, format: Format) -> None:
        self._format = format

    def ids(self) -> list[int]:
        """Return the segment id of each datum."""
        return [*chain.from_iterable(repeat(destination.segment.id, count) for destination, count in self.runs)]

    def offsets(self, sizes: Sequence[int]) -> list[int]:
        """Return the offsets that the data get at the ends of their segments."""
        ends = {destination: destination.start.laid.end.length for destination in self._all()}
        extents = iter(self._format.extents(sizes))
        offsets: list[int] = []
        for destination, count in self.runs:
            offsets += accumulate(islice(extents, count), initial=ends[destination])
            ends[destination] = offsets.pop()
        return offsets

    @abstractmethod
    def _all(self) -> Sequence[Destination]: ...

    @abstractmethod
    def keep(self, places: Sequence[int], rows: Sequence[Sequence[int]], transaction: Transaction) -> None:
        """Drop all data but those at some positions, and lay these one after the other; `rows` has all of them."""


class ByTime(Destinations):
    """Segments of a step of time. Refuses data whose segment is missing: it may be on a disk that is away."""

    def __init__(self, batch: Batch, format: Format, config: DatasetConfig, writer: BatchWriter) -> None:
        super().__init__(format)
        step = config.step
        self._unit = step.unit
        runs = runs_of(step.unit, batch.reftimes)
        stems = {unit: step.stem_of(unit) for unit in sorted({unit for unit, _ in runs})}
        names = {stem: f"{stem}.{format.extension}" for stem in stems.values()}
        known = writer.transaction.segments(names.values())
        by_stem, missing = {}, {}
        for stem, name in names.items():
            interval = step.interval(stem)
            assert interval is not None
            try:
                by_stem[stem] = writer.destination(known.get(name), name, interval, format)
            except SegmentMissing as error:
                missing[stem] = f"{error.message}. {error.hint}"
        if missing:
            reasons = [missing.get(stems[unit]) for unit, count in runs for _ in range(count)]
            batch.refuse({place: reason for place, reason in enumerate(reasons) if reason is not None})
        self._by_unit = {unit: by_stem[stem] for unit, stem in stems.items() if stem in by_stem}
        self.runs = self._find_runs(batch.reftimes)
        self._refit(batch)

    def _refit(self, batch: Batch) -> None:
        """Turn data into the form in which their segments began; refuse those that do not have it."""
        own, refused, at = self._format.begin().end.kind, dict[int, str](), 0
        for destination, count in self.runs:
            kind = destination.start.laid.end.kind
            if kind != own and not self._format.is_dir:
                fitted, reasons = self._format.refit(batch.payloads[at : at + count], kind)
                batch.payloads[at : at + count] = fitted
                refused.update((at + place, reason) for place, reason in reasons.items())
            at += count
        if refused:
            batch.refuse(refused)
            self.runs = self._find_runs(batch.reftimes)

    def _all(self) -> Sequence[Destination]:
        return [*self._by_unit.values()]

    def keep(self, places: Sequence[int], rows: Sequence[Sequence[int]], transaction: Transaction) -> None:
        kept = [rows[place] for place in places]
        self.runs = self._find_runs([row[1] for row in kept])
        moved = self.offsets([row[4] for row in kept])
        transaction.set_offsets((offset, row[0]) for row, offset in zip(kept, moved, strict=True) if offset != row[3])

    def _find_runs(self, reftimes: Sequence[int]) -> list[tuple[Destination, int]]:
        return [(self._by_unit[unit], count) for unit, count in runs_of(self._unit, reftimes)]


class InSequence(Destinations):
    """The last segment of a sequence, and new ones."""

    def __init__(self, batch: Batch, format: Format, roll: Roll) -> None:
        super().__init__(format)
        self._roll = roll
        self._divide(batch.reftimes, [*map(len, batch.payloads)])

    def _all(self) -> Sequence[Destination]:
        return self._roll.all

    def keep(self, places: Sequence[int], rows: Sequence[Sequence[int]], transaction: Transaction) -> None:
        kept = [rows[place] for place in places]
        sizes = [row[4] for row in kept]
        self._divide([row[1] for row in kept], sizes)
        transaction.set_places(zip(self.ids(), self.offsets(sizes), [row[0] for row in kept], strict=True))

    def _divide(self, reftimes: Sequence[int], sizes: Sequence[int]) -> None:
        self.runs = self._roll.runs(sizes)
        begin = 0
        for destination, count in self.runs:
            destination.interval = Interval.around(reftimes[begin : begin + count])
            begin += count
