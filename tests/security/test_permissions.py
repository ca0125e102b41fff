"""Files that this user may not read: each command says so with 50, changes nothing there, and does the rest."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from concurrency.conftest import public_path
from concurrency.workers import NOBODY
from worlds import datum, lose_index

import ondisk
from ondisk.cli import main
from ondisk.errors import OndiskError, ReadOnly, StorageError
from ondisk.index import INDEX
from ondisk.maintenance.maintain import Maintained, maintain
from ondisk.maintenance.states import State

__all__ = ["public_path"]
pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="changing user takes root")]

FORMATS = ["vm2", "jsonl", "seg", "blob"]


def one(day: int, hour: int, format: str) -> ondisk.Datum:
    made = datum(24 * day + hour, format=format)
    if format != "vm2":
        return made
    line = f"{made.reftime:%Y%m%d%H}00,5,227,1.2,,,000000000"
    return ondisk.Datum(made.reftime, {}, line.encode())


@pytest.fixture(params=FORMATS)
def path(request: pytest.FixtureRequest, public_path: Path) -> Path:
    """Make a dataset of six segments, that belongs to another user: 2026/11-20 to 11-24, and 2027/11-20."""
    format = request.param
    path = public_path / "weather"
    fields = {} if format == "vm2" else {"station": "text"}
    with ondisk.create(path, {"format": format, "step": "daily", "fields": fields}) as dataset:
        for day in (0, 1, 2, 3, 4, 365):
            dataset.append(one(day, hour, format) for hour in range(4))
        for day in ("2026-11-21", "2026-11-22", "2027-11-20"):
            dataset.delete(f"reftime:={day} 01:00:00")
    for each in (public_path, path, *path.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    for verb in ("check", "fix", "repack"):  # imports modules that the user may not read
        main([verb, str(path)])
    return path


@contextmanager
def as_nobody() -> Iterator[None]:
    """Let this process have the rights of another user."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def denied(place: Path) -> Path:
    place.chmod(0)
    return place


def error_of(verb: Callable[[], object]) -> OndiskError:
    with as_nobody(), pytest.raises(OndiskError) as caught:
        verb()
    return caught.value


def check_says(error: OndiskError, place: Path) -> None:
    """The error has code 50, and names the file and the permission."""
    assert isinstance(error, StorageError)
    assert error.exit_code == 50
    assert error.message.startswith(f"{place}: permission denied: the user nobody may not read it")
    assert "its owner is nobody" in error.message
    assert f"chmod a+rX {place}" in error.hint


def rows(path: Path) -> list[object]:
    """Return what the index says about data and segments."""
    with closing(sqlite3.connect(f"file:{path / INDEX}?mode=ro", uri=True)) as index:
        return [
            index.execute("SELECT name, count(*), sum(datum.size) FROM datum JOIN segment ON segment.id = datum.segment"
                          " GROUP BY name ORDER BY name").fetchall(),
            index.execute("SELECT name, damage FROM segment ORDER BY name").fetchall(),
        ]  # fmt: skip


def first(path: Path) -> Path:
    """Return the segment that has a hole, so that a repack would rewrite it."""
    (found,) = path.glob("2026/11-21.*")
    return found


def opened(path: Path, verb: Callable[[ondisk.Dataset], object], *, read_only: bool = False) -> Callable[[], object]:
    def run() -> object:
        with ondisk.open(path, read_only) as dataset:
            return verb(dataset)

    return run


PLACES: dict[str, Callable[[Path], Path]] = {"segment": first, "folder": lambda path: path / "2026"}


@pytest.mark.parametrize("what", PLACES)
def test_what_cannot_be_read_is_named_and_all_else_is_done(what: str, path: Path) -> None:
    is_segment = what == "segment"
    before = rows(path)
    place = denied(PLACES[what](path))
    error = error_of(opened(path, lambda dataset: dataset.check(), read_only=True))
    check_says(error, place)
    report = error.context["report"]
    assert report.ok == (3 if is_segment else 0)
    assert {each.state for each in report.findings} == {State.DIRTY}
    check_says(error_of(opened(path, lambda dataset: dataset.check(accurate=True))), place)
    check_says(error_of(opened(path, lambda dataset: dataset.check(max_duration=60))), place)
    check_says(error_of(opened(path, lambda dataset: dataset.fix())), place)
    assert rows(path) == before
    check_says(error_of(opened(path, lambda dataset: [each.data for each in dataset.query()])), place)
    with as_nobody(), ondisk.open(path) as dataset:
        assert len([*dataset.query("reftime: =2027-11-20")]) == 3
        if is_segment:
            assert len([*dataset.query("reftime: =2026-11-20")]) == 4
    error = error_of(opened(path, lambda dataset: dataset.repack()))
    check_says(error, place)
    assert [each.action for each in error.context["report"]] == ["repack"] * (2 if is_segment else 1)
    assert rows(path) == before  # the same data
    place.chmod(0o755)
    with as_nobody(), ondisk.open(path) as dataset:
        assert not dataset.check().needs_check
        assert len([*dataset.query()]) == 21
        dataset.repack()
        assert dataset.check(accurate=True).is_clean


