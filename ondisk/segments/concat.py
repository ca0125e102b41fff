"""Concat segments: data one after the other in one file.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     the bytes of its generation 17, during or after a repack

`ondisk.segments.generations` describes the generations. Bytes after the size that the index has committed are the tail
of an interrupted append: readers never see them, and the next append cuts them off.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ondisk.errors import (
    AuthenticationFailed,
    FrameCorrupt,
    KeyMissing,
    OndiskError,
    SegmentCorrupt,
    SegmentMissing,
    StateError,
    StorageError,
    command,
)
from ondisk.filesystem import Directory, ReadableFile, WritableFile
from ondisk.segment import Block, End, Facts, Laid, Layout, Patch, Sealer, SegmentFile, Start
from ondisk.segments import quarantine
from ondisk.segments.facts import Committed, Seen
from ondisk.segments.generations import LOOKS, complete, hidden, kept, reveal, set_aside
from ondisk.segments.writer import SegmentWriter

_OPEN_TO_WRITE = 128  # files; a batch may touch thousands of segments
_OPEN_TO_READ = 256  # files; fewer where a process may have few, see ConcatReader
_LARGE = 16 * 1024 * 1024  # bytes
_USED = 1  # bytes that stay after the end of an encrypted segment, to show that more were written there


class MustRewrite(Exception):
    """Nothing may be appended to a segment before it is rewritten: its file is encrypted, and bytes were written after
    its end that are not data of the dataset. Others there would be encrypted with the same keystream."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(slots=True)
class _Append:
    """What a batch wrote to one segment: all that is needed to sync it, to undo it, or to give it its name."""

    path: str  # a hidden name for a new segment
    generation: int
    file: WritableFile | None
    before: os.stat_result | None  # None: the batch created the file
    size_before: int
    patch: Patch | None  # restores the header
    known: bool
    is_touched: bool
    writer: SegmentWriter | None = None
    blocks: list[Block] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)

    @property
    def end(self) -> End:
        assert self.writer is not None
        return self.writer.end

    @property
    def may_repeat(self) -> bool:
        """Whether other bytes may be written to the same places later."""
        return self.writer is None or self.writer.may_repeat


