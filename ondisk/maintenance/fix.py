"""Fix: makes the index agree with the disk. It rewrites only segments of other programs that cannot be extended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from stat import S_ISDIR
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.dataset.place_checks import note_read, unread_places
from ondisk.errors import (
    REMEDY,
    DurabilityLost,
    KeyMissing,
    LockError,
    OndiskError,
    ReadOnly,
    SegmentCorrupt,
    StateError,
    StorageError,
    counted,
)
from ondisk.filesystem import Directory
from ondisk.formats import Format
from ondisk.formats.base import DescribesFiles
from ondisk.index import INDEX, Segment, Snapshot, segment_rows
from ondisk.index.changes import Removal
from ondisk.index.sums import wrong_sums
from ondisk.index.transaction import Transaction
from ondisk.maintenance.archive import carried_out, forgetting, recount
from ondisk.maintenance.check import FileContent, read_content
from ondisk.maintenance.compare import Outcome, Refused, Scanned, Subject, explained
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.dry_run import CHANGED, would_do
from ondisk.maintenance.durable_steps import complete
from ondisk.maintenance.inspect import Inspection, interval_of, places_away
from ondisk.maintenance.moved_by_hand import recognised
from ondisk.maintenance.rescan import Unfound, commit, in_place, is_another_file, renewed, rewritten
from ondisk.maintenance.salvage import salvaged, would_salvage
from ondisk.maintenance.states import FIXED, Action, Diagnosis, Done, Report, State, readable
from ondisk.segment import NotedDamage
from ondisk.segments import generations
from ondisk.segments.dir import MetadataFile
from ondisk.segments.generations import MOVED, hidden
from ondisk.segments.places import closed, note_unread, places
from ondisk.staging.jobs import Changed
from ondisk.step import as_given, inner_of, place_of

# A commit reads up to so many bytes of segments into the index; each segment counts as so many bytes or more.
_GROUP, _SMALLEST = 8 * 1024 * 1024, 64 * 1024
_LOST = f"{REMEDY}; if they are gone for good, fix --acknowledge ends the alarm"
_ALONE = State.MISSING | State.CORRUPTED
_Waiting: TypeAlias = tuple[Diagnosis, Scanned | None]
ScanAll: TypeAlias = Callable[[Access, list[Diagnosis]], AbstractContextManager[Iterable[_Waiting]]]
"""Yields segments in their order, each with the scanned content of its file, or None. The content exists for the length
of the block, or until the caller discards it after its commit."""


def scan_later(access: Access, waiting: list[Diagnosis]) -> AbstractContextManager[Iterable[_Waiting]]:
    """Scan nothing in advance: each segment is scanned when it is fixed."""
    return contextlib.nullcontext([(each, None) for each in waiting])


def fix(
    access: Access,
    progress: Callable[[str], None] = lambda _: None,
    scan_all: ScanAll = scan_later,
    *,
    salvage: Sequence[str] = (),
    forget: bool = False,
    acknowledge: bool = False,
    forget_place: str | None = None,
) -> Report:
    """Do what `check` reports for a fix. Each segment is diagnosed again first, under the lock.

    Args:
        scan_all: scans segments in advance, without the lock; what changed in between is scanned again.

    Raises:
        DurabilityLost, DiskFull: nothing more can be written. What was fixed before stays fixed.
        OndiskError: the first error at a single segment, after all others were fixed.
            `error.context["report"]` of each reports what was done.

    Durability: one commit for each segment, or for several small ones. After a crash the next fix continues. The
        sentinel is removed last.
    Locks: the writers' lock, once for each commit.
    """
    report = Report(str(access.path))
    errors: list[OndiskError] = []
    salvage = as_given(salvage)
    with report.attached(errors):
        # Replaces a lost index, and raises before anything is read if this user has no permission to write.
        with access.transaction("fix"):
            for name in salvage:  # all of them, before anything is done
                would_salvage(access, name)
        if forget_place is not None:
            report.segments.append(carried_out(access, forgetting, forget_place))
        for name in salvage:
            report.segments.append(salvaged(access, name))  # an error at the next one reports this one
        if acknowledge:
            with access.transaction("fix") as transaction:
                if transaction.acknowledge():
                    transaction.commit()
        report.add(_fix(access, progress, scan_all, errors, forget=forget))
        report.needs_check = access.needs_check()
        report.segments += map(Done.of, access.layout.mend(access))
        if not report.needs_check and not errors:
            recount(access, "fix", places(access.directory))  # all in them that can be read is known now
        report.segments += _unaccounted(access, report)
        report.segments += [_left_alone(each) for each in places_away(access)]
    return report


def planned(
    access: Access, *, salvage: Sequence[str] = (), forget: bool = False, forget_place: str | None = None
) -> Report:
    """Return what a fix with these arguments would do, and change nothing.

    The arguments and the errors are those of `fix`; the report is that of a check, with what was asked for.
    """
    asked = [] if forget_place is None else [forgetting(access, forget_place).done]
    asked += [would_salvage(access, name) for name in as_given(salvage)]
    return would_do(access, Action.RESCAN, released=State.MISSING if forget else State.OK, asked=asked)


def _fix(
    access: Access,
    progress: Callable[[str], None],
    scan_all: ScanAll,
    errors: list[OndiskError],
    *,
    forget: bool,
) -> Iterator[Done]:
    errors_before, needs_check = len(errors), access.has_sentinel()
    yield from recognised(access)
    if needs_check:
        _restore_generations(access)
    begun, unread, away = access.ask(Snapshot.dataset), unread_places(access), closed(access.directory)
    yield from map(Done.of, access.layout.follow(access))
    inspection = Inspection(access, forget=forget)
    waiting = []
    is_wanted = partial(_is_wanted, needs_check=needs_check)
    found = readable(inspection.diagnoses(is_wanted), errors)
    for before in found:
        if is_wanted(before):
            waiting.append(before)
        else:
            yield _left_alone(before)
    missing: list[_Waiting] = [(each, None) for each in waiting if State.MISSING in each.state]
    put_off: list[_Waiting] = []  # of a segment that was copied to another name without an index, the original counts
    with scan_all(access, [each for each in waiting if State.MISSING not in each.state]) as scanning:
        # Missing segments last: if a file was renamed, the rows of its old name become those of the new one, and only
        # the data that are nowhere else are lost.
        for some in (scanning, put_off, missing):
            puts_off = needs_check and some is scanning
            for group in _groups(access, some):
                for before, _ in group:
                    progress(before.segment)
                fixed: list[Done] = []  # of what is committed, also if the disk fails after the commit
                try:
                    _fix_together(inspection, group, fixed, puts_off=puts_off)
                    for before, scanned in [] if fixed else group:
                        try:
                            if not _fix_alone(inspection, before, scanned, fixed, puts_off=puts_off):
                                put_off.append((before, None))
                        except (OndiskError, OSError) as error:
                            fixed.append(before.failed("fixed", error, errors))
                finally:
                    yield from fixed
                for _, scanned in group:
                    if scanned is not None:
                        scanned.rows.discard(access.directory)
    _restore_sums(access)
    if len(errors) == errors_before:
        if needs_check:
            _remove_sentinel(access, begun["uuid"], away)
        if unread:
            note_read(access, unread)


def _restore_sums(access: Access) -> None:
    """Make the sums of segments that have none, or wrong ones, from their rows."""
    wrong = access.ask(wrong_sums)
    if wrong:
        with access.transaction("fix") as transaction:
            transaction.restore_sums(wrong)
            transaction.commit()


def _unaccounted(access: Access, report: Report) -> Iterator[Done]:
    """Count as lost what the newest index had recorded, and was not found again after an older one was put back.

    Not while anything may still be found: in a damaged segment, or in a segment or a folder that is away. What
    is offline may stay so for years.
    """
    lost, away = access.ask(segment_rows.unaccounted), closed(access.directory)
    is_open = report.needs_check or any(
        State.CORRUPTED in each.state or (State.MISSING in each.state and each.action is None) for each in report
    )
    if not lost or is_open or not all(each.is_offline for each in away.values()):
        return
    with access.transaction("fix") as transaction:
        if not (lost := access.ask(segment_rows.unaccounted)):  # another fix has counted them
            return
        transaction.account_for()
        transaction.count_lost(lost)
        transaction.commit()
    reason = f"an older index was restored; up to {counted(lost, 'later change', 'is')} lost (data or deletions)"
    if away:
        reason += f", unless they are offline in {', '.join(away)}"
    yield Done(INDEX, State.MISSING, (f"{reason}; {_LOST}",), "forget", 0, lost)


def _restore_generations(access: Access) -> None:
    """Give segments without a file their newest generation back, since the index may have lost it.

    One that another was merged into gets it, too, if a crash has left it hidden: only that has the data of the other.
    Other generations that the index does not know are moved to quarantine: they may contain data, too.
    """
    directory = access.directory
    with access.locked("fix"):
        left = generations.left_behind(directory)
        with access.current().index.snapshot() as snapshot:
            known = {name: snapshot.segment_named(name) for name in left}
        moved = {
            inner_of(name): number
            for name, numbers in left.items()
            for number in numbers
            if directory.stat(hidden(name, number) + MOVED) is not None
        }
        for name, segment in known.items():
            format = access.format_of(name) if segment is None else access.format(segment.format)
            if segment is not None:
                complete(access, segment)
            for number in reversed(generations.generations_of(directory, name)):
                alias = hidden(name, number)
                is_moved = directory.stat(alias + MOVED) is not None  # another folder has its data
                is_merged = number > moved.get(inner_of(name), number) and generations.is_replaced(directory, name)
                is_newest = directory.stat(name) is None or is_merged
                if not is_moved and is_newest and _is_readable(directory, alias, format):
                    directory.rename(alias, name)
                else:
                    generations.set_aside(directory, name, number, verb="fix")


def _is_readable(directory: Directory, name: str, format: Format) -> bool:
    """Return whether at least part of what has a name is a segment of a format.

    Of a directory, whether `.metadata` has an entry, or there are no files: a killed move leaves files without any.
    """
    with contextlib.suppress(FileNotFoundError, StorageError):
        if not format.is_dir:
            return format.is_readable(directory.open_to_read(name))
        with directory.inside(name) as folder:
            entries, is_empty = MetadataFile.of(folder), all(each.startswith(".") for each in folder.names())
            has_entries = entries is not None and (is_empty or any(True for _ in entries))
            return has_entries or (isinstance(format, DescribesFiles) and not is_empty)
    return False


def _is_wanted(diagnosis: Diagnosis, *, needs_check: bool) -> bool:
    if State.CORRUPTED in diagnosis.state:
        return diagnosis.noted or needs_check
    return _is_mended(diagnosis)


def _is_mended(diagnosis: Diagnosis) -> bool:
    return (bool(diagnosis.state & FIXED) and not diagnosis.held) or diagnosis.is_touched or diagnosis.consumed


def _left_alone(diagnosis: Diagnosis) -> Done:
    return Done(diagnosis.segment, diagnosis.state, diagnosis.reasons)


def _remove_sentinel(access: Access, uuid: str, away: Container[str]) -> None:
    """Remove the sentinel, unless the index was lost again meanwhile: then not all files were read into the new one.

    Args:
        away: the places that were away when the fix began: they may be back, and were not read.
    """
    with access.locked("fix"):
        with access.current().index.snapshot() as snapshot:
            is_same = snapshot.dataset()["uuid"] == uuid
        if is_same and access.has_sentinel():
            # An older index may have been put back, which lacks data of what is away.
            found = places(access.directory).items()
            lacking = (each for name, each in found if name in away or each.why_away is not None)
            is_all_found = not access.ask(segment_rows.unaccounted)  # then what is offline is as it was
            note_unread(access.directory, (each for each in lacking if not (each.is_offline and is_all_found)))
            access.directory.unlink(SENTINEL)
            access.directory.sync()


def _groups(access: Access, scanning: Iterable[_Waiting]) -> Iterator[list[_Waiting]]:
    """Yield groups of segments that one commit may read into the index.

    One of the same name in another place may be a copy, which is compared with what was committed.
    """
    group: list[_Waiting] = []
    size, names = 0, set[str]()
    for before, scanned in scanning:
        weight, name = _weight(access, before), inner_of(before.segment)
        if group and (size + weight > _GROUP or name in names):
            yield group
            group, size, names = [], 0, set()
        group.append((before, scanned))
        names.add(name)
        size += weight
    if group:
        yield group


def _weight(access: Access, before: Diagnosis) -> int:
    """Return how much of a group a segment takes, in bytes; more than a whole group if it needs its own."""
    if before.state & _ALONE:
        return _GROUP + 1
    found = access.directory.stat(before.segment)
    if found is None:
        return _SMALLEST
    # The size of a directory is not the size of its files.
    return _GROUP + 1 if S_ISDIR(found.st_mode) else max(found.st_size, _SMALLEST)


def _fix_together(inspection: Inspection, group: list[_Waiting], fixed: list[Done], *, puts_off: bool) -> None:
    """Read segments into the index in one commit, and add the results to `fixed`; none if one must be fixed alone."""
    if len(group) == 1:
        return
    access = inspection.access
    read: list[tuple[Diagnosis, Outcome | None]] = []
    try:
        with access.transaction("fix") as transaction:
            for before, scanned in group:
                diagnosis, known = access.ask(inspection.examine, before.segment)
                if diagnosis is None or diagnosis.error is not None or diagnosis.state & _ALONE or diagnosis.consumed:
                    return
                outcome = None
                if diagnosis.state & FIXED or diagnosis.is_touched:
                    subject = Subject.of(access, transaction, before.segment, known)
                    diagnosis, found = _read(subject, diagnosis, scanned, puts_off=puts_off)
                    if not isinstance(found, Outcome):
                        return
                    outcome = found
                read.append((diagnosis, outcome))
            done = iter(commit(transaction, [outcome for _, outcome in read if outcome is not None]))
            fixed += [_result(each, outcome and next(done)) for each, outcome in read]
    except (KeyMissing, ReadOnly):  # perhaps only of one of them
        return
    except (DurabilityLost, LockError, StateError):
        raise
    except (OndiskError, OSError, Changed):
        return


def _fix_alone(
    inspection: Inspection, before: Diagnosis, scanned: Scanned | None, fixed: list[Done], *, puts_off: bool
) -> bool:
    """Fix one segment, and add the result to `fixed`; return False if it was put off, and nothing was committed."""
    access, rewriting = inspection.access, False
    while True:
        try:
            with access.transaction("fix") as transaction:
                done = _fixed(inspection, transaction, before, rewriting=rewriting, scanned=scanned, puts_off=puts_off)
                if isinstance(done, Done):  # also if the end of the block raises
                    fixed.append(done)
                    return True
        except Changed:  # since it was scanned
            scanned = None
            continue
        if isinstance(done, Unfound):
            with access.transaction("fix") as transaction:
                transaction.note_check(done.segment, NotedDamage(done.reason, hides_data=True), done.facts)
                transaction.commit()
            fixed.append(Done(before.segment, before.state | State.CORRUPTED, (*before.reasons, done.reason)))
            return True
        if done in (Refused.MISNAMED, Refused.LINKED):
            return False
        rewriting, scanned = True, None


def _fixed(
    inspection: Inspection,
    transaction: Transaction,
    before: Diagnosis,
    *,
    rewriting: bool,
    scanned: Scanned | None,
    puts_off: bool,
) -> Done | Refused | Unfound:
    """Fix one segment, and commit; or return why it must be done in another way."""
    access, name = inspection.access, before.segment
    diagnosis, known = access.ask(inspection.examine, name)
    if diagnosis is None:
        return Done(name, State.OK, ("it was removed in the meantime",))
    if diagnosis.error is not None:  # it may contain data that the index has lost
        raise diagnosis.error
    if State.CORRUPTED in before.state | diagnosis.state:
        damaged = diagnosis if State.CORRUPTED in diagnosis.state else before
        return _checked_again(access, transaction, damaged, known, rewriting=rewriting)
    if not _is_mended(diagnosis):
        return _left_alone(diagnosis)
    if diagnosis.consumed:
        assert known is not None
        return _forget_consumed(access, transaction, diagnosis, known.segment)
    if State.MISSING in diagnosis.state:
        assert known is not None
        return _without_file(access, transaction, diagnosis, known.segment)
    subject = Subject.of(access, transaction, name, known)
    if rewriting:
        return _result(diagnosis if diagnosis.state & FIXED else _changed(diagnosis), rewritten(subject))
    diagnosis, read = _read(subject, diagnosis, scanned, puts_off=puts_off)
    return _result(diagnosis, *commit(transaction, [read])) if isinstance(read, Outcome) else read


def _read(
    subject: Subject, diagnosis: Diagnosis, scanned: Scanned | None, *, puts_off: bool
) -> tuple[Diagnosis, Outcome | Refused | Unfound]:
    """Read a segment in place; return its diagnosis, which reading may have changed, and what to commit."""
    is_believed = bool(diagnosis.state & FIXED)
    if not is_believed:
        if (outcome := renewed(subject)) is not None:
            return diagnosis, outcome
        diagnosis = _changed(diagnosis)
    trusted = not subject.may_lack
    return diagnosis, in_place(subject, trusted=trusted, is_believed=is_believed, scanned=scanned, puts_off=puts_off)


def _changed(diagnosis: Diagnosis) -> Diagnosis:
    return replace(diagnosis, state=State.UNALIGNED, reasons=(*diagnosis.reasons, CHANGED))


def _result(diagnosis: Diagnosis, outcome: Outcome | None) -> Done:
    """Return the result for a report; of a segment that was only touched, nothing was read."""
    return _left_alone(diagnosis) if outcome is None or not diagnosis.state & FIXED else explained(outcome, diagnosis)


def _without_file(access: Access, transaction: Transaction, diagnosis: Diagnosis, segment: Segment) -> Done:
    """Remove a segment without a file from the index; its data that are nowhere else count as lost."""
    name = diagnosis.segment
    generations.set_aside(access.directory, name, segment.id, verb="fix")
    is_renamed = access.ask(segment_rows.has_other_name, segment)
    removed = transaction.remove(segment, Removal.DELETED if is_renamed else Removal.LOST)
    transaction.commit()
    lost = 0 if is_renamed else removed
    said = "its data were read from a file with another name" if is_renamed else f"{counted(lost, 'datum', 'is')} lost"
    return Done(name, diagnosis.state, (*diagnosis.reasons, said), diagnosis.action, 0, lost)


def _forget_consumed(access: Access, transaction: Transaction, diagnosis: Diagnosis, segment: Segment) -> Done:
    access.layout.begin_again(access.directory, segment.name)
    transaction.remove(segment)
    transaction.commit()
    return Done(diagnosis.segment, diagnosis.state, diagnosis.reasons, diagnosis.action)


def _checked_again(
    access: Access,
    transaction: Transaction,
    diagnosis: Diagnosis,
    known: Known | None,
    *,
    rewriting: bool,
) -> Done | Refused | Unfound:
    """Read a damaged segment again: somebody may have put its file back, or deleted the damaged data."""
    name = diagnosis.segment
    deletes = access.config.unknown_segments == "delete" and interval_of(access, name) and not place_of(name)
    if known is None and deletes and access.has_sentinel():
        # Without the sentinel, a repack would delete the file that somebody has put back.
        problem = f"{name!r} cannot be read into a new index: {diagnosis.reasons[0]}"
        hint = "Put the whole file back, or move it away, and fix again."
        raise SegmentCorrupt(problem, hint=hint, segment=name)
    if known is None or (known.damage is None and not access.has_sentinel()):
        return _left_alone(diagnosis)
    if known.damage is None:
        # Later its file may be complete again, with data that the index has lost, while the sentinel is gone.
        reason = f"{diagnosis.reasons[0]}, so it could not be read into a new index; {REMEDY}"
        transaction.note_check(known.segment, NotedDamage(reason, hides_data=True))
        transaction.commit()
        return _left_alone(diagnosis)
    # Nothing can be read into a segment whose name has no interval.
    if not diagnosis.noted or interval_of(access, name) is None:
        return _left_alone(diagnosis)
    subject = Subject.of(access, transaction, name, known)
    reasons, is_believed = [CHANGED], True
    if not (diagnosis.is_touched and is_another_file(subject)):
        with access.current().index.snapshot() as snapshot:
            content = read_content(access, snapshot, known.segment)
        if _is_cleared(known, content):
            transaction.note_check(known.segment, None)
            transaction.commit()
            said = "its damaged data are deleted; a repack rewrites the others"
            return Done(name, diagnosis.state, (*diagnosis.reasons, said))
        has_all = content.is_read or (known.rows.count and content.wrong is None)  # of what the index knows
        if not content.is_whole or not has_all:
            return _left_alone(diagnosis)
        is_believed = content.wrong is None  # else the index may have wrong offsets for data after the damage
        back = " and was read again; data that were deleted, but not yet removed by a repack, are back"
        reasons = [*diagnosis.reasons, f"its file is complete again{'' if is_believed else back}"]
    found = rewritten(subject) if rewriting else in_place(subject, is_believed=is_believed)
    if not isinstance(found, Outcome):
        return found
    (outcome,) = [found] if rewriting else commit(transaction, [found])
    return explained(outcome, replace(diagnosis, state=State.UNALIGNED, reasons=tuple(reasons)))


def _is_cleared(known: Known, content: FileContent) -> bool:
    """Return whether the damaged data of a segment were deleted, and the damage hides no others."""
    assert known.damage is not None
    if content.is_whole or known.damage.hides_data:
        return False
    return content.wrong is None if known.rows.count else content.is_read
