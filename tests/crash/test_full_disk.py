"""A disk that is full: what is there stays, deleting works, and writing goes on once there is space."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from worlds import clock, renew_index

import ondisk
from ondisk import Datum
from ondisk.errors import DiskFull
from ondisk.maintenance.states import State

from .recovery import check_whole
from .workload import CONFIGS, SEG, check_index, datum_of, day_of, left_behind, line, lines_of

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")]

_SIZE = 3 * 1024 * 1024
_FILLER = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mounted"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", path], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def batch(number: int) -> list[bytes]:
    """Make lines of one day that are too long, and too different, to be compressed much."""
    chance = random.Random(number)
    return [line(number % 40, hour, number, number, chance.randbytes(150).hex()) for hour in range(24)]


def append(dataset: ondisk.Dataset, lines: list[bytes]) -> int:
    return dataset.append(datum_of(each, dataset.config.format) for each in lines).imported


def fill(dataset: ondisk.Dataset, first: int) -> list[bytes]:
    """Append until the disk is full; gives what was acknowledged."""
    acked: list[bytes] = []
    for number in range(first, first + 10_000):
        try:
            append(dataset, batch(number))
        except DiskFull as error:
            full = error
            break
        acked += batch(number)
    assert full.exit_code == 51
    assert full.context["result"].count == 0
    return acked


def fill_up(filler: Path) -> None:
    """Take what space there is, to the last byte."""
    with filler.open("ab", buffering=0) as file:
        while True:
            try:
                file.write(bytes(512))
            except OSError:
                break


@pytest.mark.parametrize("format", CONFIGS)
def test_on_a_full_disk_nothing_is_lost_deleting_works_and_writing_goes_on(format: str, small_disk: Path) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    filler.write_bytes(bytes(_FILLER))
    with ondisk.create(path, CONFIGS[format]) as dataset:
        acked = fill(dataset, 0)
        assert len(acked) > 500
        for number in (9000, 9001):  # it stays full, and says so again
            with pytest.raises(DiskFull):
                append(dataset, batch(number) * 30)
        assert lines_of(dataset) == sorted(acked)
        with ondisk.open(path, read_only=True) as reader:
            assert lines_of(reader) == sorted(acked)
        filler.unlink()
        more = fill(dataset, 10_000)
        assert len(more) > 200
        assert lines_of(dataset) == sorted(acked + more)
    check_index(path)
    check_whole(path)  # what did not fit was taken back


@pytest.mark.parametrize("reopened", [False, True], ids=["by the process that filled it", "by another one"])
@pytest.mark.parametrize("format", ["vm2", SEG[0]])
def test_deleting_works_on_a_full_disk(format: str, reopened: bool, small_disk: Path) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    filler.write_bytes(bytes(_FILLER))
    with ondisk.create(path, CONFIGS[format]) as dataset:
        acked = fill(dataset, 0)
        fill_up(filler)
        if not reopened:
            assert dataset.delete('area:"VM2,3"') == 24
            assert dataset.delete('area:"VM2,4"') == 24
    with ondisk.open(path) as dataset:
        if reopened:
            assert dataset.delete('area:"VM2,3"') == 24
            assert dataset.delete('area:"VM2,4"') == 24
        gone = {*batch(3), *batch(4)}
        assert lines_of(dataset) == sorted(each for each in acked if each not in gone)
        filler.unlink()
        assert append(dataset, batch(3)) == 24
    check_index(path)
    check_whole(path)


def test_a_delete_that_changes_more_than_the_log_keeps_space_for_says_so_and_changes_nothing(small_disk: Path) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    filler.write_bytes(bytes(_FILLER))
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        acked = fill(dataset, 0)
        fill_up(filler)
        with pytest.raises(DiskFull, match="full") as caught:
            dataset.delete("")
        assert "fewer data at once" in caught.value.hint
        assert lines_of(dataset) == sorted(acked)
        assert dataset.delete('area:"VM2,3"') == 24
        assert lines_of(dataset) == sorted({*acked} - {*batch(3)})
    check_index(path)
    check_whole(path)


@pytest.mark.parametrize("format", ["vm2", SEG[0]])
def test_a_repack_on_a_full_disk_removes_first_then_rewrites_while_there_is_space(
    format: str, small_disk: Path
) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    filler.write_bytes(bytes(_FILLER))
    with ondisk.create(path, CONFIGS[format]) as dataset:
        # In one commit: the index's log keeps its space, so that what touches so much of it can be deleted.
        many = [each for number in range(60) for each in batch(number)]
        append(dataset, many)
        acked = sorted(many + fill(dataset, 80))
        gone = (b"20261128", b"20261229")  # some in the order of names come first
        for each in gone:
            assert dataset.delete(f"reftime:={each[:4].decode()}-{each[4:6].decode()}-{each[6:].decode()}")
        left = [each for each in acked if day_of(each) not in gone]
        fill_up(filler)
        with ondisk.open(path, read_only=True) as reader:
            report = dataset.repack()
            assert [each.action for each in report].count("delete") == 2
            # Each needs the space of one more segment, which is given back when it is done.
            assert [each.action for each in report].count("repack") > 30
            assert lines_of(reader) == lines_of(dataset) == left
        assert left_behind(path) == []
        assert not any(each.state for each in dataset.check(accurate=True))
    check_index(path)


@pytest.mark.parametrize("format", ["vm2", SEG[0]])
def test_a_repack_without_space_for_any_segment_says_so_and_what_it_removed(format: str, small_disk: Path) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    with ondisk.create(path, CONFIGS[format]) as dataset:
        append(dataset, [each for number in range(0, 400, 40) for each in batch(number)])  # one day, ten times
        append(dataset, batch(0)[:1] + batch(1))
        dataset.delete('area:"VM2,40"')
        dataset.delete("reftime:=2026-11-21")
        unknown = path / "2026" / f"12-24.{CONFIGS[format]['format']}"
        unknown.write_bytes(bytes(100))
        renew_index(path)
        before = lines_of(dataset)
        fill_up(filler)
        with ondisk.open(path, read_only=True), pytest.raises(DiskFull) as caught:
            dataset.repack()
        assert caught.value.exit_code == 51
        done = caught.value.context["report"]
        assert {each.segment.split("/")[1][:5]: each.action for each in done} == {"11-21": "delete", "12-24": "delete"}
        assert not unknown.exists()
        assert lines_of(dataset) == before
        filler.unlink()
        assert [each.action for each in dataset.repack()] == ["repack"]
        assert lines_of(dataset) == before
    with ondisk.open(path) as dataset:
        append(dataset, batch(39))
        assert left_behind(path) == []
        assert not any(each.state for each in dataset.check(accurate=True))


@pytest.mark.parametrize("state", [State.DELETE_AGE, State.MISSING])
@pytest.mark.parametrize("format", ["vm2", "blob"])
def test_a_segment_with_more_data_than_one_commit_has_space_for_is_removed_from_a_full_disk(
    format: str, state: State, small_disk: Path
) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    fields = dict.fromkeys("abcdef", "integer")
    config = CONFIGS["vm2"] if format == "vm2" else {"format": "blob", "index": [*fields], "fields": fields}
    with ondisk.create(path, config | {"step": "yearly", "delete_age": 36_600}) as dataset:
        for number in range(20):  # in many commits: the index's log has no more space than for one of them
            if format == "vm2":
                append(dataset, batch(number))
            else:
                dataset.append(Datum(begin, dict.fromkeys(fields, 2**60 + number), b"x") for _ in range(24))
        (segment,) = path.glob(f"20/2026.{format}")
        if state is State.MISSING:
            segment.rename(small_disk / "away")
        fill_up(filler)
        with pytest.raises(DiskFull):
            dataset.delete("")
        is_old = state is State.DELETE_AGE
        with clock(begin.replace(year=2128).timestamp() if is_old else time.time()):
            (done,) = dataset.repack(by_age=is_old)
        assert done.state == state
        assert len(done.reasons) == 1
        assert (done.action, done.lost) == (("delete", 0) if is_old else ("remove from the index", 480))
        assert dataset.summary().count == 0
        assert not segment.exists()
        assert not dataset.check().findings
    check_index(path)
