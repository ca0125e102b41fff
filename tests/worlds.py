"""What many tests do to datasets, and small datasets to do it to.

A `World` is a dataset of three segments, in one of several kinds of segment. Segment A has the data 0 to 3, at 0, 6, 12
and 18 o'clock, each from an append of its own. B, a year later, has 10 and 11, which must be there whatever is done to
A. The file of C holds 20 and 21; the dataset does not have it yet.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from formats.grib.build import grib1, grid1

import ondisk
from ondisk import Datum
from ondisk.dataset.access import Access
from ondisk.dataset.auxiliary_files import CONFIG, SENTINEL, read_config
from ondisk.errors import IntegrityError, NotFound, StorageError
from ondisk.filesystem import Directory, WritersLock
from ondisk.index import INDEX
from ondisk.maintenance.states import Report

A, B, C, EARLIER = "2026/11-20", "2027/11-20", "2026/11-22", "2026/11-19"
ARCHIVE_AGE, DELETE_AGE = 36_500, 36_600  # days: more than lies between the data and any clock
START = datetime(2026, 11, 20, tzinfo=UTC)
DAY = 86_400
LETTERS = "0123" + "?" * 16 + "ab"  # what stands for the data in the table, by their numbers
POINTS = "points"
"""The property of a test that says at how many points it killed a process, let a call fail, or cut the power."""


def lose_index(path: Path) -> None:
    """Delete the index of the dataset at a path."""
    for suffix in ("", "-wal", "-shm"):
        (path / f"{INDEX}{suffix}").unlink(missing_ok=True)


@contextmanager
def access_to(path: Path) -> Iterator[Access]:
    """Open the dataset at a path as `Dataset` does, for tests of what is below `Dataset`."""
    directory = Directory.open(path)
    with closing(Access(directory, read_config(directory), read_only=False)) as access:
        yield access


def renew_index(path: Path) -> None:
    """Commit a transaction that changes nothing: the index is then newer than every file of the dataset."""
    with access_to(path) as access, access.transaction("test") as transaction:
        transaction.commit()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the writers' lock of the dataset at a path, as another process does."""
    with closing(Directory.open(path)) as directory, WritersLock(directory).hold("test"):
        yield


@contextmanager
def clock(now: float) -> Iterator[None]:
    """Let it be another time, in seconds since 1970: the ages of data and of jobs count from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)
        yield


@contextmanager
def connections(prepare: Callable[[sqlite3.Connection], Any], mode: str = "") -> Iterator[None]:
    """Prepare each connection that is opened to an index, or only those of a mode: `rw` or `ro`."""
    connect = sqlite3.connect

    def prepared(address: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(address, **options)
        if f"mode={mode}" in str(address):
            prepare(connection)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", prepared)
        yield


def rot(path: Path, content: bytes) -> None:
    """Change the bytes of a file as a worn disk does: nothing else shows it."""
    mtime = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(mtime, mtime))


def fail(code: int) -> Callable[..., Any]:
    """Make a function that fails with an error of the operating system."""

    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


def sql(path: Path, statement: str, *values: Any) -> list[Any]:
    """Execute a statement on the index of the dataset at a path, in a connection of its own."""
    with closing(sqlite3.connect(path / INDEX)) as index, index:
        return index.execute(statement, values).fetchall()


def datum(hour: float, station: Any = "a", value: int = 0, *, format: str = "jsonl", **metadata: Any) -> Datum:
    """Make a datum of an hour after START: a value from a station, as the format stores it."""
    data = f"{hour} {station} {value}".encode() if format == "blob" else {"value": value}
    return Datum(START + timedelta(hours=hour), {"station": station, **metadata}, data)


def content(dataset: ondisk.Dataset, match: str | None = None, **options: Any) -> list[tuple[datetime, Any, Any]]:
    """Return the reftime, metadata and data of what a query finds, in its order."""
    return [(each.reftime, dict(each.metadata), each.data) for each in dataset.query(match, **options)]


def hours(dataset: ondisk.Dataset) -> list[int]:
    """Return the hours of all data."""
    return [datum.reftime.hour for datum in dataset.query()]


def change_config(path: Path, old: str, new: str) -> None:
    """Change dataset.toml as an editor does."""
    text = (path / CONFIG).read_text()
    assert old in text
    (path / CONFIG).write_text(text.replace(old, new))


def delete_by_age(path: Path, days: int = 1000) -> Report:
    """Do as a user who sets `delete_age`, runs a repack, and removes the key again."""
    config = path / CONFIG
    before = config.read_text()
    config.write_text(f"delete_age = {days}\n{before}")
    try:
        with ondisk.open(path) as dataset:
            return dataset.repack(by_age=True)
    finally:
        config.write_text(before)


def same(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Compare contents in any order."""
    return Counter(map(repr, one)) == Counter(map(repr, other))


