"""Archive and unarchive: move segments to a folder of the archive, and back; rename such a folder, or call it offline.

A move is one commit: the segment gets a new generation in the other folder, see `ondisk.segments.generations`. A crash
before it leaves hidden files, which the next opening removes; after a crash that comes after it, the next opening takes
the old file its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from ondisk.dataset.access import Access
from ondisk.dataset.place_checks import check_not_away, maintained, missing
from ondisk.datum import INTEGER_MAX
from ondisk.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    OndiskError,
    SegmentMissing,
    StateError,
    command,
    counted,
    shown,
)
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.index import INDEX, Copies, Segment, Snapshot, segment_rows
from ondisk.index.changes import Removal
from ondisk.index.transaction import Transaction
from ondisk.maintenance.diagnosis import Known
from ondisk.maintenance.durable_steps import complete, move
from ondisk.maintenance.inspect import Inspection
from ondisk.maintenance.moved_by_hand import recognised, renamed_places
from ondisk.maintenance.observe import all_known
from ondisk.maintenance.second_copy import copy_left
from ondisk.maintenance.states import Diagnosis, Done, Report, State
from ondisk.segments import generations, places
from ondisk.segments.file_facts import changed
from ondisk.segments.generations import recorded_stat
from ondisk.step import ARCHIVE, LAST, NOTHING, as_given, inner_of, place_of

UNMOVABLE = State.CORRUPTED | State.MISSING | State.UNALIGNED | State.DELETED
"""The states of segments that cannot be moved."""


def moved(access: Access, names: Iterable[str], verb: str) -> list[Done]:
    """Move segments to `.archive/last`, whatever their age; or those of the archive back to the dataset's own folders.

    Args:
        names: to unarchive: `.archive/NAME/…`; without a place, those of `.archive/last`.
        verb: `archive` or `unarchive`.

    Raises:
        SegmentMissing: the index does not know the segment, or its place or `.archive/last` is away.
        AlreadyExists: a file has the new name that the index does not know.
        StateError: the segment is in a state of `UNMOVABLE`, or its data must be merged with a damaged segment, or with
            an UNALIGNED file; to unarchive, also if another program reads the dataset's own, or the name is not one of
            the dataset's step.
        NeedsCheck: the index was lost, and may not know all data.
        OndiskError: every error ends the work; `error.context["report"]` contains the segments moved before it.

    Durability: one commit for each segment.
    Locks: takes the writers' lock for each segment.
    """
    with _reporting(access) as done:
        done += recognised(access)
        before = _known_before(access)
        for name, target in _targets(access, names, verb):
            done.append(_moved(access, name, target, verb, before.get(name)))
    return done


def archived(access: Access, name: str) -> Done:
    """Move one segment to `.archive/last`, and merge it with a segment of the same name there."""
    return _moved(access, name, _name_in_last(access, name), "archive", None)


def planned(access: Access, names: Iterable[str], verb: str) -> list[Done]:
    """Return what `moved` would do, and change nothing.

    Raises:
        As it does, if that is certain: `error.context["report"]` contains the segments that would be moved before it.
    """
    with _reporting(access) as done:
        access.check_trusted()
        before = _known_before(access)
        for name, target in _targets(access, names, verb):
            diagnosis, _ = _decided(access, name, target, before.get(name))
            done.append(Done(name, diagnosis.state, diagnosis.reasons, verb))
    return done


def _targets(access: Access, names: Iterable[str], verb: str) -> Iterator[tuple[str, str]]:
    """Yield the names of segments, and those that they get."""
    for name in as_given(names):
        if verb == "archive":
            yield name, _name_in_last(access, name)
        else:
            there = name if place_of(name) else LAST + name
            _check_returns(access, there)
            yield there, inner_of(there)


class Change(NamedTuple):
    """A change of a folder of the archive, which was decided: a dry run prints it, else `carried_out` makes it."""

    done: Done
    make: Callable[[Transaction], object]


def carried_out(access: Access, decide: Callable[..., Change], *names: str) -> Done:
    """Decide on a change and make it; raise as `decide`.

    Locks: the writers' lock.
    """
    with access.transaction("archive") as transaction:
        change = decide(access, *names)
        change.make(transaction)
    return change.done


def renaming(access: Access, name: str, new: str) -> Change:
    """Rename a folder of the archive, `.archive/NAME`, with its segments in one commit.

    Queries go on: a reader that does not find a segment looks for it in the other folders of the archive.

    Raises:
        NotFound: there is no such folder.
        SegmentMissing: it is away or offline.
        StateError: it was renamed by hand, or by a process that was killed, and no fix has followed it.
        AlreadyExists: the new one exists, or the index has segments of it.
        InvalidInput: the new name is not that of a folder.

    Durability: renames the folder, synced, then commits. After a crash between these, the next fix or repack commits.
    If the disk was full after the commit, it gives the note beside the folder its new name.
    """
    directory, old, to = access.directory, _place(name), _place(new)
    found = places.place(directory, old)
    with access.current().index.snapshot() as snapshot:
        names = [each.name for each in segment_rows.in_place(snapshot, old)]
        is_taken = bool(segment_rows.in_place(snapshot, to))
    if found.why_away is not None:
        is_known = found.identity is not None or names
        raise missing(directory, found) if is_known else _no_place(access, name)
    if (former := next((each for each, its in renamed_places(access) if its == old), None)) is not None:
        hint = f"{command('fix', access.path, '--yes')} follows it. Then repeat this."
        raise StateError(f"{access.path / old} was {former.rstrip('/')} before somebody renamed it", hint=hint)
    is_taken |= places.place(directory, to).identity is not None
    if is_taken or directory.stat(to.rstrip("/")) is not None:
        raise AlreadyExists(f"{access.path / to} exists already", hint="Choose another name.")

    def make(transaction: Transaction) -> None:
        places.note_move(directory, old, transaction.counters.generation, 0)
        directory.rename(old.rstrip("/"), to.rstrip("/"))
        transaction.on_rollback(lambda: directory.rename(to.rstrip("/"), old.rstrip("/")))
        transaction.set_names((each, to + inner_of(each)) for each in names)
        transaction.after_commit(partial(places.rename, directory, {old: to}))
        transaction.commit()

    return Change(Done(old.rstrip("/"), State.OK, (f"to {to.rstrip('/')}",), "rename"), make)


def going_offline(access: Access, name: str) -> Change:
    """Say that a folder of the archive is away for long.

    While it is offline, check says nothing about it, queries warn and leave its data out, and nothing in it is touched.

    Raises:
        NotFound: the index has no data in it.
        StateError: it is `last`, to which repack moves segments.

    Durability: one file is replaced, and synced.
    """
    place = _place(name)
    if place == LAST:
        hint = f"Rename it first: {command('archive', access.path, '--rename', 'last', 'NAME', '--yes')}."
        raise StateError(f"{access.path / place} cannot be offline: repack moves segments there", hint=hint)
    count, interval = access.ask(segment_rows.extent_of, place)
    if not count:
        raise _no_place(access, name)
    before = places.place(access.directory, place).identity or places.new_identity()
    now = before if before.is_unread else before._replace(count=count).during(interval)
    reason = f"the index keeps what it knows of {counted(count, 'datum')}"
    done = Done(place.rstrip("/"), State.OK, (reason,), "set offline")
    offline = now._replace(is_offline=True)
    return Change(done, lambda _: places.write(access.directory, place, offline, only_outside=True))


def coming_online(access: Access, name: str) -> Change:
    """Say that a folder of the archive that was offline is back.

    Raises:
        NotFound: it is not offline.
        SegmentMissing: its folder is not there: it is empty, or another one.
        StateError: it has an index of its own.

    Durability: as `going_offline`.
    """
    place = _place(name)
    found = places.place(access.directory, place)
    before = found.identity
    if before is None or not before.is_offline or access.directory.stat(places.outside(place)) is None:
        raise NotFound(f"{access.path / place} is not offline", hint="`ondisk info` lists what is.")
    if (home := places.home(access.directory, found)) != place:
        if home is not None:
            raise missing(access.directory, found)
        if access.directory.stat(f"{place}{INDEX}") is not None:
            hint = f"If it is an older one, {command('migrate', access.path)} takes it over. Else mount its disk."
            raise StateError(f"{access.path / place} has an index of its own", hint=hint)
        hint = "Mount its disk first."
        inner, outer = f"{place}{places.PLACE}", places.outside(place)
        if access.directory.stat(inner) is None:
            hint = f"{hint} If that is done, {inner} is lost: copy {outer} there."
        raise SegmentMissing(f"{access.path / place} is not there: its folder is empty, or is another one", hint=hint)
    names = [each.name for each in access.ask(segment_rows.in_place, place)]
    if names and all(access.directory.stat(each) is None for each in names):
        raise SegmentMissing(f"{access.path / place} has none of its segments", hint="Mount its disk first.")
    now = before._replace(is_offline=False)
    done = Done(place.rstrip("/"), State.OK, (), "set online")
    return Change(done, lambda _: places.write(access.directory, place, now, only_outside=True))


def recount(access: Access, verb: str, names: Collection[str]) -> None:
    """Write the number of data of folders of the archive, and their span, if these are others than they say.

    One whose segments are rewritten gets the next generation then, so that an older copy of it is known as one.

    Locks: the writers' lock, if there is something to write.
    """
    if _recounted(access, names):
        with access.transaction(verb) as transaction:
            generation = transaction.take_generation()
            transaction.commit()
            for name, identity in _recounted(access, names).items():
                is_rewritten = name in maintained(access.config)
                now = identity._replace(generation=generation) if is_rewritten else identity
                places.write(access.directory, name, now)


def _is_writable(directory: Directory, place: str) -> bool:
    """Return whether the identity of a place can be written: its disk may be mounted to be read only."""
    with contextlib.suppress(FileNotFoundError), directory.inside(place.rstrip("/")) as folder:
        return folder.is_writable()
    return False


def _recounted(access: Access, names: Collection[str]) -> dict[str, places.Identity]:
    """Return the folders that must get another identity."""
    recounted = {}
    with access.current().index.snapshot() as snapshot:
        for name in names:
            found, (count, interval) = places.place(access.directory, name), segment_rows.extent_of(snapshot, name)
            # A folder of second copies gets no identity: it may become the one whose segments somebody moves there.
            if found.why_away is None and (count or found.is_ours) and not found.is_unread:
                now = places.own_identity(access.directory, found)._replace(count=count).during(interval)
                if (now != found.identity or not found.is_ours) and _is_writable(access.directory, name):
                    recounted[name] = now
    return recounted


def forgetting(access: Access, name: str) -> Change:
    """Remove the segments of a folder of the archive that is away from the index, and count their data as lost.

    A second copy of a whole segment takes its rows over; one that has less is read by the next fix.

    Raises:
        StateError: it is not away.
        StorageError: this user may not read it.
        NotFound: neither the index nor a file knows of it.

    Durability: one commit, then the file with its identity is removed.
    """
    place = _place(name)
    places.check_readable(access.directory, place)
    found = places.place(access.directory, place)
    with access.current().index.snapshot() as snapshot:
        count, _ = segment_rows.extent_of(snapshot, place)
        segments = segment_rows.in_place(snapshot, place)
        copies = {each: copied for each in segments if (copied := _copy_left(access, snapshot, each)) is not None}
        whole = {each: copied for each, copied in copies.items() if _is_whole(access, snapshot, copied, each)}
        spans = {each: segment_rows.interval_of(snapshot, each) for each in whole}
        kept = sum(segment_rows.count_of(snapshot, each) for each in whole)
    if found.why_away is None:
        hint = "Remove single segments that are missing with --forget alone."
        raise StateError(f"{access.path / place} is there, and is not forgotten", hint=hint)
    if (home := places.home(access.directory, found)) is not None:
        how = f"move {home.rstrip('/')} to {place.rstrip('/')}, and run {command('fix', access.path, '--yes')}"
        hint = f"To use them, {how}; if they are to go, move it out of the archive first."
        if home == place:
            hint = f"{command('archive', access.path, '--online', name, '--yes')} ends that it is offline."
        raise StateError(f"the data of {access.path / place} are in {home}, and are not forgotten", hint=hint)
    if not segments and found.identity is None:
        raise _no_place(access, name)
    # The index that knew the others was lost.
    unnamed = max(0, found.identity.count - count) if found.identity and (found.is_unread or not segments) else 0

    def make(transaction: Transaction) -> None:
        for each in segments:
            if (copied := whole.get(each)) is not None:
                transaction.supersede(copied)
                there = copied._replace(id=transaction.take_generation(), copies=Copies.NONE, unproven=each.unproven)
                transaction.move(each, there, spans[each])
                continue
            transaction.remove(each, Removal.LOST)
            if (copied := copies.get(each)) is not None:
                transaction.save_segment(copied._replace(has_unknown=True), NOTHING)
        transaction.count_unnamed_lost(unnamed)
        if segments and found.identity is not None:  # who is killed after the commit has counted them
            transaction.on_rollback(partial(places.write, access.directory, place, found.identity, only_outside=True))
            places.write(access.directory, place, found.identity._replace(count=0, known_since=0), only_outside=True)
        transaction.after_commit(lambda: places.forget(access.directory, place))
        transaction.commit()

    lost = count - kept + unnamed
    reason = f"it is gone for good, and {counted(lost, 'datum', 'is')} lost"
    if kept:
        reason += f", except {counted(kept, 'datum')}: second copies have them"
    return Change(Done(place.rstrip("/"), State.MISSING, (reason,), "forget", 0, lost), make)


def _copy_left(access: Access, snapshot: Snapshot, segment: Segment) -> Segment | None:
    name = copy_left(access, segment.name)
    return None if name is None else snapshot.segment_named(name)


def _is_whole(access: Access, snapshot: Snapshot, copied: Segment, segment: Segment) -> bool:
    """Return whether a second copy without rows has the bytes, or files, of a whole segment at the same places."""
    mine, theirs = copied.facts, segment.facts
    # Of a folder it is of the inodes of its files.
    is_same = is_dir(segment.format) or (mine.checksum == theirs.checksum is not None)
    if not is_same or (copied.end, mine.tail) != (segment.end, theirs.tail):
        return False
    is_copy = copied.copies is Copies.ALL and not segment_rows.count_of(snapshot, copied)
    return is_copy and generations.is_committed(access.directory, copied.name, access.committed(copied))


def _moved(access: Access, name: str, target: str, verb: str, before: Known | None) -> Done:
    directory = access.directory
    with access.transaction(verb) as transaction:
        access.check_trusted()
        diagnosis, segment = _decided(access, name, target, before)
        complete(access, segment)
        count, interval = access.ask(segment_rows.count_of, segment), access.ask(segment_rows.interval_of, segment)
        size, left = directory.stat(name), _as_it_is(directory, segment)
        committed = access.committed(left)
        # Before the new file gets its name: that is what shows the next opening that this is left to do.
        transaction.after_commit(partial(generations.leave, directory, name, segment.id, committed))
        access.clean_up_later(name)
        transaction.note_moved(left)
        if target_place := place_of(target):
            places.begin(directory, target_place)
        there = _merged_with(access, transaction, target)
        is_linked = move(access, transaction, segment, target, there, interval)
        transaction.check_space()
        for place, change in ((place_of(name), -count), (place_of(target), count)):
            if place:
                places.note_move(
                    directory, place, transaction.counters.generation, change, interval if change > 0 else None
                )
        transaction.commit()
    is_freed = size is not None and not is_linked and not is_dir(segment.format) and transaction.has_no_older_readers
    return Done(name, diagnosis.state, diagnosis.reasons, verb, size.st_size if size is not None and is_freed else 0)


def _merged_with(access: Access, transaction: Transaction, name: str) -> Segment | None:
    """Return the segment of a name, with which another one is merged; None if there is none.

    One whose file somebody has removed is forgotten, if all its data were deleted before.
    """
    there = transaction.segments([name]).get(name)
    is_gone = there is not None and access.directory.stat(name) is None
    return None if there is None or (is_gone and transaction.forget_if_empty(there)) else there


def _as_it_is(directory: Directory, segment: Segment) -> Segment:
    """Return a segment with the inode that its file has now: a copy of the dataset has others than were recorded."""
    found = recorded_stat(directory, segment.name)
    if found is None:
        return segment
    return segment._replace(facts=segment.facts._replace(inode=found.st_ino & INTEGER_MAX))


@contextlib.contextmanager
def _reporting(access: Access) -> Iterator[list[Done]]:
    """Yield a list for the results of the block; if an error ends the block, attach a report of them to it."""
    done: list[Done] = []
    try:
        yield done
    except OndiskError as error:
        error.context["report"] = Report(str(access.path), segments=[*done])
        raise
    finally:
        if any(each.action for each in done):
            with contextlib.suppress(OndiskError):  # the next opening does it
                access.finish_moves()


def _name_in_last(access: Access, name: str) -> str:
    if place_of(name):
        hint = f"{command('unarchive', access.path, name, '--yes')} moves it back to the dataset's own folders."
        raise StateError(f"{access.path / name} is archived already", hint=hint)
    return LAST + name


def _place(name: str) -> str:
    if not places.is_name(name):
        raise InvalidInput(f"{shown(name)} is not the name of a folder in {ARCHIVE}", hint="Write for example 2024.")
    return f"{ARCHIVE}/{name}/"


def _no_place(access: Access, name: str) -> NotFound:
    return NotFound(f"{access.path} has no archived data in {ARCHIVE}/{name}", hint="`ondisk info` lists the archives.")


def _known_before(access: Access) -> dict[str, Known]:
    """Return what the index knows about all segments, including data with reftimes outside their segment's interval."""
    with access.current().index.snapshot() as snapshot:
        return {each.segment.name: each for each in all_known(access, snapshot)}


