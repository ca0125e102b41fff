"""Check: reads only; with `accurate` it finds every difference between data and index; in slices it remembers."""

from __future__ import annotations

import io
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from concurrency import workers
from concurrency.conftest import Start
from concurrency.test_readers import mounted_read_only
from worlds import KINDS, START, A, B, Kind, World, change_config, content, lose_index, rot

import ondisk
import ondisk.index.tables
from ondisk.datum import Datum
from ondisk.index import INDEX
from ondisk.maintenance.states import Report, State

from .test_matrix import CASES, Case, flip, in_lost_index

ROW = "seq = (SELECT min(seq) + 1 FROM datum JOIN segment ON segment.id = segment WHERE name LIKE '2026/%')"
IN_INDEX = {
    "another reftime": ("UPDATE datum SET reftime = reftime + 1 WHERE", "it has another reftime"),
    "another value": ("UPDATE datum SET f_area = 999 WHERE", "it has other metadata"),
    "no value": ("UPDATE datum SET f_area = 0 WHERE", "it has other metadata"),
}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    kind: Kind = request.param
    return World.make(tmp_path / "dataset", kind)


def one(report: Report, segment: str = A) -> tuple[State, str]:
    """Return state and reasons of a segment, the only one that is not OK."""
    (found,) = (each for each in report if each.state)
    assert found.segment.startswith(segment)
    return found.state, "; ".join(found.reasons)


@pytest.mark.parametrize("difference", IN_INDEX)
def test_an_accurate_check_finds_what_the_index_says_otherwise_than_the_data(difference: str, world: World) -> None:
    statement, reason = IN_INDEX[difference]
    assert world.check(accurate=True).ok == 2
    world.sql("INSERT INTO value VALUES (999, 'another')")
    world.sql(f"{statement} {ROW}")
    state, told = one(world.check(accurate=True))
    assert State.CORRUPTED in state
    assert f"1 of its data are not as the index says, the first at byte {offset_of(world, 1)}: {reason}" in told


def offset_of(world: World, number: int) -> int:
    rows = world.sql("SELECT offset FROM datum JOIN segment ON segment.id = segment WHERE name = ? ORDER BY seq",
                     world.name(A))  # fmt: skip
    return int(rows[number][0])


def test_an_accurate_check_finds_bytes_that_are_no_datum_any_more(world: World) -> None:
    flip(world)
    assert world.check().ok == 2
    state, told = one(world.check(accurate=True))
    assert state == State.CORRUPTED
    assert "of its data are not as the index says, the first at byte" in told


@pytest.mark.parametrize("content", [b"\xff", b"\0", b"x"])
def test_a_file_of_garbage_is_found_and_if_it_looks_untouched_by_an_accurate_check(
    world: World, content: bytes
) -> None:
    rot(world.file(A), content * world.ends[-1])
    assert world.check().ok == 2
    state, told = one(world.check(accurate=True))
    assert state == State.CORRUPTED
    assert "4 of its data are not as the index says" in told
    world.file(A).touch()
    assert one(world.check())[0] == State.CORRUPTED


def test_a_flip_of_any_byte_is_found_or_changes_nothing_that_comes_back(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", KINDS[1])
    content, asked = world.file(A).read_bytes(), world.content()
    with ondisk.open(world.path, read_only=True) as dataset:
        for at in range(0, len(content), 3):
            world.file(A).write_bytes(content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :])
            if dataset.check(accurate=True).ok == 2:
                assert at in range(4, 8)  # the count in the header, a hint
                assert world.content() == asked


def test_every_difference_is_counted_and_the_first_reported(world: World) -> None:
    world.sql("UPDATE datum SET reftime = reftime + 1")
    report = world.check(accurate=True)
    assert [each.reasons[-1].partition(",")[0] for each in report if each.state] == [
        "4 of its data are not as the index says",
        "2 of its data are not as the index says",
    ]


