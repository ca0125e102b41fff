"""The data of the benchmarks of `seg`: events in frames of about 109 bytes, in order of time.

40 stations × 5 products every 10 minutes, 28,800 a day, from 2026-01-01 on: 200,000 events are 7 days.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import cbor2

import ondisk

STATIONS = range(1, 41)
PRODUCTS = ("temperature", "humidity", "pressure", "wind", "rain")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = {
    "format": "seg",
    "step": "daily",
    "unique": ["reftime", "station", "product"],
    "index": ["station"],
    "fields": {"station": "integer", "product": "text"},
}
HEADER = struct.Struct("<III")
LENGTH = struct.Struct("<I")
FOOTER = struct.Struct("<II")
OVERHEAD = LENGTH.size + FOOTER.size
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def data(count: int) -> Iterator[ondisk.Datum]:
    """Yield the first `count` data, each with its own mappings."""
    made = 0
    time = BEGIN
    while True:
        for station in STATIONS:
            for product in PRODUCTS:
                if made == count:
                    return
                value = (made * 7919) % 9000 / 10
                fields = {"value": value, "level": made % 23, "quality": 0}
                yield ondisk.Datum(time, {"station": station, "product": product}, fields)
                made += 1
        time += timedelta(minutes=10)


def frame(reftime: int, metadata: Any, fields: Any) -> bytes:
    """Return one event; `reftime` in microseconds."""
    payload = cbor2.dumps({"timestamp": reftime * 1000, "flags": 0, "meta": metadata, "fields": fields})
    begin = LENGTH.pack(len(payload) + OVERHEAD) + payload
    return begin + FOOTER.pack(crc32(begin), len(payload) + OVERHEAD)


def write(path: Path, count: int) -> None:
    """Write the first `count` events to a plain segment."""
    with path.open("wb") as file:
        file.write(HEADER.pack(2, count, 0))
        file.writelines(
            frame((datum.reftime - EPOCH) // MICROSECOND, datum.metadata, datum.data) for datum in data(count)
        )
