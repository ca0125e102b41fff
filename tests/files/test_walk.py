"""Which files of folders `ondisk.files.append` finds."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import ondisk
from ondisk.errors import InvalidInput, NotFound, StorageError
from ondisk.files.append import Skipped, found_in

NOT_REGULAR = "it is not a regular file; links are not followed"


def tree(folder, *names):
    for name in names:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def walked(path):
    return [(each.path, each.reason) for each in found_in(str(path), Skipped())]


def test_files_come_in_a_fixed_order_those_of_a_folder_before_its_subfolders(tmp_path):
    folder = tree(tmp_path / "in", "b/2", "b/1", "a/c/1", "a/9", "z", "é", "B", "10", "9")
    found = [*found_in(str(folder), Skipped())]
    assert [each.path for each in found] == ["10", "9", "B", "z", "é", "a/9", "a/c/1", "b/1", "b/2"]
    assert [each.shown for each in found] == [f"{folder}/{each.path}" for each in found]
    assert not any(each.reason for each in found)


def test_a_file_that_is_named_has_only_its_name_as_path_and_may_be_a_link(tmp_path):
    tree(tmp_path, "deep/er/file")
    (tmp_path / "link").symlink_to("deep/er/file")
    for name, path in {"deep/er/file": "file", "link": "link"}.items():
        [found] = found_in(str(tmp_path / name), Skipped())
        assert (found.path, found.reason) == (path, None)
        assert found.folder.open_to_read(found.name).read(0, 99) == b"deep/er/file"


def test_a_folder_that_is_named_may_be_a_link_and_links_in_it_are_not_followed(tmp_path):
    tree(tmp_path, "in/file", "out/secret")
    (tmp_path / "alias").symlink_to("in")
    (tmp_path / "in/to-file").symlink_to("file")
    (tmp_path / "in/to-folder").symlink_to("../out")
    (tmp_path / "in/broken").symlink_to("nowhere")
    (tmp_path / "in/loop").symlink_to(".")
    refused = [(name, NOT_REGULAR) for name in ("loop", "to-file", "to-folder")]
    assert walked(tmp_path / "alias") == [("broken", NOT_REGULAR), ("file", None), *refused]


def test_what_is_no_regular_file_is_refused_without_opening_it(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # the path of a socket may have 107 bytes
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        assert walked(tmp_path) == [("fifo", NOT_REGULAR), ("socket", NOT_REGULAR)]
        assert walked(tmp_path / "fifo") == [("fifo", NOT_REGULAR)]
    assert walked("/dev/null") == [("null", NOT_REGULAR)]


def test_hidden_names_and_unfinished_files_are_skipped_and_counted(tmp_path):
    tree(tmp_path, ".hidden", ".git/config", "a.tmp", "b.part", "c.part/file", "part", "file")
    skipped = Skipped()
    assert [each.path for each in found_in(str(tmp_path), skipped)] == ["file", "part", "c.part/file"]
    assert str(skipped) == "skipped: 2 hidden, 2 unfinished"
    assert walked(tmp_path / ".hidden") == [(".hidden", None)]
    assert walked(tmp_path / "a.tmp") == [("a.tmp", None)]


def test_a_dataset_is_never_read_as_a_folder_of_files(tmp_path):
    ondisk.create(tmp_path / "in/dataset", {"step": "daily"}).close()
    tree(tmp_path, "in/file")
    assert walked(tmp_path / "in") == [("dataset", "it is a dataset"), ("file", None)]
    with pytest.raises(InvalidInput, match="in/dataset is a dataset\nAppend what `ondisk query --to` exports of it"):
        walked(tmp_path / "in/dataset")


def test_a_tree_that_is_deeper_than_a_path_may_be_long_is_refused_where_it_gets_too_deep(tmp_path):
    folder, depth = os.open(tmp_path, os.O_RDONLY), 0
    for depth in range(1, 30):
        os.mkdir("d" * 200, dir_fd=folder)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(os.open(f"file{depth}", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(folder)
        folder = inner
    os.close(folder)
    found = walked(tmp_path)
    assert [Path(path).name for path, reason in found if reason is None] == [f"file{each}" for each in range(1, 21)]
    assert [reason for _, reason in found if reason] == ["its path has 4220 bytes, more than 4096"]


def test_what_does_not_exist_is_an_error(tmp_path):
    (tmp_path / "broken").symlink_to("nowhere")
    for name in ("nowhere", "nowhere/file", "broken", "\0"):
        with pytest.raises(NotFound, match="no such file or folder\nCheck the path"):
            walked(f"{tmp_path}/{name}")


@pytest.mark.skipif(not os.geteuid(), reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_refused_and_one_that_was_named_is_an_error(tmp_path):
    tree(tmp_path, "in/closed/file", "in/open/file")
    (tmp_path / "in/closed").chmod(0)
    try:
        (name, reason), *rest = walked(tmp_path / "in")
        assert (name, rest) == ("closed", [("open/file", None)])
        assert "permission denied" in reason
        with pytest.raises(StorageError):
            walked(tmp_path / "in/closed")
    finally:
        (tmp_path / "in/closed").chmod(0o700)
