"""The tools that accidents are made with: those of everybody, as processes where Python has no exact equivalent."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

INDEX_FILES = ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm")


def tool(*command: object) -> None:
    """Run a program, or skip the test if it is not installed."""
    program = str(command[0])
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def cp(source: Path, target: Path) -> None:
    """Copy over what is there: the same inode where a file exists, a new time."""
    tool("cp", "-rT", source, target)


def cp_p(source: Path, target: Path) -> None:
    tool("cp", "-rpT", source, target)


def cp_remove(source: Path, target: Path) -> None:
    """Copy to a new inode, with the time of the source."""
    tool("cp", "-rpT", "--remove-destination", source, target)


def mv(source: Path, target: Path) -> None:
    """Move to a name, and replace what is there."""
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    tool("mv", "-T", source, target)


def rsync(source: Path, target: Path, *options: str) -> None:
    slash = "/" if source.is_dir() else ""
    tool("rsync", "-a", "--delete", *options, f"{source}{slash}", f"{target}{slash}")


def rsync_by_size(source: Path, target: Path) -> None:
    """Leave each file that has the size of the one in the source, whatever its time."""
    rsync(source, target, "--size-only")


def tar(source: Path, target: Path) -> None:
    """Pack and unpack: times lose their fractions."""
    packed = target.with_name(f"{target.name}.tar")
    tool("tar", "--format=ustar", "-C", source, "-cf", packed, ".")
    target.mkdir(parents=True, exist_ok=True)
    tool("tar", "-C", target, "-xf", packed)
    packed.unlink()


def overwrite(path: Path, position: int, content: bytes) -> None:
    """Write into a file as `dd conv=notrunc` does."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = path.read_bytes()
    overwrite(path, position, bytes([content[position] ^ 1 << bit]))


def add_to(path: Path, content: bytes) -> None:
    """`cat >>`."""
    with path.open("ab") as file:
        file.write(content)


@contextmanager
def same_time(path: Path) -> Iterator[None]:
    """Put the time of a file back after the block, as a failing disk does not change it."""
    found = path.stat()
    yield
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@contextmanager
def mounted_over(path: Path) -> Iterator[None]:
    """Mount an empty filesystem over a folder: what is in the folder is not there, as if its own disk were away."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    tool("mount", "-t", "tmpfs", "none", path)
    try:
        yield
    finally:
        tool("umount", path)


def lose_index(folder: Path) -> None:
    for name in INDEX_FILES:
        (folder / name).unlink(missing_ok=True)


def put_index(source: Path, target: Path) -> None:
    """Put the index of one dataset in the place of that of another one, complete."""
    lose_index(target)
    for name in INDEX_FILES:
        if (source / name).exists():
            shutil.copy2(source / name, target / name)
