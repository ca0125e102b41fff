"""Let the consumer of a queue follow Beats when that has begun again, before a fix reads the new segments."""

from __future__ import annotations

from collections.abc import Iterator

from ondisk.dataset import state_file
from ondisk.dataset.access import Access
from ondisk.dataset.position import begun_again, is_consumed, is_there, position
from ondisk.formats.diskqueue.state import State as Position
from ondisk.index import segment_rows
from ondisk.maintenance.inspect import followed
from ondisk.maintenance.states import Done


def follow(access: Access) -> Iterator[Done]:
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
        state_file.write(directory, Position(again, version=at.version))
        transaction.commit()
    yield Done(found.segment, found.state, (*found.reasons, f"the consumer begins again with {again}.seg"), "rescan")
