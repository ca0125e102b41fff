"""The archives that a dataset knows, those that are away, and those in `.archive/` that must not be used.

The dataset's index records each archive: the UUID of the archive's index, its name, its interval, the last numbers that
its index has given out, and how many data it has. So a query does not silently return fewer data when an archive is
away, and an archive of another dataset, or an older state of an archive, does not pass as it.

An archive is not away if

- it had no segments;
- an archive with its UUID is in `.archive/`, under any name;
- an archive there had its UUID before its index was lost, rebuilt or exchanged;
- the index of the archive with its name was lost, and has not been fixed yet;
- the summary of an offline archive has its name, or is of a time in its interval.

An archive in `.archive/` is neither read nor written to if it has one of the faults of `Fault`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from ondisk.dataset.access import Access
from ondisk.dataset.layout import ARCHIVE
from ondisk.datum import from_microseconds
from ondisk.errors import OndiskError, StateError, command
from ondisk.index import Index, Snapshot, segment_rows
from ondisk.index.segment_rows import KnownArchive
from ondisk.index.tide import State
from ondisk.step import Interval


class Fault(Enum):
    """Why an archive is not used."""

    AWAY = auto()
    """It is not in `.archive/`."""
    FOREIGN = auto()
    """Another archive has the name of one that is away."""
    OLDER = auto()
    """Its index has given out lower numbers than are recorded: somebody put an older state of it back."""
    COPY = auto()
    """It is a copy of another archive, which is used, or of the dataset itself."""
    TWIN = auto()
    """It has the same UUID as another archive, and it is unclear which of the two is the copy."""
    ORDINARY = auto()
    """It is of an ordinary dataset, and was put into a replica: its numbers are not those of the source."""
    OFFLINE = auto()
    """Only a summary of it is in `.archive/`. Queries warn of it; a caller that cannot warn asks for this."""


class Unusable(NamedTuple):
    """An archive that is not used.

    Attributes:
        uuid: of its index.
        name: in `.archive/`; of one that is away, its last name.
        fault: why.
        interval: of the data that queries lack without it; None if they lack none.
        twin: the name of another one with its UUID; None for the dataset itself.
        last: no change in it has a higher number; None if that is unknown.
    """

    uuid: str
    name: str
    fault: Fault
    interval: Interval | None
    twin: str | None = None
    last: int | None = None


def faults(
    known: Iterable[KnownArchive],
    present: Mapping[str, State],
    main: State,
    is_untrusted: Callable[[str], bool],
    former: Mapping[str, Collection[str]],
) -> dict[str, Fault]:
    """Return the archives in `.archive/` that must not be used: name → why.

    Args:
        known: the archives that the dataset knows.
        present: name → the state of the index of each archive in `.archive/` that has one.
        main: the state of the dataset's own index.
        is_untrusted: whether an archive with a name is there whose index may have lost data; its own fix finds them.
        former: name → the UUIDs that the index of the archive had before; "" for the dataset itself.
    """
    by_uuid = {each.uuid: each for each in known}
    names: dict[str, list[str]] = {}
    for name, (uuid, *_) in present.items():
        names.setdefault(uuid, []).append(name)
    found: dict[str, Fault] = {}
    for uuid, twins in names.items():
        record = by_uuid.get(uuid)
        if uuid == main[0]:
            found |= {name: _twin(main, present[name]) for name in twins}
            continue
        if len(twins) > 1:
            own = record.name if record is not None and record.name in twins else None
            others = [name for name in twins if name != own]
            if own is None or any(_twin(present[own], present[name]) is Fault.TWIN for name in others):
                found |= dict.fromkeys(twins, Fault.TWIN)
                continue
            found |= dict.fromkeys(others, Fault.COPY)
            twins = [own]
        (name,) = twins
        if record is not None:
            _, seq, generation = present[name]
            if record.name not in present and is_untrusted(record.name):  # the index of the original was lost
                found[name] = Fault.COPY
            elif (seq < record.seq or generation < record.generation) and not is_untrusted(name):
                found[name] = Fault.OLDER
        else:
            expected = {each.uuid for each in by_uuid.values() if each.name == name and each.interval is not None}
            if not expected.issubset(names) and not is_untrusted(name):
                found[name] = Fault.FOREIGN
    for original, copy in _former_copies(present, former):
        if not original:
            found[copy] = Fault.COPY
            continue
        record, is_known = by_uuid.get(present[copy][0]), present[original][0] in by_uuid
        is_recorded = record is not None and record.name == copy
        if is_known and is_recorded:
            continue
        if is_known or (record is not None and record.name == original):
            found[copy] = Fault.COPY
        else:
            found |= {original: Fault.COPY} if is_recorded else dict.fromkeys((original, copy), Fault.TWIN)
    return found


def _former_copies(present: Mapping[str, State], former: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of archives with one UUID: the name of one that had it before, and of one that has it now."""
    for name, (uuid, *_) in present.items():
        for other, uuids in former.items():
            if other != name and uuid in uuids and (other in present or not other):
                yield other, name


