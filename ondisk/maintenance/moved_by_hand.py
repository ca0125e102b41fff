"""Recognise what people have moved by hand: places, and single segments between any two folders.

The index knows a moved file by its facts, and gets its new name; nothing is read twice. This runs before anything else
that looks at segments: a fix, a repack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ondisk.dataset.access import Access
from ondisk.errors import InvalidInput, StorageError
from ondisk.formats import is_dir
from ondisk.index import Copies, Segment, Snapshot, segment_rows
from ondisk.maintenance.durable_steps import sync_found
from ondisk.maintenance.inspect import found_segments
from ondisk.maintenance.states import Action, Done, State
from ondisk.segments import places
from ondisk.segments.file_facts import SAME_BYTES, Seen, facts_of
from ondisk.segments.generations import hidden, seen_at
from ondisk.step import Interval, in_order, inner_of, interval_of, place_of


class Moved(NamedTuple):
    """A segment whose file somebody has moved, and the name of the file now."""

    segment: Segment
    name: str
    there: Segment | None  # the segment that the index has at that name: a second copy without data, or one that moved


def recognised(access: Access) -> Iterator[Done]:
    """Give the segments that people have moved their new names in the index.

    Durability: one commit for all places that were renamed, and one for all single segments. What was moved is synced
        before: whoever has moved it may not have done so.
    Locks: the writers' lock, if something was moved. What was is looked at again under it.
    """
    if [*renamed_places(access)]:
        yield from _follow_places(access)
    if found := moved_segments(access):
        yield from _follow_segments(access, found)


def _follow_places(access: Access) -> Iterator[Done]:
    with access.transaction("fix") as transaction:
        with access.current().index.snapshot() as snapshot:
            renamed, names = _places_to_follow(access, snapshot)
            copies = [each for name in names.values() if (each := snapshot.segment_named(name)) is not None]
        if not renamed:
            return
        sync_found(access.directory, [each.removesuffix("/") for each in renamed.values()])
        for each in copies:
            if each.name not in names:  # it has no data, else the place would not be followed
                transaction.supersede(each)
        transaction.set_names(names.items())
        transaction.after_commit(partial(places.rename, access.directory, renamed))
        transaction.commit()
    for old, new in renamed.items():
        yield Done(old.removesuffix("/"), State.MISSING, (f"it was renamed to {new.removesuffix('/')}",), Action.FOLLOW)


def _follow_segments(access: Access, found: list[Moved]) -> Iterator[Done]:
    followed = list[Moved]()
    with access.transaction("fix") as transaction:
        sync_found(access.directory, [each.name for each in found])
        with access.current().index.snapshot() as snapshot:
            found = _without_stuck([each for each in found if _is_still_there(access, snapshot, each)])
            spans = {each.segment: segment_rows.interval_of(snapshot, each.segment) for each in found}
        sources = {each.segment.name for each in found}
        with contextlib.suppress(FileNotFoundError):  # one was moved on in the meantime
            for segment, name, there in found:
                if name not in sources:
                    moved = _at(access, segment, name, transaction.take_generation())
                    if there is not None:
                        transaction.supersede(there)
                    transaction.move(segment, moved, spans[segment])
                    followed.append(Moved(segment, name, there))
            exchanged = [each for each in found if each.name in sources]
            transaction.set_names((each.segment.name, each.name) for each in exchanged)
            followed += exchanged
        _forget_emptied(access, {each.segment.name for each in followed})
        transaction.commit()
    for segment, name, _ in followed:
        yield Done(segment.name, State.MISSING, (f"it was moved to {name}",), Action.FOLLOW)


def _forget_emptied(access: Access, names: set[str]) -> None:
    """Forget the places whose folder is gone, if these are all of their segments.

    Before the commit: after a crash, the next fix follows them all the same.
    """
    with access.current().index.snapshot() as snapshot:
        for place in {*map(place_of, names)} - {""}:
            is_empty = names.issuperset(each.name for each in segment_rows.in_place(snapshot, place))
            if is_empty and access.directory.stat(place.rstrip("/")) is None:
                places.forget(access.directory, place)


def _is_still_there(access: Access, snapshot: Snapshot, each: Moved) -> bool:
    """Return whether nobody has appended to one of both, or moved the file on, since it was found."""
    rows = snapshot.segment_named(each.segment.name), snapshot.segment_named(each.name)
    return rows == (each.segment, each.there) and _has_bytes(access, each.segment, each.name)


def _without_stuck(found: list[Moved]) -> list[Moved]:
    """Return what was moved, without what is at the name of a segment with data of which nobody knows where it is."""
    while True:
        sources = {each.segment.name for each in found}
        free = [each for each in found if each.there is None or each.there.copies is Copies.ALL or each.name in sources]
        if len(free) == len(found):
            return found
        found = free


def renamed_places(access: Access) -> Iterator[tuple[str, str]]:
    """Yield the places that somebody has renamed: the old name and the new one."""
    for old, each in places.places(access.directory).items():
        if each.renamed is not None:
            yield old, each.renamed


def _places_to_follow(access: Access, snapshot: Snapshot) -> tuple[dict[str, str], dict[str, str]]:
    """Return the places that get other names, old → new, and the segments that do.

    A place is not followed onto one of which the index has data already: that is a copy, to which part of its segments
    were moved. The segments of one that a killed fix has followed have their new names, but for the identities.
    """
    renamed, names = dict(renamed_places(access)), dict[str, str]()
    done = {old for old, new in renamed.items() if _is_followed(access, snapshot, old, new)}
    has_data = {name for name in {*renamed, *renamed.values()} if segment_rows.extent_of(snapshot, name)[0]}
    while taken := {old for old in has_data & renamed.keys() - done if renamed[old] in has_data - renamed.keys()}:
        renamed = {old: new for old, new in renamed.items() if old not in taken}
    for old in renamed.keys() - done:
        names |= {each.name: renamed[old] + inner_of(each.name) for each in segment_rows.in_place(snapshot, old)}
    return renamed, names


def _is_followed(access: Access, snapshot: Snapshot, old: str, new: str) -> bool:
    """Return whether the files in the place that has an old name now fit the rows there: it was followed, too."""
    if access.directory.stat(old.removesuffix("/")) is None:
        return False
    found = segment_rows.in_place(snapshot, old)
    before = sum(_has_bytes(access, each, each.name) for each in found)
    return before > sum(_has_bytes(access, each, new + inner_of(each.name)) for each in found)


def _has_bytes(access: Access, segment: Segment, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError, StorageError):
        return _seen(access, segment, name) in SAME_BYTES
    return False


def _seen(access: Access, segment: Segment, name: str) -> Seen | None:
    return seen_at(access.directory, name, access.committed(segment))


def moved_segments(access: Access) -> list[Moved]:
    """Return the segments whose file is at another name, as its facts show; no segment has data there.

    At their own name is nothing, or another file. Of several such names, the dataset's own or the first is taken, if a
    checksum shows that they are copies; the others become second copies.
    """
    directory = access.directory
    with access.current().index.snapshot() as snapshot:
        known = {each.name: each for each, *_ in segment_rows.all_segments(snapshot)}
        away = places.closed(directory)
        offline = {name for name, each in away.items() if each.is_offline}
        # One to which data were appended after it was found to be a copy counts for itself.
        copies = {
            name
            for name, each in known.items()
            if each.copies is Copies.ALL and not segment_rows.count_of(snapshot, each)
        }
        gone = [
            each
            for name, each in known.items()
            # One without rows, too: its data were deleted, and would come back from a file that nobody knows.
            if place_of(name) not in offline and each.copies is not Copies.ALL and _is_gone(access, each)
        ]
    if not gone:
        return []
    gone_names = {each.name for each in gone}
    unknown: dict[Interval | None, list[str]] = {}
    for name, _ in sorted(found_segments(directory, access.config), key=lambda each: in_order(each[0])):
        if name not in known or name in copies or name in gone_names:
            unknown.setdefault(interval_of(name, access.config.step), []).append(name)
    candidates = {
        each: [
            name
            for name in unknown.get(interval, ())
            # What has not the inode of a file that is away is a copy.
            if _is_moved(access, each, name)
            and (place_of(each.name) not in away or _seen(access, each, name) is Seen.UNTOUCHED)
        ]
        for each in gone
        if (interval := interval_of(each.name, access.config.step)) is not None
    }
    taken = [name for names in candidates.values() for name in names]
    found = [
        Moved(segment, names[0], known.get(names[0]))
        for segment, names in candidates.items()
        if names and (len(names) == 1 or segment.facts.checksum is not None) and taken.count(names[0]) == 1
    ]
    return _without_stuck(found)


def _is_gone(access: Access, segment: Segment) -> bool:
    """Return whether nothing is at the names of a segment, or a file that cannot be it: with another inode and tail."""
    directory, committed = access.directory, access.committed(segment)
    with contextlib.suppress(FileNotFoundError, StorageError, InvalidInput):  # a row may have been edited
        if directory.stat(hidden(segment.name, segment.id)) is not None:
            return False
        found = directory.stat(segment.name)
        if found is None or (not is_dir(segment.format) and committed.may_be(found)):
            return found is None
        return seen_at(directory, segment.name, committed) is Seen.OTHER
    return False


def _is_moved(access: Access, segment: Segment, name: str) -> bool:
    """Return whether the file at a name, of the same interval, is that of a segment."""
    if name.rpartition(".")[2] != segment.name.rpartition(".")[2]:
        return False
    if access.layout.is_shared(name) and access.layout.is_shared(segment.name):  # names are used again
        return False
    with contextlib.suppress(FileNotFoundError, StorageError):
        seen = _seen(access, segment, name)
        if seen is Seen.SAME_TAIL and not is_dir(segment.format):
            return access.committed(segment).is_whole_in(access.directory.open_to_read(name)) is not False
        return seen in SAME_BYTES
    return False


def _at(access: Access, segment: Segment, name: str, generation: int) -> Segment:
    facts = segment.facts
    if not is_dir(segment.format):
        found = access.directory.open_to_read(name).stat()
        facts = facts_of(found, facts.tail, facts.checksum)
    return segment._replace(id=generation, name=name, facts=facts)
