"""The extents of one object: what was written where, overlaid in the order of the writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ondisk.backends.elliptics.packets import APPEND

FIRST = 1 << 31
"""The flag of a stored extent that begins an object, unless it replaces anyway.

A rebuilt index may know earlier ones again, which were deleted with the object before. So it stays while the object
exists, even if others cover it.
"""


class Extent(NamedTuple):
    """One write of an object, stored as one datum."""

    time: int  # the datum's reftime, in microseconds since 1970. Each write of an object has a later one
    id: bytes  # of the transaction
    flags: int  # of the write's io attribute; and `FIRST`
    offset: int  # of its first byte in the object
    size: int  # in bytes
    version: int  # from the header of the write

    @property
    def replaces(self) -> bool:
        return bool(self.flags & FIRST) or (self.offset == 0 and not self.flags & APPEND)


class Piece(NamedTuple):
    """Bytes `begin` to `end` - 1 of an object, which one extent contains."""

    begin: int
    end: int
    extent: Extent


class Extents:
    """The extents of an object that are needed to read it. `last`: the time of the last write."""

    def __init__(self, extents: Sequence[Extent] = ()) -> None:
        self.last = 0
        self._extents: dict[int, Extent] = {}
        self._pieces: list[Piece] = []
        self._begins: list[int] = []
        self._shown: dict[int, int] = {}  # time → number of the extent's pieces
        self._covered: list[Extent] = []
        for extent in extents:
            self.add(extent)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents.values())

    def __len__(self) -> int:
        return len(self._extents)

    @property
    def size(self) -> int:
        return self._pieces[-1].end if self._pieces else 0

    def add(self, extent: Extent) -> None:
        """Overlay the others with a later one. Cost: logarithmic in the pieces, and an insertion into a list."""
        if extent.replaces:
            self.clear()
        self.last = extent.time
        self._extents[extent.time] = extent
        if extent.size:
            self._overlay(Piece(extent.offset, extent.offset + extent.size, extent))

    def clear(self) -> None:
        self._covered += self._extents.values()
        self._extents.clear()
        self._pieces.clear()
        self._begins.clear()
        self._shown.clear()

    def take_covered(self) -> list[Extent]:
        """Return the extents that later ones have covered since the last call."""
        covered, self._covered = self._covered, []
        return covered

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """Return what the bytes `begin` to `end` - 1 consist of, in their order; between the pieces are zeros."""
        first, last = self._between(begin, end)
        return [Piece(max(begin, each.begin), min(end, each.end), each.extent) for each in self._pieces[first:last]]

    def only(self, begin: int, end: int) -> Extent | None:
        """Return the extent that contains all the bytes `begin` to `end` - 1; None if they are in several, or zeros."""
        place = bisect_right(self._begins, begin) - 1
        return self._pieces[place].extent if place >= 0 and self._pieces[place].end >= end else None

    def _overlay(self, new: Piece) -> None:
        first, last = self._between(new.begin, new.end)
        old = self._pieces[first:last]
        pieces = [new]
        if old and old[0].begin < new.begin:
            pieces.insert(0, old[0]._replace(end=new.begin))
        if old and old[-1].end > new.end:
            pieces.append(old[-1]._replace(begin=new.end))
        self._pieces[first:last] = pieces
        self._begins[first:last] = [each.begin for each in pieces]
        for piece in pieces:
            self._shown[piece.extent.time] = self._shown.get(piece.extent.time, 0) + 1
        for piece in old:
            self._shown[piece.extent.time] -= 1
            if not self._shown[piece.extent.time]:
                del self._shown[piece.extent.time]
                if piece.extent.flags & FIRST:
                    continue
                self._covered.append(self._extents.pop(piece.extent.time))

    def _between(self, begin: int, end: int) -> tuple[int, int]:
        """Return which pieces have some of the bytes `begin` to `end` - 1, at least one: the first, and the end."""
        first = bisect_right(self._begins, begin)
        if first and self._pieces[first - 1].end > begin:
            first -= 1
        return first, bisect_right(self._begins, end - 1, first)
