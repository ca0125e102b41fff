"""Reads concat segments: data one after the other in one file.

`ondisk.segments.generations` describes at which name the bytes of a generation are.
"""

from __future__ import annotations

import contextlib
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ondisk.errors import AuthenticationFailed, FrameCorrupt, KeyMissing, StateError, StorageError
from ondisk.filesystem import Directory, ReadableFile
from ondisk.segment import Sealer, SegmentFile
from ondisk.segments.file_facts import Committed, Seen, changed, drop_oldest, located, missing, too_short
from ondisk.segments.generations import names_of

_OPEN_TO_READ = 256  # files; fewer where a process may have few, see ConcatReader
_LARGE = 16 * 1024 * 1024  # bytes


class _Open:
    """An open file of a generation, and what is known to be right about it: its bytes up to `size`, at this stat."""

    __slots__ = ("file", "length", "mtime", "name", "sealer", "size")

    def __init__(self, file: ReadableFile, name: str) -> None:
        self.file = file
        self.name = name
        self.sealer: Sealer | type[_Unknown] | None = _Unknown
        self.mtime = self.length = -1
        self.size = 0

    def is_verified(self, end: int) -> bool:
        """Return whether nobody has touched the file since its bytes up to `end` were verified."""
        found = self.file.stat()
        return end <= self.size and found.st_mtime_ns == self.mtime and found.st_size == self.length

    def verify(self, committed: Committed) -> bool:
        """Compare the file with the facts of its segment, and remember the result."""
        found = self.file.stat()
        if committed.seen_in(self.file, found) is Seen.OTHER:
            return False
        self.mtime, self.length, self.size = found.st_mtime_ns, found.st_size, committed.size
        return True


class _Unknown:
    """In place of the sealer of a file that nobody has read from."""


class ConcatReader:
    """Reads spans of segments, and keeps the most recently opened files open. Threads may share it.

    A file is compared with the facts of its segment when it is opened, and again when it was touched since. What is
    encrypted is decrypted right after it was read.

    Args:
        sealer: returns what decrypts a segment's file, by the segment's name; None if it is plain.
    """

    def __init__(
        self, directory: Directory, sealer: Callable[[SegmentFile, str], Sealer | None] = lambda _file, _name: None
    ) -> None:
        self._directory = directory
        self._sealer = sealer
        self._files: OrderedDict[int, _Open] = OrderedDict()
        self._generations: dict[str, int] = {}
        # how many files it keeps open
        self.most = min(_OPEN_TO_READ, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def read(
        self,
        generation: int,
        known: Callable[[], tuple[str, Committed]],
        offset: int,
        size: int,
        places: Sequence[tuple[int, int]] = (),
    ) -> bytes:
        """Read `size` bytes of a segment, by its generation.

        Args:
            known: returns the segment's name and its committed bytes; called only if the file must be compared.
            places: position and size of the wanted data, if there are other bytes between them.

        Raises:
            SegmentMissing: the segment is not on disk.
            SegmentCorrupt: it ends before these bytes do, or another program has changed it.
            KeyMissing, AuthenticationFailed, FrameCorrupt: it is encrypted, and cannot be decrypted.
        """
        opened = self._files.get(generation)
        if opened is None or not opened.is_verified(offset + size):
            name, committed = known()
            opened = self._verified(generation, name, committed)
            if size > _LARGE and opened.length < offset + size:  # before memory is allocated
                raise too_short(self._directory, name, opened.length, offset + size)
        content = opened.file.read(offset, size)
        if len(content) < size:
            raise too_short(self._directory, known()[0], offset + len(content), offset + size)
        return content if opened.sealer is None else self._unsealed(opened, offset, content, places)

    def read_open(self, generation: int, offset: int, size: int) -> bytes | None:
        """Read like `read`, but only if the file is already open and verified; return None if it is not.

        Needs no snapshot: the bytes of a generation never change while its file is open.
        """
        opened = self._files.get(generation)
        if opened is None or not opened.is_verified(offset + size):
            return None
        if len(content := opened.file.read(offset, size)) < size:
            return None
        return content if opened.sealer is None else self._unsealed(opened, offset, content)

    def is_encrypted(self, generation: int) -> bool:
        """Return whether a file that was just read from is encrypted: its bytes are not those that were returned."""
        opened = self._files.get(generation)
        return opened is not None and opened.sealer is not None

    def _unsealed(self, opened: _Open, offset: int, content: bytes, places: Sequence[tuple[int, int]] = ()) -> bytes:
        """Return decrypted bytes; of a file that is encrypted datum by datum, those at `places`."""
        try:
            known = opened.sealer
            if known is not _Unknown:
                with contextlib.suppress(KeyMissing):  # there may be more keys than when it was opened
                    return _decrypted(known, offset, content, places)
            opened.sealer = self._sealer(opened.file, opened.name)
            return _decrypted(opened.sealer, offset, content, places)
        except (StateError, AuthenticationFailed, FrameCorrupt) as error:
            raise located(error, self._directory.path / opened.name) from None

    def forget(self, generation: int) -> None:
        """Close the file of a generation that was removed, which frees its space."""
        self._files.pop(generation, None)

    def keep_open(self, most: int) -> None:
        self.most = min(self.most, most)

    def close(self) -> None:
        self._files.clear()

    def file_of(self, generation: int, name: str, committed: Committed) -> ReadableFile:
        """Open the file of a generation of a segment.

        The caller must read a snapshot that has this generation, or hold the writers' lock. Otherwise a repack may have
        removed it, and put a newer one in its place.

        Raises:
            SegmentMissing: it is not on disk.
            SegmentCorrupt: another program has changed it.
        """
        return self._verified(generation, name, committed).file

    def _verified(self, generation: int, name: str, committed: Committed) -> _Open:
        opened = self._files.get(generation)
        if opened is not None and opened.verify(committed):
            return opened
        opened = self._found(name, generation, committed)
        before = self._generations.get(name)
        if before is not None and before != generation:
            self.forget(before)
        self._generations[name] = generation
        self._files[generation] = opened
        drop_oldest(self._files, self.most)
        return opened

    def _found(self, name: str, generation: int, committed: Committed) -> _Open:
        """Open the generation at its hidden name, or else at NAME; skip files that are not the generation."""
        file = None
        for place in names_of(self._directory, name, generation):
            found = self._open_if_there(place, is_alias=place != name)
            if found is not None:
                opened = _Open(file := found, name)
                if opened.verify(committed):
                    return opened
        if file is None:
            raise missing(self._directory, name)
        if file.size() < committed.size:
            raise too_short(self._directory, name, file.size(), committed.size)
        raise changed(self._directory, name, is_refused=committed.is_refused(file.stat()))

    def _open_if_there(self, name: str, *, is_alias: bool) -> ReadableFile | None:
        """Open a file; return None if nothing has this name, or if it is hidden and not a regular file."""
        try:
            return self._directory.open_to_read(name)
        except FileNotFoundError:
            return None
        except StorageError:
            found = self._directory.stat(name)
            if not is_alias or (found is not None and stat.S_ISREG(found.st_mode)):
                raise
            return None


def _decrypted(
    sealer: Sealer | type[_Unknown] | None, offset: int, content: bytes, places: Sequence[tuple[int, int]]
) -> bytes:
    if sealer is None:
        return content
    assert not isinstance(sealer, type)
    if not places or not sealer.is_framed:
        return sealer.unseal(offset, content)
    decrypted = bytearray(content)
    for at, size in places:
        begin = at - offset
        decrypted[begin : begin + size] = sealer.unseal(at, content[begin : begin + size])
    return bytes(decrypted)
