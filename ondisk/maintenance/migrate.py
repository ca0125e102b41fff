"""Migrate: changes the index of a dataset to the revision of this ondisk, and to the present `dataset.toml`.

Segments contain the metadata of every datum, so the values of a newly declared field are read from them. Segments are
not changed.

Until revision 5 each archive had an index of its own, see `ondisk.maintenance.old_archives`. Their rows are taken over
into the one index of the dataset:

    1. copy the index of the dataset, and upgrade the copy
    2. for each archive: copy its index, upgrade the copy, take its rows over, remove the copy
    3. compare the counts; move the archives that are left out; let the copy replace the index of the dataset
    4. write the identity of each place; give the files of each archive other names, its index last

A migration that was killed after 3 is finished by the next one: the UUID of each archive is in the table `former`.
An archive that is left out moves before that: whatever is in a place of the new index would be read into the dataset.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ondisk.config import MAX_DEPTH, DatasetConfig
from ondisk.dataset.auxiliary_files import CONFIG, open_directory, read_config
from ondisk.dataset.exchanged_index import settle_next, take_over
from ondisk.dataset.place_checks import missing
from ondisk.datum import FieldType, Location, Value
from ondisk.errors import (
    AlreadyExists,
    ConfigError,
    DuplicateDatum,
    LockError,
    NotFound,
    ReadOnly,
    SegmentMissing,
    StateError,
    StorageError,
    command,
)
from ondisk.filesystem import Directory, ReadableFile, WritersLock
from ondisk.formats import find
from ondisk.formats.self_describing import HasItems
from ondisk.index import INDEX, Index, segment_rows
from ondisk.index.convert import Converted, Old, back_up, clear, free_name, in_conflict, old
from ondisk.index.merge_indices import Taken, TakeOver
from ondisk.index.swap import LOGS, move_log, swap_in
from ondisk.index.tables import REVISION
from ondisk.index.tide import TIDE, Exchanged, State, Tide, announce
from ondisk.maintenance import old_archives
from ondisk.maintenance.check import reason_at
from ondisk.maintenance.observe import scan
from ondisk.maintenance.old_archives import Fault, Known
from ondisk.segment import Damage, Facts, ScanResult
from ondisk.segments import places
from ondisk.segments.concat_reader import ConcatReader
from ondisk.segments.dir import DirReader
from ondisk.segments.file_facts import Committed
from ondisk.segments.places import Identity
from ondisk.step import ARCHIVE, LAST

_NAMED = 100


@dataclass(frozen=True, slots=True)
class Offender:
    """A datum that does not allow the configuration in `dataset.toml`.

    Attributes:
        location: where it is; `.archive/NAME/…` for a datum of an archive.
        reason: what is wrong with it.
        values: its values of the fields of `unique` if another datum has the same, None for a missing value.
    """

    location: Location
    reason: str
    values: Mapping[str, Value | None] = field(default_factory=dict)


@dataclass(slots=True)
class Migration:
    """What a migration did, or would do, with a dataset, or with an archive that it takes over.

    Attributes:
        dataset: its path.
        revision: of its index, before and after.
        added, dropped: fields and their types.
        retyped: field → its type before and after; the same if its values are read again, by the rules of this ondisk.
        rules: formats whose data the index has by older rules.
        unique, index: these keys before and after.
        count: data whose metadata are read from the segments.
        offenders: the first 100 data that do not allow it; after a dry run those that the index alone shows. In an
            archive they allow it: fields that they have with another type, or that cannot be read, are missing.
        offending: how many such data there are.
        old_index: the file with it, if the revision changed.
        done: whether it was done.
        archives: the archives that are taken over into the index of the dataset.
        taken: of an archive: what becomes of its data; None for the dataset.
        superseded: segment → how many of its data do not count any more, since another datum has the same unique
            values. Their bytes stay until `repack --second-copies`.
        left_alone: archives that queries did not read: name → why. They stay as they are.
        left_out: archives that become datasets of their own: name → path.
        forgotten: archives that are gone: name → how many data count as lost.
        offline: archives of which only a summary is there: name → how many data it counts.
        unfinished: archives that were taken over by a migration that was killed before it had renamed their files.
    """

    dataset: str
    revision: tuple[str, str] = (REVISION, REVISION)
    added: dict[str, FieldType] = field(default_factory=dict)
    dropped: dict[str, FieldType] = field(default_factory=dict)
    retyped: dict[str, tuple[FieldType, FieldType]] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    unique: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    index: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    count: int = 0
    offenders: list[Offender] = field(default_factory=list)
    offending: int = 0
    old_index: str | None = None
    done: bool = False
    archives: list[Migration] = field(default_factory=list)
    taken: Taken | None = None
    superseded: dict[str, int] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    forgotten: dict[str, int] = field(default_factory=dict)
    offline: dict[str, int] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether there is, or was, anything to do."""
        return self.changes_index or bool(self.left_out or self.offline or self.unfinished)

    @property
    def changes_index(self) -> bool:
        """Whether its index changes."""
        pairs = (self.revision, self.unique, self.index)
        return (
            self.changes_fields or bool(self.archives or self.rules) or any(before != after for before, after in pairs)
        )

    @property
    def changes_fields(self) -> bool:
        """Whether the columns for its fields change."""
        return bool(self.added or self.dropped or self.retyped)

    @property
    def has_findings(self) -> bool:
        """Whether somebody has to look at what became of the archives."""
        return bool(self.superseded or self.left_alone or any(each.offending for each in self.archives))

    def add(self, offender: Offender) -> None:
        """Add a datum that does not allow it."""
        self.offending += 1
        if len(self.offenders) < _NAMED:
            self.offenders.append(offender)


