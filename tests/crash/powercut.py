"""A disk whose power can be cut: ext4 in an image file, mounted by loop.

Two ways: `FS_IOC_SHUTDOWN` ends the filesystem under a running process, and what was not synced never reaches the
disk; or the image is copied while the process stands still, and the copy is what a cut at that moment would have left.
Mounting plays the journal back, as after a real cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING_THE_LOG = 2
_SIZE = "32M"


class Disk:
    """An ext4 filesystem in a file."""

    def __init__(self, image: Path) -> None:
        self.image = image
        self.path = image.with_suffix(".mounted")

    @classmethod
    def make(cls, image: Path) -> Disk:
        _run("truncate", "-s", _SIZE, image)
        _run("mkfs.ext4", "-q", "-F", image)
        return cls(image)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount the disk for the length of the block."""
        self.path.mkdir(exist_ok=True)
        # The kernel's own commit, every 5 s unless told otherwise, must not save what nobody synced.
        done = subprocess.run(["mount", "-o", "loop,commit=300", self.image, self.path], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no loop mounts here: {done.stderr.strip()}")
        try:
            yield self.path
        except BaseException:
            _run("umount", "--lazy", self.path)  # the traceback may hold open files
            raise
        _run("umount", self.path)

    def cut(self) -> None:
        """Cut the power: from now on nothing reaches the disk. To be mounted again."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(descriptor)

    def copied(self, image: Path) -> Disk:
        """Copy what is on the disk now, while nobody writes."""
        shutil.copyfile(self.image, image)
        return Disk(image)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


cuts_power = [
    pytest.mark.crash,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root"),
    pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="mkfs.ext4 is not installed"),
]
