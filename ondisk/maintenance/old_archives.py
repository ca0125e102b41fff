"""Archives as they were until revision 5 of the index: each was a dataset in `.archive/NAME/`, with its own index.

The dataset's index recorded each of them: its UUID, name, interval, counters and count. A migration takes those over
that a query read; see `ondisk.maintenance.migrate`. The UUID of each that was taken over is in the table `former`.

    .archive/NAME/index.sqlite    there until the archive was taken over, then index.sqlite.before-REVISION
    .archive/NAME.summary         stood for an archive that was offline

What a migration cannot take over keeps its record in `.archive/NAME.place`, with the UUID as its id.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from ondisk.dataset.auxiliary_files import CONFIG, SENTINEL
from ondisk.errors import InvalidInput, StateError, command
from ondisk.filesystem import Directory
from ondisk.index import INDEX
from ondisk.index.connection import NEXT
from ondisk.index.tide import State, Tide
from ondisk.json_values import parse_time
from ondisk.segments import places
from ondisk.segments.generations import REPLACED, left_behind, parents
from ondisk.segments.places import UNREAD, Identity
from ondisk.step import ARCHIVE, LAST, Interval

SUMMARY = ".summary"
_LONGEST = 16 * 1024 * 1024  # bytes of a summary


class Fault(StrEnum):
    """Why a query does not read an archive that is there."""

    FOREIGN = "another archive with its name is missing"
    OLDER = "it is an older state of the archive that the dataset knows"
    COPY = "it is a copy of another archive, or of the dataset"
    TWIN = "it and another one have, or had, the same UUID: one is a copy of the other"
    ORDINARY = "it is of an ordinary dataset, and this is a replica"


class Known(NamedTuple):
    """What the dataset has recorded of an archive; `interval` is None if it had no segments."""

    uuid: str
    name: str
    interval: Interval | None
    seq: int
    generation: int
    count: int  # type: ignore[assignment]  # not the method of tuples


class Summary(NamedTuple):
    """The count of an archive that is offline, and the interval of its data."""

    count: int  # type: ignore[assignment]  # not the method of tuples
    interval: Interval


def folder(name: str) -> str:
    """Return the folder of an archive."""
    return f"{ARCHIVE}/{name}"


@contextlib.contextmanager
def opened(directory: Directory) -> Iterator[dict[str, Directory]]:
    """Open the folders in `.archive/` that have an index or a configuration of their own; yield them by name."""
    with contextlib.ExitStack() as stack:
        found = {}
        entries = directory.entries(ARCHIVE) if directory.inode(ARCHIVE) is not None else []
        for entry in entries:
            if entry.kind == "directory" and not entry.name.startswith("."):
                place = folder(entry.name)
                if any(directory.regular_file(f"{place}/{name}") is not None for name in (INDEX, CONFIG)):
                    found[entry.name] = stack.enter_context(directory.inside(place))
        yield found


def recorded_in(connection: sqlite3.Connection) -> list[Known]:
    """Return the archives that a dataset's index of an older revision has recorded."""
    if connection.execute("SELECT version_num < '0004' FROM alembic_version").fetchone()[0]:
        return []
    columns = 'uuid, name, "begin", "end", seq, generation, "count"'
    rows = connection.execute(f"SELECT {columns} FROM archive WHERE name != ''")
    return [
        Known(uuid, name, None if begin is None else Interval(begin, end), *numbers)
        for uuid, name, begin, end, *numbers in rows
    ]


def left_in(directory: Directory) -> list[Known]:
    """Return the archives that a migration could not take over: their places are away."""
    found = []
    for name, each in places.places(directory).items():
        identity = each.identity
        if identity is not None and identity.id and not each.is_ours:
            interval = Interval(identity.begin, identity.end)
            found.append(Known(identity.id, name.split("/")[1], interval, 0, identity.generation, identity.count))
    return found