def _decided(access: Access, name: str, target: str, before: Known | None) -> tuple[Diagnosis, Segment]:
    """Return the diagnosis of a segment, and its row; raise unless it can be moved to a name."""
    check_not_away(access, name, target)
    diagnosis, known = access.ask(Inspection(access).examine, name, before)
    if diagnosis is not None and diagnosis.error is not None and diagnosis.is_denied:
        raise diagnosis.error
    if diagnosis is None or known is None or diagnosis.state & UNMOVABLE:
        raise _refused(access, name, diagnosis, "moved")
    if (why := diagnosis.reasons[0] if diagnosis.consumed else diagnosis.awaited) is not None:
        raise StateError(f"{access.path / name} cannot be moved: {why}")
    if is_dir(known.segment.format) and not known.rows.count:  # of a folder, only files with rows are linked
        hint = f"{command('repack', access.path, '--second-copies', '--yes')} removes a second copy."
        raise StateError(f"{access.path / name} cannot be moved: all its data are deleted or elsewhere", hint=hint)
    if diagnosis.is_touched and not is_dir(known.segment.format):
        file = access.current().reader.file_of(known.segment)
        if access.committed(known.segment).is_whole_in(file) is False:
            raise changed(access.directory, name)
    if access.directory.stat(target) is not None and access.ask(Snapshot.segment_named, target) is None:
        hint = f"Read it into the index with {command('fix', access.path, '--yes')}, or move it away if it is empty."
        raise AlreadyExists(f"{access.path / target} exists, but the index does not know it", hint=hint)
    if (there := _not_whole(access, target)) is not None:  # a merge would lose data
        raise _refused(access, target, there, "merged")
    return diagnosis, known.segment