def migrate(
    path: str | os.PathLike[str],
    *,
    leave_out: Iterable[str] = (),
    forget: Iterable[str] = (),
    dry_run: bool = False,
) -> Migration:
    """Change the index of a dataset to the newest revision and to the present `dataset.toml`, and take over the indices
    of its archives, which had their own until revision 5.

    Args:
        leave_out: archives that become datasets of their own: `.archive/NAME` moves to `DATASET-NAME`, beside.
        forget: archives that are gone for good; their data count as lost.
        dry_run: only report what there is to do; writes nothing, and needs no permission to write. If there are
            archives to take over, it needs the space of the new index in TMPDIR.

    Raises:
        DatasetNotFound: the path contains no dataset.
        StorageError: it cannot be opened or read.
        ConfigError: `dataset.toml` is not valid, its step is not the step of the segments, or a field has values that
            are not of the configured type.
        SegmentMissing: a new field must be read, and a folder of the archive is away or offline.
        DuplicateDatum: data have the same values of the fields of `unique`.
            An error about data has `context["migration"]`, with these data; nothing was changed.
        StateError: an archive is neither there nor offline; or has something unfinished, which needs the previous
            version of ondisk; or it cannot be left out.
        InvalidInput: the summary of an archive that is offline cannot be read.
        NotFound: no archive to leave out or to forget has this name.
        AlreadyExists: there is something where an archive that is left out would be.
        VersionTooNew: a newer ondisk made the index.
        IndexCorrupt: it is damaged.
        ReadOnly: this user has no permission to write.
        LockError: others wrote, or read an older state of the index, for longer than `lock_timeout`.
        DiskFull: there is no space for a second index; nothing was changed.

    Durability: an index that was exchanged gets a new UUID and the sentinel first. The new index is built beside the
        old one and synced. If the revision changes, the old index is copied to `index.sqlite.before-REVISION` and
        synced. Then the archives that are left out move, and the new index replaces the old one by a rename. After a
        crash at any moment, it is the old or the new one, complete, and another migration with the same arguments
        continues.
    Locks: the writers' lock, and those of the archives. Running queries keep the index that they began with.
    Cost: the space of a second index, and of a third if the revision changes; beside the index of each archive, that of
        a copy. With new fields or types, all segments are read once.
    """
    leave_out, forget = {*leave_out}, {*forget}
    with open_directory(path) as directory, contextlib.ExitStack() as stack:
        config = read_config(directory)
        find(config.format)(config)
        dataset = _Dataset(directory, "", config, Migration(str(directory.path)))
        archives = stack.enter_context(old_archives.opened(directory))
        if dry_run:
            _exchanged(directory, config)
            with old(directory, config) as before:
                plan = _planned(dataset, before, archives, leave_out, forget)
                if before is not None:
                    _report(dataset, before, plan)
            return dataset.migration
        if not directory.is_writable():
            hint = "Migrate as a user with that permission."
            raise ReadOnly(f"this user has no permission to write to {directory.path}", hint=hint)
        for each in (directory, *archives.values()):
            stack.enter_context(WritersLock(each, config.lock_timeout).hold("migrate"))
            clear(each)
        settle_next(directory, config.lock_timeout)
        if (exchanged := _exchanged(directory, config)) is not None:  # as the next opening would do
            take_over(directory, exchanged, config.lock_timeout)
        _migrate(dataset, archives, leave_out, forget)
    for place in dataset.migration.left_out.values():
        migrate(place)
    return dataset.migration