def deleted_from(connection: sqlite3.Connection, name: str, state: State) -> set[int]:
    """Return the numbers of the data that the dataset has deleted from an archive, which may not have carried it out.

    Args:
        connection: reads the dataset's index, of any revision.
        state: of the archive's index; its `seq` is as high as that of the last deletion that it has carried out.
    """
    uuid, seq, _ = state
    is_last = f"{folder(name)}/" == LAST
    ((revision,),) = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if revision < "0004":
        sql = "SELECT datum FROM deletion WHERE seq > ? AND ?"
        return {datum for (datum,) in connection.execute(sql, (seq, is_last))}
    if revision >= "0006":  # places have no deletions of their own
        return set()
    sql = (
        "SELECT datum FROM archived_deletion CROSS JOIN deletion ON deletion.seq BETWEEN max(first, ?1 + 1) AND last"
        " WHERE (archive = ?2 OR (archive = '' AND ?3)) AND last > ?1"  # '': `last`, in an index of revision 3
    )
    return {datum for (datum,) in connection.execute(sql, (seq, uuid, is_last))}


def present_among(archive: sqlite3.Connection, numbers: Collection[int]) -> bool:
    """Return whether an archive has data with some numbers."""
    sql = "SELECT 1 FROM datum WHERE seq IN (SELECT value FROM json_each(?)) LIMIT 1"
    return archive.execute(sql, (json.dumps([*numbers]),)).fetchone() is not None


def in_both(main: sqlite3.Connection, archive: sqlite3.Connection) -> bool:
    """Return whether a dataset and an archive both have a datum, because a move was interrupted."""
    names = {name for (name,) in main.execute("SELECT name FROM segment")}
    for name in sorted(names & {name for (name,) in archive.execute("SELECT name FROM segment")}):
        one, other = (_data_of(each, name) for each in (main, archive))
        if one & other:
            return True
    return False


def _data_of(index: sqlite3.Connection, segment: str) -> set[tuple[int, int]]:
    sql = (
        "SELECT seq, reftime FROM segment JOIN datum ON datum.segment = segment.id"
        ' AND reftime >= "begin" AND reftime < "end" WHERE name = ?'
    )
    return {*index.execute(sql, (segment,))}


def identified(
    states: Mapping[str, State], known: Iterable[Known], former: Mapping[str, Collection[str]]
) -> dict[str, State]:
    """Return the states of archives with the UUIDs that the dataset knows: those from before an index was rebuilt."""
    uuids = {each.uuid for each in known}
    missing = uuids.difference(uuid for uuid, *_ in states.values())
    return {
        name: state
        if state[0] in uuids
        else (next((one for one in former[name] if one in missing), state[0]), *state[1:])
        for name, state in states.items()
    }


def faults(
    known: Iterable[Known], present: Mapping[str, State], main: State, former: Mapping[str, Collection[str]]
) -> dict[str, Fault]:
    """Return the archives that a query does not read: name → why.

    Args:
        present: name → the state of the index of each archive that is there.
        former: name → the UUIDs that the index of the archive had before; "" for the dataset itself.
    """
    by_uuid = {each.uuid: each for each in known}
    states = {"": main, **present}
    names: dict[str, list[str]] = {}
    for name, (uuid, *_) in states.items():
        names.setdefault(uuid, []).append(name)
    found: dict[str, Fault] = {}
    for uuid, twins in names.items():
        record = by_uuid.get(uuid)
        recorded = "" if uuid == main[0] else record and record.name
        own = recorded if recorded in twins else twins[0]
        others = [name for name in twins if name != own]
        if others and (own != recorded or any(_is_behind(states[own], states[name]) for name in others)):
            found |= dict.fromkeys(twins, Fault.TWIN)
            continue
        found |= dict.fromkeys(others, Fault.COPY)
        if record is None:
            missing = (each for each in by_uuid.values() if each.name == own and each.uuid not in names)
            if any(each.interval is not None for each in missing):
                found[own] = Fault.FOREIGN
        elif _is_behind(states[own], (uuid, record.seq, record.generation)):
            found[own] = Fault.OLDER
    for copy, (uuid, *_) in present.items():
        recorded = by_uuid[uuid].name if uuid in by_uuid else None
        for original, uuids in former.items():
            if original != copy and original in states and uuid in uuids:
                is_known = original in ("", recorded) or states[original][0] in by_uuid
                if original and recorded == copy:
                    found |= {} if is_known else {original: Fault.COPY}
                else:
                    found |= {copy: Fault.COPY} if is_known else dict.fromkeys((original, copy), Fault.TWIN)
    found.pop("", None)
    return found


