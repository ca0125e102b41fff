"""The layout of a dataset with the step `sequence`, whose segments may be those of a disk queue of Beats.

The other program is the Beat, which writes them, or their consumer, which says in `state.dat` how far it has read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ondisk.dataset.access import Access
from ondisk.dataset.segment_layout import Layout, Remark, Roll, Usage
from ondisk.datum import from_microseconds
from ondisk.errors import StateError, command
from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.queue import consumer_position as positions
from ondisk.queue.consumer_position import begun_again, is_consumed, is_there, is_unread, position
from ondisk.step import place_of

if TYPE_CHECKING:
    from ondisk.config import DatasetConfig
    from ondisk.dataset.batch_writer import BatchWriter

UNREAD = "the consumer of this queue still has to read it; if it has no consumer any more, remove state.dat"
_PASSED = "its consumer has read another file of this name, and begins again at its beginning"


class Consumed(Usage):
    """How far the consumer of a queue has read its segments.

    Args:
        at: where it continues; None without a consumer.
        believed: the same as far as it says something about the segments on disk, see `ondisk.queue.consumer_position`.
    """

    consumed = "the consumer of the queue has read and removed it"
    stays = "it has no data, and stays until the consumer of the queue has passed it"

    def __init__(self, at: State | None, believed: State | None) -> None:
        self._at = at
        self._believed = believed

    def is_consumed(self, name: str, length: int) -> bool:
        return is_consumed(name, length, self._at)

    def why_unread(self, name: str) -> str | None:
        return UNREAD if is_unread(name, self._believed) else None


class QueueLayout(Layout):
    """The segments of a queue, by number. What is reported besides them is about `state.dat`."""

    program = "Beats"
    keeps_foreign = True

    def taken_for(self, name: str) -> str:
        return positions.beats_name(name) or name

    def is_shared(self, name: str) -> bool:
        return not place_of(name)

    def roll(self, writer: BatchWriter, config: DatasetConfig, format: Format) -> Roll:
        from ondisk.queue.roll import QueueRoll  # here, as only writers need it

        return QueueRoll(writer, config, format)

    def usage(self, directory: Directory) -> Consumed:
        return Consumed(position(directory), positions.believed(directory))

    def pending(self, access: Access, snapshot: Snapshot) -> dict[str, Any]:
        """Data that the index does not know do not count. If the position cannot be right, all count from where a fix
        would put it. Cost: reads the rows of the segments that wait.
        """
        again = begun_again(access)
        at = positions.believed(access.directory) if again is None else State(again)
        count, size, oldest = 0, 0, None
        for number, segment in segment_rows.numbered_segments(snapshot, 0 if at is None else at.segment).items():
            offset = 0
            if at is not None and number == at.segment:
                if positions.has_gone(access.directory, segment, at):
                    continue
                offset = positions.offset_in(segment, at)
                if offset > segment.end.length or segment_rows.has_across(snapshot, segment, offset):
                    offset = 0
            more, bytes, first = segment_rows.since(snapshot, segment, offset)
            count, size = count + more, size + bytes
            oldest = min((time for time in (oldest, first) if time is not None), default=None)
        return {"count": count, "size": size, "oldest": None if oldest is None else from_microseconds(oldest)}

    def findings(self, access: Access) -> Iterator[Remark]:
        directory = access.directory
        yield from astray(directory)
        if (again := begun_again(access)) is not None:
            yield followed(directory, again)
        if (problem := positions.misplaced(access)) is not None:
            yield Remark(NAME, (problem,))

    def planned(self, access: Access, read: Collection[str], consumed: Collection[str]) -> Iterator[Remark]:
        yield from _moved(positions.where_removed(access, consumed))

    def follow(self, access: Access) -> Iterator[Remark]:
        """Move a position before which Beats has begun again to the first segment that was not acknowledged.

        The old position proves that segments were acknowledged which are gone, or are other files now. So the index
        forgets them first.

        Durability: `State.write`, then one commit. After a crash between the two, they count as lost.
        Locks: the writers' lock, if there is something to do.
        """
        if begun_again(access) is None:
            return
        with access.transaction("fix") as transaction:
            directory = access.directory
            at, again = position(directory), begun_again(access)
            if at is None or again is None:
                return
            found = followed(directory, again)
            with access.current().index.snapshot() as snapshot:
                known = segment_rows.numbered_segments(snapshot, 0)
            for segment in known.values():
                if is_consumed(segment.name, segment.end.length, at) and not is_there(access, segment):
                    transaction.remove(segment)
            State(again, version=at.version).write(directory)
            transaction.commit()
        yield _mended(found, f"{again}.seg")

    def mend(self, access: Access) -> Iterator[Remark]:
        """Let the consumer begin again if its position cannot be right, or if its segment is gone.

        Afterwards nothing may prove that the consumer has read earlier segments, which are gone: the index must have
        forgotten them.

        Durability: as `State.write`.
        Locks: the writers' lock, if there is something to do.
        """
        if [*self.findings(access)]:
            with access.locked("fix"):
                for each in self.findings(access):
                    if each.held:
                        yield each
                    else:
                        if (at := positions.believed(access.directory)) is not None:  # to its segment, or the queue's
                            State(at.segment, version=at.version).write(access.directory)
                        yield _mended(each, _next_segment(access.directory))
        yield from self.leave_removed(access, "fix")

    def leave_removed(self, access: Access, verb: str) -> Iterator[Remark]:
        return _moved(positions.leave_removed(access, verb))

    def begin_again(self, directory: Directory, name: str, *, is_committed: bool = False) -> None:
        positions.begin_again(directory, name, is_committed=is_committed)

    def why_read_again(self, directory: Directory, segment: Segment, offset: int) -> str | None:
        return _PASSED if positions.is_passed(segment, offset, position(directory)) else None

    def check_rewritable(self, directory: Directory, name: str) -> None:
        if self.usage(directory).why_unread(name) is not None:
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
                f"Queries still find its data. To consume them again:"
                f" {command('append', 'ANOTHER-QUEUE', path)}. If this queue has no consumer any more, remove {NAME}."
            )
            problem = "the queue has a consumer, which would not read it, or not in its order"
            raise StateError(f"{path} cannot be moved: {problem}", hint=hint)


def astray(directory: Directory) -> Iterator[Remark]:
    """Yield a remark if nobody but its program can know the position, and one if it is after all segments on disk."""
    if (problem := positions.unreadable(directory)) is not None:
        reason = f"{problem}: if no newer Beat uses this queue, move the file to another folder"
        yield Remark(NAME, (reason,), held=True)
    if (problem := positions.astray(directory)) is not None:
        yield Remark(NAME, (f"{problem}: Beats would remove all of them unread",))


def followed(directory: Directory, again: int) -> Remark:
    """Return the remark if Beats has begun again, see `begun_again`."""
    return Remark(NAME, (f"{positions.outdated(directory, again)}: the consumer would pass what is in it",))


def _moved(at: State | None) -> Iterator[Remark]:
    """Yield what is done if the segment of the position is gone. `at`: the new position; None if it stays."""
    if at is not None:
        reason = f"its segment is gone: the consumer begins again with {at.segment}.seg"
        yield Remark(NAME, (reason,), is_wrong=False, action="begin again")


def _mended(remark: Remark, name: str) -> Remark:
    return remark._replace(reasons=(*remark.reasons, f"the consumer begins again with {name}"), action="rescan")


def _next_segment(directory: Directory) -> str:
    """Return the name of the first segment on disk that the consumer has not passed."""
    at = position(directory) or State()
    first = min((number for number in positions.numbers_in(directory) if number >= at.segment), default=at.segment)
    return f"{first}.seg"
