"""Compare data that have the same unique values. A fix lets only one of them count.

Only a datum that equals the one that counts is a second copy. All others are somebody's data, see `Rescan`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from zlib_ng.zlib_ng import crc32

from ondisk.dataset.access import Access
from ondisk.errors import IntegrityError, SegmentMissing, StorageError
from ondisk.index import Segment
from ondisk.index.transaction import Transaction
from ondisk.maintenance.relaid import BlockCache
from ondisk.segments.dir import MetadataFile, file_name, verify
from ondisk.segments.facts import SAME_BYTES
from ondisk.segments.generations import hidden

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
        """Return where a segment is; see "Generations" in docs/architecture.md."""
        alias = hidden(segment.name, segment.id)
        return segment.name if segment is self._own or self._directory.stat(alias) is None else alias

    def _bytes_of(self, segment: Segment) -> _Read:
        format = self._access.format(segment.format)
        file = self._directory.open_to_read(self._place(segment))
        if segment is not self._own and self._access.committed(segment).seen_in(file, file.stat()) not in SAME_BYTES:
            return lambda _offset, _size: None
        blocks = BlockCache(self._transaction, format, segment, file)

        def read(offset: int, size: int) -> Content | None:
            is_packed = self._transaction.block_at(segment, offset) is not None
            if not is_packed and offset + size > file.size():  # before memory is allocated for it
                return None
            content = b""
            while len(content) < size:
                at, wanted = offset + len(content), size - len(content)
                piece = blocks.read(at, wanted) if is_packed else file.read(at, wanted)
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
