"""Places of the archive that are away or offline: what a query, an append and maintenance do with their segments.

`ondisk.segments.places` says how a place that is away is recognised. The index knows all data in it, so whatever needs
no data is answered in full: counts, summaries, metadata. If it was lost while the place was away, it knows them only
after a fix has read the place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ondisk.config import DatasetConfig
from ondisk.dataset.auxiliary_files import SENTINEL
from ondisk.errors import DataOffline, NeedsCheck, SegmentMissing, command
from ondisk.filesystem import Directory
from ondisk.index import Snapshot, segment_rows
from ondisk.segments.places import Place, check_readable, home, named, outside, place, places, write
from ondisk.step import ARCHIVE, LAST, Interval, place_of

if TYPE_CHECKING:
    from ondisk.dataset.access import Access


def maintained(config: DatasetConfig) -> list[str]:
    """Return the places in which segments are rewritten and deleted by age; "" for the dataset's own folders."""
    return ["", LAST, *(f"{ARCHIVE}/{name}/" for name in config.maintain_archives)]


def away_in(snapshot: Snapshot) -> Iterator[Place]:
    """Yield the places with segments that are away or offline. Cost: look-ups, and two small files for each."""
    for name in segment_rows.places(snapshot):
        if _is_away(snapshot, found := place(snapshot.index.directory, name)):
            yield found


def _is_away(snapshot: Snapshot, found: Place) -> bool:
    """Return whether a place that the index knows is away."""
    if found.why_away is None:
        return False
    # A folder of second copies has no identity of its own, and is no place: nothing is away if it goes.
    has_identity = snapshot.index.directory.stat(outside(found.name)) is not None
    return has_identity or segment_rows.extent_of(snapshot, found.name)[0] > 0


def unknown_in(snapshot: Snapshot) -> list[Place]:
    """Return the places that may have data which the index has lost: they were away when a fix made it again.

    They may be back, and the index may know some data in them.

    Call it before anything is read from the snapshot, which it may let begin again with the newest state.
    """
    return _confirmed(snapshot, _unknown_to)


def _unknown_to(snapshot: Snapshot) -> Iterator[Place]:
    return (each for each in places(snapshot.index.directory).values() if _is_unknown(snapshot, each))


def _is_unknown(snapshot: Snapshot, found: Place) -> bool:
    since = 0 if found.identity is None else found.identity.known_since
    if since == 0 or since <= snapshot.dataset()["generation"]:
        return False
    # If the index is lost, or the sentinel exists, every command says so: a place that is there needs no other warning.
    is_told = snapshot.index.missing or snapshot.index.directory.inode(SENTINEL) is not None
    return found.why_away is not None or not is_told


def _missed_by(snapshot: Snapshot) -> Iterator[Place]:
    """Yield what `away_in` and `_unknown_to` yield; their files are read once."""
    directory, known = snapshot.index.directory, {*segment_rows.places(snapshot)}
    for name in sorted(known | named(directory)):
        found = place(directory, name)
        if _is_unknown(snapshot, found) or (name in known and _is_away(snapshot, found)):
            yield found


def unread_places(access: Access) -> list[str]:
    """Return the places that are back, and must be read."""
    return [each.name for each in places(access.directory).values() if each.is_unread and each.why_away is None]


def note_read(access: Access, names: Iterable[str]) -> None:
    """Note that places were read."""
    with access.transaction("fix") as transaction:
        since = transaction.take_generation()
        transaction.commit()
        for found in (place(access.directory, name) for name in names):
            if found.identity is not None and found.why_away is None:
                write(access.directory, found.name, found.identity._replace(known_since=since), only_outside=True)


def _confirmed(snapshot: Snapshot, find: Callable[[Snapshot], Iterable[Place]]) -> list[Place]:
    """Return what is found in the newest state, too: the folders may be of a newer one than the snapshot.

    They are looked at again, as a move may have emptied them before the newest state: that changes the identity first.
    """
    if not (names := {each.name for each in find(snapshot)}):
        return []
    snapshot.renew()
    return [each for each in find(snapshot) if each.name in names]


def away_segments(access: Access) -> dict[int, str]:
    """Return the ids of the segments that are away, but not offline on purpose; each with the reason."""
    found: dict[int, str] = {}
    with access.current().index.snapshot() as snapshot:
        for each in away_in(snapshot):
            if not each.is_offline and each.renamed is None:
                error = missing(access.directory, each)
                reason = f"the dataset has a datum with these unique values, but {error.message}. {error.hint}"
                found |= {segment.id: reason for segment in segment_rows.in_place(snapshot, each.name)}
    return found


def check_complete(access: Access, snapshot: Snapshot) -> None:
    """Raise NeedsCheck if the index may not know all data: it was lost, perhaps while a place was away."""
    for found in check_complete_but_offline(access, snapshot):
        raise _needs_check(access.directory, found)


def check_complete_but_offline(access: Access, snapshot: Snapshot) -> list[Place]:
    """Raise NeedsCheck unless the index knows all data but those of places that are offline; return these places."""
    access.check_trusted()
    unknown = [*unknown_in(snapshot)]
    for found in unknown:
        if not found.is_offline:
            raise _needs_check(access.directory, found)
    return unknown


