"""Appends to concat segments: data one after the other in one file.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     its generation 17: before a new segment gets its name, and during and after a repack

`ondisk.segments.generations` describes the generations. Readers never see bytes after the size that the index has
committed. Most often they belong to an append that is running, or was killed. But another program may have added them,
or a lost index may have known them. So the next append copies to quarantine what may be data before it cuts them off,
unless it writes the same bytes there: then it repeats an interrupted append. While the index is not trusted, it leaves
complete data where they are.

`SegmentWriter` writes one file: also staged data, and what a repack, a merge or a fix writes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ondisk.errors import AuthenticationFailed, KeyMissing, OndiskError, SegmentCorrupt, StateError, command
from ondisk.filesystem import Directory, ReadableFile, WritableFile
from ondisk.segment import Block, End, Facts, Framing, Laid, Patch, Sealer, Start
from ondisk.segments import quarantine
from ondisk.segments.file_facts import (
    Committed,
    Seen,
    add_to_checksum,
    changed,
    checksum_of,
    facts_of,
    located,
    missing,
    tail_of,
    too_short,
)
from ondisk.segments.generations import hidden, reveal, set_aside

_OPEN_TO_WRITE = 128  # files; a batch may touch thousands of segments
_PIECE = 1024 * 1024  # bytes that are laid together: fewer take more writes, and more leave the processor's cache
_USED = 1  # bytes that stay after the end of an encrypted segment, to show that more were written there


class MustRewrite(Exception):
    """Nothing may be appended to a segment before it is rewritten.

    New data would not be encrypted as configured, or with the same keystream as bytes that were written there before.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Append:
    """What a batch wrote to one segment: all that is needed to sync it, to undo it, or to give it its name."""

    def __init__(
        self,
        path: str,  # a hidden name for a new segment
        generation: int,
        file: WritableFile,
        before: os.stat_result | None,  # None: the batch created the file
        size_before: int,
        patch: Patch | None,  # restores the header
        *,
        known: bool,
        is_touched: bool,
    ) -> None:
        self.path = path
        self.generation = generation
        self.file: WritableFile | None = file
        self.before = before
        self.size_before = size_before
        self.patch = patch
        self.known = known
        self.is_touched = is_touched
        self.writer: SegmentWriter | None = None
        self.blocks: list[Block] = []
        self.facts = Facts()

    @property
    def end(self) -> End:
        assert self.writer is not None
        return self.writer.end

    @property
    def may_repeat(self) -> bool:
        """Whether other bytes may be written to the same places later."""
        return self.writer is None or self.writer.may_repeat


