"""The diagnosis of a segment: a pure function of what the index says, what the disk says, and the circumstances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ondisk.index import Segment
from ondisk.maintenance.states import Diagnosis, State
from ondisk.step import Interval, Step, interval_of


@dataclass(slots=True)
class Known:
    """What the index says of a segment: the sums of its data's rows. Offsets and sizes are decompressed bytes.

    Attributes:
        segment: its row.
        count: rows of data.
        size: their bytes, padding included.
        begin, end: first and last reftime, microseconds.
        first: where the first datum begins.
        behind: where the last ends, its padding included.
        needed: where in the file the last ends.
        interval: which one the index says it spans; only data inside of it are found again by their segment.
        is_laid_out: every datum begins where the one before it in query order ends.
        gaps: bytes that are no data between the first and the last.
        gap_at: where the first gap begins; None without one.
        overlaps: data that begin inside the one before.
        overlap_at: the first of them.
        misplaced: data that stand behind one which a query gives later.
        misplaced_at: the first of them.
        damage: what an accurate check, or a fix, said is wrong with the content.
    """

    segment: Segment
    count: int = 0
    size: int = 0
    begin: int = 0
    end: int = 0
    first: int = 0
    behind: int = 0
    needed: int = 0
    interval: Interval | None = None
    is_laid_out: bool = True
    gaps: int = 0
    gap_at: int | None = None
    overlaps: int = 0
    overlap_at: int | None = None
    misplaced: int = 0
    misplaced_at: int | None = None
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class OnDisk:
    """What stands on disk in the place of a segment.

    Attributes:
        is_file: a plain file, as a concat segment must be; of a dir segment, a directory.
        size: bytes.
        changed: when its content or its name changed last, nanoseconds since 1970.
        is_empty: it holds no more than a new segment begins with.
        is_readable: something in it is of its format.
        sealed: bytes of the mark behind the last datum that says the segment is complete.
        stray: what readers would take for it by its name, and is not; None where there is no such thing.
    """

    is_file: bool
    size: int
    changed: int
    is_empty: bool = False
    is_readable: bool = True
    sealed: int = 0
    stray: str | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a diagnosis depends on besides the segment.

    Attributes:
        step: the dataset's.
        committed_at: when the index was last changed, microseconds.
        needs_check: the sentinel stands, or the index is missing.
        archive_before, delete_before: segments that end at or before it are old enough, microseconds; None: never.
        is_archive: names of every step fit, and nothing unknown is ever deleted.
    """

    step: Step
    committed_at: int
    needs_check: bool
    archive_before: int | None = None
    delete_before: int | None = None
    is_archive: bool = False

    def interval(self, name: str) -> Interval | None:
        """Give the interval that a segment's name stands for; None where it is no name that fits."""
        return interval_of(name.rpartition(".")[0], self.step, is_archived=self.is_archive)


def diagnose(name: str, known: Known | None, found: OnDisk | None, at: Circumstances, start: int) -> Diagnosis:
    """Say in which states a segment is, and why.

    Args:
        known: what the index says; None where it does not know the segment.
        found: what the disk says; None where nothing is there.
        start: where the first datum of a segment of its format begins.
    """
    if known is not None:
        return _known(name, known, found, at, start)
    assert found is not None
    return _unknown(name, found, at)


def _unknown(name: str, found: OnDisk, at: Circumstances) -> Diagnosis:
    if at.interval(name) is None:
        step = "any step" if at.is_archive else f"the step {at.step}"
        return Diagnosis(name, State.CORRUPTED, (f"the index does not know it, and its name does not fit {step}",))
    if not found.is_file:
        return Diagnosis(name, State.CORRUPTED, ("no plain file stands there, and the index does not know it",))
    if found.is_empty:
        return Diagnosis(name, State.DELETED, ("it is empty, and the index does not know it",), found.size)
    if not found.is_readable:
        return Diagnosis(name, State.CORRUPTED, ("nothing in it is of its format, and the index does not know it",))
    if at.needs_check:
        return Diagnosis(name, State.UNALIGNED, ("the index does not know it, and may have lost it",))
    if found.changed // 1000 > at.committed_at:
        return Diagnosis(name, State.UNALIGNED, ("the index does not know it, and is older",))
    if at.is_archive:
        return Diagnosis(name, State.UNALIGNED, ("the index does not know it",))
    return Diagnosis(name, State.DELETED, ("the index does not know it, and is newer",), found.size)


