"""Where the consumer of a queue continues, as `state.dat` says, and what that means for the segments.

Beats begins again with `0.seg` when it has sent everything, and a position names a segment by its number. So a position
is believed about one file only. Before the index forgets this file, or gets the data of another one in its place, the
position goes to the beginning: whatever has this number next is read from its first event, by ondisk and by Beats.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import cast

from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, OndiskError, StateError, StorageError, command
from ondisk.filesystem import Directory
from ondisk.formats.base import FileStream
from ondisk.formats.diskqueue.frame_reader import walk
from ondisk.formats.diskqueue.header import Header
from ondisk.formats.diskqueue.seg import Seg
from ondisk.formats.diskqueue.state import NAME, State
from ondisk.index import Segment, segment_rows
from ondisk.segments.file_facts import Seen
from ondisk.step import number_of

_NUMBERED = re.compile(r"\.?([0-9]{1,20})\.seg(\.[0-9]+)?", re.ASCII | re.IGNORECASE)
"""The names of segments as Beats reads them, also with zeros before the number, and hidden ones."""

LEAST_BEGIN = 4  # bytes of the smallest header
_IV = 16  # bytes of an encrypted segment that do not count in a position
_PAST = "which ends before that: Beats would skip all of it"
_INSIDE = "which is inside of an event: Beats may skip the rest of it"


def position(directory: Directory) -> State | None:
    """Return where the consumer continues, the beginning if `state.dat` cannot be read; None without a file."""
    if directory.stat(NAME) is None:
        return None
    with contextlib.suppress(InvalidInput, StorageError):
        return State.read(directory) or State()
    return State()


def believed(directory: Directory) -> State | None:
    """Return the position, for segments that are on disk: the beginning if it is after all of them, see `astray`."""
    at = position(directory)
    return at if at is None or last_before(directory, at) is None else State(version=at.version)


def newer_than(directory: Directory, at: State) -> list[int]:
    """Return the numbers of the segments before a position that were written after `state.dat`, in order.

    The consumer acknowledges data of a segment when those before it are complete. So Beats has begun again since.
    """
    numbers = (number for number in sorted({*numbers_in(directory)}) if number < at.segment)
    found = [(number, stat) for number in numbers if (stat := directory.stat(f"{number}.seg")) is not None]
    written = directory.stat(NAME) if found else None
    return [] if written is None else [number for number, stat in found if stat.st_mtime_ns > written.st_mtime_ns]


def begun_again(access: Access) -> int | None:
    """Return the number of the first segment before the position that nobody has consumed, or None.

    Such a segment exists after Beats has sent everything and has begun again with `0.seg`: until it sends an event of
    the new segments, `state.dat` still has the old position. A segment is new if its file has other bytes than the
    index describes. A file that has grown, or that the index does not know, is new if it is newer than `state.dat`.
    """
    directory = access.directory
    if (at := position(directory)) is None:
        return None
    if last_before(directory, at) is not None:  # about none of them
        return None
    before = sorted({number for number in numbers_in(directory) if number < at.segment})
    newer = newer_than(directory, at) if before else []
    with access.current().index.snapshot() as snapshot:
        for number in before:
            segment = snapshot.segment_named(f"{number}.seg")
            seen = None if segment is None else _seen(access, segment)
            if seen is Seen.OTHER or (number in newer and seen is not Seen.UNTOUCHED):
                return number
    return None


def is_there(access: Access, segment: Segment) -> bool:
    """Return whether the file of a segment has the bytes that the index describes, as far as its end shows."""
    return _seen(access, segment) in (Seen.UNTOUCHED, Seen.SAME_TAIL)


def _seen(access: Access, segment: Segment) -> Seen | None:
    """Return how a file agrees with the facts, `UNTOUCHED` also if it was only copied; None if it does not exist."""
    try:
        file = access.directory.open_to_read(segment.name)
    except (FileNotFoundError, StorageError):
        return None
    found = file.stat()
    seen = access.committed(segment).seen_in(file, found)
    return Seen.UNTOUCHED if seen is Seen.SAME_TAIL and found.st_size == segment.end.size else seen


def last_before(directory: Directory, at: State) -> int | None:
    """Return the number of the last segment on disk if a position is after all of them; otherwise None.

    Beats removes all segments before its position. So these segments are of another queue, or of one that Beats has
    begun again without having sent an event of it, and the position says nothing about them.
    """
    if directory.stat(f"{at.segment}.seg") is not None:
        return None
    last = max(numbers_in(directory), default=None)
    return last if last is not None and last < at.segment else None


def astray(directory: Directory) -> str | None:
    """Return why the position is about no segment on disk; None if it is, or if none is there."""
    at = position(directory)
    if at is None or (last := last_before(directory, at)) is None:
        return None
    return f"{NAME} says that the consumer continues in {at.segment}.seg, but {last}.seg is the last segment"


def check_position(directory: Directory) -> None:
    """Raise `StateError` if the position is after all segments on disk."""
    if (problem := astray(directory)) is not None:
        fix = command("fix", directory.path, "--yes")
        hint = f"If it is of another queue, put the right one there. Or run {fix}: then all segments are consumed."
        raise StateError(f"{directory.path}: {problem}", hint=hint)


def check_consumable(access: Access) -> None:
    """Raise `StateError` if the position cannot be right about the segments on disk. Cost: lists the folder."""
    directory = access.directory
    if (problem := unreadable(directory)) is not None:
        hint = f"If no newer Beat uses this queue, move {NAME} to another folder: then all segments are consumed."
        raise StateError(problem, hint=hint)
    check_position(directory)
    if (again := begun_again(access)) is not None:
        fix = command("fix", access.directory.path, "--yes")
        hint = f"Run {fix}: then the consumer begins again with {again}.seg."
        raise StateError(f"{access.directory.path}: {outdated(access.directory, again)}", hint=hint)


def outdated(directory: Directory, again: int) -> str:
    """Return why the position is about none of the segments from one on, see `begun_again`."""
    at = position(directory) or State()
    where = f"{NAME} says that the consumer continues in {at.segment}.seg"
    return f"{where}, but {again}.seg is another file than the one that was acknowledged"


def is_consumed(name: str, length: int, at: State | None) -> bool:
    """Return whether the consumer has acknowledged all `length` bytes of a segment that is not on disk any more.

    Beats removes a segment when it has acknowledged an event of a later one; and the last segment when it ends, if it
    has acknowledged all of that. Without that proof the segment is missing.
    """
    number = number_of(name.partition(".")[0])
    if at is None or number is None:
        return False
    if number != at.segment:
        return number < at.segment
    return _reached(at, LEAST_BEGIN) + _IV >= length  # that is less than a frame


def has_gone(directory: Directory, segment: Segment, at: State) -> bool:
    """Return whether the consumer has acknowledged all data of a segment, and removed its file."""
    return directory.stat(segment.name) is None and is_consumed(segment.name, segment.end.length, at)


def is_unread(name: str, at: State | None) -> bool:
    """Return whether the consumer of a queue still has to read a segment, so that nobody may change or remove it."""
    number = number_of(name.partition(".")[0])
    return at is not None and number is not None and number >= at.segment


def is_passed(segment: Segment, offset: int, at: State | None) -> bool:
    """Return whether the position is in a segment, and after a datum that begins at an offset of it."""
    if at is None or number_of(segment.name.partition(".")[0]) != at.segment:
        return False
    header = Header.of_kind(segment.end.kind)
    return _reached(at, header.logical_size) + header.size - header.logical_size > offset


def unreadable(directory: Directory) -> str | None:
    """Return why neither ondisk nor a Beat of today can know the position: a newer version, or no file; else None."""
    try:
        State.read(directory)
    except StorageError as error:
        return error.message
    except InvalidInput as error:
        return error.message if "version" in error.context else None
    return None


def misplaced(access: Access) -> str | None:
    """Return why the position cannot be right in its segment, whose file is read up to it; None if it may be."""
    directory = access.directory
    if (at := position(directory)) is None:
        return None
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(f"{at.segment}.seg")
    if segment is not None and not is_there(access, segment):
        return None  # the position is about the file that the index knows
    problem = misplaced_in(directory, cast("Seg", access.format("seg")), at)
    return problem if position(directory) == at else None  # else the consumer was writing it


def misplaced_in(directory: Directory, format: Seg, at: State) -> str | None:
    """Read a segment's file up to the position; return why this cannot be right, or None if it may be."""
    if not at.offset(0):
        return None
    try:
        frames = format.frames(FileStream(directory.open_to_read(f"{at.segment}.seg"), 0))
        begin = frames.offset
        offset = at.offset(begin)
        place, found = walk(frames, offset)
    except (FileNotFoundError, OndiskError):
        return None  # whoever reads the segment reports that
    if found == "short":
        return None if frames.damage is not None or (at.version and not at.frame_index) else _wrong(at, _PAST)
    if found == "across":
        return _wrong(at, _INSIDE)
    if (found == "exact" or offset == begin) and at.version and at.frame_index != place.frames:
        return _wrong(at, _counted(at, place.frames))
    return None