class ConcatWriter:
    """Appends one batch to its segments, and syncs them, or undoes everything. Used under the writers' lock.

    If many files are open, they are synced and closed before others are opened.
    """

    def __init__(self, directory: Directory, take_generation: Callable[[], int]) -> None:
        self._directory = directory
        self._take_generation = take_generation
        self._appends: dict[str, _Append] = {}
        self._unsynced: list[str] = []

    def start(
        self, name: str, end: End | None, committed: Committed | None, framing: Framing, *, trusted: bool
    ) -> Start:
        """Return where a segment continues.

        Args:
            end: its end in the index; None if the index does not know the segment.
            trusted: the index is trusted, so bytes after the committed size are not data of the dataset. Otherwise they
                may be data that a lost index knew, and stay.

        Raises:
            SegmentCorrupt, StateError, AuthenticationFailed: nothing can be appended to this file.
            MustRewrite: nothing can be appended before the segment is rewritten.
        """
        found = self._directory.regular_file(name)
        if found is None:
            if end is None:
                return Start(framing.begin(), is_new=True, checksum=0)
            return Start(Laid(b"", end))  # `writing` reports that it is missing
        is_touched = committed is None or not committed.is_untouched(found)
        # A second name may be that of another dataset, which would go on with the same keystream.
        is_exact = end is not None and not is_touched and found.st_size == end.size and found.st_nlink == 1
        may_continue = framing.may_continue(
            partial(self._directory.open_to_read, name), end or End(), is_exact=is_exact
        )
        if end is not None and committed is not None:
            if is_touched or not trusted:
                self._check_same(name, committed, self._directory.open_to_read(name))
            elif found.st_size > end.size and not committed.has_tail(self._directory.open_to_read(name)):
                raise changed(self._directory, name)  # its row in the index is not about these bytes
            if trusted:
                if not may_continue:
                    raise MustRewrite(name)
                return Start(Laid(b"", end), is_touched=is_touched, checksum=committed.facts.checksum)
        file = self._directory.open_to_read(name)
        try:
            laid = framing.resume(file, end or End())
        except (SegmentCorrupt, StateError, AuthenticationFailed) as error:
            message = f"cannot append to {file.path}: {error.message}"
            raise type(error)(message, hint=error.hint, segment=name) from error
        if end is None or committed is None:
            is_begun = laid.end.size == len(laid.content)  # nothing of the file stays
            if is_begun and not trusted and not found.st_size:
                quarantine.keep(self._directory, name, verb="append", why=quarantine.EMPTIED)
                return Start(framing.begin(), is_new=True, checksum=0)
            if is_begun:
                return Start(laid, checksum=0)
        if not may_continue:
            reason = "new data would not be encrypted as dataset.toml says, or with a keystream that was used before"
            hint = f"Run {command('fix', self._directory.path, '--yes')}, then append again."
            raise StateError(f"cannot append to {self._directory.path / name}: {reason}", hint=hint, segment=name)
        if end is None or committed is None:
            return Start(laid, is_touched=True, has_unknown=True, is_found=True)
        has_unknown = laid.end.size - len(laid.content) > end.size
        checksum = None if has_unknown else committed.facts.checksum
        return Start(laid, is_touched=True, has_unknown=has_unknown, is_found=True, checksum=checksum)

    def clear(self, name: str, generation: int) -> None:
        self._directory.discard(hidden(name, generation))

    @contextlib.contextmanager
    def writing(
        self, name: str, generation: int, start: Start, framing: Framing, payloads: Sequence[bytes] = (), *, known: bool
    ) -> Iterator[SegmentWriter]:
        """Open a segment to write a batch's data to it; bytes after `start` are cut off.

        A file that has other names is replaced by a copy first: the others may be somebody's copies.

        Durability: none until `sync`. A crash before that leaves bytes after the committed size, and a header that may
            count data that do not exist; or the file of a new segment under its hidden name.

        Args:
            start: where it continues. Bytes after that belong to an interrupted append, or somebody has added or
                damaged them: what may be data is copied to quarantine.
            payloads: the data that the caller will write first, if it knows them. If bytes after a committed end are
                the beginning of these data, an interrupted append is repeated, and nothing goes to quarantine.
            known: the index knows the segment, so its directory entry is durable.

        Raises:
            SegmentMissing: the index knows bytes of it, but it is not on disk.
            SegmentCorrupt: it is shorter than the index says.
            KeyMissing, AuthenticationFailed: it is encrypted, and its key is missing, or is not the one with which it
                begins. Nothing is written to it.
        """
        if len(self._unsynced) >= _OPEN_TO_WRITE:
            self.sync()
        laid = start.laid
        position = laid.end.size - len(laid.content)
        path = hidden(name, generation) if start.is_new else name
        file, before = self._open(path, name, generation, position, is_new=start.is_new)
        sealer = _sealer_to_append(framing, file, name, laid.end) if position else None
        patch = framing.patch(laid.end)
        append = _Append(path, generation, file, before, position, patch, known=known, is_touched=start.is_touched)
        if before is not None and before.st_size > position:
            is_repeated = not start.is_found and _is_beginning(file, position, laid, framing, payloads)
            if (known or start.is_found) and not is_repeated:  # before `undo` may cut these bytes off
                end = laid.end._replace(size=position)
                keep_data_after(self._directory, name, end, framing, verb="append", is_committed=not start.is_found)
            file.truncate(position)
        self._appends[name] = append
        self._unsynced.append(name)
        append.writer = SegmentWriter(
            framing, file, name, laid, checksum=start.checksum, sealer=sealer, save_blocks=append.blocks.extend
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
        append = self._appends[name]
        return append.end, append.blocks, append.facts

    def reveal(self) -> None:
        reveal(self._directory, ((name, each.generation) for name, each in self._appends.items() if each.path != name))

    def undo(self) -> None:
        """Undo all writes as far as the disk allows; nobody reads what stays after the committed size.

        In a segment whose keystream must not be used again, one byte stays: it makes the next append rewrite the file.

        Durability: none. After a crash the bytes may be back.
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
        for append in self._appends.values():
            if append.file is not None:
                append.file.close()
                append.file = None

    def _check_same(self, name: str, committed: Committed, file: ReadableFile) -> None:
        """Raise if a file that was touched is shorter than its committed bytes, or their last 4 KiB differ."""
        found = file.stat()
        if found.st_size < committed.size:
            raise too_short(self._directory, name, found.st_size, committed.size)
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
            raise missing(self._directory, name) from None
        found = file.stat()
        if found.st_size < position:
            file.close()
            raise too_short(self._directory, name, found.st_size, position)
        if found.st_nlink > 1 and self._directory.inode(hidden(name, generation)) == found.st_ino:
            set_aside(self._directory, name, generation, verb="append")  # of a repack that was killed
            found = file.stat()
        if found.st_nlink > 1:
            file.close()
            self._directory.separate(name, hidden(name, self._take_generation()))
            file = self._directory.open_to_write(name)
        return file, found


def _sealer_to_append(framing: Framing, file: WritableFile, name: str, end: End) -> Sealer | None:
    try:
        return framing.sealer(file, name, end)
    except OndiskError as error:
        file.close()
        if isinstance(error, KeyMissing | AuthenticationFailed):
            error.context["segment"] = name
            raise located(error, file.path) from None
        raise


def _is_beginning(file: WritableFile, position: int, laid: Laid, framing: Framing, payloads: Sequence[bytes]) -> bool:
    """Return whether a file's bytes from a position on are the beginning of what data would be written as there."""
    if not payloads:
        return False
    content = laid.content + framing.lay(payloads, laid.end).content
    size = file.size() - position
    return size <= len(content) and file.read(position, size) == content[:size]


def keep_data_after(
    directory: Directory, name: str, end: End, framing: Framing, *, verb: str, is_committed: bool = True
) -> None:
    """Copy the bytes of a segment's file after its end to quarantine, unless they are certainly no data.

    An append writes all its data, then their count in the header. So if the header does not count these bytes, and no
    whole datum is among them, they belong to an append that did not commit. If the header has no count, they may be
    damaged data, too.

    Args:
        is_committed: the index says that the segment ends there, and has counted the data before; otherwise only the
            whole data in the file show where it ends.
    """
    file = directory.open_to_read(name)
    size = file.size() - end.size
    mark = framing.seal(end)
    if size <= 0 or (size == len(mark) and file.read(end.size, size) == mark):
        return
    if is_committed and _is_never_counted(file, end, framing):
        return
    why = "bytes after the last datum that is whole: damaged, of an interrupted append, or added by somebody else"
    if framing.may_continue(lambda: file, end, is_exact=False):
        quarantine.keep_piece(directory, name, file, end.size, size, verb=verb, why=why)
    else:  # it is replaced, and nobody can decrypt a piece of it without its header
        quarantine.link(directory, name, verb=verb, why=why)


def _is_never_counted(file: ReadableFile, end: End, framing: Framing) -> bool:
    """Return whether a segment has no whole datum after its end, and its header counts none there."""
    count = framing.patch(end)
    if count is None or file.read(count.position, len(count.content)) != count.content:
        return False
    try:
        laid = framing.resume(file, end)
    except (KeyMissing, AuthenticationFailed) as error:
        raise located(error, file.path) from None
    except (SegmentCorrupt, StateError):
        return False
    return laid.end.size - len(laid.content) <= end.size


class SegmentWriter:
    """Writes data one after the other to the file of one concat segment.

        header | data | data | … | end mark

    `add` and `copy` continue at `end`. `finish` then updates the header; `seal` also writes the end mark and syncs. The
    data of an encrypted segment are encrypted right before they are written. It has no end mark: the next append would
    write other data to the same place of the keystream.

    Args:
        start: the end of the existing data, and the bytes to write before new data; None for a new segment.
        checksum: of the bytes before those of `start`, as in `Facts`; None if unknown.
        base: in a file of staged data: the position in the file where this segment's data begin. No header is written
            there.
        sealer: what encrypts a segment that is continued, or a file without a header.
        save_blocks: called with the new blocks, if the segment is compressed.

    Durability: none, until `seal` syncs the file, or the caller does. A crash before that leaves bytes after the
        committed end, or an incomplete new file.
    """

    def __init__(
        self,
        framing: Framing,
        file: WritableFile,
        name: str,
        start: Laid | None = None,
        *,
        checksum: int | None = 0,
        base: int | None = None,
        sealer: Sealer | None = None,
        save_blocks: Callable[[Sequence[Block]], object] = lambda _: None,
    ) -> None:
        start = framing.begin() if start is None else start
        self._framing = framing
        self._file = file
        self._base = base or 0
        self._save_blocks = save_blocks
        self._checksum = checksum
        self.end: End = start.end  # the present end of the segment
        position = start.end.size - len(start.content)
        if base is None and not position:
            sealer = framing.new_sealer(start.content, name)
        self._sealer = sealer
        if start.content:
            self._write(position, start.content)
        if start.blocks:
            save_blocks(start.blocks)

    def add(self, payloads: Sequence[bytes], beside: Sequence[bytes] = ()) -> None:
        """Write data at the end; the offset of the first datum is `end.length`.

        Args:
            payloads: the bytes of each datum, without padding.
            beside: ignored; exists because dir segments store metadata separately.
        """
        count, size = len(payloads), sum(map(len, payloads))
        # In a compressed segment, each piece would end a block early.
        together = max(1, count if self.end.compressed else _PIECE * count // max(1, size))
        for begin in range(0, count, together):
            laid = self._framing.lay(payloads[begin : begin + together], self.end)
            self._write(self.end.size, laid.content)
            if laid.blocks:
                self._save_blocks(laid.blocks)
            self.end = laid.end

    def copy(
        self,
        source: ReadableFile,
        begin: int,
        size: int,
        *,
        count: int,
        length: int | None = None,
        blocks: Iterable[Block] = (),
        sealer: Sealer | None = None,
    ) -> None:
        """Copy `size` bytes of data from a file that stores them in the same form as this segment, padding included.

        Args:
            length: the number of decompressed bytes, if they are compressed.
            blocks: the blocks in them; their offsets and positions count from `begin`.

        Raises:
            EOFError: the file ends before the last of the bytes.
        """
        end = self.end
        if self._sealer is not None or sealer is not None:
            content = source.read(begin, size)
            if len(content) < size:
                raise EOFError(f"{source.path} ends at byte {begin + len(content)}")
            self._write(end.size, content if sealer is None else sealer.unseal(begin, content))
        else:
            place = self._base + end.size
            self._file.copy(source, begin, size, place)
            if self._checksum is not None:
                self._checksum = checksum_of(self._file, place + size, self._framing.mutable, place, self._checksum)
        if moved := [Block(end.length + each.offset, end.size + each.position, each.stored) for each in blocks]:
            self._save_blocks(moved)
        counted = 0 if self._framing.patch(end) is None else count
        length = end.length + (size if length is None else length)
        self.end = end._replace(size=end.size + size, length=length, count=end.count + counted)

    @property
    def may_repeat(self) -> bool:
        """Whether other bytes may be written to the same places later: not if both would have the same keystream."""
        return self._sealer is None or self._sealer.is_framed

    def finish(self) -> End:
        """Update the header, and return the end of the segment."""
        patch = self._framing.patch(self.end)
        if patch is not None:
            self._file.write(self._base + patch.position, patch.content)
        return self.end

    def facts(self, *, is_touched: bool = False) -> Facts:
        """Return the facts of the synced segment. `is_touched`: another program had changed the file before."""
        tail = tail_of(self._file, self.end.size, self._framing.mutable)
        return facts_of(self._file.stat(), tail, self._checksum, is_touched=is_touched)

    def _write(self, position: int, content: bytes) -> None:
        if self._sealer is not None:
            content = self._sealer.seal(self._base + position, content)
        self._file.write(self._base + position, content)
        if self._checksum is not None:
            self._checksum = add_to_checksum(content, position, self._framing.mutable, self._checksum)

    def seal(self) -> End:
        """Update the header, write the end mark, sync the file, and return the end of the segment."""
        end = self.finish()
        if mark := self._framing.seal(end):
            self._file.write(self._base + end.size, mark)
        self._file.sync()
        return end