def _known(name: str, known: Known, found: OnDisk | None, at: Circumstances, start: int) -> Diagnosis:
    if found is None or not found.is_file:
        reason = "it is not on disk" if found is None else "no plain file stands in its place; what does is left there"
        return Diagnosis(name, State.MISSING, (f"{reason}; the index knows {known.count} data of it",))
    if not known.count and found.stray is None and not [*misnamed(known, at.interval(name), at)]:
        return _known_without_data(name, known, found, at)
    corrupted = [*_corrupted(known, found, at.interval(name), at, start)]
    dirty = [*_dirty(known, found, start)]
    return judge(known, corrupted, dirty, _freed(known, found, start), found.size, at)


def judge(known: Known, corrupted: list[str], dirty: list[str], freed: int, size: int, at: Circumstances) -> Diagnosis:
    """Diagnose a segment that has data.

    Args:
        corrupted, dirty: the reasons for these states.
        freed: bytes that a repack would free.
        size: bytes of the whole segment.
    """
    name = known.segment.name
    interval = at.interval(name)
    state = State.CORRUPTED if corrupted else State.OK
    if dirty:
        state |= State.UNALIGNED if at.needs_check and not corrupted else State.DIRTY
    else:
        freed = 0
    reasons = corrupted + dirty
    if interval is not None:
        if at.delete_before is not None and interval.end <= at.delete_before:
            state |= State.DELETE_AGE
            reasons.append("it is old enough to be deleted")
            freed = size
        elif at.archive_before is not None and interval.end <= at.archive_before:
            state |= State.ARCHIVE_AGE
            reasons.append("it is old enough to be archived")
    return Diagnosis(name, state, tuple(reasons), 0 if corrupted else freed, noted=corrupted == [known.damage])


def _known_without_data(name: str, known: Known, found: OnDisk, at: Circumstances) -> Diagnosis:
    if known.damage is not None:
        return Diagnosis(name, State.CORRUPTED, (known.damage,), noted=True)
    if at.needs_check and not found.is_empty:
        if not found.is_readable:
            return Diagnosis(name, State.CORRUPTED, ("nothing in it is of its format",))
        return Diagnosis(name, State.UNALIGNED, ("the index knows no data of it, and may have lost them",))
    return Diagnosis(name, State.DELETED, ("all its data were deleted",), found.size)


def misnamed(known: Known, interval: Interval | None, at: Circumstances) -> Iterator[str]:
    """Say where the name of a segment does not fit its data, or the step."""
    if interval is None:
        yield f"its name does not fit the step {at.step}"
    elif known.interval not in (None, interval):
        yield "the index says that it spans another time than its name says"
    elif known.count and (known.begin not in interval or known.end not in interval):
        yield "it has data of other times than its name says"


def _corrupted(known: Known, found: OnDisk, interval: Interval | None, at: Circumstances, start: int) -> Iterator[str]:
    yield from misnamed(known, interval, at)
    if known.first < start:
        yield f"its data begin at byte {known.first}, the first can only stand at byte {start}"
    if known.overlaps:
        yield f"{known.overlaps} data begin inside the one before, the first at byte {known.overlap_at}"
    if found.stray is not None:
        yield f"{found.stray} is none of its generations, and stands where queries look for one: move it away"
    if known.needed > found.size:
        yield f"it ends at byte {found.size}, its data go up to byte {known.needed}"
    if known.damage is not None:
        yield known.damage


def _dirty(known: Known, found: OnDisk, start: int) -> Iterator[str]:
    end = known.segment.end
    if known.first > start:
        yield f"{known.first - start} bytes before its first datum are no data"
    if known.gaps:
        yield f"{known.gaps} bytes between its data are no data, the first at byte {known.gap_at}"
    if end.length > known.behind:
        yield f"{end.length - known.behind} bytes behind its last datum are no data"
    if found.size > end.size + found.sealed:
        yield f"{found.size - end.size} bytes at its end are of an append that did not come through, or runs now"
    elif known.needed <= found.size < end.size:
        yield f"it ends at byte {found.size}, it once went up to byte {end.size}; all its data are there"
    if known.misplaced:
        yield f"{known.misplaced} data stand behind one that comes later, the first at byte {known.misplaced_at}"


def _freed(known: Known, found: OnDisk, start: int) -> int:
    end = known.segment.end
    if not end.compressed:
        return max(0, found.size - start - known.size)
    return max(0, found.size - end.size * (start + known.size) // max(end.length, 1))
