"""The facts that the index records about a segment's file, and how they show that another program changed the file.

A segment's committed bytes change only at their end, so three facts are enough, from cheap to thorough:

    mtime, inode    equal: nobody touched the file, and nothing is read
    tail            CRC-32C of the last 4 KiB of the committed bytes: compared when the file was touched
    checksum        CRC-32C of all committed bytes: compared by what reads all of them anyway

CRC-32C and not CRC-32: the frames of `seg` contain their own CRC-32, which makes that of a whole file blind to frames
that changed places, or were replaced by others of their size.

Both checksums treat bytes that are rewritten in place as zeros: the count in a header. Bytes after the committed size
do not count: an append may be running, and an end mark is overwritten by the next append.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any

from ondisk.datum import INTEGER_MAX
from ondisk.errors import RESTORE, OndiskError, SegmentCorrupt, SegmentMissing, command
from ondisk.filesystem import Directory
from ondisk.named_tuple import NamedTuple
from ondisk.segment import Facts, SegmentFile

TAIL = 4096
"""Bytes of a segment's end that are compared when its file was touched."""

NO_TAIL = -1
"""In place of the checksum of a tail: no file ends like that, so each must be read before it is believed."""

_PIECE = 128 * 1024  # bytes
_REMEMBERED = 1_000  # files
_SECOND = 1_000_000_000


class Seen(Enum):
    """How a file agrees with the facts of a segment, without reading all of it."""

    UNTOUCHED = auto()
    """Nobody has changed it."""
    SAME_TAIL = auto()
    """It was touched or copied, and ends like the committed bytes."""
    UNKNOWN = auto()
    """It was touched, and an index of an older revision did not record how the committed bytes end."""
    OTHER = auto()
    """It is shorter than the committed bytes, or has others."""


SAME_BYTES = (Seen.UNTOUCHED, Seen.SAME_TAIL)
"""What a file is whose bytes the index describes, as far as was read."""


class Committed(NamedTuple):
    """The committed bytes of one generation of a segment, as the index describes them."""

    size: int  # their number
    facts: Facts  # what the index recorded about them
    mutable: range  # the positions that are rewritten in place

    def is_untouched(self, found: os.stat_result) -> bool:
        """Return whether the stat of a file shows that nobody else has changed it.

        Some programs and filesystems keep whole seconds only, so an mtime without a fraction is no proof.
        """
        facts = self.facts
        return (
            found.st_mtime_ns == facts.mtime != 0
            and found.st_size >= self.size
            and self.may_be(found)
            and (facts.tail is None or facts.mtime % _SECOND != 0)
        )

    def may_be(self, found: os.stat_result) -> bool:
        """Return whether a file has the inode that the index has recorded, if it has."""
        return self.facts.inode in (None, found.st_ino & INTEGER_MAX)

    def is_refused(self, found: os.stat_result) -> bool:
        """Return whether a fix has found none of the segment's data in the file with this stat; see `refused`."""
        return found.st_mtime_ns == -self.facts.mtime and found.st_ino & INTEGER_MAX == self.facts.inode

    def seen_in(self, file: SegmentFile, found: os.stat_result) -> Seen:
        """Compare a file with the facts; read at most its tail."""
        if self.is_untouched(found):
            return Seen.UNTOUCHED
        if found.st_size < self.size:
            return Seen.OTHER
        if self.facts.tail is None:
            return Seen.UNKNOWN
        return Seen.SAME_TAIL if self.has_tail(file) else Seen.OTHER

    def has_tail(self, file: SegmentFile) -> bool:
        """Return whether the committed bytes of a file end as the index has recorded, if it has."""
        return self.facts.tail is None or tail_of(file, self.size, self.mutable) == self.facts.tail

    def is_whole_in(self, file: SegmentFile) -> bool | None:
        """Read all committed bytes; return whether they have the recorded checksum, or None without one."""
        if self.facts.checksum is None:
            return None
        return file.size() >= self.size and checksum_of(file, self.size, self.mutable) == self.facts.checksum


class CheckedReading:
    """Computes the checksum of a file's committed bytes while they are read for another purpose.

    Cost: bytes that are read in the order of the file are read once, others twice.
    """

    def __init__(self, file: SegmentFile, committed: Committed) -> None:
        self._file = file
        self._committed = committed
        self._end = 0
        self._checksum = 0

    def add(self, begin: int, content: bytes) -> None:
        """Include bytes of the file; those before them that nobody has read are read now."""
        if self._committed.facts.checksum is not None and begin < self._committed.size:
            self._read_up_to(begin)
            content = content[self._end - begin : self._committed.size - begin]
            self._checksum = add_to_checksum(content, self._end, self._committed.mutable, self._checksum)
            self._end += len(content)

    def is_whole(self) -> bool | None:
        """Read the other bytes; return whether all have the checksum, or None if the index has not recorded it."""
        if self._committed.facts.checksum is None:
            return None
        self._read_up_to(self._committed.size)
        return self._checksum == self._committed.facts.checksum and self._file.size() >= self._committed.size

    def _read_up_to(self, position: int) -> None:
        if self._end < position:
            self._checksum = checksum_of(self._file, position, self._committed.mutable, self._end, self._checksum)
            self._end = position


