"""What a crashing process does, and what a dataset must hold after each step of it.

A workload is a list of steps. The process that is about to crash carries them out and acknowledges each, in a file of
its own, after the call returned. `Model` carries them out on a dict; what the dataset holds after the crash must be
the model after the acknowledged steps, or after one more: a step is whole or absent.

A datum is written down as a line of VM2, in whatever format it is stored: `datum_of` and `line_of` turn one into
the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import random
import re
import shutil
import sqlite3
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import filelock  # noqa: F401
import lz4.frame
from formats.grib.build import grib1, grid1
from formats.hdf5_files import odim
from sums import differences

import ondisk
import ondisk.arkimet
import ondisk.dataset.commit_staged
import ondisk.formats.diskqueue.seg
import ondisk.formats.grib
import ondisk.formats.odimh5
import ondisk.formats.vm2
import ondisk.index.convert
import ondisk.index.tables
import ondisk.maintenance.archive
import ondisk.maintenance.check
import ondisk.maintenance.fix
import ondisk.maintenance.migrate
import ondisk.maintenance.quarantine
import ondisk.maintenance.repack
from ondisk.dataset.dataset import Dataset
from ondisk.datum import Datum
from ondisk.errors import SegmentMissing
from ondisk.filesystem import Directory
from ondisk.formats import find, is_known
from ondisk.formats.diskqueue import header
from ondisk.formats.diskqueue.blocks import END_MARK
from ondisk.index.import_log import Mark
from ondisk.queue import Consumer
from ondisk.replication import Replica
from ondisk.replication.heal import heal
from ondisk.replication.reconcile import reconcile
from ondisk.replication.source import PathSource
from ondisk.segments import quarantine
from ondisk.segments.generations import REPLACED, hidden
from ondisk.staging.stage import FinishedStage, Stage

ondisk.index.convert.alembic()  # imports Alembic, too

CONFIG: dict[str, Any] = {
    "format": "vm2",
    "step": "daily",
    "unique": ["reftime", "area", "product"],
    "index": ["area"],
    "lock_timeout": 5,
    "fields": {"area": "text", "product": "text"},
}
REPLACING = {**CONFIG, "replace": "yes"}
CONFIGS: dict[str, dict[str, Any]] = {
    "vm2": CONFIG,
    "seg lz4": {**CONFIG, "format": "seg"},
    "seg plain": {**CONFIG, "format": "seg", "compression": "none"},
}
ENCRYPTED: dict[str, dict[str, Any]] = {
    "seg ctr": {**CONFIG, "format": "seg", "encryption": "aes-128-ctr"},
    "seg gcm": {**CONFIG, "format": "seg", "encryption": "aes-256-gcm"},
}
KEYS = {1: bytes(range(16)), 2: bytes(range(32))}
KEY_LINES = ";".join(f"{number} {secret.hex()}" for number, secret in KEYS.items())
"""What the environment of a process must have as ONDISK_KEYS, to read encrypted segments."""
SEQUENCE = {**CONFIG, "format": "seg", "step": "sequence", "segment_size": 450}
_ITEMS = {**CONFIG, "fields": {"area": "item", "product": "item"}}
DESCRIBED = {name: {**_ITEMS, "format": name} for name in ("grib", "odimh5")}
"""Data say themselves what they are: a message, or a file in a folder."""
ALL_CONFIGS = {**CONFIGS, **ENCRYPTED, "blob": {**CONFIG, "format": "blob"}, "seg sequence": SEQUENCE, **DESCRIBED}
"""Those of encrypted and of dir segments, and of a sequence, too."""
SEG = ["seg lz4", "seg plain"]
PIECE = (2, 7)  # offset and length
START = datetime(2026, 11, 20, tzinfo=UTC)
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1

Line = bytes
Content = list[Line]


@dataclass(frozen=True)
class Append:
    """Append lines, in batches of at most so many."""

    lines: tuple[Line, ...]
    batch_size: int = 1000


@dataclass(frozen=True)
class Import:
    """Import a queue of Beats, in batches of at most so many."""

    queue: str
    batch_size: int = 1000


@dataclass(frozen=True)
class Pull:
    """Pull the changes of a source into the dataset, which is its replica, in answers of at most so many bytes."""

    source: str
    max_bytes: int


@dataclass(frozen=True)
class Reconcile:
    """Compare the dataset, a replica, with its source, and make it equal."""

    source: str


@dataclass(frozen=True)
class Heal:
    """Return to the source what it has lost and the dataset, its replica, has; the source is the folder beside it."""

    source: str


@dataclass(frozen=True)
class Consume:
    """Consume a queue, in batches of at most so many; the file `delivered` beside the dataset gets what comes."""

    batch_size: int


@dataclass(frozen=True)
class Commit:
    """Stage lines, so many by each of several stages, and commit them all at once; those of a source but once.

    They replace the data of one area, if it is given.
    """

    lines: tuple[Line, ...]
    each: int = 10
    source: str | None = None
    over: int | None = None


@dataclass(frozen=True)
class Delete:
    """Delete the data of one area: the text of a match, and what it means."""

    station: int


@dataclass(frozen=True)
class Repack:
    """Repack all that there is to repack."""


@dataclass(frozen=True)
class Fix:
    """Fix all that there is to fix."""


@dataclass(frozen=True)
class Quarantine:
    """Keep a file or a folder, or link it, or keep a piece of a file; restore or drop the item of a segment."""

    act: Literal["keep", "link", "piece", "restore", "drop"]
    name: str


@dataclass(frozen=True)
class Archive:
    """Move the segments of some days to the archive; those that are there stay there."""

    days: tuple[int, ...]


@dataclass(frozen=True)
class Unarchive:
    """Move the segments of some days back from the archive."""

    days: tuple[int, ...]


@dataclass(frozen=True)
class RenameArchive:
    """Rename the archive that repack fills: the next archived segment begins a new one."""

    name: str


@dataclass(frozen=True)
class BackUp:
    """Back the dataset up, into the folder beside it, and keep so many points."""

    target: str
    keep: int | None = None


@dataclass(frozen=True)
class Beside:
    """Carry out steps while a query runs, that began before them: what they replace or drop stays on disk."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class LoseIndex:
    """Remove `index.sqlite`; `-wal` and `-shm`, stale now, stay."""