def _counted(at: State, count: int) -> str:
    return f"after {at.frame_index} events, but {count} are before that: Beats may skip the rest of it"


def _wrong(at: State, problem: str) -> str:
    return f"{NAME} says that the consumer continues at byte {at.byte_index} of {at.segment}.seg, {problem}"


def past_end(access: Access) -> str | None:
    """Return why the position cannot be right, if it is after the end of a segment that the index knows completely."""
    at = position(access.directory)
    if at is None or not at.frame_index:  # that is 0 in version 0: Beats begins with the segment
        return None
    name = f"{at.segment}.seg"
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(name)
    found = access.directory.stat(name)
    if segment is None or found is None or segment.has_unknown or found.st_size > segment.end.size:
        return None
    if not is_passed(segment, segment.end.length, at):
        return None
    return _wrong(at, _PAST)


def _reached(at: State, begin: int) -> int:
    """Return up to where a file was read, whose first frame is at `begin`, also after `begin_again`."""
    return at.byte_index if at.version else begin + at.byte_index


def begin_again(directory: Directory, name: str, *, is_committed: bool = False) -> None:
    """Move a position inside of a segment to its beginning: its file is gone, or another one.

    Before the commit that makes the index forget the old file, the byte index stays. It means nothing to a consumer
    without a frame index, but still proves that the old file was read. Version 0 has no frame index: after a crash
    between the two, the data of the old file count as lost.

    Args:
        is_committed: the index has forgotten the old file.

    Durability: as `State.write`.
    """
    at = position(directory)
    if at is None or number_of(name.partition(".")[0]) != at.segment or not at.byte_index:
        return
    keeps_proof = at.version > 0 and not is_committed
    State(at.segment, at.byte_index * keeps_proof, version=at.version).write(directory)


