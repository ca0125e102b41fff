"""Readers beside a writer: never an error, never wrong bytes, always one whole state."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crash.recovery import check_whole
from crash.workload import CONFIG, CONFIGS, datum_of, line, line_of, lines_of

import ondisk

from . import workers
from .conftest import Start

LINES = sorted(line(day, 0, station, 1) for day in range(2) for station in range(5))


@pytest.mark.check
@pytest.mark.parametrize("name", CONFIGS)
def test_readers_beside_a_writer_see_whole_batches_right_bytes_and_no_error(
    name: str, tmp_path: Path, start: Start
) -> None:
    path, rounds = tmp_path / "dataset", 40
    config = CONFIGS[name]
    format = config["format"]
    ondisk.create(path, config).close()
    writer = start(workers.write_and_delete, path, rounds)
    writer.hear()
    writer.go()
    last = seen = 0
    with ondisk.open(path, read_only=True) as dataset:
        while not writer.talk.poll():
            data = list(dataset.query())
            batches = Counter(workers.value(each, format) for each in data)
            assert set(batches.values()) <= {workers.BATCH}  # whole, or not there
            if batches:
                assert min(batches) >= last  # time runs forward
                last, seen = min(batches), seen + 1
                assert sorted(batches) == list(range(min(batches), max(batches) + 1))
            for each in data[::37]:
                written = line_of(each, format)
                number, station = workers.value(each, format), int(written.split(b",")[1])
                assert written == line(station % workers.BATCH % 2, number % 24, station, number)
            assert dataset.summary().count % workers.BATCH == 0
        assert writer.hear() == rounds
        assert len({workers.value(each, format) for each in dataset.query()}) == 5
    assert seen > 0
    check_whole(path)


@pytest.mark.check
@pytest.mark.parametrize("name", CONFIGS)
def test_a_query_sees_what_was_there_when_it_began(name: str, tmp_path: Path) -> None:
    path, config = tmp_path / "dataset", CONFIGS[name]
    format = config["format"]
    with ondisk.create(path, config) as dataset, ondisk.open(path) as other:
        for number in range(60):
            dataset.append(workers.batch(number, format))
        query = dataset.query()
        first = next(query)
        assert other.delete("") == 60 * workers.BATCH
        other.append([datum_of(line(0, 0, 7777, 7777), format)])
        dataset.append([datum_of(line(1, 0, 7778, 7777), format)])
        rest = Counter(workers.value(each, format) for each in (first, *query))
        assert rest == dict.fromkeys(range(60), workers.BATCH)
        assert [workers.value(each, format) for each in dataset.query()] == [7777, 7777]


@contextmanager
def mounted_read_only(path: Path, place: Path) -> Iterator[Path]:
    place.mkdir()
    done = subprocess.run(["mount", "--bind", "-o", "ro", path, place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no bind mounts here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


SITUATIONS = ["beside a living writer", "after it closed", "after it was killed", "without -wal and -shm"]


def bring_about(situation: str, path: Path, start: Start) -> None:
    """Have a dataset written, and its writer in a situation."""
    ondisk.create(path, CONFIG).close()
    writer = start(workers.stay_open, path, LINES)
    assert writer.hear() == "appended"
    if situation == "beside a living writer":
        return
    if situation == "after it was killed":
        writer.process.kill()
        writer.process.join()
        return
    writer.go()
    writer.end()
    if situation == "without -wal and -shm":
        for name in ("index.sqlite-wal", "index.sqlite-shm"):
            (path / name).unlink()


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing user takes root")
def test_a_user_without_write_permission_can_query(situation: str, public_path: Path, start: Start) -> None:
    path = public_path / "dataset"
    bring_about(situation, path, start)
    before = sorted(each.name for each in path.iterdir())
    assert start(workers.read_as, path, workers.NOBODY).hear() == LINES
    assert sorted(each.name for each in path.iterdir()) == before


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_read_only_mount_can_be_queried(situation: str, public_path: Path, start: Start) -> None:
    path = public_path / "dataset"
    bring_about(situation, path, start)
    with mounted_read_only(path, public_path / "mounted") as place:
        for user in (workers.NOBODY, 0):
            assert start(workers.read_as, place, user).hear() == LINES
        with ondisk.open(place, read_only=True) as dataset:
            assert lines_of(dataset) == LINES


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_writer_goes_on_after_readers_in_any_situation(situation: str, tmp_path: Path, start: Start) -> None:
    path = tmp_path / "dataset"
    bring_about(situation, path, start)
    with ondisk.open(path, read_only=True) as reader:
        assert lines_of(reader) == LINES
        with ondisk.open(path) as dataset:
            dataset.append([datum_of(line(9, 0, 1, 1))])
        assert len(lines_of(reader)) == len(LINES) + 1
