"""Generations of a concat segment: how its file is replaced while it is read, so that a crash keeps old or new bytes.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     the hidden name of its generation 17

The index stores the current generation of every segment. The bytes of generation g are at `.NAME.g` if that exists,
else at `NAME`. Every repack, merge, or move to another dataset takes a new generation; a number is never used again.
Readers of an older snapshot find its generation by its hidden name.

To replace a segment of generation 17 by generation 18:

    1. `stage` creates `.NAME.18`; write it and sync it. `adopt` renames a file that another process wrote instead.
    2. `link_old` links NAME to `.NAME.17` and syncs the directory, and with it the name `.NAME.18`.
    3. Commit the index: the new offsets, generation 18. From now on readers find `.NAME.18`.
    4. `promote` renames `.NAME.18` to NAME.
    5. When nobody reads an older snapshot, `recover` removes `.NAME.17`.

To delete a segment: `link_old`, commit the index, remove NAME; then step 5.
To drop a segment that was moved to another dataset: `move_old` renames NAME to `.NAME.17`, so that nothing is at NAME
if the index is rebuilt. Commit the index; then step 5.

A rollback removes the new hidden names, or moves the file back with `complete`. After a crash, `recover` runs when the
dataset is next opened for writing, and after every commit until nothing is left. It finishes step 4 with `complete`,
and removes the generations that nobody needs, again if a power cut brings them back. If a deleted segment still has
NAME, the next repack removes it.

A file at a hidden name that is not a regular file, or that is shorter than the committed size, is not a generation.
Somebody else put it there, and it is left untouched.

The caller must hold the writers' lock. Names are relative to the dataset.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from ondisk.errors import StorageError
from ondisk.filesystem import Directory, WritableFile, is_denied

_HIDDEN = re.compile(r"\.(.+)\.([0-9]{1,18})")


def hidden(name: str, generation: int) -> str:
    """Return the hidden name of one generation of a segment."""
    parent, slash, last = name.rpartition("/")
    return f"{parent}{slash}.{last}.{generation}"


def stage(directory: Directory, name: str, generation: int) -> WritableFile:
    """Create the file of a new generation, after removing what a crash left at its name."""
    alias = hidden(name, generation)
    directory.discard(alias)
    return directory.create_file(alias)


def adopt(directory: Directory, staged: str, name: str, generation: int) -> None:
    """Rename a file that another process wrote to the hidden name of a new generation.

    Durability: the rename is synced; the other process has synced the file.
    """
    directory.rename(staged, hidden(name, generation))


def link_old(directory: Directory, name: str, generation: int) -> None:
    """Give the current generation its hidden name, so that readers still find it when NAME is replaced or removed.

    Durability: syncs the directory, and with it the name of a staged file.
    """
    with contextlib.suppress(FileExistsError):
        directory.link(name, hidden(name, generation))
    directory.sync(_parent(name))


def move_old(directory: Directory, name: str, generation: int) -> None:
    """Move the current generation to its hidden name, before the segment is dropped.

    After the commit nothing is left at NAME that a rebuilt index would treat as data.

    Durability: the rename is synced.
    """
    directory.discard(hidden(name, generation))  # rename does nothing if both are names of one file
    directory.rename(name, hidden(name, generation))


def promote(directory: Directory, name: str, generation: int) -> None:
    """Rename the committed generation to NAME, in place of the old one.

    Durability: the rename is synced.
    """
    directory.rename(hidden(name, generation), name)


def complete(directory: Directory, name: str, generation: int, size: int) -> None:
    """Promote a segment's committed generation, if a crash came between the commit and `promote`.

    Args:
        size: committed bytes of this generation.
    """
    if switched(directory, name, generation, size) is not None:
        promote(directory, name, generation)


def switched(directory: Directory, name: str, generation: int, size: int) -> os.stat_result | None:
    """Return the state of the committed generation's file if it must still be promoted, else None.

    A file shorter than the committed size is never promoted: the bytes of a generation are synced before its commit.
    """
    found, there = directory.stat(hidden(name, generation)), directory.stat(name)
    if found is None or not stat.S_ISREG(found.st_mode):
        return None
    if there is not None and (there.st_ino == found.st_ino or found.st_size < size):
        return None
    return found


def stray(directory: Directory, name: str, generation: int, size: int) -> str | None:
    """Return the hidden name of a segment's committed generation if another file has that name, else None.

    Readers would read that file instead of the segment.
    """
    alias = hidden(name, generation)
    found = directory.stat(alias)
    if found is None or switched(directory, name, generation, size) is not None or _same(directory, name, alias):
        return None
    return alias


def left_behind(directory: Directory) -> dict[str, list[int]]:
    """Return the segments that have hidden names on disk: name → generations, ascending.

    Cost: lists every directory that contains segments.
    """
    found: dict[str, list[int]] = {}
    for parent in parents(directory):
        try:
            names = directory.names(parent)
        except StorageError as error:
            if not is_denied(error):
                raise
            continue  # they stay there until somebody may read the directory; a check reports it
        for name in names:
            if matched := _HIDDEN.fullmatch(name):
                found.setdefault(f"{parent}/{matched[1]}", []).append(int(matched[2]))
    return {name: sorted(generations) for name, generations in found.items()}


def generations_of(directory: Directory, name: str) -> list[int]:
    """Return the generations of one segment that have hidden names on disk, ascending."""
    parent, _, last = name.rpartition("/")
    matches = (_HIDDEN.fullmatch(each) for each in directory.names(parent))
    return sorted(int(matched[2]) for matched in matches if matched and matched[1] == last)


def parents(directory: Directory) -> Iterator[str]:
    """Yield the directories that contain segments: years and centuries."""
    for name in directory.names():
        if re.fullmatch(r"[0-9]{2,4}", name):
            yield name


def recover(
    directory: Directory,
    name: str,
    generations: list[int],
    current: int | None,
    size: int = 0,
    *,
    unread: bool,
    trusted: bool,
) -> list[int]:
    """Finish what a crash interrupted with one segment, and remove the generations that nobody needs.

    Args:
        generations: those that have hidden names on disk.
        current: the segment's generation in the index; None if the index does not know the segment.
        size: committed bytes of this generation.
        unread: nobody reads an older snapshot.
        trusted: the sentinel does not exist. Otherwise an unknown segment may be one that the index has lost.

    Returns:
        The generations that are still needed.

    Durability: syncs the directory first. A name that was linked before the crash may not be durable yet, and no other
        name may be removed before it is.
    """
    generations = [generation for generation in generations if _is_file(directory, hidden(name, generation))]
    if not generations:
        return []
    directory.sync(_parent(name))
    if current is not None and current in generations:
        complete(directory, name, current, size)
        if _same(directory, name, hidden(name, current)):
            directory.discard(hidden(name, current))
    others = [generation for generation in generations if generation != current]
    if not unread or (current is None and not trusted):
        return others
    # A deleted segment that a crash left at NAME keeps its hidden name. Removing that would change the file's ctime, so
    # that the file would look newer than the index and a fix would bring it back.
    needed = [
        generation for generation in others if current is None and _same(directory, name, hidden(name, generation))
    ]
    directory.discard(*(hidden(name, generation) for generation in others if generation not in needed))
    return needed


def _is_file(directory: Directory, name: str) -> bool:
    found = directory.stat(name)
    return found is not None and stat.S_ISREG(found.st_mode)


def _same(directory: Directory, name: str, other: str) -> bool:
    one, two = directory.stat(name), directory.stat(other)
    return one is not None and two is not None and one.st_ino == two.st_ino


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
