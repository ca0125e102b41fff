"""Maintenance by Spark says and does what the same does on one machine, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from worlds import EARLIER, KINDS, START, A, B, C, Kind, World, rot

import ondisk
from ondisk import Datum
from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, NeedsCheck, StateError
from ondisk.filesystem import ReadableFile
from ondisk.formats.diskqueue.seg import Seg
from ondisk.maintenance.compare import Scanned
from ondisk.maintenance.fix import fix
from ondisk.maintenance.repack import repack
from ondisk.maintenance.states import Diagnosis, Report, State
from ondisk.segment import ScanResult
from ondisk.spark.executors import answers, scans, writes
from ondisk.workers import work

LZ4, PLAIN, VM2, JSONL = KINDS


@pytest.fixture(params=[*KINDS], ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind, [0, 2, 1, 3])


def test_a_check_says_what_it_says_on_one_machine(spark: Any, world: World) -> None:
    content = bytearray(world.file(B).read_bytes())
    content[world.ends[0] + 3] = 0xFF
    rot(world.file(B), content)
    with ondisk.open(world.path, read_only=True) as dataset:
        seen: list[str] = []
        report = dataset.check(True, spark=spark, progress=seen.append)
        assert report == dataset.check(True)
        assert sorted(seen) == [world.name(A), world.name(B)]
        assert world.states(report)[B] == "CORRUPTED"
        world.file(B).write_bytes(content)  # as another program does: the rows are not about this file
        seen.clear()
        report = dataset.check(True, spark=spark, progress=seen.append)
        assert report == dataset.check(True)
        assert seen == [world.name(A)]
        assert world.states(report)[B] == "UNALIGNED"


def test_a_repack_does_what_it_does_on_one_machine(spark: Any, world: World, tmp_path: Path) -> None:
    world.delete(2)
    other = world.copy(tmp_path / "other")
    report = world.opened(lambda dataset: dataset.repack(spark=spark))
    alone = other.opened(lambda dataset: dataset.repack())
    assert report.segments == alone.segments
    assert report.segments[0].action == "repack"
    assert tree(world.path) == tree(other.path)
    assert world.content() == "013"
    assert world.states(world.check(accurate=True)) == {}


@pytest.mark.check
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no bytes of a process")
def test_executors_read_and_write_the_segments_and_the_program_does_not(spark: Any, create: Any) -> None:
    dataset = create(format="jsonl", step="daily", fields={"number": "integer"})
    dataset.append(
        Datum(START + timedelta(hours=hour), {"number": hour % 2}, {"note": "x" * 200_000}) for hour in range(96)
    )
    dataset.delete("number: 1")
    before = read_and_written()
    report = dataset.repack(spark=spark)
    assert [each.action for each in report] == ["repack"] * 4  # an executor's query may still keep the old files
    assert read_and_written() - before < 4_000_000
    assert dataset.check(accurate=True).is_clean


def read_and_written() -> int:
    """Return the bytes that this process has read and written so far."""
    numbers = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(numbers["rchar"]) + int(numbers["wchar"])


def test_what_an_executor_cannot_read_is_reported_as_on_one_machine(spark: Any, tmp_path: Path) -> None:
    world, other = rotten(tmp_path / "dataset"), rotten(tmp_path / "other")
    report = world.opened(lambda dataset: dataset.repack(spark=spark))
    assert report.segments == other.opened(lambda dataset: dataset.repack()).segments
    assert report.segments[0].state == State.DIRTY | State.CORRUPTED
    assert tree(world.path) == tree(other.path)


def rotten(path: Path) -> World:
    """Make a dataset with a hole and rotten bits in A. Its copy would be read as the file of another program."""
    world = World.make(path, LZ4)
    world.delete(3)
    content = bytearray(world.file(A).read_bytes())
    content[world.ends[1] + 4 : world.ends[2]] = b"\xff" * (world.ends[2] - world.ends[1] - 4)
    rot(world.file(A), content)
    return world


def test_a_fix_does_what_it_does_on_one_machine(spark: Any, world: World, tmp_path: Path) -> None:
    """Of equal data in two segments the same stays; what is damaged, and what is missing, is told in the same words."""
    world.put(C, world.foreign(), newer=False)
    world.put(EARLIER, world.file(A).read_bytes(), newer=False)
    content = bytearray(world.file(B).read_bytes())
    content[world.ends[0] + 3] = 0xFF
    world.file(B).write_bytes(content)
    world.lose_index()
    other = world.copy(tmp_path / "other")
    report = world.opened(lambda dataset: dataset.fix(spark=spark))
    alone = other.opened(lambda dataset: dataset.fix())
    assert report.segments == alone.segments
    assert [each.action for each in report] == ["rescan"] * 4
    assert report.lost == alone.lost > 0, report
    tables = ("datum", "segment", "block", "value", "deletion")
    for table in tables:
        columns = "id, name, format, size, length, count, compressed, damage" if table == "segment" else "*"
        assert world.sql(f"SELECT {columns} FROM {table}") == other.sql(f"SELECT {columns} FROM {table}"), table
    assert world.states(world.check(accurate=True)) == other.states(other.check(accurate=True))
    assert tree(world.path) == tree(other.path)


def test_a_fix_reads_no_segment_that_executors_have_scanned(spark: Any, dirty: World, monkeypatch: Any) -> None:
    """Also where several are put together in one commit."""
    dirty.lose_index()
    read: list[str] = []

    def scan(self: Seg, file: ReadableFile) -> Iterator[ScanResult]:
        read.append(file.path)
        return scan_here(self, file)

    scan_here = Seg.scan
    monkeypatch.setattr(Seg, "scan", scan)
    report = dirty.opened(lambda dataset: dataset.fix(spark=spark))
    assert [each.action for each in report] == ["rescan"] * 2
    assert read == []
    assert dirty.content() == "012"
    assert hidden(dirty) == []


def tree(path: Path) -> dict[str, bytes]:
    """Return the content of all files but those of the index."""
    files = (each for each in path.rglob("*") if each.is_file())
    return {
        each.relative_to(path).as_posix(): each.read_bytes()
        for each in files
        if not each.name.startswith(("index.sqlite", ".lock", ".tide"))
    }


@pytest.fixture
def dirty(tmp_path: Path) -> World:
    """Return a dataset with one segment that a repack rewrites."""
    return World.make(tmp_path / "dataset", LZ4, [0, 2, 1])


def repacked(world: World, spark: Any, meanwhile: Callable[[int], None]) -> Report:
    """Repack by Spark; what others do each time when the segment is written, and not yet committed, is told which."""
    times = 0

    def write_all(access: Access, waiting: list[Diagnosis]) -> Generator[Any, None, None]:
        nonlocal times
        for before, written in writes(spark)(access, waiting):
            assert written is not None
            meanwhile(times)
            times += 1
            yield before, written

    return world.opened(lambda dataset: repack(dataset._access, world.now, write_all=write_all))


def appended(world: World) -> None:
    world.append(3)


def deleted(world: World) -> None:
    world.delete(1)


def rewritten(world: World) -> None:
    assert world.repack().segments[0].action == "repack"


def emptied(world: World) -> None:
    world.delete(0, 1, 2)


@pytest.mark.parametrize(
    ("change", "content"), [(appended, "0123"), (deleted, "02"), (rewritten, "012"), (emptied, "")]
)
def test_a_segment_that_others_change_is_planned_again(spark: Any, dirty: World, change: Any, content: str) -> None:
    seen = []

    def meanwhile(times: int) -> None:
        seen.append(times)
        if times == 0:
            change(dirty)

    repacked(dirty, spark, meanwhile)
    assert len(seen) == (2 if change in (appended, deleted) else 1)
    if change is emptied:
        dirty.repack()
    assert dirty.content() == content
    assert dirty.states(dirty.check(accurate=True)) == {}
    assert hidden(dirty) == []


def test_a_segment_that_others_change_each_time_is_written_under_the_lock_at_last(spark: Any, dirty: World) -> None:
    seen = []

    def meanwhile(times: int) -> None:
        seen.append(times)
        datum = dirty.kind.datum(3)
        dirty.opened(lambda dataset: dataset.append([Datum(datum.reftime, {"area": f"{times}"}, datum.data)]))

    report = repacked(dirty, spark, meanwhile)
    assert seen == [0, 1, 2]
    assert [each.action for each in report] == ["repack"]
    assert dirty.states(dirty.check(accurate=True)) == {}
    with ondisk.open(dirty.path, read_only=True) as dataset:
        assert dataset.summary().count == 8


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_file_that_others_change_while_it_is_scanned_is_scanned_again(
    spark: Any, dirty: World, *, is_deleted: bool
) -> None:
    dirty.lose_index()
    dirty.opened(lambda dataset: None)
    seen = []

    @contextlib.contextmanager
    def scan_all(access: Access, waiting: list[Diagnosis]) -> Iterator[Any]:
        with scans(spark)(access, waiting) as scanning:
            yield map(change, scanning)

    def change(found: tuple[Diagnosis, Scanned | None]) -> tuple[Diagnosis, Scanned | None]:
        before, scanned = found
        assert scanned is not None
        seen.append(before.segment)
        if is_deleted:
            (dirty.path / before.segment).unlink()
        elif len(seen) == 1:
            dirty.append(3)
        return found

    dirty.opened(lambda dataset: fix(dataset._access, scan_all=scan_all))
    assert seen == [dirty.name(A), dirty.name(B)]
    assert dirty.states(dirty.check(accurate=True)) == ({} if is_deleted else {A: "DIRTY"})
    with ondisk.open(dirty.path, read_only=True) as dataset:
        assert not dataset.needs_check
        assert dataset.summary().count == (0 if is_deleted else 6)
    assert hidden(dirty) == []


def test_the_sentinel_ends_a_repack_that_runs(spark: Any, dirty: World) -> None:
    before = tree(dirty.path)
    with pytest.raises(NeedsCheck):
        repacked(dirty, spark, lambda times: dirty.sentinel())
    (dirty.path / "needs-check-do-not-pack").unlink()
    assert tree(dirty.path) == before


@pytest.mark.check
def test_many_segments_are_shared_out_and_their_space_comes_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_LEAST", 800)
    path = many(tmp_path / "dataset")
    with ondisk.open(path) as dataset:
        report = dataset.repack(spark=spark)
        assert [each.action for each in report] == ["repack"] * 10 + ["delete"]
        assert not dataset.check(True, spark=spark).findings
        assert [datum.metadata["n"] for datum in dataset.query()] == [n for n in range(220) if n % 4 and n < 200]
    assert [each.name for each in path.rglob("*.seg.*")] == []


def many(path: Path) -> Path:
    """Make a dataset of ten segments with holes, and one without data."""
    fields = {"n": "integer"}
    with ondisk.create(path, {"format": "seg", "step": "daily", "fields": fields}) as dataset:
        data = [Datum(START + timedelta(hours=n * 24 / 20), {"n": n}, {"text": "x" * n}) for n in range(220)]
        dataset.append(data)
        dataset.delete((dataset.fields.n >= 200) | dataset.fields.n.isin(range(0, 220, 4)))
    return path


def test_dir_segments_and_archives_are_maintained_as_on_one_machine(spark: Any, tmp_path: Path) -> None:
    path, other = blobs(tmp_path / "dataset"), blobs(tmp_path / "other")
    with ondisk.open(path) as dataset, ondisk.open(other) as alone:
        report = dataset.check(True, spark=spark)
        assert report.segments == alone.check(True).segments
        assert [each.segment for each in report] == ["2026/11-21.blob", ".archive/last/2026/11-20.blob"]
        assert dataset.repack(spark=spark).segments == alone.repack().segments
        assert dataset.check(True, spark=spark).segments == alone.check(True).segments
    assert without_times(tree(path)) == without_times(tree(other))


def without_times(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out what differs in any two datasets.

    A move to quarantine depends on its time, and on the inode and the times of the file. The id of a place is random.
    """
    return {
        re.sub(r"(/.quarantine/)[^-]+-", r"\1", name): b""
        if "/.quarantine/" in name and name.endswith(".json")
        else re.sub(rb'"id": "[^"]+"', b"", content)
        if name.endswith(".place")
        else content
        for name, content in files.items()
    }


