"""Which of the data with the same unique values counts, while a fix reads a segment.

In one segment it is the last, else the one that was read first. A sequence whose index was lost is an exception: if its
data replace each other, the one in the later segment was stored later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ondisk.dataset.access import Access
from ondisk.errors import IndexCorrupt
from ondisk.formats import Format
from ondisk.index import Segment
from ondisk.index.aside import Aside, Held
from ondisk.index.transaction import Transaction
from ondisk.maintenance.contents import Contents
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.tally import Tally
from ondisk.segments.places import twins
from ondisk.step import in_order


@dataclass(slots=True)
class Settled:
    """Data with the same unique values as others.

    Attributes:
        skipped: data that do not count, since they are second copies of data in other segments, or were deleted.
        different: how many data do not count, and do not equal those that do.
        replacing: how many data count now since the others, in other segments, cannot be read.
        has_copies: the segment has second copies of data in other segments.
    """

    skipped: Tally = field(default_factory=Tally)
    different: int = 0
    replacing: int = 0
    has_copies: bool = False


class Duplicates:
    """Compares data of the segment that is read with those that have the same unique values.

    Args:
        settled: gets what was found.

    Attributes:
        explained: data that begin before this offset, and have no row, were deleted through ondisk.
    """

    def __init__(self, access: Access, transaction: Transaction, format: Format, settled: Settled) -> None:
        self.explained = 0
        self._settled = settled
        self._access = access
        self._transaction = transaction
        self._format = format
        self._contents: Contents | None = None  # None: what is read cannot be compared
        self._held: Held | None = None
        self._others: dict[int, Segment | None] = {}

    def may_compare(self, segment: Segment, explained: int) -> None:
        """Prepare to compare the data of a segment: their bytes can be read where the index will say that they are."""
        self._contents = Contents(self._access, self._transaction, segment)
        self.explained = explained

    def expect_copies(self, name: str) -> None:
        """Prepare for data without unique values of which segments of the same name in other places have copies."""
        with self._access.current().index.snapshot() as snapshot:
            found = [snapshot.segment_named(each) for each in twins(self._access.directory, name)]
        if others := [each for each in found if each is not None]:
            self._held = Held(self._transaction, others)

    @property
    def expects_copies(self) -> bool:
        """Whether there are such segments."""
        return self._held is not None

    def is_copy(self, row: tuple[Any, ...]) -> bool:
        """Return whether a datum that was read is a copy of one there, each of which has one at most; then skip it."""
        assert self._held is not None
        other = next((each for each in self._held.like(row) if self._are_equal(row, each)), None)
        if other is not None:
            self._held.take(other)
            self._skip(row)
        return other is not None

    def settle(self, row: tuple[Any, ...], segment: Segment, first: int, aside: Aside | None) -> int:
        """Let only one count of a datum that was read and the one that it duplicates, if there is one.

        Args:
            row: of the datum that was read; it could not be inserted.
            first: rows with this seq or a higher one were read in this transaction.
            aside: the former rows of the segment, if they are being replaced.

        Returns:
            How many changes the index did not know: 2 if the datum replaced one, else 0.
        """
        transaction = self._transaction
        other = transaction.duplicate_of(row)
        if other is not None and other[0] == row[0]:
            return 0
        if other is None or other[2] == segment.id:
            if other is not None and other[3] >= row[3]:
                self._is_equal(row, other, is_known=False)
                return 0
            if other is not None:
                self._is_equal(other, row, is_known=other[0] < first)
            if other is not None and aside is not None and aside.is_same(other, row):
                transaction.set_offsets([(row[3], other[0])])
                aside.move(other[0], row[3])
                return 0
            transaction.replace(row, first, None)
            return 2 if other is not None else 0
        if self._is_there(other):
            if (is_later := self._is_later(segment, other)) is not None:
                if is_later and not self._are_equal(row, other):
                    transaction.replace(row, first, None)
                    return 2
                return 0
            if row[3] < self.explained or self._are_equal(row, other):
                self._skip(row)
                return 0
            if self._contents is None or not self._contents.is_damaged(other):
                self._settled.different += 1
                return 0
        # This is the only copy that can be read; the other was not compared, so it was not deleted either.
        transaction.take_back([other[0]])
        transaction.insert([[value] for value in (other[0], *row[1:])])
        self._settled.replacing += 1
        return 0

    def _is_equal(self, row: tuple[Any, ...], counting: tuple[Any, ...], *, is_known: bool) -> bool:
        """Return whether a datum is a second copy of the one that counts, or was deleted; else count it as different.

        Args:
            is_known: the index had a row of it.
        """
        if row[3] < self.explained and not is_known:
            return True
        is_equal = self._are_equal(row, counting)
        self._settled.different += not is_equal
        return is_equal

    def _are_equal(self, row: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return self._contents is not None and self._contents.are_equal(row, other)

    def _is_later(self, segment: Segment, other: tuple[Any, ...]) -> bool | None:
        """Return whether a datum of a segment was stored later than another row, which it would have replaced, or
        which would have replaced it; None if nobody knows."""
        config = self._access.config
        if not config.is_sequence or config.replace == "no" or not self._access.needs_check():
            return None
        return in_order(segment.name) > in_order(self._transaction.segment(other[2]).name)

    def _is_there(self, other: tuple[Any, ...]) -> bool:
        """Return whether a datum of another segment is on disk, as far as the end of its file shows."""
        segment_id = other[2]
        if segment_id not in self._others:
            with self._access.current().index.snapshot() as snapshot:
                found = snapshot.connection.execute("SELECT name FROM segment WHERE id = ?", (segment_id,)).fetchone()
                try:
                    self._others[segment_id] = None if found is None else snapshot.segment_named(found[0])
                except IndexCorrupt:  # with such a row, nobody can read it there
                    return False
        segment = self._others[segment_id]
        if segment is None:  # this transaction has just read it
            return True
        return kind_of(self._access.format(segment.format)).has_datum(self._access, segment, other[3])

    def _skip(self, row: tuple[Any, ...]) -> None:
        self._settled.skipped.add(f"the datum at {self._format.unit} {row[3]}")
        self._settled.has_copies |= row[3] >= self.explained
