"""The data of a queue in its order: by the number of the segment, then by offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias, cast

from ondisk.dataset.access import Access
from ondisk.errors import SegmentMissing, StateError, command
from ondisk.filesystem import ReadableFile
from ondisk.formats.base import FileStream
from ondisk.formats.diskqueue.frame_reader import FrameReader, walk
from ondisk.formats.diskqueue.header import MAX_SIZE, Header
from ondisk.formats.diskqueue.seg import Seg
from ondisk.formats.diskqueue.state import State
from ondisk.index import Row, Segment, Snapshot, segment_rows
from ondisk.queue.position import has_gone
from ondisk.step import number_of

_WINDOW = 20_000  # rows that are read at once: to find them, SQLite reads all rows of a segment's interval
_BYTES = 1024 * 1024
"""Bytes of data that are taken together, unless one alone is larger: in memory they may need 70 times as much."""

Stop: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """Some data of one segment, which follow each other in the queue."""

    segment: Segment  # their segment
    rows: Sequence[Row]  # their rows; none if only deleted data are there
    end: State  # the position after them, in the form of `state.dat` of version 1
    begin: int  # the logical offset of the first frame in the segment


class Order:
    """Goes through the data of a queue; each call reads the present index.

    Segments that the consumer still has to read change only by appending: maintenance leaves them alone.

    Args:
        at: where to begin; None for the oldest segment.
    """

    def __init__(self, access: Access, at: State | None) -> None:
        self._access = access
        self._number = -1 if at is None else at.segment
        self._start: State | None = at
        self._at: _Open | None = None
        self._window: deque[Row] = deque()
        self._is_all = False  # no rows of the segment follow those of the window
        self._end = 0  # of the segment when they were read

    def take(self, limit: int, stop: Stop | None = None) -> Taken | None:
        """Return the next data, at most so many, up to `stop`: segment and offset. None if there are no more now.

        Raises StateError if the index does not know the data that follow, and errors of their segment.
        """
        on_disk = self._on_disk()  # before the snapshot, which then knows all that ondisk has committed
        with self._access.current().index.snapshot() as snapshot:
            while True:
                if self._at is None and not self._advance(snapshot, on_disk):
                    return None
                assert self._at is not None
                if not self._window or (len(self._window) <= limit and not self._is_all):
                    self._read(snapshot, self._at, 2 * limit)
                if stop is not None and self._next() > stop:
                    return None
                if self._window:
                    return self._taken(self._at, limit, stop)
                end = self._at.known(snapshot).end.length
                if end > self._at.offset:  # deleted data at the end
                    return self._upto(self._at, [], end)
                if not self._advance(snapshot, on_disk):
                    return None

    def _next(self) -> Stop:
        """Return the place of the next datum; without one in this segment, that of the segment."""
        return self._number, self._window[0][2] if self._window else 0

    def _taken(self, at: _Open, limit: int, stop: Stop | None) -> Taken:
        rows: list[Row] = []
        size = 0
        while self._window and len(rows) < limit and (stop is None or self._next() <= stop):
            if rows and size + self._window[0][3] > _BYTES:
                break
            rows.append(self._window.popleft())
            size += rows[-1][3]
        last = rows[-1][2] + rows[-1][3]
        if self._window:
            last = self._window[0][2]
        elif self._is_all:  # what follows was deleted
            last = max(last, self._end)
        return self._upto(at, rows, last)

    def _upto(self, at: _Open, rows: list[Row], end: int) -> Taken:
        is_dense = at.offset + sum(row[3] for row in rows) == end
        at.frames = at.frames + len(rows) if is_dense else at.frames_before(end)
        at.offset = end
        return Taken(at.segment, rows, State(self._number, end - at.shift, at.frames), at.begin - at.shift)

    def _read(self, snapshot: Snapshot, at: _Open, least: int) -> None:
        count = max(least, _WINDOW)
        rows = segment_rows.following(snapshot, at.segment, at.offset, count)
        self._window = deque(rows)
        self._is_all = len(rows) < count
        self._end = at.known(snapshot).end.length

    def _advance(self, snapshot: Snapshot, on_disk: Sequence[int]) -> bool:
        """Go to the next segment; return False without one; raise StateError if it passes data the index lacks."""
        at, least = self._at, self._number if self._at is None else self._number + 1
        known = segment_rows.numbered_segments(snapshot, least)
        start = self._start
        first = None if start is None else known.get(start.segment)
        if start is not None and first is not None and has_gone(self._access.directory, first, start):
            del known[start.segment]
        following = min(known, default=None)
        if at is not None:
            self._check_known(at.known(snapshot))
        for number in takewhile(lambda number: following is None or number < following, on_disk):
            if number >= least:
                self._check_empty(number)
        if following is None:
            return False
        self._at = self._opened(snapshot, following, known[following])
        self._number, self._start, self._is_all = following, None, False
        self._window.clear()
        return True

    def _opened(self, snapshot: Snapshot, number: int, segment: Segment) -> _Open:
        """Open a segment at its beginning, or at the position where the consumer continues."""
        at = _Open(self._access, segment)
        start = self._start
        if start is None or start.segment != number:
            return at
        offset = start.offset(at.begin - at.shift) + at.shift
        if offset > segment.end.length:  # Beats has written more, or nobody ever had this position
            self._check_known(segment)
            return at
        if offset > at.begin and not segment_rows.has_across(snapshot, segment, offset):
            count, size = segment_rows.before(snapshot, segment, offset)
            at.frames = count if size == offset - at.begin else at.frames_before(offset)
            at.offset = offset
        return at

    def _on_disk(self) -> list[int]:
        found = (name.removesuffix(".seg") for name in self._access.directory.names() if name.endswith(".seg"))
        return sorted(number for stem in found if (number := number_of(stem)) is not None)

    def _check_empty(self, number: int) -> None:
        """Raise unless a segment that the index does not know contains nothing."""
        name = f"{number}.seg"
        try:
            file = self._access.directory.open_to_read(name)
        except FileNotFoundError:
            return
        if not self._access.format("seg").is_empty(file):
            raise self._unknown(name)

    def _check_known(self, segment: Segment) -> None:
        if segment.has_unknown or (segment.shared and _Open(self._access, segment).has_more()):
            raise self._unknown(segment.name)

    def _unknown(self, name: str) -> StateError:
        fix = command("fix", self._access.directory.path, "--yes")
        problem = f"{name} has data that the index does not know, and that come next in the queue"
        return StateError(problem, hint=f"Run {fix}, which reads them.", segment=name)


class _Open:
    """A segment that is read, and where. Offsets are those of the index."""

    def __init__(self, access: Access, segment: Segment) -> None:
        self._access = access
        self._format = cast("Seg", access.format(segment.format))
        self.segment = segment
        self._header = Header.parse(self._file().read(0, MAX_SIZE), draft=Header.of_kind(segment.end.kind).draft)
        # What the offsets of the index have more than those of `state.dat`: the bytes of an IV.
        self.shift = self._header.size - self._header.logical_size
        self.begin = self._header.size  # the offset of its first frame
        self.offset = self.begin  # where to continue
        self.frames = 0  # before that

    def known(self, snapshot: Snapshot) -> Segment:
        """Return the segment as the index knows it now; raise SegmentMissing if it does not any more."""
        found = snapshot.segment_named(self.segment.name)
        if found is None or found.id != self.segment.id:
            hint = "Open the consumer again: it continues at the position in state.dat."
            raise SegmentMissing(f"{self.segment.name} was removed while it was read", hint=hint)
        return found

    def frames_before(self, end: int) -> int:
        """Return how many frames of the segment are before an offset: those of deleted data count."""
        if self._header.compressed or self._header.encrypted:  # it can be read from its beginning only
            return walk(self._from_start(), end - self.shift)[0].frames
        reader = self._format.frames_at(FileStream(self._file(), self.offset), self._header, self.offset)
        return self.frames + walk(reader, end - self.shift)[0].frames

    def has_more(self) -> bool:
        """Return whether the file has whole frames after the committed end."""
        end = self.segment.end
        if self._file().size() <= end.size:
            return False
        reader = self._from_start()
        walk(reader, end.length - self.shift)
        return next(iter(reader), None) is not None

    def _from_start(self) -> FrameReader:
        return self._format.frames(FileStream(self._file(), 0))

    def _file(self) -> ReadableFile:
        return self._access.current().reader.file_of(self.segment)
