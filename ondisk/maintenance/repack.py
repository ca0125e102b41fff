"""Repack: rewrite segments to remove holes and restore query order; delete DELETED segments; apply the ages."""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.errors import (
    AuthenticationFailed,
    DiskFull,
    DurabilityLost,
    IndexCorrupt,
    IntegrityError,
    OndiskError,
    ReadOnly,
    SegmentMissing,
    StateError,
    StorageError,
    command,
)
from ondisk.filesystem import ReadableFile
from ondisk.index import Copies, Snapshot, changes, segment_rows
from ondisk.maintenance import replaced
from ondisk.maintenance.ages import Ages
from ondisk.maintenance.archive import UNMOVABLE, archived, merge_refusal, recount
from ondisk.maintenance.check import old_items, staged_by_jobs
from ondisk.maintenance.dry_run import would_do
from ondisk.maintenance.durable_steps import COPIES, Rewriting, complete, drop
from ondisk.maintenance.inspect import Inspection, places_away
from ondisk.maintenance.moved_by_hand import recognised
from ondisk.maintenance.new_file import Written
from ondisk.maintenance.second_copy import copy_left
from ondisk.maintenance.states import REPACKED, Action, Diagnosis, Done, Report, State, raise_fatal, readable
from ondisk.segments import places, quarantine
from ondisk.segments.file_facts import changed
from ondisk.staging.jobs import Changed, remove
from ondisk.step import LAST, days_ago

_LOG = logging.getLogger("ondisk.maintenance")

_TRIES = 3
"""Attempts to write segments in advance. If other writers change them each time, they are written under the lock."""

_SOME = 16_384
"""Rows that one commit removes when the disk is full."""

_TRIMMED = 100_000
"""Deletions that one commit forgets."""

_DROPPED = State.DELETED | State.DELETE_AGE | State.MISSING
_UNREADABLE = State.CORRUPTED | State.UNALIGNED | State.MISSING

WriteAll: TypeAlias = Callable[[Access, list[Diagnosis]], Generator[tuple[Diagnosis, Written | None], None, None]]
"""Yields segments in the order in which to repack them: each with its new content, or None if that was not written."""


def write_later(access: Access, waiting: list[Diagnosis]) -> Generator[tuple[Diagnosis, None], None, None]:
    """Write nothing in advance: each segment is written when it is repacked."""
    for each in waiting:
        yield each, None


def repack(
    access: Access,
    now: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    write_all: WriteAll = write_later,
    *,
    by_age: bool = False,
    rewrite: bool = False,
    second_copies: bool = False,
) -> Report:
    """Do what `check` proposes as a repack, after diagnosing each segment again under the lock.

    Args:
        now: seconds since 1970; None for the present.
        write_all: writes segments in advance, without the lock; segments that change meanwhile are written again.

    Raises:
        NeedsCheck: the sentinel exists, so segments that the index does not know may contain data that it has lost.
        DurabilityLost: nothing more can be written. What was repacked before stays repacked.
        OndiskError: the first error at a single segment, such as DiskFull; raised at the end, after all others were
            repacked.

    `error.context["report"]` of each error reports what was done.

    Durability: see `ondisk.segments.generations`; a crash leaves each segment in its old or its new state. If the disk
        is full, the rows of a segment to delete are removed in several commits, and a crash between them leaves some.
    Locks: the writers' lock, once for each segment. Readers do not wait.
    """
    access.check_trusted()
    report = Report(str(access.path))
    errors: list[OndiskError] = []
    with report.attached(errors):
        report.add(recognised(access))  # first: what is in `last` now counts for its age
        ages = Ages.of(access, now, by_age=by_age)
        inspection = Inspection(access, ages=ages, rewrites=rewrite, removes_copies=second_copies)
        try:
            replaced.remove_old(access, time.time() if now is None else now, access.config.keep_seconds)
        except (StorageError, ReadOnly) as error:
            raise_fatal(error)
            errors.append(error)
        report.segments += _without_dead_jobs(access, now)
        report.segments += _without_old_items(access, ages, errors)
        try:
            report.add(_repack(access, inspection, progress, errors, write_all))
        except DiskFull as error:
            errors.append(error)
        _trim_deletions(access, ages)
        access.shrink_index()
        report.segments += map(Done.of, access.layout.leave_removed(access, "repack"))
        recount(access, "repack", access.ask(_counted_places))
        with access.transaction("repack") as transaction:
            if access.leave_moved(transaction) or ages.needs_commit:  # a dataset that nobody writes to ages, too
                transaction.commit()
        report.segments += [Done(each.segment, each.state, each.reasons) for each in places_away(access)]
    return report