def original_of(
    name: str, present: Mapping[str, State], former: Mapping[str, Collection[str]], record: KnownArchive | None
) -> str | None:
    """Return the name of the archive that one is a copy of, or that is a copy of it; None for the dataset itself."""
    uuid = present[name][0]
    for other, (theirs, *_) in present.items():
        if other != name and (theirs == uuid or uuid in former[other] or theirs in former[name]):
            return other
    return record.name if record is not None and record.name != name else None


def _twin(own: State, other: State) -> Fault:
    """Return what another index with the same UUID is: a copy, unless it has changes that this one lacks."""
    return Fault.COPY if other[1] <= own[1] and other[2] <= own[2] else Fault.TWIN


def away(
    known: Iterable[KnownArchive],
    uuids: Collection[str],
    untrusted: Collection[str],
    offline: Collection[str],
    spans: Callable[[], Collection[Interval]],
) -> list[KnownArchive]:
    """Return the archives that the dataset knows and that are away.

    Args:
        known: the archives that the dataset knows.
        uuids: of the archives in `.archive/`.
        untrusted: names of the archives there whose index was lost.
        offline: names of the archives that have only a summary there.
        spans: returns the times of the offline archives whose names are not known; called only if it matters.
    """
    here = {*untrusted, *offline}
    missing = [each for each in known if each.interval is not None and each.uuid not in uuids and each.name not in here]
    if not missing:
        return missing
    others = spans()
    return [each for each in missing if not any(_covers(each, span) for span in others)]


def _covers(known: KnownArchive, span: Interval) -> bool:
    """Return whether data of a time may be those of an archive."""
    mine = known.interval
    return mine is not None and mine.begin <= span.begin and span.end <= mine.end


def touching(unusable: Iterable[Unusable], interval: Interval) -> Iterator[Unusable]:
    """Yield the archives that may have data of an interval."""
    for each in unusable:
        if each.interval is not None and not (each.interval & interval).is_empty:
            yield each


def described(archive: Access, before: Mapping[str, KnownArchive] | None = None) -> KnownArchive:
    """Return what the dataset records of an archive.

    Args:
        before: UUID → what is recorded. Its data are counted only if something else is new; None to count none.
    """
    with archive.current().index.snapshot() as snapshot:
        uuid, seq, generation = _state_in(snapshot)
        found = KnownArchive(uuid, archive.path.name, segment_rows.span(snapshot), seq, generation)
        if before is None:
            return found
        old = before.get(uuid)
        if old is not None and found._replace(name=old.name, count=old.count) == old:
            return found._replace(count=old.count)
        return found._replace(count=segment_rows.count_all(snapshot))