class ConcatWriter:
    """Appends one batch to its segments: write them all, then sync them all, or undo everything.

    Used under the writers' lock.

    Args:
        take_generation: returns a generation that was never used.
    """

    def __init__(self, directory: Directory, take_generation: Callable[[], int]) -> None:
        self._directory = directory
        self._take_generation = take_generation
        self._appends: dict[str, _Append] = {}
        self._unsynced: list[str] = []

    def exists(self, name: str, generation: int, committed: Committed) -> bool:
        """Return whether anything is at the segment's name, after completing a switch that a crash interrupted."""
        complete(self._directory, name, generation, committed)
        return self._directory.stat(name) is not None

    def start(self, name: str, end: End | None, committed: Committed | None, layout: Layout, *, trusted: bool) -> Start:
        """Return where a segment continues.

        Args:
            end: its end in the index; None if the index does not know the segment.
            committed: its bytes up to there.
            trusted: the index is trusted, so bytes after the committed size are not data of the dataset. Otherwise they
                may be data that a lost index knew, and stay.

        Raises:
            SegmentCorrupt, StateError, AuthenticationFailed: nothing can be appended to this file.
            MustRewrite: nothing can be appended before the segment is rewritten.
        """
        found = self._directory.regular_file(name)
        if found is None:
            if end is None:
                return Start(layout.begin(), is_new=True, checksum=0)
            return Start(Laid(b"", end))  # `writing` reports that it is missing
        is_touched = committed is None or not committed.is_untouched(found)
        is_exact = end is not None and not is_touched and found.st_size == end.size
        may_continue = layout.may_continue(partial(self._directory.open_to_read, name), end or End(), is_exact=is_exact)
        if end is not None and committed is not None and trusted and not is_touched:
            if found.st_size > end.size and not committed.has_tail(self._directory.open_to_read(name)):
                raise changed(self._directory, name)  # its row in the index is not about these bytes
            if not may_continue:
                raise MustRewrite(name)
            return Start(Laid(b"", end), checksum=committed.facts.checksum)
        file = self._directory.open_to_read(name)
        if end is not None and committed is not None:
            self._check_same(name, committed, file)
            if trusted and not may_continue:
                raise MustRewrite(name)
            if trusted:
                return Start(Laid(b"", end), is_touched=True, checksum=committed.facts.checksum)
        try:
            laid = layout.resume(file, end or End())
        except (SegmentCorrupt, StateError, AuthenticationFailed) as error:
            message = f"cannot append to {file.path}: {error.message}"
            raise type(error)(message, hint=error.hint, segment=name) from error
        if end is None or committed is None:
            is_begun = laid.end.size == len(laid.content)  # nothing of the file stays
            if is_begun and not trusted and not found.st_size:
                quarantine.keep(self._directory, name, verb="append", why=quarantine.EMPTIED)
                return Start(layout.begin(), is_new=True, checksum=0)
            if is_begun:
                return Start(laid, checksum=0)
            if not may_continue:
                raise _not_continued(self._directory, name)
            return Start(laid, is_touched=True, unread=True, is_found=True)
        if not may_continue:
            raise _not_continued(self._directory, name)
        unread = laid.end.size - len(laid.content) > end.size
        checksum = None if unread else committed.facts.checksum
        return Start(laid, is_touched=True, unread=unread, is_found=True, checksum=checksum)

    def clear(self, name: str, generation: int) -> None:
        """Remove what a crash left at the hidden name of a new generation."""
        self._directory.discard(hidden(name, generation))

    @contextlib.contextmanager
    def writing(
        self, name: str, generation: int, start: Start, layout: Layout, *, known: bool
    ) -> Iterator[SegmentWriter]:
        """Open a segment to write a batch's data to it; bytes after `start` are cut off.

        A file that has other names is replaced by a copy first: the others may be somebody's backup.

        Durability: none until `sync`. A crash before that leaves a tail after the committed size, and a header that may
            count data that do not exist; or the file of a new segment under its hidden name.

        Args:
            start: where it continues. Bytes after that belong to an interrupted append, or somebody has added or
                damaged them: what may be data is copied to quarantine.
            known: the index knows the segment, so its directory entry is durable.

        Raises:
            SegmentMissing: the index knows bytes of it, but it is not on disk.
            SegmentCorrupt: it is shorter than the index says.
            KeyMissing, AuthenticationFailed: it is encrypted, and new data would have another key of the same number,
                or none. Nothing is written to it.
        """
        if len(self._unsynced) >= _OPEN_TO_WRITE:
            self.sync()
        laid = start.laid
        position = laid.end.size - len(laid.content)
        path = hidden(name, generation) if start.is_new else name
        file, before = self._open(path, name, generation, position, is_new=start.is_new)
        sealer = _sealer_to_append(layout, file, name, laid.end) if position else None
        append = _Append(path, generation, file, before, position, layout.patch(laid.end), known, start.is_touched)
        if before is not None and before.st_size > position:
            if known or start.is_found:  # before `undo` may cut these bytes off
                end = replace(laid.end, size=position)
                keep_data_after(self._directory, name, end, layout, verb="append", is_committed=not start.is_found)
            file.truncate(position)
        self._appends[name] = append
        self._unsynced.append(name)
        append.writer = SegmentWriter(
            layout, file, name, laid, checksum=start.checksum, sealer=sealer, save_blocks=append.blocks.extend
        )
        yield append.writer
        append.writer.finish()

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
            if append.file is not None and append.writer is not None:
                append.file.sync()
                append.facts = append.writer.facts(is_touched=append.is_touched)
                append.file.close()
                append.file = None
            if not append.known:
                parents |= {name.rpartition("/")[0], ""}
        self._unsynced.clear()
        for parent in parents:
            self._directory.sync(parent)

    def appended(self, name: str) -> tuple[End, list[Block], Facts]:
        """Return where a segment ends now, its new blocks, and the facts of its file."""
        append = self._appends[name]
        return append.end, append.blocks, append.facts

    def reveal(self) -> None:
        """Give the files of new segments their names, after the commit."""
        reveal(self._directory, ((name, each.generation) for name, each in self._appends.items() if each.path != name))

    def undo(self) -> None:
        """Undo all writes as far as the disk allows; any bytes that stay are a tail that nobody reads.

        If the place of the bytes must not be used again, one of them stays: it makes the next append rewrite the file.

        Durability: none. After a crash the tail may be back.
        """
        for append in self._appends.values():
            with contextlib.suppress(OSError, OndiskError):
                if append.before is None:
                    self._directory.unlink(append.path)
                else:
                    file = append.file or self._directory.open_to_write(append.path)
                    append.file = file
                    file.truncate(append.size_before + (0 if append.may_repeat else _USED))
                    patch = append.patch
                    if patch is not None and patch.position + len(patch.content) <= append.size_before:
                        file.write(patch.position, patch.content)
                    if append.before.st_size == append.size_before and append.may_repeat:
                        file.set_mtime(append.before.st_mtime_ns)
        self.close()

    def close(self) -> None:
        """Close all files; `undo` opens them again."""
        for append in self._appends.values():
            if append.file is not None:
                append.file.close()
                append.file = None

    def _check_same(self, name: str, committed: Committed, file: ReadableFile) -> None:
        """Raise unless a file that was touched still begins with the committed bytes, as far as their end shows."""
        found = file.stat()
        if found.st_size < committed.size:
            raise _too_short(self._directory, name, found.st_size, committed.size)
        if committed.seen_in(file, found) is Seen.OTHER:
            raise changed(self._directory, name, is_refused=committed.is_refused(found))

    def _open(
        self, path: str, name: str, generation: int, position: int, *, is_new: bool
    ) -> tuple[WritableFile, os.stat_result | None]:
        """Open a segment to append at `position`; return the file, and its stat, None if it is new."""
        if is_new:
            return self._directory.create_file(path), None
        try:
            file = self._directory.open_to_write(path)
        except FileNotFoundError:
            raise _missing(self._directory, name) from None
        found = file.stat()
        if found.st_size < position:
            file.close()
            raise _too_short(self._directory, name, found.st_size, position)
        if found.st_nlink > 1 and self._directory.inode(hidden(name, generation)) == found.st_ino:
            set_aside(self._directory, name, generation, verb="append")  # of a repack that was killed
            found = file.stat()
        if found.st_nlink > 1:
            file.close()
            self._directory.separate(name, hidden(name, self._take_generation()))
            file = self._directory.open_to_write(name)
        return file, found


