"""The dataset that accidents happen to, and what it must answer: a model of its data, and its commands."""

from __future__ import annotations

import random
import re
import shutil
import string
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from formats.grib.build import grib1, grid1
from formats.hdf5_files import odim
from worlds import sql

import ondisk
from ondisk import Datum
from ondisk.cli import main
from ondisk.config import DatasetConfig
from ondisk.errors import OndiskError
from ondisk.formats import find
from ondisk.formats.self_describing import Described
from ondisk.maintenance.states import Report

LAST = ".archive/last"
DAYS = (1, 2, 3, 4)
ARCHIVED = (1, 2, 3)
"""The days whose segments are in the archive if the accident happens there."""

PER_DAY = (0, 200, 400, 600)  # minutes
A, B, C, D = DAYS

KINDS: dict[str, dict[str, Any]] = {
    "vm2": {"format": "vm2"},
    "jsonl": {"format": "jsonl"},
    "lz4": {"format": "seg"},
    "plain": {"format": "seg", "compression": "none"},
    "blob": {"format": "blob"},
    "grib": {"format": "grib"},
    "odimh5": {"format": "odimh5"},
}
LINES = ("vm2", "jsonl")
SEGS = ("lz4", "plain")
FILES = ("vm2", "jsonl", "lz4", "plain", "grib")
DIRS = ("blob", "odimh5")

_LETTERS = string.ascii_letters + string.digits


def number_of(day: int, minute: int) -> int:
    """Return the number that names a datum everywhere here: 1200 is the datum of minute 200 of day 1."""
    return 1000 * day + minute


def numbers_of(*days: int) -> set[int]:
    """Return the numbers of the data that every victim has on these days."""
    return {number_of(day, minute) for day in days for minute in PER_DAY}


def day_of(number: int) -> int:
    return number // 1000


@cache
def token(number: int) -> str:
    """Return letters in which LZ4 finds nothing to compress: they are in a file exactly where their datum is."""
    return "".join(random.Random(number).choices(_LETTERS, k=24))


@cache
def message(number: int, kind: str) -> tuple[Mapping[str, Any], bytes]:
    """Return metadata and bytes of a datum that says itself what it is; the number is in its area."""
    reftime = time_of(number)
    if kind == "grib":
        grid = grid1(points=(number, 1))
        content = grib1(time=reftime.timetuple()[:5], grid=grid, data=token(number).encode())
    else:
        groups = {"where": {"lat": number / 100, "lon": 11.0}, "how": {"comment": token(number)}}
        content = odim("PVOL", groups, date=f"{reftime:%Y%m%d}", time=f"{reftime:%H%M%S}")
    config = DatasetConfig.from_mapping({"format": kind, "step": "daily", "fields": {"area": "text"}})
    format = find(kind)(config)
    assert isinstance(format, Described)
    return format.items_of(format.read(content)[1]), content


def time_of(number: int) -> datetime:
    day, minute = divmod(number, 1000)
    return datetime(2024, 3, day, tzinfo=UTC) + timedelta(minutes=minute)


def area(number: int, kind: str) -> str:
    """Return the value of the field by which a datum is found."""
    return str(message(number, kind)[0]["area"]) if kind in ("grib", "odimh5") else f"VM2,{number}"


def number_in(area: object) -> int:
    """Return the number of the datum that has a value of that field; -1 for one that none has."""
    found = re.match(r"VM2,([0-9]+)$|GRIB:Ni=([0-9]+),|ODIMH5:lat=([0-9]+)0000,", str(area))
    return int("".join(filter(None, found.groups()))) if found else -1


def datum(number: int, kind: str) -> Datum:
    """Make the datum of a number. All data of a kind have the same size."""
    day, reftime = number // 1000, time_of(number)
    if kind in ("grib", "odimh5"):
        return Datum(reftime, *message(number, kind))
    metadata = {"area": area(number, kind)}
    if kind == "vm2":
        line = f"{reftime:%Y%m%d%H%M},{number},227,{day}.25,,{token(number)},000000000"
        return Datum(reftime, {**metadata, "product": "VM2,227"}, line.encode())
    if kind == "blob":
        return Datum(reftime, metadata, f"{number} {token(number)}".encode() * 3)
    return Datum(reftime, metadata, {"n": number, "token": token(number)})


