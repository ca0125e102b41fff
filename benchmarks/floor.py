"""The floor: a program written by hand for exactly these data, without any of ondisk's guarantees.

It has the same lines, segments, columns, indexes and syncs, but no locks, types, limits, refusals, snapshots or checks.
It caches parsed times and interned texts.

    python benchmarks/floor.py FOLDER

prints the data of a floor's folder as `ondisk query --json` prints those of a dataset.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from binascii import b2a_base64
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

BATCH = 100_000
TOGETHER = 50  # rows in one statement
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA = """
    CREATE TABLE value (id INTEGER PRIMARY KEY, value TEXT UNIQUE);
    CREATE TABLE segment (id INTEGER PRIMARY KEY, name TEXT UNIQUE, size INTEGER);
    CREATE TABLE datum (id INTEGER PRIMARY KEY, reftime INTEGER, segment INTEGER, offset INTEGER, size INTEGER,
                        area INTEGER, product INTEGER);
    CREATE UNIQUE INDEX by_key ON datum (reftime, area, product);
    CREATE INDEX by_area ON datum (area, reftime);
    CREATE INDEX by_product ON datum (product, reftime);
"""
_ALL = "SELECT reftime, segment, offset, size, area, product FROM datum ORDER BY reftime, id"
_BY_KEY = """
    SELECT segment, offset, size FROM datum WHERE reftime = ?
    AND area = (SELECT id FROM value WHERE value = ?) AND product = (SELECT id FROM value WHERE value = ?)
"""


def open_index(path: Path, schema: str) -> sqlite3.Connection:
    """Create a folder with an index that is as durable as ondisk's."""
    path.mkdir()
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.executescript(schema)
    return db