@dataclass(frozen=True)
class Kind:
    """A kind of segment: how a dataset of it is configured."""

    name: str
    values: dict[str, Any] = field(hash=False)

    @property
    def extension(self) -> str:
        return str(self.values["format"])

    @property
    def config(self) -> dict[str, Any]:
        return {
            "step": "daily",
            "unique": ["area"],
            "fields": {"area": "text"},
            "archive_age": ARCHIVE_AGE,
            "delete_age": DELETE_AGE,
        } | self.values

    def datum(self, number: int, reftime: datetime | None = None) -> Datum:
        """Make a datum: of A, of B from 10 on, of C from 20 on; of another time if one is given."""
        days = {0: 0, 1: 365, 2: 2}[number // 10]
        reftime = reftime or START + timedelta(days=days, hours=6 * (number % 10))
        if self.extension == "vm2":
            return Datum(reftime, data=f"{reftime:%Y%m%d%H%M},{number},227,{number},,,000000000".encode())
        if self.extension == "grib":
            grid = grid1(points=(_POINTS + number, 1))
            return Datum(reftime, data=grib1(time=reftime.timetuple()[:5], grid=grid, data=b"some text " * 5))
        return Datum(reftime, {"area": f"VM2,{number}"}, {"n": number, "text": "some text " * 5})


KINDS = [
    Kind("seg lz4", {"format": "seg"}),
    Kind("seg plain", {"format": "seg", "compression": "none"}),
    Kind("vm2", {"format": "vm2"}),
    Kind("jsonl", {"format": "jsonl"}),
]
GRIB = Kind("grib", {"format": "grib", "fields": {"area": "item"}})
_POINTS = 1000  # of the grid of datum 0


def number_of(datum: Datum) -> int:
    (number,) = re.findall(r"VM2,([0-9]+)|Ni=1([0-9]+)", datum.metadata["area"])
    return int("".join(number))


class World:
    """A dataset of one kind, closed between two steps.

    Attributes:
        path: of the dataset.
        ends: where the file of A ended before its first datum, and after each.
        now: seconds since 1970, for the ages.
        is_older: a file was put there that is older than the index.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path = path
        self.kind = kind
        self.ends: list[int] = []
        self.now = START.timestamp() + 5 * DAY
        self.is_older = False

    @classmethod
    def make(cls, path: Path, kind: Kind, order: Iterable[int] = range(4)) -> World:
        world = cls(path, kind)
        with ondisk.create(path, kind.config) as dataset:
            dataset.append(map(kind.datum, (10, 11)))
            for number in order:
                assert dataset.append([kind.datum(number)]).imported == 1
                world.ends.append(world.file(A).stat().st_size)
            begin = 0 if kind.extension != "seg" else 12 + 7 * (kind.config.get("compression") != "none")
            world.ends.insert(0, begin)
        return world

    def copy(self, path: Path) -> World:
        """Copy it, times included."""
        world = World(Path(shutil.copytree(self.path, path)), self.kind)
        world.ends, world.now, world.is_older = self.ends, self.now, self.is_older
        if self.is_older and (world.path / INDEX).exists():
            renew_index(world.path)
        return world

    def file(self, segment: str) -> Path:
        return self.path / f"{segment}.{self.kind.extension}"

    def name(self, segment: str) -> str:
        return f"{segment}.{self.kind.extension}"

    def hidden(self, segment: str, generation: int) -> Path:
        file = self.file(segment)
        return file.with_name(f".{file.name}.{generation}")

    def foreign(self) -> bytes:
        """Return the bytes of a file of C, which the dataset never saw."""
        other = self.path.with_name("other")
        with ondisk.create(other, self.kind.config) as dataset:
            dataset.append([self.kind.datum(20)])
            dataset.append([self.kind.datum(21)])
        content = (other / self.name(C)).read_bytes()
        shutil.rmtree(other)
        return content

    def put(self, segment: str, content: bytes, *, newer: bool) -> None:
        """Put a file where a segment would be, newer or older than the index."""
        file = self.file(segment)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        if newer:
            seconds = datetime.now(UTC).timestamp() + 1000
            os.utime(file, (seconds, seconds))
            return
        self.is_older = True
        if (self.path / INDEX).exists():
            renew_index(self.path)

    def sentinel(self) -> None:
        (self.path / SENTINEL).touch()

    def lose_index(self) -> None:
        lose_index(self.path)

    def sql(self, statement: str, *values: Any, place: str = "") -> Any:
        return sql(self.path / place, statement, *values)

    def opened(self, action: Callable[[ondisk.Dataset], Any], *, read_only: bool = False) -> Any:
        with ondisk.open(self.path, read_only=read_only) as dataset:
            return action(dataset)

    def append(self, *numbers: int) -> None:
        self.opened(lambda dataset: dataset.append(map(self.kind.datum, numbers)))

    def delete(self, *numbers: int) -> None:
        is_grib = self.kind is GRIB
        match = " or ".join(f"GRIB:Ni={_POINTS + number}" if is_grib else f'"VM2,{number}"' for number in numbers)
        assert self.opened(lambda dataset: dataset.delete(f"area: {match}")) == len(numbers)

    def check(self, *, accurate: bool = False) -> Report:
        with clock(self.now):
            return self.opened(lambda dataset: dataset.check(accurate=accurate), read_only=True)

    def fix(self) -> Report:
        with clock(self.now):
            return self.opened(lambda dataset: dataset.fix())

    def repack(self) -> Report:
        with clock(self.now):
            is_aged = self.now > time.time_ns() / 1_000_000_000 + DAY
            return self.opened(lambda dataset: dataset.repack(by_age=is_aged))

    def states(self, report: Report) -> dict[str, str]:
        """Return the states of the segments that are not OK, extensions left out."""
        return {
            each.segment.removesuffix(f".{self.kind.extension}"): "|".join(each.state.names)
            for each in report
            if each.state
        }

    def content(self) -> str:
        """Return the letters of what a query returns, without those of B, then ! if it ends with an error.

        What is given must be what was appended.
        """
        numbers, end = [], ""
        with ondisk.open(self.path, read_only=True) as dataset:
            try:
                for datum in dataset.query():
                    number = number_of(datum)
                    assert same_datum(datum, self.kind.datum(number)), datum
                    numbers.append(number)
            except (NotFound, IntegrityError, StorageError):
                end = "!"
            if not end and not dataset.needs_check:
                assert numbers[-2:] == [10, 11]
        return "".join(LETTERS[number] for number in numbers if number not in (10, 11)) + end


def same_datum(found: Datum, given: Datum) -> bool:
    if type(found.data) is not bytes and dict(found.metadata) != dict(given.metadata):
        return False
    return found.reftime == given.reftime and found.data == given.data