@pytest.mark.parametrize("what", PLACES)
def test_maintain_does_the_others_and_fails_with_50(what: str, path: Path) -> None:
    before = rows(path)
    place = denied(PLACES[what](path))

    def run(**options: bool) -> Maintained:
        with as_nobody():
            return maintain(path, **options)  # type: ignore[arg-type]

    for result in (run(dry_run=True), run()):
        assert result.exit_code == 50
        assert isinstance(result.error, OndiskError)
        check_says(result.error, place)
        assert result.count == 21
        assert result.left is not None
        assert not any(result.left.counts[state] for state in ("missing", "corrupted", "deleted", "unaligned"))
        assert not any(each.lost for each in result.done)
    assert len(result.done) == (2 if what == "segment" else 1)
    assert rows(path) == before


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("state", ["sentinel", "lost"])
def test_an_index_that_is_not_trusted_stays_so_while_something_cannot_be_read(
    what: str, state: str, path: Path
) -> None:
    if state == "lost":
        lose_index(path)
    (path / "needs-check-do-not-pack").touch()
    place = denied(PLACES[what](path))
    check_says(error_of(opened(path, lambda dataset: dataset.fix())), place)
    assert (path / "needs-check-do-not-pack").exists()
    place.chmod(0o755)
    with as_nobody(), ondisk.open(path) as dataset:
        dataset.fix()
        assert not dataset.needs_check
        assert len([*dataset.query()]) == 24


def test_an_unknown_segment_that_cannot_be_read_is_left(path: Path) -> None:
    segment = first(path)
    copy = segment.with_name(f"12-01{segment.suffix}")
    (shutil.copytree if segment.is_dir() else shutil.copy)(segment, copy)
    os.utime(copy, (0, 0))
    os.chown(copy, NOBODY, NOBODY)
    denied(copy)
    for verb in (ondisk.Dataset.check, ondisk.Dataset.fix, ondisk.Dataset.repack):
        check_says(error_of(opened(path, verb)), copy)
    assert copy.exists()


def test_a_file_of_a_dir_segment_that_cannot_be_read_is_named(path: Path) -> None:
    segment = first(path)
    if not segment.is_dir():
        pytest.skip("its segments are single files")
    before = rows(path)
    place = denied(sorted(segment.glob("*.blob"))[2])
    for verb in (ondisk.Dataset.check, ondisk.Dataset.fix, ondisk.Dataset.repack, lambda each: [*each.query()]):
        check_says(error_of(opened(path, verb)), place)
    assert rows(path) == before
    place.chmod(0o644)
    place = denied(segment / ".metadata")
    for verb in (ondisk.Dataset.check, ondisk.Dataset.fix, ondisk.Dataset.repack):
        check_says(error_of(opened(path, verb)), place)


@pytest.mark.parametrize("what", ["", INDEX, f"{INDEX}-shm", "dataset.toml"])
def test_an_index_that_cannot_be_read_is_not_lost(what: str, path: Path) -> None:
    before = rows(path)
    place = denied(path / what)
    for verb in (ondisk.Dataset.check, ondisk.Dataset.fix, ondisk.Dataset.repack, lambda each: [*each.query()]):
        if what != f"{INDEX}-shm" or verb is not ondisk.Dataset.check:
            check_says(error_of(opened(path, verb)), place)
    with as_nobody():
        result = maintain(path)
    assert result.exit_code == 50
    place.chmod(0o755)
    assert rows(path) == before
    assert not (path / "needs-check-do-not-pack").exists()


