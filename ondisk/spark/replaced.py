"""Segments of a plan that were replaced since it was made, and that `keep_replaced` keeps readable."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from ondisk.dataset.access import Opened
from ondisk.errors import IntegrityError, SegmentMissing
from ondisk.index import Snapshot, replaced_rows
from ondisk.segments.generations import ROWS
from ondisk.segments.replaced import Replaced, replaced

if TYPE_CHECKING:
    from ondisk.spark.plan import IndexState

DELETED = "ifnull(deleted, -1)"
"""The column of `segment` with the bytes, or files, that were deleted."""


def kept_for(
    state: IndexState, opened: Opened, ids: Collection[int] | None, present: Collection[int]
) -> dict[str, int]:
    """Return the files with the rows of segments that a plan had, and that the index does not have any more.

    Args:
        ids: those of the segments to look for; None for all of the plan.
        present: those of segments that the index has.

    Returns:
        File → what the index counted as deleted in the segment.
    """
    found: dict[int, tuple[str, int]] = {}
    for each in replaced(opened.index.directory):
        id_ = each.generation
        if id_ <= state.generation and id_ not in present and (ids is None or id_ in ids):
            with opened.index.snapshot() as snapshot:
                numbers = replaced_rows.read(snapshot, opened.index.directory.path / _rows(each))
                if numbers is not None and _is_of_plan(state, each, numbers):
                    ((deleted,),) = snapshot.connection.execute(f"SELECT {DELETED} FROM segment")
                    found[id_] = _rows(each), deleted
    return dict(found.values())


def _rows(each: Replaced) -> str:
    return each.name + ROWS


def _is_of_plan(state: IndexState, each: Replaced, numbers: replaced_rows.Numbers) -> bool:
    """Return whether a plan had a segment with these rows. Somebody may have copied or renamed the file."""
    return (
        (numbers.uuid, numbers.name, numbers.id) == (state.uuid, each.segment, each.generation)
        and state.seq <= numbers.seq
        and state.generation <= numbers.generation
    )


@contextlib.contextmanager
def snapshot_of(rows: str, opened: Opened) -> Iterator[Snapshot]:
    """Open what was kept of a segment, for the length of a block.

    Raises:
        Gone: it, or what the block reads of the segment, is not there any more, or not whole.
    """
    try:
        with opened.index.snapshot() as snapshot:
            if replaced_rows.read(snapshot, opened.index.directory.path / rows) is None:
                raise Gone
            yield snapshot
    except (SegmentMissing, IntegrityError) as error:  # its hint is about the segment and the index as they are now
        raise Gone from error


class Gone(Exception):
    """What was kept of a segment was removed or damaged."""
