"""Archives: datasets inside a dataset, which contain its old segments.

    .archive/last/             the segments that repack has archived; they keep their names
    .archive/NAME/             other archives, moved there by people
    .archive/NAME.summary      represents an archive that is offline: what `ondisk summary --json --all-values` printed

Each archive has its own configuration and index. The dataset and its archives share one order of changes: a datum keeps
its `seq` when it is archived.

A query takes the dataset's snapshot first, then those of the archives, and skips two kinds of data in an archive's:

- While a segment is moved, the dataset and the archive may both contain its data. The query returns the dataset's.
- When a delete, or an append that replaces, touches data in archives, its commit in the dataset's index records their
  deletion, too. They are deleted from the archives after that commit. The query skips every datum of an archive that
  the dataset's index says was deleted since the archive's last change; see `ondisk.dataset.overlap`.
"""

from __future__ import annotations

import contextlib
import shlex
import stat
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import reduce

from ondisk.config import DatasetConfig
from ondisk.dataset import overlap, summaries
from ondisk.dataset.access import Access
from ondisk.dataset.known_archives import (
    Fault,
    Unusable,
    away,
    described,
    faults,
    former_uuids,
    hull,
    identified,
    problem,
    span_of,
    state_of,
    states_of,
    touching,
)
from ondisk.dataset.layout import ARCHIVE, CONFIG, LAST, clear_unmade, create_files, read_config, untrusted
from ondisk.dataset.summaries import Summary
from ondisk.datum import microseconds
from ondisk.errors import (
    ArchiveOffline,
    ArchiveUntrusted,
    DatasetNotFound,
    DurabilityLost,
    NotFound,
    OndiskError,
    StateError,
    command,
)
from ondisk.filesystem import Directory
from ondisk.index import Index, Snapshot, segment_rows
from ondisk.index.connection import Connection, connect_to_read
from ondisk.index.segment_rows import KnownArchive
from ondisk.index.tide import State
from ondisk.segments.generations import parents
from ondisk.step import Interval

_OF_DATASET = (
    "archive_age",
    "delete_age",
    "quarantine_age",
    "keep_replaced",
    "lock_timeout",
    "max_datum_size",
    "max_depth",
)
"""Keys of the dataset's configuration that also apply to its archives. The archives' own values are outdated copies."""


class DatasetAccess(Access):
    """Access to a dataset and to its archives.

    Attributes:
        archives: the archives, which share the dataset's order of changes.
        last_commit: when maintenance read the time of the last commit (monotonic seconds), and what it was.
    """

    def __init__(
        self,
        directory: Directory,
        config: DatasetConfig,
        *,
        read_only: bool,
        connect: Callable[[Directory], Connection] = connect_to_read,
    ) -> None:
        super().__init__(directory, config, read_only=read_only, connect=connect)
        self.archives = Archives(self)
        self.last_commit: tuple[float, int] | None = None

    def seq_elsewhere(self) -> int:
        # The archives are queried each time: a process killed after the archive's commit may not have updated the
        # dataset's counter.
        return self.archives.seq()

    def elsewhere(self) -> Iterator[Access]:
        return self.archives.online()

    def close(self) -> None:
        self.archives.close()
        super().close()


class _Archive(Access):
    """Access to an archive of a dataset."""

    def __init__(
        self, main: Access, archives: Archives, directory: Directory, config: DatasetConfig, prefix: str
    ) -> None:
        super().__init__(directory, config, read_only=main.read_only, prefix=prefix, connect=main.connect)
        self._main = main
        self._archives = archives

    def seq_elsewhere(self) -> int:
        return _seq(self._main)

    def elsewhere(self) -> Iterator[Access]:
        return (access for access in self._archives.all() if access is not self)


