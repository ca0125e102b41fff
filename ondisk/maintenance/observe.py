"""Observe: what the index knows of a segment, and what is on disk, at one time: all that its diagnosis depends on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import add, ge, gt, le, lt
from typing import Any

from ondisk.dataset.access import Access
from ondisk.datum import INTEGER_MIN
from ondisk.errors import AuthenticationFailed, KeyMissing, SegmentCorrupt, StateError
from ondisk.filesystem import Directory, Entry, ReadableFile
from ondisk.formats import Format
from ondisk.formats.base import DescribesFiles, is_zeros
from ondisk.index import Snapshot, segment_rows
from ondisk.index.segment_rows import Places
from ondisk.maintenance.diagnosis import OTHER_BYTES, Files, Known, OnDisk, Rows
from ondisk.segment import End, ScanResult
from ondisk.segments import dir
from ondisk.segments.dir import METADATA, NEW_METADATA, SEQUENCE, checksum_of_stats, is_refused, seen_with_files
from ondisk.segments.file_facts import located
from ondisk.segments.generations import hidden, stray, waiting

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


def observe(
    access: Access,
    snapshot: Snapshot,
    name: str,
    known: Known | None,
    entry: Entry | None,
    format: Format,
    *,
    needs_check: bool,
) -> tuple[Known | None, OnDisk | None]:
    """Look at a segment on disk; return what is known, with what only that tells of the rows, and what is there."""
    directory, path, is_dir = access.directory, name, format.is_dir
    if entry is None and known is not None:  # it may not have its name yet
        path, committed = hidden(name, known.segment.id), access.committed(known.segment)
        if (found := waiting(directory, name, known.segment.id, committed)) is not None:
            entry = Entry.of(path.rpartition("/")[2], found)
    if is_dir and entry is not None and entry.kind == "directory":
        with contextlib.suppress(FileNotFoundError), directory.inside(path) as folder:
            return _look_into(folder, name, known, snapshot, format, needs_check=needs_check)
    if is_dir and entry is not None:
        is_empty = entry.kind == "file" and not entry.size
        return known, OnDisk(False, entry.size, is_empty=is_empty, is_dir=True)
    on_disk = None if entry is None else look_at(directory, name, entry, known, format)
    if known is not None and known.deleted is not None and not is_dir:
        start = format.first_offset(known.segment.end)
        left = known.segment.end.length - start - known.rows.size - known.deleted
        known = replace(known, unexplained=left)
    if known is not None and known.rows.count:
        needed = known.rows.data_end
        if known.segment.end.compressed:
            needed = segment_rows.end_of_block_before(snapshot, known.segment, needed)
        known = replace(known, needed=needed)
    return known, on_disk


def scan(name: str, format: Format, source: ReadableFile | Directory) -> Iterator[ScanResult]:
    """Yield the data in the directory of a segment, or in its file after comparing it with the name, if the format can.

    Raises:
        KeyMissing: it is encrypted, and its key is not known.
        AuthenticationFailed: no key fits, or the file is that of another segment.
    """
    if isinstance(source, Directory):
        yield from dir.scan(source, name, format.describe)
        return
    try:
        format.sealer(source, name)
        yield from format.scan(source)
    except (KeyMissing, AuthenticationFailed) as error:
        raise located(error, source.path) from None


def look_at(directory: Directory, name: str, entry: Entry, known: Known | None, format: Format) -> OnDisk:
    """Return what is on disk; a committed generation that waits for its name counts as the segment."""
    if entry.kind != "file":
        return OnDisk(False, entry.size)
    path, size, other = name, entry.size, None
    committed = None
    if known is not None:
        committed = known.segment.committed(format.mutable)
        if directory.stat(hidden(name, known.segment.id)) is not None:
            generation = known.segment.id
            other = stray(directory, name, generation, committed)
            if (found := waiting(directory, name, generation, committed)) is not None:
                path, size = hidden(name, generation), found.st_size
    try:
        file = directory.open_to_read(path)
    except FileNotFoundError:
        return OnDisk(True, size, stray=other)
    stat = file.stat()
    seen = None if committed is None else committed.seen_in(file, stat)
    has_grown = (
        known is not None
        and known.segment.shared
        and size > known.segment.end.size
        and seen not in OTHER_BYTES
        and has_more(file, known.segment.end, format)
    )
    if known is None or committed is None or not known.rows.count:
        is_empty = format.is_empty(file)
        is_readable = is_empty or format.is_readable(file)
        all_zeros = not is_readable and is_zeros(file, 0)
        return OnDisk(True, size, seen, is_empty, is_readable, all_zeros, stray=other, has_grown=has_grown)
    end = known.segment.end
    seal = format.seal(end)
    is_sealed = size == end.size + len(seal) and file.read(end.size, len(seal)) == seal
    is_readable = seen not in OTHER_BYTES or format.is_readable(file)
    sealed, refused = len(seal) if is_sealed else 0, committed.is_refused(stat)
    return OnDisk(True, size, seen, False, is_readable, False, sealed, other, refused, has_grown)


def has_more(file: ReadableFile, end: End, format: Format) -> bool:
    """Return whether a whole datum is after the end of a segment that another program writes."""
    try:
        if end.compressed:  # perhaps in a way that ondisk does not write: then only what precedes tells what follows
            return any(found.offsets and found.offsets[-1] >= end.length for found in format.scan(file))
        laid = format.resume(file, end)
    except (SegmentCorrupt, StateError, AuthenticationFailed):
        return True
    return laid.end.size - len(laid.content) > end.size


def _look_into(
    folder: Directory, name: str, known: Known | None, snapshot: Snapshot, format: Format, *, needs_check: bool
) -> tuple[Known | None, OnDisk]:
    """Compare the files in the directory of a segment with the index. Memory: a few numbers for each file."""
    files, own, found_files = Files(), dict[str, int](), dict[int, Entry]()
    for entry in folder.entries():
        number = dir.number_of(name, entry.name)
        if entry.kind == "file" and not entry.looks_readable:
            folder.check_readable(entry.name)
        if number is not None and entry.kind == "file":
            found_files[number] = entry
        elif entry.name in (METADATA, SEQUENCE, NEW_METADATA) and entry.kind == "file":
            own[entry.name] = entry.size
        else:
            files.strangers.add(entry.name)
    sizes = {number: each.size for number, each in found_files.items()}
    size, files.highest = sum(sizes.values()), max(sizes, default=-1)
    files.sequence, files.has_new_metadata = dir.read_sequence(folder), NEW_METADATA in own
    files.lacks_metadata = METADATA not in own and not isinstance(format, DescribesFiles)
    seen, refused, length, used = None, False, 0, 0
    if known is not None:
        segment, length = known.segment, known.segment.end.length
        stats = checksum_of_stats(found_files, length)
        seen = seen_with_files(folder, segment.facts, segment.end.size, stats)
        refused = is_refused(folder, segment.facts)
        used = _compare_rows(files, name, known, snapshot, sizes)
    for number in sorted(sizes):
        (files.removed if number < length else files.unknown).add(dir.file_name(name, number), sizes[number])
    files.unused = max(0, length - used - files.removed.count)
    if known is not None and known.deleted is not None:
        known = replace(known, unexplained=max(0, files.removed.count - known.deleted))
    # If the index may be lost, entries mean that files are lost, too.
    is_lost = needs_check and own.get(METADATA, 0) > 0 and not files.has_new_metadata
    is_empty = not found_files and not is_lost
    return known, OnDisk(True, size, seen, is_empty, is_refused=refused, is_dir=True, files=files)


def _compare_rows(files: Files, name: str, known: Known, snapshot: Snapshot, sizes: dict[int, int]) -> int:
    """Compare the rows of a segment with the sizes of its files, by number; leave the sizes of files without a row.

    Returns:
        How many numbers have a row.
    """
    if not known.rows.count:
        return 0
    before, last, used = None, None, 0
    for number, wanted, *place in segment_rows.in_order_of_offset(
        snapshot, known.segment, known.rows.begin, known.rows.end
    ):
        file = dir.file_name(name, number)
        if number == before:
            files.repeated.add(file)
            continue
        if last is not None and place < last:
            files.misplaced.add(file)
        else:
            last = place
        used += 1
        before, found = number, sizes.pop(number, None)
        if found is None:
            files.missing.add(file)
        elif found != wanted:
            files.resized.add(f"{file}, which has {found} bytes instead of {wanted}")
    return used