def states_of(indices: Mapping[str, Index]) -> dict[str, State]:
    """Return name → the state of each index that is there, and can be read."""
    states = {}
    for name, index in indices.items():
        with contextlib.suppress(OndiskError):
            states[name] = state_of(index)
    return {name: state for name, state in states.items() if state[0]}


def identified(
    states: Mapping[str, State], known: Iterable[KnownArchive], former: Callable[[str], Iterable[str]]
) -> dict[str, State]:
    """Return the states of archives with the UUIDs that the dataset knows: those from before an index was rebuilt.

    Args:
        former: returns the UUIDs that the index of the archive with a name had before.
    """
    uuids = {each.uuid for each in known}
    missing = uuids.difference(uuid for uuid, *_ in states.values())
    found = dict(states)
    if missing:
        for name, (uuid, seq, generation) in states.items():
            if uuid not in uuids:
                found[name] = next((each for each in former(name) if each in missing), uuid), seq, generation
    return found


def former_uuids(index: Index) -> list[str]:
    """Return the UUIDs that an index had before it was lost, rebuilt or exchanged."""
    with index.snapshot() as snapshot:
        return segment_rows.former_uuids(snapshot)


def state_of(index: Index) -> State:
    """Return the state of an index; without UUID if it is lost."""
    with index.snapshot() as snapshot:
        return _state_in(snapshot)


def _state_in(snapshot: Snapshot) -> State:
    state = snapshot.dataset()
    return state["uuid"] or "", state["seq"], state["generation"]


def hull(one: Interval | None, other: Interval | None) -> Interval | None:
    """Return the shortest interval that contains both; None for no interval."""
    if one is None or other is None:
        return one or other
    return Interval(min(one.begin, other.begin), max(one.end, other.end))


def problem(unusable: Unusable, dataset: Path) -> StateError:
    """Return the error for work that needs an archive that is not used.

    Args:
        dataset: the path of the dataset.
    """
    folder = dataset / ARCHIVE
    path = folder / unusable.name
    forget = command("fix", dataset, "--forget-archive", unusable.name, "--yes")
    span = span_of(unusable)
    other = dataset if unusable.twin is None else folder / unusable.twin
    match unusable.fault:
        case Fault.COPY:
            hint = f"Move it out of {folder}. It is not used."
            return StateError(f"the archive {path} is a copy of {other}", hint=hint)
        case Fault.TWIN:
            hint = f"Move the one that has fewer data out of {folder}. Until then neither is used."
            message = f"the archive {path}{span} and {other} have, or had, the same UUID: one is a copy of the other"
            return StateError(message, hint=hint)
        case Fault.OLDER:
            hint = (
                f"Put the newer state back; or, if it is gone for good, use this one, and count what is lost: {forget}."
            )
            return StateError(f"the archive {path}{span} is missing: an older state of it is in its place", hint=hint)
        case Fault.ORDINARY:
            hint = f"Move it out of {folder}, and append its data to the source."
            message = f"the archive {path}{span} is of an ordinary dataset, and {dataset} is a replica"
            return StateError(f"{message}: the numbers in it are not those of the source", hint=hint)
        case Fault.OFFLINE:
            hint = "Mount its disk, or move it back."
            return StateError(f"the archive {path}{span} is offline: only its summary is there", hint=hint)
    nowhere = f"it is not in {folder}, under this name or another"
    where = nowhere if unusable.fault is Fault.AWAY else "another archive is in its place"
    hint = f"Mount its disk, or move it back; or write its summary to {path}.summary; or, if it is gone for good:"
    hint += f" {forget}."
    return StateError(f"the archive {path}{span} is missing: {where}", hint=hint)


def span_of(unusable: Unusable) -> str:
    """Return the words for the times of the data that an archive has; empty if it has none."""
    interval = unusable.interval
    return "" if interval is None else f" with data from {_day(interval.begin)} to {_day(interval.end)}"


def _day(time: int) -> str:
    try:
        return f"{from_microseconds(time):%Y-%m-%d}"
    except OverflowError:  # a damaged index
        return str(time)