def _exchanged(directory: Directory, config: DatasetConfig) -> Exchanged | None:
    """Return how the index was exchanged, or None: a new one would not show it. Raise if it is of an older revision."""
    with old(directory, config) as before:
        exchanged = None if before is None else Tide(directory).exchanged(before.state)
        if before is not None and exchanged is not None and before.revision != REVISION:
            why = "its index was exchanged for an older one, or for another one"
            fix = f"Run {command('fix', directory.path, '--yes')}"
            raise old_archives.refused(directory, "cannot be migrated", why, fix)
    return exchanged


@dataclass(slots=True)
class _Dataset:
    """A dataset, or an archive to take over.

    Attributes:
        prefix: what precedes the names of its segments in reports: `.archive/NAME/`.
        config: the configuration after the migration.
    """

    directory: Directory
    prefix: str
    config: DatasetConfig
    migration: Migration


@dataclass(slots=True)
class _Archive(_Dataset):
    """An archive with an index of its own.

    Attributes:
        state, former: of its index, and the UUIDs that it had before.
        deleted: the numbers of its data that the dataset has deleted, and it may not have.
        count: data that its index has.
        is_empty: it has no segments.
        is_known: the dataset has recorded it.
    """

    name: str
    state: State
    former: list[str]
    deleted: set[int]
    count: int
    is_empty: bool
    is_known: bool = False


_Fill: TypeAlias = Callable[[_Dataset, Converted], None]
"""Gives new fields their values; without it, they have none."""


class _Plan(NamedTuple):
    """What becomes of the archives.

    Attributes:
        taken: they are taken over.
        unfinished: they were taken over; their files need other names.
        left: what remains known of archives that are not there, or are left alone, by name.
        has_left_out: data that the dataset had are in a dataset of their own now.
    """

    taken: list[_Archive]
    unfinished: list[_Archive]
    left: dict[str, Identity]
    has_left_out: bool = False


def _planned(
    dataset: _Dataset, before: Old | None, archives: Mapping[str, Directory], leave_out: set[str], forget: set[str]
) -> _Plan:
    """Decide what becomes of each archive, and note it in the report.

    Raises:
        StateError, NotFound, AlreadyExists, InvalidInput: as `migrate`.
    """
    directory, migration = dataset.directory, dataset.migration
    if before is None:
        if archives:
            old_archives.check_trusted(directory, None)
        return _Plan([], [], {})
    main, former = before.state(), before.former()
    has_places = before.revision >= "0006"  # not archives with indices of their own
    known = old_archives.left_in(directory) if has_places else old_archives.recorded_in(before.connection)
    found = {name: _archive(dataset, name, folder, before) for name, folder in archives.items()}
    unfinished = [
        each
        for each in found.values()
        if each.state[0] in former
        and (each.is_empty or before.segments_in(each.prefix) or each.directory.regular_file(CONFIG) is None)
    ]
    migration.unfinished = [each.name for each in unfinished]
    found = {name: each for name, each in found.items() if each not in unfinished}
    for each in found.values():
        old_archives.check_trusted(each.directory, each.state)
    out = {name: _plan_left_out(dataset, before, found.get(name), name) for name in leave_out}
    found = {name: each for name, each in found.items() if name not in out}
    judged = _judged(dataset, before, found, known)
    migration.forgotten = {name: _lost(dataset, known, found, judged, name) for name in forget}
    known = [each for each in known if each.name not in forget]
    states, faults = _judged(dataset, before, found, known)
    summaries = old_archives.summaries(directory)
    here = {*(state[0] for state in states.values()), *out.values()}
    for record in () if has_places else old_archives.away(known, here, summaries):
        raise _away(dataset, record)
    taken, uuids = [], {each.uuid for each in known}
    for name, each in found.items():
        if name in faults:
            migration.left_alone[name] = str(faults[name])
        elif before.segments_in(each.prefix):
            migration.left_alone[name] = "the index of the dataset has segments in its folder already"
        else:
            old_archives.check_settled(each.directory, each.state)
            each.is_known = states[name][0] in uuids
            taken.append(each)
    migration.archives = [each.migration for each in taken]
    if taken or out:
        old_archives.check_trusted(directory, main)
    migration.offline = {name: summary.count for name, summary in summaries.items()}
    left = {}
    for name in () if has_places else (*summaries, *(name for name, fault in faults.items() if fault is Fault.OLDER)):
        uuid = states[name][0] if name in states else None
        of_name = next((each for each in known if each.uuid == uuid or each.name == name), None)
        left[name] = old_archives.identity_of(of_name, summaries.get(name))
    return _Plan(taken, unfinished, left, has_left_out=bool(out) and not has_places)