def variant(number: int, kind: str) -> Datum:
    """Make a datum with the unique values of another one, and other contents."""
    one, other = datum(number, kind), token(number + 100_000)
    if isinstance(one.data, bytes):
        return Datum(one.reftime, one.metadata, one.data.replace(token(number).encode(), other.encode()))
    return Datum(one.reftime, one.metadata, {**one.data, "token": other})


def payload(number: int, kind: str) -> bytes:
    """Return bytes that are in a file exactly where the datum is."""
    return token(number).encode() if kind in ("jsonl", *SEGS) else bytes(datum(number, kind).data)


@dataclass
class Answer:
    """What a query returned.

    Attributes:
        found: the numbers of the data, each exactly as it was stored.
        wrong: the data that nobody stored.
        error: the error that ended the query; None if it came to its end.
        warned: the query said that it may not be complete.
    """

    found: list[int] = field(default_factory=list)
    wrong: list[Datum] = field(default_factory=list)
    error: BaseException | None = None
    warned: bool = False


class Victim:
    """A dataset of four days with four data each, closed between two steps.

    Attributes:
        path: of the dataset.
        kind: of its segments, a key of `KINDS`.
        place: where the accident happens: "" in the dataset, or `.archive/last`, which then has the first three days.
        given: the numbers of all data whose append was acknowledged, and of data that somebody put there as files.
        maybe: the numbers of data that may be there, or not: nobody acknowledged them.
        deleted: the numbers of data that were deleted.
        revives: deleted data may come back, as the bytes or the index are from before.
        destroyed: the numbers of data whose bytes the accident has destroyed.
        untraceable: the numbers of data whose loss leaves no trace now, or was said before.
        away: the numbers of data in a folder of the archive that is away or offline.
        variants: data that the accident has made out of others; they may be returned.
        acts: groups of data of which all or none must be there.
        kept: contents of files that must still be on disk.
        stays: what nobody may touch, with what is in it, see `leave_alone`.
        codes: the exit codes of all commands, with their names.
        is_rot: no size, time or inode shows the accident: only reading finds it.
    """

    def __init__(self, path: Path, kind: str, place: str = "") -> None:
        self.path = path
        self.kind = kind
        self.place = place
        self.given: set[int] = set()
        self.maybe: set[int] = set()
        self.deleted: set[int] = set()
        self.revives = False
        self.destroyed: set[int] = set()
        self.untraceable: set[int] = set()
        self.away: set[int] = set()
        self.variants: list[Datum] = []
        self.acts: list[set[int]] = []
        self.kept: list[bytes] = []
        self.stays: dict[Path, dict[str, bytes]] = {}
        self.codes: list[tuple[str, int]] = []
        self.is_rot = False

    @classmethod
    def make(cls, path: Path, kind: str, place: str = "", **config: Any) -> Victim:
        """Create it. Each segment is written by two appends."""
        victim = cls(path, kind, place)
        victim.create(path, **config)
        for half in (PER_DAY[:2], PER_DAY[2:]):
            victim.append(*(number_of(day, minute) for day in DAYS for minute in half))
        if place:
            victim.run("archive", *map(victim.name, ARCHIVED), "--yes")
        assert victim.codes == [("archive", 0)] * bool(place), victim.codes
        return victim

    def create(self, path: Path, **config: Any) -> None:
        """Create an empty dataset with the victim's configuration."""
        fields = {"step": "daily", "unique": ["area"], "fields": {"area": "text"}}
        ondisk.create(path, fields | KINDS[self.kind] | config).close()

    @property
    def extension(self) -> str:
        return str(KINDS[self.kind]["format"])

    @property
    def here(self) -> Path:
        """Where the accident happens: the dataset, or a folder of its archive."""
        return self.path / self.place

    @property
    def folder(self) -> Path:
        """The folder of the segments there."""
        return self.here / "2024"

    @property
    def days_here(self) -> tuple[int, ...]:
        return ARCHIVED if self.place else DAYS

    def name(self, day: int) -> str:
        return f"2024/03-{day:02}.{self.extension}"

    def file(self, day: int) -> Path:
        """Return the path of a day's segment where the accident happens."""
        return self.here / self.name(day)

    def part(self, number: int) -> Path:
        """Return the file with the bytes of one datum: in a folder the file of the datum, else the segment."""
        segment = self.file(day_of(number))
        if self.kind not in DIRS:
            return segment
        content = self.payload(number)
        (found,) = (
            each for each in segment.iterdir() if not each.name.startswith(".") and each.read_bytes() == content
        )
        return found

    def run(self, verb: str, *arguments: object) -> int:
        """Run a command on the dataset, as `ondisk` does, and return its exit code."""
        code = main([verb, str(self.path), *map(str, arguments)])
        self.codes.append((verb, code))
        return code

    def fix(self) -> int:
        return self.run("fix", "--yes")

    def repack(self) -> int:
        return self.run("repack", "--yes")

    def maintain(self) -> int:
        return self.run("maintain")

    def match(self, *numbers: int) -> str:
        """Return the match expression for data."""
        return "area: " + " or ".join(f'"{area(number, self.kind)}"' for number in numbers)

    def delete(self, *numbers: int) -> None:
        """Delete data, as a user does."""
        assert self.run("delete", self.match(*numbers), "--yes") == 0
        self.deleted |= {*numbers}

    def append(self, *numbers: int) -> int:
        """Append data in one batch, and return the exit code of a command that does. What it stores is acknowledged.

        Of a duplicate nothing is stored: the other one counts, and perhaps its damage was reported before.
        """
        code, statuses, kept = 0, [], []
        try:
            with ondisk.open(self.path) as dataset, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = dataset.append([datum(each, self.kind) for each in numbers], outcomes=True)
                statuses, kept = [each.status for each in result.outcomes], result.kept
        except OndiskError as error:
            code = error.exit_code
        taken = {each for each, status in zip(numbers, statuses, strict=False) if status != "refused"}
        stored = {each for each, status in zip(numbers, statuses, strict=False) if status in ("imported", "replaced")}
        self.given |= stored
        self.deleted -= taken
        self.maybe |= {*numbers} - stored
        code = code or (8 if len(taken) < len(numbers) else 9 if kept else 0)
        if code:
            self.codes.append(("append", code))
        return code

    def check(self, accurate: bool = False) -> Report:
        with ondisk.open(self.path, read_only=True) as dataset:
            return dataset.check(accurate)

    def lost(self) -> int:
        """Return how many data the dataset has counted as lost, as its metric says; 0 if its index cannot be read."""
        with suppress(OndiskError), ondisk.open(self.path, read_only=True) as dataset:
            return int(dataset.info()["lost"])
        return 0

    def query(self) -> Answer:
        """Query all data, and compare each with what was stored."""
        return self.answers([None])[0]

    def look_up(self, numbers: list[int]) -> list[Answer]:
        """Query each datum alone, by its unique key."""
        return self.answers(numbers)

    def answers(self, numbers: Sequence[int | None]) -> list[Answer]:
        """Return the answer to a query of each number; of all data for None."""
        answers = [Answer() for _ in numbers]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with ondisk.open(self.path, read_only=True) as dataset:
                    for number, answer in zip(numbers, answers, strict=True):
                        answer.warned = dataset.needs_check
                        self._query(dataset, number, answer)
            except Exception as error:
                for answer in answers:
                    answer.error = error
        for answer in answers:
            answer.warned |= bool(caught)
        return answers

    def _query(self, dataset: ondisk.Dataset, number: int | None, answer: Answer) -> None:
        equal = {} if number is None else {"area": area(number, self.kind)}
        try:
            for each in dataset.query(**equal):
                self._add(answer, each)
        except Exception as error:  # whatever it is: the law says which are allowed
            answer.error = error

    def _add(self, answer: Answer, found: Datum) -> None:
        number = number_in(found.metadata.get("area"))
        if number in self.given | self.maybe and _same(found, datum(number, self.kind)):
            answer.found.append(number)
        elif not any(_same(found, each) for each in self.variants):
            answer.wrong.append(found)

    def segments_on_disk(self) -> Iterator[Path]:
        """Yield all files that may hold data: those of segments and of quarantine, but nothing else that is hidden."""
        for each in self.path.rglob("*"):
            inner = each.relative_to(self.path).parts
            shown = ".quarantine" in inner or not any(part.startswith(".") and part != ".archive" for part in inner)
            if shown and each.is_file() and "index.sqlite" not in each.name:
                yield each

    def leave_alone(self, *paths: Path) -> None:
        """Let nobody touch a file or a folder from now on: a copy that people have made, or what is away."""
        self.stays |= {path: tree(path) for path in paths}

    def payload(self, number: int) -> bytes:
        return payload(number, self.kind)

    def on_disk(self, numbers: Iterable[int]) -> set[int]:
        """Return the data whose bytes are in a segment or in quarantine."""
        contents = [each.read_bytes() for each in self.segments_on_disk()]
        return {each for each in numbers if any(self.payload(each) in content for content in contents)}

    def backup(self, what: Path) -> Path:
        """Copy a file or a folder out of the dataset, times included."""
        place = self.path.parent / "backup" / f"{len([*self.path.parent.glob('backup/*')])}"
        place.mkdir(parents=True)
        copy = shutil.copytree if what.is_dir() else shutil.copy2
        return Path(copy(what, place / what.name))

    def foreign(self, *numbers: int, **config: Any) -> Victim:
        """Make another dataset of the same configuration, with these data; it is beside this one."""
        other = Victim(self.path.parent / f"other{len([*self.path.parent.glob('other*')])}", self.kind)
        other.create(other.path, **config)
        assert other.append(*numbers) == 0
        return other

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement on the index."""
        return sql(self.path, statement, *values)

    def generation(self, day: int) -> int:
        name = str(self.file(day).relative_to(self.path))
        return int(self.sql("SELECT id FROM segment WHERE name = ?", name)[0][0])

    def rows(self, day: int) -> list[tuple[int, int, int]]:
        """Return the number, the offset and the size of the data of a segment, as the index says."""
        known = """SELECT value.value, "offset", size FROM datum JOIN value ON value.id = datum.f_area
                   WHERE segment = ? ORDER BY "offset" """
        return [(number_in(area), *span) for area, *span in self.sql(known, self.generation(day))]

    def within(self, day: int, begin: int, end: int) -> set[int]:
        """Return the data of a segment that need any of these bytes of its file: of compressed data the whole block."""
        rows = [(number, offset, offset + size) for number, offset, size in self.rows(day)]
        if self.kind == "lz4":
            blocks = self.sql(
                "SELECT offset, position, position + stored FROM block WHERE segment = ?", self.generation(day)
            )
            spans = {number: max(each for each in blocks if each[0] <= first)[1:] for number, first, _ in rows}
            rows = [(number, *span) for number, span in spans.items()]
        return {number for number, first, last in rows if first < end and begin < last}


def tree(path: Path) -> dict[str, bytes]:
    """Return the files in a folder, or a file, with their contents."""
    files = [path, *path.rglob("*")]
    return {str(each.relative_to(path)): each.read_bytes() for each in files if each.is_file()}


def _same(one: Datum, other: Datum) -> bool:
    return (one.reftime, dict(one.metadata), one.data) == (other.reftime, dict(other.metadata), other.data)


@contextmanager
def clock(days: float) -> Iterator[None]:
    """Let the clock be wrong by some days."""
    ahead, seconds, nanoseconds = days * 86_400, time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: seconds() + ahead)
        patch.setattr(time, "time_ns", lambda: nanoseconds() + int(ahead * 1e9))
        yield
