"""Several processes and threads write to one dataset."""

from __future__ import annotations

import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crash.recovery import check_whole
from crash.workload import CONFIG, CONFIGS, REPLACING, SEG, datum_of, line, lines_of

import ondisk
from ondisk.errors import LockError

from . import workers
from .conftest import Start

WRITERS, KEYS = 8, 241  # a prime: every writer has all keys, each in an order of its own


@pytest.mark.parametrize(
    ("format", "replace", "batch_size"),
    [("vm2", replace, batch_size) for replace in ("no", "yes") for batch_size in (7, 1000)]
    + [(format, replace, 7) for format in SEG for replace in ("no", "yes")],
)
def test_eight_processes_that_append_the_same_keys_store_each_exactly_once(
    format: str, replace: str, batch_size: int, tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "dataset"
    # A lock is no queue: of eight that wait on a busy machine, one may wait for long.
    ondisk.create(path, {**CONFIGS[format], "replace": replace, "lock_timeout": 50}).close()
    writers = [start(workers.append_overlapping, path, number, KEYS, batch_size) for number in range(WRITERS)]
    for each in writers:
        assert each.hear() == "ready"
    for each in writers:
        each.go()
    results = [each.hear() for each in writers]
    imported, duplicates, replaced, refused = (sum(column) for column in zip(*results, strict=True))
    assert imported == KEYS
    assert refused == 0
    assert (replaced, duplicates) == ((7 * KEYS, 0) if replace == "yes" else (0, 7 * KEYS))
    with ondisk.open(path) as dataset:
        lines = lines_of(dataset)
        assert len({each.rsplit(b",", 4)[0] for each in lines}) == len(lines) == KEYS
        assert dataset.summary().count == KEYS
    with sqlite3.connect(path / "index.sqlite") as index:  # what was replaced was told, one change a datum
        assert index.execute("SELECT count(*) FROM deletion").fetchone() == (replaced,)
        if format in SEG:
            assert index.execute("SELECT count FROM segment").fetchall() == [(imported + replaced,)]
    index.close()
    check_whole(path)


def test_what_was_written_last_has_replaced_all_before(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "dataset"
    ondisk.create(path, REPLACING).close()
    for number in (3, 1, 2):  # one after the other
        writer = start(workers.append_overlapping, path, number, KEYS, 100)
        writer.hear()
        writer.go()
        writer.hear()
        with ondisk.open(path, read_only=True) as dataset:
            assert {workers.value(each) for each in dataset.query()} == {number}


def test_a_process_killed_while_it_held_the_lock_blocks_nobody(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "dataset"
    ondisk.create(path, {**CONFIG, "lock_timeout": 0}).close()
    holder = start(workers.hold_lock, path)
    holder.hear()
    with ondisk.open(path) as dataset:
        with pytest.raises(LockError):
            dataset.append([datum_of(line(0, 0, 1, 1))])
        holder.process.kill()
        holder.process.join()
        assert dataset.append([datum_of(line(0, 0, 1, 1))]).imported == 1


def test_who_waits_longer_than_lock_timeout_is_reported_who_holds_the_lock(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "dataset"
    ondisk.create(path, {**CONFIG, "lock_timeout": 0.2}).close()
    holder = start(workers.hold_lock, path)
    pid = holder.hear()
    with ondisk.open(path) as dataset:
        for _ in range(2):  # the first wait did not erase who holds it
            with pytest.raises(LockError) as caught:
                dataset.append([datum_of(line(0, 0, 1, 1))])
            assert caught.value.exit_code == 40
            assert f"process {pid} on {socket.gethostname()} (append, since " in caught.value.message
            assert caught.value.context["holder"]["pid"] == pid
        assert lines_of(dataset) == []  # reading needs no lock
        holder.go()
        holder.end()
        assert dataset.append([datum_of(line(0, 0, 1, 1))]).imported == 1


@pytest.mark.check
def test_of_several_processes_that_create_one_path_one_succeeds(tmp_path: Path, start: Start) -> None:
    for round, count in enumerate((2, 8, 8, 4)):
        path = tmp_path / "new" / f"{round}"
        creators = [start(workers.create, path) for _ in range(count)]
        for each in creators:
            each.hear()
        for each in creators:
            each.go()
        assert sorted(each.hear() for each in creators) == ["DatasetExists"] * (count - 1) + ["created"]
        with ondisk.open(path) as dataset:
            assert dataset.append([datum_of(line(0, 0, 1, 1))]).imported == 1


@pytest.mark.check
def test_threads_share_a_dataset(tmp_path: Path) -> None:
    threads, rounds = 6, 12
    barrier = threading.Barrier(threads)
    with ondisk.create(tmp_path / "dataset", CONFIG) as dataset:

        def work(thread: int) -> None:
            barrier.wait()
            for round in range(rounds):
                mine = [datum_of(line(round % 3, round, 10 * thread + at, thread)) for at in range(10)]
                assert dataset.append(mine).imported == 10
                seen = [each for each in dataset.query() if workers.value(each) == thread]
                assert len(seen) == 10 * (round + 1)
                location = seen[-1].location
                assert location is not None
                assert dataset.read(location) == seen[-1]
                assert dataset.summary().count % 10 == 0

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, thread) for thread in range(threads)]:
                done.result()
        assert len(lines_of(dataset)) == threads * rounds * 10


def test_two_datasets_of_one_path_in_one_process_take_turns(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", CONFIG) as one, ondisk.open(tmp_path / "dataset") as other:
        barrier = threading.Barrier(2)

        def work(dataset: ondisk.Dataset, station: int) -> None:
            barrier.wait()
            for round in range(20):
                assert dataset.append([datum_of(line(0, round, station, 1))]).imported == 1

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(work, one, 1), pool.submit(work, other, 2)]:
                done.result()
        assert lines_of(one) == lines_of(other)
        assert len(lines_of(one)) == 40


def test_a_forked_child_may_not_use_its_parents_dataset(tmp_path: Path, start: Start) -> None:
    ondisk.create(tmp_path / "dataset", CONFIG).close()
    met, carried_on, more = start(workers.use_in_fork, tmp_path / "dataset").hear()
    assert met == ["StateError"] * 5 + [""]  # closing is allowed, and harms nobody
    assert (carried_on, more) == (1, 1)


def test_a_writer_goes_on_with_the_index_that_another_one_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    with ondisk.create(path, CONFIG) as dataset:
        dataset.append([datum_of(line(0, 0, 1, 1))])
        (path / "index.sqlite").unlink()
        with ondisk.open(path) as other:
            other.append([datum_of(line(0, 0, 2, 1))])
            dataset.append([datum_of(line(0, 0, 3, 1))])
            other.append([datum_of(line(0, 0, 4, 1))])
            assert lines_of(dataset) == lines_of(other) == [line(0, 0, station, 1) for station in (2, 3, 4)]
    with ondisk.open(path) as dataset:
        assert dataset.needs_check
        assert len(lines_of(dataset)) == 3
