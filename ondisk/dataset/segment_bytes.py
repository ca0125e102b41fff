"""The bytes of a segment's file as one commit left them, for readers that want them as they are on disk."""

from __future__ import annotations

from dataclasses import dataclass

from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, SegmentMissing, shown
from ondisk.filesystem import ReadableFile
from ondisk.formats import is_dir


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The committed bytes of a segment's file, also of deleted data. They do not change, whatever is done later."""

    size: int  # their number
    version: str  # the same for the same bytes only
    file: ReadableFile  # open, and compared with the index
    head: bytes  # the first of them. The file may have others there, since an append changes them in place

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end."""
        size = min(size, self.size - offset)
        begin = self.head[offset : offset + size]
        return begin + self.file.read(offset + len(begin), size - len(begin))


def segment_bytes(access: Access, name: str) -> SegmentBytes:
    """Return the committed bytes of a concat segment; see `Dataset.segment_bytes`."""
    opened = access.current()
    with opened.index.snapshot() as snapshot:
        segment = snapshot.segment_named(name)
        if segment is None:
            raise SegmentMissing(f"{access.path} has no segment {shown(name)}", hint="Query again: it was moved.")
        if is_dir(segment.format):
            hint = "Read its data one by one, at the locations that a query returns."
            raise InvalidInput(f"{shown(name)} is a folder with a file for each datum", hint=hint)
        file = opened.reader.file_of(segment)
        facts = segment.facts
        checksum = facts.tail if facts.checksum is None else facts.checksum
        version = f"{snapshot.dataset()['uuid']}-{segment.id}-{segment.end.size}-{checksum}"
        patch = access.format(segment.format).patch(segment.end)
    head = b"" if patch is None else file.read(0, patch.position) + patch.content
    return SegmentBytes(segment.end.size, version, file, head[: segment.end.size])