@dataclass(frozen=True)
class LoseSegment:
    """Remove the file of one day's segment."""

    day: int


@dataclass(frozen=True)
class MakeForeign:
    """Write one day's segment of seg as another program would: with LZ4 blocks that ondisk cannot go on with."""

    day: int


@dataclass(frozen=True)
class LetAge:
    """Have data older than so many days deleted by a repack."""

    days: int


@dataclass(frozen=True)
class LetArchive:
    """Have data older than so many days archived by a repack."""

    days: int


@dataclass(frozen=True)
class LeaveOut:
    """Leave out a kind of sync from here on, to see that the tests see it."""

    what: Literal["directories", "files and directories", "index"]


Step = (
    Append | Commit | Delete | Repack | Fix | Archive | Unarchive | RenameArchive | Beside | Quarantine
    | Import | Pull | Reconcile | Heal | Consume | LoseIndex | LoseSegment | MakeForeign | LetAge | LetArchive
    | LeaveOut | BackUp
)  # fmt: skip
VERBS = Repack | Fix | Archive | Unarchive | RenameArchive
"""Those that a crash may leave half done, and that are done again."""

MISSING = [b"a segment is missing"]
"""What stands for the content of a dataset that cannot be read since a segment is missing."""


def line(day: int, hour: int, station: int, value: int, note: str = "") -> Line:
    """Make a line of VM2; `value` and `note` are what a replacement changes."""
    return (START + timedelta(days=day, hours=hour)).strftime("%Y%m%d%H%M").encode() + (
        f",{station},227,{value},,{note},000000000".encode()
    )


def key(line: Line) -> bytes:
    """Return what `unique` compares: time, station and variable."""
    return b",".join(line.split(b",", 3)[:3])