def planned(access: Access, *, by_age: bool = False, rewrite: bool = False, second_copies: bool = False) -> Report:
    """Return what a repack with these arguments would do, and change nothing.

    The arguments and the errors are those of `repack`; the report is that of a check.
    """
    access.check_trusted()
    return would_do(access, Action.REPACK, rewrite=rewrite, second_copies=second_copies, by_age=by_age)


def _repack(
    access: Access,
    inspection: Inspection,
    progress: Callable[[str], None],
    errors: list[OndiskError],
    write_all: WriteAll,
) -> Iterator[Done]:
    waiting = []
    for before in [*readable(inspection.diagnoses(_is_wanted), errors)]:
        copy = copy_left(access, before.segment) if State.MISSING in before.state else None
        if copy is not None:
            fix = command("fix", access.path, "--yes")
            yield Done(before.segment, before.state, (*before.reasons, f"{copy} may have its data: run {fix}"))
        elif _is_wanted(before):
            waiting.append(before)
        else:
            yield Done(before.segment, before.state, before.reasons)
    waiting.sort(key=lambda each: not each.state & _DROPPED)  # first those that free space
    tries = 0
    was_stuck = False
    while waiting:
        full: DiskFull | None = None
        is_stuck, tried, waiting = True, waiting, []
        tries += 1
        with (
            contextlib.closing((write_all if tries <= _TRIES else write_later)(access, tried)) as writing,
            ThreadPoolExecutor(1) as beside,
        ):
            for before, written in writing:
                progress(before.segment)
                old_files: list[ReadableFile] = []
                try:
                    done = repacked(inspection, before.segment, written, old_files)
                    if State.ARCHIVE_AGE in done.state and not done.state & UNMOVABLE:
                        if (why := merge_refusal(access, before.segment)) is None:
                            moved = archived(access, before.segment)
                            action = Action.ARCHIVE if done.action is None else Action.REPACK_AND_ARCHIVE
                            done = replace(done, action=action, freed=done.freed + moved.freed)
                            if access.format_of(before.segment).is_dir:
                                _put_in_order(inspection, LAST + before.segment, old_files)
                        else:
                            done = replace(done, reasons=(*done.reasons, why))
                except DiskFull as error:  # other segments may need less space, or free some
                    traceback.clear_frames(error.__traceback__)  # they refer to the old file, and would keep its space
                    full = error
                    waiting.append(before)
                    continue
                except Changed:
                    is_stuck = False
                    waiting.append(before)
                    continue
                except (OndiskError, OSError) as error:
                    done = before.failed("repacked", error, errors)
                # The kernel frees an unlinked file when it is closed. That takes a third of the run time, so another
                # thread closes it.
                beside.submit(old_files.clear)
                is_stuck &= done.action is None
                yield done
        if full is not None:
            if not replaced.keep_nothing(access) and is_stuck and was_stuck:
                raise full
            was_stuck = is_stuck
            # All old files are closed now. Some filesystems free their space, and that of what was removed before, only
            # when they commit their journal. So a second pass may do what the first could not.
            with access.locked("repack"):  # a failed sync ends all writing
                access.directory.sync()


def _is_wanted(diagnosis: Diagnosis) -> bool:
    if diagnosis.held or diagnosis.moved is not None:
        return False
    if diagnosis.state & (State.CORRUPTED | State.UNALIGNED):  # it may have data that the index does not know
        return False
    return bool(diagnosis.state & REPACKED) or diagnosis.consumed


def _put_in_order(inspection: Inspection, name: str, old_files: list[ReadableFile]) -> None:
    """Give the files of a segment that others were merged into their order; if it fails, the next repack does it."""
    try:
        repacked(inspection, name, None, old_files)
    except DurabilityLost:
        raise
    except (OndiskError, OSError, Changed) as error:
        _LOG.warning("%s: %s is not in order yet: %s", inspection.access.path, name, error)


