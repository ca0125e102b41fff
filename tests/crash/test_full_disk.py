"""A disk that is full: what is there stays, deleting works, and writing goes on once there is space."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from worlds import clock, renew_index

import ondisk
from ondisk import Datum
from ondisk.errors import DatasetNotFound, DiskFull
from ondisk.index import INDEX
from ondisk.index.transaction import Transaction
from ondisk.maintenance import repack
from ondisk.maintenance.maintain import maintain
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


@pytest.mark.check
@pytest.mark.parametrize("format", CONFIGS)
def test_on_a_full_disk_nothing_is_lost_deleting_works_and_writing_goes_on(format: str, small_disk: Path) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    filler.write_bytes(bytes(_FILLER))
    with ondisk.create(path, CONFIGS[format]) as dataset:
        acked = fill(dataset, 0)
        assert len(acked) > 400
        much = [each for number in range(9000, 9030) for each in batch(number)]
        for _ in range(2):  # it stays full, and says so again
            with pytest.raises(DiskFull):
                append(dataset, much)
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


@pytest.mark.check
def test_a_delete_that_changes_more_than_the_log_keeps_space_for_takes_several_commits(small_disk: Path) -> None:
    filler, path = small_disk / "filler", small_disk / "dataset"
    filler.write_bytes(bytes(_FILLER))
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        acked = fill(dataset, 0)
        fill_up(filler)
        assert dataset.delete('area:"VM2,3"') == 24
        assert dataset.delete("") == len(acked) - 24
        assert lines_of(dataset) == []
        dataset.repack()
        assert append(dataset, batch(3)) == 24
        assert lines_of(dataset) == sorted(batch(3))
    check_index(path)
    check_whole(path)


def taken(path: Path) -> int:
    """Return the bytes that a dataset takes on its disk."""
    return sum(each.stat().st_blocks * 512 for each in path.rglob("*"))


def free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bfree * found.f_frsize


FIELDS = {"number": "integer", "name": "text"}
WIDE = {"format": "jsonl", "step": "monthly", "fields": FIELDS, "unique": ["reftime"], "index": ["name"]}


def wide(count: int, first: int = 0, repeat: int = 40) -> Iterator[Datum]:
    """Make data that take much more space in the index than in their segment."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(first, first + count):
        fields = {"number": number, "name": f"{number} " * repeat}
        yield Datum(begin + timedelta(seconds=number), fields, {})


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 48 MiB."""
    path = tmp_path / "mounted"
    path.mkdir()
    size = 48 * 1024 * 1024
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    if request.param == "ext4":
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(size)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("no mkfs.ext4 here")
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        command = ["mount", "-o", "loop", image, path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.check
def test_an_append_that_the_disk_is_too_small_for_gives_its_space_back(disk: Path) -> None:
    path = disk / "dataset"
    with ondisk.create(path, WIDE) as dataset:
        assert dataset.append(wide(100)).imported == 100
        before = free(disk)
        with pytest.raises(DiskFull) as caught:
            dataset.append(wide(100_000, 100))
        assert caught.value.exit_code == 51
        assert "ondisk delete DATASET MATCH --yes" in caught.value.hint
        assert "ondisk repack DATASET --yes" in caught.value.hint
        assert free(disk) > before - 1024 * 1024
        assert dataset.summary().count == 100
        assert dataset.append(wide(1, 200_000)).imported == 1
    check_index(path)


@pytest.mark.check
@pytest.mark.parametrize("reader", [False, True], ids=["alone", "beside a query"])
def test_the_next_opening_gives_back_what_a_reader_or_a_kill_kept(reader: bool, disk: Path) -> None:
    path = disk / "dataset"
    with ondisk.create(path, WIDE) as dataset:
        dataset.append(wide(100))
    before = free(disk)
    if reader:
        with ondisk.open(path, read_only=True) as other, ondisk.open(path) as dataset:
            query = other.query()
            next(query)
            dataset.append(wide(1, 100))
            with pytest.raises(DiskFull):
                dataset.append(wide(100_000, 200))
            query.close()  # type: ignore[attr-defined]
    else:
        killed_while_it_appends(path)
        assert (path / f"{INDEX}-wal").stat().st_size > 10 * 1024 * 1024
    with ondisk.open(path) as dataset:
        assert free(disk) > before - 1024 * 1024
        assert dataset.append(wide(1, 200_000)).imported == 1
    check_index(path)


def killed_while_it_appends(path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            with ondisk.open(path) as dataset:

                def data() -> Iterator[Datum]:
                    yield from wide(25_000, 1000)

                batch = [*data()]
                insert = Transaction.insert

                def killed(self: Any, rows: Any) -> int:
                    insert(self, rows)
                    os.kill(os.getpid(), signal.SIGKILL)
                    return 0

                Transaction.insert = killed  # type: ignore[method-assign]
                dataset.append(batch)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.check
@pytest.mark.parametrize("by", ["repack", "maintain"])
def test_deleting_everything_on_a_full_disk_gives_the_space_back(by: str, disk: Path) -> None:
    path, fields = disk / "dataset", dict.fromkeys("abcdef", "integer")
    begin, empty = datetime(2026, 1, 1, tzinfo=UTC), free(disk)
    config = {"format": "jsonl", "step": "monthly", "fields": fields, "index": ["a", "b"]}

    def numbers(count: int) -> Iterator[Datum]:
        for number in range(count):
            yield Datum(begin + timedelta(seconds=number), dict.fromkeys(fields, number * 7919**3 % 2**60), {})

    with ondisk.create(path, config) as dataset:
        with pytest.raises(DiskFull) as caught:
            dataset.append(numbers(10**7), batch_size=2000)
        stored = caught.value.context["result"].imported
        assert stored > 30_000
        filler = disk / "filler"
        fill_up(filler)
        assert free(disk) < 2 * 1024 * 1024  # ext4 keeps some for itself
        assert dataset.delete("") == stored
        before = free(disk)
        if by == "repack":
            freed = dataset.repack().freed
        else:
            done = maintain(path)
            assert done.error is None
            freed = done.freed
        assert 0 < freed <= free(disk) - before + 4096
        filler.unlink()
        assert free(disk) > empty * 0.6
        assert dataset.append(numbers(1)).imported == 1
        assert dataset.summary().count == 1
        assert not dataset.check().findings
    check_index(path)


@pytest.mark.check
def test_freed_bytes_are_those_that_are_free_now(small_disk: Path) -> None:
    path, backup = small_disk / "dataset", small_disk / "backup"
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        for number in range(60):
            append(dataset, batch(number))
        dataset.delete('area:"VM2,1"')
        with ondisk.open(path, read_only=True) as other:
            query = other.query()
            next(query)
            before = free(small_disk)
            done = dataset.repack()
            assert done.freed == 0
            assert any("older query" in reason for each in done for reason in each.reasons)
            assert free(small_disk) <= before
            query.close()  # type: ignore[attr-defined]
        dataset.delete('area:"VM2,2"')
        backup.mkdir()
        for each in path.glob("2026/*.vm2"):
            os.link(each, backup / each.name)
        assert dataset.repack().freed < 0  # the backup keeps the old file
        shutil.rmtree(backup)
        dataset.delete("reftime:=2026-11-23")
        dataset.delete("reftime:=2026-11-24")
        before = free(small_disk)
        freed = dataset.repack().freed
        assert freed > 4096
        assert free(small_disk) - before >= freed - 4096


class ClosesLate(ThreadPoolExecutor):
    """Closes old files only when all work of a pass is done, as on a busy machine."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.waiting: list[Any] = []

    def submit(self, *work: Any) -> Any:  # type: ignore[override]
        self.waiting.append(work)

    def __exit__(self, *error: object) -> None:  # type: ignore[override]
        for work in self.waiting:
            super().submit(*work)
        super().__exit__(*error)  # type: ignore[arg-type]


