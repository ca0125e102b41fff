"""What maintenance does with one segment: the protocol that `concat_segments` and `dir_segments` implement.

`ondisk.segments` contains how each kind is written and read.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

from ondisk.dataset.access import Access
from ondisk.errors import AlreadyExists, IndexCorrupt, command
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.index import INDEX, Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Circumstances, Known
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.states import Diagnosis, Done
from ondisk.segment import ScanResult

_ALL = 2**63 - 1


class Rewriting(Protocol):
    """The rewriting of one segment by a repack, in two steps around the end of a snapshot."""

    def write(self, snapshot: Snapshot, written: Written | None) -> ReadableFile | None:
        """Write the segment's new bytes, and save them in the index; the caller then ends the snapshot.

        Args:
            written: what another process wrote.

        Returns:
            The segment's old file; its space is freed when it is closed.

        Raises:
            Changed: the segment has changed since the other process read it.
            IntegrityError, SegmentMissing: the data cannot be read.
        """

    def commit(self, diagnosis: Diagnosis) -> Done:
        """Commit, and put the new bytes in the place of the old ones.

        An error after the commit leaves the new bytes at their hidden name, where readers and the next opening find
        them.
        """


class SegmentKind(ABC):
    """What maintenance does with segments of one kind.

    Attributes:
        is_one_file: a segment is one file, which another process can scan or rewrite.
    """

    is_one_file: ClassVar[bool]

    @abstractmethod
    def complete(self, directory: Directory, segment: Segment, format: Format) -> None:
        """Promote the segment's committed generation, if a crash came before that; see `generations.complete`."""

    @abstractmethod
    def is_readable(self, directory: Directory, name: str, format: Format) -> bool:
        """Return whether at least part of what has a name is a segment of this kind, in a format."""

    @abstractmethod
    def diagnose(
        self,
        directory: Directory,
        snapshot: Snapshot,
        name: str,
        known: Known | None,
        entry: Entry | None,
        at: Circumstances,
        format: Format,
    ) -> Diagnosis:
        """Compare the index with the disk, and return the segment's states.

        Args:
            known: what the index knows; None if it does not know the segment.
            entry: what is at the segment's name; None if nothing is.
        """

    @abstractmethod
    def scan(self, name: str, format: Format, source: ReadableFile | Directory) -> Iterator[ScanResult]:
        """Yield the data on disk.

        Args:
            source: the segment's file or directory.
        """

    @abstractmethod
    def has_datum(self, access: Access, segment: Segment, offset: int) -> bool:
        """Return whether the file of a datum exists and agrees with the facts in the index, as far as its end shows."""

    @abstractmethod
    def rewriting(self, access: Access, transaction: Transaction, known: Known) -> Rewriting:
        """Return the rewriting of a segment without its holes."""

    @abstractmethod
    def drop(self, access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None) -> Done:
        """Commit the removal of a segment from the index, then remove it from the disk."""

    @abstractmethod
    def drop_moved(self, access: Access, transaction: Transaction, segment: Segment, *, may_keep: bool) -> int:
        """Drop a segment that is in another dataset now; return the bytes that this frees, if they were copied.

        Args:
            may_keep: keep it for readers of an older plan, see `Move.is_apart`.
        """

    @abstractmethod
    def move(self, source: Access, target: Access, segment: Segment) -> Move:
        """Return the move of a segment to another dataset."""


class Move(ABC):
    """The move of one segment into another dataset's index and directory.

    Attributes:
        is_linked: the files were linked, not copied.
        is_apart: the data have a generation that the target did not have before. Otherwise readers of an older plan of
            the target find them there, too, and must not find them in the source.
    """

    def __init__(self, source: Access, target: Access, segment: Segment) -> None:
        self._source = source
        self._target = target
        self._segment = segment
        self._format = source.format(segment.format)
        self.is_linked = False
        self.is_apart = True

    @abstractmethod
    def copy(self, transaction: Transaction) -> None:
        """Add the segment's files and rows to the target. The caller commits."""

    def _there(self, transaction: Transaction) -> Segment | None:
        """Return the target's segment of the same name, with which this one is merged; None if it has no such segment.

        One whose file somebody has removed is forgotten, if all its data were deleted before.
        """
        name, target = self._segment.name, self._target
        there = transaction.segments([name]).get(name)
        if there is None or target.directory.stat(name) is not None:
            return there
        with target.current().index.snapshot() as snapshot:
            interval = segment_rows.interval_of(snapshot, there)
        return None if transaction.forget_if_empty(there, interval) else there

    def _insert(self, snapshot: Snapshot, transaction: Transaction, new: Segment, shift: int = 0) -> None:
        """Insert the rows with the same seqs. Of data with equal unique fields, the one with the higher seq stays."""
        for rows in segment_rows.in_order_of_seq(snapshot, self._segment):
            fields = transaction.columns([snapshot.canonical(row[4:]) for _, row in rows])
            seqs, stored = zip(*rows, strict=True)
            offsets, ids = [row[2] + shift for row in stored], [new.id] * len(rows)
            columns = (seqs, [row[0] for row in stored], ids, offsets, [row[3] for row in stored], *fields)
            try:
                inserted = transaction.insert(columns)
            except IndexCorrupt as error:
                if not isinstance(error.__cause__, sqlite3.IntegrityError):
                    raise
                raise self._same_numbers(error) from error
            if inserted == len(rows):
                continue
            for row in zip(*columns, strict=True):
                other = transaction.duplicate_of(row)
                if other is not None and other[0] < row[0] and self._target.config.replace != "no":
                    transaction.replace(row, _ALL, None)

    def _same_numbers(self, error: IndexCorrupt) -> IndexCorrupt:
        paths = " and ".join(str(access.path / INDEX) for access in (self._source, self._target))
        message = f"{paths} have different data with the same seqs: one of them is damaged ({error.message})"
        how = f"{command('fix', self._source.directory.dataset, '--rebuild', '--yes')} moves an index aside"
        hint = f"{how}, and rebuilds it from the segments, which contain the data."
        return IndexCorrupt(message, hint=hint, segment=self._segment.name)

    def _check_free(self, name: str) -> None:
        """Raise unless nothing is at the segment's name in the target."""
        target = self._target.directory
        if target.stat(name) is not None:
            hint = f"Move it away, or read it into the index with {command('fix', self._target.dataset_path, '--yes')}."
            raise AlreadyExists(f"{target.path / name} exists, but the index does not know it", hint=hint)