def _is_behind(own: State, other: State) -> bool:
    """Return whether an index lacks changes that another one with its UUID has."""
    return own[1] < other[1] or own[2] < other[2]


def away(known: Iterable[Known], uuids: Collection[str], offline: Mapping[str, Summary]) -> list[Known]:
    """Return the archives that the dataset knows and that are neither there nor offline.

    Args:
        offline: the archives of which only a summary is there, by name: the name of the archive, or another one if the
            interval of its data is in that of the archive.
    """
    names = {each.name for each in known}
    others = [each.interval for name, each in offline.items() if name not in names]
    return [
        each
        for each in known
        if (mine := each.interval) is not None and each.uuid not in uuids and each.name not in offline
        if not any(mine.begin <= other.begin and other.end <= mine.end for other in others)
    ]


def summaries(directory: Directory) -> dict[str, Summary]:
    """Return the summaries of the archives that are offline, by name.

    Raises:
        InvalidInput: one of them cannot be read.
    """
    if directory.inode(ARCHIVE) is None:
        return {}
    entries = {entry.name: entry.kind for entry in directory.entries(ARCHIVE)}
    names = [name.removesuffix(SUMMARY) for name in entries if name.endswith(SUMMARY)]
    return {name: _summary(directory, name) for name in names if name and entries.get(name) != "directory"}


def _summary(directory: Directory, name: str) -> Summary:
    path = f"{folder(name)}{SUMMARY}"
    try:
        read = json.loads(directory.read(path, _LONGEST))
        begin, end = (parse_time(read[key]) if read[key] is not None else 0 for key in ("begin", "end"))
        return Summary(int(read["count"]), Interval(begin, end + 1) if read["begin"] is not None else Interval(0, 0))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        full = directory.path / path
        hint = "Write it again with the version of ondisk that has written the archive, or mount the archive."
        raise InvalidInput(f"{full} is not a summary: {error}", hint=hint) from None


def check_trusted(directory: Directory, state: State | None) -> None:
    """Raise unless the index of a dataset or archive knows all data.

    Raises:
        StateError: it does not.
    """
    why = None
    if state is None:
        why = f"its {INDEX} is lost"
    elif directory.regular_file(CONFIG) is None:
        why = f"it has no {CONFIG}"
    elif directory.inode(SENTINEL) is not None:
        why = "its index was lost, and may not know all data"
    elif Tide(directory).exchanged(lambda: state) is not None:
        why = "its index was exchanged for an older one, or for another one"
    if why is not None:
        raise refused(directory, "cannot be migrated", why, f"Run {command('fix', directory.path, '--yes')}")


def check_settled(archive: Directory, state: State) -> None:
    """Raise unless nothing in an archive waits for the version of ondisk that has written it.

    Raises:
        StateError: something does.
    """
    check_trusted(archive, state)
    why = _left_behind(archive)
    if why is not None:
        maintain = command("maintain", archive.path.parents[1])
        raise refused(archive, "cannot be migrated", why, f"End queries, then run {maintain}")


def refused(directory: Directory, what: str, why: str, remedy: str) -> StateError:
    """Return the error for a dataset or archive that needs its older version of ondisk once more."""
    hint = f"{remedy} of the version of ondisk that has written it, then migrate."
    return StateError(f"{directory.path} {what}: {why}; nothing was changed", hint=hint)


def _left_behind(archive: Directory) -> str | None:
    if archive.inode(NEXT) is not None:
        return f"{NEXT} waits to replace its index"
    for name, generations in left_behind(archive).items():
        return f"an interrupted change, or a query that runs, needs the generation {generations[0]} of {name}"
    for parent in parents(archive):
        if archive.names(f"{parent}/{REPLACED}" if parent else REPLACED):
            return f"{parent}/{REPLACED} contains segments that `keep_replaced` keeps"
    return None


def identity_of(record: Known | None, summary: Summary | None) -> Identity:
    """Return what remains known of an archive that is not taken over; with a summary its place is offline."""
    uuid, generation = ("", 0) if record is None else (record.uuid, record.generation)
    known = record if summary is None else summary
    if known is None:
        return Identity(uuid, generation)
    since, is_offline = UNREAD if known.count else 0, summary is not None
    return Identity(uuid, generation, known.count, is_offline=is_offline, known_since=since).during(known.interval)
