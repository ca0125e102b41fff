"""The layout of a dataset with the step `sequence`, whose segments may be those of a disk queue of Beats.

The other program is the Beat, which writes them, or their consumer, which says in `state.dat` how far it has read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.batch_writer import BatchWriter
from ondisk.dataset.segment_layout import Layout, Reading, Remark
from ondisk.errors import StateError, command
from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.index import Segment, Snapshot
from ondisk.index.transaction import Transaction
from ondisk.queue import findings, position
from ondisk.queue.roll import QueueRoll
from ondisk.step import place_of

UNREAD = "the consumer of this queue still has to read it; if it has no consumer any more, remove state.dat"
_PASSED = "its consumer has read another file of this name, and begins again at its beginning"


class Consumed(Reading):
    """How far the consumer of a queue has read its segments.

    Args:
        at: where it continues; None without a consumer.
        believed: the same as far as it says something about the segments on disk, see `ondisk.queue.position`.
    """

    consumed = "the consumer of the queue has read and removed it"
    stays = "it has no data, and stays until the consumer of the queue has passed it"

    def __init__(self, at: State | None, believed: State | None) -> None:
        self._at = at
        self._believed = believed

    def is_consumed(self, name: str, length: int) -> bool:
        return position.is_consumed(name, length, self._at)

    def why_unread(self, name: str) -> str | None:
        return UNREAD if position.is_unread(name, self._believed) else None


class QueueLayout(Layout):
    """The segments of a queue, by number."""

    program = "Beats"
    keeps_foreign = True

    def taken_for(self, name: str) -> str:
        return position.beats_name(name) or name

    def is_shared(self, name: str) -> bool:
        return not place_of(name)

    def roll(
        self,
        directory: Directory,
        transaction: Transaction,
        writer: BatchWriter,
        config: DatasetConfig,
        format: Format,
        *,
        trusted: bool,
    ) -> QueueRoll:
        return QueueRoll(directory, transaction, writer, config, format, trusted=trusted)

    def reading(self, directory: Directory) -> Consumed:
        at = position.position(directory)
        return Consumed(at, position.believed_of(directory, at))

    def pending(self, access: Access, snapshot: Snapshot) -> dict[str, Any]:
        return position.pending(access, snapshot)

    def findings(self, access: Access) -> Iterator[Remark]:
        return findings.findings(access)

    def planned(self, access: Access, read: Collection[str], consumed: Collection[str]) -> Iterator[Remark]:
        return findings.planned(access, read, consumed)

    def follow(self, access: Access) -> Iterator[Remark]:
        return findings.follow(access)

    def mend(self, access: Access) -> Iterator[Remark]:
        return findings.mend(access)

    def leave_removed(self, access: Access, verb: str) -> Iterator[Remark]:
        return findings.moved(position.leave_removed(access, verb))

    def begin_again(self, directory: Directory, name: str, *, is_committed: bool = False) -> None:
        position.begin_again(directory, name, is_committed=is_committed)

    def why_read_again(self, directory: Directory, segment: Segment, offset: int) -> str | None:
        return _PASSED if position.is_passed(segment, offset, position.position(directory)) else None

    def check_rewritable(self, directory: Directory, name: str) -> None:
        if self.reading(directory).why_unread(name) is not None:
            how = command("append", "DATASET", "--format", "diskqueue", directory.path)
            hint = f"To have its data, import the queue into another dataset with {how}."
            problem = f"{directory.path / name} cannot be read in place, and is not rewritten: {UNREAD}"
            raise StateError(problem, hint=hint, segment=name)

    def check_returns(self, directory: Directory, name: str) -> None:
        """Raise `StateError` if the queue has a consumer.

        It may be after the segment's number, and remove it unread; or have read a part of a newer segment of this
        number, with which it would be merged in the order of time.
        """
        if directory.stat(NAME) is not None:
            path = directory.path / name
            hint = (
                f"Queries find its data in the archive. To consume them again:"
                f" {command('append', 'ANOTHER-QUEUE', path)}. If this queue has no consumer any more, remove {NAME}."
            )
            problem = "the queue has a consumer, which would not read it, or not in its order"
            raise StateError(f"{path} cannot be moved: {problem}", hint=hint)
