"""Data that are in the dataset and in an archive, or that only the dataset's index says were deleted.

A query skips them in the archive, see `ondisk.dataset.archives`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ondisk.dataset.access import Access
from ondisk.dataset.layout import LAST
from ondisk.index import Segment, Snapshot, segment_rows


def in_both(main: Snapshot, archive: Snapshot) -> list[tuple[int, int, int]]:
    """Find the data that are in the archive's snapshot and in the dataset's, because their segment is being moved.

    Returns:
        Runs of such data: the generation of the archive's segment, the first and the last `seq` of the run.

    Cost: reads the rows of segments that both have; those of the dataset only up to the archive's last `seq`.
    """
    spans = segment_rows.span(main), segment_rows.span(archive)
    if spans[0] is None or spans[1] is None:
        return []
    both = spans[0] & spans[1]
    there = {segment.name: segment for segment in segment_rows.segments_in(archive, both)}
    mine = [segment for segment in segment_rows.segments_in(main, both) if segment.name in there]
    return [
        (there[segment.name].id, *run)
        for segment in mine
        for run in _common(main, archive, segment, there[segment.name])
    ]


def _common(main: Snapshot, archive: Snapshot, segment: Segment, other: Segment) -> Iterator[tuple[int, int]]:
    """Yield the runs of data, by `seq`, that are in a segment of the dataset and in that segment of the archive."""
    first = last = None
    for seq, is_common in _compared(main, archive, segment, other):
        if is_common:
            first, last = seq if first is None else first, seq
        elif first is not None and last is not None:
            yield first, last
            first = None
    if first is not None and last is not None:
        yield first, last


def common(main: Snapshot, archive: Snapshot, segment: Segment, other: Segment) -> Iterator[int]:
    """Yield the `seq` of the data that are in a segment of the dataset and in that segment of the archive."""
    return (seq for seq, is_common in _compared(main, archive, segment, other) if is_common)


def _compared(main: Snapshot, archive: Snapshot, segment: Segment, other: Segment) -> Iterator[tuple[int, bool]]:
    """Yield the `seq` of each datum in the archive's segment, in order, and whether the dataset's segment has it too.

    In a damaged index two data may have the same `seq`, so the reftime must be the same, too.
    """
    mine = iter(segment_rows.numbers_of(main, segment, segment_rows.last_seq(archive)))
    waiting = next(mine, None)
    if waiting is None:
        return
    for each in segment_rows.numbers_of(archive, other, segment_rows.last_seq(main)):
        while waiting is not None and waiting < each:
            waiting = next(mine, None)
        yield each[0], waiting == each
        if waiting is None:
            return


def has_pending(main: Access, archive: Access) -> bool:
    """Return whether the dataset's index records deletions that are not committed in an archive."""
    with main.current().index.snapshot() as mine, archive.current().index.snapshot() as there:
        return next(pending(mine, there, archive), None) is not None


def complete_deletes(main: Access, archive: Access) -> None:
    """Delete from an archive the data that the dataset's index records as deleted from it.

    Durability: one commit.
    Locks: the archive's lock, if there is something to delete. The caller must hold the dataset's.
    Memory: does not grow with the number of deletions.
    """
    with main.current().index.snapshot() as mine:
        with archive.current().index.snapshot() as there:
            if next(pending(mine, there, archive), None) is None:
                return
            left = _deletions(mine, there, archive)
        with archive.transaction("delete") as transaction:
            for changes in left:
                transaction.delete_as(changes)
            transaction.commit()


def pending(main: Snapshot, there: Snapshot, archive: Access) -> Iterator[list[tuple[int, int]]]:
    """Yield the deletions that the dataset's snapshot records for data in an archive's snapshot, some at a time.

    They are committed in the dataset's index, and not yet in that of the archive: its `seq` would be as high. The index
    of another dataset, and one that was rebuilt since, has another UUID: none of them concern it.

    Yields:
        The `seq` of each deletion, and that of its datum.
    """
    for changes in _deletions(main, there, archive):
        if left := segment_rows.still_present(there, changes):
            yield left


def _deletions(main: Snapshot, there: Snapshot, archive: Access) -> Iterator[list[tuple[int, int]]]:
    state = there.dataset()
    names = [state["uuid"] or "", *([""] if archive.path.name == LAST else [])]
    return segment_rows.archived_deletions(main, names, state["seq"])


def leave_out(main: Snapshot, there: Snapshot, archive: Access) -> None:
    """Make the archive's snapshot skip the data that the dataset's snapshot contains too, or says were deleted."""
    runs, left = in_both(main, there), pending(main, there, archive)
    first = next(left, None)
    if runs or first is not None:
        changes = () if first is None else chain([first], left)
        there.exclude(runs, ([datum for _, datum in some] for some in changes))
