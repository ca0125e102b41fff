"""Writing what a transaction inserts to the ends of segments: shared by appends and by commits of staged data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeAlias

from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.index import Segment, Transaction
from ondisk.segment import Laid
from ondisk.segments import ConcatWriter, DirWriter, FileWriter, SegmentWriter
from ondisk.step import Interval

DataWriter: TypeAlias = SegmentWriter | FileWriter


@dataclass(slots=True, eq=False)
class Target:
    """A segment that new data are written to.

    Attributes:
        segment: as the index knows it, or as a new one.
        interval: that of its name.
        format: its data's.
        start: where it continues, and what to write before new data.
        known: the index knows it.
    """

    segment: Segment
    interval: Interval
    format: Format
    start: Laid
    known: bool


class BatchWriter:
    """Writes data to the ends of their segments, of either kind. A context manager: closes its files.

    Args:
        trusted: no sentinel stands, so bytes after a segment's committed size are an interrupted append.

    Durability: bytes at the ends of segments, then a header's count → each segment synced, directories of new ones too.
        When the transaction ends without a commit, the bytes are taken back.
    """

    def __init__(self, directory: Directory, transaction: Transaction, *, trusted: bool) -> None:
        self._transaction = transaction
        self._trusted = trusted
        self._concat = ConcatWriter(directory)
        self._dir = DirWriter(directory)
        transaction.on_rollback(self._concat.undo)
        transaction.on_rollback(self._dir.undo)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._concat.close()

    def _of(self, format: Format) -> ConcatWriter | DirWriter:
        return self._dir if format.is_dir else self._concat

    def target(self, segment: Segment | None, name: str, interval: Interval, format: Format) -> Target:
        """Return where a segment continues.

        Args:
            segment: as the index knows it; None if it does not.

        Raises:
            SegmentCorrupt, StateError: nothing can be appended to it.
        """
        files, transaction = self._of(format), self._transaction
        if segment is not None:
            is_there = files.exists(name, segment.id, segment.end.size)
            if not is_there and transaction.forget(segment, interval):
                segment = None  # its data were deleted, and then its file: it begins again
        start = files.start(name, None if segment is None else segment.end, format, trusted=self._trusted)
        known = segment is not None
        if segment is None:
            segment = Segment(transaction.take_generation(), name, format.name, start.end)
            files.clear(name, segment.id)
        return Target(segment, interval, format, start, known)

    def write(
        self, targets: Iterable[Target], fill: Callable[[Target, DataWriter], None], renumber: Callable[[], None]
    ) -> None:
        """Write to segments, make them durable, and save in the index how far they go now.

        Args:
            fill: adds a target's data to the writer that it is given.
            renumber: called when a dir segment's `start` has changed; corrects the offsets in the index.
        """
        # Dir segments first: as long as their numbers may change, all offsets are computed again, from where segments
        # ended before.
        targets = sorted(targets, key=lambda each: not each.format.is_dir)
        is_written = False
        while not is_written:
            try:
                for target in targets:
                    files, name = self._of(target.format), target.segment.name
                    with files.writing(name, target.start, target.format, known=target.known) as writer:
                        fill(target, writer)
                is_written = True
            except FileExistsError:  # left by a crash
                if not target.format.is_dir:
                    raise
                self._dir.undo()
                target.start = self._dir.restart(name, target.start)
                renumber()
        self._dir.sync()
        self._concat.sync()
        for target in targets:
            files, name = self._of(target.format), target.segment.name
            segment = replace(target.segment, end=files.end(name))
            self._transaction.save_segment(segment, target.interval, files.mtime(name))
            self._transaction.save_blocks(segment, files.blocks(name))