class Model:
    """A dataset as a dict: key → line.

    Attributes:
        on_disk: the last line of each key that stands in a segment's file, known to the index or not.
        missing: days whose segment the index knows, and the disk has not.
        given: what was acknowledged and not deleted since, known to the index or not.
        oldest: data of days before it are old enough to be deleted.
    """

    def __init__(self, *, replace: bool) -> None:
        self.replace = replace
        self.data: dict[bytes, Line] = {}
        self.on_disk: dict[bytes, Line] = {}
        self.given: dict[bytes, Line] = {}
        self.missing: set[bytes] = set()
        self.oldest = b""

    def carry_out(self, step: Step) -> Iterator[Content]:
        """Change the data by a step; gives what there is after each of its commits."""
        match step:
            case Append(lines, batch_size):
                for begin in range(0, max(1, len(lines)), batch_size):
                    for each in lines[begin : begin + batch_size]:
                        if self.replace or key(each) not in self.data:
                            self.data[key(each)] = self.on_disk[key(each)] = self.given[key(each)] = each
                    yield self.content()
            case Commit(lines, _, _, over):
                self._delete(over)
                yield from self.carry_out(Append(lines, len(lines)))
            case Delete(station):
                self._delete(station)
                yield self.content()
            case Repack():
                yield self.content()
                for day in sorted({*self.missing, *(day_of(each) for each in self.data if day_of(each) < self.oldest)}):
                    self._remove(day)
                    yield self.content()
                self.on_disk = dict(self.data)
            case Fix():
                yield self.content()
                for day in sorted({*map(day_of, self.on_disk), *self.missing}):
                    if day in self.missing:
                        self._remove(day)
                    self.data.update((name, each) for name, each in self.on_disk.items() if day_of(name) == day)
                    yield self.content()
            case Beside(steps):
                for each in steps:
                    yield from self.carry_out(each)
            case LoseIndex():
                self.data = {}
                yield self.content()
            case LoseSegment(number):
                day = day_of(line(number, 0, 0, 0))
                self.missing.add(day)
                self.on_disk, self.given = without(self.on_disk, day), without(self.given, day)
                yield self.content()
            case Archive() | Unarchive() | RenameArchive() | MakeForeign() | LetArchive() | LeaveOut():
                yield self.content()
            case LetAge(days):
                self.oldest = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y%m%d").encode()
                yield self.content()

    def _delete(self, station: int | None) -> None:
        for name in [name for name in self.data if int(name.split(b",")[1]) == station]:
            del self.data[name]
            self.given.pop(name, None)  # without its index, a dataset has data again that were deleted

    def _remove(self, day: bytes) -> None:
        self.data, self.given = without(self.data, day), without(self.given, day)
        self.missing.discard(day)

    def content(self) -> Content:
        return MISSING if self.missing else self.there()

    def there(self) -> Content:
        return sorted(each for name, each in self.data.items() if day_of(name) not in self.missing)


def without(data: dict[bytes, Line], day: bytes) -> dict[bytes, Line]:
    """Leave out a day's data."""
    return {name: each for name, each in data.items() if day_of(name) != day}


def day_of(key: bytes) -> bytes:
    """Return the day of a key, and so its segment."""
    return key[:8]