@pytest.mark.parametrize("name", ["clean", "index deleted", "index deleted then imported into", "cut inside a datum",
                                  "all deleted", "unknown file, newer than the index", "sentinel on dirty",
                                  "interrupted import, torn"])  # fmt: skip
@pytest.mark.parametrize("accurate", [False, True])
def test_a_check_changes_nothing(name: str, accurate: bool, tmp_path: Path) -> None:
    case: Case = CASES[name]
    world = World.make(tmp_path / "dataset", KINDS[0], map(int, case.order))
    case.damage(world)
    before = everything(world.path)
    world.check(accurate=accurate)
    assert everything(world.path) == before


def everything(path: Path) -> dict[str, tuple[int, int, int]]:
    """Look at all files; those that SQLite shares among readers may change in their content."""
    return {
        str(each.relative_to(path)): (each.stat().st_ino, each.stat().st_size, each.stat().st_mtime_ns)
        for each in path.rglob("*")
        if not each.name.endswith("-shm")
    }


def check_as(path: Path, talk: Connection, user: int) -> None:
    """Check as a user without any right to write."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    try:
        with ondisk.open(path, read_only=True) as dataset:
            reports = [dataset.check(), dataset.check(accurate=True)]
    except ondisk.OndiskError as error:
        talk.send(error)
    else:
        talk.send([[(each.segment, each.state.names) for each in report if each.state] for report in reports])


@pytest.mark.check
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing user takes root")
def test_a_user_without_write_permission_can_check(public_path: Path, start: Start) -> None:
    world = World.make(public_path / "dataset", KINDS[0])
    world.delete(1)
    before = everything(world.path)
    dirty = (world.name(A), ["DIRTY"])
    assert start(check_as, world.path, workers.NOBODY).hear() == [[dirty], [dirty]]
    assert everything(world.path) == before
    in_lost_index()(world)
    lost = [(world.name(segment), ["UNALIGNED"]) for segment in (A, B)]
    assert start(check_as, world.path, workers.NOBODY).hear() == [lost, lost]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("shared_files", [True, False])
def test_a_read_only_mount_can_be_checked(public_path: Path, shared_files: bool) -> None:
    world = World.make(public_path / "dataset", KINDS[0])
    world.delete(1)
    if not shared_files:
        for name in (f"{INDEX}-wal", f"{INDEX}-shm"):
            (world.path / name).unlink()
    with (
        mounted_read_only(world.path, public_path / "mounted") as place,
        ondisk.open(place, read_only=True) as dataset,
    ):
        for accurate in (False, True):
            assert one(dataset.check(accurate))[0] == State.DIRTY


class Slices:
    """Checks in slices of no time at all: each reads the data of one segment."""

    def __init__(self, path: Path, segments: int) -> None:
        self.path = path
        config = {"format": "vm2", "step": "daily", "unique": ["reftime"]}
        with ondisk.create(path, config) as dataset:
            dataset.append(
                ondisk.Datum(KINDS[2].datum(0).reftime.replace(day=day), data=f"202611{day:02}0000,1,2,3,,,".encode())
                for day in range(1, segments + 1)
            )
        self.names = [f"2026/11-{day:02}.vm2" for day in range(1, segments + 1)]

    def run(self, seconds: float = 0) -> tuple[list[str], Report]:
        """Run one slice; gives the segments whose data it read, and what it reports."""
        read: list[str] = []
        with ondisk.open(self.path) as dataset:
            return read, dataset.check(max_duration=seconds, progress=read.append)


def test_each_slice_reads_at_least_one_segment_that_was_not_read_for_the_longest_time(tmp_path: Path) -> None:
    slices = Slices(tmp_path / "dataset", 3)
    assert [slices.run()[0] for _ in range(5)] == [[name] for name in [*slices.names, *slices.names[:2]]]
    assert slices.run(600)[0] == [slices.names[2], *slices.names[:2]]


def test_a_new_segment_is_read_before_those_that_were_read(tmp_path: Path) -> None:
    slices = Slices(tmp_path / "dataset", 2)
    slices.run(600)
    with ondisk.open(slices.path) as dataset:
        dataset.append([ondisk.Datum(KINDS[2].datum(0).reftime.replace(day=9), data=b"202611090000,1,2,3,,,")])
    assert slices.run()[0] == ["2026/11-09.vm2"]


def test_what_a_slice_found_is_remembered_while_others_take_their_turn(tmp_path: Path) -> None:
    slices = Slices(tmp_path / "dataset", 2)
    rot(slices.path / slices.names[0], b"x" * (slices.path / slices.names[0]).stat().st_size)
    read, report = slices.run()
    assert read == [slices.names[0]]
    state, told = one(report, slices.names[0])
    assert state == State.CORRUPTED
    for name in (slices.names[1], slices.names[0], slices.names[1]):
        read, report = slices.run()
        assert read == [name]
        assert one(report, slices.names[0]) == (state, told)
    with ondisk.open(slices.path, read_only=True) as dataset:
        assert one(dataset.check(), slices.names[0]) == (state, told)
        assert one(dataset.check(accurate=True), slices.names[0]) == (state, told)


def test_a_slice_notes_nothing_of_a_generation_that_is_not_there_any_more(tmp_path: Path) -> None:
    slices = Slices(tmp_path / "dataset", 1)
    name = slices.names[0]
    rot(slices.path / name, b"x" * (slices.path / name).stat().st_size)
    with ondisk.open(slices.path) as dataset, ondisk.open(slices.path) as other:

        def replace_segment(_: str) -> None:
            other.delete("")
            other.repack()
            other.append([ondisk.Datum(KINDS[2].datum(0).reftime.replace(day=1), data=b"202611010000,1,2,3,,,")])

        dataset.check(max_duration=0, progress=replace_segment)
        assert dataset.check().ok == 1


def test_a_check_in_slices_of_a_lost_index_reads_nothing_and_changes_nothing(tmp_path: Path) -> None:
    world = World.make(tmp_path / "dataset", KINDS[0])
    world.lose_index()
    before = everything(world.path)
    with ondisk.open(world.path, read_only=True) as dataset:
        report = dataset.check(max_duration=0)
    assert {each.state for each in report} == {State.UNALIGNED}
    assert everything(world.path) == before


def test_data_may_be_appended_and_deleted_while_a_check_reads(tmp_path: Path) -> None:
    """Each verb comes right before a segment is read; what it does is no damage, and is not waited for."""
    world = World.make(tmp_path / "dataset", KINDS[0])
    with ondisk.open(world.path) as writer, ondisk.open(world.path, read_only=True) as dataset:
        verbs: list[Callable[[], Any]] = [
            lambda: writer.append([world.kind.datum(4 - 1 + 17)]),
            lambda: writer.delete('area: "VM2,1"'),
        ]

        def meanwhile(_: str) -> None:
            verbs.pop(0)()

        report = dataset.check(accurate=True, progress=meanwhile)
    assert not verbs
    assert not [each for each in report if State.CORRUPTED in each.state]


@pytest.mark.check
def test_unchecked_segments_come_first_then_by_time(tmp_path: Path) -> None:
    slices = Slices(tmp_path / "dataset", 4)
    with closing(sqlite3.connect(slices.path / INDEX)) as index, index:
        for name, at in zip(slices.names, (30, None, 10, 20), strict=True):
            index.execute("UPDATE segment SET checked_at = ? WHERE name = ?", (at, name))
    assert [*slices.run(600)[0]] == [slices.names[at] for at in (1, 2, 3, 0)]


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


ODD: dict[str, Callable[[Path], None]] = {"link": link, "fifo": os.mkfifo, "directory": Path.mkdir}


def in_place_of(path: Path, odd: Callable[[Path], None]) -> None:
    path.rename(path.with_name(f".{path.name}.away"))
    odd(path)


@pytest.mark.parametrize("accurate", [False, True], ids=["quick", "accurate"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize(
    "file",
    ["2026/11-20.blob/.sequence", "2026/11-20.blob/.metadata", "2026/11-20.blob/000000.blob", "2026/11-20.blob",
     "2026/11-20.vm2", "2026"],
)  # fmt: skip
def test_what_is_odd_in_the_place_of_a_file_is_reported_of_its_segment_alone(
    file: str, odd: Callable[[Path], None], accurate: bool, tmp_path: Path
) -> None:
    format = "vm2" if file.endswith("vm2") else "blob"
    with ondisk.create(tmp_path / "dataset", {"format": format, "step": "daily", "fields": {}}) as dataset:
        line = b"%d11200000,1,227,1,,,000000000"
        dataset.append(ondisk.Datum(START.replace(year=year), data=line % year) for year in (2026, 2027))
    in_place_of(dataset.path / file, odd)
    name = f"2026/11-20.{format}"
    with ondisk.open(dataset.path, read_only=True) as dataset:
        found = {each.segment: each.state for each in dataset.check(accurate=accurate).findings}
        assert found.keys() == {name}
    if file != "2026":  # in a dataset with such a folder nothing is written
        with ondisk.open(dataset.path) as dataset:
            assert dataset.check(max_duration=10).findings[0].segment == name


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing user takes root")
def test_what_may_not_be_read_is_reported_and_the_rest_is_checked(public_path: Path, start: Start) -> None:
    world = World.make(public_path / "dataset", KINDS[2])
    (world.path / "2026").chmod(0o700)
    assert_denied(start(check_as, world.path, workers.NOBODY).hear(), world.path / "2026")
    (world.path / "2026").chmod(0o755)
    world.file(A).chmod(0o600)
    assert_denied(start(check_as, world.path, workers.NOBODY).hear(), world.file(A))


def assert_denied(error: object, place: Path) -> None:
    assert isinstance(error, ondisk.errors.StorageError)
    assert error.exit_code == 50
    assert error.message.startswith(f"{place}: permission denied")
    report = error.context["report"]
    assert (report.ok, report.findings) == (1, [])


def test_a_digit_that_has_rotten_is_found_by_an_accurate_check(create: Callable[..., ondisk.Dataset]) -> None:
    dataset = create(format="vm2")
    dataset.append_file(io.BytesIO(b"202611200600,5,227,1.2,,,\n202611200700,5,227,1.2,,,\n"))
    path = dataset.path / "2026/11-20.vm2"
    rot(path, path.read_bytes().replace(b"1.2", b"9.2", 1))
    assert dataset.check().is_clean
    (found,) = dataset.check(accurate=True)
    assert found.state == State.CORRUPTED
    assert "do not have their checksum" in found.reasons[0]


@pytest.mark.parametrize("format", ["jsonl", "seg", "vm2"])
def test_stored_data_are_read_although_new_ones_may_not_be_so_long(tmp_path: Path, format: str) -> None:
    path, config = tmp_path / "dataset", {"format": format, "step": "daily", "unique": ["reftime"]}
    long = b"20261120%02d00,1,2,3.5,,,000000000" if format == "vm2" else {"text": "x" * 5000}
    reftimes = [datetime(2026, 11, 20, hour, tzinfo=UTC) for hour in range(4)]
    given = [Datum(each, {}, long % each.hour if isinstance(long, bytes) else long) for each in reftimes]
    with ondisk.create(path, config) as dataset:
        dataset.append(given)
        before = content(dataset)
    change_config(path, "step = ", "max_datum_size = 10\nstep = ")
    with ondisk.open(path) as dataset:
        assert dataset.append(Datum(each.reftime + timedelta(minutes=1), {}, each.data) for each in given).refused == 4
        assert dataset.check(accurate=True).is_clean
    lose_index(path)
    with ondisk.open(path) as dataset:
        dataset.fix()
        assert content(dataset) == before