def _check_returns(access: Access, name: str) -> None:
    """Raise if an archived segment cannot be one of the dataset's own folders."""
    if access.config.step.interval(inner_of(name).rpartition(".")[0]) is None:
        hint = "Queries find its data where it is."
        raise StateError(f"{access.path / name} cannot be moved: its name is not one of the step", hint=hint)
    access.layout.check_returns(access.directory, name)


def merge_refusal(access: Access, name: str) -> str | None:
    """Return why data cannot be merged with the segment of a name in `.archive/last`; None if they can."""
    there = _not_whole(access, _name_in_last(access, name))
    if there is None:
        return None
    return f"it is not archived: {there.segment} is {', '.join(there.state.names)}: {there.reasons[0]}"


def _not_whole(access: Access, name: str) -> Diagnosis | None:
    found, known = access.ask(Inspection(access).examine, name)
    if found is None or known is None:
        return None
    is_missing = State.MISSING in found.state and known.rows.count
    keeps_all = is_dir(known.segment.format) and not access.may_lack(name)  # a folder keeps all files but newer ones
    is_lossy = State.UNALIGNED in found.state and not keeps_all
    return found if is_missing or is_lossy or State.CORRUPTED in found.state else None


def _refused(access: Access, name: str, diagnosis: Diagnosis | None, verb: str) -> OndiskError:
    if diagnosis is None:
        hint = f"{command('check', access.path, '--all')} lists the segments."
        return SegmentMissing(f"{access.path} has no segment {name!r}", hint=hint, segment=name)
    hint = f"{command('check', access.path)} reports what mends it."
    states = ", ".join(diagnosis.state.names)
    return StateError(f"{access.path / name} cannot be {verb}: it is {states}: {diagnosis.reasons[0]}", hint=hint)
