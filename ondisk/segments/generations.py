"""Generations of a segment: how its file is replaced while it is read, so that a crash keeps old or new bytes.

    2026/11-20.vm2         the segment
    2026/.11-20.vm2.17     the hidden name of its generation 17

The index stores the current generation of every segment. The bytes of generation g are at `.NAME.g` if that is a file
with the facts that the index recorded, else at `NAME`. Every new segment, repack, merge, or move to another dataset
takes a new generation; a number is never used again. Readers of an older snapshot find its generation by its hidden
name.

To create a segment of generation 17:

    1. Write `.NAME.17`, sync it and the directory.
    2. Commit the index. From now on readers find `.NAME.17`.
    3. `reveal` gives it its name, but never in the place of another file.

To replace a segment of generation 17 by generation 18:

    1. `stage` creates `.NAME.18`; write it and sync it. Or rename a file to it that another process wrote.
    2. `link_old` links NAME to `.NAME.17` and syncs the directory, and with it the name `.NAME.18`.
    3. Commit the index: the new offsets, generation 18. From now on readers find `.NAME.18`.
    4. `complete` renames `.NAME.18` to NAME.
    5. When nobody reads an older snapshot, `recover` removes `.NAME.17`.

A dir segment is a directory, which cannot replace another one: instead of 2, `move_old` renames NAME to `.NAME.17`.

To move a segment of generation 17 to another folder, as generation 18 of another name:

    1. Link or copy it to the hidden name of generation 18 there, sync that and all new folders. A copy has the mark of
       step 3 until it is whole.
    2. Commit the index. From now on readers find generation 18; until then generation 17 keeps its name.
    3. `leave` renames the old file to its hidden name `.NAME.17`, with the empty file `.NAME.17.moved` beside it. While
       the index is lost, a generation with such a mark is no data: the other folder has them.
    4. `complete` gives generation 18 its name. Then step 5 as above.

To drop a segment: `move_old` renames NAME to `.NAME.17`. Commit the index; then step 5, or `retire` moves `.NAME.17` to
`.replaced`, for jobs that were planned before; see `ondisk.segments.replaced`.

A file gets its NAME only after the commit of its row, and loses it before the commit that removes the row. So while the
index is trusted, a file at a NAME without a row is somebody else's.

A rollback removes the new hidden names, or moves the file back with `complete`. After a crash, `recover` runs when the
dataset is next opened for writing, and after every commit until nothing is left. It finishes the last steps with
`complete`, and removes the generations that nobody needs; one that a power cut brings back is removed by the next run.
While the sentinel exists it removes none: one of them may contain data that the index has lost.

A file at the hidden name of the current generation is that generation only if it agrees with the facts in the index. If
not, it is somebody else's: readers do not read it, and `recover` leaves it. A file with another number is taken for an
old generation: `recover` removes it, and compares nothing.

The caller must hold the writers' lock. Names are relative to the dataset.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import chain

from ondisk.errors import ReadOnly, StorageError
from ondisk.filesystem import Directory, WritableFile, is_denied
from ondisk.segments.file_facts import Committed, Seen
from ondisk.segments.places import elsewhere, roots

_LOOKS = 3  # rounds; a reader finds a generation in the second one, unless drops are undone

REPLACED = ".replaced"
"""The folder, beside the segments, of generations that are kept after nobody needs them."""

ROWS = ".rows"
"""What follows the name of a kept generation in that of its rows."""

MOVED = ".moved"
"""What follows the hidden name of a generation that was moved to another folder in the name of its mark."""

_HIDDEN = r"\.(.+)\.([0-9]{1,18})(\.moved)?"
_NUMBERED = r"[0-9]+\.[a-z0-9]+"
"""The names of the segments of a sequence, which are in the dataset's directory, beside files of other kinds."""


def parent_of(name: str) -> str:
    return name.rpartition("/")[0]


def below(folder: str, last: str) -> str:
    return f"{folder}/{last}" if folder else last


def hidden(name: str, generation: int) -> str:
    parent, slash, last = name.rpartition("/")
    return f"{parent}{slash}.{last}.{generation}"


