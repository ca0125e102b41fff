"""The consumer of a queue, in Python; and what it and the command `ack` do to acknowledge data.

with ondisk.open("queue") as dataset:
    for batch in Consumer(dataset):
        send(batch)
        batch.ack()

To acknowledge data moves the position in `state.dat`, and removes the segments before it. The order of the data is that
of the numbers of their segments, then of their offsets.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TypeAlias, cast, overload

from ondisk.dataset.access import Access
from ondisk.dataset.append import checked_batch_size
from ondisk.dataset.dataset import Dataset
from ondisk.datum import Datum, Location
from ondisk.errors import DatumNotFound, InvalidInput, OndiskError, ReadOnly, SegmentMissing, StateError, command
from ondisk.filesystem import ReadableFile
from ondisk.formats.base import FileStream
from ondisk.formats.diskqueue.frame_reader import FrameReader, walk
from ondisk.formats.diskqueue.header import MAX_SIZE, Header
from ondisk.formats.diskqueue.seg import Seg
from ondisk.formats.diskqueue.state import VERSION, State
from ondisk.index import Copies, Row, Segment, Snapshot, segment_rows
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.durable_steps import complete, drop
from ondisk.maintenance.states import Diagnosis
from ondisk.maintenance.states import State as Is
from ondisk.queue import consumer_position as positions
from ondisk.queue.consumer_position import believed, check_consumable, has_gone, is_there, position
from ondisk.step import number_of

_SOME = 10_000  # data
_WINDOW = 20_000  # rows that are read at once: to find them, SQLite reads all rows of a segment's interval
_BYTES = 1024 * 1024
"""Bytes of data that are taken together, unless one alone is larger: in memory they may need 70 times as much."""

Stop: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    count: int  # data that were not acknowledged before
    position: State  # where the consumer continues, as in `state.dat`
    removed: list[str] = field(default_factory=list)  # the names of the segments that were removed, or would be


def acknowledge(
    dataset: Dataset, *, through: Location | None = None, count: int | None = None, dry_run: bool = False
) -> Acknowledged:
    """Acknowledge data in the order of the queue, up to one of them or as many as `count`.

    Segments before the position are removed, with their data in the index, as the consumer of Beats does: a segment
    goes when data of a later one are acknowledged. Only data that the index knows are acknowledged.

    Args:
        through: the last datum to acknowledge; if it was acknowledged before, nothing is done.
        count: how many data; all if there are fewer.
        dry_run: change nothing, and report what would be done.

    Raises:
        InvalidInput: the dataset is not a queue, or not exactly one of `through` and `count` is given.
        DatumNotFound: no datum is at `through`.
        NeedsCheck, StateError: the index may not know all data up to there.

    Durability: replaces `state.dat`, durably; then removes one segment after the other, each as a repack. A crash
        leaves the old position or the new one, and perhaps segments before it, which the next acknowledgement removes,
        or Beats when it begins.
    Locks: the writers' lock.
    """
    access = access_to(dataset)
    if (through is None) == (count is None):
        raise InvalidInput("acknowledge takes either through or count")
    before = position(access.directory)
    taken, total = None, 0
    stop = None if through is None else _stop(access, through)
    order = Order(access, before)
    while count is None or total < count:
        limit = _SOME if count is None else min(_SOME, count - total)
        if (more := order.take(limit, stop)) is None:
            break
        taken, total = more, total + len(more.rows)
    if dry_run or taken is None:
        at = taken.end if taken is not None else before or State()
        return Acknowledged(total, at, _done_with(access, at) if dry_run else remove_acknowledged(access))
    return Acknowledged(total, taken.end, move(access, taken))


def access_to(dataset: Dataset) -> Access:
    """Return the access to a queue; raise InvalidInput, or NeedsCheck or StateError if its order is not sure."""
    access = dataset._access
    if not access.config.is_sequence:
        hint = 'Only a dataset with step = "sequence" has an order of the queue.'
        raise InvalidInput(f"{dataset.path} is not a queue", hint=hint)
    access.check_trusted()
    check_consumable(access)
    return access


def move(access: Access, taken: Taken) -> list[str]:
    """Move the position to the end of data, unless it is there or after it; return the names of removed segments."""
    with access.locked("ack"):
        check_consumable(access)
        _check_same(access, taken.segment)
        before = _position(access)
        end = taken.end.segment, taken.end.byte_index
        if before is None or positions.past_end(access) or (before.segment, before.offset(taken.begin)) < end:
            _as_version(before, access, taken).write(access.directory)
    return remove_acknowledged(access)


def _check_same(access: Access, segment: Segment) -> None:
    """Raise if a segment is not the file any more from which data were read: the position would skip other data."""
    if access.directory.stat(segment.name) is not None and not is_there(access, segment):
        problem = f"{segment.name} is not the file any more from which the data were read; nothing was acknowledged"
        fix = command("fix", access.directory.path, "--yes")
        hint = f"Run {fix}, and open the consumer again: data that were not acknowledged come again."
        raise StateError(problem, hint=hint, segment=segment.name)


def remove_acknowledged(access: Access) -> list[str]:
    """Remove the segments before the position, with their data in the index; return their names.

    Also forget the segment at the position if Beats has sent all of it and removed it. A segment stays if
    the index may not know all its data: Beats removes it when it begins.

    Durability: as a repack that deletes segments.
    Locks: the writers' lock, once for each segment.
    """
    removed = []
    at = believed(access.directory)
    for name in [] if at is None else _done_with(access, at):
        with access.user_transaction("ack") as transaction:
            with access.current().index.snapshot() as snapshot:
                segment = snapshot.segment_named(name)
            at = believed(access.directory)  # Beats may have begun again with this number
            if segment is None or at is None or not _is_done(access, segment, at):
                continue
            complete(access, segment)
            positions.begin_again(access.directory, name)
            drop(access, transaction, Diagnosis(name, Is.DELETED, ("it is acknowledged",)), Known(segment))
            removed.append(name)
    positions.leave_removed(access, "ack")
    return removed


def _done_with(access: Access, at: State) -> list[str]:
    """Return the names of the segments that the index knows and the consumer does not need, in their order."""
    with access.current().index.snapshot() as snapshot:
        known = segment_rows.numbered_segments(snapshot, 0)
    return [known[number].name for number in sorted(known) if _is_done(access, known[number], at)]


def _is_done(access: Access, segment: Segment, at: State) -> bool:
    """Return whether the consumer does not need a segment, and the index knows all its data and has them only there."""
    number = number_of(segment.name.removesuffix(".seg"))
    if number is None or number > at.segment or segment.has_unknown or segment.copies is not Copies.NONE:
        return False
    return has_gone(access.directory, segment, at) or (number < at.segment and is_there(access, segment))


def _stop(access: Access, through: Location) -> Stop:
    number = number_of(through.segment.removesuffix(".seg"))
    at = position(access.directory)
    if number is not None and at is not None and number < at.segment:
        return number, through.offset  # its segment may be gone
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(through.segment)
        rows = [] if segment is None else segment_rows.following(snapshot, segment, max(0, through.offset), 1)
    if number is None or not rows or rows[0][2] != through.offset:
        hint = "`ondisk query DATASET --json` prints the location of each datum."
        raise DatumNotFound(f"no datum is at byte {through.offset} of {through.segment}", hint=hint, location=through)
    return number, through.offset


def _position(access: Access) -> State | None:
    """Return the position in `state.dat`, which is about to be replaced; None if it does not exist or is incomplete."""
    with contextlib.suppress(InvalidInput):
        return State.read(access.directory)
    return None


def version_for(access: Access) -> int:
    """Return the version of a new `state.dat`: that of the Beats which write what the configuration says."""
    return 0 if access.config.version == 0 else VERSION


def _as_version(before: State | None, access: Access, taken: Taken) -> State:
    """Return the new position in the version of the file, which its consumer understands."""
    version = before.version if before is not None else version_for(access)
    if version == 0:
        return State(taken.end.segment, taken.end.byte_index - taken.begin, version=0)
    return replace(taken.end, version=version)


class Batch(Sequence[Datum]):
    """Data that follow each other in a queue."""

    def __init__(self, data: list[Datum], ack: Callable[[], object]) -> None:
        self._data = data
        self._ack = ack

    def ack(self) -> None:
        """Acknowledge these data, and all before them, as `acknowledge`: no consumer reads them again."""
        self._ack()

    @overload
    def __getitem__(self, at: int) -> Datum: ...
    @overload
    def __getitem__(self, at: slice) -> list[Datum]: ...
    def __getitem__(self, at: int | slice) -> Datum | list[Datum]:
        return self._data[at]

    def __len__(self) -> int:
        return len(self._data)


class Consumer:
    """Reads the data of a queue that were not acknowledged, in the order of the queue.

    Each datum is delivered at least once: those that were delivered and not acknowledged come again for the next
    consumer. Iterating ends when no more data are there; iterate again for those that were appended since.

    Args:
        dataset: with the step `sequence`, open for writing. Data that are appended meanwhile, here or by other
            processes of ondisk, are delivered, too.
        batch_size: data in a batch; a batch also ends at a mebibyte, and with its segment.

    Raises:
        InvalidInput: the dataset is not a queue.
        NeedsCheck: its index may not know all data.
        StateError: the position in `state.dat` cannot be right.
        ReadOnly: it was opened read_only.
        Also while iterating, after the data before them:
        StateError: the index does not know the data that come next; a fix reads them.
        SegmentMissing, SegmentCorrupt, FrameCorrupt: data are not on disk as the index says. To skip a damaged datum,
            acknowledge it.

    Durability: creates `state.dat` if it does not exist, and finishes what a killed acknowledgement has left.
    Memory: a batch, and some megabytes.
    """

    def __init__(self, dataset: Dataset, batch_size: int = 1000) -> None:
        size = checked_batch_size(batch_size)
        self._access = access_to(dataset)
        if dataset.read_only:
            raise ReadOnly(f"{dataset.path} was opened read_only", hint="Open it for writing.")
        self._batch_size = size
        remove_acknowledged(self._access)
        self._at = _begun(self._access)
        self._order = Order(self._access, self._at)

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.take()) is not None:
            yield batch

    def take(self) -> Batch | None:
        """Return the next data; None if there are no more now."""
        limit = self._batch_size
        while (taken := self._taken(limit)) is not None:
            data, error = self._read(taken)
            if error is not None:
                self._order = Order(self._access, self._at)
                if not (limit := len(data)):
                    raise error
                continue
            self._at = taken.end
            if data:
                return Batch(data, lambda end=taken: move(self._access, end))  # type: ignore[misc]
            limit = self._batch_size
        return None

    def _taken(self, limit: int) -> Taken | None:
        try:
            return self._order.take(limit)
        except OndiskError:
            self._order = Order(self._access, self._at)  # after a fix, iterating goes on here
            raise

    def _read(self, taken: Taken) -> tuple[list[Datum], OndiskError | None]:
        """Return data, and the error if they are only those before some that cannot be read."""
        data: list[Datum] = []
        opened = self._access.current()
        try:
            with opened.index.snapshot() as snapshot:
                for some in opened.reader.with_data(snapshot, [*taken.rows]) if taken.rows else ():
                    data += some
        except OndiskError as error:
            return data, error
        return data, None


def _begun(access: Access) -> State:
    """Return where the consumer continues; without `state.dat`, create it, so that nobody removes what comes first."""
    with access.locked("ack"):
        if (at := position(access.directory)) is None:
            at = State(version=version_for(access))
            at.write(access.directory)
    return at


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