def check_there(snapshot: Snapshot, interval: Interval, *, complete: bool) -> list[str]:
    """Raise SegmentMissing if a place with data of an interval is away; return those offline, unless `complete`."""
    found = _confirmed(snapshot, _missed_by)
    return _checked(snapshot, interval, found, complete=complete)


def check_past_damage(snapshot: Snapshot, interval: Interval, *, complete: bool) -> list[str]:
    """Do the same for a caller that skips data which cannot be read, and names each: those that are away are such."""
    unknown = unknown_in(snapshot)
    offline = (each for each in away_in(snapshot) if each.is_offline)
    return _checked(snapshot, interval, (*offline, *unknown), complete=complete)


def check_known(snapshot: Snapshot, interval: Interval, *, complete: bool) -> None:
    """Raise SegmentMissing if a place that is away may have data of an interval that the index does not know."""
    _checked(snapshot, interval, unknown_in(snapshot), complete=complete)


def _checked(snapshot: Snapshot, interval: Interval, found: Iterable[Place], *, complete: bool) -> list[str]:
    return _left_out(snapshot, (each for each in found if _meets(snapshot, each, interval)), complete=complete)


def check_data(snapshot: Snapshot, sql: str, values: Sequence[Any], *, complete: bool) -> list[str]:
    """Raise SegmentMissing if data of a condition are in a place that is away; return the places to leave out.

    Data that the index does not know, since it was lost, are not looked for: when they are found, they get new numbers.
    Cost: that of `away_in`, and a look at the data of the condition for each place that it yields.
    """
    found = (each for each in away_in(snapshot) if segment_rows.has_data(snapshot, each.name, sql, values))
    return _left_out(snapshot, found, complete=complete)


def _left_out(snapshot: Snapshot, needed: Iterable[Place], *, complete: bool) -> list[str]:
    """Raise or warn of places whose data are needed; return those that are left out."""
    left_out = []
    for found in needed:
        if found.renamed is not None and not found.is_unread:
            continue
        if complete or not found.is_offline:
            raise missing(snapshot.index.directory, found)
        left_out.append(found.name)
        path = snapshot.index.directory.path
        warnings.warn(f"{path}: {found.name} is offline; its data were left out", DataOffline, stacklevel=4)
    return left_out


def _meets(snapshot: Snapshot, found: Place, interval: Interval) -> bool:
    """Return whether a place has data of an interval, as the index says, or else its identity."""
    is_known = segment_rows.meets(snapshot, found.name, interval)
    if is_known or found.identity is None or not found.is_unread:
        return is_known
    return not (interval & Interval(found.identity.begin, found.identity.end)).is_empty


def check_not_away(access: Access, *names: str) -> None:
    """Raise SegmentMissing if one of these segments is in a place that is away or offline."""
    for each in {*map(place_of, names)} - {""}:
        found = place(access.directory, each)
        if found.identity is not None and found.why_away is not None:
            raise missing(access.directory, found)
    with access.current().index.snapshot() as snapshot:
        for found in away_in(snapshot):
            if found.name in map(place_of, names):
                raise missing(access.directory, found)


def missing(directory: Directory, found: Place) -> SegmentMissing:
    """Return the error for work that needs a place that is away; raise StorageError if this user may not read it."""
    check_readable(directory, found.name)
    name = found.name.split("/")[1]
    if found.renamed is not None:
        hint = f"{command('fix', directory.path, '--yes')} follows it."
    elif found.why_away is None:
        return SegmentMissing(_unknown(directory, found))
    elif (there := home(directory, found)) is not None and there != found.name:
        hint = f"{there.rstrip('/')} is it, or a copy: mount its disk here, or move that folder here."
    elif found.is_offline:
        hint = f"Mount its disk, then run {command('archive', directory.path, '--online', name, '--yes')}."
    else:
        forget = command("fix", directory.path, "--forget", name, "--yes")
        hint = f"Mount its disk. If it is gone for good, {forget} counts its data as lost."
    return SegmentMissing(f"{directory.path / found.name} is away: {found.why_away}", hint=hint)


def doubts(snapshot: Snapshot, *, offline: bool) -> Iterator[str]:
    """Yield why answers may lack data: a place has data that the index has lost; or it is offline."""
    path = snapshot.index.directory.path
    for found in unknown_in(snapshot):
        yield _unknown(snapshot.index.directory, found)
    for found in away_in(snapshot):
        if offline and found.is_offline:
            yield f"{path}: {found.name} is offline; its data were left out"


def _needs_check(directory: Directory, found: Place) -> NeedsCheck:
    fix = f"{command('fix', directory.path, '--yes')} then reads its data."
    hint = " ".join(filter(None, (missing(directory, found).hint, found.why_away and fix)))
    return NeedsCheck(_unknown(directory, found), hint=hint)


def _unknown(directory: Directory, found: Place) -> str:
    why = found.why_away or f"{command('fix', directory.path, '--yes')} reads them"
    return f"{directory.path}: data in {found.name} may not be in the index: {why}"