def _archive(dataset: _Dataset, name: str, folder: Directory, before: Old) -> _Archive:
    config = dataset.config
    if folder.regular_file(CONFIG) is not None:
        own = read_config(folder)
        config = config._replace(step=own.step, segment_size=config.segment_size if own.is_sequence else None)
    with old(folder, config) as index:
        if index is None:
            old_archives.check_trusted(folder, None)
        assert index is not None
        state, former, count, is_empty = index.state(), index.former(), index.count(), not index.segments_in("")
    deleted = old_archives.deleted_from(before.connection, name, state)
    report = Migration(str(folder.path), taken=Taken())
    return _Archive(folder, f"{ARCHIVE}/{name}/", config, report, name, state, former, deleted, count, is_empty)


def _plan_left_out(dataset: _Dataset, before: Old, archive: _Archive | None, name: str) -> str:
    """Note in the report where an archive goes that becomes a dataset of its own; return the UUID of its index.

    A migration that was killed may have moved it.

    Raises:
        NotFound, AlreadyExists, StateError: that is not possible.
    """
    path = dataset.directory.path.resolve()
    target = path.parent / f"{path.name}-{name}"
    with Directory.above(path) as parent:
        there = None if "/" in name else parent.inode(target.name)
        if archive is None:
            if there is None or parent.inode(f"{target.name}/{CONFIG}") is None:
                raise NotFound(
                    f"{path} has no archive {name!r} with an index of its own", hint=f"See {path / ARCHIVE}."
                )
            if migrate(target, dry_run=True).is_needed:
                dataset.migration.left_out[name] = str(target)
            with open_directory(target) as folder, old(folder, read_config(folder)) as index:
                return "" if index is None else index.state()[0]
        if there is not None:
            raise AlreadyExists(f"{target} exists, where the archive would become a dataset", hint="Rename it.")
        if parent.device != archive.directory.device:
            hint = f"Move it there yourself: `mv {path / ARCHIVE / name} {target}`; then {command('migrate', path)}."
            raise StateError(f"{archive.directory.path} is on another filesystem than {parent.path}", hint=hint)
    if before.segments_in(archive.prefix):
        place = archive.directory.path
        hint = f"They belong to the dataset now: to keep them there, move {INDEX} and {CONFIG} out of {place}."
        raise StateError(f"the index of the dataset has segments in {place}; nothing was changed", hint=hint)
    old_archives.check_settled(archive.directory, archive.state)
    with old(archive.directory, archive.config) as index:
        assert index is not None
        is_last = archive.prefix == LAST  # only there segments are moved
        if (is_last and old_archives.in_both(before.connection, index.connection)) or old_archives.present_among(
            index.connection, archive.deleted
        ):
            hint = f"Run {command('maintain', path)} of the previous version of ondisk, then migrate."
            raise StateError(f"{archive.directory.path} lacks changes of the dataset", hint=hint)
    dataset.migration.left_out[name] = str(target)
    return archive.state[0]


def _judged(
    dataset: _Dataset, before: Old, found: Mapping[str, _Archive], known: Iterable[Known]
) -> tuple[dict[str, State], dict[str, Fault]]:
    """Return the states of archives, with the UUIDs that the dataset knows; and why queries did not read some."""
    former = {"": before.former(), **{name: each.former for name, each in found.items()}}
    states = old_archives.identified({name: each.state for name, each in found.items()}, known, former)
    faults = old_archives.faults(known, states, before.state(), former)
    if dataset.config.replica and before.follows():
        ordinary = [name for name, each in found.items() if not read_config(each.directory).replica]
        faults = dict.fromkeys(ordinary, Fault.ORDINARY) | faults
    return states, faults