def _sealer_to_append(layout: Layout, file: WritableFile, name: str, end: End) -> Sealer | None:
    """Return what encrypts new data at the end of a segment; None if it is plain."""
    try:
        return layout.sealer(file, name, end)
    except OndiskError as error:
        file.close()
        if isinstance(error, KeyMissing | AuthenticationFailed):
            error.context["segment"] = name
            raise located(error, file.path) from None
        raise


def keep_data_after(
    directory: Directory, name: str, end: End, layout: Layout, *, verb: str, is_committed: bool = True
) -> None:
    """Copy the bytes of a segment's file after its end to quarantine, unless they are certainly no data.

    They are the rest of an append that nobody acknowledged if no whole datum is among them and the header counts only
    the data before them: an append counts its data when all are written. Without such a count nobody knows: they may be
    data of which a bit is damaged, or the end is cut off.

    Args:
        is_committed: the index says that the segment ends there, and has counted the data before; otherwise only the
            whole data in the file show where it ends.
    """
    file = directory.open_to_read(name)
    size = file.size() - end.size
    mark = layout.seal(end)
    if size <= 0 or (size == len(mark) and file.read(end.size, size) == mark):
        return
    if is_committed and _is_never_counted(file, end, layout):
        return
    why = "bytes after the last datum that is whole: damaged, of an interrupted append, or added by somebody else"
    if layout.may_continue(lambda: file, end, is_exact=False):
        quarantine.keep_piece(directory, name, file, end.size, size, verb=verb, why=why)
    else:  # it is replaced, and nobody can decrypt a piece of it without its header
        quarantine.link(directory, name, verb=verb, why=why)


def _is_never_counted(file: ReadableFile, end: End, layout: Layout) -> bool:
    """Return whether no whole datum is after the end of a segment, and its header counts none there."""
    count = layout.patch(end)
    if count is None or file.read(count.position, len(count.content)) != count.content:
        return False
    try:
        laid = layout.resume(file, end)
    except (KeyMissing, AuthenticationFailed) as error:
        raise located(error, file.path) from None
    except (SegmentCorrupt, StateError):
        return False
    return laid.end.size - len(laid.content) <= end.size


def _not_continued(directory: Directory, name: str) -> StateError:
    reason = "it is encrypted, and the index does not know whether more was written to it"
    hint = f"Run {command('fix', directory.dataset, '--yes')}, then append again."
    return StateError(f"cannot append to {directory.path / name}: {reason}", hint=hint, segment=name)