def present_name(directory: Directory, name: str, generation: int) -> str:
    """Return where the bytes of a generation are that is in the index."""
    alias = hidden(name, generation)
    return name if directory.stat(alias) is None else alias


def kept(name: str, generation: int) -> str:
    parent, slash, last = name.rpartition("/")
    return f"{parent}{slash}{REPLACED}/{last}.{generation}"


def names_of(directory: Directory, name: str, generation: int) -> Iterator[str]:
    """Yield the names at which a reader finds the bytes of a generation, in the order in which to look at them.

    The hidden name, the name, and the hidden name again: between the first two, a repack may promote the alias; after
    the second, the next repack may replace the file at the name and link the old one to the alias. Then again: a drop
    may have begun and been undone meanwhile. A generation that is kept after that has left its alias; and its place may
    have another name.
    """
    for each in chain([name], elsewhere(directory, name)):
        alias = hidden(each, generation)
        yield from (alias, each, alias) * _LOOKS
        yield kept(each, generation)


def retire(directory: Directory, name: str, generation: int) -> bool:
    """Keep a generation that nobody needs any more if its rows were kept; return whether it has left its hidden name.

    Another file at the name under which it would be kept stays there.

    Durability: none is needed: `recover` does again what a power cut undoes.
    """
    place = kept(name, generation)
    if directory.stat(place + ROWS) is None or directory.stat(place) is not None:
        return False
    directory.rename(hidden(name, generation), place)
    return True


def stage(directory: Directory, name: str, generation: int) -> WritableFile:
    """Create the file of a new generation, after removing what a crash left at its name."""
    alias = hidden(name, generation)
    directory.discard(alias)
    return directory.create_file(alias)


def link_old(directory: Directory, name: str, generation: int, committed: Committed | None) -> None:
    """Give the current generation its hidden name, so that readers still find it when NAME is replaced or removed.

    A file that somebody has put in its place meanwhile does not keep that name: it would be removed like a generation.

    Args:
        committed: the bytes of the generation; None if it is whatever is at NAME.

    Durability: syncs the directory, and with it the name of a staged file.
    """
    with contextlib.suppress(FileExistsError):
        directory.link(name, hidden(name, generation))
    directory.sync(parent_of(name))
    if committed is not None and not is_committed(directory, hidden(name, generation), committed):
        set_aside(directory, name, generation, verb="repack")
        directory.sync(parent_of(name))