class Archives:
    """The archives of one dataset. Each is opened when it is first needed."""

    def __init__(self, main: Access) -> None:
        self._main = main
        self._opened: dict[str, Access] = {}
        self._accepted: dict[str, Index] = {}
        self._judged: dict[str, Index] = {}  # by name: the indices whose faults are known
        self._faulty: dict[str, Fault] = {}

    def online(self) -> Iterator[Access]:
        """Yield the archives that are used, in the order in which they are queried: by name, `last` at the end.

        The others are those with a fault, see `ondisk.dataset.known_archives`.
        """
        present = self._present()
        faults = self._faults(present)
        return (archive for name, archive in present.items() if name not in faults)

    def _present(self) -> dict[str, Access]:
        """Return the archives that can be opened, by name, in the order in which they are queried."""
        if self._main.directory.inode(ARCHIVE) is None:
            return {}
        names = [entry.name for entry in self._main.directory.entries(ARCHIVE) if entry.kind == "directory"]
        opened = {name: self.get(name) for name in sorted(names, key=lambda each: (each == LAST, each))
                  if not name.startswith(".")}  # fmt: skip
        return {name: archive for name, archive in opened.items() if archive is not None}

    def _faults(self, present: Mapping[str, Access]) -> dict[str, Fault]:
        """Return the faults of archives.

        Cost: a stat of each if no index was replaced since the last call and none had a fault; else a snapshot of each.
        """
        indices = {}
        for name, archive in present.items():
            with contextlib.suppress(OndiskError):  # who reads it raises this error
                indices[name] = archive.current().index
        if indices and (self._faulty or indices != self._judged):
            known = self.known()
            # An archive with the index of another one is not a copy of that one: its own fix rebuilds the index.
            own = {name: index for name, index in indices.items() if not present[name].has_foreign_index()}
            states = self._identified(states_of(own), known, present)
            main = state_of(self._main.current().index)
            self._faulty = {
                name: fault
                for name, fault in faults(known, states, main, lambda name: present[name].needs_check()).items()
                if fault is not Fault.FOREIGN or self._accepted.get(name) is not indices[name]
            }
        self._judged = indices
        return self._faulty

    def _identified(
        self, states: Mapping[str, State], known: list[KnownArchive], present: Mapping[str, Access]
    ) -> dict[str, State]:
        return identified(states, known, lambda name: former_uuids(present[name].current().index))

    def known(self, main: Snapshot | None = None) -> list[KnownArchive]:
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
        known, present = self.known(main), self._present()
        found = self._faults(present)
        if not known and not found:
            return []
        states = {name: state_of(archive.current().index) for name, archive in present.items()}
        states = self._identified(states, known, present)
        records = {each.uuid: each.interval for each in known}
        unusable = []
        for name, fault in found.items():
            uuid = states[name][0]
            if fault is not Fault.FOREIGN:  # the one whose name it has is away
                twin = next((other for other in states if states[other][0] == uuid and other != name), None)
                interval = None if fault is Fault.COPY else hull(described(present[name]).interval, records.get(uuid))
                unusable.append(Unusable(uuid, name, fault, interval, twin))
        for each in self._away(known, present, {uuid for uuid, *_ in states.values()}):
            fault = Fault.FOREIGN if each.name in present else Fault.AWAY
            unusable.append(Unusable(each.uuid, each.name, fault, each.interval))
        return unusable

    def missing(self) -> list[Unusable]:
        """Return the archives that the dataset knows and that are away, or not what it knows."""
        return [each for each in self.unusable() if each.fault not in (Fault.COPY, Fault.TWIN)]

    def _away(self, known: list[KnownArchive], present: Mapping[str, Access], uuids: set[str]) -> list[KnownArchive]:
        def spans() -> list[Interval]:
            unknown = {*offline}.difference(each.name for each in known)
            return [span for each in self.summaries(unknown).values() if (span := _span(each)) is not None]

        untrusted = [name for name, archive in present.items() if archive.needs_check()]
        offline = self.offline()
        return away(known, uuids, untrusted, offline, spans)

    def offline_data(self, main: Snapshot | None = None) -> list[Unusable]:
        """Return the archives that are offline, with the times of which they have data.

        These are the times of the summary, and those that the dataset knows of an archive without another trace.

        Args:
            main: as for `known`.

        Raises:
            InvalidInput: a summary cannot be read.
        """
        names = self.offline()
        if not names:
            return []
        known, present = self.known(main), self._present()
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
        self.check_complete(main, uuids, interval)
        self.check_none_offline(interval(), main, after)
        states = states_of({each.path.name: each.current().index for each in self.online()})
        return all(uuid in uuids for uuid, *_ in states.values())

    def check_none_offline(self, interval: Interval, main: Snapshot | None = None, after: int = 0) -> None:
        """Raise if an archive that may have data of an interval is offline.

        Raises:
            StateError, InvalidInput: as `check_online`.
        """
        for each in touching(self.offline_data(main), interval):
            if each.last is None or each.last > after:
                raise self.problem(each)

    def check_complete(self, main: Snapshot, uuids: Collection[str], interval: Callable[[], Interval]) -> bool:
        """Raise if an archive that may have data of an interval is not used.

        Args:
            main: a snapshot of the dataset's index.
            uuids: of the archives that are used.
            interval: called only if an archive is not used.

        Returns:
            True: the snapshots are taken as they are.

        Raises:
            StateError: it is so.
        """
        is_short = any(fault is not Fault.COPY for fault in self._faulty.values())
        if is_short or any(each.uuid not in uuids for each in self.known(main)):
            self.check_present(interval(), main)
        return True

    def check_present(self, interval: Interval, main: Snapshot | None = None) -> None:
        """Raise if an archive that may have data of an interval is not used.

        Raises:
            StateError: it is so.
        """
        for each in touching(self.unusable(main), interval):
            raise self.problem(each)

    def problem(self, unusable: Unusable) -> StateError:
        """Return the error for work that needs an archive that is not used."""
        return problem(unusable, self._main.path)

    def why_not_archived(self) -> str | None:
        """Return why nothing can be archived: the archive that repack fills is not used. None if it can be."""
        return next((str(self.problem(each)) for each in self.unusable() if each.name == LAST), None)

    def record(self, *, recount: bool = False) -> int:
        """Record the archives that are used now in the dataset's index, if anything is new about them.

        Counts as lost the data that an archive had and lacks since its index was rebuilt: somebody may have rebuilt an
        older state of it, which has later numbers now.

        Args:
            recount: count the data of each.

        Returns:
            How many data it has counted as lost.
        """
        # What is recorded of an archive whose index was lost or exchanged stays: the next fix compares it.
        online = [archive for archive in self.online() if not archive.needs_check()]
        if not online:
            return 0
        known = self.known()
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
                if lost:
                    transaction.count_lost(lost)
                for each in new:
                    transaction.know_archive(each)
                transaction.commit()
        return lost

    def with_moved(self, archive: Access, count: int) -> KnownArchive:
        """Return what to record of an archive that has got some data which the record does not count yet."""
        found = described(archive)
        before = next((each for each in self.known() if each.uuid == found.uuid), None)
        return described(archive, {}) if before is None else replace(found, count=before.count + count)

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
            transaction.count_lost(lost)
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
        known, present = self.known(), self._present()
        states = self._identified(states_of({each: present[each].current().index for each in present}), known, present)
        older = sum(described(present[each], {}).count for each, (uuid, *_) in states.items() if uuid in uuids)
        return uuids, max(0, sum(each.count for each in known if each.uuid in uuids) - older)

    def kept(self) -> list[str]:
        """Return what was moved to quarantine here, in the dataset and in its archives."""
        opened = (self._main, *self._opened.values())
        return [access.prefix + item for access in opened for item in access.directory.kept]

    def all(self) -> Iterator[Access]:
        """Yield the dataset, then its archives that can be read."""
        yield self._main
        yield from self.online()

    def offline(self) -> list[str]:
        """Return the names of the archives that have only a summary."""
        return summaries.offline(self._main.directory)

    def warn_of_offline(self, effect: str = "was not queried") -> None:
        """Warn of archives that are offline, and of archives whose indices may have lost data.

        Args:
            effect: what this means for the caller.
        """
        for name in self.offline():
            message = f"{self._main.path}: the archive {name!r} is offline and {effect}"
            warnings.warn(message, ArchiveOffline, stacklevel=2)
        for archive, reason in self.untrusted():
            warnings.warn(f"{archive.path}: {reason}", ArchiveUntrusted, stacklevel=2)

    def untrusted(self) -> Iterator[tuple[Access, str]]:
        """Yield the archives whose indices may have lost data and which the dataset's maintenance leaves, and why."""
        for archive in self.online():
            if archive.path.name != LAST and archive.needs_check():
                yield (
                    archive,
                    f"its index was lost and may not know all data; run {command('fix', archive.path, '--yes')}",
                )

    def get(self, name: str) -> Access | None:
        """Open an archive by its name, or return None if it does not exist.

        Raises:
            StateError: its folder has segments and no configuration.
        """
        directory = self._main.directory
        found = self._opened.get(name)
        place = f"{ARCHIVE}/{name}"
        there = directory.stat(place)
        if there is None or directory.stat(f"{place}/{CONFIG}") is None:  # its configuration is made last
            self._drop(name)
            if there is not None and stat.S_ISDIR(there.st_mode) and _has_segments(directory, place):
                if directory.stat(f"{place}/{CONFIG}") is not None:  # it was created in between
                    return self.get(name)
                path = self._main.path / place
                copy = shlex.join(("cp", str(self._main.path / CONFIG), f"{path}/"))
                hint = f"Restore it from a backup, or copy the dataset's: {copy}"
                raise StateError(f"the archive {path} has segments and no {CONFIG}", hint=hint)
            return None
        if found is not None and found.inode == there.st_ino:
            return found
        self._drop(name)
        opened = self._open(directory.inside(place), f"{place}/")
        return self._opened.setdefault(name, opened)

    def of(self, segment: str) -> tuple[Access, str] | None:
        """Return the archive of a segment `.archive/NAME/…` and the segment's name in it, or None without one."""
        top, _, rest = segment.partition("/")
        name, _, inner = rest.partition("/")
        if top != ARCHIVE or not inner or name in ("", ".", ".."):
            return None
        archive = self.get(name)
        return None if archive is None else (archive, inner)

    def seq(self) -> int:
        """Return the highest `seq` in the archives, also in those that are not used now."""
        return max(map(_seq, self._present().values()), default=0)

    def catch_up(self) -> None:
        """Advance the dataset's `seq` to that of the archives, which is higher after an archive's index was rebuilt."""
        seq = self.seq()
        if seq > _seq(self._main):
            with self._main.transaction("open") as transaction:
                transaction.advance_seq(seq)
                transaction.commit()

    @contextlib.contextmanager
    def assigning_seq(self, access: Access, verb: str) -> Iterator[None]:
        """Let a fix or a repack of an archive assign `seq` numbers, for the length of the block.

        Args:
            access: an archive, or the dataset itself, which needs only its own lock.

        Durability: the dataset's counter is updated after the archive's commit. If the process is killed between these,
            the next opening for writing does it.
        Locks: the dataset's writers' lock, since the dataset and its archives share one order of changes.
        """
        if access is self._main:
            yield
            return
        with self._main.locked(verb):
            self.complete_deletes()
            yield
            self.catch_up()

    def check_trusted(self) -> None:
        """Raise unless the indices of the dataset and of its archives know all data.

        Raises:
            NeedsCheck: one was lost, or its sentinel exists.
        """
        for access in (self._main, *self.online()):
            if access.needs_check():
                # A fix of the dataset also mends the archive that repack fills. Other archives need their own fix.
                raise untrusted(self._main.path if access.path.name == LAST else access.path)

    def maintained(self) -> list[Access]:
        """Return what maintenance works on: the dataset, then the archive that repack fills."""
        last = self.last()
        return [self._main] if last is None else [self._main, last]

    def counterpart(self, access: Access) -> Access | None:
        """Return where else `unique` must hold: for the dataset the archive that repack fills, for that the dataset.

        None if there is no such archive, or the two differ in `unique`, or have none.
        """
        other = self.last() if access is self._main else self._main
        unique = access.current().index.config.unique
        return other if unique and other is not None and other.current().index.config.unique == unique else None

    def has_pending(self) -> bool:
        """Return whether the dataset's index records deletions that are not committed in the archives."""
        return any(overlap.has_pending(self._main, archive) for archive in self.online())

    def complete_deletes(self) -> None:
        """Delete from the archives the data that the dataset's index records as deleted from them.

        The caller must hold the writers' lock. It must call this before it advances the `seq` of an archive: only
        deletions after that `seq` are looked for.

        Durability, Locks: see `overlap.complete_deletes`, for each archive.
        """
        for archive in self.online():
            overlap.complete_deletes(self._main, archive)

    def complete_deletes_later(self) -> None:
        """Delete as `complete_deletes`, after the commit that records the deletions. What fails is done later.

        Queries skip the data already, and the next opening for writing tries again.

        Raises:
            DurabilityLost: a sync failed.
        """
        try:
            self.complete_deletes()
        except DurabilityLost:
            raise
        except OndiskError:
            pass

    def last(self) -> Access | None:
        """Open the archive that repack fills; None if nothing was archived yet, or it is not used, see `Fault`."""
        found = self.get(LAST)
        return None if found is None or LAST in self._faults(self._present()) else found

    def check_last(self) -> None:
        """Raise if the archive that repack fills is not used.

        Raises:
            StateError: it is away, or has another fault.
        """
        for each in self.unusable():
            if each.name == LAST:
                raise self.problem(each)

    def make_last(self) -> Access:
        """Open the archive that repack fills, and create it if it is missing. The caller must hold the writers' lock.

        Raises:
            StateError: it is away, or has another fault.

        Durability: see `create_files`.
        """
        self.check_last()
        found = self.last()
        if found is not None:
            return found
        directory = self._main.directory.inside(f"{ARCHIVE}/{LAST}", make=True)
        try:
            create_files(directory, self._main.config)
        finally:
            directory.close()
        made = self.last()
        assert made is not None
        return made

    def clear_unmade(self) -> None:
        """Remove what a process left that was killed while it created the archive that repack fills.

        Locks: the writers' lock, if there is something to do.
        """
        place = f"{ARCHIVE}/{LAST}"
        found = self._main.directory.stat(place)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return
        if self._main.directory.stat(f"{place}/{CONFIG}") is not None:
            return
        with self._main.locked("open", timeout=0), self._main.directory.inside(place) as directory:
            if directory.stat(CONFIG) is None:
                clear_unmade(directory)
                if not directory.names():
                    self._main.directory.remove_directory(place)

    def summaries(self, names: Collection[str] | None = None) -> dict[str, Summary]:
        """Read the summaries of the archives that are offline: name → summary.

        Args:
            names: of these archives only; None for all.

        Raises:
            InvalidInput: one of them cannot be read as a summary.
        """
        fields = self._main.config.fields
        chosen = self.offline() if names is None else names
        return {name: summaries.read(self._main.directory, name, fields) for name in chosen}

    def close(self) -> None:
        for name in [*self._opened]:
            self._drop(name)

    def _open(self, directory: Directory, prefix: str) -> Access:
        try:
            config = read_config(directory)
        except DatasetNotFound:
            directory.close()
            raise
        config = replace(config, **{name: getattr(self._main.config, name) for name in _OF_DATASET})
        return _Archive(self._main, self, directory, config, prefix)

    def _drop(self, name: str) -> None:
        found = self._opened.pop(name, None)
        if found is not None:
            found.close()


def _has_segments(directory: Directory, place: str) -> bool:
    with directory.inside(place) as archive:
        return any(True for _ in parents(archive))


def _span(summary: Summary) -> Interval | None:
    """Return the times of the data of a summary; None without data."""
    if summary.begin is None or summary.end is None:
        return None
    return Interval(microseconds(summary.begin), microseconds(summary.end) + 1)


def _seq(access: Access) -> int:
    return state_of(access.current().index)[1]
