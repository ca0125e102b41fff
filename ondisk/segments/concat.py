"""Concat segments: data one after the other in one file.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     the bytes of its generation 17, during or after a repack

`ondisk.segments.generations` describes the generations. Bytes after the size that the index has committed are the tail
of an interrupted append: readers never see them, and the next append cuts them off.
"""

from __future__ import annotations

import contextlib
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ondisk.errors import OndiskError, SegmentCorrupt, SegmentMissing, StateError, StorageError
from ondisk.filesystem import Directory, ReadableFile, WritableFile
from ondisk.segment import Block, End, Laid, Layout, Patch
from ondisk.segments.generations import complete, hidden
from ondisk.segments.writer import SegmentWriter

_OPEN_TO_WRITE = 128  # files; a batch may touch thousands of segments
_OPEN_TO_READ = 256  # files; fewer where a process may have few, see ConcatReader
_LARGE = 16 * 1024 * 1024  # bytes


@dataclass(slots=True)
class _Append:
    """What a batch wrote to one segment: all that is needed to sync it, or to undo it."""

    file: WritableFile | None
    size_before: int | None  # None: the batch created the file
    patch: Patch | None  # restores the header
    known: bool
    end: End = field(default_factory=End)
    blocks: list[Block] = field(default_factory=list)
    mtime: int = 0


