"""A Beat that has a disk queue open, as far as its files show: what it writes, acknowledges and removes.

Follows libbeat's diskqueue of 9.x: see `state.dat` in `ondisk.formats.diskqueue.state`, and docs/queue.md. But for one
thing: when it has removed all segments, it does not begin with 0 again, where its own position would skip data.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Self

from formats.diskqueue import segments

from ondisk import frame
from ondisk.formats.diskqueue import header
from ondisk.formats.diskqueue.payload import Event
from ondisk.formats.diskqueue.state import NAME, State


class Beat:
    """Opens a queue, and closes it at the end of the block, unless it was killed."""

    def __init__(self, folder: Path, segment_size: int = 1_000_000) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._segment_size = segment_size
        self._state = folder / NAME
        self.position = State.parse(self._state.read_bytes()) if self._state.exists() else None
        self.position = self.position or State()
        if not self._state.exists():
            self._state.write_bytes(b"")
        self.ids = sorted(int(file.stem) for file in folder.iterdir() if file.suffix.lower() == ".seg")
        self._next = self.ids[-1] + 1 if self.ids else self.position.segment + (self.position.frame_index > 0)
        self._writing: Path | None = None
        self._count = 0
        self._size = 0
        self._removed(lambda number: number < self.position.segment)
        if self.ids and self.position.segment < self.ids[0]:
            self.position = State(self.ids[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, *events: Event) -> None:
        """Append events, and sync them."""
        for each in frame.encode(segments.encode([*events])):
            if self._writing is None or self._size + len(each) > self._segment_size:
                self._finish()
                self._writing = self.folder / f"{self._next}.seg"
                self._writing.write_bytes(header.Header().pack())
                self.ids.append(self._next)
                self._next += 1
                self._size, self._count = 12, 0
            with self._writing.open("ab") as file:
                file.write(each)
            self._size += len(each)
            self._count += 1

    def tear(self, size: int) -> None:
        """Cut the last event short, as a crash does."""
        assert self._writing is not None
        content = self._writing.read_bytes()
        self._writing.write_bytes(content[: len(content) - size])

    def acknowledge(self, count: int) -> None:
        """Move the position over the oldest events, and remove the segments before it."""
        for _ in range(count):
            while self.position.frame_index == len(lengths := self._lengths(self.position.segment)):
                self.position = State(min(number for number in self.ids if number > self.position.segment))
            at, before = self.position.offset(12), self.position.frame_index
            self.position = State(self.position.segment, at + lengths[before], before + 1)
        self._state.write_bytes(self.position.pack())
        self._removed(lambda number: number < self.position.segment)

    def pending(self) -> int:
        """Return how many events are not acknowledged."""
        counts = {number: len(self._lengths(number)) for number in self.ids if number >= self.position.segment}
        return sum(counts.values()) - (self.position.frame_index if self.position.segment in counts else 0)

    def _lengths(self, number: int) -> list[int]:
        if number not in self.ids:  # it was removed when all of it was acknowledged
            return [0] * self.position.frame_index
        content = (self.folder / f"{number}.seg").read_bytes()
        at, lengths = 12, []
        while at < len(content):
            (length,) = struct.unpack_from("<I", content, at)
            lengths.append(length)
            at += length
        return lengths

    def close(self) -> None:
        """Count the events in the last segment, and remove it if all of them are acknowledged."""
        self._finish()
        if self._writing is not None and self.position.frame_index == self._count:
            self._removed(lambda number: number == self.position.segment and f"{number}.seg" == self._writing.name)

    def _finish(self) -> None:
        if self._writing is not None:
            with self._writing.open("r+b") as file:
                file.seek(4)
                file.write(struct.pack("<I", self._count))

    def _removed(self, is_old) -> None:
        for number in [*self.ids]:
            if is_old(number):
                (self.folder / f"{number}.seg").unlink()
                self.ids.remove(number)
