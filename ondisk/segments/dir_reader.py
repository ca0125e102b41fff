"""Read data from dir segments."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from zlib import crc32

from ondisk.errors import FrameCorrupt, SegmentCorrupt, SegmentMissing
from ondisk.filesystem import Directory, ReadableFile
from ondisk.segment import Facts
from ondisk.segments.dir import RESTORE, file_name, open_directory, verify
from ondisk.segments.dir_facts import seen_in
from ondisk.segments.facts import Seen
from ondisk.segments.generations import LOOKS, hidden
from ondisk.segments.metadata_file import METADATA, MetadataFile

_OPEN = 16  # directories that a reader keeps open
_KEPT = 4  # segments for which a reader keeps the positions of all entries


class DirReader:
    """Reads files of segments, and their metadata. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._folders: OrderedDict[int, Directory] = OrderedDict()
        self._entries: OrderedDict[int, MetadataFile] = OrderedDict()

    def choose(self, generation: int, name: str, facts: Facts, size: int) -> None:
        """Open the directory of a generation that agrees with the facts in the index, if it is not open yet.

        Without one, `read` takes what it finds, and the checksums of files and entries decide.

        Args:
            size: bytes of `.metadata` at the last commit.
        """
        if generation in self._folders:
            return
        alias = hidden(name, generation)
        for place in (alias, name, alias):  # it may be moved in between
            folder = self._inside(place)
            if folder is not None and seen_in(folder, facts, size) is not Seen.OTHER:
                self._keep_open(generation, folder)
                return

    def read(self, generation: int, name: str, number: int, size: int) -> bytes:
        """Read one file, which must have `size` bytes and the checksum in its entry.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: it has another size, or its entry is missing or damaged.
            FrameCorrupt: it has another checksum.
        """
        last = file_name(name, number)
        try:
            file = self._open(generation, name, last)
        except FileNotFoundError:
            message = f"{self._directory.path / name / last} is in the index but not on disk"
            raise SegmentMissing(message, hint=RESTORE, segment=name) from None
        found = file.size()
        content = file.read(0, size) if found == size else b""
        if len(content) != size:
            message = f"{file.path} has {found} bytes instead of {size}"
            raise SegmentCorrupt(message, hint=RESTORE, segment=name, size=found, wanted=size)
        verify(crc32(content), self._entries_with(generation, name, number).checksum(number))
        return content

    def beside(self, generation: int, name: str, number: int) -> bytes:
        """Return reftime and metadata of one file, as the format wrote them.

        Raises:
            SegmentMissing: the segment is not on disk.
            SegmentCorrupt: the file's entry is missing or damaged.
        """
        try:
            return self._entries_with(generation, name, number).get(number).beside
        except FrameCorrupt as error:
            raise self._unreadable(name, number, error.message) from None

    def close(self) -> None:
        self._entries.clear()
        self._folders.clear()

    def _entries_with(self, generation: int, name: str, number: int) -> MetadataFile:
        """Return the `.metadata` of a segment, which has an entry for the file."""
        entries = self._entries.get(generation)
        if entries is not None and number not in entries:
            entries.read_on()
        if entries is None or number not in entries:
            try:
                entries = MetadataFile.of(self._folder(generation, name))
            except FileNotFoundError:
                with open_directory(self._directory, name) as folder:  # reports that it is missing
                    entries = MetadataFile.of(folder)
            if entries is not None:
                self._entries[generation] = entries
                while len(self._entries) > _KEPT:
                    with contextlib.suppress(KeyError):  # another thread removed it
                        self._entries.popitem(last=False)
        if entries is None or number not in entries:
            raise self._unreadable(name, number, "it has no entry")
        return entries

    def _unreadable(self, name: str, number: int, reason: str) -> SegmentCorrupt:
        path = self._directory.path / name
        message = f"{path}: cannot read the metadata of {file_name(name, number)} from {METADATA}: {reason}"
        hint = f"Restore {METADATA} from a backup, or delete the datum by its location."
        return SegmentCorrupt(message, hint=hint, segment=name)

    def _open(self, generation: int, name: str, file: str) -> ReadableFile:
        """Open a file of a segment; look for the directory again if somebody has replaced it."""
        is_known = generation in self._folders
        try:
            return self._folder(generation, name).open_to_read(file)
        except FileNotFoundError:
            self._folders.pop(generation, None)
            if not is_known:
                raise
        return self._folder(generation, name).open_to_read(file)

    def _folder(self, generation: int, name: str) -> Directory:
        """Open the directory of a generation: at its hidden name if that exists, else at its name."""
        folder = self._folders.get(generation)
        if folder is None:
            alias = hidden(name, generation)
            looks = (self._inside(alias) or self._moved(alias, name) for _ in range(LOOKS))
            folder = next((each for each in looks if each is not None), None)  # a drop may be undone meanwhile
            if folder is None:
                raise FileNotFoundError(name)
            self._keep_open(generation, folder)
        return folder

    def _keep_open(self, generation: int, folder: Directory) -> None:
        self._folders[generation] = folder
        while len(self._folders) > _OPEN:
            with contextlib.suppress(KeyError):  # another thread removed it
                self._folders.popitem(last=False)

    def _moved(self, alias: str, name: str) -> Directory | None:
        """Open the directory at its name, unless it was moved to its hidden name in between."""
        plain = self._inside(name)
        return self._inside(alias) or plain

    def _inside(self, name: str) -> Directory | None:
        try:
            return self._directory.inside(name)
        except FileNotFoundError:
            return None
