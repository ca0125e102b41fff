"""Find the place again where an earlier import stopped in a segment, or notice that it is another segment now."""

from __future__ import annotations

from ondisk.formats.base import FileStream
from ondisk.formats.diskqueue.frame_reader import FrameReader
from ondisk.formats.diskqueue.parse import Place, walk
from ondisk.formats.diskqueue.seg import Seg
from ondisk.segment import SegmentFile


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
    """Return a reader of the frames of a plain segment from a logical offset on."""
    header = frames.header
    stream = FileStream(file, offset + header.size - header.logical_size)
    return format.frames_at(stream, header, offset)
