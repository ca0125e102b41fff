"""The data of every benchmark: VM2 lines of 37 bytes, including the newline, in order of time.

21 stations × 10 variables × 24 hours a day, from 2026-01-01 on: 1,000,000 lines are 199 days.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

STATIONS = range(101, 122)
VARIABLES = range(221, 231)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = {
    "format": "vm2",
    "step": "daily",
    "unique": ["reftime", "area", "product"],
    "index": ["area", "product"],
    "fields": {"area": "text", "product": "text"},
}


def lines(count: int) -> Iterator[bytes]:
    """Yield the first `count` lines, without newlines."""
    made = 0
    time = BEGIN
    while True:
        stamp = time.strftime("%Y%m%d%H%M").encode()
        for station in STATIONS:
            for variable in VARIABLES:
                if made == count:
                    return
                value = (made * 7919) % 900 + 100
                yield b"%s,%d,%d,%.1f,,,00000000" % (stamp, station, variable, value / 10)
                made += 1
        time += timedelta(hours=1)


def write(path: Path, count: int) -> None:
    """Write the first `count` lines to a file."""
    with path.open("wb") as file:
        file.writelines(line + b"\n" for line in lines(count))
