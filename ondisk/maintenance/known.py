"""What the index knows about its segments: sums over their rows, for the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import add, ge, gt, le, lt
from typing import Any

from ondisk.dataset.access import Access
from ondisk.datum import INTEGER_MIN
from ondisk.index import Snapshot, segment_rows
from ondisk.index.segment_rows import Places
from ondisk.maintenance.diagnosis import Known, Rows

_FEW = 10_000  # runs


def all_known(access: Access, snapshot: Snapshot) -> list[Known]:
    """Sum up the rows of all segments.

    Cost: one pass over the rows, inside SQLite, finds the runs: rows that were appended to a segment one after another.
    The first and the last row of each run are enough for a segment whose later runs have higher offsets and no earlier
    times, also if data between them were deleted. Rows of other segments are read, which takes ten times as long; if
    these have many runs, the rows of all segments are.
    """
    known = {
        segment.id: Known(segment, damage=damage, deleted=deleted, counted=counted)
        for segment, damage, deleted, counted in segment_rows.all_segments(snapshot)
    }
    paddings = {each.segment.format: len(access.format(each.segment.format).padding) for each in known.values()}

    others = {id_ for id_, each in known.items() if access.format(each.segment.format).is_dir}
    run: tuple[Any, ...] | None = None
    useless = 0  # runs of segments whose rows are read
    for row in segment_rows.run_starts(snapshot, paddings, frozenset(others)):
        seq, segment, offset, reftime, *last = row
        if segment is None or offset is None or reftime is None:  # no search by time finds it again
            raise snapshot.corrupt(f"the datum {seq} has no segment, offset or reftime")
        if segment not in known:
            raise snapshot.corrupt(f"it has data of a segment {segment} that it does not know")
        if run is not None and not _add_run(known[run[1]], paddings, run, last):
            others.add(run[1])
        run = row
        if segment in others:
            useless += 1
            if useless > len(known) + _FEW:
                others, run = {*known}, None
                break
    if run is not None and not _add_run(known[run[1]], paddings, run, segment_rows.last_appended(snapshot)):
        others.add(run[1])
    outside = segment_rows.outside_of_intervals(snapshot) if others else {}
    for id_ in others:
        empty = replace(known[id_], rows=Rows())
        known[id_] = _summed(access, snapshot, empty, *outside.get(id_, (None, None)))
    return list(known.values())


def _add_run(known: Known, paddings: Mapping[str, int], run: Sequence[Any], last: Sequence[Any] | None) -> bool:
    """Add a run of a segment to what is known about it; return False if only its rows can tell.

    Args:
        run: seq, segment, offset and reftime of the first datum, and more.
        last: segment, seq, end and reftime of the last one, if it is of this segment.
    """
    seq, segment, first, begin, *_ = run
    if last is None or None in last or last[0] != segment:
        return False
    _, last_seq, end, last_reftime = last
    rows, padding = known.rows, paddings[known.segment.format]
    if not rows.count:
        rows.first, rows.begin = first, begin
    elif first < rows.data_end or begin < rows.end:
        return False
    elif gap := first - rows.data_end:
        rows.gap_at = rows.data_end if rows.gap_at is None else rows.gap_at
        rows.gaps += gap
    rows.count += last_seq - seq + 1
    rows.end, rows.data_end = last_reftime, end + padding
    rows.size += rows.data_end - first
    return True


def known_of(access: Access, snapshot: Snapshot, name: str, before: Known | None) -> Known | None:
    """Sum up the rows of one segment; return None if the index does not know it.

    Cost: reads all rows, unless neither the segment nor the totals of its rows have changed since `before`.
    """
    segment = snapshot.segment_named(name)
    if segment is None:
        return None
    mine = Rows() if before is None else before.rows
    span = (mine.begin, mine.end) if mine.count else (None, None)
    damage, deleted, counted = noted = segment_rows.noted_of(snapshot, segment)
    if before is not None and before.segment == segment and (before.damage, before.deleted, before.counted) == noted:
        totals = segment_rows.totals_of(snapshot, segment, len(access.format(segment.format).padding), *span)
        if totals == (mine.count, mine.size, mine.first, mine.data_end, mine.begin, mine.end):
            return before
    return _summed(access, snapshot, Known(segment, damage=damage, deleted=deleted, counted=counted), *span)


def _summed(access: Access, snapshot: Snapshot, known: Known, begin: int | None, end: int | None) -> Known:
    """Add the rows of a segment to what is known about it; see `segment_rows.places_of`."""
    format = access.format(known.segment.format)
    padding, layout = len(format.padding), None if format.is_dir else _Layout(known.rows)
    for places in segment_rows.places_of(snapshot, known.segment, begin, end):
        offsets, sizes, reftimes, _ = places
        ends = [*map(padding.__add__, map(add, offsets, sizes))]
        _add(known.rows, offsets, ends, reftimes)
        if layout is not None:
            layout.add(places, ends)
    return known


def _add(rows: Rows, offsets: tuple[int, ...], ends: list[int], reftimes: tuple[int, ...]) -> None:
    if not rows.count:
        rows.first, rows.begin, rows.end = offsets[0], reftimes[0], reftimes[0]
    rows.count += len(offsets)
    rows.size += sum(ends) - sum(offsets)
    rows.data_end = max(rows.data_end, max(ends))
    rows.begin = min(rows.begin, min(reftimes))
    rows.end = max(rows.end, max(reftimes))


class _Layout:
    """Counts the gaps, overlaps and misplaced data of a segment, from its rows in the order of their offsets."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._end: int | None = None  # of the data so far
        self._last = (INTEGER_MIN, INTEGER_MIN)  # reftime and seq of the last datum in query order

    def add(self, places: Places, ends: list[int]) -> None:
        """Add some rows.

        Args:
            ends: the offsets after the data and their padding.
        """
        offsets, _, reftimes, seqs = places
        before = [offsets[0] if self._end is None else self._end, *ends[:-1]]
        rows, first = self._rows, (reftimes[0], seqs[0])
        is_in_order = all(map(le, reftimes, reftimes[1:])) and all(map(lt, seqs, seqs[1:])) and self._last < first
        if not is_in_order or not all(map(ge, offsets, before)):
            self._add_one_by_one(places, ends)
            return
        if gaps := sum(offsets) - sum(before):
            if not rows.gaps:
                rows.gap_at = next(compress(before, map(gt, offsets, before)))
            rows.gaps += gaps
        self._end, self._last = ends[-1], (reftimes[-1], seqs[-1])

    def _add_one_by_one(self, places: Places, ends: list[int]) -> None:
        rows = self._rows
        for offset, _, reftime, seq, after in zip(*places, ends, strict=True):
            end = self._end
            if end is not None and offset > end:
                rows.gap_at = end if not rows.gaps else rows.gap_at
                rows.gaps += offset - end
            elif end is not None and offset < end:
                rows.overlap_at = offset if not rows.overlaps else rows.overlap_at
                rows.overlaps += 1
            if (reftime, seq) < self._last:
                rows.misplaced_at = offset if not rows.misplaced else rows.misplaced_at
                rows.misplaced += 1
            else:
                self._last = reftime, seq
            self._end = max(end or 0, after)
