"""The files of segments, `concat` and `dir`: who appends, reads, cuts a tail and syncs. Knows files, not formats.

Both kinds of writer and of reader offer the same methods; `SegmentWriter` lays data into one file.
"""

from ondisk.segments.concat import ConcatReader, ConcatWriter
from ondisk.segments.dir import DirReader, DirWriter, FileWriter
from ondisk.segments.writer import SegmentWriter

__all__ = ["ConcatReader", "ConcatWriter", "DirReader", "DirWriter", "FileWriter", "SegmentWriter"]
