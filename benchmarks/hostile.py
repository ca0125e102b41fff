"""Measurements of files that somebody made in order to keep ondisk busy: the CPU time of their append.

The floor is the append of a file of ordinary data in the same format, byte for byte. A line, frame or event counts as
at least 100 bytes, since each takes some microseconds.
"""

from __future__ import annotations

import contextlib
import io
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from zlib import crc32

import events
import observations
from measure import Bench, Report

import ondisk
from ondisk.errors import InvalidInput

AT_LEAST = 100  # bytes
GOAL = 6.0
LIMIT = 100_000_000
LINE = b'{"reftime":"2026-11-20T06:00:00Z","x":'
EVENT = b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields"
LZ4 = bytes.fromhex("04224d18 604082")


class HostileBench(Bench):
    """All measurements of hostile files, in one directory.

    Args:
        count: tens of bytes in each file.
    """

    def __init__(self, folder: Path, count: int, rounds: int, report: Report) -> None:
        super().__init__(folder, count, rounds, report)
        self.size = 10 * count

    def run(self) -> None:
        ordinary = {format: (content, items) for format, content, items in self.ordinary()}
        for name, format, content, items in self.files():
            pairs = [(self.of_a_byte(format, *ordinary[format]), self.of_a_byte(format, content, items))
                     for _ in range(self.rounds)]  # fmt: skip
            floor, ours = map(min, zip(*pairs, strict=True))
            detail = f"{ours * 1e9:.0f} ns for a byte; {len(content) / 1e6:.0f} MB, {items:,} items"
            self.report.line(f"{format}, {name}", ours / floor, GOAL, "× ordinary", detail)

    def of_a_byte(self, format: str, content: bytes, items: int) -> float:
        """Return the CPU seconds of an append to a new dataset, for each byte that counts."""
        path = self.new_path("file")
        with ondisk.create(path, {"format": format, "step": "daily", "max_datum_size": LIMIT}) as dataset:
            begin = time.process_time()
            with contextlib.suppress(InvalidInput):  # a limit
                dataset.append_file(io.BytesIO(content), format)
            return (time.process_time() - begin) / max(len(content), AT_LEAST * items)

    def ordinary(self) -> Iterator[tuple[str, bytes, int]]:
        """Yield a format, and content and number of items of a file of ordinary data, for each format."""
        count = self.size // AT_LEAST
        yield "vm2", b"\n".join(observations.lines(count)), count
        times = (observations.BEGIN + timedelta(minutes=number) for number in range(count))
        yield "jsonl", b"".join(b'{"reftime":"%b","x":1}\n' % time.isoformat().encode() for time in times), count
        data = events.data(count)
        frames = b"".join(
            events.frame((each.reftime - events.EPOCH) // events.MICROSECOND, each.metadata, each.data) for each in data
        )
        yield "seg", struct.pack("<III", 2, count, 0) + frames, count

    def files(self) -> Iterator[tuple[str, str, bytes, int]]:
        """Yield name, format, content and number of items of each file."""
        yield from self.lines()
        yield from self.lz4()
        yield from self.frames()

    def many(self, unit: bytes, head: bytes = b"", items: int = 1) -> tuple[bytes, int]:
        """Return a file that repeats a unit, and its number of items."""
        number = self.size // len(unit)
        return head + unit * number, items * number

    def lines(self) -> Iterator[tuple[str, str, bytes, int]]:
        size = self.size
        yield "lines of one letter", "vm2", *self.many(b"x\n")
        yield "lines with a wrong value", "vm2", *self.many(b"202611200600,104,1,7.5x,,,000000000\n")
        yield "lines with an impossible time", "vm2", *self.many(b"202699200600,104,1,7.5,,,\n")
        yield "lines of NUL bytes", "vm2", *self.many(bytes(99) + b"\n")
        yield "lines of one letter", "jsonl", *self.many(b"x\n")
        yield "lines with a comma too many", "jsonl", *self.many(LINE + b"1,}\n")
        yield "lines with a key twice", "jsonl", *self.many(LINE + b'1,"x":1}\n')
        yield "opening brackets", "jsonl", LINE + b"[" * size, 1
        yield "brackets", "jsonl", LINE + b"[]" * (size // 2), 1
        yield "an array of arrays", "jsonl", LINE + b"[" + b"[]," * (size // 3) + b"1]}", 1
        yield "keys", "jsonl", LINE + b"{" + b",".join(b'"%08d":1' % n for n in range(size // 13)) + b"}}", 1
        yield "one key", "jsonl", LINE + b'1,"' + b"k" * size + b'":1}', 1

    def lz4(self) -> Iterator[tuple[str, str, bytes, int]]:
        head = struct.pack("<III", 2, 1, 2)
        yield "skippable LZ4 frames", "seg", *self.many(struct.pack("<II", 0x184D2A50, 0), head)
        yield "empty LZ4 frames", "seg", *self.many(LZ4 + bytes(4), head)
        yield "blocks of one byte", "seg", *self.many(struct.pack("<I", 1 | 1 << 31) + b"x", head + LZ4)
        yield "zeros instead of blocks", "seg", head + LZ4 + bytes(self.size), 1

    def frames(self) -> Iterator[tuple[str, str, bytes, int]]:
        size, head = self.size, struct.pack("<III", 2, 1, 0)
        lying = struct.pack("<I", 1000) + EVENT
        nested = EVENT + b"\xa1\x61x"
        yield "frames of one byte", "seg", *self.many(framed(b"\x00"), head)
        yield "events with a tag", "seg", *self.many(framed(EVENT + b"\xc1\x00"), head)
        yield "frames with lying lengths", "seg", *self.many(lying, head)
        yield "the same between whole frames", "seg", *self.many(framed(EVENT + b"\xa0") + lying, head, 2)
        yield "arrays in arrays", "seg", head + framed(nested + b"\x81" * size), 1
        yield "1,000 arrays in arrays", "seg", *self.many(framed(nested + b"\x81" * 1000 + b"\x00"), head)
        yield "an array of numbers", "seg", head + framed(nested + b"\x9a" + struct.pack(">I", size) + bytes(size)), 1
        yield "keys", "seg", head + framed(wide(size // 13)), 1
        yield "one key", "seg", head + framed(EVENT + b"\xa1\x7a" + struct.pack(">I", size) + b"k" * size + b"\x00"), 1


def framed(payload: bytes) -> bytes:
    begin = struct.pack("<I", len(payload) + 12) + payload
    return begin + struct.pack("<II", crc32(begin), len(payload) + 12)


def wide(count: int) -> bytes:
    """Return an event with many keys."""
    return EVENT + b"\xba" + struct.pack(">I", count) + b"".join(b"\x6b%011x\x00" % n for n in range(count))