def blobs(path: Path) -> Path:
    """Make a dataset of two dir segments, one of them in the archive, each with a damaged file and a deleted datum."""
    config = {"format": "blob", "step": "daily", "archive_age": 36_500, "fields": {"n": "integer"}}
    with ondisk.create(path, config) as dataset:
        for day in (0, 1):
            dataset.append(Datum(START + timedelta(days=day, hours=n), {"n": n}, b"x" * n) for n in (3, 2, 1))
        dataset.archive("2026/11-20.blob")
        dataset.delete(dataset.fields.n == 1)
    (path / "2026/11-21.blob/000000.blob").write_bytes(b"yyy")
    (path / ".archive/last/2026/11-20.blob/000000.blob").write_bytes(b"yyy")
    return path


def test_the_archive_is_repacked_by_executors_too(spark: Any, dirty: World) -> None:
    dirty.opened(lambda dataset: dataset.repack())
    dirty.opened(lambda dataset: dataset.archive(dirty.name(A)))
    dirty.delete(1)
    report = dirty.opened(lambda dataset: dataset.repack(spark=spark))
    assert [(each.segment, each.action) for each in report] == [(f".archive/last/{dirty.name(A)}", "repack")]
    assert dirty.content() == "02"
    assert dirty.states(dirty.check(accurate=True)) == {}
    assert list(dirty.path.rglob(".staged/*")) == []


