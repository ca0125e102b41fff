"""Finds the archived data that have the same unique fields as data that are appended."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.dataset.known_archives import Unusable
from ondisk.dataset.layout import LAST
from ondisk.datum import canonical
from ondisk.errors import command
from ondisk.index import Row, Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.matcher import Expression, reftime_interval
from ondisk.segments.generations import hidden
from ondisk.step import ALWAYS, Interval


def archived_for(archives: Archives, config: DatasetConfig) -> Archived | None:
    """Return what finds duplicates in the archive, or None if there can be no duplicates."""
    if not config.unique:
        return None
    for each in archives.record.unusable():
        if each.name == LAST:
            return Away(archives, each, config)
    last = archives.last()
    return None if last is None else Archived(archives, last, config)


class InArchive:
    """The data of a batch that the archive already has.

    Attributes:
        skipped: positions of duplicates.
        replacing: positions of those that replace archived data.
        refused: position → reason, of duplicates whose archived segment is not on disk: whoever is told that the
            dataset has a datum may remove his own.
    """

    def __init__(self) -> None:
        self.skipped: set[int] = set()
        self.replacing: set[int] = set()
        self.refused: dict[int, str] = {}


class Archived:
    """Finds the archived data that have the same unique fields as data that are appended.

    Used for one batch, under the writers' lock.
    """

    def __init__(self, archives: Archives, last: Access, config: DatasetConfig) -> None:
        self._archives = archives
        self._last = last
        self._config = config
        self._to_delete: set[int] = set()
        self._overwritten: set[int] = set()

    def overwrite(self, tree: Expression) -> int:
        """Replace all archived data that match, whatever is appended; return how many they are."""
        with self._last.current().index.snapshot() as snapshot:
            self._overwritten = {seq for some in segment_rows.seqs_of(snapshot, tree) for seq in some}
        self._to_delete |= self._overwritten
        return len(self._overwritten)

    def interval(self) -> Interval | None:
        """Return the interval of reftimes in which data can be duplicates of archived ones, or None if none can."""
        if not self._config.unique:
            return None
        with self._last.current().index.snapshot() as snapshot:
            interval = segment_rows.span(snapshot)
        return interval if interval is None or "reftime" in self._config.unique else ALWAYS

    def find(self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]]) -> InArchive:
        """Find the data that the archive already has."""
        found = InArchive()
        missing: dict[int, str | None] = {}
        opened = self._last.current()
        with opened.index.snapshot() as snapshot:
            for place, row in of_same_key(snapshot, reftimes, metadata):
                if row[0] in self._overwritten:
                    continue
                if self._replaces(metadata[place], snapshot.metadata(row[5:])):
                    found.replacing.add(place)
                    self._to_delete.add(row[0])
                    continue
                if row[2] not in missing:
                    missing[row[2]] = self._problem_of(snapshot.segment(row[2]))
                if (reason := missing[row[2]]) is None:
                    found.skipped.add(place)
                else:
                    found.refused[place] = reason
        return found

    def replace_with(self, transaction: Transaction) -> None:
        """Record in the dataset's index what is replaced. Its commit hides the data; then the archive deletes them."""
        if self._to_delete:
            with self._last.current().index.snapshot() as snapshot:
                uuid = snapshot.dataset()["uuid"]
            transaction.note_archived(uuid, [sorted(self._to_delete)])
            transaction.after_commit(self._archives.complete_deletes_later)

    def _problem_of(self, segment: Segment) -> str | None:
        """Return what is wrong if a segment is not on disk, and what to do; None if it is there."""
        directory, name = self._last.directory, segment.name
        is_dir = self._last.format(segment.format).is_dir
        for each in (name, hidden(name, segment.id)):
            there = directory.stat(each)
            if there is None:
                continue
            is_file = stat.S_ISREG(there.st_mode) and there.st_size >= segment.end.size
            if stat.S_ISDIR(there.st_mode) if is_dir else is_file:
                return None
        how = f"{command('fix', directory.dataset, '--yes')} removes them from the archive's index, or says why not"
        problem = f"the archived segment {directory.path / name} is in the index, but not on disk"
        return f"{problem}. Mount its disk, or restore it. If its data are lost, {how}."

    def _replaces(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
        name = self._config.version_field
        if self._config.replace != "newer" or name is None:
            return self._config.replace == "yes"
        before, after = old.get(name), new.get(name)
        if after is None or before is None:
            return after is not None
        return bool(canonical(before, self._config.fields[name]) <= after)


class Away(Archived):
    """Takes the place of `Archived` while the archive is away, and refuses data that the archive may have."""

    def __init__(self, archives: Archives, missing: Unusable, config: DatasetConfig) -> None:
        self._archives = archives
        self._missing = missing
        self._config = config

    def overwrite(self, tree: Expression) -> int:
        """Raise if archived data may match; else there is nothing to replace."""
        self._archives.record.check_present(reftime_interval(tree))
        return 0

    def interval(self) -> Interval | None:
        """Return the interval of reftimes in which data can be duplicates of archived ones, or None if none can."""
        mine = self._missing.interval
        return mine if mine is None or "reftime" in self._config.unique else ALWAYS

    def find(self, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]]) -> InArchive:
        """Raise if the archive may already have some of the data.

        Raises:
            StateError: it may.
        """
        interval = self.interval()
        if interval is not None and any(reftime in interval for reftime in reftimes):
            raise self._archives.record.problem(self._missing)
        return InArchive()

    def replace_with(self, transaction: Transaction) -> None:
        """Record nothing."""


def of_same_key(
    snapshot: Snapshot, reftimes: Sequence[int], metadata: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, Row]]:
    """Find the data in a snapshot that have the same unique fields as given data.

    Args:
        reftimes, metadata: of the given data.

    Yields:
        The position of a given datum; the seq and the row of the datum in the snapshot.
    """
    interval = segment_rows.span(snapshot)
    if interval is None:
        return
    by_time = "reftime" in snapshot.columns.unique_names
    for place, (reftime, fields) in enumerate(zip(reftimes, metadata, strict=True)):
        if by_time and reftime not in interval:
            continue
        row = snapshot.of_key(reftime, fields)
        if row is not None:
            yield place, row
