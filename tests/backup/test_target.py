"""A backup is a folder of its own: nothing else is taken for one, or written into."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from worlds import datum

import ondisk
from ondisk.errors import AlreadyExists, IntegrityError, InvalidInput, NotFound, StateError, VersionTooNew


@pytest.fixture
def dataset(create):
    made = create(fields={"station": "text"})
    made.append([datum(0), datum(24)])
    return made


def tree(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_an_empty_folder_becomes_a_backup(dataset, tmp_path):
    (tmp_path / "backup").mkdir()
    dataset.backup(tmp_path / "backup")
    dataset.backup(tmp_path / "made/with/its/parents")
    assert len(list(ondisk.backup.points(tmp_path / "backup"))) == 1


@pytest.mark.parametrize("what", ["a dataset", "a folder with files", "a file", "the backup of another dataset"])
def test_nothing_is_written_into_what_is_no_backup_of_the_dataset(what, create, dataset, tmp_path):
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
            create("other").backup(path)
    before = path.read_bytes() if path.is_file() else tree(path)
    with pytest.raises(StateError if what.startswith("the") else AlreadyExists) as caught:
        dataset.backup(path)
    assert caught.value.hint
    assert (path.read_bytes() if path.is_file() else tree(path)) == before


@pytest.mark.parametrize("place", ["dataset", "dataset/backup", ".", "link/backup"])
def test_a_backup_and_its_dataset_are_not_inside_of_each_other(place, dataset, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "dataset")
    with pytest.raises(InvalidInput, match="dataset"):
        dataset.backup(tmp_path / place)
    assert not (tmp_path / "dataset/backup").exists()


def test_an_empty_path_is_refused(dataset, tmp_path):
    with pytest.raises(InvalidInput, match="empty"):
        dataset.backup("")
    dataset.backup(tmp_path / "backup")
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
    dataset.backup(target)
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


def test_a_damaged_point_is_an_error_and_names_the_file(dataset, tmp_path):
    target = tmp_path / "backup"
    dataset.backup(target)
    (point,) = (target / "points").glob("*/point.json")
    point.write_text("{}")
    with pytest.raises(IntegrityError, match=r"point\.json"):
        ondisk.restore(target, tmp_path / "restored")
    with pytest.raises(IntegrityError, match=r"point\.json"):
        dataset.backup(target)


def test_what_an_interrupted_run_left_is_removed_by_the_next(dataset, tmp_path):
    target = tmp_path / "backup"
    dataset.backup(target)
    before = tree(target)
    left = ["segments/dataset/2026/.11-20.jsonl.9.9.00000000.new", "segments/dataset/2026/11-20.jsonl.9.1.00000000",
            "segments/dataset/2025/11-20.h5.3/000000.h5.00000000", "points/.new/dataset/index.sqlite",
            "points/.old-20261120T000000.000000Z/point.json"]  # fmt: skip
    for name in left:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("x")
    (target / "segments/dataset/2026/link").symlink_to(tmp_path)
    dataset.backup(target)
    assert tree(target).keys() > before.keys()
    assert not any((target / name).exists() for name in left)
    assert not (target / "segments/dataset/2025").exists()
    assert not os.path.lexists(target / "segments/dataset/2026/link")
    assert (tmp_path / "dataset/dataset.toml").exists()
