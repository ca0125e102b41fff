"""What becomes of data with the same unique values, while a fix reads a segment.

Which of them counts is decided in `ondisk.index.precedence`. The others are second copies, which are skipped, or were
deleted, or are counted as different. Only a datum that equals the one that counts is a second copy: `Contents` compares
their bytes.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from zlib_ng.zlib_ng import crc32

from ondisk.dataset.access import Access
from ondisk.errors import IndexCorrupt, IntegrityError, SegmentMissing, StorageError
from ondisk.formats import Format, is_dir
from ondisk.index import Copies, Segment
from ondisk.index.precedence import Found, counts_in_files
from ondisk.index.rows_set_aside import Aside, Held
from ondisk.index.transaction import Transaction
from ondisk.maintenance.rescanned_bytes import BlockCache
from ondisk.maintenance.states import Tally
from ondisk.segment import DecryptedFile
from ondisk.segments.dir import MetadataFile, file_name, verify
from ondisk.segments.file_facts import SAME_BYTES
from ondisk.segments.generations import hidden, is_committed, present_name
from ondisk.segments.places import twins
from ondisk.step import NOTHING, in_order

_END = 2**63  # above every seq


Content: TypeAlias = tuple[bytes, bytes]
"""What a format wrote beside the bytes of a datum, and its bytes."""

_Read: TypeAlias = Callable[[int, int], Content | None]
_OPEN = 8  # segments that are kept open


class Contents:
    """Reads data by their rows, also by those that the transaction of a fix has not committed.

    Args:
        own: the segment that is read, which the index need not know yet.
    """

    def __init__(self, access: Access, transaction: Transaction, own: Segment) -> None:
        self._access = access
        self._directory = access.directory
        self._transaction = transaction
        self._own = own
        self._readers: OrderedDict[int, _Read] = OrderedDict()
        self._changed: dict[int, bool] = {}

    def are_equal(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        """Return whether the data of two rows of `datum` are equal, and both can be read."""
        if (one[1], *one[4:]) != (other[1], *other[4:]):
            return False
        content = self.read(one)
        return content is not None and content == self.read(other)

    def read(self, row: tuple[Any, ...]) -> Content | None:
        """Return the content of a row of `datum`; None if it cannot be read."""
        with contextlib.suppress(IntegrityError, SegmentMissing, StorageError, FileNotFoundError):
            return self._reader(row[2])(row[3], row[4])
        return None

    def is_damaged(self, row: tuple[Any, ...]) -> bool:
        """Return whether the datum of a row of another segment cannot be read, or is in a file without its checksum.

        Cost: reads the file of a concat segment, once.
        """
        return self.read(row) is None or self._has_changed(row[2])

    def _has_changed(self, id_: int) -> bool:
        """Return whether the bytes of a concat segment lack their checksum; each file of a dir segment has its own."""
        if id_ not in self._changed:
            segment = self._transaction.segment(id_)
            self._changed[id_] = not self._access.format(segment.format).is_dir and (
                self._access.committed(segment).is_whole_in(self._directory.open_to_read(self._place(segment))) is False
            )
        return self._changed[id_]

    def _reader(self, id_: int) -> _Read:
        if id_ in self._readers:
            self._readers.move_to_end(id_)
        else:
            segment = self._own if id_ == self._own.id else self._transaction.segment(id_)
            is_dir = self._access.format(segment.format).is_dir
            self._readers[id_] = self._files_of(segment) if is_dir else self._bytes_of(segment)
            if len(self._readers) > _OPEN:
                self._readers.popitem(last=False)
        return self._readers[id_]

    def _place(self, segment: Segment) -> str:
        return segment.name if segment is self._own else present_name(self._directory, segment.name, segment.id)

    def _bytes_of(self, segment: Segment) -> _Read:
        format = self._access.format(segment.format)
        file = self._directory.open_to_read(self._place(segment))
        if segment is not self._own and self._access.committed(segment).seen_in(file, file.stat()) not in SAME_BYTES:
            return lambda _offset, _size: None

        @cache
        def blocks() -> BlockCache:
            sealer = format.sealer(file, segment.name)
            source = file if sealer is None else DecryptedFile(file, sealer)
            return BlockCache(self._transaction, format, segment, source)

        def read(offset: int, size: int) -> Content | None:
            is_packed = self._transaction.block_at(segment, offset) is not None
            if not is_packed and offset + size > file.size():  # before memory is allocated for it
                return None
            content = b""
            while len(content) < size:
                at, wanted = offset + len(content), size - len(content)
                piece = blocks().read(at, wanted) if is_packed else file.read(at, wanted)
                if not piece:
                    return None
                content += piece
            return b"", content

        return read

    def _files_of(self, segment: Segment) -> _Read:
        place = self._place(segment)
        with self._directory.inside(place) as folder:
            entries = MetadataFile.of(folder)

        def read(number: int, size: int) -> Content | None:
            if entries is None or not entries.has_size(number, size):
                return None
            file = self._directory.open_to_read(f"{place}/{file_name(segment.name, number)}")
            content = file.read(0, size)
            if len(content) != size or size != file.size():
                return None
            verify(crc32(content), entries.checksum(number))
            return entries.get(number).beside, content

        return read


@dataclass(slots=True)
class Settled:
    """Data with the same unique values as others."""

    # data that do not count, since they are second copies of data in other segments, or were deleted
    skipped: Tally = field(default_factory=Tally)
    different: int = 0  # how many data do not count, and do not equal those that do
    replacing: int = 0  # how many data count now since the others, in other segments, cannot be read
    has_copies: bool = False  # the segment has second copies of data in other segments


class Duplicates:
    """Compares data of the segment that is read with those that have the same unique values.

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
        self._are_known = False
        self._others: dict[int, Segment | None] = {}
        self._places: dict[int, str | None] = {}

    def may_compare(self, segment: Segment, explained: int) -> None:
        """Prepare to compare the data of a segment: their bytes can be read where the index will say that they are."""
        self._contents = Contents(self._access, self._transaction, segment)
        self.explained = explained

    def expect_copies(self, name: str, *, are_known: bool) -> None:
        """Prepare for data without unique values of which segments of the same name in other places have copies.

        Args:
            are_known: its bytes were equal to theirs before, so it takes over the rows of data that are damaged there.
        """
        self._are_known = are_known
        with self._access.current().index.snapshot() as snapshot:
            found = [snapshot.segment_named(each) for each in twins(self._access.directory, name)]
        if others := [each for each in found if each is not None]:
            self._held = Held(self._transaction, others)

    @property
    def expects_copies(self) -> bool:
        """Whether there are such segments."""
        return self._held is not None

    def settle_copy(self, row: tuple[Any, ...]) -> bool:
        """Let a datum that was read, or the one there that it is a copy of, count; each there has one copy at most.

        Returns:
            False if it is no copy.
        """
        assert self._held is not None
        alike = [*self._held.like(row)]
        other = next((each for each in alike if self._are_equal(row, each)), None)
        if other is not None:
            self._skip(row)
        elif self._are_known and self._contents is not None:
            other = next(filter(self._contents.is_damaged, alike), None)
            if other is not None:
                self._take_over(row, other)
        if other is not None:
            self._held.take(other)
        return other is not None

    def settle(self, row: tuple[Any, ...], segment: Segment, first: int, aside: Aside | None) -> int:
        """Let only one count of a datum that was read and the one that it duplicates, if there is one.

        Args:
            row: of the datum that was read; it could not be inserted.
            first: rows with this seq or a higher one were read in this transaction.

        Returns:
            How many changes the index did not know: 2 if the datum replaced one, else 0.
        """
        transaction = self._transaction
        other = transaction.held_by(row)
        if other[0] == row[0]:
            return 0
        if other[2] == segment.id:
            if not counts_in_files(Found(offset=other[3]), Found(offset=row[3])):
                self._is_equal(row, other, is_known=False)
                return 0
            self._is_equal(other, row, is_known=other[0] < first)
            if aside is not None and aside.is_same(other, row):
                transaction.set_offsets([(row[3], other[0])])
                aside.move(other[0], row[3])
                return 0
            transaction.replace(other, row, range(first, _END))
            return 2
        is_there = self._is_there(other)
        if is_there and self._are_in_order():
            name = transaction.segment(other[2]).name
            is_later = counts_in_files(Found(order=in_order(name)), Found(order=in_order(segment.name)))
            if is_later and not self._are_equal(row, other):
                transaction.replace(other, row, range(first, _END))
                return 2
            return 0
        if is_there and (row[3] < self.explained or self._are_equal(row, other)):
            self._skip(row)
            return 0
        is_readable = is_there and (self._contents is None or not self._contents.is_damaged(other))
        if not counts_in_files(Found(is_readable), Found()):
            self._settled.different += 1
            return 0
        self._take_over(row, other)
        return 0

    def _take_over(self, row: tuple[Any, ...], other: tuple[Any, ...]) -> None:
        """Let the only copy that can be read count: the other was not compared, so it was not deleted either."""
        segment = self._transaction.segment(other[2])
        if segment.copies is Copies.NONE:  # its bytes may be read again: then they are those of a second copy
            self._transaction.save_segment(segment._replace(copies=Copies.SOME), NOTHING)
        self._transaction.drop_rows([other[0]])
        self._transaction.insert([[value] for value in (other[0], *row[1:])])
        self._settled.replacing += 1

    def _is_equal(self, row: tuple[Any, ...], counting: tuple[Any, ...], *, is_known: bool) -> bool:
        """Return whether a datum is a copy of the one that counts, or was deleted; else count it as different."""
        if row[3] < self.explained and not is_known:
            return True
        is_equal = self._are_equal(row, counting)
        self._settled.different += not is_equal
        return is_equal

    def _are_equal(self, row: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return self._contents is not None and self._contents.are_equal(row, other)

    def _are_in_order(self) -> bool:
        """Return whether data of a later segment were stored later than those of others, and replaced them."""
        config = self._access.config
        return config.is_sequence and config.replace != "no" and self._access.needs_check()

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
        if segment_id not in self._places:
            directory, committed = self._access.directory, self._access.committed(segment)
            names = hidden(segment.name, segment.id), segment.name
            self._places[segment_id] = next((each for each in names if is_committed(directory, each, committed)), None)
        place = self._places[segment_id]
        if place is None or not is_dir(segment.format):
            return place is not None
        return self._access.directory.stat(f"{place}/{file_name(segment.name, other[3])}") is not None

    def _skip(self, row: tuple[Any, ...]) -> None:
        self._settled.skipped.add(f"the datum at {self._format.unit} {row[3]}")
        self._settled.has_copies |= row[3] >= self.explained