def test_executors_that_cannot_get_at_the_dataset_say_so(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=f"could not check its segments: {tmp_path} holds no dataset") as caught:
        [*answers(spark, str(tmp_path), "check", {"2026/11-20.seg": 1})]
    assert "on every node" in str(caught.value)


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_what_check_names_and_repack_removes(java: str, dirty: World) -> None:
    before = dirty.content()
    program = f"""
import sys, ondisk
from ondisk.filesystem import ReadableFile
from ondisk.formats.diskqueue.seg import Seg
from ondisk.maintenance.fix import fix
from ondisk.maintenance.repack import repack
from ondisk.spark import session
from ondisk.spark.executors import scans, writes

spark = session("local[1]", spark__driver__extraJavaOptions={java!r}, spark__ui__enabled="false")

def write_all(access, waiting):
    for each in writes(spark)(access, waiting):
        print("written", flush=True)
        sys.stdin.read()
        yield each

with ondisk.open({str(dirty.path)!r}) as dataset:
    repack(dataset._access, write_all=write_all)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as driver:
        assert driver.stdout.readline() == b"written\n"
        (left,) = dirty.path.glob(".staged/*")
        assert dirty.states(dirty.check()) == {A: "DIRTY"}  # a running job is not reported
        os.kill(driver.pid, signal.SIGKILL)
    assert dirty.content() == before
    (named,) = (each for each in dirty.check() if each.segment == f".staged/{left.name}")
    assert (named.state, named.action) == (State.DELETED, "delete")
    assert named.freed == sum(each.stat().st_size for each in left.iterdir() if each.name != ".lock") > 0
    removed = next(each for each in dirty.repack() if each.segment == f".staged/{left.name}")
    assert (removed.action, removed.freed) == ("delete", named.freed)
    assert dirty.content() == before
    assert dirty.states(dirty.check(accurate=True)) == {}
    assert hidden(dirty) == []


def test_a_check_by_spark_is_an_accurate_one_of_everything(spark: Any, dirty: World) -> None:
    with ondisk.open(dirty.path) as dataset:
        for options in ({"accurate": False}, {"accurate": True, "max_duration": 1}):
            with pytest.raises(InvalidInput):
                dataset.check(**options, spark=spark)


@pytest.mark.slow
@pytest.mark.parametrize("master", ["local[x]", "local[0]"])
def test_a_master_that_spark_does_not_know_is_reported_in_words(java: str, dirty: World, master: str) -> None:
    command = [sys.executable, "-m", "ondisk", "check", str(dirty.path), "--accurate", "--spark", master]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == StateError.exit_code, done.stderr
    assert "ondisk: error: Spark did not start: " in done.stderr
    assert "Traceback" not in done.stderr


def hidden(world: World) -> list[str]:
    """Name what is left of generations and of jobs."""
    return [each.name for each in world.path.rglob(".*") if each.name not in (".lock", ".staged", ".tide")]
