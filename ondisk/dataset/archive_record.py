"""The record of its archives in a dataset's index, compared with the archives that are there.

An archive that the dataset knows may be away, offline, or have a fault, see `ondisk.dataset.known_archives`: such an
archive is not used, and work that needs its data is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

from ondisk.dataset.access import Access
from ondisk.dataset.known_archives import (
    Fault,
    Unusable,
    away,
    described,
    former_uuids,
    hull,
    identified,
    original_of,
    problem,
    span_of,
    state_of,
    states_of,
    touching,
)
from ondisk.dataset.known_archives import faults as faulty
from ondisk.dataset.layout import ARCHIVE, LAST, read_config
from ondisk.datum import microseconds
from ondisk.errors import NotFound, OndiskError, StateError
from ondisk.index import Index, Snapshot, segment_rows
from ondisk.index.segment_rows import KnownArchive
from ondisk.index.tide import State
from ondisk.step import Interval

if TYPE_CHECKING:
    from ondisk.dataset.archives import Archives
    from ondisk.dataset.summaries import Summary


class ArchiveRecord:
    """What a dataset knows of its archives."""

    def __init__(self, main: Access, archives: Archives) -> None:
        self._main = main
        self._archives = archives
        self._accepted: dict[str, Index] = {}
        self._judged: dict[str, Index] = {}  # by name: the indices whose faults are known
        self._faulty: dict[str, Fault] = {}

    def faults(self, present: Mapping[str, Access]) -> dict[str, Fault]:
        """Return the faults of archives.

        Cost: a stat of each if no index was replaced since the last call and none had a fault; else a snapshot of each.
        """
        indices = {}
        for name, archive in present.items():
            with contextlib.suppress(OndiskError):  # who reads it raises this error
                indices[name] = archive.current().index
        if indices and (self._faulty or indices != self._judged):
            known = self.all()
            # An archive with the index of another one is not a copy of that one: its own fix rebuilds the index.
            own = {name: index for name, index in indices.items() if not present[name].has_foreign_index()}
            states = self._identified(states_of(own), known, present)
            main = state_of(self._main.current().index)
            former = {"": former_uuids(self._main.current().index), **_former(own)}
            found = faulty(known, states, main, partial(_is_untrusted, present), former)
            if self._follows_a_source():
                found = {each: Fault.ORDINARY for each in states if not _is_replica(present[each])} | found
            self._faulty = {
                name: fault
                for name, fault in found.items()
                if fault is not Fault.FOREIGN or self._accepted.get(name) is not indices[name]
            }
        self._judged = indices
        return self._faulty

    def _follows_a_source(self) -> bool:
        """Return whether this is a replica, and no promotion of it has begun."""
        if not self._main.config.replica:
            return False
        from ondisk.index import replica

        with self._main.current().index.snapshot() as snapshot:
            return replica.followed(snapshot) is not None

    def _identified(
        self, states: Mapping[str, State], known: list[KnownArchive], present: Mapping[str, Access]
    ) -> dict[str, State]:
        return identified(states, known, lambda name: former_uuids(present[name].current().index))

    def all(self, main: Snapshot | None = None) -> list[KnownArchive]:
        """Return the archives that the dataset knows.

        Args:
            main: a snapshot of the dataset's index; None for the present.
        """
        if main is not None:
            return segment_rows.known_archives(main)
        with self._main.current().index.snapshot() as snapshot:
            return segment_rows.known_archives(snapshot)

    def unusable(self, main: Snapshot | None = None) -> list[Unusable]:
        """Return the archives that are not used: those that the dataset knows and are away, and those with a fault.

        Args:
            main: as for `known`.
        """
        known, present = self.all(main), self._archives.present()
        found = self.faults(present)
        if not known and not found:
            return []
        states = {name: state_of(archive.current().index) for name, archive in present.items()}
        states = self._identified(states, known, present)
        records = {each.uuid: each for each in known}
        former = _former({name: present[name].current().index for name in states}) if found else {}
        unusable = []
        for name, fault in found.items():
            uuid = states[name][0]
            if fault is not Fault.FOREIGN:  # the one whose name it has is away
                record = records.get(uuid)
                twin = original_of(name, states, former, record)
                before = None if record is None else record.interval
                interval = None if fault is Fault.COPY else hull(described(present[name]).interval, before)
                last = record.seq if record is not None and fault is Fault.OLDER else None
                unusable.append(Unusable(uuid, name, fault, interval, twin, last))
        for each in self._away(known, present, {uuid for uuid, *_ in states.values()}):
            fault = Fault.FOREIGN if each.name in present else Fault.AWAY
            unusable.append(Unusable(each.uuid, each.name, fault, each.interval, last=each.seq))
        return unusable

    def missing(self) -> list[Unusable]:
        """Return the archives that the dataset knows and that are away, or not what it knows."""
        return [each for each in self.unusable() if each.fault not in (Fault.COPY, Fault.TWIN, Fault.ORDINARY)]

    def _away(self, known: list[KnownArchive], present: Mapping[str, Access], uuids: set[str]) -> list[KnownArchive]:
        def spans() -> list[Interval]:
            unknown = {*offline}.difference(each.name for each in known)
            return [span for each in self.summaries(unknown).values() if (span := _span(each)) is not None]

        untrusted = [name for name, archive in present.items() if archive.needs_check()]
        offline = self._archives.offline()
        return away(known, uuids, untrusted, offline, spans)

    def offline_data(self, main: Snapshot | None = None) -> list[Unusable]:
        """Return the archives that are offline, with the times of which they have data.

        These are the times of the summary, and those that the dataset knows of an archive without another trace.

        Args:
            main: as for `known`.

        Raises:
            InvalidInput: a summary cannot be read.
        """
        names = self._archives.offline()
        if not names:
            return []
        known, present = self.all(main), self._archives.present()
        states = {name: state_of(archive.current().index) for name, archive in present.items()}
        here = {uuid for uuid, *_ in self._identified(states, known, present).values()}
        here.update(each.uuid for each in self._away(known, present, here))
        gone = [each for each in known if each.uuid not in here]
        held = {each.name: Unusable(each.uuid, each.name, Fault.OFFLINE, each.interval) for each in gone}
        for name, summary in self.summaries(names).items():
            same = [each for each in gone if each.name == name]
            spans = [_span(summary), *(each.interval for each in same)]
            # An archive that is as it was when the dataset recorded it has no later data than that knew.
            is_same = [(each.count, each.seq) for each in same] == [(summary.count, summary.last_change)]
            last = summary.last_change if is_same else None
            held[name] = Unusable("", name, Fault.OFFLINE, reduce(hull, spans), last=last)
        return [*held.values()]

    def check_online(
        self, main: Snapshot, uuids: Collection[str], interval: Callable[[], Interval], after: int = 0
    ) -> bool:
        """Raise if an archive that may have data of an interval is not used, or is offline; see `check_complete`.

        Args:
            after: data with numbers up to this one are not needed.

        Returns:
            Whether the snapshots are of all archives that are there now: one may just have come back.

        Raises:
            StateError: it is so.
            InvalidInput: the summary of an archive that is offline cannot be read.
        """
        self.check_complete(main, uuids, interval, after)
        self.check_none_offline(interval(), main, after)
        states = states_of({each.path.name: each.current().index for each in self._archives.online()})
        return all(uuid in uuids for uuid, *_ in states.values())

    def check_none_offline(self, interval: Interval, main: Snapshot | None = None, after: int = 0) -> None:
        """Raise if an archive that may have data of an interval is offline.

        Raises:
            StateError, InvalidInput: as `check_online`.
        """
        self._check(self.offline_data(main), interval, after)

    def _check(self, unusable: Iterable[Unusable], interval: Interval, after: int) -> None:
        for each in touching(unusable, interval):
            if each.last is None or each.last > after:
                raise self.problem(each)

    def check_complete(
        self, main: Snapshot, uuids: Collection[str], interval: Callable[[], Interval], after: int = 0
    ) -> bool:
        """Raise if an archive that may have data of an interval is not used.

        Args:
            main: a snapshot of the dataset's index.
            uuids: of the archives that are used.
            interval: called only if an archive is not used.
            after: as in `check_online`.

        Returns:
            True: the snapshots are taken as they are.

        Raises:
            StateError: it is so.
        """
        is_short = any(fault is not Fault.COPY for fault in self._faulty.values())
        if is_short or any(each.uuid not in uuids for each in self.all(main)):
            self.check_present(interval(), main, after)
        return True

    def check_present(self, interval: Interval, main: Snapshot | None = None, after: int = 0) -> None:
        """Raise if an archive that may have data of an interval is not used.

        Raises:
            StateError: it is so.
        """
        self._check(self.unusable(main), interval, after)

    def problem(self, unusable: Unusable) -> StateError:
        """Return the error for work that needs an archive that is not used."""
        return problem(unusable, self._main.path)

    def why_not_archived(self) -> str | None:
        """Return why nothing can be archived: the archive that repack fills is not used. None if it can be."""
        return next((str(self.problem(each)) for each in self.unusable() if each.name == LAST), None)

    def update(self, *, recount: bool = False) -> int:
        """Record the archives that are used now in the dataset's index, if anything is new about them.

        Counts as lost the data that an archive had and lacks since its index was rebuilt: somebody may have rebuilt an
        older state of it, which has later numbers now.

        Args:
            recount: count the data of each.

        Returns:
            How many data it has counted as lost.
        """
        # What is recorded of an archive whose index was lost or exchanged stays: the next fix compares it.
        online = [archive for archive in self._archives.online() if not archive.needs_check()]
        if not online:
            return 0
        known = self.all()
        before = {} if recount else {each.uuid: each for each in known}
        present = [found for archive in online if (found := described(archive, before)).uuid]
        names, uuids = {each.name for each in present}, {each.uuid for each in present}
        former = {uuid: archive.path.name for archive in online for uuid in former_uuids(archive.current().index)}
        old = {each.uuid for each in known if each.name in names or each.uuid in former} - uuids
        had = {}
        with self._main.current().index.snapshot() as main:
            for each in known:
                if each.uuid in old and each.uuid in former:
                    deleted = segment_rows.count_archived_deletions(main, each.uuid, each.seq)
                    had[former[each.uuid]] = each.count - deleted
        lost = sum(max(0, had[each.name] - each.count) for each in present if each.name in had)
        new = [each for each in present if each not in known]
        if new or old:
            with self._main.transaction("open") as transaction:
                transaction.forget_archives(old)
                # Data that the dataset has not numbered, or numbered otherwise, may have any number.
                if old or not uuids.issubset(each.uuid for each in known):
                    transaction.expire_tokens()
                transaction.count_unnamed_lost(lost)
                for each in new:
                    transaction.know_archive(each)
                transaction.commit()
        return lost

    def note_renamed(self) -> None:
        """Record archives that people have renamed, before data are stored that these have, too.

        No append looks for duplicates in them, and the record says where a look-up by a unique key must look, too.

        Cost: a look at `.archive/`, if all names are recorded.
        """
        self._main.current()  # raises if the dataset was closed
        entries = self._main.directory.entries(ARCHIVE)
        names = {each.name for each in entries if each.kind == "directory" and not each.name.startswith(".")} - {LAST}
        if names and not names <= {each.name for each in self.all()}:
            self.update()

    def with_moved(self, archive: Access, count: int) -> KnownArchive:
        """Return what to record of an archive that has got some data which the record does not count yet."""
        found = described(archive)
        before = next((each for each in self.all() if each.uuid == found.uuid), None)
        return described(archive, {}) if before is None else found._replace(count=before.count + count)

    def accept(self, archive: Access) -> None:
        """Take an archive for that of this dataset from now on, although a fix may give its index another UUID."""
        self._accepted[archive.path.name] = archive.current().index

    def forget(self, name: str) -> int:
        """Forget an archive that is not used, and count as lost the data that it had.

        If an older state of it is in its place, that is used from now on, and its data are not lost.

        Args:
            name: of the archive; if it is away, its last name.

        Returns:
            How many data are lost.

        Raises:
            NotFound: no archive of this name is missing.
        """
        uuids, lost = self.forgettable(name)
        with self._main.transaction("fix") as transaction:
            transaction.forget_archives(uuids)
            transaction.count_unnamed_lost(lost)
            transaction.commit()
        return lost

    def forgettable(self, name: str) -> tuple[set[str], int]:
        """Return the UUIDs that `forget` forgets, and how many data it counts as lost.

        Raises:
            NotFound: no archive of this name is missing.
        """
        gone = self.missing()
        uuids = {each.uuid for each in gone if each.name == name}
        if not uuids:
            names = "; ".join(each.name + span_of(each) for each in gone)
            hint = f"Missing archives, by their names at the last write: {names}." if gone else "None is missing."
            raise NotFound(f"{self._main.path}: no archive {name!r} is missing", hint=hint)
        known, present = self.all(), self._archives.present()
        states = self._identified(states_of({each: present[each].current().index for each in present}), known, present)
        older = sum(described(present[each], {}).count for each, (uuid, *_) in states.items() if uuid in uuids)
        return uuids, max(0, sum(each.count for each in known if each.uuid in uuids) - older)

    def summaries(self, names: Collection[str] | None = None) -> dict[str, Summary]:
        """Read the summaries of the archives that are offline: name → summary.

        Args:
            names: of these archives only; None for all.

        Raises:
            InvalidInput: one of them cannot be read as a summary.
        """
        from ondisk.dataset import summaries

        fields = self._main.config.fields
        chosen = self._archives.offline() if names is None else names
        return {name: summaries.read(self._main.directory, name, fields) for name in chosen}


def _former(indices: Mapping[str, Index]) -> dict[str, list[str]]:
    """Return name → the UUIDs that each index had before it was lost, rebuilt or exchanged."""
    return {name: former_uuids(index) for name, index in indices.items()}


def _is_replica(archive: Access) -> bool:
    """Return what the file of an archive says; `archive.config` says what the dataset is."""
    try:
        return read_config(archive.directory).replica
    except (OndiskError, FileNotFoundError):  # who reads it raises this error
        return True


def _is_untrusted(present: Mapping[str, Access], name: str) -> bool:
    """Return whether an archive is there whose index may have lost data."""
    return name in present and present[name].needs_check()


def _span(summary: Summary) -> Interval | None:
    """Return the times of the data of a summary; None without data."""
    if summary.begin is None or summary.end is None:
        return None
    return Interval(microseconds(summary.begin), microseconds(summary.end) + 1)