class Story:
    """What a dataset held before, and the steps that a process then takes on it.

    Args:
        refused: lines that were to be appended, too, but were refused. Without its index, a dataset may have them.
    """

    def __init__(
        self, before: Sequence[Step], steps: Sequence[Step], *, replace: bool = False, refused: Sequence[Line] = ()
    ) -> None:
        self._refused = refused
        self.before = before
        self.steps = list(steps)
        self.replace = replace
        model = Model(replace=replace)
        for step in before:
            deque(model.carry_out(step), maxlen=0)
        self._after = [[model.content()]]
        self._there = [model.there()]
        self._given = [[model.given.copy()]]
        for step in steps:
            self._after.append([])
            self._given.append([])
            for content in model.carry_out(step):
                self._after[-1].append(content)
                self._given[-1].append(model.given.copy())
            self._there.append(model.there())

    def possible(self, acked: int) -> list[Content]:
        """Return what the dataset may hold after so many acknowledged steps, perhaps with some commits of the next."""
        return [self._after[acked][-1], *(self._after[acked + 1] if acked < len(self.steps) else [])]

    def there(self, acked: int) -> list[Content]:
        """Return the data that can be read, wherever a segment is missing, before and after the next step."""
        return self._there[acked : acked + 2]

    def given(self, acked: int) -> dict[bytes, set[Line]]:
        """Return the data that no crash after so many acknowledged steps may lose: key → lines that may be there."""
        states = [self._given[acked][-1], *(self._given[acked + 1] if acked < len(self.steps) else [])]
        found = {name: {each[name] for each in states} for name in set.intersection(*map(set, states))}
        for line in self._refused:
            found.get(key(line), set()).add(line)
        return found

    def returned(self, acked: int, found: Content) -> set[bytes]:
        """Return the keys of what was found although it was deleted before the step that was not acknowledged."""
        states = [self._given[acked][-1], *(self._given[acked + 1] if acked < len(self.steps) else [])]
        return {*map(key, found)}.difference(*states)

    @property
    def appended(self) -> list[Line]:
        """All lines that were to be appended."""
        return [*self._refused, *(line for each in (*self.before, *self.steps) for line in lines_in(each))]

    @property
    def end(self) -> Content:
        return self._after[-1][-1]


def lines_in(step: Step) -> list[Line]:
    """Return the lines that a step appends."""
    if isinstance(step, Beside):
        return [line for each in step.steps for line in lines_in(each)]
    return [*step.lines] if isinstance(step, Append | Commit) else []


def carry_out(dataset: Dataset, step: Step) -> None:
    match step:
        case Append(lines, batch_size):
            dataset.append((datum_of(each, dataset.config.format) for each in lines), batch_size=batch_size)
        case Import(queue, batch_size):
            for _ in dataset.append_queue(queue, batch_size=batch_size):
                pass
        case Pull(source, max_bytes):
            with PathSource(source) as opened:
                Replica(dataset, opened).pull(max_bytes)
        case Reconcile(source):
            with PathSource(source) as opened:
                reconcile(Replica(dataset, opened), yes=True)
        case Heal(source):
            with PathSource(dataset.path.parent / source) as opened:
                heal(Replica(dataset, opened), yes=True)
        case Consume(batch_size):
            with (dataset.path.parent / "delivered").open("a") as file:
                for batch in Consumer(dataset, batch_size):
                    file.write("".join(f"{datum.metadata['number']}\n" for datum in batch))
                    file.flush()
                    batch.ack()
        case Commit(lines, each, source, over):
            job = uuid.uuid4().hex
            data = [datum_of(each, dataset.config.format) for each in lines]
            parts = [data[begin : begin + each] for begin in range(0, len(data), each)]
            staged = [stage(dataset, job, str(at), part, source) for at, part in enumerate(parts)]
            dataset.append_staged(job, staged, overwrite=None if over is None else match_of(over, dataset))
        case Delete(station):
            dataset.delete(match_of(station, dataset))
        case Repack():
            dataset.repack()
        case Fix():
            dataset.fix()
        case Archive(days):
            move(dataset, dataset.archive, days)
        case Unarchive(days):
            move(dataset, dataset.unarchive, days)
        case RenameArchive(name):
            if not (dataset.path / ".archive" / name).exists():
                dataset.rename_archive("last", name)
            else:  # a crash came between the rename and the commit, or after it
                dataset.fix()
        case Quarantine(act, name):
            with_quarantine(dataset, act, name)
        case BackUp(target, keep):
            path = dataset.path.parent / target
            dataset.backup(path, create=not (path / "backup.json").exists(), keep=keep)
        case Beside(steps):
            with contextlib.closing(dataset.query()) as query:  # type: ignore[type-var]
                next(query)
                for each in steps:
                    carry_out(dataset, each)
        case LoseIndex():
            with contextlib.closing(Directory.open(dataset.path)) as directory:
                directory.discard("index.sqlite")  # tells in ondisk's errors if the disk is gone
                directory.sync()
        case LeaveOut("directories"):
            Directory.sync = lambda *_: None  # type: ignore[method-assign,assignment]
        case LeaveOut("files and directories"):
            os.fsync = lambda _: None  # type: ignore[assignment]
        case LeaveOut("index"):
            ondisk.index.connection._FULL = 0  # PRAGMA synchronous=OFF
        case LoseSegment(day):
            segment = segment_of(dataset, day)
            shutil.rmtree(segment) if segment.is_dir() else segment.unlink()
        case MakeForeign(day):
            segment = segment_of(dataset, day)
            segment.write_bytes(foreign(segment.read_bytes()))
        case LetAge(days):
            config = dataset.path / "dataset.toml"
            config.write_text(f"delete_age = {days}\n{config.read_text()}")
        case LetArchive(days):
            config = dataset.path / "dataset.toml"
            config.write_text(f"archive_age = {days}\n{config.read_text()}")


