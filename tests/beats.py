"""A model of the Beats disk queue: its producer, its consumer and its files. It shares no code with ondisk.

Written from what was observed by running Beats. `Beats` writes a queue and sends its events, as one process of Beats
does; `restarted` returns the events that another process, started later on the same files, sends.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import cbor2
import lz4.frame
from formats.diskqueue import beats_reader
from formats.diskqueue.beats_reader import BeatsError, Event

SIZES = {0: 4, 1: 8, 2: 12}
LZ4, PROTOBUF = 2, 4
START = 1_795_132_800_000_000_000  # 2026-11-20, in nanoseconds


def event(number: int, text: str = "") -> Event:
    """Return an event that is known by its number; each is a second after the one before."""
    return START + number * 10**9, 0, {"number": number}, {"text": text or f"event {number}"}


def frame(content: Event) -> bytes:
    names = ("timestamp", "flags", "meta", "fields")
    payload = cbor2.dumps(dict(zip(names, content, strict=True)))
    length = struct.pack("<I", len(payload) + 12)
    return length + payload + struct.pack("<I", crc32(payload, crc32(length))) + length


def segments(path: Path) -> list[int]:
    """Return the numbers of the segments, in order."""
    return sorted(int(each.stem) for each in path.glob("*.seg"))


@dataclass
class Beats:
    """One process of Beats that uses a queue, from its start on.

    Attributes:
        limit: bytes of a segment, roughly.
        version, options: of the segments that it writes.
    """

    path: Path
    limit: int = 1000
    version: int = 2
    options: int = 0
    _ids: list[int] = field(default_factory=list)
    _open: bool = False
    _stream: Any = None
    _size: int = 0
    _count: int = 0
    _unsent: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)
        state = self.path / "state.dat"
        if not state.exists():
            state.touch()
        first = position(self.path)[0]
        for number in segments(self.path):
            if number < first:
                (self.path / f"{number}.seg").unlink()
        self._ids = segments(self.path)
        if not self._ids:
            state.write_bytes(b"")
        self._unsent = [(each.segment, each.end, each.frame) for each in restarted(self.path)]

    @property
    def last(self) -> Path:
        """The segment that is written."""
        return self.path / f"{self._ids[-1]}.seg"

    def publish(self, *events: Event) -> None:
        """Write events, and flush them."""
        for each in events:
            content = frame(each)
            if not self._open or self._size + len(content) > self.limit:
                self.finish()
                self._begin()
            self._size += len(content)
            self._count += 1
            self._write(content if self._stream is None else self._stream.compress(content))
            self._unsent.append((self._ids[-1], self._size, self._count))

    def _begin(self) -> None:
        self._ids.append(self._ids[-1] + 1 if self._ids else 0)
        self._open = True
        self._size, self._count = SIZES[self.version], 0
        self.last.write_bytes(struct.pack("<III", self.version, 0, self.options)[: self._size])
        if self.options & LZ4:
            self._stream = lz4.frame.LZ4FrameCompressor(block_linked=False, content_checksum=True, auto_flush=True)
            self._write(self._stream.begin())

    def _write(self, content: bytes) -> None:
        with self.last.open("ab") as file:
            file.write(content)

    def stop(self) -> None:
        """End cleanly; if everything was sent, nothing is left."""
        self.finish()
        if not self._unsent:
            for number in segments(self.path):
                (self.path / f"{number}.seg").unlink()

    def finish(self) -> None:
        """Close the last segment."""
        if not self._open:
            return
        if self._stream is not None:
            self._write(self._stream.flush())
        if self.version:
            with self.last.open("r+b") as file:
                file.seek(4)
                file.write(struct.pack("<I", self._count))
        self._open, self._stream = False, None

    def crash(self, torn: bytes = b"") -> None:
        """End without closing the last segment, perhaps in the middle of a write."""
        if self._open:
            self._write(torn)
        self._open, self._stream = False, None

    def acknowledge(self, count: int) -> None:
        """Send so many events: move the position, and remove segments before it."""
        sent, self._unsent = self._unsent[:count], self._unsent[count:]
        segment, end, frames = sent[-1]
        layout = ("<IQQ", 0, segment, end - 4) if self.version == 0 else ("<IQQQ", 1, segment, end, frames)
        (self.path / "state.dat").write_bytes(struct.pack(*layout))
        for number in [each for each in self._ids if each < segment]:
            (self.path / f"{number}.seg").unlink()
            self._ids.remove(number)


@dataclass(frozen=True)
class Sent:
    """An event that Beats sends, and where its frame ends in the segment."""

    segment: int
    end: int
    frame: int
    event: Event


def position(path: Path) -> tuple[int, int, int]:
    """Return segment, byte index and frame index as a Beat that starts reads them: zeros if it cannot."""
    state = path / "state.dat"
    content = state.read_bytes() if state.exists() else b""
    if content[:4] == b"\0\0\0\0" and len(content) >= 20:
        segment, offset = struct.unpack_from("<QQ", content, 4)
        return segment, offset, 0
    if content[:4] == b"\1\0\0\0" and len(content) >= 28:
        segment, at, index = struct.unpack_from("<QQQ", content, 4)
        return segment, at, index
    return 0, 0, 0


def restarted(path: Path) -> Iterator[Sent]:
    """Yield what a Beat of 2025 that starts on these files sends, with its mistakes."""
    first, byte_index, frame_index = position(path)
    for number in segments(path):
        if number < first:
            continue  # removed at the start
        begin = (byte_index, frame_index) if number == first and frame_index else (0, 0)
        yield from of_segment(number, (path / f"{number}.seg").read_bytes(), *begin)


def stored(path: Path) -> Iterator[Sent]:
    """Yield all events that are on disk, whatever was sent."""
    for number in segments(path):
        yield from of_segment(number, (path / f"{number}.seg").read_bytes(), 0, 0)


def of_segment(number: int, content: bytes, byte_index: int, frame_index: int) -> Iterator[Sent]:
    version, count, options = struct.unpack("<III", content[:12].ljust(12, b"\0"))
    if version > 2 or len(content) < SIZES[version]:
        return
    size = SIZES[version]
    count = count if version else 0
    options = options if version == 2 else 0
    if options & PROTOBUF:
        return  # decoded as CBOR: an error
    if not count and not has_frames(content[size:]):
        return  # the scan at the start finds none: "couldn't load segment file"
    size = 12 if version == 1 else size  # headerSize() is wrong for version 1
    data = content[size:]
    if options & LZ4:
        with io.BytesIO(data) as stream:
            data = decompressed(stream)
        data = data[: len(content) - size]  # beats#39861
    at, index = max(byte_index, size) - size, frame_index
    while at < len(data):
        try:
            length = int.from_bytes(data[at : at + 4], "little")
            (payload,) = beats_reader.frames(data[at : at + max(length, 1)])
            found = of_json(payload) if version == 0 else beats_reader.event(payload)
        except (BeatsError, ValueError, struct.error, IndexError):
            return  # the rest of the segment is dropped
        at, index = at + length, index + 1
        yield Sent(number, size + at, index, found)


def of_json(payload: bytes) -> Event:
    content = json.loads(payload)
    return content["timestamp"], content["flags"], content["meta"], content["fields"]


def has_frames(data: bytes) -> bool:
    length = int.from_bytes(data[:4], "little")
    return 12 < length <= len(data) and data[length - 4 : length] == data[:4]


def decompressed(stream: io.BytesIO) -> bytes:
    reader, out = lz4.frame.LZ4FrameDecompressor(), b""
    while piece := stream.read(64):
        try:
            out += reader.decompress(piece)
        except (RuntimeError, EOFError):
            break
    return out
