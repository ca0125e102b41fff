"""The files of segments, `concat` and `dir`: append to them, read them, sync them. Knows files, not formats.

Both kinds of writer have the same methods.
"""

from ondisk.segments.concat_reader import ConcatReader
from ondisk.segments.concat_writer import ConcatWriter, MustRewrite
from ondisk.segments.dir_reader import DirReader
from ondisk.segments.dir_writer import DirWriter, FileWriter
from ondisk.segments.writer import SegmentWriter

__all__ = ["ConcatReader", "ConcatWriter", "DirReader", "DirWriter", "FileWriter", "MustRewrite", "SegmentWriter"]
