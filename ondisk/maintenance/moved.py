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
from ondisk.errors import StorageError
from ondisk.formats import is_dir
from ondisk.index import Copies, Segment, Snapshot, segment_rows
from ondisk.maintenance.inspect import found_segments
from ondisk.maintenance.states import FOLLOW, Done, State
from ondisk.segments import places
from ondisk.segments.facts import SAME_BYTES, Seen, facts_of
from ondisk.segments.generations import hidden, seen_at
from ondisk.step import Interval, in_order, interval_of, place_of


class Moved(NamedTuple):
    """A segment whose file somebody has moved, and the name of the file now."""

    segment: Segment
    name: str


def recognised(access: Access) -> Iterator[Done]:
    """Give the segments that people have moved their new names in the index.

    Durability: one commit for all places that were renamed, and one for all single segments.
    Locks: the writers' lock, if something was moved.
    """
    renamed = dict[str, str]()
    if [*renamed_places(access)]:
        with access.transaction("fix") as transaction:
            renamed = dict(renamed_places(access))
            with access.current().index.snapshot() as snapshot:
                names = [pair for both in renamed.items() for pair in _renamed_segments(access, snapshot, *both)]
            transaction.set_names(names)
            transaction.after_commit(partial(places.rename, access.directory, renamed))
            transaction.commit()
    for old, new in renamed.items():
        yield Done(old.removesuffix("/"), State.MISSING, (f"it was renamed to {new.removesuffix('/')}",), FOLLOW)
    found, followed = [*moved_segments(access)], list[Moved]()
    if found:
        with access.transaction("fix") as transaction:
            with access.current().index.snapshot() as snapshot:
                known = {
                    each: snapshot.segment_named(each) for both in found for each in (both.segment.name, both.name)
                }
                spans = {each.segment: segment_rows.interval_of(snapshot, each.segment) for each in found}
            for segment, name in found:
                if known[segment.name] != segment:
                    continue
                with contextlib.suppress(FileNotFoundError):  # it was moved on in the meantime
                    there = _at(access, segment, name, transaction.take_generation())
                    if (copy := known[name]) is not None:
                        transaction.supersede(copy)
                    transaction.move(segment, there, spans[segment])
                    followed.append(Moved(segment, name))
            transaction.commit()
    for segment, name in followed:
        yield Done(segment.name, State.MISSING, (f"it was moved to {name}",), FOLLOW)


def renamed_places(access: Access) -> Iterator[tuple[str, str]]:
    """Yield the places that somebody has renamed: the old name and the new one."""
    for old, each in places.places(access.directory).items():
        if each.renamed is not None:
            yield old, each.renamed


def _renamed_segments(access: Access, snapshot: Snapshot, old: str, new: str) -> list[tuple[str, str]]:
    """Return the names, old and new, of the segments in a place that somebody has renamed.

    None if the files fit the old names better: another place has its name, so two were exchanged, and a fix was killed
    when it had followed, before it could say so in the identities.
    """
    found = segment_rows.in_place(snapshot, old)
    names = [(each.name, new + each.name.removeprefix(old)) for each in found]
    if access.directory.stat(old.removesuffix("/")) is None:
        return names
    before = sum(_has_bytes(access, each, name) for each, (name, _) in zip(found, names, strict=True))
    after = sum(_has_bytes(access, each, name) for each, (_, name) in zip(found, names, strict=True))
    return names if before <= after else []


def _has_bytes(access: Access, segment: Segment, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError, StorageError):
        return seen_at(access.directory, name, access.committed(segment)) in SAME_BYTES
    return False


def moved_segments(access: Access) -> list[Moved]:
    """Return the segments whose file is at another name, as its facts show; no segment has data there.

    At their own name is nothing, or another file. Of several such names, the dataset's own or the first is taken, if a
    checksum shows that they are copies; the others become second copies.
    """
    directory = access.directory
    with access.current().index.snapshot() as snapshot:
        known = {each.name: each for each, *_ in segment_rows.all_segments(snapshot)}
        away = places.closed(directory)
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
            if place_of(name) not in away and each.copies is not Copies.ALL and _is_gone(access, each)
        ]
    if not gone:
        return []
    unknown: dict[Interval | None, list[str]] = {}
    for name, _ in sorted(found_segments(directory, access.config), key=lambda each: in_order(each[0])):
        if name not in known or name in copies:
            unknown.setdefault(interval_of(name, access.config.step), []).append(name)
    candidates = {
        each: [name for name in unknown.get(interval, ()) if _is_moved(access, each, name)]
        for each in gone
        if (interval := interval_of(each.name, access.config.step)) is not None
    }
    taken = [name for names in candidates.values() for name in names]
    return [
        Moved(segment, names[0])
        for segment, names in candidates.items()
        if names and (len(names) == 1 or segment.facts.checksum is not None) and taken.count(names[0]) == 1
    ]


def _is_gone(access: Access, segment: Segment) -> bool:
    """Return whether nothing is at the names of a segment, or a file that cannot be it: with another inode and tail."""
    directory, committed = access.directory, access.committed(segment)
    with contextlib.suppress(FileNotFoundError, StorageError):
        if directory.stat(hidden(segment.name, segment.id)) is not None:
            return False
        found = directory.stat(segment.name)
        if found is None or is_dir(segment.format) or committed.may_be(found):
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
        committed = access.committed(segment)
        seen = seen_at(access.directory, name, committed)
        if seen is Seen.SAME_TAIL and not is_dir(segment.format):
            return committed.is_whole_in(access.directory.open_to_read(name)) is not False
        return seen in SAME_BYTES
    return False


def _at(access: Access, segment: Segment, name: str, generation: int) -> Segment:
    facts = segment.facts
    if not is_dir(segment.format):
        found = access.directory.open_to_read(name).stat()
        facts = facts_of(found, facts.tail, facts.checksum)
    return segment._replace(id=generation, name=name, facts=facts)
