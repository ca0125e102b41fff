"""The floor of `seg`: the same frames, LZ4, segments, columns, indexes and syncs, written by hand for these events.

It has none of ondisk's guarantees, as `floor`. The data of a batch for a segment are compressed together, as one LZ4
frame, so reading any datum means decompressing the whole segment.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import cbor2
import lz4.block
import lz4.frame
from events import EPOCH, FOOTER, HEADER, LENGTH, MICROSECOND, OVERHEAD
from floor import open_index

import ondisk

BLOCK_SIZE = 32 * 1024  # ondisk's
_SCHEMA = """
    CREATE TABLE value (id INTEGER PRIMARY KEY, value TEXT UNIQUE);
    CREATE TABLE segment (id INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER);
    CREATE TABLE datum (id INTEGER PRIMARY KEY, reftime INTEGER, segment INTEGER, offset INTEGER, size INTEGER,
                        station INTEGER, product INTEGER);
    CREATE UNIQUE INDEX by_key ON datum (reftime, station, product);
    CREATE INDEX by_station ON datum (station, reftime);
"""


class SegFloor:
    """A dataset of segments that is only fast."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = open_index(path, _SCHEMA)
        self.values: dict[str, int] = {}
        self.segments: dict[str, list[int]] = {}
        self.next = 1

    def append(self, data: list[ondisk.Datum], batch_size: int) -> None:
        """Append new data."""
        for begin in range(0, len(data), batch_size):
            self._append_batch(data[begin : begin + batch_size])

    def _append_batch(self, data: list[ondisk.Datum]) -> None:
        rows = []
        contents: dict[str, list[bytes]] = defaultdict(list)
        values, segments = self.values, self.segments
        dumps, pack, pack_footer = cbor2.dumps, LENGTH.pack, FOOTER.pack
        time = None
        self.db.execute("BEGIN IMMEDIATE")
        for number, datum in enumerate(data, self.next):
            if datum.reftime != time:
                time = datum.reftime
                reftime = (time - EPOCH) // MICROSECOND
                name = time.strftime("%Y/%m-%d.seg")
                segment = segments.setdefault(name, [len(segments) + 1, HEADER.size])
                frames = contents[name]
            metadata = datum.metadata
            product = metadata["product"]
            if product not in values:
                self._intern(product)
            payload = dumps({"timestamp": reftime * 1000, "flags": 0, "meta": metadata, "fields": datum.data})
            size = len(payload) + OVERHEAD
            begin = pack(size) + payload
            frames.append(begin + pack_footer(crc32(begin), size))
            rows.append((number, reftime, segment[0], segment[1], size, metadata["station"], values[product]))
            segment[1] += size
        self.next += len(data)
        self.db.executemany("INSERT INTO datum VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        for name, frames in contents.items():
            path = self.path / name
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            content = lz4.frame.compress(b"".join(frames))
            is_new = os.fstat(descriptor).st_size == 0
            os.write(descriptor, HEADER.pack(2, 0, 2) + content if is_new else content)
            os.fsync(descriptor)
            os.close(descriptor)
            self.db.execute(
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?)", (segments[name][0], name, segments[name][1])
            )
        self.db.execute("COMMIT")

    def query(self) -> Iterator[tuple[datetime, Any, Any]]:
        """Yield (reftime, metadata, data) in order of reftime."""
        loads, unpack_footer = cbor2.loads, FOOTER.unpack_from
        last, time, opened, content = None, EPOCH, None, b""
        for reftime, segment, offset, size in self.db.execute(
            "SELECT reftime, segment, offset, size FROM datum ORDER BY reftime, id"
        ):
            if reftime != last:
                last, time = reftime, EPOCH + timedelta(microseconds=reftime)
            if segment != opened:
                opened, content = segment, self._read(segment)
            footer = offset + size - FOOTER.size
            begin = content[offset:footer]
            if unpack_footer(content, footer) != (crc32(begin), size):
                raise ValueError(f"segment {segment}, frame at {offset}")
            event = loads(begin[LENGTH.size :])
            yield time, event["meta"], event["fields"]

    def close(self) -> None:
        """Close the connection."""
        self.db.close()

    def _intern(self, value: str) -> None:
        self.values[value] = id = len(self.values) + 1
        self.db.execute("INSERT INTO value VALUES (?, ?)", (id, value))

    def _read(self, segment: int) -> bytes:
        """Return a whole segment, decompressed."""
        (name,) = self.db.execute("SELECT name FROM segment WHERE id = ?", (segment,)).fetchone()
        content = (self.path / name).read_bytes()
        pieces, rest = [content[: HEADER.size]], content[HEADER.size :]
        while rest:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            pieces.append(decompressor.decompress(rest))
            rest = decompressor.unused_data
        return b"".join(pieces)


class Lookup:
    """Reads single data of a segment that ondisk has written: the same rows, block, checksum and comparison, by hand.

    Args:
        path: of the dataset, whose only segment is compressed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
        self.files: dict[int, int] = {}

    def read(self, name: str, offset: int, size: int) -> tuple[datetime, Any, Any]:
        """Return reftime, metadata and content of the datum at a place."""
        execute = self.db.execute
        execute("BEGIN")
        (segment,) = execute("SELECT id FROM segment WHERE name = ?", (name,)).fetchone()
        if segment not in self.files:
            self.files[segment] = os.open(self.path / name, os.O_RDONLY)
        first, position, stored = execute(
            "SELECT offset, position, stored FROM block WHERE segment = ? AND offset <= ? ORDER BY offset DESC",
            (segment, offset),
        ).fetchone()
        block = lz4.block.decompress(os.pread(self.files[segment], stored, position)[4:], uncompressed_size=BLOCK_SIZE)
        frame = block[offset - first : offset - first + size]
        if FOOTER.unpack(frame[-FOOTER.size :]) != (crc32(frame[: -FOOTER.size]), size):
            raise ValueError(f"frame at {offset}")
        event = cbor2.loads(frame[LENGTH.size : -FOOTER.size])
        reftime, metadata = event["timestamp"] // 1000, event["meta"]
        row = execute(
            "SELECT seq FROM datum WHERE reftime = ? AND f_station = ?"
            " AND f_product = (SELECT id FROM value WHERE value = ?) AND segment = ? AND offset = ? AND size = ?",
            (reftime, metadata["station"], metadata["product"], segment, offset, size),
        ).fetchone()
        execute("COMMIT")
        if row is None:
            raise ValueError(f"no datum at {offset}")
        return EPOCH + timedelta(microseconds=reftime), metadata, event["fields"]

    def close(self) -> None:
        """Close the files."""
        self.db.close()
        for each in self.files.values():
            os.close(each)


def scan(path: Path) -> Iterator[Any]:
    """Yield the events of a plain segment."""
    loads, unpack, unpack_footer = cbor2.loads, LENGTH.unpack_from, FOOTER.unpack_from
    content = path.read_bytes()
    at = HEADER.size
    while at < len(content):
        (size,) = unpack(content, at)
        checked = content[at : at + size - FOOTER.size]
        if unpack_footer(content, at + size - FOOTER.size) != (crc32(checked), size):
            raise ValueError(f"frame at {at}")
        yield loads(checked[LENGTH.size :])
        at += size