def stage(dataset: Dataset, job: str, name: str, data: Sequence[Datum], source: str | None) -> FinishedStage:
    """Stage data as a process of a job does."""
    format = find(dataset.config.format)(dataset.config)
    with Directory.open(dataset.path) as directory, Stage(directory, dataset.config, job, name) as begun:
        begun.add(format.encode(data), format)
        return begun.finish(None if source is None else Mark(source, name))


def with_quarantine(dataset: Dataset, act: str, name: str) -> None:
    access, why = dataset._access, {"verb": "fix", "why": "it stood in the way"}
    if act in ("restore", "drop"):
        (item,) = (item.name for item in dataset.quarantine if item.segment == name)
        getattr(dataset.quarantine, act)(item)
        return
    with access.locked("fix"):
        if act == "keep":
            quarantine.keep(access.directory, name, **why)
        elif act == "link":
            quarantine.link(access.directory, name, **why)
        else:
            quarantine.keep_piece(access.directory, name, access.directory.open_to_read(name), *PIECE, **why)


def move(dataset: Dataset, verb: Callable[[str], object], days: Sequence[int]) -> None:
    """Move the segments of some days; those that were moved before a crash are not where they were."""
    for day in days:
        with contextlib.suppress(SegmentMissing):
            verb(str(segment_of(dataset, day).relative_to(dataset.path)))


def segment_of(dataset: Dataset, day: int) -> Path:
    """Return the path of one day's segment."""
    return dataset.path / (START + timedelta(days=day)).strftime(f"%Y/%m-%d.{dataset.config.format}")


def foreign(segment: bytes) -> bytes:
    """Write a segment of seg with LZ4 blocks that refer to those before."""
    head, rest = header.Header.parse(segment[: header.SIZE]), segment[header.SIZE :]
    frames = lz4.frame.decompress(rest + END_MARK) if head.compressed else rest
    packed = header.Header(options=header.LZ4, frame_count=head.frame_count).pack()
    return packed + lz4.frame.compress(frames, block_linked=True)


def match_of(station: int, dataset: Dataset) -> str:
    """Return the match of the data of one area."""
    areas = {"grib": f"GRIB:Ni={station + 1}", "odimh5": f"ODIMH5:lat={10 * station}"}
    return "area:" + areas.get(dataset.config.format, f'"VM2,{station}"')


def datum_of(line: Line, format: str = "vm2") -> Datum:
    """Make the datum that a line stands for; in blob data are bytes, in seg a mapping or bytes, by turns."""
    time = datetime.strptime(line[:12].decode(), "%Y%m%d%H%M").replace(tzinfo=UTC)
    if format == "vm2":
        return Datum(time, {}, line)
    if format in DESCRIBED:
        return Datum(time, {}, message_of(line, time, format))
    _, station, variable, value, _, note, _ = line.decode().split(",")
    as_bytes = format == "blob" or int(value) % 2
    data = f"{value},{note}".encode() if as_bytes else {"value": int(value), "note": note}
    return Datum(time, {"area": f"VM2,{station}", "product": f"VM2,{variable}"}, data)


def message_of(line: Line, time: datetime, format: str) -> bytes:
    """Return what says itself when it is, and of which area; the line is somewhere in it."""
    station = int(line.split(b",")[1])
    if format == "grib":
        return grib1(time=time.timetuple()[:5], grid=grid1(points=(station + 1, 1)), data=line)
    groups = {"where": {"lat": station / 100_000, "lon": 11.0}, "how": {"comment": line}}
    return odim("PVOL", groups, date=f"{time:%Y%m%d}", time=f"{time:%H%M%S}")


