"""The files of a dataset."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import ondisk
from ondisk import Datum
from ondisk.dataset.auxiliary_files import CONFIG
from ondisk.errors import (
    AlreadyExists,
    DatasetNotFound,
    InvalidInput,
    StorageError,
)
from ondisk.index import INDEX

T = datetime(2026, 11, 20, tzinfo=UTC)
VALUES = {"format": "jsonl", "step": "daily"}


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(AlreadyExists, match=r"'notes\.txt'"):
        ondisk.create(tmp_path, VALUES)
    assert {each.name for each in tmp_path.iterdir()} <= {"notes.txt", ".lock"}
    with pytest.raises(AlreadyExists, match="is not a directory"):
        ondisk.create(tmp_path / "notes.txt", VALUES)


def test_a_dataset_whose_configuration_was_removed_is_neither_called_none_nor_left_out(create):
    create("a").append([Datum(T, {}, {})])
    lost = create("b")
    lost.close()
    (lost.path / CONFIG).unlink()
    for read in (ondisk.open, lambda path: [*ondisk.merged([path.parent / "*"]).query()]):
        with pytest.raises(DatasetNotFound, match=r"b has index\.sqlite, but no dataset\.toml"):
            read(lost.path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"step = 5", "step"), (b"\xff", "not UTF-8"), (b"[", "not valid TOML"), (b"#" * 2_000_000, "larger")],
)
def test_a_configuration_file_that_cannot_be_read_is_named(create, content, problem):
    dataset = create()
    dataset.close()
    (dataset.path / CONFIG).write_bytes(content)
    with pytest.raises(InvalidInput, match=problem) as caught:
        ondisk.open(dataset.path)
    assert str(dataset.path / CONFIG) in caught.value.message


@pytest.mark.parametrize("name", [INDEX, CONFIG])
def test_a_link_in_the_place_of_a_file_is_refused(create, tmp_path, name):
    dataset = create()
    dataset.close()
    (dataset.path / name).rename(tmp_path / "elsewhere")
    (dataset.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="symbolic link"):
        ondisk.open(dataset.path)
