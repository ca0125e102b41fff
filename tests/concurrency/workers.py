"""What the processes of these tests do. Each is given a connection, to wait on and to answer by."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from crash.workload import CONFIG, datum_of, key, line, line_of, lines_of, segment_of

import ondisk
from ondisk.datum import Datum, from_microseconds
from ondisk.errors import DatumNotFound, SegmentMissing
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import find
from ondisk.segments import generations
from ondisk.segments.file_facts import Committed

BATCH = 50
NOBODY = 65534


def batch(number: int, format: str = "vm2", added: int = 0) -> list[Datum]:
    """Make a batch of `BATCH` data over two days; its number is the value of each datum, and its place among them.

    Args:
        added: to the value, for data that replace those of the same number.
    """
    return [
        datum_of(line(at % 2, number % 24, number // 24 * BATCH + at, number + added), format) for at in range(BATCH)
    ]


def append_overlapping(path: Path, talk: Connection, writer: int, keys: int, batch_size: int) -> None:
    """Append all keys, in an order of one's own, each with a value that tells the writer."""
    with ondisk.open(path) as dataset:
        order = [(key * (2 * writer + 1)) % keys for key in range(keys)]
        talk.send("ready")
        talk.recv()
        lines = (line(0, key % 24, key // 24, writer) for key in order)
        result = dataset.append((datum_of(each, dataset.config.format) for each in lines), batch_size=batch_size)
        talk.send((result.imported, result.duplicates, result.replaced, result.refused))


def create(path: Path, talk: Connection) -> None:
    talk.send("ready")
    talk.recv()
    try:
        ondisk.create(path, CONFIG).close()
    except ondisk.OndiskError as error:
        talk.send(type(error).__name__)
    else:
        talk.send("created")


def hold_lock(path: Path, talk: Connection) -> None:
    """Hold the writers' lock until told to go on."""
    with contextlib.closing(Directory.open(path)) as directory, WritersLock(directory).hold("append"):
        talk.send(os.getpid())
        talk.recv()


def write_and_delete(path: Path, talk: Connection, rounds: int) -> None:
    """Append batches, each whole, and delete those before the last few; say how many rounds were made."""
    with ondisk.open(path) as dataset:
        talk.send("ready")
        talk.recv()
        for number in range(rounds):
            dataset.append(batch(number, dataset.config.format))
            if number >= 5:
                old = [each.location for each in dataset.query() if value(each, dataset.config.format) == number - 5]
                dataset.delete([each for each in old if each is not None])
        talk.send(rounds)


def value(datum: Datum, format: str = "vm2") -> int:
    """Return the number of the batch that a datum is of."""
    return int(line_of(datum, format).split(b",")[3])


def stay_open(path: Path, talk: Connection, lines: list[bytes]) -> None:
    """Append, and keep the dataset open until told to go on."""
    with ondisk.open(path) as dataset:
        dataset.append(datum_of(each, dataset.config.format) for each in lines)
        talk.send("appended")
        talk.recv()


def read_as(path: Path, talk: Connection, user: int) -> None:
    """Read everything as a user without any right to write."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    answer: Any
    try:
        with ondisk.open(path, read_only=True) as dataset:
            answer = lines_of(dataset)
    except ondisk.OndiskError as error:
        answer = error
    try:
        with ondisk.open(path) as dataset:
            dataset.delete("")
    except ondisk.errors.ReadOnly:
        talk.send(answer)
    else:
        talk.send("wrote what it may not write")


def use_in_fork(path: Path, talk: Connection) -> None:
    """Open a dataset, fork, and say what the child met when it used it, call by call."""
    with ondisk.open(path) as dataset:
        before = lines_of(dataset)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            met = [_error(each) for each in (
                lambda: list(dataset.query()), dataset.summary, lambda: dataset.delete(""),
                lambda: dataset.append([datum_of(line(0, 0, 99, 1))]), dataset.info, dataset.close,
            )]  # fmt: skip
            os.write(writing, ",".join(met).encode())
            os._exit(0)
        os.close(writing)
        met_in_child = os.read(reading, 1000).decode().split(",")
        os.waitpid(child, 0)
        carry_on = dataset.append([datum_of(line(0, 0, 98, 1))]).imported
        talk.send((met_in_child, carry_on, len(lines_of(dataset)) - len(before)))


def _error(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


REPLACED = 10_000
"""Added to the value of data that replaced those of a batch."""


def change_and_repack(path: Path, talk: Connection, rounds: int) -> None:
    """Append batches, replace some, delete those before the last few, repack; say how many segments were repacked."""
    repacked = 0
    with ondisk.open(path) as dataset:
        format = dataset.config.format
        talk.send("ready")
        talk.recv()
        for number in range(rounds):
            dataset.append(batch(number, format))
            if number % 2:
                dataset.append(batch(number, format, REPLACED))
            if number >= 4:
                old = [each.location for each in dataset.query() if value(each, format) % REPLACED == number - 4]
                dataset.delete([each for each in old if each is not None])
            if number % 8 == 7:
                dataset.delete("")
            if number % 2 or number % 8 == 0:
                repacked += sum(each.action is not None for each in dataset.repack())
        talk.send(repacked)
        talk.recv()


def change_and_archive(path: Path, talk: Connection, rounds: int) -> None:
    """Append batches, also to archived days, replace some, archive, unarchive, repack, delete; say how many moves."""
    moved = 0
    with ondisk.open(path) as dataset:
        format = dataset.config.format
        first, second = (str(segment_of(dataset, day).relative_to(path)) for day in (0, 1))
        talk.send("ready")
        talk.recv()
        for number in range(rounds):
            dataset.append(batch(number, format))
            match number % 4:
                case 0:
                    moved += len(dataset.archive(first))
                case 1:
                    dataset.append(batch(number - 1, format, REPLACED))  # half of it is archived
                    moved += len(dataset.archive(first, second))
                case 2:
                    dataset.append(batch(number, format, REPLACED))
                    dataset.repack()
                    moved += len(dataset.unarchive(second, first))
                case _:  # nothing is archived: a delete is one commit
                    old = [each.location for each in dataset.query() if value(each, format) % REPLACED < number - 1]
                    dataset.delete([each for each in old if each is not None])
                    dataset.repack()
        talk.send(moved)
        talk.recv()


def read_archives_in_all_ways(path: Path, talk: Connection) -> None:
    """Query with and without a sort, look up, count and pass on bytes, until told to end; say how often."""

    def read(dataset: ondisk.Dataset, format: str, chance: random.Random, counts: Counter[str]) -> None:
        data = list(dataset.query())
        _check_state([line_of(each, format) for each in data], 6)
        in_order = list(dataset.query(sort="-reftime"))
        assert [each.reftime for each in in_order] == sorted((each.reftime for each in in_order), reverse=True)
        _check_state([line_of(each, format) for each in in_order], 6)
        _check_state(lines_in(dataset, b"".join(dataset.payloads())), 6)
        summary = dataset.summary(values=None)
        assert summary.count % BATCH == 0
        assert sum(count for _, count in summary.fields["area"].values) == summary.count
        for each in chance.sample(data, min(len(data), 10)):
            found = [line_of(other, format) for other in dataset.query(reftime=each.reftime, **each.metadata)]
            assert len(found) < 2
            if not found:
                left = {value(other, format) % REPLACED for other in dataset.query()}
                assert value(each, format) % REPLACED not in left
            counts["found by key" if found else "gone by key"] += 1
        counts["archived"] += any(each.location and each.location.segment.startswith(".") for each in data)

    _read_until_told(path, talk, read)


def archive_all(path: Path, talk: Connection, days: int) -> None:
    """Archive days that others archive, too."""
    with ondisk.open(path) as dataset:
        talk.send("ready")
        talk.recv()
        for day in range(days):
            with contextlib.suppress(SegmentMissing):  # the other was faster
                dataset.archive(str(segment_of(dataset, day).relative_to(path)))
        talk.send("done")


def read_in_all_ways(path: Path, talk: Connection) -> None:
    """Query, look up, read at locations and pass on bytes, until told to end; say how often, or what was wrong."""

    def read(dataset: ondisk.Dataset, format: str, chance: random.Random, counts: Counter[str]) -> None:
        data = list(dataset.query())
        _check_state([line_of(each, format) for each in data])
        _check_state(lines_in(dataset, b"".join(dataset.payloads())))
        for each in chance.sample(data, min(len(data), 40)):
            found = list(dataset.query(reftime=each.reftime, **each.metadata))
            assert len(found) < 2
            counts["found by key" if found else "gone by key"] += 1
            for other in found:
                assert key(_checked(line_of(other, format))) == key(line_of(each, format))
            try:
                _checked(line_of(dataset.read(each.location), format))
            except DatumNotFound:
                counts["gone by location"] += 1
            else:
                counts["found by location"] += 1

    _read_until_told(path, talk, read)


def _read_until_told(
    path: Path, talk: Connection, read: Callable[[ondisk.Dataset, str, random.Random, Counter[str]], None]
) -> None:
    """Read again and again until told to end; say how often what was met, or what was wrong."""
    counts: Counter[str] = Counter()
    chance = random.Random(os.getpid())
    with ondisk.open(path, read_only=True) as dataset:
        talk.send("ready")
        talk.recv()
        try:
            while not talk.poll():
                read(dataset, dataset.config.format, chance, counts)
                counts["rounds"] += 1
        except Exception as error:
            talk.send("".join(traceback.format_exception(error)))
        else:
            talk.send(counts)


def lines_in(dataset: ondisk.Dataset, content: bytes) -> list[bytes]:
    """Return the lines of the data in bytes that `payloads` returned."""
    format = find(dataset.config.format)(dataset.config)
    found = []
    for each in format.parse(io.BytesIO(content), 10_000):
        assert not each.refused
        assert not each.damage
        for reftime, metadata, content in zip(
            each.reftimes, each.metadata, format.load(each.payloads).data, strict=True
        ):
            found.append(line_of(Datum(from_microseconds(reftime), dict(metadata), content), format.name))
    return found


def _check_state(lines: list[bytes], most: int = 5) -> None:
    """Each batch is there whole, all of it replaced or none; not more of them than `most`, one behind the other."""
    values = Counter(int(_checked(each).split(b",")[3]) for each in lines)
    assert set(values.values()) <= {BATCH}, values
    numbers = sorted(each % REPLACED for each in values)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True, values
    assert len(numbers) <= most, values


def _checked(line_: bytes) -> bytes:
    """Check that a line is of a batch."""
    station, number = int(line_.split(b",")[1]), int(line_.split(b",")[3]) % REPLACED
    expected = line(station % BATCH % 2, number % 24, station, 0)
    assert key(line_) == key(expected), line_
    assert station // BATCH == number // 24, line_
    return line_


def die_before_the_rename(path: Path, talk: Connection, name: str | None = None) -> None:
    """Repack, or archive a segment, and be killed between the commit of its new generation and its renaming."""
    complete = generations.complete

    def die(directory: Directory, name: str, generation: int, committed: Committed) -> None:
        if generations.waiting(directory, name, generation, committed) is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        complete(directory, name, generation, committed)

    generations.complete = die
    with ondisk.open(path) as dataset:
        if name is None:
            dataset.repack()
        else:
            dataset.archive(name)


def die_before_the_drop(path: Path, talk: Connection, name: str) -> None:
    """Archive a segment, and be killed after the commit, before the old file loses its name."""
    generations.leave = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with ondisk.open(path) as dataset:
        dataset.archive(name)
