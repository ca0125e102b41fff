"""What the processes of these tests do. Each is given a connection, to wait on and to answer by."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from crash.workload import CONFIG, content, datum, line, line_of

import ondisk
from ondisk.datum import Datum

BATCH = 50
NOBODY = 65534


def batch(number: int, format: str = "vm2") -> list[Datum]:
    """Make a batch of `BATCH` data over two days; its number is the value of each datum, and its place among them."""
    return [datum(line(at % 2, number % 24, number // 24 * BATCH + at, number), format) for at in range(BATCH)]


def append_overlapping(path: Path, talk: Connection, writer: int, keys: int, batch_size: int) -> None:
    """Append all keys, in an order of one's own, each with a value that tells the writer."""
    with ondisk.open(path) as dataset:
        order = [(key * (2 * writer + 1)) % keys for key in range(keys)]
        talk.send("ready")
        talk.recv()
        lines = (line(0, key % 24, key // 24, writer) for key in order)
        result = dataset.append((datum(each, dataset.config.format) for each in lines), batch_size=batch_size)
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
    with ondisk.open(path) as dataset, dataset._access._lock.hold("append"):
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
    """Give the number of the batch that a datum is of."""
    return int(line_of(datum, format).split(b",")[3])


def stay_open(path: Path, talk: Connection, lines: list[bytes]) -> None:
    """Append, and keep the dataset open until told to go on."""
    with ondisk.open(path) as dataset:
        dataset.append(datum(each, dataset.config.format) for each in lines)
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
            answer = content(dataset)
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
        before = content(dataset)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            met = [_error(each) for each in (
                lambda: list(dataset.query()), dataset.summary, lambda: dataset.delete(""),
                lambda: dataset.append([datum(line(0, 0, 99, 1))]), dataset.info, dataset.close,
            )]  # fmt: skip
            os.write(writing, ",".join(met).encode())
            os._exit(0)
        os.close(writing)
        met_in_child = os.read(reading, 1000).decode().split(",")
        os.waitpid(child, 0)
        carry_on = dataset.append([datum(line(0, 0, 98, 1))]).imported
        talk.send((met_in_child, carry_on, len(content(dataset)) - len(before)))


def _error(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""