def located(error: OndiskError, place: object) -> OndiskError:
    """Return the same error with the place before its message."""
    return type(error)(f"{place}: {error.message}", hint=error.hint, **error.context)


@dataclass(slots=True)
class _Open:
    """An open file of a generation, and what is known to be right about it: its bytes up to `size`, at this stat."""

    file: ReadableFile
    name: str
    sealer: Sealer | type[_Unknown] | None
    mtime: int = -1
    length: int = -1
    size: int = 0

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
        self._most = min(_OPEN_TO_READ, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

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
                raise _too_short(self._directory, name, opened.length, offset + size)
        content = opened.file.read(offset, size)
        if len(content) < size:
            raise _too_short(self._directory, known()[0], offset + len(content), offset + size)
        return content if opened.sealer is None else self._unsealed(opened, offset, content, places)

    def read_open(self, generation: int, offset: int, size: int) -> bytes | None:
        """Read like `read`, but only if the file is already open and verified; return None if it is not.

        Needs no snapshot: the bytes of a generation never change while its file is open.
        """
        opened = self._files.get(generation)
        if opened is None or not opened.is_verified(offset + size):
            return None
        content = opened.file.read(offset, size)
        if len(content) < size:
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
        """Keep at most so many files open from now on."""
        self._most = min(self._most, most)

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
        """Return the open file of a generation, after comparing it with the committed bytes."""
        opened = self._files.get(generation)
        if opened is not None and opened.verify(committed):
            return opened
        opened = self._found(name, generation, committed)
        before = self._generations.get(name)
        if before is not None and before != generation:
            self.forget(before)
        self._generations[name] = generation
        self._files[generation] = opened
        while len(self._files) > self._most:
            self._files.popitem(last=False)
        return opened

    def _found(self, name: str, generation: int, committed: Committed) -> _Open:
        """Open the generation at its hidden name, or else at NAME; skip files that are not the generation.

        Try the alias, the name, and the alias again: between the first two, a repack may promote the alias; after the
        second, the next repack may replace the file at the name and link the old one to the alias. Then try again: a
        drop may have begun and been undone meanwhile. A generation that is kept after that has left its alias.
        """
        file, alias = None, hidden(name, generation)
        for place in (*(alias, name, alias) * LOOKS, kept(name, generation)):
            found = self._open_if_there(place, is_alias=place != name)
            if found is not None:
                opened = _Open(file := found, name, _Unknown)
                if opened.verify(committed):
                    return opened
        if file is None:
            raise _missing(self._directory, name)
        if file.size() < committed.size:
            raise _too_short(self._directory, name, file.size(), committed.size)
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


def changed(directory: Directory, name: str, *, is_refused: bool = False) -> SegmentCorrupt:
    """Return the error for a file that is not the one that the index describes.

    Args:
        is_refused: a fix has read it, and found none of the segment's data.
    """
    path, how = directory.path / name, "another program has changed or replaced it"
    hint = f"{command('fix', directory.dataset, '--yes')} reads it into the index, or says why not"
    hint += "; or restore the file from a backup."
    if is_refused:
        how, hint = f"{how}, and none of its data can be read", restore_or_salvage(directory, name)
    return SegmentCorrupt(f"{path} is not the file that the index describes: {how}", hint=hint, segment=name)


def restore_or_salvage(directory: Directory, name: str) -> str:
    """Return the hint of an error about a damaged segment."""
    inner = os.path.relpath(directory.path / name, directory.dataset)
    whole = command("fix", directory.dataset, "--salvage", inner, "--yes")
    return f"Restore the file from a backup; or {whole} keeps what is whole of it."


def _missing(directory: Directory, name: str) -> SegmentMissing:
    how = f"{command('fix', directory.dataset, '--yes')} removes them from the index, or says why not"
    hint = f"Mount its disk, or restore it from a backup. If its data are lost, {how}."
    return SegmentMissing(f"{directory.path / name} is in the index but not on disk", hint=hint, segment=name)


def _too_short(directory: Directory, name: str, size: int, wanted: int) -> SegmentCorrupt:
    path = directory.path / name
    return SegmentCorrupt(
        f"{path} ends at byte {size}, but the index has data up to byte {wanted}",
        hint=restore_or_salvage(directory, name),
        segment=name,
        size=size,
        wanted=wanted,
    )