@pytest.mark.parametrize("what", ["", "2026"])
def test_an_archive_that_cannot_be_read_is_named(what: str, path: Path) -> None:
    with ondisk.open(path) as dataset:
        name = first(path).name
        dataset.repack()
        dataset.archive(f"2026/{name}")
    archive = path / ".archive" / "last"
    for each in (path / ".archive", *archive.rglob("*"), archive, *path.rglob("*")):
        os.chown(each, NOBODY, NOBODY)
    before = rows(path)
    place = denied(archive / what)
    for verb in (ondisk.Dataset.check, ondisk.Dataset.fix, ondisk.Dataset.repack, lambda each: [*each.query()]):
        check_says(error_of(opened(path, verb)), place)
    place.chmod(0o755)
    assert rows(path) == before


def test_a_group_that_may_read_is_enough(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, 0, NOBODY)
        each.chmod(0o770 if each.is_dir() else 0o660)
    with as_nobody(), ondisk.open(path) as dataset:
        assert len(dataset.check(accurate=True).findings) == 3
        assert len([*dataset.query()]) == 21


@pytest.mark.parametrize(
    "command", [["check"], ["check", "--accurate"], ["fix"], ["fix", "--yes"], ["repack"], ["repack", "--yes"],
                ["maintain"], ["maintain", "--dry-run"], ["query"]], ids=" ".join,
)  # fmt: skip
def test_the_command_prints_the_others_and_ends_with_50(
    command: list[str], path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = denied(first(path))
    capfd.readouterr()
    with as_nobody():
        code = main([command[0], str(path), *command[1:]])
    printed = capfd.readouterr()
    assert code == 50
    assert f"{place}: permission denied" in printed.err
    assert "Traceback" not in printed.err
    if command != ["query"]:
        assert "3 segments OK" in printed.out or "5 segments OK" in printed.out
        assert "CORRUPTED" not in printed.out + printed.err
        assert "MISSING" not in printed.out + printed.err


def test_a_quarantine_that_cannot_be_read_is_named_and_all_else_is_done(path: Path) -> None:
    place = path / "2026/.quarantine"
    place.mkdir()
    (place / "20261122T141307.123456Z-x").write_bytes(b"x")
    os.chown(place, NOBODY, NOBODY)
    denied(place)
    error = error_of(opened(path, ondisk.Dataset.check, read_only=True))
    check_says(error, place)
    assert len(error.context["report"].segments) == 6
    error = error_of(opened(path, ondisk.Dataset.repack))
    check_says(error, place)
    assert [each.action for each in error.context["report"]].count("repack") == 3
    check_says(error_of(opened(path, lambda dataset: [*dataset.quarantine], read_only=True)), place)
    place.chmod(0o700)
    with ondisk.open(path) as dataset:
        assert dataset.check().is_clean
        assert dataset.quarantine.total() == (1, 1)


def test_a_dir_segment_that_cannot_be_read_hides_no_item(path: Path) -> None:
    place = path / "2026/11-30.blob"
    place.mkdir()
    (path / "2026/.quarantine").mkdir()
    (path / "2026/.quarantine/x").write_bytes(b"x")
    for each in (place, path / "2026/.quarantine"):
        os.chown(each, NOBODY, NOBODY)
    denied(place)
    with as_nobody():
        assert opened(path, lambda dataset: dataset.quarantine.total(), read_only=True)() == (1, 1)


def test_a_repack_does_the_rest_where_a_folder_may_not_be_written(path: Path) -> None:
    (path / "2026").chmod(0o555)
    error = error_of(opened(path, lambda dataset: dataset.repack()))
    assert isinstance(error, ReadOnly)
    report = error.context["report"]
    assert {each.segment[:4] for each in report if each.failed} == {"2026"}
    assert {each.segment[:4] for each in report if each.action == "repack"} == {"2027"}


def test_a_leftover_in_a_folder_that_may_not_be_written_is_in_nobodys_way(path: Path) -> None:
    leftover = path / f"2026/.{first(path).name}.7"
    (shutil.copytree if first(path).is_dir() else shutil.copy)(first(path), leftover)
    (path / "2026").chmod(0o555)
    with as_nobody():
        result = opened(path, lambda dataset: dataset.append([one(400, 1, dataset.config.format)]))()
    assert result.imported == 1


def test_a_fix_does_the_rest_where_a_folder_may_not_be_written(path: Path) -> None:
    if first(path).is_dir():
        pytest.skip("nothing is written to read a folder")
    empty = path / f"2026/11-27{first(path).suffix}"
    empty.touch()
    os.chown(empty, NOBODY, NOBODY)
    lose_index(path)
    (path / "2026").chmod(0o555)
    error_of(opened(path, lambda dataset: dataset.fix()))
    with ondisk.open(path) as dataset:
        assert [*dataset.query("reftime: >=2027")] != []
