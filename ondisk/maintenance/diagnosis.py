"""The diagnosis of a segment: a pure function of what the index knows, what is on disk, and the circumstances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ondisk.dataset.segment_layout import BY_TIME, UNUSED, Layout, Usage
from ondisk.errors import counted
from ondisk.index import Segment
from ondisk.maintenance.ages import NO_LIMITS, AgeLimits
from ondisk.maintenance.states import Diagnosis, State, Tally
from ondisk.segment import NotedDamage
from ondisk.segments.dir import METADATA, NEW_METADATA, SEQUENCE
from ondisk.segments.file_facts import Seen
from ondisk.step import ALWAYS, Interval, Step, inner_of, interval_of, number_of, place_of

OTHER_BYTES = (Seen.OTHER, Seen.UNKNOWN)
"""What a file is that must be read before the index can be believed about it."""


@dataclass(slots=True)
class Rows:
    """Sums over the rows of a segment. Offsets and sizes are decompressed bytes; they include the padding of data."""

    count: int = 0
    size: int = 0
    # first and last reftime, microseconds
    begin: int = 0
    end: int = 0
    first: int = 0  # offset of the first datum
    data_end: int = 0  # offset after the last datum
    gaps: int = 0  # bytes between the first and the last datum that belong to no datum; the first is at `gap_at`
    gap_at: int | None = None
    overlaps: int = 0  # data that begin before the end of the datum before them; the first is at `overlap_at`
    overlap_at: int | None = None
    misplaced: int = 0  # data that a query returns after one with a higher offset; the first is at `misplaced_at`
    misplaced_at: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the index knows about a segment. Nothing changes it: what is on disk is added to a copy."""

    segment: Segment  # its row
    rows: Rows = field(default_factory=Rows)
    damage: NotedDamage | None = None  # what an accurate check or a fix found wrong with the content
    deleted: int | None = 0  # bytes, or files, of deleted data that are still there; None if unknown
    counted: int | None = None  # how many data it has by its sums; None if unknown
    interval: Interval | None = None  # the interval in its row; data outside it cannot be found by their segment
    needed: int = 0  # position in the file after the last datum; in a compressed segment, after its block
    unexplained: int = 0  # more bytes, or files, belong to no datum than were deleted through ondisk; negative: fewer

    @property
    def without_row(self) -> int:
        """How many data the index has counted, and has no rows of: another program has removed these."""
        return max(0, (self.counted or 0) - self.rows.count)


@dataclass(slots=True)
class Files:
    """The files in the directory of a segment, beside the rows of its data. Tallies name the first files of a kind."""

    highest: int = -1  # the number of the last file of data
    sequence: int | None = None  # the number in `.sequence`; None if it is missing or damaged
    lacks_metadata: bool = False  # `.metadata` is missing, and only it tells what is in the files
    has_new_metadata: bool = False  # a repack has left its `.metadata`
    unused: int = 0  # numbers below the end without a file
    missing: Tally = field(default_factory=Tally)  # files with a row
    resized: Tally = field(default_factory=Tally)  # files of another size than in their row
    repeated: Tally = field(default_factory=Tally)  # data with the file of another datum
    misplaced: Tally = field(default_factory=Tally)  # data out of time order
    removed: Tally = field(default_factory=Tally)  # files below the end without a row
    unknown: Tally = field(default_factory=Tally)  # files after the end
    strangers: Tally = field(default_factory=Tally)  # names that are not of the segment

    @property
    def corrupted(self) -> Iterator[str]:
        """The reasons why data cannot be read."""
        yield from _first(self.repeated, "datum", "has", "the same file as another datum")
        yield from _first(self.missing, "file", "is", "missing")
        yield from _first(self.resized, "file", "has", "another size")
        if self.lacks_metadata:
            yield f"{METADATA} is missing"

    def dirty(self, known: Known) -> Iterator[str]:
        """Yield the reasons for a repack."""
        is_deleted = known.deleted is not None and not known.unexplained
        without = "of deleted data, not yet repacked" if is_deleted else "without a datum in the index"
        yield from _first(self.removed, "file", "is", without)
        yield from _first(self.unknown, "file", "has", "no datum in the index")
        if self.unused:
            yield f"{self.unused} numbers before, between or after its data have no file"
        yield from _first(self.misplaced, "datum", "is", "out of time order")
        if self.has_new_metadata:
            yield f"{NEW_METADATA} exists: a repack was interrupted"

    @property
    def interrupted(self) -> str | None:
        """How an interrupted append shows; None without one."""
        if self.sequence is not None and self.sequence >= self.highest:
            return None
        found = "is missing or damaged" if self.sequence is None else f"contains {self.sequence}"
        return f"{SEQUENCE} {found}, but the highest file is {self.highest}: an append was interrupted"


