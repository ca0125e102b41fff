"""Where the data of a dataset with the step `sequence` are stored: at the end of its last segment, then in new ones.

    0.seg, 1.seg …    its segments, in its directory: those of a Beats disk queue
    state.dat         where the consumer of the queue continues, see `ondisk.formats.diskqueue.state`

A segment is full if the next datum would make it larger than `segment_size`; a larger datum has a segment of its own.
Sizes are those of the decompressed bytes, as Beats counts them.

A new segment gets a number above all others: those in the index, in all places on disk, and in `state.dat`. Beats
does the same when it begins, so its segments and those of ondisk never have the same name, unless both write at a time.

Data are appended to the last segment only if ondisk has made it, as the configuration says now, and the consumer has
not passed it:

- A segment that Beats has made may still be growing: a Beat that runs knows where it ends, and writes there.
- The consumer removes segments before its position without reading them.

A segment that stores its data in another way than the configuration says is not continued either.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ondisk.config import DatasetConfig
from ondisk.dataset.batch_writer import BatchWriter, Destination
from ondisk.datum import INTEGER_MAX
from ondisk.errors import InvalidInput, SegmentCorrupt, SegmentMissing, StateError
from ondisk.formats import Format
from ondisk.formats.diskqueue.state import NAME
from ondisk.queue.consumer_position import check_position, numbers_in, position
from ondisk.segments.concat_writer import MustRewrite
from ondisk.segments.places import places
from ondisk.step import NOTHING


class QueueRoll:
    """The segments that one batch is written to. The caller must hold the writers' lock.

    Raises:
        InvalidInput: no queue has data of this format.
        StateError: the position in `state.dat` is after all segments: it must not be in a new one.
    """

    def __init__(self, writer: BatchWriter, config: DatasetConfig, format: Format) -> None:
        if format.name != config.format:
            hint = "Append them to a dataset with a step of time."
            problem = f'a dataset with the step "sequence" does not store data of the format {format.name}'
            raise InvalidInput(problem, hint=hint)
        self._directory = writer.directory
        self._writer = writer
        self._format = format
        self._limit = config.roll_size
        self._begin = format.begin().end.length
        check_position(self._directory)
        self._position = position(self._directory)
        last = writer.transaction.last_number()
        self._highest = max(-1 if last is None else last, *self._on_disk(), self._passed())
        self.all: list[Destination] = []
        if writer.trusted and last == self._highest and (destination := self._continued(last)) is not None:
            self.all.append(destination)

    def runs(self, sizes: Sequence[int]) -> list[tuple[Destination, int]]:
        """Divide data of some sizes among segments; return these in order, and how many data each gets."""
        ends = [*accumulate(sizes)]
        runs, done, used = [], 0, 0
        number, length = 0, self._start(0)
        while done < len(ends):
            count = bisect_right(ends, used + self._limit - length, done) - done
            if not count and length > self._begin:
                number, length = number + 1, self._start(number + 1)
                continue
            count = max(count, 1)
            runs.append((self.all[number], count))
            done += count
            length, used = length + ends[done - 1] - used, ends[done - 1]
        return runs

    def _start(self, place: int) -> int:
        """Return where a segment of the batch begins, and begin it if it is new."""
        if place == len(self.all):
            if self._highest >= INTEGER_MAX:  # hostile, or garbled: nobody begins so many
                problem = f"a segment or {NAME} has the number {self._highest}: no number is left for a new segment"
                hint = f"Move that segment away; or remove {NAME}, if it is damaged: then the consumer begins again."
                raise StateError(f"{self._directory.path}: {problem}", hint=hint)
            self._highest += 1
            name = f"{self._highest}.{self._format.extension}"
            self.all.append(self._writer.destination(None, name, NOTHING, self._format))
        return self.all[place].start.laid.end.length

    def _continued(self, number: int) -> Destination | None:
        name = f"{number}.{self._format.extension}"
        segment = self._writer.transaction.segments([name]).get(name)
        if segment is None or segment.shared or segment.has_unknown or segment.copies:
            return None
        begun = self._format.begin().end
        if (segment.end.kind, segment.end.compressed) != (begun.kind, begun.compressed):  # stored in another way
            return None
        if self._directory.stat(name) is None:
            return None
        with contextlib.suppress(SegmentCorrupt, SegmentMissing, StateError, MustRewrite):
            return self._writer.destination(segment, name, NOTHING, self._format)
        return None

    def _on_disk(self) -> list[int]:
        folders = (name.rstrip("/") for name in ("", *places(self._directory)))
        return [number for folder in folders for number in numbers_in(self._directory, folder)]

    def _passed(self) -> int:
        """Return the highest number that the consumer has passed: it would skip data in a new segment with that."""
        if self._position is None:
            return -1
        return self._position.segment if self._position.offset(0) > 0 else self._position.segment - 1