@pytest.mark.check
@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ClosesLate])
@pytest.mark.parametrize("format", ["vm2", SEG[0]])
def test_a_repack_on_a_full_disk_removes_first_then_rewrites_while_there_is_space(
    format: str, executor: type[ThreadPoolExecutor], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack, "ThreadPoolExecutor", executor)
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
    with ondisk.create(path, CONFIGS[format] | {"unknown_segments": "delete"}) as dataset:
        append(dataset, [each for number in range(0, 400, 40) for each in batch(number)])  # one day, ten times
        append(dataset, batch(0)[:1] + batch(1))
        dataset.delete('area:"VM2,40"')
        dataset.delete("reftime:=2026-11-21")
        unknown = path / "2026" / f"12-24.{CONFIGS[format]['format']}"
        unknown.touch()
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


@pytest.mark.check
def test_a_rebuild_on_a_full_disk_says_so_and_does_not_go_on_with_a_part_of_the_import_log(
    tmp_path: Path, small_disk: Path
) -> None:
    path = tmp_path / "dataset"
    with ondisk.create(path, CONFIGS["vm2"]) as dataset:
        append(dataset, batch(1))
        before = lines_of(dataset)
    imported = [("folder", f"{number:080}") for number in range(20_000)]
    with closing(sqlite3.connect(path / INDEX)) as index, index:
        index.executemany("INSERT INTO done VALUES (?, ?)", imported)
    with closing(sqlite3.connect(path / INDEX)) as index:
        index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = (path / INDEX).stat().st_size
    assert _SIZE / 2 < size < _SIZE - 100_000
    moved = Path(shutil.copytree(path, small_disk / "dataset"))
    with pytest.raises(DiskFull):
        ondisk.rebuild(moved)
    assert (moved / INDEX).stat().st_size == size
    again = Path(shutil.copytree(moved, tmp_path / "again"))
    ondisk.rebuild(again)
    with closing(sqlite3.connect(again / INDEX)) as index:
        assert index.execute("SELECT source, part FROM done ORDER BY part").fetchall() == imported
    with ondisk.open(again) as dataset:
        dataset.fix()
        assert lines_of(dataset) == before


