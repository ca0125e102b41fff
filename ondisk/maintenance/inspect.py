"""The census: what the index says of its segments, and what stands on disk, for the diagnosis to compare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ondisk import step
from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.layout import untrusted
from ondisk.errors import StorageError
from ondisk.filesystem import Directory, Entry
from ondisk.formats import Format, of_extension
from ondisk.index import Segment, Snapshot, segment_rows
from ondisk.maintenance import dir_segments
from ondisk.maintenance.diagnosis import Circumstances, Known, OnDisk, diagnose
from ondisk.maintenance.states import Diagnosis, State
from ondisk.segments.dir import METADATA
from ondisk.segments.generations import hidden, stray, switched
from ondisk.step import Interval, days_ago

_DEEPEST = 16  # folders in folders


class Inspection:
    """Compares what the index of a dataset or an archive says of its segments with the disk. Reads only.

    Args:
        access: the dataset or the archive.
        now: seconds since 1970; None for the present. Ages count from it.
        committed_at: when the index was last changed, microseconds; None to read it from the index.
    """

    def __init__(self, access: Access, now: float | None = None, committed_at: int | None = None) -> None:
        self.access = access
        self.now = now
        self._committed_at = committed_at

    def circumstances(self, snapshot: Snapshot) -> Circumstances:
        """Return what the diagnoses depend on besides the segment."""
        config, committed_at = self.access.config, self._committed_at
        is_archive = self.access.prefix != ""
        return Circumstances(
            config.step,
            snapshot.dataset()["committed_at"] if committed_at is None else committed_at,
            self.access.needs_check(),
            None if is_archive or config.archive_age is None else days_ago(config.archive_age, self.now),
            None if config.delete_age is None else days_ago(config.delete_age, self.now),
            is_archive,
        )

    def diagnoses(self, is_examined_later: Callable[[Diagnosis], bool] = lambda _: False) -> Iterator[Diagnosis]:
        """Yield the diagnosis of every segment, in the order of their names.

        A concurrent writer may make a segment look damaged for a moment, so a segment that looks damaged is examined
        again.

        Args:
            is_examined_later: whether the caller examines a segment again, under the lock; then only one that looks
                damaged is examined again here.

        Memory: some numbers a segment.
        """
        access = self.access
        with access.current().index.snapshot() as snapshot:
            at = self.circumstances(snapshot)
            known = {each.segment.name: each for each in all_known(access, snapshot)}
            on_disk = dict(found_segments(access.directory, access.config))
            for name in sorted(known.keys() | on_disk.keys()):
                try:
                    found = _diagnosed(access, snapshot, name, known.get(name), on_disk.get(name), at)
                except StorageError as error:
                    found = _unreadable(name, error)
                if State.CORRUPTED in found.state or (found.state and not is_examined_later(found)):
                    again = self._again(name, known.get(name))
                    if again is None:
                        continue
                    found = again
                yield found

    def examine(
        self, snapshot: Snapshot, name: str, before: Known | None = None
    ) -> tuple[Diagnosis | None, Known | None]:
        """Return the diagnosis of one segment, and what the index says of it; None, None if neither has the segment.

        Args:
            before: what the index said of it when all segments were examined.
        """
        known = known_of(self.access, snapshot, name, before)
        at = self.circumstances(snapshot)
        try:
            entry = entry_of(self.access.directory, name)
            if known is None and entry is None:
                return None, None
            return _diagnosed(self.access, snapshot, name, known, entry, at), known
        except StorageError as error:
            return _unreadable(name, error), known

    def _again(self, name: str, before: Known | None) -> Diagnosis | None:
        """Diagnose a segment again, from a new snapshot, until nobody changed it meanwhile; None if it has gone."""
        diagnosis = None
        for _ in range(3):
            with self.access.current().index.snapshot() as snapshot:
                diagnosis, _ = self.examine(snapshot, name, before)
                segment = snapshot.segment_named(name)
            with self.access.current().index.snapshot() as snapshot:
                if segment == snapshot.segment_named(name):
                    break
        return diagnosis


def check_trusted(access: Access) -> None:
    """Refuse to work while the index may not know all data.

    Raises:
        NeedsCheck: so it is.
    """
    if access.needs_check():
        raise untrusted(str(access.path).removesuffix(f"/{access.prefix}".rstrip("/")))


def why_kept(access: Access, name: str) -> str | None:
    """Say why a segment that is missing is not to be forgotten yet; None where it may be."""
    folder = name.rpartition("/")[0]
    if access.directory.stat(folder) is not None:
        return None
    return f"its folder {folder} is not there: is a disk not mounted? Make the folder if its data are gone for good"


def interval_of(access: Access, name: str) -> Interval | None:
    """Give the interval that a segment's name stands for; in an archive it may be one of any step."""
    return step.interval_of(name.rpartition(".")[0], access.config.step, is_archived=access.prefix != "")