class ConcatWriter:
    """Appends one batch to its segments: write them all, then sync them all, or undo everything.

    Used under the writers' lock.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._appends: dict[str, _Append] = {}
        self._unsynced: list[str] = []

    def exists(self, name: str, generation: int, size: int) -> bool:
        """Return whether anything is at the segment's name, after completing a switch that a crash interrupted.

        Args:
            size: committed bytes of this generation.
        """
        complete(self._directory, name, generation, size)
        return self._directory.stat(name) is not None

    def start(self, name: str, end: End | None, layout: Layout, *, trusted: bool) -> Laid:
        """Return where a segment continues, and what to write before new data.

        Args:
            end: its end in the index; None if the index does not know the segment.
            trusted: the index is trusted, so bytes after the committed size belong to an interrupted append. Otherwise
                they may be data that a lost index knew, and stay.

        Raises:
            SegmentCorrupt, StateError: nothing can be appended to this file.
        """
        if end is not None and trusted:
            return Laid(b"", end)
        try:
            file = self._directory.open_to_read(name)
        except FileNotFoundError:
            return layout.begin() if end is None else Laid(b"", end)
        try:
            return layout.resume(file, end or End())
        except (SegmentCorrupt, StateError) as error:
            message = f"cannot append to {file.path}: {error.message}"
            raise type(error)(message, hint=error.hint, segment=name) from error

    def clear(self, name: str, generation: int) -> None:
        """Remove what a crash left at the hidden name of a new generation."""
        self._directory.discard(hidden(name, generation))

    @contextlib.contextmanager
    def writing(self, name: str, start: Laid, layout: Layout, *, known: bool) -> Iterator[SegmentWriter]:
        """Open a segment to write a batch's data to it; bytes after `start` are cut off.

        Durability: none until `sync`. A crash before that leaves a tail after the committed size, and a header that may
            count data that do not exist.

        Args:
            start: where it continues. Any bytes after that belong to an interrupted append.
            known: the index knows the segment, so its directory entry is durable.

        Raises:
            SegmentMissing: the index knows bytes of it, but it is not on disk.
            SegmentCorrupt: it is shorter than the index says.
        """
        if len(self._unsynced) >= _OPEN_TO_WRITE:
            self.sync()
        position = start.end.size - len(start.content)
        file, size = self._open(name, position)
        append = self._appends[name] = _Append(file, size, layout.patch(start.end), known)
        self._unsynced.append(name)
        if size is not None and size > position:
            file.truncate(position)
            append.size_before = position
        writer = SegmentWriter(layout, file, start, save_blocks=append.blocks.extend)
        yield writer
        append.end = writer.finish()
        append.mtime = file.stat().st_mtime_ns

    def sync(self) -> None:
        """Make everything written so far durable: the files, then the directories of unknown segments.

        A segment is unknown if the index does not have it. Another process may have created its file, and may have been
        killed before it synced the directory.

        Raises:
            DurabilityLost: a sync failed; the batch must not be committed.
        """
        parents = set()
        for name in self._unsynced:
            append = self._appends[name]
            if append.file is not None:
                append.file.sync()
                append.file.close()
                append.file = None
            if not append.known:
                parents |= {name.rpartition("/")[0], ""}
        self._unsynced.clear()
        for parent in parents:
            self._directory.sync(parent)

    def appended(self, name: str) -> tuple[End, list[Block], int]:
        """Return where a segment ends now, its new blocks, and when it was written, nanoseconds since 1970."""
        append = self._appends[name]
        return append.end, append.blocks, append.mtime

    def undo(self) -> None:
        """Undo all writes as far as the disk allows; any bytes that stay are a tail that nobody reads.

        Durability: none. After a crash the tail may be back.
        """
        for name, append in self._appends.items():
            with contextlib.suppress(OSError, OndiskError):
                if append.size_before is None:
                    self._directory.unlink(name)
                else:
                    file = append.file or self._directory.open_to_write(name)
                    append.file = file
                    file.truncate(append.size_before)
                    patch = append.patch
                    if patch is not None and patch.position + len(patch.content) <= append.size_before:
                        file.write(patch.position, patch.content)
        self.close()

    def close(self) -> None:
        """Close all files; `undo` opens them again."""
        for append in self._appends.values():
            if append.file is not None:
                append.file.close()
                append.file = None

    def _open(self, name: str, position: int) -> tuple[WritableFile, int | None]:
        """Open a segment to append at `position`; return the file and its size, None if it is new."""
        try:
            file = self._directory.open_to_write(name)
        except FileNotFoundError:
            if position == 0:
                return self._directory.create_file(name), None
            raise _missing(self._directory, name) from None
        size = file.stat().st_size
        if size < position:
            file.close()
            raise _too_short(self._directory, name, size, position)
        return file, size


class ConcatReader:
    """Reads spans of segments, and keeps the most recently opened files open. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._files: OrderedDict[int, ReadableFile] = OrderedDict()
        self._generations: dict[str, int] = {}
        self._most = min(_OPEN_TO_READ, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def read(self, generation: int, name_of: Callable[[int], str], offset: int, size: int) -> bytes:
        """Read `size` bytes of a segment, by its generation.

        Args:
            name_of: returns the segment's name by its generation; called only if the file is not open.

        Raises:
            SegmentMissing: the segment is not on disk.
            SegmentCorrupt: it ends before these bytes do.
        """
        file = self._files.get(generation) or self.file_of(generation, name_of(generation))
        if size > _LARGE and file.size() < offset + size:  # before memory is allocated
            raise _too_short(self._directory, name_of(generation), file.size(), offset + size)
        content = file.read(offset, size)
        if len(content) < size:
            raise _too_short(self._directory, name_of(generation), offset + len(content), offset + size)
        return content

    def read_open(self, generation: int, offset: int, size: int) -> bytes | None:
        """Read like `read`, but only if the file is already open; return None if not, or if it ends too early.

        Needs no snapshot: the bytes of a generation never change while its file is open.
        """
        file = self._files.get(generation)
        if file is None or (size > _LARGE and file.size() < offset + size):
            return None
        content = file.read(offset, size)
        return content if len(content) == size else None

    def forget(self, generation: int) -> None:
        """Close the file of a generation that was removed, which frees its space."""
        self._files.pop(generation, None)

    def close(self) -> None:
        self._files.clear()

    def file_of(self, generation: int, name: str) -> ReadableFile:
        """Open the file of a generation of a segment.

        The caller must read a snapshot that has this generation, or hold the writers' lock. Otherwise a repack may have
        removed it, and put a newer one in its place.

        Raises:
            SegmentMissing: it is not on disk.
        """
        alias = hidden(name, generation)
        # Try the alias, the name, and the alias again: between the first two, a repack may promote the alias; after the
        # second, the next repack may replace the file at the name and link the old one to the alias.
        file = self._open_alias(alias)
        if file is None:
            plain = self._open_if_there(name)
            file = self._open_alias(alias) or plain
        if file is None:
            raise _missing(self._directory, name)
        before = self._generations.get(name)
        if before is not None and before != generation:
            self.forget(before)
        self._generations[name] = generation
        self._files[generation] = file
        while len(self._files) > self._most:
            self._files.popitem(last=False)
        return file

    def _open_alias(self, alias: str) -> ReadableFile | None:
        """Open a generation at its hidden name; return None if nothing, or not a regular file, has that name."""
        try:
            return self._open_if_there(alias)
        except StorageError:
            found = self._directory.stat(alias)
            if found is not None and stat.S_ISREG(found.st_mode):
                raise
            return None

    def _open_if_there(self, name: str) -> ReadableFile | None:
        try:
            return self._directory.open_to_read(name)
        except FileNotFoundError:
            return None


def _missing(directory: Directory, name: str) -> SegmentMissing:
    hint = "Restore it from a backup, or run `ondisk fix DATASET --yes`, which removes its data from the index."
    return SegmentMissing(f"{directory.path / name} is in the index but not on disk", hint=hint, segment=name)


def _too_short(directory: Directory, name: str, size: int, wanted: int) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{directory.path / name} ends at byte {size}, but the index has data up to byte {wanted}",
        hint="Restore the file from a backup. The data before that byte can still be read.",
        segment=name,
        size=size,
        wanted=wanted,
    )
