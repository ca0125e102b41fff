"""The files of segments: who appends to them, reads them, cuts a tail off. Knows files, not formats."""

from ondisk.segments.concat import ConcatReader, ConcatWriter, Span
from ondisk.segments.dir import DirReader, DirWriter

__all__ = ["ConcatReader", "ConcatWriter", "DirReader", "DirWriter", "Span"]
