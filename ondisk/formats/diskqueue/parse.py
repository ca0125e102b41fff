"""From the frames of a segment to batches of data, from its beginning or from where an earlier import stopped.

That place is found again, or it is noticed that the segment is another one now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ondisk import frame
from ondisk.formats.base import BATCH_BYTES, Batch, FileStream
from ondisk.formats.diskqueue.frame_reader import FrameReader
from ondisk.segment import Damage, SegmentFile

if TYPE_CHECKING:
    from ondisk.formats.diskqueue.seg import Seg

Add: TypeAlias = Callable[[Batch, frame.Scan, int, int], int]
"""Adds some of the frames of a scan to a batch, and returns their size in bytes."""

Walked: TypeAlias = Literal["exact", "short", "across", "damaged"]

_PASSED = 100_000  # limit for damaged places to skip in one file


@dataclass(frozen=True, slots=True)
class Place:
    """How far a segment was read, and how it is recognised: by its first frame and the last one that was read."""

    offset: int = 0  # logical offset of what follows; 0: nothing was read, not even the header
    frames: int = 0  # the number of whole frames before it
    first: int = 0  # the checksum of the first of them
    begin: int = 0  # where the first one ends
    last: int = 0  # where the last one begins
    end: int = 0  # where the last one ends; less than `offset` if damage follows it
    checksum: int = 0  # of the last one
    size: int = 0  # of the file, if all of it was read and its program had finished it; else 0

    def after(self, scanned: frame.Scan, begin: int, end: int) -> Place:
        """Return the place after frames `begin` to `end` - 1 of a scan; it is before them."""
        if begin == end:
            return self
        bounds = (*scanned.offsets, scanned.end)
        frames, offset = self.frames + end - begin, bounds[end]
        first, ends = (self.first, self.begin) if self.frames else (_checksum(scanned, begin), bounds[begin + 1])
        return Place(offset, frames, first, ends, bounds[end - 1], offset, _checksum(scanned, end - 1))


def batches(
    frames: FrameReader, add: Add, batch_size: int, place: Place, *, growing: bool = False, counted: int = 0
) -> Iterator[tuple[Batch, Place]]:
    """Yield the data of frames, unchanged; skip damage. With each batch comes the place after it.

    Args:
        place: what was read before. Frames and damage before its offset are not part of the batches.
        growing: another program may still write the file, so an incomplete last frame is not damage.
        counted: the number of frames in the header; the last batch says if fewer are whole.
    """
    batch, weight, passed = Batch(), 0, 0
    while True:
        for scanned in frames:
            at = 0
            while at < len(scanned.payloads):
                end = min(at + batch_size - len(batch), len(scanned.payloads))
                weight += add(batch, scanned, at, end)
                place = place.after(scanned, at, end)
                at = end
                if len(batch) >= batch_size or weight >= BATCH_BYTES:
                    yield batch, place
                    batch, weight = Batch(), 0
        if (damage := frames.damage) is None:
            break
        skipped = frames.skip() if passed < _PASSED else 0
        if not skipped and growing and (damage.torn or frames.has_zeros()):
            break
        passed += 1
        size = skipped or frames.left()
        if damage.offset + size > place.offset:
            batch.damage.append(Damage(damage.offset, size, damage.reason))
            place = replace(place, offset=damage.offset + size)
        if not skipped:
            break
    if counted > place.frames:
        batch.notes.append(f"its header counts {counted} frames, {place.frames} are whole")
        batch.missing = max(0, counted - place.frames - passed)
    if len(batch) or batch.damage or batch.notes:
        yield batch, place


def walk(frames: FrameReader, limit: int) -> tuple[Place, Walked]:
    """Read frames up to a logical offset; return the place after the last one, and what is between the two."""
    place = Place(frames.offset)
    while frames.offset < limit:
        for scanned in frames.until(limit):
            place = place.after(scanned, 0, len(scanned.payloads))
        if frames.damage is None or frames.offset >= limit:
            break
        torn = frames.damage.torn
        if not frames.skip():
            return place, "short" if torn else "damaged"
    if place.end == limit:
        return place, "exact"
    if frames.offset >= limit:
        return place, "damaged"
    return place, "short" if next(iter(frames), None) is None else "across"


def resumed(format: Seg, file: SegmentFile, place: Place) -> tuple[FrameReader, Place, str | None]:
    """Return a reader of what follows a place, the place that it begins at, and a remark if that is another one.

    Cost: reads two frames; the whole segment up to the place if it is compressed or encrypted, or was changed.
    """
    frames = format.frames(FileStream(file, 0))
    if not place.frames:
        return frames, place, None
    header = frames.header
    seekable = not (header.compressed or header.encrypted)
    if seekable and is_known(format, file, place):
        return _at(format, file, frames, place.offset), place, None
    walked, how = walk(frames, place.end)
    if how == "exact" and (walked.last, walked.checksum) == (place.last, place.checksum):
        return frames, place, None
    if walked.first == place.first and how == "damaged":
        remark = f"it was damaged before byte {place.end} after an import had read it"
        return _at(format, file, frames, place.offset) if seekable else frames, place, remark
    if walked.first == place.first and how == "short":
        remark = f"it was cut at byte {walked.end} after an import had read it up to byte {place.end}"
        return *resumed(format, file, walked)[:2], remark
    remark = "it was replaced after an import had read it, and is imported from its beginning"
    return format.frames(FileStream(file, 0)), Place(), remark


def is_known(format: Seg, file: SegmentFile, place: Place) -> bool:
    """Return whether the segment has the first frame of a place, and its last one if that can be read alone."""
    if not begins_like(format, file, place):
        return False
    frames = format.frames(FileStream(file, 0))
    if frames.header.compressed or frames.header.encrypted:
        return True
    last, how = walk(_at(format, file, frames, place.last), place.end)
    return how == "exact" and (last.last, last.checksum) == (place.last, place.checksum)


def begins_like(format: Seg, file: SegmentFile, place: Place) -> bool:
    """Return whether the segment has the first frame of a place."""
    walked, _ = walk(format.frames(FileStream(file, 0)), place.begin)
    return (walked.first, walked.begin) == (place.first, place.begin)


def _at(format: Seg, file: SegmentFile, frames: FrameReader, offset: int) -> FrameReader:
    header = frames.header
    stream = FileStream(file, offset + header.size - header.logical_size)
    return format.frames_at(stream, header, offset)


def _checksum(scanned: frame.Scan, at: int) -> int:
    (content,) = scanned.frames(at, at + 1)
    return int.from_bytes(content[-8:-4], "little")
