"""Concat segments: data one after the other in one file.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     the bytes of its generation 17, during or after a repack

The bytes of generation g of a segment are at `.NAME.g` if that exists, else at `NAME`. What lies behind the size that
the index has committed is the tail of a batch that was never acknowledged: readers never see it, the next append
cuts it off.
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
from ondisk.segments.generations import complete, discard, hidden
from ondisk.segments.writer import SegmentWriter

_OPEN_TO_WRITE = 128  # files; a batch may touch thousands of segments
_OPEN_TO_READ = 256  # files; fewer where a process may have few, see ConcatReader
_LARGE = 16 * 1024 * 1024  # bytes


@dataclass(slots=True)
class _Written:
    """One segment that a batch has written to: what is needed to sync it, or to undo the batch."""

    file: WritableFile | None
    size_before: int | None  # None: the batch created the file
    patch: Patch | None  # as the header was before
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
        self._written: dict[str, _Written] = {}
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
            end: as the index knows it; None if it does not know the segment.
            trusted: the index is trusted, so bytes after the committed size are an interrupted append. Otherwise they
                may be data that a lost index knew, and stay.

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
            message = f"nothing is appended to {file.path}: {error.message}"
            raise type(error)(message, hint=error.hint, segment=name) from error

    def clear(self, name: str, generation: int) -> None:
        """Remove what a crash left in the place of a new generation."""
        discard(self._directory, [hidden(name, generation)])

    @contextlib.contextmanager
    def writing(self, name: str, start: Laid, layout: Layout, *, known: bool) -> Iterator[SegmentWriter]:
        """Open a segment to write a batch's data to it; bytes after `start` are cut off.

        Durability: nothing, until `sync`. A crash before leaves a tail after the committed size, and a header that may
            count data which are not there.

        Args:
            start: where it continues. After its beginning there is at most the tail of a batch that was never
                acknowledged.
            known: the index knows the segment, so its directory entry is durable.

        Raises:
            SegmentMissing: the index knows bytes of it, and it is not on disk.
            SegmentCorrupt: it is shorter than the index says.
        """
        if len(self._unsynced) >= _OPEN_TO_WRITE:
            self.sync()
        position = start.end.size - len(start.content)
        file, size = self._open(name, position)
        written = self._written[name] = _Written(file, size, layout.patch(start.end), known)
        self._unsynced.append(name)
        if size is not None and size > position:
            file.truncate(position)
            written.size_before = position
        writer = SegmentWriter(layout, file, start, save_blocks=written.blocks.extend)
        yield writer
        written.end = writer.finish()
        written.mtime = file.stat().st_mtime_ns

    def sync(self) -> None:
        """Make everything written so far durable: the files, then the directories of those the index does not know.

        Not only of those that this batch created: the process that created one may have been killed before its sync.

        Raises:
            DurabilityLost: a sync failed; the batch must not be committed.
        """
        parents = set()
        for name in self._unsynced:
            written = self._written[name]
            if written.file is not None:
                written.file.sync()
                written.file.close()
                written.file = None
            if not written.known:
                parents |= {name.rpartition("/")[0], ""}
        self._unsynced.clear()
        for parent in parents:
            self._directory.sync(parent)

    def end(self, name: str) -> End:
        """Return where a segment ends now."""
        return self._written[name].end

    def blocks(self, name: str) -> list[Block]:
        """Return the new blocks of a segment, if it is compressed."""
        return self._written[name].blocks

    def mtime(self, name: str) -> int:
        """Return when a segment was written, nanoseconds since 1970."""
        return self._written[name].mtime

    def undo(self) -> None:
        """Undo all writes as far as the disk allows; what stays is a tail that nobody reads.

        Not synced: after a crash the tail may be there again.
        """
        for name, written in self._written.items():
            with contextlib.suppress(OSError, OndiskError):
                if written.size_before is None:
                    self._directory.unlink(name)
                else:
                    file = written.file or self._directory.open_to_write(name)
                    written.file = file
                    file.truncate(written.size_before)
                    patch = written.patch
                    if patch is not None and patch.position + len(patch.content) <= written.size_before:
                        file.write(patch.position, patch.content)
        self.close()

    def close(self) -> None:
        """Close all files; `undo` opens them again."""
        for written in self._written.values():
            if written.file is not None:
                written.file.close()
                written.file = None

    def _open(self, name: str, position: int) -> tuple[WritableFile, int | None]:
        """Open a segment to append at `position`; return its size, None for a new one."""
        try:
            file = self._directory.open_to_write(name)
        except FileNotFoundError:
            if position == 0:
                return self._directory.create_file(name), None
            path = self._directory.path / name
            hint = "Put the file back, from a backup, or delete its data."
            raise SegmentMissing(f"{path} is in the index and not on disk", hint=hint, segment=name) from None
        size = file.stat().st_size
        if size < position:
            file.close()
            raise _too_short(self._directory, name, size, position)
        return file, size


class ConcatReader:
    """Reads spans of segments, and keeps the files it read last open. Threads may share it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._files: OrderedDict[int, ReadableFile] = OrderedDict()
        self._generations: dict[str, int] = {}
        self._most = min(_OPEN_TO_READ, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def read(self, generation: int, name_of: Callable[[int], str], offset: int, size: int) -> bytes:
        """Read `size` bytes of a segment, by its generation.

        Args:
            name_of: gives the segment's name by its generation; asked only when the file is not open.

        Raises:
            SegmentMissing: the segment is not on disk.
            SegmentCorrupt: it ends before these bytes do.
        """
        file = self._files.get(generation) or self.file_of(generation, name_of(generation))
        if size > _LARGE and file.size() < offset + size:  # before memory is taken for it
            raise _too_short(self._directory, name_of(generation), file.size(), offset + size)
        content = file.read(offset, size)
        if len(content) < size:
            raise _too_short(self._directory, name_of(generation), offset + len(content), offset + size)
        return content

    def read_open(self, generation: int, offset: int, size: int) -> bytes | None:
        """Read like `read`, from a file that is open already; None where it is not, or ends before these bytes do.

        Takes no snapshot: the bytes of one generation stay what they are, as long as its file is open.
        """
        file = self._files.get(generation)
        if file is None or (size > _LARGE and file.size() < offset + size):
            return None
        content = file.read(offset, size)
        return content if len(content) == size else None

    def forget(self, generation: int) -> None:
        """Close the file of a generation that was removed: as long as it is open, its space does not come back."""
        self._files.pop(generation, None)

    def close(self) -> None:
        self._files.clear()

    def file_of(self, generation: int, name: str) -> ReadableFile:
        """Open the file that holds a generation of a segment.

        For who reads a snapshot that has this generation, or holds the writers' lock. For others a repack may have
        removed it, and put a newer one in its place.

        Raises:
            SegmentMissing: it is not on disk.
        """
        alias = hidden(name, generation)
        # A repack may rename the alias to the name between the two looks, and link a new one behind the second.
        file = self._open_alias(alias)
        if file is None:
            plain = self._open_if_there(name)
            file = self._open_alias(alias) or plain
        if file is None:
            path = self._directory.path / name
            hint = "Put the file back, from a backup, or delete its data."
            raise SegmentMissing(f"{path} is in the index and not on disk", hint=hint, segment=name)
        before = self._generations.get(name)
        if before is not None and before != generation:
            self.forget(before)
        self._generations[name] = generation
        self._files[generation] = file
        while len(self._files) > self._most:
            self._files.popitem(last=False)
        return file

    def _open_alias(self, alias: str) -> ReadableFile | None:
        """Open a generation at its hidden name; what is no plain file there is none."""
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


def _too_short(directory: Directory, name: str, size: int, wanted: int) -> SegmentCorrupt:
    return SegmentCorrupt(
        f"{directory.path / name} ends at byte {size}, the index knows data up to byte {wanted}",
        hint="Restore the file from a backup; the data before the cut can still be read.",
        segment=name,
        size=size,
        wanted=wanted,
    )
