"""Links, devices and names that point outside the dataset are refused; nothing outside is read or written."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.workload import CONFIG, datum_of, line

import ondisk
from ondisk.errors import DatasetNotFound, IndexCorrupt, StorageError

from .conftest import LINES, SEGMENT, Edit, errors, nothing_came_out, use


def replaced_by_link(name: str, target: str) -> Callable[[Path, Path], None]:
    def replace(path: Path, treasure: Path) -> None:
        place = path / name
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        place.symlink_to(treasure / target)

    return replace


@pytest.mark.parametrize(
    ("name", "target", "touched"),
    [
        (SEGMENT, SEGMENT, {"query", "read", "append"}),
        ("2026", "2026", {"query", "read", "append"}),
        ("2026", "nothing", {"query", "read", "append"}),
        ("index.sqlite", "file", {"query", "summary", "append", "delete", "info"}),
        ("index.sqlite", "nothing", {"query", "summary", "append", "delete", "info"}),
        ("index.sqlite-wal", "nothing", {"query", "summary", "append", "delete", "info"}),
        ("index.sqlite-wal", "file", {"query", "summary", "append", "delete", "info"}),
        ("index.sqlite-shm", "file", {"query", "summary", "append", "delete", "info"}),
        ("index.sqlite-journal", "file", {"query", "summary", "append", "delete", "info"}),
        ("dataset.toml", "file", {"query", "summary", "append", "delete", "info"}),
        (".lock", "file", {"append", "delete"}),
        (".lock", "nothing", {"append", "delete"}),
    ],
)
def test_a_link_is_not_followed(name: str, target: str, touched: set[str], path: Path, treasure: Path) -> None:
    replaced_by_link(name, target)(path, treasure)
    gave = use(path)
    assert nothing_came_out(gave)
    failed = errors(gave)
    assert touched <= failed.keys()
    for error in failed.values():
        assert isinstance(error, StorageError), error
        assert error.exit_code == 50
        assert str(path / name) in error.message


@pytest.mark.parametrize("place", [".archive", ".archive/last", ".archive/other"])
def test_a_link_in_place_of_an_archive_is_not_followed(place: str, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    target = other / "last" if place == ".archive" else other
    (path / place).parent.mkdir(exist_ok=True)
    (path / place).symlink_to(other)
    with ondisk.create(target, CONFIG) as treasure:
        treasure.append([datum_of(line(7, 0, 1, 1))])
    before = {each: each.stat().st_mtime_ns for each in other.rglob("*")}
    gave = [*use(path).values()]
    with contextlib.suppress(ondisk.OndiskError), ondisk.open(path) as dataset:
        gave.append(dataset.archive(SEGMENT))
    with contextlib.suppress(ondisk.OndiskError), ondisk.open(path) as dataset:
        gave += [dataset.repack(), dataset.fix(), dataset.unarchive(SEGMENT.replace("20", "27"))]
    assert line(7, 0, 1, 1).decode() not in str(gave)
    assert {each: each.stat().st_mtime_ns for each in other.rglob("*")} == before


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_a_link_in_place_of_the_sentinel_counts_as_one_and_is_not_written_through(
    target: str, path: Path, treasure: Path
) -> None:
    (path / "needs-check-do-not-pack").symlink_to(treasure / target)
    with ondisk.open(path) as dataset:
        assert dataset.needs_check
    (path / "index.sqlite").unlink()
    with ondisk.open(path) as dataset:
        assert dataset.needs_check
        assert dataset.append([datum_of(LINES[0])]).imported == 1


def test_a_link_to_a_dataset_is_a_path_like_any_other(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with ondisk.open(tmp_path / "link") as dataset:
        assert [each.data for each in dataset.query()] == LINES


def test_create_does_not_write_through_links(tmp_path: Path, treasure: Path) -> None:
    for name in ("index.sqlite", ".index.sqlite.new", "index.sqlite-wal", ".lock", "dataset.toml"):
        path = tmp_path / f"new {name}"
        path.mkdir()
        (path / name).symlink_to(treasure / "file")
        try:
            ondisk.create(path, CONFIG).close()
        except (StorageError, ondisk.errors.DatasetExists):
            assert name in (".lock", "dataset.toml")
        else:
            assert not (path / name).is_symlink()
            with ondisk.open(path) as dataset:
                assert dataset.append([datum_of(LINES[0])]).imported == 1


@pytest.mark.parametrize("kind", ["FIFO", "directory", "socket", "device"])
@pytest.mark.parametrize("name", [SEGMENT, "index.sqlite", "dataset.toml"])
def test_what_is_no_plain_file_is_refused_and_hangs_nobody(name: str, kind: str, path: Path) -> None:
    place = path / name
    place.unlink()
    make_special(place, kind)
    failed = errors(use(path))
    assert {"query", "append", "query, read only"} <= failed.keys()
    for error in failed.values():
        assert isinstance(error, StorageError), error


def make_special(place: Path, kind: str) -> None:
    if kind == "directory":
        place.mkdir()
    elif kind == "FIFO":
        os.mkfifo(place)
    elif kind == "socket":
        os.mknod(place, 0o140644)
    else:
        try:
            os.mknod(place, 0o020644, os.makedev(1, 5))  # /dev/zero, which never ends
        except PermissionError:
            pytest.skip("making devices takes root")


def test_a_fifo_in_place_of_the_lock_hangs_nobody(path: Path) -> None:
    (path / ".lock").unlink()
    os.mkfifo(path / ".lock")
    gave = use(path)
    assert gave["query, read only"] == LINES
    assert gave["append"] == 2  # a FIFO can be locked as well


@pytest.mark.parametrize("name", ["dataset", "file"])
def test_what_is_no_dataset_is_not_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DatasetNotFound):
        ondisk.open(tmp_path / name)


NAMES = ["../outside/2026/11-20.vm2", "../outside/file", "{outside}/2026/11-20.vm2", "{outside}/file", "..", ".", "",
         "2026/../../outside/2026/11-20.vm2", "2026//11-20.vm2", "./2026/11-20.vm2", "2026/11-20.vm2\n", "dataset.toml",
         "index.sqlite", ".lock", "2026/11-20.vm2/", "2026/11-20", "2026/11-20.jsonl", "２０２６/11-20.vm2",
         "2026/02-30.vm2", "x" * 5000, "2026/" + "x" * 300 + ".vm2"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_segment_name_that_ondisk_never_gives_is_no_way_out(
    name: str, path: Path, treasure: Path, edit: Edit
) -> None:
    name = name.replace("{outside}", str(treasure))
    quoted = name.replace("'", "''")
    edit(f"UPDATE segment SET name = '{quoted}' WHERE name = '{SEGMENT}'")
    check_name_refused(path)


@pytest.mark.parametrize("name", ["CAST(x'323032362f31312d32302e766d3200' AS TEXT)", "char(0)", "'2026/11' || char(0)"])
def test_a_segment_name_with_nul_is_no_way_out(name: str, path: Path, treasure: Path, edit: Edit) -> None:
    edit(f"UPDATE segment SET name = {name} WHERE name = '{SEGMENT}'")
    check_name_refused(path)


def check_name_refused(path: Path) -> None:
    gave = use(path)
    assert nothing_came_out(gave)
    failed = errors(gave)
    assert {"query", "query, read only"} <= failed.keys()
    for error in failed.values():
        assert isinstance(error, IndexCorrupt | ondisk.errors.DatumNotFound), error


@pytest.mark.parametrize("name", ["../outside/2026/11-20.vm2", "/etc/passwd", "2026/../../x", "a\0b", "x" * 300, ""])
def test_a_location_from_outside_is_no_way_out(name: str, path: Path, treasure: Path) -> None:
    with ondisk.open(path) as dataset:
        location = ondisk.Location(name, 0, 36)
        with pytest.raises(ondisk.errors.DatumNotFound):
            dataset.read(location)
        assert dataset.delete([location]) == 0


@pytest.mark.parametrize(("offset", "size"), [(-1, 32), (0, -1), (0, 2**62), (2**62, 32), (2**70, 32), (0, 2**70)])
def test_a_location_with_numbers_that_cannot_be_is_not_found(offset: int, size: int, path: Path) -> None:
    with ondisk.open(path) as dataset:
        location = ondisk.Location(SEGMENT, offset, size)
        with pytest.raises(ondisk.errors.DatumNotFound):
            dataset.read(location)
        assert dataset.delete([location]) == 0


def test_create_refuses_a_directory_that_holds_something_else(treasure: Path) -> None:
    with pytest.raises(ondisk.errors.AlreadyExists):
        ondisk.create(treasure, CONFIG)
    assert not (treasure / ".lock").exists()
