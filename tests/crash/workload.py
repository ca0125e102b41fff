"""What a crashing process does, and what a dataset must hold after each step of it.

A workload is a list of steps. The process that is about to crash carries them out and acknowledges each, in a file of
its own, after the call returned. `Model` carries them out on a dict; what the dataset holds after the crash must be
the model after the acknowledged steps, or after one more: a step is whole or absent.

A datum is written down as a line of VM2, in whatever format it is stored: `datum` and `line_of` turn one into the
other.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import shutil
import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import filelock  # noqa: F401  ondisk would import it, and the format, in the middle of a sweep

import ondisk
import ondisk.formats.diskqueue.seg
import ondisk.formats.vm2
import ondisk.index.migrations
import ondisk.maintenance.migrate
from ondisk.dataset import Dataset
from ondisk.datum import Datum

ondisk.index.migrations.head()  # imports Alembic, too

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
SEG = ["seg lz4", "seg plain"]
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
class Delete:
    """Delete the data of one area: the text of a match, and what it means."""

    station: int


Step = Append | Delete


def line(day: int, hour: int, station: int, value: int, note: str = "") -> Line:
    """Make a line of VM2; `value` and `note` are what a replacement changes."""
    return (START + timedelta(days=day, hours=hour)).strftime("%Y%m%d%H%M").encode() + (
        f",{station},227,{value},,{note},000000000".encode()
    )


def key(line: Line) -> bytes:
    """Give what `unique` compares: time, station and variable."""
    return b",".join(line.split(b",", 3)[:3])


class Model:
    """A dataset as a dict: key → line."""

    def __init__(self, *, replace: bool) -> None:
        self.replace = replace
        self.data: dict[bytes, Line] = {}

    def carry_out(self, step: Step) -> Iterator[Content]:
        """Change the data by a step; gives what there is after each of its commits."""
        match step:
            case Append(lines, batch_size):
                for begin in range(0, max(1, len(lines)), batch_size):
                    for each in lines[begin : begin + batch_size]:
                        if self.replace or key(each) not in self.data:
                            self.data[key(each)] = each
                    yield self.content()
            case Delete(station):
                self.data = {name: each for name, each in self.data.items() if int(name.split(b",")[1]) != station}
                yield self.content()

    def content(self) -> Content:
        return sorted(self.data.values())


class Story:
    """What a dataset held before, and the steps that a process then takes on it."""

    def __init__(self, before: Sequence[Step], steps: Sequence[Step], *, replace: bool = False) -> None:
        self.before = before
        self.steps = list(steps)
        self.replace = replace
        model = Model(replace=replace)
        for step in before:
            deque(model.carry_out(step), maxlen=0)
        self._after = [[model.content()]] + [list(model.carry_out(step)) for step in steps]

    def possible(self, acked: int) -> list[Content]:
        """Give what the dataset may hold after so many acknowledged steps: that, or some of the next one's commits."""
        return [self._after[acked][-1], *(self._after[acked + 1] if acked < len(self.steps) else [])]

    @property
    def end(self) -> Content:
        return self._after[-1][-1]


def carry_out(dataset: Dataset, step: Step) -> None:
    match step:
        case Append(lines, batch_size):
            dataset.append((datum(each, dataset.config.format) for each in lines), batch_size=batch_size)
        case Delete(station):
            dataset.delete(f'area:"VM2,{station}"')


def datum(line: Line, format: str = "vm2") -> Datum:
    """Make the datum that a line stands for; in seg data are a mapping or bytes, by turns."""
    time = datetime.strptime(line[:12].decode(), "%Y%m%d%H%M").replace(tzinfo=UTC)
    if format == "vm2":
        return Datum(time, {}, line)
    _, station, variable, value, _, note, _ = line.decode().split(",")
    as_bytes = int(value) % 2
    data = f"{value},{note}".encode() if as_bytes else {"value": int(value), "note": note}
    return Datum(time, {"area": f"VM2,{station}", "product": f"VM2,{variable}"}, data)


def line_of(found: Datum, format: str = "vm2") -> Line:
    """Give the line that a datum stands for; its metadata must fit its data."""
    if format == "vm2":
        time, station, variable, _ = found.data.split(b",", 3)
        assert found.reftime.strftime("%Y%m%d%H%M").encode() == time
        assert found.metadata == {"area": f"VM2,{int(station)}", "product": f"VM2,{int(variable)}"}
        written: Line = found.data
        return written
    station, variable = (found.metadata[name].removeprefix("VM2,") for name in ("area", "product"))
    value, note = found.data.decode().split(",") if type(found.data) is bytes else found.data.values()
    written = f"{found.reftime:%Y%m%d%H%M},{station},{variable},{value},,{note},000000000".encode()
    assert found == datum(written, format)
    return written


def content(dataset: Dataset) -> Content:
    """Give what a dataset holds, as lines."""
    lines = [line_of(each, dataset.config.format) for each in dataset.query()]
    assert dataset.summary().count == len(lines)
    return sorted(lines)


def random_lines(seed: int, count: int, days: int = 3) -> tuple[Line, ...]:
    """Make lines with different keys over several days."""
    chance = random.Random(seed)
    places = chance.sample([(day, hour, station) for day in range(days) for hour in range(24) for station in range(9)],
                           count)  # fmt: skip
    return tuple(line(*place, chance.randrange(1000), "x" * chance.randrange(40)) for place in places)


def check_index(path: Path) -> None:
    """Ask SQLite whether a copy of the index is sound; and no row may lead outside its segment's file."""
    with copied_index(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute(
            "SELECT segment.name, segment.size, segment.length, compressed, max(offset + datum.size) FROM datum"
            " LEFT JOIN segment ON segment.id = datum.segment GROUP BY datum.segment"
        ).fetchall()
    for name, committed, length, compressed, last in rows:
        assert last <= length, name
        assert compressed or length == committed, name
        assert committed <= (path / name).stat().st_size, name


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

    The file of acknowledgements gets a line of JSON a step: null, or the error that ended it.
    """
    _let_others_trace_me()
    file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start.recv_bytes()
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
                _acknowledge(file, error)
            else:
                _acknowledge(file, None)


def migrate(path: Path, steps: list[Step], acks: Path, create: dict[str, Any] | None, start: Connection) -> None:
    """Be the process that crashes while it migrates; otherwise as `run`, with one step, whatever `steps` are."""
    _let_others_trace_me()
    file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start.recv_bytes()
    try:
        ondisk.migrate(path)
    except ondisk.OndiskError as error:
        _acknowledge(file, error)
    else:
        _acknowledge(file, None)


def acknowledged(acks: Path) -> list[dict[str, Any] | None]:
    """Read what the process acknowledged, in order; a torn last line is none."""
    if not acks.exists():
        return []
    return [json.loads(each) for each in acks.read_bytes().split(b"\n")[:-1]]


def _acknowledge(file: int, error: ondisk.OndiskError | None) -> None:
    said = None if error is None else {"error": type(error).__name__, "code": error.exit_code, "message": str(error),
                                           "done": _done(error)}  # fmt: skip
    os.write(file, json.dumps(said).encode() + b"\n")


def _done(error: ondisk.OndiskError) -> int:
    """Count the data in the batches that went through before an error."""
    result = error.context.get("result")
    return 0 if result is None else result.count


def _let_others_trace_me() -> None:
    """Where Yama restricts ptrace to parents, allow strace, which is no parent of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
