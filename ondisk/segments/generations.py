"""Generations of a segment: how its bytes are changed beside readers, so that a crash leaves the old or the new ones.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     the bytes of its generation 17, during or after a repack

The one rule: the bytes of generation g are at `.NAME.g` if that exists, else at `NAME`. A generation is never used
again. What is no plain file, or too short to be the generation it is named after, is none: somebody put it there, and
it stays. To change a segment:

    1. write `.NAME.new`, sync it; link NAME to `.NAME.old`; sync the directory
    2. commit the index: new offsets, generation new
    3. rename `.NAME.new` to NAME; sync the directory
    4. when nobody reads an older snapshot, unlink what is not the generation of the index

To drop one: link as in 1, commit, unlink NAME, then 4. `recover` ends what a crash interrupted; a dropped one that is
still in its place it leaves to the next repack, which removes what the index does not know. One that was moved to an
archive is renamed to `.NAME.old` instead, so that nothing is in its place.

All functions are called under the writers' lock; names are relative to the dataset.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator

from ondisk.filesystem import Directory, WritableFile

_HIDDEN = re.compile(r"\.(.+)\.([0-9]{1,18})")


def hidden(name: str, generation: int) -> str:
    """Name the place of one generation of a segment."""
    parent, slash, last = name.rpartition("/")
    return f"{parent}{slash}.{last}.{generation}"


def stage(directory: Directory, name: str, generation: int) -> WritableFile:
    """Create the file of a new generation; what a crash left in its place goes."""
    place = hidden(name, generation)
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(place)
    return directory.create_file(place)


def adopt(directory: Directory, staged: str, name: str, generation: int) -> None:
    """Let a file that was written elsewhere be that of a new generation. It and its name are synced."""
    directory.rename(staged, hidden(name, generation))


def link_old(directory: Directory, name: str, generation: int) -> None:
    """Keep the bytes of the present generation for those who read it, whatever becomes of the segment's name.

    Durability: the directory is synced, and with it a staged file's name.
    """
    with contextlib.suppress(FileExistsError):
        directory.link(name, hidden(name, generation))
    directory.sync(_parent(name))


def move_old(directory: Directory, name: str, generation: int) -> None:
    """Let the bytes of the present generation stand under its hidden name alone, before the segment is dropped.

    Behind the commit nothing is left at the segment's name, that a rebuilt index would take for data. Synced.
    """
    discard(directory, [hidden(name, generation)])  # of two names of one file, rename would leave both
    directory.rename(name, hidden(name, generation))


def promote(directory: Directory, name: str, generation: int) -> None:
    """Put the committed generation in the place of the old one. Synced."""
    directory.rename(hidden(name, generation), name)


def discard(directory: Directory, names: Iterable[str]) -> None:
    """Remove files, if they are there.

    Durability: the directories are not synced: what comes back after a power cut, the next `recover` removes again.
    """
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name)


def complete(directory: Directory, name: str, generation: int, size: int) -> None:
    """End the switch to a segment's committed generation, if a crash interrupted it behind the commit.

    Args:
        size: bytes that are committed of it.
    """
    if switched(directory, name, generation, size) is not None:
        promote(directory, name, generation)


def switched(directory: Directory, name: str, generation: int, size: int) -> os.stat_result | None:
    """Find the bytes of a segment's committed generation where they still wait to take its place.

    A file that is shorter than what is committed takes the place of nothing: of a switch, all was synced before.
    """
    found, there = directory.stat(hidden(name, generation)), directory.stat(name)
    if found is None or not stat.S_ISREG(found.st_mode):
        return None
    if there is not None and (there.st_ino == found.st_ino or found.st_size < size):
        return None
    return found


def stray(directory: Directory, name: str, generation: int, size: int) -> str | None:
    """Name what stands where readers look for the bytes of a segment's committed generation, and is not these."""
    place = hidden(name, generation)
    found = directory.stat(place)
    if found is None or switched(directory, name, generation, size) is not None or _same(directory, name, place):
        return None
    return place


def left_behind(directory: Directory) -> dict[str, list[int]]:
    """Find the segments of which other generations lie on disk: name → generations, ascending.

    Cost: lists every directory that segments stand in.
    """
    found: dict[str, list[int]] = {}
    for parent in parents(directory):
        for name in directory.names(parent):
            if matched := _HIDDEN.fullmatch(name):
                found.setdefault(f"{parent}/{matched[1]}", []).append(int(matched[2]))
    return {name: sorted(generations) for name, generations in found.items()}


def generations_of(directory: Directory, name: str) -> list[int]:
    """Find the generations of one segment that lie on disk under their hidden names, ascending."""
    parent, _, last = name.rpartition("/")
    matches = (_HIDDEN.fullmatch(each) for each in directory.names(parent))
    return sorted(int(matched[2]) for matched in matches if matched and matched[1] == last)


def parents(directory: Directory) -> Iterator[str]:
    """Give the directories that segments stand in: years and centuries."""
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
    """End what a crash interrupted with one segment, and remove the generations that nobody needs.

    Args:
        generations: those that lie on disk under their hidden names.
        current: the segment's generation in the index; None where it has no such segment.
        size: bytes that are committed of it.
        unread: nobody reads an older snapshot.
        trusted: no sentinel stands. Else a segment that the index does not know may be one that it has lost.

    Returns:
        The generations that are still needed.

    Durability: the directory is synced first: a name that was linked before the crash may not be durable yet, and
        another may be removed only when it is.
    """
    generations = [generation for generation in generations if _is_file(directory, hidden(name, generation))]
    if not generations:
        return []
    directory.sync(_parent(name))
    if current is not None and current in generations:
        complete(directory, name, current, size)
        if _same(directory, name, hidden(name, current)):
            discard(directory, [hidden(name, current)])
    others = [generation for generation in generations if generation != current]
    if not unread or (current is None and not trusted):
        return others
    # What was dropped, and a crash left in its place, keeps its second name: taking that away would let it look newer
    # than the index, so that a fix would bring it back.
    needed = [
        generation for generation in others if current is None and _same(directory, name, hidden(name, generation))
    ]
    discard(directory, (hidden(name, generation) for generation in others if generation not in needed))
    return needed


def _is_file(directory: Directory, name: str) -> bool:
    found = directory.stat(name)
    return found is not None and stat.S_ISREG(found.st_mode)


def _same(directory: Directory, name: str, other: str) -> bool:
    one, two = directory.stat(name), directory.stat(other)
    return one is not None and two is not None and one.st_ino == two.st_ino


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
