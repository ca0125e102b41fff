"""What is wrong with the position of a queue's consumer, and what sets it right: remarks of check, fix and repack."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

from ondisk.dataset.access import Access
from ondisk.dataset.segment_layout import Remark
from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.formats.diskqueue.seg import Seg
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.index import segment_rows
from ondisk.queue import state_file
from ondisk.queue.position import (
    astray,
    begun_again,
    is_consumed,
    is_there,
    leave_removed,
    misplaced,
    misplaced_in,
    numbers_in,
    outdated,
    past_end,
    position,
    set_right,
    unreadable,
    where_removed,
)


def findings(access: Access) -> Iterator[Remark]:
    """Yield why the position cannot be right."""
    directory = access.directory
    yield from unusable(directory)
    yield from stray(directory)
    if (again := begun_again(access)) is not None:
        yield followed(directory, again)
    for problem in (past_end(access), misplaced(access)):
        if problem is not None:
            yield Remark(NAME, (problem,))


def unusable(directory: Directory) -> Iterator[Remark]:
    """Yield a remark if nobody but its program can know the position."""
    if (problem := unreadable(directory)) is not None:
        yield Remark(
            NAME, (f"{problem}: if no newer Beat uses this queue, move the file to another folder",), held=True
        )


def stray(directory: Directory) -> Iterator[Remark]:
    """Yield a remark if the position is after all segments on disk."""
    if (problem := astray(directory)) is not None:
        yield Remark(NAME, (f"{problem}: Beats would remove all of them unread",))


def followed(directory: Directory, again: int) -> Remark:
    """Return the remark if Beats has begun again, see `begun_again`."""
    return Remark(NAME, (f"{outdated(directory, again)}: the consumer would pass what is in it",))


def follow(access: Access) -> Iterator[Remark]:
    """Move a position before which Beats has begun again to the first segment that was not acknowledged.

    The old position proves that segments were acknowledged which are gone, or are other files now. So the index forgets
    them first.

    Durability: `state_file.write`, then one commit. After a crash between the two, they count as lost.
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
        state_file.write(directory, State(again, version=at.version))
        transaction.commit()
    yield _mended(found, f"{again}.seg")


def mend(access: Access) -> Iterator[Remark]:
    """Let the consumer begin again if its position cannot be right, or if its segment is gone.

    Afterwards nothing may prove that the consumer has read earlier segments, which are gone: the index must have
    forgotten them.

    Durability: as `state_file.write`.
    Locks: the writers' lock, if there is something to do.
    """
    if [*findings(access)]:
        with access.locked("fix"):
            for each in findings(access):
                if each.held:
                    yield each
                else:
                    set_right(access.directory)
                    yield _mended(each, _next_segment(access.directory))
    yield from moved(leave_removed(access, "fix"))


def moved(at: State | None) -> Iterator[Remark]:
    """Yield what is done to `state.dat` if the segment of its position has gone.

    Args:
        at: the new position; None if it stays.
    """
    if at is not None:
        reason = f"its segment is gone: the consumer begins again with {at.segment}.seg"
        yield Remark(NAME, (reason,), is_wrong=False, action="begin again")


def planned(access: Access, read: Collection[str], consumed: Collection[str]) -> Iterator[Remark]:
    """Yield what `leave_removed` would do, or else what a fix would find when it has read segments."""
    found = [*moved(where_removed(access, consumed))]
    yield from found
    wrong = [] if found else [*wrong_when_read(access.directory, access.format("seg"), read)]
    if wrong and not [*findings(access)]:
        yield from wrong


def wrong_when_read(directory: Directory, format: Format, read: Collection[str]) -> Iterator[Remark]:
    """Yield a remark if the position cannot be right in a segment that the index does not know yet.

    Args:
        format: of the segments.
        read: the segments that would be read.

    Cost: reads that segment up to the position.
    """
    at = position(directory)
    if at is None or f"{at.segment}.seg" not in read:
        return
    if (problem := misplaced_in(directory, cast("Seg", format), at)) is not None:
        yield Remark(NAME, (problem,))


def _mended(remark: Remark, name: str) -> Remark:
    return remark._replace(reasons=(*remark.reasons, f"the consumer begins again with {name}"), action="rescan")


def _next_segment(directory: Directory) -> str:
    """Return the name of the first segment on disk that the consumer has not passed."""
    at = position(directory) or State()
    first = min((number for number in numbers_in(directory) if number >= at.segment), default=at.segment)
    return f"{first}.seg"