def _first(found: Tally, noun: str, verb: str, what: str) -> Iterator[str]:
    if found.count:
        yield f"{counted(found.count, noun, verb)} {what}, the first {found.named[0]}"


@dataclass(frozen=True, slots=True)
class OnDisk:
    """What is on disk at the name of a segment."""

    is_file: bool  # it is what a segment must be: a `kind`
    size: int
    seen: Seen | None = None  # how it agrees with the facts in the index; None if the index has none
    is_empty: bool = False  # it contains only what a new segment begins with
    is_readable: bool = True  # something in it is of its format
    is_zeros: bool = False  # it contains only zeros
    sealed: int = 0  # bytes of the end mark after the last datum; 0 if the segment is not sealed
    # a file that readers would treat as the segment because of its name, but that is none of its generations; None
    # without one
    stray: str | None = None
    is_refused: bool = False  # a fix has read this file, and found none of the segment's data in it
    has_grown: bool = False  # another program, which has made this segment of a sequence, has appended data to it
    is_dir: bool = False  # its format has dir segments
    files: Files | None = None  # those of a directory; None for a file

    @property
    def kind(self) -> str:
        """What a segment of its format is."""
        return "directory" if self.is_dir else "regular file"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a diagnosis depends on besides the segment."""

    step: Step
    needs_check: bool  # the index may not know all data of the segment
    limits: AgeLimits = NO_LIMITS  # by when a segment must have ended to be moved or deleted, by its age
    # `unknown_segments = "delete"`: a repack deletes segments that the index does not know
    deletes_unknown: bool = False
    built_for: Step | None = None  # the step that the index was built for, if it is another one
    layout: Layout = BY_TIME
    usage: Usage = UNUSED

    def interval(self, name: str, known: Known | None = None) -> Interval | None:
        """Return the interval that a segment's name means, or None if the name is not valid here.

        The name of a segment of a sequence means no time: its interval is that in its row.
        """
        found = interval_of(name, self.step)
        if found == ALWAYS and known is not None and known.interval is not None:
            return known.interval
        return found


def diagnose(name: str, known: Known | None, found: OnDisk | None, at: Circumstances, start: int) -> Diagnosis:
    """Return the states of a segment, and the reasons.

    Args:
        start: offset of the first datum in a segment of its format.
    """
    if known is not None:
        diagnosis = _known(name, known, found, at, start)
    else:
        assert found is not None
        diagnosis = _unknown(name, found, at)
    if found is not None and found.files is not None and (others := found.files.strangers).count:
        reason = f"{others.count} names do not belong to the segment: {others.text()}"
        return replace(diagnosis, reasons=(*diagnosis.reasons, reason))
    return diagnosis


def _unknown(name: str, found: OnDisk, at: Circumstances) -> Diagnosis:
    if (read_as := at.layout.taken_for(name)) != name:
        reason = f"{at.layout.program} takes it for {read_as}, and does not find that"
        return Diagnosis(name, State.CORRUPTED, (f"{reason}: rename it if {read_as} does not exist",))
    if at.interval(name) is None:
        step = "any step" if place_of(name) else f"the step {at.step}"
        return Diagnosis(name, State.CORRUPTED, (f"the index does not know it, and its name does not fit {step}",))
    if not found.is_file and not found.is_empty:
        return Diagnosis(name, State.CORRUPTED, (f"it is not a {found.kind}, and the index does not know it",))
    if found.files is not None and found.files.highest < 0 and found.files.strangers.count:
        return Diagnosis(name, State.CORRUPTED, ("the index does not know it",))
    if not found.is_readable:
        reason = f"{_unreadable(found)}, and the index does not know it"
        return Diagnosis(name, State.CORRUPTED, (reason,))
    if at.needs_check and found.is_file:
        return Diagnosis(name, State.UNALIGNED, ("the index does not know it, and may have lost it",))
    if found.is_empty and at.usage.why_unread(name) is not None:
        return Diagnosis(name, State.OK, (at.usage.stays,))
    if at.deletes_unknown and not place_of(name):
        return Diagnosis(name, State.DELETED, ("the index does not know it",), found.size)
    if found.is_empty:  # a move from another disk may have begun
        return Diagnosis(name, State.OK, ("it is empty, and the index does not know it",))
    return Diagnosis(name, State.UNALIGNED, ("the index does not know it: another program has put it there",))


def _known(name: str, known: Known, found: OnDisk | None, at: Circumstances, start: int) -> Diagnosis:
    if found is None and at.usage.is_consumed(name, known.segment.end.length):
        reason = f"{at.usage.consumed}; the index has {counted(known.rows.count, 'datum')} of it"
        return Diagnosis(name, State.OK, (reason,), consumed=True)
    if found is None or not found.is_file:
        reason = "it is not on disk" if found is None else f"it is not a {found.kind}, and is left untouched"
        data = counted(known.rows.count + known.without_row, "datum")
        return Diagnosis(name, State.MISSING, (f"{reason}; the index has {data} of it",))
    interval = at.interval(name, known)
    unaligned = [*_differences(known, found)]
    if not known.rows.count and found.stray is None and not [*misnamed(known, interval, at)]:
        is_as_known = found.seen not in OTHER_BYTES and not found.has_grown
        if is_as_known and not known.unexplained and not known.without_row and not known.segment.has_unknown:
            return _known_without_data(name, known, found, at)
        if found.is_readable:
            state = State.DELETED if found.is_empty else State.UNALIGNED
            return Diagnosis(name, state, tuple(unaligned))
    files, corrupted = found.files, [*_corrupted(known, found, interval, at, start)]
    dirty = [*(_dirty(known, found, start) if files is None else files.dirty(known))]
    freed = _freed(known, found, start) if files is None else files.removed.size + files.unknown.size
    state = State.CORRUPTED if corrupted else State.OK
    if (unaligned or (dirty and at.needs_check)) and not corrupted:
        state |= State.UNALIGNED
        freed = 0
    elif dirty:
        state |= State.DIRTY
    else:
        freed = 0
    reasons = corrupted + unaligned + dirty
    if interval is not None:
        age, why = at.limits.state_of(name, interval)
        state |= age
        reasons += why
        if age is State.DELETE_AGE:
            freed = found.size
    freed = 0 if corrupted else freed
    if files is not None and (interrupted := files.interrupted) is not None:
        state, reasons = state | State.UNALIGNED, [interrupted, *reasons]
    diagnosis = Diagnosis(name, state, tuple(reasons), freed, noted=corrupted == [known.damage and known.damage.reason])
    if found.seen is Seen.SAME_TAIL:
        # Where the recorded time has no fraction, or ondisk has recorded none, that is no sign of another program.
        return replace(diagnosis, is_touched=True, is_rewritten=known.segment.facts.mtime % 10**9 != 0)
    return diagnosis


def _known_without_data(name: str, known: Known, found: OnDisk, at: Circumstances) -> Diagnosis:
    if known.damage is not None:
        return Diagnosis(name, State.CORRUPTED, (known.damage.reason,), noted=True)
    if at.needs_check and not found.is_empty:
        if not found.is_readable:
            return Diagnosis(name, State.CORRUPTED, (_unreadable(found),))
        return Diagnosis(name, State.UNALIGNED, ("the index knows no data of it, and may have lost them",))
    if at.usage.why_unread(name) is not None:
        return Diagnosis(name, State.OK, (at.usage.stays,))
    return Diagnosis(name, State.DELETED, ("all its data were deleted or are elsewhere",), found.size)


def _unreadable(found: OnDisk) -> str:
    return "it contains only zeros" if found.is_zeros else "nothing in it is of its format"


def misnamed(known: Known, interval: Interval | None, at: Circumstances, seen: Seen | None = None) -> Iterator[str]:
    """Yield how the name of a segment disagrees with its data, or with the step.

    Args:
        seen: how its file agrees with the facts; if it is another file, the rows are not about its data.
    """
    if interval is None:
        was = "" if at.built_for is None else f'; to restore it, write step = "{at.built_for}" into dataset.toml'
        yield f"its name does not fit the step {at.step}{was}"
    elif (
        seen not in OTHER_BYTES
        and known.rows.count
        and (known.rows.begin not in interval or known.rows.end not in interval)
    ):
        yield "it has data of other times than its name says"
    elif known.interval is not None and known.interval | interval != known.interval:
        yield "its interval in the index is not that of its name"


def _corrupted(known: Known, found: OnDisk, interval: Interval | None, at: Circumstances, start: int) -> Iterator[str]:
    yield from misnamed(known, interval, at, found.seen)
    if found.files is not None:
        yield from found.files.corrupted
    if known.rows.first < start:
        yield f"its first datum begins at byte {known.rows.first}, but data cannot begin before byte {start}"
    if known.rows.overlaps:
        yield f"{counted(known.rows.overlaps, 'overlap')} between its data, the first at byte {known.rows.overlap_at}"
    if found.stray is not None:
        yield f"{found.stray} has the name of a generation of it, and is not one: move this file away"
    # Then another program uses its name again.
    is_renewed = at.usage.is_consumed(known.segment.name, known.segment.end.length)
    if known.segment.end.size > found.size and found.files is None and not is_renewed:
        data = f"its data end at byte {known.needed}" if known.needed > found.size else "no data are missing"
        yield f"the file shrank from {known.segment.end.size} to {found.size} bytes; {data}"
    if not found.is_readable and found.seen in OTHER_BYTES:
        yield f"{_unreadable(found)}, and it is not the file that the index describes"
    # Else it was noted about a file that is not there any more.
    if known.damage is not None and (found.is_refused or found.seen not in OTHER_BYTES):
        yield known.damage.reason


def _differences(known: Known, found: OnDisk) -> Iterator[str]:
    """Yield how a segment differs from what the index describes."""
    if found.seen in OTHER_BYTES:
        kind = found.kind.rpartition(" ")[2]
        yield f"it is not the {kind} that the index describes: another program has changed or replaced it"
    elif found.has_grown:
        yield "another program has appended data to it"
    if known.segment.has_unknown:
        yield "data were appended after data of another program, which the index may not know"
    elif known.without_row or (known.unexplained and found.seen not in OTHER_BYTES):
        yield _unexplained(known, "files" if found.is_dir else "bytes")


def _unexplained(known: Known, unit: str) -> str:
    """Return the reason if the rows of a segment are not those that ondisk has written."""
    if known.unexplained <= 0 and known.without_row:
        return f"the rows of {known.without_row} of its data were removed from the index"
    if known.unexplained < 0:
        return "another program has changed its rows in the index"
    return f"{known.unexplained} {unit} belong to no datum, and were not deleted: its rows in the index were changed"


def _dirty(known: Known, found: OnDisk, start: int) -> Iterator[str]:
    end, rows = known.segment.end, known.rows
    if rows.first > start:
        yield f"{rows.first - start} bytes before its first datum belong to no datum"
    if rows.gaps:
        yield f"{rows.gaps} bytes between its data belong to no datum, the first at byte {rows.gap_at}"
    if end.length > rows.data_end:
        yield f"{end.length - rows.data_end} bytes after its last datum belong to no datum"
    if found.size > end.size + found.sealed and not known.segment.shared:
        yield f"{found.size - end.size} bytes at its end belong to an interrupted or running append"
    if rows.misplaced and number_of(inner_of(known.segment.name).partition(".")[0]) is None:  # a sequence has no order
        yield f"{counted(rows.misplaced, 'datum', 'is')} out of time order, the first at byte {rows.misplaced_at}"


def _freed(known: Known, found: OnDisk, start: int) -> int:
    end = known.segment.end
    if not end.compressed:
        return max(0, found.size - start - known.rows.size)
    return max(0, found.size - end.size * (start + known.rows.size) // max(end.length, 1))
