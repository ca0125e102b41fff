"""Fix: makes the index agree with the disk. It writes no segment, but for those that cannot stay as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from stat import S_ISDIR
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives, DatasetAccess
from ondisk.dataset.layout import SENTINEL
from ondisk.errors import DurabilityLost, LockError, OndiskError, StateError
from ondisk.index import Transaction
from ondisk.maintenance.check import read_content
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.inspect import Inspection, why_kept
from ondisk.maintenance.rescan import REMEDY, Elsewhere, Foreign, Rescan, Unsafe, commit
from ondisk.maintenance.scanned import Scanned
from ondisk.maintenance.states import FATAL, FIXED, Diagnosis, Done, Report, State
from ondisk.staging.jobs import Changed

_TOGETHER, _SMALLEST = 32 * 1024 * 1024, 64 * 1024  # bytes of segments that one commit adds to the index
_ALONE = State.MISSING | State.CORRUPTED
_Waiting: TypeAlias = tuple[Diagnosis, Scanned | None]
ScanAll: TypeAlias = Callable[[Access, list[Diagnosis]], AbstractContextManager[Iterable[_Waiting]]]
"""Gives segments in their order, each with what its file holds, if that was scanned: that stays for the length of a
block, unless who has told the index of it discards it."""


def scan_later(access: Access, waiting: list[Diagnosis]) -> AbstractContextManager[Iterable[_Waiting]]:
    """Scan nothing beforehand: each segment is scanned when it is fixed."""
    return contextlib.nullcontext([(each, None) for each in waiting])


def fix(
    access: DatasetAccess,
    now: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    scan_all: ScanAll = scan_later,
) -> Report:
    """Carry out what `check` says that a fix does; each segment is diagnosed again first, under the lock.

    Args:
        now: seconds since 1970; None for the present.
        progress: is told the name of each segment before it is looked at.
        scan_all: who scans segments beforehand, without the lock; what changed meanwhile is scanned again.

    Raises:
        DurabilityLost, DiskFull: nothing more can be written; what was fixed before is.
        OndiskError: the first of what went wrong at single segments, when all others are done.
            `error.context["report"]` of each tells what was done.

    Durability: a commit for each segment, or for several small ones; killed between, the next fix goes on. The sentinel
        goes last.
    Locks: the writers' lock, for each commit anew; for one of the archive that of the archive, too.
    """
    report = Report(str(access.path))
    errors: list[OndiskError] = []
    with report.attached(errors):
        for part in access.archives.maintained():
            report.add(part.prefix, _fix(part, access.archives, now, progress, scan_all, errors))
            report.needs_check |= part.needs_check()
    return report


def _fix(
    access: Access,
    archives: Archives,
    now: float | None,
    progress: Callable[[str], None],
    scan_all: ScanAll,
    errors: list[OndiskError],
) -> Iterator[Done]:
    """Fix one dataset, or one archive; what goes wrong at one segment is added to `errors`."""
    with access.transaction("fix"):
        pass  # a lost index is made anew; who may not write meets the error before anything is read
    is_whole, needs_check = True, access.has_sentinel()
    with access.current().index.snapshot() as snapshot:
        begun = snapshot.dataset()
    inspection = Inspection(access, now, begun["committed_at"])  # a newer file stays newer, whatever a fix commits
    elsewhere = Elsewhere(archives.other(access))
    # What is missing goes first: a file that was renamed holds the very data that stand in its way.
    waiting = []
    is_wanted = partial(_is_wanted, needs_check=needs_check)
    for before in sorted(inspection.diagnoses(is_wanted), key=lambda each: State.MISSING not in each.state):
        if is_wanted(before):
            waiting.append(before)
        else:
            yield _left(before)
    with scan_all(access, waiting) as scanning:
        for group in _groups(access, scanning):
            for before, _ in group:
                progress(before.segment)
            together = _fixed_together(inspection, archives, group, elsewhere)
            yield from together
            for before, scanned in group[len(together) :]:
                try:
                    with archives.counting(access, "fix"):
                        done = _fixed(inspection, before, elsewhere, scanned)
                except FATAL:
                    raise
                except (OndiskError, OSError) as error:
                    is_whole = False
                    done = before.failed("fixed", error, errors)
                yield done
            for _, scanned in group:
                if scanned is not None:
                    scanned.discard(access.directory)
    if is_whole and needs_check:
        _remove_sentinel(access, begun["uuid"])


def _is_wanted(diagnosis: Diagnosis, *, needs_check: bool) -> bool:
    """Tell whether there is anything to do for a segment, or to be remembered of it."""
    if State.CORRUPTED in diagnosis.state:
        return diagnosis.noted or needs_check
    return bool(diagnosis.state & FIXED)


def _left(diagnosis: Diagnosis) -> Done:
    return Done(diagnosis.segment, diagnosis.state, diagnosis.reasons)


def _remove_sentinel(access: Access, uuid: str) -> None:
    """Remove the sentinel, unless it is that of another index: of one lost meanwhile, nobody has looked at all files.

    Args:
        uuid: of the index that knows all data again.
    """
    with access.locked("fix"):
        with access.current().index.snapshot() as snapshot:
            is_same = snapshot.dataset()["uuid"] == uuid
        if is_same and access.has_sentinel():
            access.directory.unlink(SENTINEL)
            access.directory.sync()


def _groups(access: Access, scanning: Iterable[_Waiting]) -> Iterator[list[_Waiting]]:
    """Put small segments together that may only have to be read into the index."""
    group: list[_Waiting] = []
    size = 0
    for before, scanned in scanning:
        weight = _weight(access, before)
        if group and size + weight > _TOGETHER:
            yield group
            group, size = [], 0
        group.append((before, scanned))
        size += weight
    if group:
        yield group


def _weight(access: Access, before: Diagnosis) -> int:
    """Give the bytes of a segment, for it to be put together with others; more than there may be of one for itself."""
    if before.state & _ALONE:
        return _TOGETHER + 1
    found = access.directory.stat(before.segment)
    if found is None:
        return _SMALLEST
    # Of a directory, its size tells nothing of what there is to read.
    return _TOGETHER + 1 if S_ISDIR(found.st_mode) else max(found.st_size, _SMALLEST)


def _fixed_together(
    inspection: Inspection,
    archives: Archives,
    group: list[_Waiting],
    elsewhere: Elsewhere,
) -> list[Done]:
    """Read segments into the index in one commit; read none if one of them must be fixed alone."""
    if len(group) == 1:
        return []
    access = inspection.access
    done = []
    try:
        with archives.counting(access, "fix"), access.transaction("fix") as transaction:
            rescans = []
            for before, scanned in group:
                with access.current().index.snapshot() as snapshot:
                    diagnosis, known = inspection.examine(snapshot, before.segment)
                if diagnosis is None or diagnosis.error is not None or diagnosis.state & _ALONE:
                    return []
                if not diagnosis.state & FIXED:
                    done.append(_left(diagnosis))
                    continue
                rescan = Rescan(access, transaction, before.segment, known, elsewhere)
                rescan.in_place(trusted=not access.needs_check(), scanned=scanned)
                rescans.append(rescan)
                done.append(rescan.done(diagnosis))
            commit(transaction, access.directory, rescans)
    except (DurabilityLost, LockError, StateError):
        raise
    except (OndiskError, OSError, Changed, Foreign, Unsafe):
        return []
    return done


def _fixed(inspection: Inspection, before: Diagnosis, elsewhere: Elsewhere, scanned: Scanned | None) -> Done:
    try:
        if scanned is not None:
            with contextlib.suppress(Changed):
                return _fixed_once(inspection, before, elsewhere, rewriting=False, scanned=scanned)
        return _fixed_once(inspection, before, elsewhere, rewriting=False)
    except Foreign:
        return _fixed_once(inspection, before, elsewhere, rewriting=True)
    except Unsafe as error:
        with inspection.access.transaction("fix") as transaction:
            transaction.note_check(error.segment, str(error))
            transaction.commit()
        return Done(before.segment, before.state | State.CORRUPTED, (*before.reasons, str(error)))


def _fixed_once(
    inspection: Inspection,
    before: Diagnosis,
    elsewhere: Elsewhere,
    *,
    rewriting: bool,
    scanned: Scanned | None = None,
) -> Done:
    access, name = inspection.access, before.segment
    with access.transaction("fix") as transaction:
        with access.current().index.snapshot() as snapshot:
            diagnosis, known = inspection.examine(snapshot, name)
        if diagnosis is None:
            return Done(name, State.OK, ("it has gone meanwhile",))
        if diagnosis.error is not None:  # it may hold data that the index has lost
            raise diagnosis.error
        if State.CORRUPTED in before.state | diagnosis.state:
            return _looked_again(access, transaction, before, known, elsewhere)
        if not diagnosis.state & FIXED:
            return _left(diagnosis)
        if State.MISSING in diagnosis.state:
            assert known is not None
            if (reason := why_kept(access, name)) is not None:
                return Done(name, diagnosis.state, (*diagnosis.reasons, reason))
            lost = transaction.remove(known.segment)
            transaction.commit()
            return Done(name, diagnosis.state, diagnosis.reasons, diagnosis.action, 0, lost)
        rescan = Rescan(access, transaction, name, known, elsewhere)
        if rewriting:
            rescan.rewrite()
        else:
            if rescan.in_place(trusted=not access.needs_check(), scanned=scanned):
                commit(transaction, access.directory, [rescan])
            rescan.raise_sequence()
        return rescan.done(diagnosis)


def _looked_again(
    access: Access, transaction: Transaction, diagnosis: Diagnosis, known: Known | None, elsewhere: Elsewhere
) -> Done:
    """Read a damaged segment again: its file may have been put back from a backup, or its damaged data been deleted."""
    if known is None or (known.damage is None and not access.has_sentinel()):
        return _left(diagnosis)
    if known.damage is None:
        # When its file is whole again there may be data in it that the index has lost, and no sentinel any more.
        reason = f"{diagnosis.reasons[0]}, when it was to be read into a new index; {REMEDY}"
        transaction.note_check(known.segment, reason)
        transaction.commit()
        return _left(diagnosis)
    with access.current().index.snapshot() as snapshot:
        content = read_content(access, snapshot, known.segment)
    if diagnosis.noted and not content.is_whole and not known.damage.endswith(REMEDY):
        if content.wrong is not None and known.count:
            return _left(diagnosis)
        transaction.note_check(known.segment, None)
        transaction.commit()
        said = "the data that were damaged are deleted; a repack writes the others anew"
        return Done(diagnosis.segment, diagnosis.state, (*diagnosis.reasons, said))
    if not diagnosis.noted or not content.is_whole or (content.wrong is not None and not content.is_read):
        return _left(diagnosis)
    said = "its file is whole again"
    if content.wrong is not None:  # the places of data behind damage may have been told wrong
        transaction.remove(known.segment)
        known = None
        said += (
            ", and was read anew: data that were deleted, and not yet removed by a repack, came back with the others"
        )
    rescan = Rescan(access, transaction, diagnosis.segment, known, elsewhere)
    rescan.in_place()
    commit(transaction, access.directory, [rescan])
    rescan.raise_sequence()
    return rescan.done(replace(diagnosis, state=State.UNALIGNED), said)  # the index lagged behind a file that is whole