def _lost(
    dataset: _Dataset,
    known: Iterable[Known],
    found: Mapping[str, _Archive],
    judged: tuple[Mapping[str, State], Mapping[str, Fault]],
    name: str,
) -> int:
    """Return how many data are lost with an archive that is gone. An older state of it may be there: that is used.

    Raises:
        NotFound: the dataset does not miss an archive of this name.
    """
    states, faults = judged
    there = {state[0] for at, state in states.items() if faults.get(at) is not Fault.OLDER}
    records = {each.uuid: each for each in known if each.name == name and each.uuid not in there}
    if not records:
        path = dataset.directory.path
        hint = f"After the migration, {command('fix', path, '--forget', name, '--yes')} forgets a place."
        raise NotFound(f"{path} misses no archive {name!r}", hint=hint)
    found_again = sum(found[at].count for at, state in states.items() if state[0] in records)
    return max(0, sum(each.count for each in records.values()) - found_again)


def _away(dataset: _Dataset, record: Known) -> StateError:
    path = dataset.directory.path
    forget = command("migrate", path, "--forget", record.name, "--yes")
    hint = f"Mount its disk, or move it back. If it is gone for good, {forget} counts its {record.count} data as lost."
    return StateError(f"the archive {path / ARCHIVE / record.name} is missing; nothing was changed", hint=hint)


def _report(dataset: _Dataset, before: Old, plan: _Plan) -> None:
    """Note in the report what there is to do; the segments are not read."""
    _plan(dataset, before)
    for archive in plan.taken:
        with old(archive.directory, archive.config) as its:
            assert its is not None
            _plan(archive, its)
    if _shows_conflicts(before.config, dataset.config):
        _find_conflicts(dataset, before.connection)
    if plan.taken and not dataset.migration.offending:
        with Converted.aside(dataset.directory, before.connection) as new:
            _build(dataset, before, new, None)
            _take_over(dataset, new, plan, None, Converted.aside)


def _migrate(dataset: _Dataset, archives: Mapping[str, Directory], leave_out: set[str], forget: set[str]) -> None:
    directory, config, migration = dataset.directory, dataset.config, dataset.migration
    with contextlib.ExitStack() as stack:
        with old(directory, config) as before:
            plan = _planned(dataset, before, archives, leave_out, forget)
            if before is None:
                return
            _plan(dataset, before)
            if migration.changes_index:
                new = stack.enter_context(Converted.beside(directory, before.connection))
                _build(dataset, before, new, _fill)
                _check_data(dataset, before, new)
                uuid = _take_over(dataset, new, plan, _fill, Converted.beside)
                new.finish(config)
                for archive in plan.taken:
                    move_log(archive.directory, config.lock_timeout)
                if migration.revision[0] != REVISION:
                    migration.old_index = back_up(directory, before.connection, f"{INDEX}.before-{REVISION}")
        if migration.changes_index:
            _swap_in(dataset, new, plan, uuid)
    for archive in (*plan.taken, *plan.unfinished):
        _identify(dataset, archive)
        _retire(archive.directory, config.lock_timeout)
        archive.migration.done = True
    for name in migration.offline:
        _rename(directory, f"{ARCHIVE}/{name}{old_archives.SUMMARY}")
    _move_out(dataset)
    migration.done = migration.is_needed


def _swap_in(dataset: _Dataset, new: Converted, plan: _Plan, uuid: str | None) -> None:
    directory, migration = dataset.directory, dataset.migration
    try:
        _move_out(dataset)
        for name, identity in plan.left.items():
            places.write(directory, f"{ARCHIVE}/{name}/", identity, only_outside=True)
        if uuid is not None:
            announce(directory, uuid)
        swap_in(directory, dataset.config.lock_timeout)
    except BaseException:
        if new.is_there:
            _move_out(dataset, back=True)
            for name in plan.left:
                places.forget(directory, f"{ARCHIVE}/{name}/")
            if migration.old_index is not None:
                directory.unlink(migration.old_index)
        raise
    _open_once(dataset)


