"""The quarantine of a dataset: what users and repack do with `ondisk.segments.quarantine`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ondisk.dataset.access import Access
from ondisk.errors import AlreadyExists, InvalidInput, NotFound, command
from ondisk.filesystem import Directory
from ondisk.segments import quarantine
from ondisk.segments.generations import generations_of, hidden
from ondisk.segments.quarantine import Item, Total, find, items, total


class Quarantine:
    """The items in quarantine of a dataset; iterate over it for all of them.

    The names of items, and of their segments, are relative to the dataset.
    """

    def __init__(self, dataset: Access) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Item]:
        """Yield all items, by folder, the oldest first.

        Raises:
            StorageError: a quarantine cannot be read.
        """
        yield from items(self._dataset.directory)

    @property
    def kept(self) -> list[str]:
        """The names of the items that were added since the dataset was opened here: something was in the way."""
        return [*self._dataset.directory.kept]

    def total(self) -> Total:
        """Return the number of items, and their bytes."""
        return total(self._dataset.directory)

    def find(self, name: str) -> Item:
        """Return the item with a name.

        Raises:
            NotFound: no item has it.
        """
        found = find(self._dataset.directory, name)
        if found is None:
            raise self._missing(name)
        return found

    def export(self, name: str, file: str | os.PathLike[str]) -> None:
        """Copy an item to a new file; that of a dir segment to a new folder.

        Raises:
            NotFound: no item has this name, or the folder of the file does not exist.
            AlreadyExists: the file exists.
            StorageError: it cannot be read or written.

        Durability: the copy survives power loss when this returns.
        """
        item = self.find(name)
        path = Path(file).absolute()
        with Directory.above(path) as target:
            try:
                quarantine.export(self._dataset.directory, item.name, target, path.name)
            except FileExistsError:
                raise AlreadyExists(f"{path} exists already", hint="Choose another name.") from None
            except FileNotFoundError:
                raise self._missing(name) from None

    def restore(self, name: str) -> str:
        """Move a whole segment back to its name, and return that. The next fix reads it.

        Raises:
            NotFound: no item has this name.
            InvalidInput: the item is not a whole segment.
            AlreadyExists: another file has the name of the segment, or a hidden name of it. It is never overwritten.

        Durability: see `ondisk.segments.quarantine.restore`.
        Locks: the writers' lock.
        """
        directory = self._dataset.directory
        with self._dataset.locked("quarantine"):
            item = self.find(name)
            if not item.is_whole or item.segment.rpartition("/")[2].startswith("."):
                hint = f"Export it: {self._to_append(name)}"
                raise InvalidInput(f"{name} is not a whole segment, so it cannot be restored", hint=hint, item=name)
            if generations := generations_of(directory, item.segment):
                alias = directory.path / hidden(item.segment, generations[-1])
                fix = command("fix", self._dataset.path, "--yes")
                hint = f"Wait for the end of open queries, run {fix}, then try again."
                raise AlreadyExists(f"{alias} exists, and may be the segment that the index means", hint=hint)
            try:
                return quarantine.restore(directory, item)
            except FileExistsError:
                hint = f"Move it away first. Or export the item: {self._to_append(name)}"
                raise AlreadyExists(f"{directory.path / item.segment} exists already", hint=hint) from None

    def drop(self, *names: str) -> int:
        """Remove items for good, and return how many bytes they had. If one of them does not exist, drop none.

        Raises:
            NotFound: no item has one of the names.

        Durability: see `ondisk.segments.quarantine.drop`; items are dropped one after the other.
        Locks: the writers' lock.
        """
        with self._dataset.locked("quarantine"):
            found = {name: self.find(name) for name in names}
            for item in found.values():
                quarantine.drop(self._dataset.directory, item.name)
        return sum(item.size for item in found.values())

    def _missing(self, name: str) -> NotFound:
        path = self._dataset.path
        hint = f"{command('quarantine', path)} lists all items."
        return NotFound(f"{path} has no item {name!r} in quarantine", hint=hint, item=name)

    def _to_append(self, name: str) -> str:
        path = self._dataset.path
        return f"{command('quarantine', path, 'export', name, 'FILE')}, then append what is worth keeping."