def can_be_written_elsewhere(access: Access, diagnosis: Diagnosis) -> bool:
    """Return whether a repack rewrites a segment, and another process can write its new content."""
    is_rewritten = State.DIRTY in diagnosis.state and not diagnosis.state & _DROPPED
    return is_rewritten and not access.format_of(diagnosis.segment).is_dir


def repacked(inspection: Inspection, name: str, written: Written | None, old_files: list[ReadableFile]) -> Done:
    """Repack or delete one segment. If it is damaged, record the damage in the index, and do not touch the segment.

    Args:
        old_files: the open file of the old generation is added to it; the caller closes the file.

    Raises:
        Changed: the segment changed after its new content was written.
    """
    try:
        return _repacked(inspection, name, written, old_files)
    except DiskFull:
        diagnosis, lost = _removed_in_steps(inspection, name)
        if diagnosis is None:
            raise
        done = _repacked(inspection, name, None, old_files)
        lost = lost if State.MISSING in diagnosis.state else 0
        # Report the state from before its data were removed from the index.
        return replace(done, state=diagnosis.state, reasons=(*diagnosis.reasons, *done.reasons[1:]), lost=lost)


def _repacked(inspection: Inspection, name: str, written: Written | None, old_files: list[ReadableFile]) -> Done:
    access = inspection.access
    with access.transaction("repack") as transaction:
        access.check_trusted()
        with access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
            if segment is not None:
                complete(access, segment)
            diagnosis, known = inspection.examine(snapshot, name)
            if diagnosis is None:
                return Done(name, State.OK, ("it was removed in the meantime",))
            if diagnosis.error is not None and diagnosis.is_denied:
                raise diagnosis.error
            state, reasons = diagnosis.state, diagnosis.reasons
            if not _is_wanted(diagnosis):
                return Done(name, state, reasons)
            is_kept = state & (State.DIRTY | State.DELETED) and not state & (State.MISSING | State.DELETE_AGE)
            if known is not None and known.segment.copies is Copies.SOME and is_kept:
                quarantine.link(access.directory, name, verb="repack", why=COPIES)
            rewriting, damage = None, None
            if State.DIRTY in state and not state & _DROPPED:
                assert known is not None
                rewriting = Rewriting(access, transaction, known)
                try:
                    if (file := rewriting.write(snapshot, written)) is not None:
                        old_files.append(file)
                except (IndexCorrupt, AuthenticationFailed):  # perhaps with a wrong key
                    raise
                except (IntegrityError, SegmentMissing) as error:
                    if diagnosis.is_touched:
                        raise changed(access.directory, name) from error
                    damage = error.message
        # Commit only after the snapshot has ended: an open snapshot would keep the old bytes on disk.
        if rewriting is not None and damage is None:
            return rewriting.commit(diagnosis)
        if diagnosis.consumed:
            access.layout.begin_again(access.directory, name)
        if state & _DROPPED or diagnosis.consumed:
            return drop(access, transaction, diagnosis, known)
    if damage is None or known is None:
        return Done(name, state, reasons)
    with access.transaction("repack") as transaction:
        transaction.note_damage(known.segment, damage)
        transaction.commit()
    return Done(name, state | State.CORRUPTED, (*reasons, damage))


def _removed_in_steps(inspection: Inspection, name: str) -> tuple[Diagnosis | None, int]:
    """Remove the rows of a segment before it is deleted, in several commits, which need less space than one.

    Returns:
        The earlier diagnosis, or None if nothing was done; the number of removed rows.

    Raises:
        DiskFull: there is no space for even the smallest commit.
    """
    access, removed, some = inspection.access, 0, _SOME
    with access.locked("repack"):
        access.check_trusted()
        diagnosis, known = access.ask(inspection.examine, name)
        if diagnosis is None or known is None or not diagnosis.state & _DROPPED or State.CORRUPTED in diagnosis.state:
            return None, 0
        if diagnosis.held or diagnosis.moved is not None:
            return None, 0
        why = diagnosis.removal()
        while True:
            try:
                with access.transaction("repack") as transaction:
                    if not (count := transaction.remove_some(known.segment, some, why)):
                        return diagnosis, removed
                    transaction.commit()
                removed += count
            except DiskFull:
                some //= 4
                if not some:
                    raise


