"""A disk in the model: names, inodes, and what a power cut leaves of them.

A power cut keeps any subset of the directory operations that were not synced. Of a file it keeps what was synced, or
the beginning of what was written since. If it does not keep a folder, what is in that folder is gone, too. If it does
not keep the new name of a folder, what is in that folder is at the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product, takewhile
from typing import NamedTuple, TypeAlias

Name: TypeAlias = tuple[str, int]
"""A folder, and a number: 0 is NAME, g is `.NAME.g`; a negative one is of quarantine."""

Entries: TypeAlias = frozenset[tuple[Name, int]]
"""Names and their inodes, which are numbered from 1."""

UNDER = "under the mount point"
"""The folder of what was written to an empty mount point: nobody finds it while the disk is mounted."""

_ABOVE = "above the "

_Operation: TypeAlias = tuple[str, Name, int, Name]
"""What was done, to which name and inode; a rename has a second name."""


def above(place: str) -> Name:
    """Return the name of a folder in the one above it. A folder that does not need one was always there."""
    return f"{_ABOVE}{place}", 0


class Inode(NamedTuple):
    """A file.

    Attributes:
        stamp: tells its bytes from those of other files; a copy has the same.
        data: what is in it, one after the other.
        synced: what was in it when it was last synced.
    """

    stamp: int
    data: tuple[int, ...]
    synced: tuple[int, ...] = ()

    def after_power_cut(self) -> set[Inode]:
        """Return every file that a power cut may leave."""
        pairs = zip(self.data, self.synced, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        left = {self.synced, *(self.data[:length] for length in range(same, len(self.data) + 1))}
        return {self._replace(data=each, synced=each) for each in left}


class Disk(NamedTuple):
    """The state of a disk; each method returns another one.

    Attributes:
        files: the names as everybody sees them.
        durable: the names that a power cut keeps.
        pending: operations that were not synced.
    """

    files: Entries = frozenset()
    durable: Entries = frozenset()
    pending: tuple[_Operation, ...] = ()
    inodes: tuple[Inode, ...] = ()

    def at(self, name: Name) -> int | None:
        """Return the inode that has a name."""
        for each, inode in self.files:
            if each == name:
                return inode
        return None

    def file(self, inode: int) -> Inode:
        return self.inodes[inode - 1]

    def names(self, inode: int) -> list[Name]:
        return [name for name, each in self.files if each == inode]

    def hidden(self, place: str) -> list[int]:
        """Return the generations that have hidden names, ascending."""
        return sorted(number for (its, number), _ in self.files if its == place and number > 0)

    def link(self, name: Name, inode: int) -> Disk:
        return self._after(("link", name, inode, name))

    def unlink(self, name: Name) -> Disk:
        inode = self.at(name)
        return self if inode is None else self._after(("unlink", name, inode, name))

    def rename(self, old: Name, new: Name) -> Disk:
        inode = self.at(old)
        assert inode is not None
        return self if self.at(new) == inode else self._after(("rename", old, inode, new))

    def _after(self, operation: _Operation) -> Disk:
        return self._replace(files=_applied(self.files, operation), pending=(*self.pending, operation))

    def sync(self, place: str) -> Disk:
        """Sync a directory, and with it the renames from it and into it."""
        durable = self.durable
        for each in self.pending:
            if _is_in(place, each):
                durable = _applied(durable, each)
        return self._replace(durable=durable, pending=tuple(each for each in self.pending if not _is_in(place, each)))

    def create(self, name: Name, file: Inode) -> Disk:
        return self._replace(inodes=(*self.inodes, file)).link(name, len(self.inodes) + 1)

    def make_folder(self, place: str) -> Disk:
        return self if self.at(above(place)) is not None else self.create(above(place), Inode(0, ()))

    def rename_folder(self, old: str, new: str) -> Disk:
        """Rename a folder with all that is in it, also what was not synced."""

        def moved(name: Name) -> Name:
            return (new, name[1]) if name[0] == old else name

        files, durable = (frozenset((moved(name), inode) for name, inode in each) for each in self[:2])
        pending = tuple((kind, moved(name), inode, moved(other)) for kind, name, inode, other in self.pending)
        return Disk(files, durable, pending, self.inodes).rename(above(old), above(new))

    def swap(self, place: str, entries: Entries) -> tuple[Disk, Entries]:
        """Mount another disk at a folder, which syncs what was there; return that, too."""
        disk = self.sync(place)
        before = frozenset(each for each in disk.files if each[0][0] == place)
        for _, inode in before:
            disk = disk.sync_file(inode)
        files = (disk.files - before) | entries
        return disk._replace(files=files, durable=(disk.durable - before) | entries), before

    def change(self, inode: int, file: Inode) -> Disk:
        return self._replace(inodes=(*self.inodes[: inode - 1], file, *self.inodes[inode:]))

    def sync_file(self, inode: int) -> Disk:
        file = self.file(inode)
        return self.change(inode, file._replace(synced=file.data))

    def after_power_cut(self) -> Iterator[Disk]:
        """Yield every disk that a power cut may leave."""
        found = set()
        for kept in product((False, True), repeat=len(self.pending)):
            entries = self.durable
            for operation, is_kept in zip(self.pending, kept, strict=True):
                if is_kept:
                    entries = _applied(entries, operation)
            found.add(self._with_folders(entries))
        for entries, inodes in product(found, product(*(each.after_power_cut() for each in self.inodes))):
            yield Disk(entries, entries, (), inodes)

    def _with_folders(self, entries: Entries) -> Entries:
        """Return the entries whose folders a power cut has left, at the names that it has left these."""
        left = _folders(entries)
        places = {place: left.get(inode) for inode, place in _folders(self.files).items()}
        if all(before == after for before, after in places.items()):
            return entries
        found = {((places.get(place, place), number), inode) for (place, number), inode in entries}
        return frozenset(((place, number), inode) for (place, number), inode in found if place is not None)


def _folders(entries: Entries) -> dict[int, str]:
    """Return the inodes of the folders that are in others, and their places."""
    return {inode: name.removeprefix(_ABOVE) for (name, _), inode in entries if name.startswith(_ABOVE)}


def _is_in(place: str, operation: _Operation) -> bool:
    return place in (operation[1][0], operation[3][0])


def _applied(entries: Entries, operation: _Operation) -> Entries:
    kind, name, inode, other = operation
    found = dict(entries)
    if kind != "link":
        found.pop(name, None)
    if kind != "unlink":
        found[other] = inode
    return frozenset(found.items())
