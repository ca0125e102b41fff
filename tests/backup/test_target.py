"""A backup is a folder of its own: nothing else is taken for one, or written into."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from worlds import datum

import ondisk
from ondisk.errors import (
    AlreadyExists,
    DatasetExists,
    DatasetNotFound,
    IntegrityError,
    InvalidInput,
    NotFound,
    StateError,
    VersionTooNew,
)


@pytest.fixture
def dataset(create):
    made = create(fields={"station": "text"})
    made.append([datum(0), datum(24)])
    return made


def tree(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_an_empty_folder_becomes_a_backup(dataset, tmp_path):
    (tmp_path / "backup").mkdir()
    for path in (tmp_path / "backup", tmp_path / "made/with/its/parents"):
        dataset.backup(path, create=True)
        dataset.backup(path)
        assert len(list(ondisk.backup.points(path))) == 2


def test_a_disk_that_is_not_mounted_is_no_place_for_another_backup(dataset, tmp_path):
    target, elsewhere = tmp_path / "disk/backup", tmp_path / "unmounted"
    dataset.backup(target, create=True)
    (tmp_path / "disk").rename(elsewhere)
    for with_mount_point in (False, True):
        if with_mount_point:
            (tmp_path / "disk").mkdir()
        with pytest.raises(DatasetNotFound) as caught:
            dataset.backup(target)
        assert "mounted" in caught.value.hint
        assert caught.value.hint.endswith(f"`ondisk backup {tmp_path / 'dataset'} {target} --create`")
        assert not target.exists()
    (tmp_path / "disk").rmdir()
    elsewhere.rename(tmp_path / "disk")
    dataset.backup(target)


def test_a_backup_is_not_begun_twice(dataset, tmp_path):
    dataset.backup(tmp_path / "backup", create=True)
    before = tree(tmp_path / "backup")
    with pytest.raises(AlreadyExists, match="already") as caught:
        dataset.backup(tmp_path / "backup", create=True)
    assert f"ondisk backup {tmp_path / 'dataset'} {tmp_path / 'backup'}" in caught.value.hint
    assert tree(tmp_path / "backup") == before


@pytest.mark.parametrize("begin", [False, True])
def test_a_first_run_that_was_interrupted_is_repeated(begin, dataset, tmp_path):
    def stop(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.backup(tmp_path / "backup", create=True, progress=stop)
    dataset.backup(tmp_path / "backup", create=begin)
    assert len(list(ondisk.backup.points(tmp_path / "backup", verify=True))) == 1


@pytest.mark.each
@pytest.mark.parametrize(
    ("what", "errors"),
    [
        ("a dataset", (DatasetNotFound, AlreadyExists, DatasetExists)),
        ("a folder with files", (DatasetNotFound, AlreadyExists, AlreadyExists)),
        ("a file", (DatasetNotFound, AlreadyExists, AlreadyExists)),
        ("the backup of another dataset", (StateError, StateError, AlreadyExists)),
    ],
)
def test_nothing_is_written_into_what_is_there(what, errors, create, dataset, tmp_path):
    path = tmp_path / "there"
    match what:
        case "a dataset":
            create("there").close()
        case "a folder with files":
            path.mkdir()
            (path / "notes").write_text("mine")
        case "a file":
            path.write_text("mine")
        case "the backup of another dataset":
            create("other").backup(path, create=True)
    dataset.backup(tmp_path / "backup", create=True)
    before = {each: each.stat().st_mtime_ns for each in (path, *path.rglob("*"))}
    writes = (
        lambda: dataset.backup(path),
        lambda: dataset.backup(path, create=True),
        lambda: ondisk.restore(tmp_path / "backup", path),
    )
    for write, error in zip(writes, errors, strict=True):
        with pytest.raises(error) as caught:
            write()
        assert caught.value.hint
        assert {each: each.stat().st_mtime_ns for each in (path, *path.rglob("*"))} == before


@pytest.mark.parametrize("place", ["dataset", "dataset/backup", ".", "link/backup"])
def test_a_backup_and_its_dataset_are_not_inside_of_each_other(place, dataset, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "dataset")
    with pytest.raises(InvalidInput, match="dataset"):
        dataset.backup(tmp_path / place, create=True)
    assert not (tmp_path / "dataset/backup").exists()


def test_an_empty_path_is_refused(dataset, tmp_path):
    with pytest.raises(InvalidInput, match="empty"):
        dataset.backup("", create=True)
    dataset.backup(tmp_path / "backup", create=True)
    with pytest.raises(InvalidInput, match="empty"):
        ondisk.restore(tmp_path / "backup", "")


@pytest.mark.parametrize("path", ["missing", "empty", "dataset"])
def test_only_a_backup_is_read_as_one(path, dataset, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no backup"):
        ondisk.restore(tmp_path / path, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_newer_layout_is_refused(dataset, tmp_path):
    target = tmp_path / "backup"
    dataset.backup(target, create=True)
    label = target / "backup.json"
    before = label.read_text()
    label.write_text(json.dumps(json.loads(before) | {"version": 2}))
    with pytest.raises(VersionTooNew):
        dataset.backup(target)
    label.write_text("{")
    with pytest.raises(StateError, match="damaged"):
        dataset.backup(target)
    label.write_text(before)
    (point,) = (target / "points").glob("*/point.json")
    point.write_text(json.dumps(json.loads(point.read_text()) | {"version": 2}))
    with pytest.raises(VersionTooNew):
        ondisk.restore(target, tmp_path / "restored")


@pytest.mark.parametrize("content", ['{"version": Infinity, "uuid": "x"}', "[" * 60000, "[]", "9" * 5000], ids=range(4))
def test_a_damaged_label_is_an_error(content, dataset, tmp_path):
    dataset.backup(tmp_path / "backup", create=True)
    (tmp_path / "backup/backup.json").write_text(content)
    with pytest.raises(StateError, match="damaged"):
        dataset.backup(tmp_path / "backup")
    with pytest.raises(StateError, match="damaged"):
        ondisk.restore(tmp_path / "backup", tmp_path / "restored")


DAMAGES = [
    {},
    {"time": 10**30},
    {"time": "now"},
    {"time": 1},  # another point's
    {"parts": []},
    {"parts": {}},
    {"offline": 5},
    {"part": {"segments": "x"}},
    {"part": {"count": 10**400}},
    {"part": {"count": 1.5}},
    {"part": {"place": 5}},
    {"part": {"place": "2026"}},
    {"part": {"name": "../../.."}},
    {"part": {"files": {}}},
    {"part": {"files": {"index.sqlite": 5, "segments.jsonl": 5, "dataset.toml": 5}}},
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_point_is_an_error_and_names_the_file(damage, dataset, tmp_path):
    target = tmp_path / "backup"
    dataset.backup(target, create=True)
    (point,) = (target / "points").glob("*/point.json")
    values = json.loads(point.read_text())
    values["parts"][0] |= damage.get("part", {})
    values |= {key: value for key, value in damage.items() if key != "part"}
    point.write_text(json.dumps(values) if damage else "{}")
    with pytest.raises(IntegrityError, match=r"point\.json"):
        ondisk.restore(target, tmp_path / "restored")
    with pytest.raises(IntegrityError, match=r"point\.json"):
        dataset.backup(target)
    for verify in (False, True):
        (listed,) = ondisk.backup.points(target, verify=verify)
        assert "point.json" in listed.damage[0].reason


def test_a_point_that_was_copied_to_another_name_is_no_point(dataset, tmp_path):
    """Else it would outlive the point whose files it names."""
    target = tmp_path / "backup"
    dataset.backup(target, create=True)
    (point,) = (target / "points").iterdir()
    shutil.copytree(point, target / "points/20991231T000000.000000Z")
    with pytest.raises(IntegrityError, match="20991231"):
        dataset.backup(target, keep=1)
    assert point.exists()
    shutil.rmtree(target / "points/20991231T000000.000000Z")
    (target / "points/99999999T999999.999999Z").mkdir()  # no time at all
    assert len(list(ondisk.backup.points(target))) == 1
    dataset.backup(target)


def test_a_list_that_was_cut_costs_no_copies(dataset, tmp_path):
    target = tmp_path / "backup"
    points = [dataset.backup(target, create=True).point]
    (lines,) = (target / "points").glob("*/dataset/segments.jsonl")
    before = lines.read_bytes()
    for value in (1, 2):
        dataset.append([datum(0, value=value)])
        points.append(dataset.backup(target).point)
    for cut in (b"", before[: before.index(b"\n") + 1]):
        lines.write_bytes(cut)
        (target / "points/.new").mkdir()  # of an interrupted run: the next one removes what no point needs
        with pytest.raises(IntegrityError, match=r"segments\.jsonl") as caught:
            dataset.backup(target)
        assert f"rm -r {lines.parent.parent}" in caught.value.hint
    lines.write_bytes(before)
    found = list(ondisk.backup.points(target, verify=True))
    assert [each.damage for each in found] == [[]] * 5
    assert [each.time for each in found[:3]] == points


def test_files_of_others_in_a_backup_are_left(dataset, tmp_path):
    target = tmp_path / "backup"
    dataset.backup(target, create=True)
    theirs = [target / name for name in ("notes", "segments/dataset/2026/notes.txt", "points/old/point.json")]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (target / "segments/dataset/2026/link").symlink_to(tmp_path)
    (target / "points/.new").mkdir()  # of an interrupted run: the next one removes what no point needs
    dataset.backup(target, keep=1)
    assert all(path.read_text() == "mine" for path in theirs)
    assert (target / "segments/dataset/2026/link").is_symlink()


def test_what_an_interrupted_run_left_is_removed_by_the_next(dataset, tmp_path):
    target = tmp_path / "backup"
    dataset.backup(target, create=True)
    before = tree(target)
    left = ["segments/dataset/2026/.11-20.jsonl.9.9.00000000.new", "segments/dataset/2026/11-20.jsonl.9.1.00000000",
            "segments/dataset/2026/11-20.jsonl.9.1.00000000.damaged", "segments/dataset/2025/metadata.70.00000000",
            "segments/dataset/2025/11-20.h5.3/000000.h5.00000000", "points/.new/dataset/index.sqlite",
            "points/.old-20261120T000000.000000Z/point.json"]  # fmt: skip
    for name in left:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("x")
    link = target / "segments/dataset/2026/11-20.jsonl.9.2.00000000"
    link.symlink_to(tmp_path / "dataset/dataset.toml")
    dataset.backup(target)
    assert tree(target).keys() > before.keys()
    assert not any((target / name).exists() for name in left)
    assert not (target / "segments/dataset/2025").exists()
    assert not os.path.lexists(link)
    assert (tmp_path / "dataset/dataset.toml").exists()
