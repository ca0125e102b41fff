"""Segments that were dropped, and are kept for readers of an older plan: `keep_replaced` says how long.

    2026/.replaced/11-20.vm2.17         generation 17 of 2026/11-20.vm2: a file, or the folder of a dir segment
    2026/.replaced/11-20.vm2.17.rows    what the index knew of it, see `ondisk.index.replaced_rows`

To keep generation 17:

    1. Write the rows, sync them, and give them their name.
    2. Commit the index, in which generation 17 is no more. Its bytes are at `.NAME.17`, as always.
    3. When nobody reads an older snapshot, `generations.recover` moves `.NAME.17` here instead of removing it.

To remove it: unlink the bytes, sync the folder, then unlink the rows. So bytes without rows belong to somebody else.

Nothing here is part of the dataset. A name that begins with "." is no segment, and a name in this folder is no
generation: when an index is lost, no fix reads these bytes again. Only rows that a crash left before 2 are of a
generation that is still in the index; then nobody reads them.

The caller must hold the writers' lock to change anything. Names are relative to the dataset.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ondisk.errors import StorageError
from ondisk.filesystem import Directory, Entry
from ondisk.segments.dir import drop_folder
from ondisk.segments.generations import REPLACED, ROWS, below, parent_of, parents
from ondisk.segments.quarantine import size_of

_LAST = 253_402_300_799  # the last second of the year 9999
_STAGED = re.compile(rf"\..+\.[0-9]{{1,18}}{re.escape(ROWS)}\.new")
_ROWS_OF = re.compile(rf"(.+)\.([0-9]{{1,18}}){re.escape(ROWS)}")


class Kept(NamedTuple):
    """What is kept: the number of generations, their bytes, and until when the last one is (seconds since 1970)."""

    segments: int = 0
    bytes: int = 0
    until: float | None = None

    def plus(self, other: Kept) -> Kept:
        until = max((each for each in (self.until, other.until) if each is not None), default=None)
        return Kept(self.segments + other.segments, self.bytes + other.bytes, until)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A generation that is kept, or will be when no query needs it."""

    segment: str  # the name of the segment
    generation: int  # its number
    name: str  # of the bytes
    rows: Entry  # the entry of its rows
    entry: Entry | None  # that of its bytes; None if they are not here

    @property
    def at(self) -> float:
        """When it was kept, in seconds since 1970."""
        return self.rows.mtime / 1e9


def folders(directory: Directory) -> list[str]:
    """Return the folders in which something is kept; none in a place that cannot be read: check reports that."""
    names = []
    for parent in sorted(parents(directory)):
        with contextlib.suppress(StorageError):
            found = directory.stat(name := below(parent, REPLACED))
            if found is not None and stat.S_ISDIR(found.st_mode):
                names.append(name)
    return names


def staged(rows: str) -> str:
    """Return the name under which rows are written, before they get theirs."""
    folder, _, last = rows.rpartition("/")
    return f"{folder}/.{last}.new"


def replaced(directory: Directory) -> Iterator[Replaced]:
    """Yield the generations that are kept, by folder. Cost: lists the folders of what is kept."""
    for folder in folders(directory):
        parent = parent_of(folder)
        entries = {each.name: each for each in directory.entries(folder)}
        for last, rows in entries.items():
            if (matched := _ROWS_OF.fullmatch(last)) and rows.kind == "file":
                name, segment = last.removesuffix(ROWS), below(parent, matched[1])
                yield Replaced(segment, int(matched[2]), f"{folder}/{name}", rows, entries.get(name))


def total(directory: Directory, seconds: float) -> Kept:
    """Return how much is kept, for some seconds; raise StorageError if a folder cannot be read."""
    found = Kept()
    for each in replaced(directory):
        size = 0 if each.entry is None else size_of(directory, each.name)
        found = found.plus(Kept(1, each.rows.size + size, min(each.at + seconds, _LAST)))
    return found


def remove(directory: Directory, now: float, seconds: float) -> int:
    """Remove what was kept for so long, or will have been in so long: then the clock was set back. Return how many.

    Rows that a killed process has not finished go, too.

    Durability: what a power cut brings back has its rows, and the next call removes it.
    """
    old = [each for each in replaced(directory) if abs(now - each.at) >= seconds]
    for each in old:
        if each.entry is not None and each.entry.kind == "directory":
            drop_folder(directory, each.segment, each.name)
        else:
            directory.discard(each.name)
    for folder in {parent_of(each.name) for each in old}:
        directory.sync(folder)
    directory.discard(*(each.name + ROWS for each in old))
    for folder in folders(directory):
        directory.discard(*(f"{folder}/{name}" for name in directory.names(folder) if _STAGED.fullmatch(name)))
        directory.remove_directory(folder)
    return len(old)