def _unreadable(name: str, error: StorageError) -> Diagnosis:
    """Diagnose a segment that cannot be read: its path contains a symbolic link, or this user may not read it."""
    return Diagnosis(name, State.CORRUPTED, (f"it cannot be read: {error.message}",), error=error)


def _diagnosed(
    access: Access, snapshot: Snapshot, name: str, known: Known | None, entry: Entry | None, at: Circumstances
) -> Diagnosis:
    format = access.format(known.segment.format) if known is not None else access.format_of(name)
    if known is not None:
        known.interval = segment_rows.interval_of(snapshot, known.segment)
    if format.is_dir:
        return dir_segments.diagnosed(access, snapshot, name, known, entry, at)
    if entry is None and known is not None:  # a crash may have interrupted the switch to its first generation
        segment = known.segment
        if switched(access.directory, name, segment.id, segment.end.size) is not None:
            entry = entry_of(access.directory, hidden(name, segment.id))
    found = None if entry is None else _looked_at(access.directory, name, entry, known, format)
    if known is not None and known.count:
        if not known.is_laid_out:
            lay_out(snapshot, known, len(format.padding))
        known.needed = known.data_end
        if known.segment.end.compressed:
            known.needed = segment_rows.end_of_block_before(snapshot, known.segment, known.data_end)
    return diagnose(name, known, found, at, format.begin().end.length)


def all_known(access: Access, snapshot: Snapshot) -> list[Known]:
    """Sum up the rows of all segments.

    Cost: one pass over the rows, inside SQLite, finds those that do not go on from the one appended before. What was
    appended to a segment in one go, and never changed, is known by where that begins and ends; only the rows of the
    other segments are looked at one by one.
    """
    known = {segment.id: Known(segment, damage=damage) for segment, damage in segment_rows.all_segments(snapshot)}
    paddings = {each.segment.format: len(access.format(each.segment.format).padding) for each in known.values()}
    others: set[int] = set()

    def add_run(run: tuple[Any, ...], last: tuple[Any, ...] | None) -> None:
        """Sum up a run by its first datum and its last, which is not known where a number is missing behind it."""
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
            raise snapshot.corrupt(f"the datum {row[0]} has no place or no time")
        if run is not None:
            add_run(run, None if row[4] is None else row[4:])
        run = row[:4]
    if run is not None:
        add_run(run, segment_rows.last_appended(snapshot))
    outside = segment_rows.outside_of_intervals(snapshot) if others else {}
    for id_ in others:
        segment, damage = known[id_].segment, known[id_].damage
        known[id_] = _summed(snapshot, segment, damage, paddings[segment.format], *outside.get(id_, (None, None)))
    return list(known.values())


def known_of(access: Access, snapshot: Snapshot, name: str, before: Known | None) -> Known | None:
    """Sum up the rows of one segment; None where the index does not know it."""
    segment = snapshot.segment_named(name)
    if segment is None:
        return None
    padding = len(access.format(segment.format).padding)
    span = (None, None) if before is None or not before.count else (before.begin, before.end)
    return _summed(snapshot, segment, segment_rows.damage_of(snapshot, segment), padding, *span)


def _summed(
    snapshot: Snapshot, segment: Segment, damage: str | None, padding: int, begin: int | None, end: int | None
) -> Known:
    """Sum up the rows of one segment; see `segment_rows.places_of`."""
    known = Known(segment, damage=damage, is_laid_out=False)
    for offsets, sizes, reftimes in segment_rows.places_of(snapshot, segment, begin, end):
        _add(known, offsets, [offset + size + padding for offset, size in zip(offsets, sizes, strict=True)], reftimes)
    return known


