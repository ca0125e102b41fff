"""Reads dir segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from typing import TypeAlias

from zlib_ng.zlib_ng import crc32

from ondisk.errors import FrameCorrupt, SegmentCorrupt, SegmentMissing
from ondisk.filesystem import Directory, ReadableFile
from ondisk.segments.dir import METADATA, MetadataFile, file_name, is_refused, open_directory, seen_in, verify
from ondisk.segments.facts import Committed, Seen, changed, drop_oldest, restore_or_salvage
from ondisk.segments.generations import LOOKS, hidden, kept
from ondisk.segments.places import elsewhere

Known: TypeAlias = Callable[[], Committed]

_OPEN = 16  # directories that a reader keeps open
_KEPT = 4  # segments for which a reader keeps the positions of all entries


class DirReader:
    """Reads files of segments, and their metadata. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._folders: OrderedDict[int, Directory] = OrderedDict()
        self._entries: OrderedDict[int, MetadataFile] = OrderedDict()
        self._most = _OPEN

    def folder_of(self, generation: int, name: str, known: Known) -> Directory:
        """Open the directory of a generation: at its hidden name if that exists, else at its name.

        Only a directory that agrees with the facts in the index is it: in another one, the numbers may have other data.

        Args:
            known: returns the facts, and the bytes of `.metadata` at the last commit.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: another directory is in its place.
        """
        folder = self._folders.get(generation)
        if folder is not None:
            return folder
        other, alias, committed = None, hidden(name, generation), known()
        # It may be moved in between, and a drop may be undone meanwhile; and somebody may have renamed its place.
        for place in chain((alias, name) * LOOKS, (kept(name, generation),), elsewhere(self._directory, name)):
            folder = self._inside(place)
            if folder is not None and seen_in(folder, committed.facts, committed.size) is not Seen.OTHER:
                self._folders[generation] = folder
                drop_oldest(self._folders, self._most)
                return folder
            other = folder or other
        if other is None:
            open_directory(self._directory, name).close()  # reports that it is missing
        raise changed(self._directory, name, is_refused=other is not None and is_refused(other, committed.facts))

    def read(self, generation: int, name: str, known: Known, number: int, size: int) -> bytes:
        """Read one file, which must have `size` bytes and the checksum in its entry.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: it has another size, its entry is missing or damaged, or another directory is in the place
                of the segment's.
            FrameCorrupt: it has another checksum.
        """
        last = file_name(name, number)
        try:
            file = self._open(generation, name, known, last)
        except FileNotFoundError:
            message = f"{self._directory.path / name / last} is in the index but not on disk"
            raise SegmentMissing(message, hint=restore_or_salvage(self._directory, name), segment=name) from None
        found = file.size()
        content = file.read(0, size) if found == size else b""
        if len(content) != size:
            message = f"{file.path} has {found} bytes instead of {size}"
            hint = restore_or_salvage(self._directory, name)
            raise SegmentCorrupt(message, hint=hint, segment=name, size=found, wanted=size)
        verify(crc32(content), self._entries_with(generation, name, known, number).checksum(number))
        return content

    def beside(self, generation: int, name: str, known: Known, number: int) -> bytes:
        """Return reftime and metadata of a file as they are stored; raise SegmentMissing or SegmentCorrupt."""
        try:
            return self._entries_with(generation, name, known, number).get(number).beside
        except FrameCorrupt as error:
            raise self._unreadable(name, number, error.message) from None

    def keep_open(self, most: int) -> None:
        """Keep at most so many folders open from now on."""
        self._most = min(self._most, most)

    def close(self) -> None:
        self._entries.clear()
        self._folders.clear()

    def _entries_with(self, generation: int, name: str, known: Known, number: int) -> MetadataFile:
        """Return the `.metadata` of a segment, which has an entry for the file."""
        entries = self._entries.get(generation)
        if entries is not None and number not in entries:
            entries.read_on()
        if entries is None or number not in entries:
            entries = MetadataFile.of(self.folder_of(generation, name, known))
            if entries is not None:
                self._entries[generation] = entries
                drop_oldest(self._entries, _KEPT)
        if entries is None or number not in entries:
            raise self._unreadable(name, number, "it has no entry")
        return entries

    def _unreadable(self, name: str, number: int, reason: str) -> SegmentCorrupt:
        path = self._directory.path / name
        message = f"{path}: cannot read the metadata of {file_name(name, number)} from {METADATA}: {reason}"
        return SegmentCorrupt(message, hint=restore_or_salvage(self._directory, name), segment=name)

    def _open(self, generation: int, name: str, known: Known, file: str) -> ReadableFile:
        """Open a file of a segment; look for the directory again if somebody has replaced it."""
        is_known = generation in self._folders
        try:
            return self.folder_of(generation, name, known).open_to_read(file)
        except FileNotFoundError:
            self._folders.pop(generation, None)
            if not is_known:
                raise
        return self.folder_of(generation, name, known).open_to_read(file)

    def _inside(self, name: str) -> Directory | None:
        try:
            return self._directory.inside(name)
        except FileNotFoundError:
            return None
