"""What a fix or a repack would do: a check that also compares the bytes of files that other programs have touched, and
tries whether the keys of this process decrypt what is to be read.

Of an encrypted segment only one datum is tried, or the beginning of its file. Others may need other keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ondisk.dataset.access import Access
from ondisk.dataset.segment_layout import Layout
from ondisk.errors import (
    AuthenticationFailed,
    IntegrityError,
    KeyMissing,
    OndiskError,
    SegmentMissing,
    StateError,
    StorageError,
)
from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.index import Snapshot, segment_rows
from ondisk.maintenance.check import check, wrong_with
from ondisk.maintenance.observe import scan
from ondisk.maintenance.states import FIXED, REWRITES, Action, Diagnosis, Done, Report, State

CHANGED = "its bytes are not those that the index describes: another program has changed them"


def would_do(
    access: Access,
    *actions: Action,
    rewrite: bool = False,
    second_copies: bool = False,
    by_age: bool = False,
    released: State = State.OK,
    asked: Sequence[Done] = (),
) -> Report:
    """Return the report of a check that holds the segments which cannot be read.

    Args:
        actions: those that read data, and are planned: RESCAN of a fix, REPACK of a repack.
        released: segments in these states are not held.
        asked: what somebody has asked for, in the place of the findings about it.

    Raises:
        StorageError: as `check`.
        KeyMissing, AuthenticationFailed, StateError: the error of the first such segment. As from `check`, the error's
            report has all segments.

    Cost: reads the segments that other programs have touched, if a fix is planned, which would read them, too. Opens
        each segment with such an action, and reads one datum of those that are encrypted. Reads the beginning of
        those that another program still has to read; of the one that it is in, up to there.
    """
    errors: list[OndiskError] = []
    try:
        report = check(access, rewrite=rewrite, second_copies=second_copies, by_age=by_age)
    except OndiskError as error:
        if "report" not in error.context:
            raise
        report = error.context["report"]
        errors.append(error)
    with report.attached(errors):
        for at, each in enumerate(report.segments):
            if not isinstance(each, Diagnosis):
                continue
            name = each.segment
            if each.is_touched and Action.RESCAN in actions:
                compared = _compared(access, name, each)
                report.ok -= not each.state and bool(compared.state)
                each = report.segments[at] = compared
            if (Action.REPACK if each.action in REWRITES else each.action) not in actions:
                continue
            format = access.format_of(name)
            read = partial(_read_one, access, name) if State.DIRTY in each.state else None
            report.segments[at] = tried(access.directory, access.layout, name, format, each, errors, read)
        consumed = {each.segment for each in report if each.consumed}
        rescans = Action.RESCAN in actions
        rescanned = {each.segment for each in report if rescans and each.action == Action.RESCAN}
        for remark in access.layout.planned(access, rescanned, consumed):
            report.segments.append(Diagnosis.of(remark) if remark.action is None else Done.of(remark))
        names = {each.segment for each in asked}
        report.segments = [*asked, *(each for each in report.segments if each.segment not in names)]
        report.release(released)
    return report


def _compared(access: Access, name: str, diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis of a segment that another program has touched, after all its bytes were compared."""
    segment = access.ask(Snapshot.segment_named, name)
    is_corrupted = State.CORRUPTED in diagnosis.state
    if diagnosis.state & FIXED or segment is None or (is_corrupted and not diagnosis.noted):
        return diagnosis
    with contextlib.suppress(IntegrityError, SegmentMissing):
        if access.is_dir_segment(name, segment):
            is_changed = not is_corrupted and wrong_with(access, name) is not None
        else:
            is_changed = access.committed(segment).is_whole_in(access.current().reader.file_of(segment)) is False
        if is_changed:
            reasons = (CHANGED,) if is_corrupted else (*diagnosis.reasons, CHANGED)
            return replace(diagnosis, state=State.UNALIGNED, reasons=reasons)
    return diagnosis


def tried(
    directory: Directory,
    layout: Layout,
    name: str,
    format: Format,
    diagnosis: Diagnosis,
    errors: list[OndiskError],
    read: Callable[[], object] | None = None,
) -> Diagnosis:
    """Return the diagnosis of a segment that is to be read; if it cannot be read, hold it, and add the error.

    It cannot be read if it cannot be decrypted, or would be rewritten although another program still has to read it.

    Args:
        read: reads some of its data; None to scan the beginning of the file.
    """
    if format.is_dir:
        return diagnosis
    found = None
    try:
        file = directory.open_to_read(name)
        with contextlib.suppress(KeyMissing, AuthenticationFailed):  # whoever reads the data names the file
            if format.sealer(file, name) is None and not diagnosis.awaited:
                return diagnosis
        if read is None:
            found = next(scan(name, format, file), None)
        else:
            read()
    except (KeyMissing, AuthenticationFailed) as error:
        errors.append(error)
        return diagnosis.hold(f"it cannot be decrypted: {error.message}")
    except (FileNotFoundError, IntegrityError, SegmentMissing, StorageError):
        pass  # whoever reads all of it reports that
    if diagnosis.awaited and found is not None and not found.in_place:
        try:
            layout.check_rewritable(directory, name)
        except StateError as error:
            errors.append(error)
            return diagnosis.hold(f"it cannot be read in place, and is not rewritten: {diagnosis.awaited}")
    return diagnosis


def _read_one(access: Access, name: str) -> None:
    """Read one datum of a segment, which the index knows: of those that were deleted, nobody needs the keys."""
    with access.current().index.snapshot() as snapshot:
        if (segment := snapshot.segment_named(name)) is not None:
            [*access.current().reader.rows(snapshot, segment_rows.following(snapshot, segment, 0, 1))]