def line_of(found: Datum, format: str = "vm2") -> Line:
    """Return the line that a datum stands for; its metadata must fit its data."""
    if format == "vm2":
        time, station, variable, _ = found.data.split(b",", 3)
        assert found.reftime.strftime("%Y%m%d%H%M").encode() == time
        assert found.metadata == {"area": f"VM2,{int(station)}", "product": f"VM2,{int(variable)}"}
        written: Line = found.data
        return written
    if format in DESCRIBED:
        (written,) = re.findall(rb"[0-9]{12},[0-9]+,227,[0-9]+,,x*,000000000", found.data)
        assert (found.reftime, found.data) == (datum_of(written, format).reftime, datum_of(written, format).data)
        return written
    station, variable = (found.metadata[name].removeprefix("VM2,") for name in ("area", "product"))
    value, note = found.data.decode().split(",") if type(found.data) is bytes else found.data.values()
    written = f"{found.reftime:%Y%m%d%H%M},{station},{variable},{value},,{note},000000000".encode()
    assert found == datum_of(written, format)
    return written


def lines_of(dataset: Dataset) -> Content:
    """Return what a dataset holds, as lines; `MISSING` where a segment is."""
    try:
        lines = [line_of(each, dataset.config.format) for each in dataset.query()]
    except SegmentMissing:
        return MISSING
    assert dataset.summary().count == len(lines)
    return sorted(lines)


def random_lines(seed: int, count: int, days: int = 3) -> tuple[Line, ...]:
    """Make lines with different keys over several days."""
    chance = random.Random(seed)
    places = chance.sample([(day, hour, station) for day in range(days) for hour in range(24) for station in range(9)],
                           count)  # fmt: skip
    return tuple(line(*place, chance.randrange(1000), "x" * chance.randrange(40)) for place in places)


