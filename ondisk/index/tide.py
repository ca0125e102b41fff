"""The tide mark: which index was written to last, and how far, so that an exchanged index is noticed.

    .tide    one record of fixed size, little-endian:

             bytes    8   "ONDTIDE1", the magic and the version
                     36   the UUID in the main file of the index at the last complete checkpoint
                     36   the next UUID: announced, or already in the index; zeros if there is none
                  2 × 8   the last seq and the last generation that were given out
                  2 × 8   the same numbers at the last complete checkpoint, when the main file contained all commits
                      4   CRC-32 of all bytes before

`docs/architecture.md` says what a mark proves. One that is missing, cut short or damaged says nothing.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import TypeAlias
from zlib import crc32  # that of zlib_ng is no faster for one record

from ondisk.errors import OndiskError, ReadOnly
from ondisk.filesystem import Directory, WritableFile
from ondisk.index.connection import INDEX, read_main
from ondisk.named_tuple import NamedTuple
from ondisk.segment import Facts

TIDE = ".tide"

State: TypeAlias = tuple[str, int, int]
"""The UUID of an index, and the last seq and the last generation that it has given out."""

_MAGIC = b"ONDTIDE1"
_RECORD = struct.Struct("<8s36s36sqqqq")
_CHECKSUM = struct.Struct("<I")
_SIZE = _RECORD.size + _CHECKSUM.size
HIGHEST = 2**62
"""The counters of an index stay lower. A mark with this number or a higher one is damaged: too few would be left."""
_TRIES = 3


class TideMark(NamedTuple):
    """The content of `.tide`.

    Attributes:
        uuid: the UUID in the main file of the index at the last complete checkpoint.
        seq, generation: the last numbers that it has given out.
        moved: the same numbers at its last complete checkpoint.
        next: the next UUID: announced, or already in the index; empty if there is none.
    """

    uuid: str
    seq: int
    generation: int
    moved: tuple[int, int] = (0, 0)
    next: str = ""

    def encode(self) -> bytes:
        record = _RECORD.pack(_MAGIC, self.uuid.encode(), self.next.encode(), self.seq, self.generation, *self.moved)
        return record + _CHECKSUM.pack(crc32(record))

    @classmethod
    def decode(cls, content: bytes) -> TideMark | None:
        """Return the mark in a file's content; None if it has none."""
        record, checksum = content[: _RECORD.size], content[_RECORD.size :]
        if len(content) != _SIZE or _CHECKSUM.pack(crc32(record)) != checksum:
            return None
        magic, uuid, after, seq, generation, *moved = _RECORD.unpack(record)
        if magic != _MAGIC or not all(0 <= number < HIGHEST for number in (seq, generation, *moved)):
            return None
        try:
            uuid, after = (each.rstrip(b"\0").decode() for each in (uuid, after))
            return cls(uuid, seq, generation, (moved[0], moved[1]), after)
        except UnicodeDecodeError:
            return None

    @property
    def uuids(self) -> list[str]:
        """The UUIDs with which an index is taken for the one that was written to last."""
        return [each for each in (self.uuid, self.next) if each]

    def knows(self, uuid: str) -> bool:
        return uuid in self.uuids

    def is_reached_by(self, state: State) -> bool:
        """Return whether an index is the one that was written to most recently, in that state or a later one."""
        return self.knows(state[0]) and self.seq <= state[1] and self.generation <= state[2]


class Exchanged(NamedTuple):
    """An index that is not the one that was written to last.

    Attributes:
        is_foreign: it has another UUID; otherwise it is an older state of the same index.
        is_log_foreign: the write-ahead log beside it does not belong to its main file.
    """

    mark: TideMark
    is_foreign: bool
    is_log_foreign: bool = False


class Recorded(NamedTuple):
    """What an older state of the index records about a segment; `committed_at` is in microseconds since 1970."""

    generation: int
    name: str
    format: str
    size: int
    committed_at: int
    facts: Facts


class IndexExchanged(Exception):
    """The index was exchanged while this process had it open. Found at the begin of a transaction."""