@pytest.mark.parametrize("format", ["vm2", SEG[0]])
def test_a_backup_to_a_full_disk_leaves_the_points_before_and_goes_on_with_space(
    format: str, small_disk: Path, tmp_path: Path
) -> None:
    filler, target = small_disk / "filler", small_disk / "backup"
    with ondisk.create(tmp_path / "dataset", CONFIGS[format]) as dataset:
        append(dataset, batch(1))
        points = [dataset.backup(target, create=True).point]
        before = lines_of(dataset)
        fill_up(filler)
        append(dataset, batch(2))
        for _ in range(2):
            with pytest.raises(DiskFull) as caught:
                dataset.backup(target)
            assert caught.value.exit_code == 51
            assert "--keep" in caught.value.hint
        assert [each.time for each in ondisk.backup.points(target, verify=True) if not each.damage] == points
        filler.unlink()
        points += [dataset.backup(target).point for _ in range(3)]
        fill_up(filler)
        append(dataset, batch(3))
        with pytest.raises(DiskFull):
            dataset.backup(target)
        # Older points are removed first: that is the space of some indices.
        assert dataset.backup(target, keep=1).removed == points
        assert [each.damage for each in ondisk.backup.points(target, verify=True)] == [[]]
        after = lines_of(dataset)
    ondisk.restore(target, tmp_path / "restored")
    with ondisk.open(tmp_path / "restored") as restored:
        assert lines_of(restored) == after != before


@pytest.mark.check
def test_a_restore_to_a_full_disk_can_be_repeated_with_space(small_disk: Path, tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", CONFIGS["vm2"]) as dataset:
        for number in range(40):
            append(dataset, batch(number))
        dataset.backup(tmp_path / "backup", create=True)
        expected = lines_of(dataset)
    path, filler = small_disk / "restored", small_disk / "filler"
    filler.write_bytes(bytes(_SIZE - 64 * 1024))
    with pytest.raises(DiskFull) as caught:
        ondisk.restore(tmp_path / "backup", path)
    assert "restore again" in caught.value.hint
    with pytest.raises(DatasetNotFound):
        ondisk.open(path)
    filler.unlink()
    assert ondisk.restore(tmp_path / "backup", path).problems == []
    with ondisk.open(path) as restored:
        assert lines_of(restored) == expected
        assert restored.check(accurate=True).is_clean
