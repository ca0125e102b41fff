"""Reading, writing and syncing files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from worlds import fail

from ondisk.errors import (
    DurabilityLost,
    InvalidInput,
    StorageError,
)
from ondisk.filesystem import Directory, files


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


def test_directories_on_another_filesystem_are_not_synced_together(monkeypatch):
    monkeypatch.setattr(files, "sync_filesystem", lambda *_: True)
    monkeypatch.setattr(Directory, "_filesystem", lambda _: "ext4")
    with Directory.open("/") as root:
        here = [each for each in ("tmp", "usr", "etc") if root.stat(each).st_dev == root.stat(".").st_dev]
        assert root.sync_together(here)
        assert not root.sync_together([*here, "proc"])


@pytest.mark.parametrize(("release", "expected"), [("5.7.19-x", False), ("5.8.0", True), ("6.18.44-fc", True)])
def test_a_kernel_that_does_not_report_errors_does_not_sync_the_filesystem(tmp_path, monkeypatch, release, expected):
    monkeypatch.setattr(files, "_release", lambda: tuple(int(each) for each in release.split("-")[0].split(".")[:2]))
    with (tmp_path / "file").open("wb") as file:
        assert files.sync_filesystem(file.fileno(), "file") is expected


def test_a_failed_sync_of_the_filesystem_loses_durability():
    with pytest.raises(DurabilityLost, match="fsync failed"):
        files.sync_filesystem(-1, "nowhere")


@pytest.mark.parametrize("size", [20, 200_000])
def test_bytes_past_the_end_of_the_file_are_not_copied(tmp_path: Path, size: int) -> None:
    (tmp_path / "source").write_bytes(bytes(size))
    with Directory.open(tmp_path) as directory, directory.create_file("copy") as copy:
        for begin in (1, size, size + 1):
            with pytest.raises(EOFError, match="source ends at byte"):
                copy.copy(directory.open_to_read("source"), begin, size, 0)


def copied(directory: Directory, source: Directory) -> bytes:
    """Copy 1,200,000 bytes from the middle of a file into the middle of another, and return what that contains then."""
    content = bytes(range(250)) * 6000
    with source.create_file("source") as file:
        file.write(0, content)
    with directory.create_file("copy") as copy:
        copy.write(0, b"before")
        copy.copy(source.open_to_read("source"), 100, 1_200_000, 6)
        assert copy.read(6, 1_200_000) == content[100:1_200_100]
        return copy.read(0, copy.size())[:6]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_bytes_are_copied_where_the_kernel_cannot(directory: Directory, code: int, monkeypatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", fail(code))
    assert copied(directory, directory) == b"before"


def test_bytes_are_copied_to_another_filesystem(directory: Directory, elsewhere: Path) -> None:
    with Directory.open(elsewhere) as other:
        assert copied(other, directory) == b"before"


def test_a_copy_that_the_kernel_ends_early_is_continued(directory: Directory, monkeypatch) -> None:
    whole = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda source, to, size, *at: whole(source, to, min(size, 400_001), *at))
    assert copied(directory, directory) == b"before"


def test_an_error_of_a_copy_is_no_reason_to_write_it_in_another_way(directory: Directory, monkeypatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", fail(errno.EIO))
    with pytest.raises(StorageError, match="copy: Input/output error"):
        copied(directory, directory)


def test_a_filesystem_that_nobody_can_write_to_has_nothing_to_sync(monkeypatch):
    with Path("/proc/self/stat").open() as file:  # which has no fsync
        with pytest.raises(DurabilityLost, match="fsync failed"):
            files.sync(file.fileno(), "stat")
        monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
        files.sync(file.fileno(), "stat")