def check_index(path: Path) -> None:
    """Ask SQLite whether a copy of the index is sound; and no row may lead outside its segment's file, if there is one.

    A lost index is sound.
    """
    if not (path / "index.sqlite").exists():
        return
    with copied_index(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert differences(connection) == []
        rows = connection.execute(
            "SELECT segment.id, name, segment.size, segment.length, compressed, max(offset + datum.size) FROM datum"
            " LEFT JOIN segment ON segment.id = datum.segment WHERE format NOT IN ('blob', 'odimh5')"
            " GROUP BY datum.segment"
        ).fetchall()
        files = connection.execute(
            "SELECT segment.id, name, printf('%06d.%s', offset, format), datum.size FROM datum"
            " LEFT JOIN segment ON segment.id = datum.segment WHERE format IN ('blob', 'odimh5')"
        ).fetchall()
    for generation, name, number, size in files:
        folder = file_of(path, name, generation)
        assert not folder.exists() or (folder / number).stat().st_size == size, (name, number)
    for generation, name, committed, length, compressed, last in rows:
        assert last <= length, name
        assert compressed or length == committed, name
        file = file_of(path, name, generation)
        assert not file.exists() or committed <= file.stat().st_size, name


def file_of(path: Path, name: str, generation: int) -> Path:
    """Return the path of the file that holds a generation of a segment."""
    place = path / hidden(name, generation)
    return place if place.exists() else path / name


def left_behind(path: Path) -> list[str]:
    """Name the files of other generations that lie beside the segments."""
    patterns = ("[0-9]*/.*", ".[0-9]*", ".archive/*/[0-9]*/.*", ".archive/*/.[0-9]*")
    hidden = (path.glob(pattern) for pattern in patterns)
    return sorted(each.name for found in hidden for each in found if each.name not in (quarantine.FOLDER, REPLACED))


def kept(path: Path) -> list[quarantine.Item]:
    """Return what is in quarantine."""
    with Directory.open(path) as directory:
        return [*quarantine.items(directory)]


@contextlib.contextmanager
def copied_index(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of a dataset's index: SQLite would tidy up the index itself."""
    with tempfile.TemporaryDirectory() as copy:
        for name in ("index.sqlite", "index.sqlite-wal"):
            if (path / name).exists():
                shutil.copyfile(path / name, Path(copy, name))
        with contextlib.closing(sqlite3.connect(Path(copy, "index.sqlite"))) as connection:
            yield connection


def run(path: Path, steps: list[Step], acks: Path, create: dict[str, Any] | None, start: Connection) -> None:
    """Be the process that crashes: open or create, carry out, acknowledge; wait for `start` before all that.

    The file of acknowledgements gets a line of JSON a step: null, or the error that ended it. After an error the lock
    must be free, and what it was does to the next change is told, too.
    """
    file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _wait(start)
    try:
        dataset = ondisk.create(path, create) if create is not None else ondisk.open(path)
    except ondisk.OndiskError as error:
        _acknowledge(file, error)
        return
    with dataset:
        if create is not None:
            _acknowledge(file, None)
        for step in steps:
            try:
                carry_out(dataset, step)
            except ondisk.OndiskError as error:
                _check_lock_is_free(path)
                _acknowledge(file, error, _next_change(dataset))
            else:
                _acknowledge(file, None)


def migrate(path: Path, steps: list[Step], acks: Path, create: dict[str, Any] | None, start: Connection) -> None:
    """Be the process that crashes while it migrates; otherwise as `run`, with one step, whatever `steps` are."""
    _run_one(ondisk.migrate, path, acks, start)


def rebuild(path: Path, steps: list[Step], acks: Path, create: dict[str, Any] | None, start: Connection) -> None:
    """Be the process that crashes while it rebuilds a damaged index; otherwise as `migrate`."""
    _run_one(ondisk.rebuild, path, acks, start)


def adopt(path: Path, steps: list[Step], acks: Path, create: dict[str, Any] | None, start: Connection) -> None:
    """Be the process that crashes while it adopts a dataset of arkimet; otherwise as `migrate`."""
    _run_one(ondisk.adopt, path, acks, start)


def restore(path: Path, steps: list[Step], acks: Path, create: dict[str, Any] | None, start: Connection) -> None:
    """Be the process that crashes while it restores the newest point of `saved`; otherwise as `migrate`."""
    _run_one(lambda path: ondisk.restore(path.parent / "saved", path), path, acks, start)


def _run_one(do: Callable[[Path], object], path: Path, acks: Path, start: Connection) -> None:
    file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _wait(start)
    try:
        do(path)
    except ondisk.OndiskError as error:
        _acknowledge(file, error)
    else:
        _acknowledge(file, None)


def acknowledged(acks: Path) -> list[dict[str, Any] | None]:
    """Read what the process acknowledged, in order; a torn last line is none."""
    if not acks.exists():
        return []
    return [json.loads(each) for each in acks.read_bytes().split(b"\n")[:-1]]


def _check_lock_is_free(path: Path) -> None:
    try:
        descriptor = os.open(path / ".lock", os.O_RDWR)
    except OSError:  # the filesystem has gone
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def _next_change(dataset: Dataset) -> int:
    """Change nothing, and give the exit code of what becomes of it."""
    try:
        dataset.delete('area:"none"')
    except ondisk.OndiskError as error:
        return error.exit_code
    return 0


def _acknowledge(file: int, error: ondisk.OndiskError | None, next_change: int | None = None) -> None:
    said = None if error is None else {"error": type(error).__name__, "code": error.exit_code, "message": str(error),
                                           "done": _done(error), "next": next_change}  # fmt: skip
    os.write(file, json.dumps(said).encode() + b"\n")


def _done(error: ondisk.OndiskError) -> int:
    """Count the data in the batches that went through before an error."""
    result = error.context.get("result")
    return 0 if result is None else result.count


def _wait(start: Connection) -> None:
    """Wait until strace is attached. What an opening looks for besides the dataset, installed formats, is found first.

    Where Yama restricts ptrace to parents, strace is allowed: it is no parent of this process.
    """
    is_known("none")
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
    start.send_bytes(b"ready")
    start.recv_bytes()