def _add(known: Known, offsets: tuple[int, ...], behind: list[int], reftimes: tuple[int, ...]) -> None:
    if not known.count:
        known.first, known.begin, known.end = offsets[0], reftimes[0], reftimes[0]
    known.count += len(offsets)
    known.size += sum(behind) - sum(offsets)
    known.first = min(known.first, min(offsets))
    known.data_end = max(known.data_end, max(behind))
    known.begin = min(known.begin, min(reftimes))
    known.end = max(known.end, max(reftimes))


def lay_out(snapshot: Snapshot, known: Known, padding: int) -> None:
    """Find gaps, overlaps and data out of order, by the rows of one segment in the order of their offsets."""
    known.gaps = known.overlaps = known.misplaced = 0
    behind: int | None = None
    before: tuple[int, int] | None = None
    for offset, size, reftime, seq in segment_rows.in_order_of_offset(snapshot, known.segment, known.begin, known.end):
        if behind is not None and offset > behind:
            known.gap_at = behind if not known.gaps else known.gap_at
            known.gaps += offset - behind
        elif behind is not None and offset < behind:
            known.overlap_at = offset if not known.overlaps else known.overlap_at
            known.overlaps += 1
        if before is not None and (reftime, seq) < before:
            known.misplaced_at = offset if not known.misplaced else known.misplaced_at
            known.misplaced += 1
        else:
            before = reftime, seq
        behind = max(behind or 0, offset + size + padding)
    known.is_laid_out = True


def found_segments(directory: Directory, config: DatasetConfig) -> Iterator[tuple[str, Entry]]:
    """Find what may be a segment on disk: names whose extension is that of a format, hidden ones left out.

    A folder that cannot be read is given, too: what is said of it then is said of all that is in it.
    """
    waiting = [("", Entry("", "directory", 0, 0, 0, 0))]
    while waiting:
        parent, folder = waiting.pop()
        try:
            entries = directory.entries(parent)
        except StorageError:
            yield parent, folder
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{parent}/{entry.name}" if parent else entry.name
            extension = entry.name.rpartition(".")[2]
            if "." in entry.name and (of_extension(extension, config) or _is_directory_of_data(directory, name, entry)):
                yield name, entry
            elif entry.kind == "directory" and name.count("/") < _DEEPEST:
                waiting.append((name, entry))


def _is_directory_of_data(directory: Directory, name: str, entry: Entry) -> bool:
    """Tell whether a directory of no known extension is a segment: it was written under another configuration."""
    try:
        return entry.kind == "directory" and directory.stat(f"{name}/{METADATA}") is not None
    except StorageError:
        return True  # what keeps it from being looked at is told, then


def entry_of(directory: Directory, name: str) -> Entry | None:
    """Look at one segment on disk; None where nothing stands there."""
    found = directory.stat(name)
    return None if found is None else Entry.of(name.rpartition("/")[2], found)


def _looked_at(directory: Directory, name: str, entry: Entry, known: Known | None, format: Format) -> OnDisk:
    """Say of what stands on disk what a diagnosis needs; a committed generation stands for the segment itself."""
    if entry.kind != "file":
        return OnDisk(False, entry.size, entry.mtime)
    place, size, other = name, entry.size, None
    if known is not None and directory.stat(hidden(name, known.segment.id)) is not None:
        generation, committed = known.segment.id, known.segment.end.size
        other = stray(directory, name, generation, committed)
        if (waiting := switched(directory, name, generation, committed)) is not None:
            place, size = hidden(name, generation), waiting.st_size
    found = OnDisk(True, size, max(entry.mtime, entry.ctime), stray=other)  # a file that is moved keeps its mtime
    if known is not None and known.count and size == known.segment.end.size:
        return found
    with contextlib.suppress(FileNotFoundError):
        file = directory.open_to_read(place)
        if known is None or not known.count:
            is_empty = format.is_empty(file)
            return replace(found, is_empty=is_empty, is_readable=is_empty or format.is_readable(file))
        end = known.segment.end
        seal = format.seal(end)
        if size == end.size + len(seal) and file.read(end.size, len(seal)) == seal:
            return replace(found, sealed=len(seal))
    return found