class Tide:
    """What a process knows of the tide mark of one dataset."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._last: State | None = None
        self._moved: State = ("", 0, 0)
        self._verified: tuple[int, int, int] | None = None

    def exchanged(self, whole: Callable[[], State | None], *, alone: bool = True) -> Exchanged | None:
        """Return how the index was exchanged, or None.

        Args:
            whole: reads the state of the index, with its log; None if that cannot be read.
            alone: also compare the main file without its log. Python's SQLite opens it, so pass False if another SQLite
                library has it open in this process.

        Cost: one stat while nobody else writes to the index's main file.
        """
        now = self._main_file()
        if now is None or now == self._verified:
            return None
        found = mark = None
        for _ in range(_TRIES):  # a commit may come between reading the mark and reading the index
            mark = read(self._directory)
            found = None if mark is None else _compared(self._directory, mark, whole, alone=alone)
            if found is None:
                break
        if found is None:
            self._verified, self._last = now, None
            self._moved = ("", 0, 0) if mark is None else (mark.uuid, *mark.moved)
        return found

    def check(self, state: State) -> None:
        """Raise `IndexExchanged` if the index has another UUID or lower numbers than this process has left."""
        last = self._last
        if last is not None and (state[0] != last[0] or state[1] < last[1] or state[2] < last[2]):
            self._verified = self._last = None
            raise IndexExchanged

    def committed(self, state: State, *, is_moved: bool) -> None:
        """Save the mark after a commit. The commit is done, so no error is raised: an older mark is not an error.

        Args:
            is_moved: the main file contains all commits.
        """
        self._last = state
        uuid, seq, generation = state
        if is_moved:
            self._moved = state
        elif not self._moved[0]:
            return  # there was no mark, and nobody knows what the main file has
        before = self._moved[0]
        # The counter falls if a dataset follows another source, with lower numbers.
        moved = min(self._moved[1], seq), self._moved[2]
        save(self._directory, TideMark(before, seq, generation, moved, "" if before == uuid else uuid))
        self._verified = self._main_file()

    def _main_file(self) -> tuple[int, int, int] | None:
        """Return inode, size and mtime of the main file: a checkpoint changes them; None if it is lost."""
        found = self._directory.stat(INDEX)
        return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def read(directory: Directory) -> TideMark | None:
    """Return the tide mark; None if it says nothing: it is missing, damaged, or not a regular file."""
    try:
        return TideMark.decode(directory.read(TIDE, _SIZE))
    except (OndiskError, FileNotFoundError):
        return None


def is_log_foreign(directory: Directory) -> bool:
    """Return whether the write-ahead log does not belong to the index: the index looks damaged, and a fix mends it."""
    mark = read(directory)
    return mark is not None and _main_compared(directory, mark) is not None


def announce(directory: Directory, uuid: str, seq: int = HIGHEST) -> None:
    """Write into the mark, if there is one, that an index with a new UUID is about to appear.

    Args:
        seq: the last one that the new index has given out, if that may be lower than what the mark says.

    Durability: synced.

    Raises:
        StorageError: it cannot be written. Then the new index would look like that of another dataset.
    """
    mark = read(directory)
    if mark is not None:
        lower = mark._replace(next=uuid, seq=min(mark.seq, seq), moved=(min(mark.moved[0], seq), mark.moved[1]))
        _write(directory, lower, durable=True)


def save(directory: Directory, mark: TideMark) -> None:
    """Write the mark if that is possible.

    Durability: none. It is one write of less than a block: a power cut leaves the new record or the old one.
    """
    # An older mark is not an error. If something else than a regular file is in its place, it is left there.
    with contextlib.suppress(OndiskError, OSError):
        _write(directory, mark)


def _write(directory: Directory, mark: TideMark, *, durable: bool = False) -> None:
    content = mark.encode()
    with _opened(directory) as file:
        file.write(0, content)
        if durable:
            file.sync()
            directory.sync()  # the file may be new


def _opened(directory: Directory) -> WritableFile:
    """Open the file of the mark, or create it with the mode and the owner of the index."""
    try:
        file = directory.open_to_write(TIDE)
        found = file.stat()
        if found.st_nlink == 1 and found.st_size <= _SIZE:
            return file
        file.close()  # a copy of the dataset made of hard links shares it; or it is too long for a mark
    except (FileNotFoundError, ReadOnly):
        pass
    directory.discard(TIDE)
    file = directory.create_file(TIDE)
    index = directory.stat(INDEX)
    if index is not None:
        file.belong_like(index)
    return file


def _compared(
    directory: Directory, mark: TideMark, whole: Callable[[], State | None], *, alone: bool
) -> Exchanged | None:
    found = _main_compared(directory, mark) if alone else None
    if found is not None:
        return found
    state = whole()
    return None if state is None or mark.is_reached_by(state) else Exchanged(mark, not mark.knows(state[0]))


def _main_compared(directory: Directory, mark: TideMark) -> Exchanged | None:
    main = read_main(directory)
    if main is None:
        return None
    is_foreign = not mark.knows(main[0])
    if is_foreign or main[1] < mark.moved[0] or main[2] < mark.moved[1]:
        return Exchanged(mark, is_foreign, is_log_foreign=True)
    return None
