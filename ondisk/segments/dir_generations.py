"""Generations of dir segments: how a whole directory gets its name, and how what a crash left is removed.

See `ondisk.segments.generations` for the steps.
"""

from __future__ import annotations

import contextlib
import stat

from ondisk.errors import DiskFull, StorageError
from ondisk.filesystem import Directory
from ondisk.segments import quarantine
from ondisk.segments.dir import SEQUENCE, file_name, files_of
from ondisk.segments.dir_facts import seen_in
from ondisk.segments.facts import Committed, Seen
from ondisk.segments.generations import MOVED, hidden, mark_moved, retire
from ondisk.segments.metadata_file import METADATA, NEW_METADATA


def complete_folder(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Give the directory of a generation its name, if that is left to do.

    Only if it agrees with the facts in the index. Another directory at NAME, which does not, is moved to quarantine.

    Args:
        committed: the facts, and the bytes of `.metadata` at the last commit.

    Durability: the rename is synced.
    """
    alias = hidden(name, generation)
    there = directory.stat(alias)
    if there is None or not stat.S_ISDIR(there.st_mode) or not agrees(directory, alias, committed):
        return
    if directory.stat(name) is not None:
        if agrees(directory, name, committed):
            return
        quarantine.keep(directory, name, verb="open", why=f"generation {generation} of the segment takes its place")
    directory.rename(alias, name)


def hide(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Move the directory of a generation to its hidden name, where readers still find it.

    A directory that is not the generation goes to quarantine.

    Durability: the rename is synced.
    """
    if agrees(directory, name, committed):
        directory.rename(name, hidden(name, generation))
    else:
        why = f"generation {generation} of the segment was dropped, and it is not that"
        quarantine.keep(directory, name, verb="repack", why=why)


def leave_folder(directory: Directory, name: str, generation: int, committed: Committed) -> None:
    """Do as `ondisk.segments.generations.leave` with a directory."""
    if agrees(directory, name, committed):
        mark_moved(directory, name, generation)
        directory.rename(name, hidden(name, generation))


def agrees(directory: Directory, path: str, committed: Committed) -> bool:
    """Return whether a directory may be the one that the index describes."""
    try:
        with directory.inside(path) as folder:
            return seen_in(folder, committed.facts, committed.size) is not Seen.OTHER
    except (FileNotFoundError, StorageError):
        return False


def discard_folder(directory: Directory, name: str, path: str) -> None:
    """Remove the directory of a segment with its files, unless it contains other files.

    First an empty `.metadata.new` is written, so that `scan` does not treat the files as lost after a crash.

    Args:
        path: of the directory.
    """
    found = directory.stat(path)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return
    with directory.inside(path) as folder:
        folder.discard(NEW_METADATA)
        with contextlib.suppress(DiskFull):  # as long as the index exists, entries without a file do no harm
            folder.create_file(NEW_METADATA).close()
        folder.discard(*(file_name(name, number) for number in files_of(folder, name)))
        folder.discard(METADATA, NEW_METADATA, SEQUENCE)
    directory.remove_directory(path)


def recover_folders(
    directory: Directory,
    name: str,
    generations: list[int],
    current: tuple[int, Committed] | None,
    *,
    unread: bool,
    trusted: bool,
) -> list[int]:
    """Finish what a crash interrupted with one segment; see `ondisk.segments.generations.recover`.

    Returns:
        The generations that are still needed.
    """
    known = None if current is None else current[0]
    if current is not None and known in generations:
        complete_folder(directory, name, *current)
    others = [generation for generation in generations if generation != known]
    if not unread or not trusted:
        return others
    for generation in others:
        alias = hidden(name, generation)
        directory.discard(alias + MOVED)
        if retire(directory, name, generation):
            continue
        discard_folder(directory, name, alias)
        if directory.stat(alias) is not None:
            why = "files that are not the segment's were in its directory, which was removed"
            quarantine.keep(directory, alias, verb="repack", why=why, of=name)
    return []
