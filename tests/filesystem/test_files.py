"""Reading, writing and syncing files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ondisk.errors import (
    DurabilityLost,
    InvalidInput,
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
