"""What the index knows about its segments: sums over their rows, for the diagnosis."""

from __future__ import annotations

from typing import Any

from ondisk.dataset.access import Access
from ondisk.index import Snapshot, segment_rows
from ondisk.maintenance.diagnosis import Known


def all_known(access: Access, snapshot: Snapshot) -> list[Known]:
    """Sum up the rows of all segments.

    Cost: one pass over the rows, inside SQLite, finds the runs: rows that were appended to a segment one after another.
    For a segment of one run, the first and the last row are enough. Rows of other segments are read one by one.
    """
    known = {
        each[0].id: Known(each[0], damage=each[1], deleted=each[2]) for each in segment_rows.all_segments(snapshot)
    }
    paddings = {each.segment.format: len(access.format(each.segment.format).padding) for each in known.values()}
    others: set[int] = set()

    def add_run(run: tuple[Any, ...], last: tuple[Any, ...] | None) -> None:
        """Sum up a run by its first and its last row; the last is unknown if the next seq is missing."""
        each = known.get(run[1])
        if each is None:
            raise snapshot.corrupt(f"it has data of a segment {run[1]} that it does not know")
        if last is None or each.count:
            others.add(each.segment.id)
        else:
            seq, _, each.first, each.begin = run
            each.count = last[0] - seq + 1
            each.data_end = last[1] + paddings[each.segment.format]
            each.size = each.data_end - each.first
            each.end = last[2]

    run: tuple[Any, ...] | None = None
    for row in segment_rows.run_starts(snapshot, paddings):
        if None in row[:4]:  # no search by time finds it again
            raise snapshot.corrupt(f"the datum {row[0]} has no segment, offset or reftime")
        if run is not None:
            add_run(run, None if row[4] is None else row[4:])
        run = row[:4]
    if run is not None:
        add_run(run, segment_rows.last_appended(snapshot))
    outside = segment_rows.outside_of_intervals(snapshot) if others else {}
    for id_ in others:
        empty = Known(known[id_].segment, damage=known[id_].damage, deleted=known[id_].deleted, is_laid_out=False)
        known[id_] = _summed(snapshot, empty, paddings[empty.segment.format], *outside.get(id_, (None, None)))
    return list(known.values())


def known_of(access: Access, snapshot: Snapshot, name: str, before: Known | None) -> Known | None:
    """Sum up the rows of one segment; return None if the index does not know it."""
    segment = snapshot.segment_named(name)
    if segment is None:
        return None
    padding = len(access.format(segment.format).padding)
    span = (None, None) if before is None or not before.count else (before.begin, before.end)
    damage, deleted = segment_rows.noted_of(snapshot, segment)
    return _summed(snapshot, Known(segment, damage=damage, deleted=deleted, is_laid_out=False), padding, *span)


def _summed(snapshot: Snapshot, known: Known, padding: int, begin: int | None, end: int | None) -> Known:
    """Add the rows of a segment to what is known about it; see `segment_rows.places_of`."""
    for offsets, sizes, reftimes in segment_rows.places_of(snapshot, known.segment, begin, end):
        _add(known, offsets, [offset + size + padding for offset, size in zip(offsets, sizes, strict=True)], reftimes)
    return known


def _add(known: Known, offsets: tuple[int, ...], ends: list[int], reftimes: tuple[int, ...]) -> None:
    if not known.count:
        known.first, known.begin, known.end = offsets[0], reftimes[0], reftimes[0]
    known.count += len(offsets)
    known.size += sum(ends) - sum(offsets)
    known.first = min(known.first, min(offsets))
    known.data_end = max(known.data_end, max(ends))
    known.begin = min(known.begin, min(reftimes))
    known.end = max(known.end, max(reftimes))


def lay_out(snapshot: Snapshot, known: Known, padding: int) -> None:
    """Count the gaps, overlaps and misplaced data of a segment, from its rows in the order of their offsets."""
    known.gaps = known.overlaps = known.misplaced = 0
    end: int | None = None
    before: tuple[int, int] | None = None
    for offset, size, reftime, seq in segment_rows.in_order_of_offset(snapshot, known.segment, known.begin, known.end):
        if end is not None and offset > end:
            known.gap_at = end if not known.gaps else known.gap_at
            known.gaps += offset - end
        elif end is not None and offset < end:
            known.overlap_at = offset if not known.overlaps else known.overlap_at
            known.overlaps += 1
        if before is not None and (reftime, seq) < before:
            known.misplaced_at = offset if not known.misplaced else known.misplaced_at
            known.misplaced += 1
        else:
            before = reftime, seq
        end = max(end or 0, offset + size + padding)
    known.is_laid_out = True
