"""The quarantine of a dataset: what users and repack do with `ondisk.segments.quarantine`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ondisk.dataset.access import Access
from ondisk.dataset.away import maintained
from ondisk.datum import microseconds
from ondisk.errors import AlreadyExists, InvalidInput, NotFound, OndiskError, ReadOnly, StorageError, command
from ondisk.filesystem import Directory
from ondisk.segments import quarantine
from ondisk.segments.generations import generations_of, hidden
from ondisk.segments.quarantine import Item, Total, find, folders, items, total
from ondisk.step import days_ago, place_of

if TYPE_CHECKING:
    from ondisk.maintenance.ages import Ages
    from ondisk.maintenance.states import Diagnosis, Done, Report


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
        self.find(name)
        directory = self._dataset.directory
        with self._held():
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
        for name in names:
            self.find(name)
        with self._held():
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

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if self._dataset.read_only:
            raise ReadOnly(f"{self._dataset.path} was opened read_only", hint="Open it for writing.")
        with self._dataset.locked("quarantine"):
            yield


def count(access: Access, report: Report, errors: list[OndiskError], ages: Ages) -> None:
    """Add the items of a dataset to the report of a check; those past `quarantine_age` are findings."""
    try:
        report.quarantine = total(access.directory)
        report.segments += _diagnosed(access, ages)
    except StorageError as error:
        errors.append(error)


def _diagnosed(access: Access, ages: Ages) -> Iterator[Diagnosis]:
    """Diagnose the items that are older than `quarantine_age`; none without that key.

    An item whose name does not say when it was kept has no age.
    """
    age = access.config.quarantine_age
    if age is None:
        return
    from ondisk.maintenance.ages import by_age_remedy
    from ondisk.maintenance.states import Diagnosis, State

    threshold = days_ago(age, ages.now)
    for item in items(access.directory):
        is_old = item.time is not None and microseconds(item.time) < threshold
        if item.time is not None and is_old and place_of(item.name) in maintained(access.config):
            reason = f"it is in quarantine since {item.time:%Y-%m-%d}, longer than quarantine_age allows: {item.why}"
            found = Diagnosis(item.name, State.DELETE_AGE, (reason,), item.size)
            yield found if ages.doubt is None else found.hold(by_age_remedy(access, ages.doubt))


def removed(access: Access, ages: Ages, errors: list[OndiskError]) -> Iterator[Done]:
    """Remove the items that are older than `quarantine_age`, and what killed processes left in quarantine.

    Locks: the writers' lock, if there is a quarantine.
    """
    if not folders(access.directory):
        return
    from ondisk.maintenance.states import Done

    with access.locked("repack"):
        try:
            quarantine.remove_leftovers(access.directory)
            old = [*_diagnosed(access, ages)]
        except StorageError as error:
            errors.append(error)
            return
        for each in old:
            if each.held:
                yield Done(each.segment, each.state, each.reasons)
                continue
            try:
                quarantine.drop(access.directory, each.segment)
            except (OndiskError, OSError) as error:
                yield each.failed("removed", error, errors)
            else:
                yield Done(each.segment, each.state, each.reasons, each.action, each.freed)