def offset_in(segment: Segment, at: State) -> int:
    """Return the offset of a position as the index counts: with the bytes of an IV."""
    header = Header.of_kind(segment.end.kind)
    return at.offset(header.logical_size) + header.size - header.logical_size


def leave_removed(access: Access, verb: str) -> State | None:
    """If the position points into a segment that is gone from disk and index, move it to the start of that segment.

    If no segment is left at all, it goes to that of `0.seg`: Beats begins with it, and removes what precedes the
    position when it starts again. Returns the new position; None if it stays.

    Durability: as `State.write`.
    Locks: the writers' lock, if there is something to do.
    """
    if where_removed(access) is not None:
        with access.locked(verb):
            if (again := where_removed(access)) is not None:
                again.write(access.directory)
                return again
    return None


def where_removed(access: Access, consumed: Collection[str] = ()) -> State | None:
    """Return where the consumer begins again if its segment is gone, or `consumed`: soon forgotten; or None."""
    at = believed(access.directory)
    if at is None or not at.byte_index or access.directory.stat(f"{at.segment}.seg") is not None:
        return None
    with access.current().index.snapshot() as snapshot:
        known = {n for n, each in segment_rows.numbered_segments(snapshot, 0).items() if each.name not in consumed}
    if at.segment in known or (not at.version and f"{at.segment}.seg" in consumed):
        return None  # `begin_again` moves that of version 0
    return State(at.segment if known or numbers_in(access.directory) else 0, version=at.version)


def beats_name(name: str) -> str | None:
    """Return the name by which Beats opens a file that it takes for a segment; None if it ignores the file."""
    stem, _, extension = name.rpartition(".")
    number = number_of(stem.lstrip("0") or "0") if stem.isascii() and stem.isdigit() else None
    return None if number is None or extension.lower() != "seg" else f"{number}.seg"


def numbers_in(directory: Directory, folder: str = "") -> list[int]:
    return [int(found[1]) for name in directory.names(folder) if (found := _NUMBERED.fullmatch(name))]
