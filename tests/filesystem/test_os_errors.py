"""Errors of the operating system become errors of ondisk."""

from __future__ import annotations

import errno
import os

import pytest
from worlds import fail

from ondisk.errors import (
    DiskFull,
    ReadOnly,
    StorageError,
)


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