class Floor:
    """A dataset that is only fast."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = open_index(path, _SCHEMA)
        self.times: dict[bytes, tuple[int, str]] = {}
        self.ids: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self.values: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.segments: dict[str, list[int]] = {}
        self.files: dict[int, int] = {}
        self.next = 1

    def append(self, source: Path) -> None:
        """Append a file of new lines."""
        with source.open("rb") as stream:
            while lines := stream.readlines(37 * BATCH):
                self._append_batch(lines)

    def _append_batch(self, lines: list[bytes]) -> None:
        rows = []
        contents: dict[str, list[bytes]] = defaultdict(list)
        self.db.execute("BEGIN IMMEDIATE")
        times, ids, segments = self.times, self.ids, self.segments
        for number, line in enumerate(lines, self.next):
            stamp, station, variable, _ = line.split(b",", 3)
            if stamp not in times:
                times[stamp] = self._time(stamp)
            reftime, name = times[stamp]
            if name not in segments:
                segments[name] = [len(segments) + 1, 0]
            segment = segments[name]
            if (station, variable) not in ids:
                ids[station, variable] = self._intern(b"VM2," + station), self._intern(b"VM2," + variable)
            area, product = ids[station, variable]
            rows.append((number, reftime, segment[0], segment[1], len(line) - 1, area, product))
            segment[1] += len(line)
            contents[name].append(line)
        self.next += len(lines)
        self._insert(rows)
        for name, content in contents.items():
            path = self.path / name
            path.parent.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, b"".join(content))
            os.fsync(descriptor)
            os.close(descriptor)
            self.db.execute(
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?)", (segments[name][0], name, segments[name][1])
            )
        self.db.execute("COMMIT")

    def _insert(self, rows: list[tuple[int, ...]]) -> None:
        whole = len(rows) // TOGETHER * TOGETHER
        values = chain.from_iterable(rows[:whole])
        # OR FAIL: without a journal for each statement
        many = f"INSERT OR FAIL INTO datum VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?)'] * TOGETHER)}"
        self.db.executemany(many, zip(*[values] * (7 * TOGETHER), strict=True))
        self.db.executemany("INSERT INTO datum VALUES (?, ?, ?, ?, ?, ?, ?)", rows[whole:])

    def query(self, where: str = "1", values: tuple[Any, ...] = ()) -> Iterator[tuple[datetime, dict[str, str], bytes]]:
        """Yield (reftime, metadata, data) in order of reftime."""
        sql = f"SELECT reftime, segment, offset, size, area, product FROM datum WHERE {where} ORDER BY reftime, id"
        names = self.names
        last, time, opened, content = None, EPOCH, None, b""
        for reftime, segment, offset, size, area, product in self.db.execute(sql, values):
            if reftime != last:
                last, time = reftime, EPOCH + timedelta(microseconds=reftime)
            if segment != opened:
                opened = segment
                content = self._read(segment)
            yield time, {"area": names[area], "product": names[product]}, content[offset : offset + size]

    def look_up(self, time: datetime, area: str, product: str) -> tuple[datetime, dict[str, str], bytes]:
        """Return one datum by its key."""
        reftime = (time - EPOCH) // timedelta(microseconds=1)
        segment, offset, size = self.db.execute(_BY_KEY, (reftime, area, product)).fetchone()
        data = os.pread(self._file(segment), size, offset)
        return EPOCH + timedelta(microseconds=reftime), {"area": area, "product": product}, data

    def summary(self) -> tuple[Any, ...]:
        """Return counts of all data and of the values of both fields."""
        totals = self.db.execute("SELECT count(*), sum(size), min(reftime), max(reftime) FROM datum").fetchone()
        areas = self.db.execute("SELECT area, count(*) FROM datum GROUP BY area").fetchall()
        products = self.db.execute("SELECT product, count(*) FROM datum GROUP BY product").fetchall()
        return totals, areas, products

    def close(self) -> None:
        """Close files and connection."""
        for descriptor in self.files.values():
            os.close(descriptor)
        self.db.close()

    def _time(self, stamp: bytes) -> tuple[int, str]:
        parts = int(stamp[:4]), int(stamp[4:6]), int(stamp[6:8]), int(stamp[8:10]), int(stamp[10:12])
        time = datetime(*parts, tzinfo=UTC)
        return (time - EPOCH) // timedelta(microseconds=1), time.strftime("%Y/%m-%d.vm2")

    def _intern(self, text: bytes) -> int:
        value = text.decode()
        if value not in self.values:
            self.values[value] = id = len(self.values) + 1
            self.names[id] = value
            self.db.execute("INSERT INTO value VALUES (?, ?)", (id, value))
        return self.values[value]

    def _file(self, segment: int) -> int:
        if segment not in self.files:
            (name,) = self.db.execute("SELECT name FROM segment WHERE id = ?", (segment,)).fetchone()
            self.files[segment] = os.open(self.path / name, os.O_RDONLY)
        return self.files[segment]

    def _read(self, segment: int) -> bytes:
        descriptor = self._file(segment)
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def json_lines(path: Path) -> Iterator[bytes]:
    """Yield the data of a floor's folder as lines of JSON."""
    db = sqlite3.connect(path / "index.sqlite")
    names = dict(db.execute("SELECT id, json_quote(value) FROM value"))
    segments = dict(db.execute("SELECT id, name FROM segment"))
    last, opened, time, content = None, None, "", b""
    for reftime, segment, offset, size, area, product in db.execute(_ALL):
        if reftime != last:
            last, time = reftime, f"{EPOCH + timedelta(microseconds=reftime):%Y-%m-%dT%H:%M:%SZ}"
        if segment != opened:
            opened, content = segment, (path / segments[segment]).read_bytes()
        data = b2a_base64(content[offset : offset + size], newline=False).decode()
        yield (
            f'{{"reftime":"{time}","metadata":{{"area":{names[area]},"product":{names[product]}}},'
            f'"data":{{"$bytes":"{data}"}},'
            f'"location":{{"segment":"{segments[segment]}","offset":{offset},"size":{size}}}}}\n'
        ).encode()


if __name__ == "__main__":
    with open(sys.stdout.fileno(), "wb", buffering=1024 * 1024) as output:  # noqa: PTH123
        output.writelines(json_lines(Path(sys.argv[1])))
