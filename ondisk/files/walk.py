"""Find the files to append: those of folders, in a fixed order, and what is there that is no file to store.

A folder is opened component by component, without following symbolic links: neither a link in it nor a folder that is
replaced by one meanwhile can lead out of it. What the caller names itself may be a link.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ondisk.dataset.layout import CONFIG
from ondisk.errors import InvalidInput, NotFound, StorageError
from ondisk.filesystem import Directory, Entry

UNFINISHED = (".tmp", ".part")  # endings of files that another program still writes
REMOVED = "it was removed meanwhile"

LONGEST = 4096  # bytes of the path of a file, at most: more than a program can open at once


@dataclass(frozen=True, slots=True)
class Found:
    """Something in a folder, or a file that was named."""

    shown: str  # the path for messages: that of the folder that was named, and the path in it
    path: str  # relative to the folder that was named; of a file that was named itself only its name
    folder: Directory  # the folder that contains it, open until the next one is found
    name: str  # its name in there
    reason: str | None = None  # why it cannot be stored; None for a regular file


@dataclass(slots=True)
class Skipped:
    """What was skipped on purpose in a folder that was named: hidden names, and unfinished files."""

    hidden: int = 0
    unfinished: int = 0

    def __str__(self) -> str:
        return f"skipped: {self.hidden} hidden, {self.unfinished} unfinished" if self.hidden or self.unfinished else ""


def found_in(path: str, skipped: Skipped) -> Iterator[Found]:
    """Yield the file at a path, or all that is in the folder there and in its subfolders; count what is skipped.

    Of each folder first the files, then the subfolders, each in the order of their names. Hidden names and unfinished
    files in a folder are skipped.

    Memory: the names of one folder, and of the subfolders that wait.
    """
    if "\0" in path or not Path(path).exists():
        raise NotFound(f"{path}: no such file or folder", hint="Check the path.")
    if not Path(path).is_dir():
        yield _named(path)
        return
    with Directory.open(path) as top:
        if top.stat(CONFIG) is not None:
            raise InvalidInput(f"{path} is a dataset", hint="Append what `ondisk query --to` exports of it.")
        waiting = [""]
        while waiting:
            yield from _in_folder(top, path, waiting.pop(), waiting, skipped)


def _named(path: str) -> Found:
    place, name = Path(path).resolve(), Path(path).name
    folder = Directory.above(place)
    found = folder.stat(place.name)
    reason = REMOVED if found is None else _reason(Entry.of(place.name, found), name)
    return Found(path, name, folder, place.name, reason)


def _in_folder(top: Directory, named: str, inner: str, waiting: list[str], skipped: Skipped) -> Iterator[Found]:
    """Yield what is in the folder `inner` of `top`, shown below `named`, and add its subfolders to `waiting`."""

    def of(path: str, folder: Directory, name: str, reason: str | None) -> Found:
        return Found(os.path.join(named, path), path, folder, name, reason)  # noqa: PTH118 - Path drops a leading ./

    try:
        folder = top.inside(inner) if inner else top
        entries = folder.entries()
    except FileNotFoundError:  # it was removed meanwhile
        return
    except StorageError as error:
        if not inner:
            raise
        yield of(inner, top, inner, error.message.removeprefix(f"{top.at(inner)}: "))
        return
    folders = []
    for entry in entries:
        path = f"{inner}/{entry.name}" if inner else entry.name
        if entry.name.startswith("."):
            skipped.hidden += 1
        elif entry.kind == "directory":
            if (reason := _too_long(path) or _dataset(folder, entry.name)) is None:
                folders.append(path)
            else:
                yield of(path, folder, entry.name, reason)
        elif entry.name.endswith(UNFINISHED):
            skipped.unfinished += 1
        else:
            yield of(path, folder, entry.name, _reason(entry, path))
    waiting += reversed(folders)


def _dataset(folder: Directory, name: str) -> str | None:
    """Return why a folder is not entered: it contains a dataset, perhaps the one that is appended to."""
    with contextlib.suppress(StorageError):  # it cannot be listed either, and is refused then
        if folder.stat(f"{name}/{CONFIG}") is not None:
            return "it is a dataset"
    return None


def _reason(entry: Entry, path: str) -> str | None:
    if entry.kind != "file":
        return "it is not a regular file; links are not followed"
    return _too_long(path)


def _too_long(path: str) -> str | None:
    size = len(os.fsencode(path))
    return f"its path has {size} bytes, more than {LONGEST}" if size > LONGEST else None
