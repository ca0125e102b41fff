"""The consumer of a queue, in Python.

with ondisk.open("queue") as dataset:
    for batch in Consumer(dataset):
        send(batch)
        batch.ack()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from ondisk.dataset.access import Access
from ondisk.dataset.append import checked_batch_size
from ondisk.dataset.dataset import Dataset
from ondisk.datum import Datum
from ondisk.errors import OndiskError, ReadOnly
from ondisk.formats.diskqueue.state import State
from ondisk.queue import state_file
from ondisk.queue.acknowledgement import access_to, move, remove_acknowledged, version_for
from ondisk.queue.order import Order, Taken
from ondisk.queue.position import position


class Batch(Sequence[Datum]):
    """Data that follow each other in a queue."""

    def __init__(self, data: list[Datum], ack: Callable[[], object]) -> None:
        self._data = data
        self._ack = ack

    def ack(self) -> None:
        """Acknowledge these data, and all before them: no consumer reads them again.

        Durability, locks: as `acknowledge`.
        """
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
            try:
                data = self._read(taken)
            except _DamagedError as damaged:
                self._order = Order(self._access, self._at)
                if not (limit := damaged.whole):
                    raise damaged.error from None
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

    def _read(self, taken: Taken) -> list[Datum]:
        data: list[Datum] = []
        opened = self._access.current()
        try:
            with opened.index.snapshot() as snapshot:
                for some in opened.reader.with_data(snapshot, [*taken.rows]) if taken.rows else ():
                    data += some
        except OndiskError as error:
            raise _DamagedError(len(data), error) from error
        return data


class _DamagedError(Exception):
    """Data cannot be read; those before them can."""

    def __init__(self, whole: int, error: OndiskError) -> None:
        super().__init__(whole)
        self.whole = whole
        self.error = error


def _begun(access: Access) -> State:
    """Return where the consumer continues; without `state.dat`, create it, so that nobody removes what comes first."""
    with access.locked("ack"):
        if (at := position(access.directory)) is None:
            at = State(version=version_for(access))
            state_file.write(access.directory, at)
    return at
