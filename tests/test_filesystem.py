from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondisk.errors import (
    DiskFull,
    DurabilityLost,
    InvalidInput,
    LockError,
    ReadOnly,
    StateError,
    StorageError,
    UnsupportedFilesystem,
)
from ondisk.filesystem import LOCK, Directory, WritersLock, components, files

NAME = "2026/11-20.vm2"
OUTSIDE = ["../x", "/etc/passwd", "a/../b", "a//b", "", "/", "a/", "a\0b", "..", "a/" + "x" * 256, "\u00e9" * 128]


def names(path):
    return sorted(each.name for each in path.iterdir())


@pytest.fixture
def directory(tmp_path):
    with Directory.open(tmp_path) as directory:
        yield directory


@pytest.fixture
def synced(monkeypatch):
    """Return the paths that are synced, in order, without a real sync."""
    paths = []
    monkeypatch.setattr("ondisk.filesystem.files.sync", lambda _, path: paths.append(path))
    return paths


def fail(code):
    def call(*_, **__):
        raise OSError(code, os.strerror(code))

    return call


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
        assert components(f"2026/{name}") == ["2026", name]


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
    assert directory.regular_file("missing") is None
    assert directory.inode("missing") is None
    assert directory.names("missing") == []


def test_a_file_where_a_directory_should_be_is_refused(directory, tmp_path):
    (tmp_path / "2026").write_bytes(b"")
    with pytest.raises(StorageError):
        directory.create_file(NAME)
    with pytest.raises(StorageError):
        directory.open_to_read(NAME)


def test_reading_stops_at_the_end_and_at_the_limit(directory, tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    file = directory.open_to_read("file")
    assert (file.size(), file.read(2, 3), file.read(8, 100), file.read(50, 1), file.read(3, 0)) == (
        10,
        b"234",
        b"89",
        b"",
        b"",
    )
    assert directory.read("file", 10) == b"0123456789"
    with pytest.raises(InvalidInput, match="larger than 9 bytes"):
        directory.read("file", 9)


def test_short_reads_are_continued(directory, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"0123456789")
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: whole(file, min(size, 3), offset))
    assert directory.open_to_read("file").read(1, 8) == b"12345678"


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


def test_a_staged_file_of_a_killed_process_is_replaced(directory, tmp_path):
    (tmp_path / f".file.{os.getpid()}").write_bytes(b"half")
    directory.write_new("file", b"content")
    assert names(tmp_path) == ["file"]


def test_a_rename_is_made_durable(directory, tmp_path, synced):
    (tmp_path / "old").write_bytes(b"new content")
    (tmp_path / "name").write_bytes(b"")
    directory.rename("old", "name")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"name": b"new content"}
    assert len(synced) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EACCES, ReadOnly),
        (errno.EPERM, ReadOnly),
        (errno.EROFS, ReadOnly),
        (errno.EIO, StorageError),
        (errno.EMFILE, StorageError),
        (errno.EFBIG, StorageError),
    ],
)
def test_errors_of_the_operating_system_become_errors_of_ondisk(directory, tmp_path, monkeypatch, code, kind):
    with directory.create_file("file") as file, monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail(code))
        patched.setattr(os, "ftruncate", fail(code))
        patched.setattr(os, "pread", fail(code))
        for call, expected in (
            (lambda: file.write(0, b"x"), kind),
            (lambda: file.truncate(0), kind),
            (lambda: directory.open_to_read("file").read(0, 1), StorageError if kind is ReadOnly else kind),
        ):
            with pytest.raises(expected) as caught:
                call()
            assert type(caught.value) is expected
            assert str(tmp_path / "file") in caught.value.message
            assert caught.value.__cause__.errno == code


def test_a_failed_sync_is_never_retried(directory, monkeypatch):
    calls = []

    def broken(_):
        calls.append(1)
        raise OSError(errno.EIO, "Input/output error")

    with directory.create_file("file") as file:
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(DurabilityLost, match="file: fsync failed"):
            file.sync()
        with pytest.raises(DurabilityLost):
            directory.sync()
    assert len(calls) == 2


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


def test_the_exclusive_lock_is_taken_only_while_nobody_holds_a_shared_one(directory, tmp_path):
    with directory.exclusive_if_free() as free:
        assert free
    with Directory.open(tmp_path) as other:
        lock = other.shared()
        with directory.exclusive_if_free() as free:
            assert not free
        second = other.shared()
        lock.close()
        with directory.exclusive_if_free() as free:
            assert not free
        second.close()
    with directory.exclusive_if_free() as free:
        assert free


