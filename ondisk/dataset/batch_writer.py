"""Write data that a transaction inserts to the ends of segments: of appends, which choose them here, and of commits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice, repeat
from typing import TYPE_CHECKING, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.dataset.segment_layout import Roll
from ondisk.errors import SegmentMissing, command
from ondisk.filesystem import Directory
from ondisk.formats import Batch, Format
from ondisk.index import Segment
from ondisk.index.transaction import Transaction
from ondisk.segment import Start
from ondisk.segments.concat_writer import ConcatWriter, SegmentWriter
from ondisk.segments.generations import complete
from ondisk.step import Interval, runs_of

if TYPE_CHECKING:
    from ondisk.segments.dir_writer import DirWriter, FileWriter

_MANY = 3  # missing segments, from which on the disk of their folder may not be mounted
DataWriter: TypeAlias = "SegmentWriter | FileWriter"


class Destination:
    def __init__(self, segment: Segment, interval: Interval, format: Format, start: Start, *, known: bool) -> None:
        self.segment = segment  # its row in the index, or that of a new segment
        self.interval = interval  # the interval of its name; in a sequence, that of the data to write
        self.format = format  # the format of its data
        self.start = start  # where it continues
        self.known = known  # whether the index knows it
        self.payloads: Sequence[bytes] = ()  # the data that are written to it first, if they are in memory


class BatchWriter:
    """Writes data to the ends of their segments, of either kind.

    Args:
        trusted: the sentinel does not exist, so bytes after a segment's committed size belong to an interrupted append.

    Durability: writes bytes at the ends of segments, then the counts in headers → syncs each segment, and the
        directories of new ones. If the transaction ends without a commit, the writes are undone.
    """

    def __init__(self, directory: Directory, transaction: Transaction, *, trusted: bool) -> None:
        self.directory = directory
        self.transaction = transaction
        self.trusted = trusted
        self._kept_before = len(directory.kept)
        self._concat = ConcatWriter(directory, transaction.take_generation)
        self._has_new = False
        transaction.on_rollback(self._concat.undo)
        transaction.at_end(self._concat.close)

    @property
    def kept(self) -> list[str]:
        """The items in quarantine with data of somebody else, or of an interrupted append, that were in the way."""
        return self.directory.kept[self._kept_before :]

    @cached_property
    def _dir(self) -> DirWriter:
        from ondisk.segments.dir_writer import DirWriter  # here, as few datasets have dir segments

        writer = DirWriter(self.directory)
        self.transaction.on_rollback(writer.undo)
        self.transaction.after_commit(writer.reveal)
        return writer

    def _of(self, format: Format) -> ConcatWriter | DirWriter:
        return self._dir if format.is_dir else self._concat

    def destination(self, segment: Segment | None, name: str, interval: Interval, format: Format) -> Destination:
        """Return where a segment continues.

        Raises SegmentMissing if the index knows data of it, and its file or, for a new one, its whole folder is not
        there; SegmentCorrupt or StateError if nothing can be appended to it.
        """
        files, transaction = self._of(format), self.transaction
        if segment is None:
            self._check_mounted(name)
        elif not self._exists(segment, format):
            if not transaction.forget_if_empty(segment):
                raise self._missing(f"the segment {name} is in the index, but not on disk")
            segment = None  # its data and its file were deleted: create it again
        end, committed = (None, None) if segment is None else (segment.end, segment.committed(format.mutable))
        start = files.start(name, end, committed, format, trusted=self.trusted)
        known = segment is not None
        if segment is None:
            segment = Segment(transaction.take_generation(), name, format.name, start.laid.end)
            files.clear(name, segment.id)
            if not (format.is_dir or self._has_new):
                self._has_new = True
                transaction.after_commit(self._concat.reveal)
        return Destination(segment, interval, format, start, known=known)

    def _exists(self, segment: Segment, format: Format) -> bool:
        """Return whether anything has the segment's name; first a generation that a crash left hidden gets the name."""
        complete(self.directory, segment.name, segment.id, segment.committed(format.mutable))
        return self.directory.stat(segment.name) is not None

    def _check_mounted(self, name: str) -> None:
        """Raise if the folder of a new segment is empty, although the index knows several segments in it."""
        folder = name.rpartition("/")[0]
        others = self.transaction.segments_in(folder, _MANY)
        if len(others) < _MANY or any(self.directory.stat(each) is not None for each in others):
            return
        if self.directory.stat(folder) is None or all(each.startswith(".") for each in self.directory.names(folder)):
            raise self._missing(f"the folder {folder} is empty, but the index knows segments in it")

    def _missing(self, problem: str) -> SegmentMissing:
        how = f"{command('fix', self.directory.path, '--yes')} removes them from the index, or says why not"
        hint = f"Mount its disk, or restore it. If its data are lost, {how}."
        return SegmentMissing(problem, hint=hint)

    def write(
        self,
        destinations: Iterable[Destination],
        fill: Callable[[Destination, DataWriter], None],
        renumber: Callable[[], None],
    ) -> None:
        """Write to segments, sync them, and save their new ends; `renumber` corrects the index if one changed."""
        # Dir segments first: if their numbers change, all offsets are computed again, from the old ends of segments.
        destinations = sorted(destinations, key=lambda each: not each.format.is_dir)
        is_written = False
        while not is_written:
            try:
                for destination in destinations:
                    files, name = self._of(destination.format), destination.segment.name
                    where = name, destination.segment.id, destination.start, destination.format
                    with files.writing(*where, destination.payloads, known=destination.known) as writer:
                        fill(destination, writer)
                is_written = True
            except FileExistsError:  # a file that a crash left
                if not destination.format.is_dir:
                    raise
                self._dir.undo()
                destination.start = self._dir.restart(name, destination.start)
                renumber()
        for files in dict.fromkeys(self._of(each.format) for each in destinations):
            files.sync()
        for destination in destinations:
            files, name = self._of(destination.format), destination.segment.name
            end, blocks, facts = files.appended(name)
            has_unknown = destination.segment.has_unknown or destination.start.has_unknown
            segment = destination.segment._replace(end=end, facts=facts, has_unknown=has_unknown)
            self.transaction.save_segment(segment, destination.interval)
            self.transaction.save_blocks(segment, blocks)
            if destination.format.is_dir and destination.known:  # files that an interrupted append has left
                skipped = destination.start.laid.end.length - destination.segment.end.length
                self.transaction.add_deleted(segment.id, skipped, 0)


class Destinations(ABC):
    runs: list[tuple[Destination, int]]

    def __init__(self, format: Format) -> None:
        self._format = format

    def ids(self) -> list[int]:
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
        """Drop all data but those at some positions of `rows` (seq, reftime, segment, offset, size)."""


class ByTime(Destinations):
    """Segments of a step of time; refuses data whose segment is missing: its disk may not be mounted."""

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