def move_old(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Move the current generation to its hidden name, before the segment is dropped.

    After the commit nothing is left at NAME that a rebuilt index would treat as data. A file that is not the generation
    goes to quarantine.

    Durability: the rename is synced.
    """
    set_aside(directory, name, generation, verb="repack")  # rename does nothing if both are names of one file
    directory.rename(name, hidden(name, generation))
    if not is_committed(directory, hidden(name, generation), committed):
        set_aside(directory, name, generation, verb="repack")


def leave(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Move a generation that is in another folder now to its hidden name, with a mark.

    Not another file: a copy that somebody has put there has another inode.

    Durability: the mark is synced first, then the rename.
    """
    found = recorded_stat(directory, name)
    if found is not None and committed.may_be(found) and is_committed(directory, name, committed):
        mark_moved(directory, name, generation)
        set_aside(directory, name, generation, verb="move")
        directory.rename(name, hidden(name, generation))


def mark_moved(directory: Directory, name: str, generation: int) -> None:
    """Say that another folder has the data of a hidden generation: it was moved there, or is copied from there."""
    mark = hidden(name, generation) + MOVED
    directory.discard(mark)
    with directory.create_file(mark) as file:
        file.sync()
    directory.sync(parent_of(name))


def reveal(directory: Directory, new: Iterable[tuple[str, int]]) -> None:
    """Give the files of new segments their names, after the commit that created them.

    Durability: links each file to its name, syncs the directories, unlinks the hidden names: a power cut loses none or
        one of the two names. After a crash `complete` or `recover` does what is left.
    """
    linked: dict[str, list[str]] = {}
    for name, generation in new:
        alias = hidden(name, generation)
        try:
            is_linked = directory.link(alias, name)
        except FileExistsError:  # somebody else's file: readers prefer the hidden name
            continue
        except (StorageError, ReadOnly):  # the filesystem has no links
            is_linked = False
        if is_linked:
            linked.setdefault(parent_of(name), []).append(alias)
        elif directory.stat(name) is None:
            directory.rename(alias, name)
    for parent, aliases in linked.items():
        directory.sync(parent)
        directory.discard(*aliases)


def complete(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Rename the committed generation to NAME, if that is left to do.

    A file at NAME that is no generation of the segment is moved to quarantine.

    Durability: the rename is synced.
    """
    if waiting(directory, name, generation, committed) is None:
        return
    found = directory.stat(name)
    if found is None:  # a process that was killed may just have moved another file to quarantine
        directory.sync(parent_of(name))
    elif all(directory.inode(hidden(name, each)) != found.st_ino for each in generations_of(directory, name)):
        # It has no hidden name, so it is no generation that was superseded.
        from ondisk.segments import quarantine  # here, as it is rarely needed

        quarantine.keep(directory, name, verb="open", why=f"generation {generation} of the segment takes its place")
    directory.rename(hidden(name, generation), name)


def waiting(directory: Directory, name: str, generation: int, committed: Committed) -> os.stat_result | None:
    """Return the stat of the committed generation's file if it must still be renamed to NAME, else None."""
    alias = hidden(name, generation)
    there = directory.stat(alias)
    if there is None:
        return None
    found = directory.stat(name)
    if found is not None and found.st_ino == there.st_ino:
        return None
    return there if is_committed(directory, alias, committed) else None


def is_replaced(directory: Directory, name: str) -> bool:
    """Return whether the file at NAME has a hidden name, too: its successor is complete, and takes its place."""
    return any(_same(directory, name, hidden(name, each)) for each in generations_of(directory, name))


def stray(directory: Directory, name: str, generation: int, committed: Committed) -> str | None:
    """Return the hidden name of a segment's committed generation if another file has that name, else None."""
    alias = hidden(name, generation)
    if directory.stat(alias) is None or _same(directory, name, alias):
        return None
    return alias if waiting(directory, name, generation, committed) is None else None


def set_aside(directory: Directory, name: str, generation: int, *, verb: str) -> None:
    """Take a hidden name away from whatever has it, so that readers find the file at NAME.

    A second name of that file is removed; another file is moved to quarantine.

    Durability: syncs the directory before it removes a name: a process that was killed may not have synced the other.
    """
    alias = hidden(name, generation)
    if directory.stat(alias) is None:
        return
    if _same(directory, name, alias):
        directory.sync(parent_of(name))
        directory.discard(alias)
    else:
        from ondisk.segments import quarantine

        why = f"it had the name of generation {generation} of the segment, and is not that"
        quarantine.keep(directory, alias, verb=verb, why=why, of=name)


def left_behind(directory: Directory) -> dict[str, list[int]]:
    """Return the segments with hidden names, or marks of such: name → generations. Lists all their folders."""
    found: dict[str, list[int]] = {}
    for parent in parents(directory):
        try:
            names = directory.names(parent)
        except StorageError as error:
            if not is_denied(error):
                raise
            continue  # they stay there until somebody may read the directory; a check reports it
        for name in names:
            if not name.startswith(".") or not (matched := re.fullmatch(_HIDDEN, name)):
                continue
            if parent[-2:].isdigit() or re.fullmatch(_NUMBERED, matched[1]):
                found.setdefault(below(parent, matched[1]), []).append(int(matched[2]))
    return {name: sorted({*generations}) for name, generations in found.items()}


def generations_of(directory: Directory, name: str) -> list[int]:
    """Return the generations of one segment that have hidden names on disk, or marks of such, ascending."""
    parent, _, last = name.rpartition("/")
    matches = (re.fullmatch(_HIDDEN, each) for each in directory.names(parent) if each.startswith("."))
    return sorted({int(matched[2]) for matched in matches if matched and matched[1] == last})


def parents(directory: Directory) -> Iterator[str]:
    """Yield the directories that contain segments: years and centuries, and those with numbered segments.

    Also those in the places that are there and have an identity; nothing in others is cleaned up.
    """
    for root in ("", *roots(directory)):
        names = directory.names(root)
        if any(name == REPLACED or re.match(_NUMBERED, name.removeprefix(".")) for name in names):
            yield root
        for name in names:
            if 2 <= len(name) <= 4 and name.isascii() and name.isdigit():
                yield below(root, name)


def _remove(directory: Directory, name: str, generation: int) -> None:
    found, beside = directory.stat(alias := hidden(name, generation)), directory.stat(name)
    kind, its = (0 if each is None else stat.S_IFMT(each.st_mode) for each in (found, beside))
    if kind == stat.S_IFREG and its == stat.S_IFDIR:
        set_aside(directory, name, generation, verb="open")  # a file is no generation of a folder
    elif kind == stat.S_IFREG:
        directory.discard(alias)
    elif kind == stat.S_IFDIR and its != stat.S_IFREG:
        from ondisk.segments.dir import SEQUENCE, drop_folder  # here, as few datasets have dir segments

        if directory.stat(f"{alias}/{SEQUENCE}") is not None or not directory.names(alias):  # else somebody else's
            drop_folder(directory, name, alias)


def recover(
    directory: Directory,
    name: str,
    generations: list[int],
    current: tuple[int, Committed] | None,
    *,
    has_no_older_readers: bool,
    trusted: bool,
) -> list[int]:
    """Finish what a crash interrupted with one segment, and remove the generations that nobody needs.

    Args:
        current: the segment's generation in the index, and its bytes; None if the index does not know the segment.
        trusted: the sentinel does not exist. Otherwise an unknown generation may contain data that the index has lost.

    Returns:
        The generations that are still needed.

    Durability: syncs the directory first. A name that was linked before the crash may not be durable yet, and no other
        name may be removed before it is.
    """
    discard_marks(directory, name, generations)
    generations = [each for each in generations if directory.stat(hidden(name, each)) is not None]
    if not generations:
        return []
    directory.sync(parent_of(name))
    known = None if current is None else current[0]
    if current is not None and known in generations:
        complete(directory, name, *current)
        if _same(directory, name, hidden(name, current[0])):
            directory.discard(hidden(name, current[0]))
    others = [generation for generation in generations if generation != known]
    if not has_no_older_readers or not trusted:
        return others
    for generation in others:
        if not retire(directory, name, generation):
            _remove(directory, name, generation)
    discard_marks(directory, name, others)
    return []


def discard_marks(directory: Directory, name: str, generations: Iterable[int]) -> None:
    for alias in (hidden(name, generation) for generation in generations):
        if directory.stat(alias + MOVED) is not None and directory.stat(alias) is None:
            directory.discard(alias + MOVED)


def is_committed(directory: Directory, name: str, committed: Committed) -> bool:
    """Return whether a file or a directory may be the generation that the index describes."""
    return seen_at(directory, name, committed) not in (None, Seen.OTHER)


def seen_at(directory: Directory, name: str, committed: Committed) -> Seen | None:
    """Compare a file, or the directory of a dir segment, with the facts in the index; None if nothing is there."""
    found = directory.stat(name)
    with contextlib.suppress(FileNotFoundError):
        if found is not None and stat.S_ISDIR(found.st_mode):
            from ondisk.segments.dir import seen_in

            try:
                with directory.inside(name) as folder:
                    return seen_in(folder, committed.facts, committed.size)
            except StorageError:
                return Seen.OTHER
        if found is not None and stat.S_ISREG(found.st_mode):
            file = directory.open_to_read(name)
            return committed.seen_in(file, file.stat())
        return None if found is None else Seen.OTHER
    return None


def recorded_stat(directory: Directory, name: str) -> os.stat_result | None:
    """Return the stat of the file whose inode the index records of a segment; of a directory, its `.sequence`."""
    found = directory.stat(name)
    return directory.stat(f"{name}/.sequence") if found is not None and stat.S_ISDIR(found.st_mode) else found


def _same(directory: Directory, name: str, other: str) -> bool:
    one, two = directory.stat(name), directory.stat(other)
    return one is not None and two is not None and one.st_ino == two.st_ino