def facts_of(found: os.stat_result, tail: int | None, checksum: int | None, *, is_touched: bool = False) -> Facts:
    """Return the facts of a file. `is_touched`: somebody else had touched the file before its last change by ondisk."""
    return Facts(0 if is_touched else found.st_mtime_ns, found.st_ino & INTEGER_MAX, tail, checksum)


def refused(facts: Facts, found: os.stat_result) -> Facts:
    """Return the facts of a segment that note that none of its data are in the file that is at its name now.

    They agree with no untouched file, so the tail decides about each file that is put there later.
    """
    return facts._replace(mtime=-found.st_mtime_ns, inode=found.st_ino & INTEGER_MAX)


def add_to_checksum(content: bytes, position: int, mutable: range, before: int = 0) -> int:
    """Return the CRC-32C of bytes at a position of a file, continued from that of the bytes before them."""
    from google_crc32c import extend  # here, as a query seldom computes one

    begin, end = max(mutable.start, position), min(mutable.stop, position + len(content))
    if begin < end:
        content = content[: begin - position] + bytes(end - begin) + content[end - position :]
    return int(extend(before, content))


def checksum_of(file: SegmentFile, size: int, mutable: range, begin: int = 0, before: int = 0) -> int:
    """Return the CRC-32C of a file's bytes from `begin` up to `size`, continued from that of the bytes before them."""
    while begin < size and (piece := file.read(begin, min(_PIECE, size - begin))):
        before, begin = add_to_checksum(piece, begin, mutable, before), begin + len(piece)
    return before


def tail_of(file: SegmentFile, size: int, mutable: range) -> int:
    """Return the CRC-32C of the last `TAIL` bytes before `size`, or of all bytes if they are fewer."""
    return checksum_of(file, size, mutable, max(0, size - TAIL))


def changed(directory: Directory, name: str, *, is_refused: bool = False) -> SegmentCorrupt:
    """Return the error for a file that the index does not describe. `is_refused`: a fix has found no data in it."""
    path, how = directory.path / name, "another program has changed or replaced it"
    hint = f"{RESTORE}; or {command('fix', directory.path, '--yes')} reads it into the index, or says why not."
    if is_refused:
        how, hint = f"{how}, and none of its data can be read", restore_or_salvage(directory, name)
    return SegmentCorrupt(f"{path} is not the file that the index describes: {how}", hint=hint, segment=name)


def restore_or_salvage(directory: Directory, name: str) -> str:
    inner = os.path.relpath(directory.path / name, directory.path)
    whole = command("fix", directory.path, "--salvage", inner, "--yes")
    return f"{RESTORE}; or {whole} keeps what is whole of it."


def missing(directory: Directory, name: str) -> SegmentMissing:
    how = f"{command('fix', directory.path, '--yes')} follows it, removes its data from the index, or says why not"
    hint = f"Mount its disk. {RESTORE}. If it was moved, or is lost, {how}."
    return SegmentMissing(f"{directory.path / name} is in the index but not on disk", hint=hint, segment=name)


def too_short(directory: Directory, name: str, size: int, wanted: int) -> SegmentCorrupt:
    message = f"{directory.path / name} ends at byte {size}, but the index has data up to byte {wanted}"
    hint = restore_or_salvage(directory, name)
    return SegmentCorrupt(message, hint=hint, segment=name, size=size, wanted=wanted)


def located(error: OndiskError, place: object) -> OndiskError:
    return type(error)(f"{place}: {error.message}", hint=error.hint, **error.context)


class _Pieces(NamedTuple):
    """The checksums of the pieces of a file."""

    size: int = 0  # bytes that were read
    checksum: int = 0  # of all of them
    each: Sequence[int] = ()  # of each piece; the last one may be shorter

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
        """Return whether the pieces of some bytes before `size` still have their checksums."""
        for place in sorted({place for begin, end in spans for place in range(begin // _PIECE, -(-end // _PIECE))}):
            begin = place * _PIECE
            content = file.read(begin, min(_PIECE, self.size - begin))
            if place >= len(self.each) or add_to_checksum(content, begin, committed.mutable) != self.each[place]:
                return False
        return True


class WholeFiles:
    """Compares bytes of segments with the checksums of whole segments, without reading whole segments each time.

    A segment has one checksum of all its committed bytes. When it was compared once, checksums of its pieces are known
    that are as good: after that, only the pieces with the wanted bytes are read, and what was appended. Threads may
    share it.
    """

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
        self._known.pop(generation, None)
        if (pieces.size, pieces.checksum) != (committed.size, committed.facts.checksum):
            return None
        self._known[generation] = pieces
        drop_oldest(self._known, _REMEMBERED)
        return pieces


def drop_oldest(kept: OrderedDict[int, Any], most: int) -> None:
    """Remove the values that were kept first, if there are more than `most`. Threads may share them."""
    while len(kept) > most:
        with contextlib.suppress(KeyError):  # another thread removed it
            kept.popitem(last=False)
