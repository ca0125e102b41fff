"""Compare bytes of segments with the checksums of whole segments, without reading whole segments each time.

A segment has one checksum of all its committed bytes. When it was compared once, checksums of its pieces are known that
are as good: after that, only the pieces with the wanted bytes are read, and what was appended.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ondisk.segment import SegmentFile
from ondisk.segments.facts import Committed, add_to_checksum

_PIECE = 128 * 1024  # bytes
_REMEMBERED = 1_000  # files


class _Pieces(NamedTuple):
    """The checksums of the pieces of a file.

    Attributes:
        size: bytes that were read.
        checksum: of all of them.
        each: of each piece; the last one may be shorter.
    """

    size: int = 0
    checksum: int = 0
    each: Sequence[int] = ()

    def upto(self, file: SegmentFile, committed: Committed) -> _Pieces:
        """Return those of all committed bytes, after reading the bytes that these do not cover."""
        at, checksum, each = self.size, self.checksum, array("Q", self.each)
        while at < committed.size:
            end = min(committed.size, at - at % _PIECE + _PIECE)
            if not (content := file.read(at, end - at)):
                break
            checksum = add_to_checksum(content, at, committed.mutable, checksum)
            if at % _PIECE:
                each[-1] = add_to_checksum(content, at, committed.mutable, each[-1])
            else:
                each.append(add_to_checksum(content, at, committed.mutable))
            at += len(content)
        return _Pieces(at, checksum, each)

    def has(self, file: SegmentFile, committed: Committed, spans: Iterable[tuple[int, int]]) -> bool:
        """Return whether the pieces of some bytes still have their checksums.

        Args:
            spans: offset and end of bytes, all of them before `size`.
        """
        for place in sorted({place for begin, end in spans for place in range(begin // _PIECE, -(-end // _PIECE))}):
            begin = place * _PIECE
            content = file.read(begin, min(_PIECE, self.size - begin))
            if place >= len(self.each) or add_to_checksum(content, begin, committed.mutable) != self.each[place]:
                return False
        return True


class WholeFiles:
    """Remembers the checksums of pieces of files that had the checksums of their segments. Threads may share it."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Pieces] = OrderedDict()  # by generation

    def holds(
        self, generation: int, file: SegmentFile, committed: Committed, spans: Iterable[tuple[int, int]]
    ) -> bool | None:
        """Return whether bytes of a file are those that were committed; None if the index has recorded no checksum.

        Args:
            spans: offset and end of the bytes. All committed bytes are compared if that was not done before.

        Cost: reads the pieces with these bytes, and the bytes that were not read before.
        """
        if committed.facts.checksum is None:
            return None
        known = self._known.get(generation)
        if known is not None and known.size < committed.size:
            known = self._whole(generation, known.upto(file, committed), committed)
        if known is not None and known.has(file, committed, spans):  # perhaps of an older snapshot
            return True
        return self._whole(generation, _Pieces().upto(file, committed), committed) is not None

    def _whole(self, generation: int, pieces: _Pieces, committed: Committed) -> _Pieces | None:
        """Return pieces, and remember them, if they are the committed bytes; else forget what is known of the file."""
        with contextlib.suppress(KeyError):
            self._known.pop(generation)
        if (pieces.size, pieces.checksum) != (committed.size, committed.facts.checksum):
            return None
        self._known[generation] = pieces
        while len(self._known) > _REMEMBERED:
            with contextlib.suppress(KeyError):  # another thread removed it
                self._known.popitem(last=False)
        return pieces
