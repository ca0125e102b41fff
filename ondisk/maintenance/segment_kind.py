"""What maintenance does with one segment: the protocol that `concat_segments` and `dir_segments` implement.

`ondisk.segments` contains how each kind is written and read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Generic, Protocol, TypeVar

from ondisk.dataset.access import Access
from ondisk.errors import AlreadyExists, command
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Circumstances, Known
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.states import Diagnosis, Done
from ondisk.segment import ScanResult


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


Observed = TypeVar("Observed")
"""What the index knows of a segment of one kind, and what is on disk, at one time: all that its states depend on."""


class SegmentKind(ABC, Generic[Observed]):
    """What maintenance does with segments of one kind.

    Attributes:
        is_one_file: a segment is one file, which another process can scan or rewrite.
    """

    is_one_file: ClassVar[bool]

    @abstractmethod
    def is_readable(self, directory: Directory, name: str, format: Format) -> bool:
        """Return whether at least part of what has a name is a segment of this kind, in a format."""

    @abstractmethod
    def observe(
        self,
        directory: Directory,
        snapshot: Snapshot,
        name: str,
        known: Known | None,
        entry: Entry | None,
        format: Format,
    ) -> Observed:
        """Look at a segment on disk, and add to `known` what only that tells.

        Args:
            known: what the index knows; None if it does not know the segment.
            entry: what is at the segment's name; None if nothing is.
        """

    @abstractmethod
    def diagnose(self, observed: Observed, at: Circumstances) -> Diagnosis:
        """Return the states of a segment, and the reasons; a pure function."""

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
    def move(self, access: Access, transaction: Transaction, segment: Segment, name: str) -> bool:
        """Link or copy a segment to another folder, or merge it with the one of that name there; change its rows.

        The caller commits. The new file is at a hidden name until then, and the old one keeps its own.

        Args:
            name: there.

        Returns:
            Whether the files were linked, not copied.
        """


def merged_with(access: Access, transaction: Transaction, name: str) -> Segment | None:
    """Return the segment of a name, with which another one is merged; None if there is none.

    One whose file somebody has removed is forgotten, if all its data were deleted before.

    Raises:
        AlreadyExists: a file has this name that the index does not know.
    """
    there = transaction.segments([name]).get(name)
    if there is not None and access.directory.stat(name) is None:
        with access.current().index.snapshot() as snapshot:
            interval = segment_rows.interval_of(snapshot, there)
        if transaction.forget_if_empty(there, interval):
            there = None
    if there is None and access.directory.stat(name) is not None:
        hint = f"Move it away, or read it into the index with {command('fix', access.path, '--yes')}."
        raise AlreadyExists(f"{access.path / name} exists, but the index does not know it", hint=hint)
    return there