def _trim_deletions(access: Access, ages: Ages) -> None:
    """Remove the deletions that are old enough from the dataset's index. Rows of data are never removed.

    A deletion is as old as the run of changes that it belongs to; a run ends after a day, or with another writer.

    Durability: one commit for some rows. The first also says which tokens expire.
    Locks: the writers' lock, for each commit.
    """
    days = access.config.deletions_kept
    if days is None or ages.doubt is not None:
        return
    with access.current().index.snapshot() as snapshot:
        last = changes.last_before(snapshot, days_ago(days, ages.now))
        if not changes.has_deletions(snapshot, last):
            return
    removed = _TRIMMED
    while removed == _TRIMMED:
        with access.transaction("repack") as transaction:
            removed = transaction.trim_deletions(last, _TRIMMED)
            if removed:
                transaction.commit()


def renew(access: Access, name: str) -> None:
    """Rewrite a segment as a repack does, whatever its state, so that data can be appended to it.

    Nothing was appended yet. The keystream of an encrypted file must not be used twice, and the new file has another.

    Raises:
        StateError: the index does not know all data of the segment, or they cannot be read.
        NeedsCheck: the sentinel exists.
        KeyMissing, AuthenticationFailed: the segment cannot be decrypted.

    Durability: a commit of its own, with the steps of a repack; see `ondisk.segments.generations`.
    Locks: the writers' lock, which the append takes again afterwards.
    """
    with access.transaction("rewrite") as transaction:
        access.check_trusted()
        with access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
            if segment is None:
                return
            complete(access, segment)
            diagnosis, known = Inspection(access).examine(snapshot, name)
            if diagnosis is None or known is None or diagnosis.state & _UNREADABLE:
                hint = f"Run {command('fix', access.path, '--yes')}, then append again."
                reason = "" if diagnosis is None else f": {'; '.join(diagnosis.reasons)}"
                message = f"{access.path / name} must be rewritten before an append, and cannot be read{reason}"
                raise StateError(message, hint=hint, segment=name)
            if segment.copies is not Copies.NONE:  # data without rows are not written
                quarantine.link(access.directory, name, verb="append", why=COPIES)
            rewriting = Rewriting(access, transaction, known)
            rewriting.write(snapshot, None)
        rewriting.commit(diagnosis)


def _counted_places(snapshot: Snapshot) -> set[str]:
    """Return the places whose data a repack knows: the index has their segments, or they have no files any more."""
    directory = snapshot.index.directory
    found = (name for name, each in places.places(directory).items() if each.is_ours and each.why_away is None)
    return {*segment_rows.places(snapshot), *(each for each in found if not places.has_files(directory, each[:-1]))}


def _without_dead_jobs(access: Access, now: float | None = None) -> Iterator[Done]:
    """Remove the staged files of jobs that no longer run.

    Locks: none; if such a job commits after all, its commit fails and stores nothing.
    """
    for diagnosis in staged_by_jobs(access, now):
        if diagnosis.state:
            remove(access.directory, diagnosis.segment.rpartition("/")[2])
            yield Done(diagnosis.segment, diagnosis.state, diagnosis.reasons, diagnosis.action, diagnosis.freed)


def _without_old_items(access: Access, ages: Ages, errors: list[OndiskError]) -> Iterator[Done]:
    """Remove the items that are older than `quarantine_age`, and what killed processes left in quarantine.

    Locks: the writers' lock, if there is a quarantine.
    """
    if not quarantine.folders(access.directory):
        return
    with access.locked("repack"):
        try:
            quarantine.remove_leftovers(access.directory)
            old = [*old_items(access, ages)]
        except (StorageError, ReadOnly) as error:
            errors.append(error)
            return
        for each in old:
            if each.held:
                yield Done(each.segment, each.state, each.reasons)
                continue
            try:
                quarantine.drop(access.directory, each.segment)
            except (OndiskError, OSError) as error:
                yield each.failed("removed", error, errors)
            else:
                yield Done(each.segment, each.state, each.reasons, each.action, each.freed)