HOLD = """
import sys
from ondisk.filesystem import Directory, WritersLock

with Directory.open(sys.argv[1]) as directory, WritersLock(directory, 5).hold("append"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the writers' lock until its input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process


def test_waiting_too_long_names_the_holder(directory, holder):
    with pytest.raises(LockError, match=r"waited 0\.05 s") as caught, WritersLock(directory, 0.05).hold("delete"):
        pass
    assert str(holder.pid) in caught.value.message
    assert caught.value.context["holder"]["verb"] == "append"
    assert caught.value.context["holder"]["pid"] == holder.pid
    assert "lock_timeout" in caught.value.hint


def test_the_lock_of_a_killed_process_is_free_at_once(directory, holder):
    holder.kill()
    holder.wait()
    with WritersLock(directory, 0).hold("append"):
        pass


def test_the_lock_file_stays_and_names_its_last_holder(directory, tmp_path):
    lock = WritersLock(directory, 1)
    with lock.hold("append"):
        record = (tmp_path / LOCK).read_bytes()
    inode = (tmp_path / LOCK).stat().st_ino
    assert json.loads(record)["verb"] == "append"
    assert json.loads(record)["pid"] == os.getpid()
    assert len(record) == 256
    with lock.hold("delete"):
        assert (tmp_path / LOCK).stat().st_ino == inode
        assert json.loads((tmp_path / LOCK).read_bytes())["verb"] == "delete"


def is_held(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def test_the_lock_is_flock_and_is_released(directory, tmp_path):
    with WritersLock(directory, 1).hold("append"), (tmp_path / LOCK).open("rb") as file:
        assert is_held(file)
    with (tmp_path / LOCK).open("rb") as file:
        assert not is_held(file)


@pytest.mark.parametrize("record", [b"", b"no json", b"[]", b"\xff" * 256, b"x" * 10_000])
def test_a_holder_without_a_readable_name_is_just_another_process(directory, tmp_path, record):
    (tmp_path / LOCK).write_bytes(record)
    with (tmp_path / LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockError, match="another process"), WritersLock(directory, 0.01).hold("append"):
            pass


def test_threads_wait_for_one_another(directory, tmp_path):
    inside, most = [0], [0]

    def work():
        with Directory.open(tmp_path) as own:
            for _ in range(20):
                with WritersLock(own, 20).hold("append"):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_filesystem_without_locks_is_refused(directory, monkeypatch, code):
    monkeypatch.setattr(fcntl, "flock", fail(code))
    with pytest.raises(UnsupportedFilesystem, match="no locks"), WritersLock(directory, 0.1).hold("append"):
        pass


def test_a_whole_filesystem_is_synced_only_if_it_reports_errors(directory, monkeypatch, tmp_path):
    (tmp_path / "inner").mkdir()
    calls = []
    monkeypatch.setattr(files, "sync_filesystem", lambda *_: calls.append(1) or True)
    for kind, expected in (("ext4", True), ("fuse", False), (None, False), ("nfs", False)):
        monkeypatch.setattr(Directory, "_filesystem", lambda _, kind=kind: kind)
        assert directory.sync_together(["inner"]) is expected
    monkeypatch.setattr(Directory, "_filesystem", lambda _: "ext4")
    assert not directory.sync_together(["inner", "missing"])
    assert len(calls) == 1


@pytest.mark.parametrize(("release", "expected"), [("5.7.19-x", False), ("5.8.0", True), ("6.18.44-fc", True)])
def test_a_kernel_that_does_not_report_errors_does_not_sync_the_filesystem(tmp_path, monkeypatch, release, expected):
    monkeypatch.setattr(files, "_release", lambda: tuple(int(each) for each in release.split("-")[0].split(".")[:2]))
    with (tmp_path / "file").open("wb") as file:
        assert files.sync_filesystem(file.fileno(), "file") is expected


def test_a_failed_sync_of_the_filesystem_loses_durability():
    with pytest.raises(DurabilityLost, match="fsync failed"):
        files.sync_filesystem(-1, "nowhere")


@given(
    spans=st.lists(st.tuples(st.integers(0, 700_000), st.integers(0, 40_000) | st.integers(100_000, 300_000))),
    offset=st.integers(0, 9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spans_are_copied_one_after_the_other(tmp_path: Path, spans: list[tuple[int, int]], offset: int) -> None:
    content = random.Random(1).randbytes(1_000_000)
    (tmp_path / "source").write_bytes(content)
    with Directory.open(tmp_path) as directory, directory.create_file("copy") as copy:
        copy.copy_spans(directory.open_to_read("source"), spans, offset)
    copied = (tmp_path / "copy").read_bytes()
    (tmp_path / "copy").unlink()
    assert copied[offset:] == b"".join(content[begin : begin + size] for begin, size in spans)


@pytest.mark.parametrize("size", [20, 200_000])
def test_a_span_past_the_end_of_the_file_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "source").write_bytes(bytes(size))
    with Directory.open(tmp_path) as directory, directory.create_file("copy") as copy:
        for begin in (1, size, size + 1):
            with pytest.raises(EOFError, match="source ends at byte"):
                copy.copy_spans(directory.open_to_read("source"), [(0, 10), (begin, size)], 0)
