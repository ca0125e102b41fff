"""Names, entries and durable changes of a directory."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest
from worlds import fail

from ondisk.errors import (
    DiskFull,
    InvalidInput,
    NotFound,
    StateError,
    StorageError,
)
from ondisk.filesystem import Directory, components

NAME = "2026/11-20.vm2"

OUTSIDE = ["../x", "/etc/passwd", "a/../b", "a//b", "", "/", "a/", "a\0b", "..", "a/" + "x" * 256, "\u00e9" * 128]


def names(path):
    return sorted(each.name for each in path.iterdir())


@pytest.fixture
def synced(monkeypatch):
    """Return the paths that are synced, in order, without a real sync."""
    paths = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: paths.append(path))
    return paths


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_directory(directory, name):
    with pytest.raises(InvalidInput, match="not a name of a file inside"):
        components(name)
    for method in (
        directory.stat,
        directory.open_to_read,
        directory.open_to_write,
        directory.create_file,
        directory.unlink,
    ):
        with pytest.raises(InvalidInput):
            method(name)


def test_unusual_names_are_allowed():
    for name in ("...", "a b", "\u00e9", "x" * 255, "a\nb", "\udcff"):
        assert components(f"2026/{name}") == ("2026", name)


def test_the_folders_of_a_directory_are_listed_without_links(directory, tmp_path):
    (tmp_path / "2026/.hidden").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("2026")
    assert directory.folders() == ["2026"]
    assert directory.folders("2026") == [".hidden"]
    assert directory.folders("missing") == []
    with pytest.raises(StorageError, match="symbolic link"):
        directory.folders("link")


def test_the_directory_above_a_file_is_opened_or_named(tmp_path):
    with Directory.above(tmp_path / "file") as above:
        assert above.path == tmp_path
    for parent in (tmp_path / "missing", Path(__file__)):
        with pytest.raises(NotFound, match=f"{parent}: no such directory"):
            Directory.above(parent / "file")


@pytest.mark.parametrize("target", ["file", "directory", "missing"])
def test_a_symbolic_link_is_never_followed(directory, tmp_path, target):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(outside / target if target != "directory" else outside)
    with pytest.raises(StorageError, match="symbolic link"):
        directory.open_to_read("link")
    with pytest.raises(StorageError, match="symbolic link"):
        directory.open_to_write("link")
    with pytest.raises(StorageError, match="symbolic link"):
        directory.regular_file("link")
    with pytest.raises(FileExistsError):
        directory.create_file("link")
    if target == "directory":
        with pytest.raises(StorageError, match="symbolic link"):
            directory.open_to_read("link/file")
        with pytest.raises(StorageError, match="symbolic link"):
            directory.create_file("link/new")
        with pytest.raises(StorageError, match="symbolic link"):
            directory.unlink("link/file")
    assert (outside / "file").read_bytes() == b"secret"
    assert sorted(each.name for each in outside.iterdir()) == ["file"]
    assert stat.S_ISLNK(directory.stat("link").st_mode)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: os.mkfifo(path)], ids=["directory", "fifo"])
def test_only_regular_files_are_opened_and_a_fifo_does_not_hang(directory, tmp_path, open_files, make):
    make(tmp_path / "odd")
    before = open_files()
    for method in (directory.open_to_read, directory.regular_file):
        with pytest.raises(StorageError, match="not a regular file"):
            method("odd")
    with pytest.raises(StorageError):
        directory.open_to_write("odd")
    assert open_files() == before


def test_a_missing_file_raises_the_built_in_error(directory):
    for method in (directory.open_to_read, directory.open_to_write, directory.unlink):
        for name in ("missing", "missing/too"):
            with pytest.raises(FileNotFoundError):
                method(name)
    assert directory.stat("missing/too") is None


def test_discard_removes_the_files_that_exist(directory):
    for name in ("one", "two", "three"):
        directory.create_file(name).close()
    directory.discard("one", "missing", "one", "missing/too", "two")
    assert directory.names() == ["three"]
    assert directory.regular_file("missing") is None
    assert directory.inode("missing") is None
    assert directory.names("missing") == []


def test_a_file_where_a_directory_should_be_is_refused(directory, tmp_path):
    (tmp_path / "2026").write_bytes(b"")
    with pytest.raises(StorageError):
        directory.create_file(NAME)
    with pytest.raises(StorageError):
        directory.open_to_read(NAME)


def test_new_directories_are_made_durable_parent_first(directory, tmp_path, synced):
    directory.create_file("a/b/file").close()
    assert synced == [f"{tmp_path}/", f"{tmp_path}/a"] or synced == [str(tmp_path), f"{tmp_path}/a"]
    synced.clear()
    directory.create_file("a/b/other").close()
    assert synced == []


def test_a_path_is_made_with_its_parents_and_all_are_made_durable(tmp_path, synced):
    Directory.create(tmp_path / "a" / "b").close()
    assert {Path(path) for path in synced} == {tmp_path, tmp_path / "a"}
    synced.clear()
    Directory.create(tmp_path / "a" / "b").close()
    assert synced == []


def test_a_small_file_appears_complete_or_not_at_all(directory, tmp_path, synced, monkeypatch):
    directory.write_new("file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert [Path(path).name.startswith(".file.") for path in synced] == [True, False]
    with pytest.raises(FileExistsError):
        directory.write_new("file", b"other")
    monkeypatch.setattr(os, "link", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        directory.write_new("another", b"content")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_file_that_is_synced_later_appears_complete_or_not_at_all(directory, tmp_path, synced, monkeypatch):
    (tmp_path / ".staged").write_bytes(b"of a process that was killed, and longer")
    directory.add("file", b"content", ".staged")
    assert (names(tmp_path), synced) == (["file"], [])
    assert (tmp_path / "file").read_bytes() == b"content"
    with pytest.raises(FileExistsError):
        directory.add("file", b"other", ".staged")
    for call in ("link", "pwrite"):
        monkeypatch.setattr(os, call, fail(errno.ENOSPC))
        with pytest.raises(DiskFull):
            directory.add("another", b"content", ".staged")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("call", ["open", "pwrite", "link"])
def test_an_interrupt_leaves_no_hidden_file(directory, tmp_path, monkeypatch, call):
    done = getattr(os, call)

    def interrupted(*given, **how):
        done(*given, **how)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        directory.add("file", b"content", ".staged")
    monkeypatch.undo()
    assert names(tmp_path) == (["file"] if call == "link" else [])


def test_a_file_is_added_where_there_are_no_hard_links(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", fail(errno.EPERM))
    directory.add("file", b"content", ".staged")
    assert names(tmp_path) == ["file"]


def test_a_small_file_is_replaced_by_a_complete_one_or_not_at_all(directory, tmp_path, synced, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    directory.replace("file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert [Path(path).name.startswith(".file.") for path in synced] == [True, False]
    monkeypatch.setattr(os, "rename", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        directory.replace("file", b"other")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("write", "staged"),
    [(Directory.write_new, f".file.{os.getpid()}"), (Directory.replace, ".file.new")],
    ids=["new", "replaced"],
)
def test_a_staged_file_of_a_killed_process_is_replaced(directory, tmp_path, write, staged):
    (tmp_path / staged).write_bytes(b"half")
    write(directory, "file", b"content")
    assert names(tmp_path) == ["file"]


def test_a_rename_is_made_durable(directory, tmp_path, synced):
    (tmp_path / "old").write_bytes(b"new content")
    (tmp_path / "name").write_bytes(b"")
    directory.rename("old", "name")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"name": b"new content"}
    assert len(synced) == 1


def test_a_file_with_other_names_is_replaced_by_a_durable_copy(directory, tmp_path, synced):
    file, backup = tmp_path / "file", tmp_path / "backup"
    file.write_bytes(b"content")
    assert not directory.separate("file", ".copy")
    backup.hardlink_to(file)
    assert directory.separate("file", ".copy")
    assert synced == [str(tmp_path / ".copy"), str(tmp_path)]
    assert file.read_bytes() == backup.read_bytes() == b"content"
    assert not file.samefile(backup)


def test_no_descriptor_is_left_open(directory, tmp_path, open_files):
    before = open_files()
    with directory.create_file(NAME) as file:
        file.write(0, b"x")
        file.sync()
    directory.open_to_read(NAME).read(0, 1)
    directory.sync("2026")
    directory.names("2026")
    directory.write_new("file", b"")
    directory.shared().close()
    for name in ("2026/missing", "x/y"):
        with pytest.raises(FileNotFoundError):
            directory.open_to_read(name)
    Directory.open(tmp_path).close()
    assert open_files() == before


def test_a_directory_may_be_closed_twice(tmp_path):
    directory = Directory.open(tmp_path)
    directory.close()
    directory.close()
    with pytest.raises(StateError, match="closed"):
        directory.open_to_read("file")


def test_only_a_directory_can_be_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        Directory.open(tmp_path / "missing")
    with pytest.raises(NotADirectoryError):
        Directory.open(tmp_path / "file")
    with pytest.raises(FileExistsError):
        Directory.create(tmp_path / "file")
    (tmp_path / "loop").symlink_to("loop")
    for opened in (Directory.open, lambda path: Directory.above(path / "file")):
        with pytest.raises(StorageError, match=f"^{tmp_path}/loop: Too many levels"):
            opened(tmp_path / "loop")


def test_the_filesystem_is_found_by_its_device(directory, tmp_path, monkeypatch):
    device = tmp_path.stat().st_dev
    mine = f"{os.major(device)}:{os.minor(device)}"

    def mounted(kind):
        lines = f"1 0 0:1 / / rw - overlay overlay rw\n2 1 {mine} / {tmp_path} rw shared:1 - {kind} server:/export rw\n"
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: lines)
        return directory.is_network()

    assert mounted("nfs4")
    assert mounted("cifs")
    assert mounted("fuse.sshfs")
    assert not mounted("ext4")
    assert not mounted("tmpfs")


def test_without_proc_the_filesystem_counts_as_local(directory, monkeypatch):
    monkeypatch.setattr(Path, "read_text", fail(errno.ENOENT))
    assert not directory.is_network()


def test_a_tree_is_removed_without_following_links(directory, tmp_path):
    (tmp_path / "tree/deep/er").mkdir(parents=True)
    (tmp_path / "tree/deep/file").write_text("x")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("x")
    (tmp_path / "tree/link").symlink_to(tmp_path / "kept")
    directory.remove_tree("tree")
    directory.remove_tree("missing")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept/file").exists()


def test_a_file_is_locked_exclusively_only_if_nobody_shares_it(directory, tmp_path, open_files):
    (tmp_path / "file").touch()
    before = open_files()
    shared = directory.shared("file")
    with directory.exclusive_if_free("file") as free, directory.exclusive_if_free() as other:
        assert (free, other) == (False, True)
    shared.close()
    with directory.exclusive_if_free("file") as free:
        assert free
    assert open_files() == before


def test_a_folder_that_a_killed_process_has_made_is_synced_in_the_one_above(tmp_path, monkeypatch):
    """It had no time to do so itself; and what is in it would go with it in a power cut."""
    (tmp_path / "2026").mkdir()
    synced = []
    with closing(Directory.open(tmp_path)) as directory:
        monkeypatch.setattr(Directory, "sync", lambda _, name="": synced.append(name))
        for name in ("2026/a", "2026/b"):
            directory.create_file(name, make=True).close()
    assert synced == [""]
