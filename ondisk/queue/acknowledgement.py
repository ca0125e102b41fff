"""Acknowledge data of a queue: move the position in `state.dat`, and remove the segments before it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace

from ondisk.dataset.access import Access
from ondisk.dataset.dataset import Dataset
from ondisk.datum import Location
from ondisk.errors import DatumNotFound, InvalidInput, StateError, command
from ondisk.formats.diskqueue.state import VERSION, State
from ondisk.index import Copies, Segment, segment_rows
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.states import Diagnosis
from ondisk.maintenance.states import State as Is
from ondisk.maintenance.successor import complete
from ondisk.queue import state_file
from ondisk.queue.order import Order, Stop, Taken
from ondisk.queue.position import (
    begin_again,
    believed,
    check_consumable,
    has_gone,
    is_there,
    leave_removed,
    past_end,
    position,
)
from ondisk.step import number_of

_SOME = 10_000  # data


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What was acknowledged, or would be.

    Attributes:
        count: data that were not acknowledged before.
        position: where the consumer continues, as in `state.dat`.
        removed: the names of the segments that were removed, or would be.
    """

    count: int
    position: State
    removed: list[str] = field(default_factory=list)


def acknowledge(
    dataset: Dataset, *, through: Location | None = None, count: int | None = None, dry_run: bool = False
) -> Acknowledged:
    """Acknowledge data in the order of the queue, up to one of them or as many as `count`.

    Segments before the position are removed, with their data in the index, as the consumer of Beats does: a segment
    goes when data of a later one are acknowledged. Only data that the index knows are acknowledged.

    Args:
        through: the last datum to acknowledge; if it was acknowledged before, nothing is done.
        count: how many data; all if there are fewer.
        dry_run: change nothing, and report what would be done.

    Raises:
        InvalidInput: the dataset is not a queue, or not exactly one of `through` and `count` is given.
        DatumNotFound: no datum is at `through`.
        NeedsCheck, StateError: the index may not know all data up to there.

    Durability: replaces `state.dat`, durably; then removes one segment after the other, each as a repack. A crash
        leaves the old position or the new one, and perhaps segments before it, which the next acknowledgement removes,
        or Beats when it begins.
    Locks: the writers' lock.
    """
    access = access_to(dataset)
    if (through is None) == (count is None):
        raise InvalidInput("acknowledge takes either through or count")
    before = position(access.directory)
    taken, total = None, 0
    stop = None if through is None else _stop(access, through)
    order = Order(access, before)
    while count is None or total < count:
        limit = _SOME if count is None else min(_SOME, count - total)
        if (more := order.take(limit, stop)) is None:
            break
        taken, total = more, total + len(more.rows)
    if dry_run or taken is None:
        at = taken.end if taken is not None else before or State()
        return Acknowledged(total, at, _done_with(access, at) if dry_run else remove_acknowledged(access))
    return Acknowledged(total, taken.end, move(access, taken))


def access_to(dataset: Dataset) -> Access:
    """Return the access to a queue.

    Raises:
        InvalidInput: the dataset is not a queue.
        NeedsCheck: its index may not know all data.
        StateError: the position in `state.dat` cannot be right.
    """
    access = dataset._access
    if not access.config.is_sequence:
        hint = 'Only a dataset with step = "sequence" has an order of the queue.'
        raise InvalidInput(f"{dataset.path} is not a queue", hint=hint)
    access.check_trusted()
    check_consumable(access)
    return access


def move(access: Access, taken: Taken) -> list[str]:
    """Move the position to the end of data, unless it is there or after it; return the names of removed segments.

    Raises:
        StateError: another file is in the place of the segment of these data.
    """
    with access.locked("ack"):
        check_consumable(access)
        _check_same(access, taken.segment)
        before = _position(access)
        if before is None or past_end(access) or _is_before(before, taken):
            state_file.write(access.directory, _as_version(before, access, taken))
    return remove_acknowledged(access)


def _check_same(access: Access, segment: Segment) -> None:
    """Raise if a segment is not the file any more from which data were read: the position would skip other data."""
    if access.directory.stat(segment.name) is not None and not is_there(access, segment):
        problem = f"{segment.name} is not the file any more from which the data were read; nothing was acknowledged"
        fix = command("fix", access.directory.path, "--yes")
        hint = f"Run {fix}, and open the consumer again: data that were not acknowledged come again."
        raise StateError(problem, hint=hint, segment=segment.name)


def remove_acknowledged(access: Access) -> list[str]:
    """Remove the segments before the position, with their data in the index; return their names.

    Also forget the segment at the position if Beats has sent all of it and removed it. A segment stays if
    the index may not know all its data: Beats removes it when it begins.

    Durability: as a repack that deletes segments.
    Locks: the writers' lock, once for each segment.
    """
    removed = []
    at = believed(access.directory)
    for name in [] if at is None else _done_with(access, at):
        with access.transaction("ack") as transaction:
            with access.current().index.snapshot() as snapshot:
                segment = snapshot.segment_named(name)
            if segment is None or not _is_removable(segment):
                continue
            kind = kind_of(access.format(segment.format))
            complete(access, segment)
            begin_again(access.directory, name)
            kind.drop(access, transaction, Diagnosis(name, Is.DELETED, ("it is acknowledged",)), Known(segment))
            removed.append(name)
    leave_removed(access, "ack")
    return removed


def _done_with(access: Access, at: State) -> list[str]:
    """Return the names of the segments that the index knows and the consumer does not need, in their order."""
    with access.current().index.snapshot() as snapshot:
        known = segment_rows.numbered_segments(snapshot, 0)
    names = [known[number].name for number in sorted(known) if number < at.segment and _is_removable(known[number])]
    if (last := known.get(at.segment)) is not None and has_gone(access.directory, last, at):
        names.append(last.name)
    return names


def _is_removable(segment: Segment) -> bool:
    """Return whether the index knows all data of a segment, and has them nowhere else."""
    return not segment.has_unknown and segment.copies is Copies.NONE


def _stop(access: Access, through: Location) -> Stop:
    """Return the place of the last datum to acknowledge."""
    number = number_of(through.segment.removesuffix(".seg"))
    at = position(access.directory)
    if number is not None and at is not None and number < at.segment:
        return number, through.offset  # its segment may be gone
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(through.segment)
        rows = [] if segment is None else segment_rows.following(snapshot, segment, max(0, through.offset), 1)
    if number is None or not rows or rows[0][2] != through.offset:
        hint = "`ondisk query DATASET --json` prints the location of each datum."
        raise DatumNotFound(f"no datum is at byte {through.offset} of {through.segment}", hint=hint, location=through)
    return number, through.offset


def _position(access: Access) -> State | None:
    """Return the position in `state.dat`, which is about to be replaced; None if it does not exist or is incomplete."""
    with contextlib.suppress(InvalidInput):
        return state_file.read(access.directory)
    return None


def version_for(access: Access) -> int:
    """Return the version of a new `state.dat`: that of the Beats which write what the configuration says."""
    return 0 if access.config.version == 0 else VERSION


def _is_before(at: State, taken: Taken) -> bool:
    return (at.segment, at.offset(taken.begin)) < (taken.end.segment, taken.end.byte_index)


def _as_version(before: State | None, access: Access, taken: Taken) -> State:
    """Return the new position in the version of the file, which its consumer understands."""
    version = before.version if before is not None else version_for(access)
    if version == 0:
        return State(taken.end.segment, taken.end.byte_index - taken.begin, version=0)
    return replace(taken.end, version=version)