def _move_out(dataset: _Dataset, *, back: bool = False) -> None:
    """Move the archives that become datasets of their own, unless that is done."""
    path = dataset.directory.path.resolve()
    with Directory.above(path) as folder:
        for name, target in dataset.migration.left_out.items():
            both = f"{path.name}/{ARCHIVE}/{name}", Path(target).name
            before, after = reversed(both) if back else both
            if folder.inode(before) is not None:
                folder.rename(before, after)


def _take_over(
    dataset: _Dataset,
    new: Converted,
    plan: _Plan,
    fill: _Fill | None,
    copy: Callable[[Directory, sqlite3.Connection], contextlib.AbstractContextManager[Converted]],
) -> str | None:
    """Take over the rows of all archives, and count those that are gone as lost; return the new UUID."""
    migration = dataset.migration
    if not (plan.taken or plan.has_left_out or migration.forgotten):
        return None
    new.drop_objects()
    all_data = TakeOver(dataset.directory, new.connection, dataset.config)
    for archive in plan.taken:
        all_data.start_after(archive.state[1])
    unread = {*migration.added, *migration.retyped}
    for archive in plan.taken:
        with old(archive.directory, archive.config) as before:
            assert before is not None
            _plan(archive, before)
            with copy(archive.directory, before.connection) as copied:
                _build(archive, before, copied, fill)
                copied.close()
                known = archive.is_known
                taken = all_data.take(copied.path, archive.prefix, archive.deleted, is_known=known)
        archive.migration.taken = taken
        unread |= {*archive.migration.added, *archive.migration.retyped}
    if fill is not None or unread.isdisjoint(dataset.config.unique):
        migration.superseded = all_data.drop_duplicates()
    all_data.count_lost(sum(migration.forgotten.values()))
    return all_data.finish(must_expire=plan.has_left_out)


def _identify(dataset: _Dataset, archive: _Archive) -> None:
    """Write the identity of a place whose archive was taken over.

    Its id is the UUID of the archive, unless ondisk has moved segments there since.
    """
    directory, place, uuid = dataset.directory, archive.prefix, archive.state[0]
    with contextlib.closing(Index.open(directory, dataset.config)) as index, index.snapshot() as snapshot:
        total, span = segment_rows.extent_of(snapshot, place)
        generation = snapshot.dataset()["generation"]
    for name, each in places.places(directory).items():
        if name != place and not each.is_ours and each.identity is not None and each.identity.id == uuid:
            places.forget(directory, name)  # it was offline under another name
    inner = places.inner_identities(directory, [place]).get(place, Identity(uuid))
    places.write(directory, place, Identity(inner.id, generation, total).during(span))


def _retire(archive: Directory, timeout: float) -> None:
    """Give the files that made an archive a dataset other names; the index last, which says that it was taken over."""
    move_log(archive, timeout)
    for name in (TIDE, CONFIG):
        if archive.regular_file(name) is not None:
            _rename(archive, name)
    archive.discard(*LOGS)
    archive.sync()  # else a power cut could keep the rename and lose an unlink
    _rename(archive, INDEX)


def _rename(directory: Directory, name: str) -> None:
    directory.rename(name, free_name(directory, f"{name}.before-{REVISION}"))


def _plan(dataset: _Dataset, before: Old) -> None:
    """Compare the index with the configuration.

    Raises:
        ConfigError: the step changed, although data were stored.
        SegmentMissing: segments must be read, and some are away or offline.
    """
    now, was, migration = dataset.config, before.config, dataset.migration
    if now.step != was.step and before.is_touched:
        raise Index(dataset.directory, was, None).built_for_another(now)
    migration.revision = before.revision, REVISION
    migration.rules = before.other_rules
    corrected = {name for each in map(find, migration.rules) if issubclass(each, HasItems)
                 for name in (*each.items, *each.numbers)}  # fmt: skip
    migration.added = {name: kind for name, kind in now.fields.items() if name not in was.fields}
    migration.dropped = {name: kind for name, kind in was.fields.items() if name not in now.fields}
    migration.retyped = {
        name: (was.fields[name], kind)
        for name, kind in now.fields.items()
        if name in was.fields and (was.fields[name] != kind or name in corrected)
    }
    migration.unique = was.unique, now.unique
    migration.index = was.index, now.index
    if migration.added or migration.retyped:
        migration.count = before.count()
        for place, each in places.closed(dataset.directory).items():
            if not dataset.prefix and before.segments_in(place):
                raise missing(dataset.directory, each)


def _shows_conflicts(was: DatasetConfig, now: DatasetConfig) -> bool:
    """Return whether the old index has the columns to find data that violate a new `unique`."""
    return was.unique != now.unique and all(
        name == "reftime" or was.fields.get(name) == now.fields[name] for name in now.unique
    )


def _build(dataset: _Dataset, before: Old, new: Converted, fill: _Fill | None) -> None:
    now, migration = dataset.config, dataset.migration
    new.upgrade(before.config)
    if migration.changes_fields:
        new.begin_fields(now, [name for name in now.fields if name not in {**migration.added, **migration.retyped}])
        if migration.count and fill is not None:
            fill(dataset, new)
        new.end_fields()
    if migration.changes_fields or before.config.index != now.index:
        new.forget_sums()


def _check_data(dataset: _Dataset, before: Old, new: Converted) -> None:
    """Raise if the data of the dataset itself do not allow the new configuration."""
    now, migration = dataset.config, dataset.migration
    if migration.offending:
        raise _refused(dataset, ConfigError, "data do not have the types in dataset.toml, or cannot be read")
    if before.config.unique != now.unique or migration.retyped.keys() & set(now.unique):
        _find_conflicts(dataset, new.connection)
        if migration.offending:
            raise _refused(dataset, DuplicateDatum, f"data have the same values of unique = {list(now.unique)!r}")


def _refused(dataset: _Dataset, kind: type[ConfigError | DuplicateDatum], problem: str) -> ConfigError | DuplicateDatum:
    migration = dataset.migration
    first = migration.offenders[0]
    place = f"{first.location.segment}, at byte {first.location.offset}"
    why = "" if first.values else f": {first.reason}"
    return kind(
        f"{migration.dataset}: {migration.offending} {problem}, the first in {place}{why}",
        hint="Nothing was changed. Restore the old dataset.toml; then delete these data, or run `ondisk fix`.",
        migration=migration,
    )


def _find_conflicts(dataset: _Dataset, connection: Any) -> None:
    """Add the data that the new `unique` does not allow together."""
    reason = "another datum has the same"
    for segment, offset, size, values in in_conflict(connection, dataset.config):
        dataset.migration.add(Offender(Location(dataset.prefix + segment, offset, size), reason, values))


def _fill(dataset: _Dataset, new: Converted) -> None:
    """Read the values of new fields from the segments, a few thousand data at a time."""
    migration = dataset.migration
    kinds = migration.added | {name: kind for name, (_, kind) in migration.retyped.items()}
    # Data that were stored under larger limits must still be read.
    config = dataset.config._replace(
        max_datum_size=max(dataset.config.max_datum_size, new.longest()), max_depth=MAX_DEPTH
    )
    reader, folders = ConcatReader(dataset.directory), DirReader(dataset.directory)
    with contextlib.closing(reader), contextlib.closing(folders):
        for id, name, format in new.segments(kinds):
            form, damage, missing = find(format)(config), list[Damage](), None
            unverified = partial(Committed, 0, Facts(), form.mutable)
            source: ReadableFile | Directory
            try:
                if form.is_dir:
                    source = folders.folder_of(id, name, unverified)
                else:
                    source = reader.file_of(id, name, unverified())
                for found in scan(name, form, source):
                    new.find(found, kinds)
                    damage += found.damage
            except SegmentMissing as error:
                missing = error.message
            for offset, size in new.fill(id, kinds):
                location = Location(dataset.prefix + name, offset, size)
                is_named = migration.offending < _NAMED  # looks at all damage
                reason = missing or (reason_at(ScanResult(damage=damage), offset) if is_named else "")
                migration.add(Offender(location, reason))


def _open_once(dataset: _Dataset) -> None:
    """Create the index's `-wal` and `-shm`, which readers without permission to write need."""
    # If this fails, the new index is in place all the same, and the next writer creates them.
    with (
        contextlib.suppress(StorageError, LockError),
        contextlib.closing(Index.open(dataset.directory, dataset.config)) as index,
    ):
        index.connections.writer()
