"""Migrate: changes the index of a dataset to the revision of this ondisk, and to the present `dataset.toml`.

Segments contain the metadata of every datum, so the values of a newly declared field are read from them. Segments are
not changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ondisk.config import MAX_DEPTH, DatasetConfig
from ondisk.dataset.exchanged import settle_next
from ondisk.dataset.layout import ARCHIVE, CONFIG, open_directory, read_config
from ondisk.datum import FieldType, Location, Value
from ondisk.errors import ConfigError, DuplicateDatum, LockError, ReadOnly, SegmentMissing, StorageError
from ondisk.filesystem import Directory, ReadableFile, WritersLock
from ondisk.formats import find
from ondisk.index import INDEX, Index
from ondisk.index.columns import REVISION
from ondisk.index.rebuild import Old, Place, Rebuilt, back_up, clear, in_conflict, old
from ondisk.index.swap import swap_in
from ondisk.maintenance.check import reason_at
from ondisk.maintenance.kinds import kind_of
from ondisk.segment import Facts, ScanResult
from ondisk.segments.concat_reader import ConcatReader
from ondisk.segments.dir_reader import DirReader
from ondisk.segments.facts import Committed

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
    """What a migration did, or would do, with one dataset or archive.

    Attributes:
        dataset: its path.
        revision: of its index, before and after.
        added, dropped: fields and their types.
        retyped: field → its type before and after.
        unique, index: these keys before and after.
        count: data whose metadata are read from the segments.
        offenders: the first 100 data that do not allow it; after a dry run those that the index alone shows.
        offending: how many such data there are.
        backup: the file with the old index, if the revision changed.
        done: whether it was done.
        archives: the same for each archive.
    """

    dataset: str
    revision: tuple[str, str] = (REVISION, REVISION)
    added: dict[str, FieldType] = field(default_factory=dict)
    dropped: dict[str, FieldType] = field(default_factory=dict)
    retyped: dict[str, tuple[FieldType, FieldType]] = field(default_factory=dict)
    unique: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    index: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    count: int = 0
    offenders: list[Offender] = field(default_factory=list)
    offending: int = 0
    backup: str | None = None
    done: bool = False
    archives: list[Migration] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether there is, or was, anything to do."""
        return self.changes_index or any(each.is_needed for each in self.archives)

    @property
    def changes_index(self) -> bool:
        """Whether its own index changes."""
        pairs = (self.revision, self.unique, self.index)
        return self.changes_fields or any(before != after for before, after in pairs)

    @property
    def changes_fields(self) -> bool:
        """Whether the columns for its fields change."""
        return bool(self.added or self.dropped or self.retyped)

    def add(self, offender: Offender) -> None:
        """Add a datum that does not allow it."""
        self.offending += 1
        if len(self.offenders) < _NAMED:
            self.offenders.append(offender)


def migrate(path: str | os.PathLike[str], *, dry_run: bool = False) -> Migration:
    """Change the index of a dataset, and of its archives, to the newest revision and to the present `dataset.toml`.

    Args:
        dry_run: only report what there is to do; writes nothing, and needs no permission to write.

    Raises:
        DatasetNotFound: the path contains no dataset.
        StorageError: it cannot be opened or read.
        ConfigError: `dataset.toml` is not valid, its step is not the step of the segments, or a field has values that
            are not of the configured type.
        DuplicateDatum: data have the same values of the fields of `unique`.
            An error about data has `context["migration"]`, with these data; nothing was changed.
        VersionTooNew: a newer ondisk made the index.
        IndexCorrupt: it is damaged.
        ReadOnly: this user has no permission to write.
        LockError: others wrote, or read an older state of the index, for longer than `lock_timeout`.
        DiskFull: there is no space for a second index; nothing was changed.

    Durability: all new indices are built beside the old ones and synced. If the revision changes, the old index is
        copied to `index.sqlite.before-REVISION` and synced. Then each new index replaces the old one by a rename, those
        of archives first. After a crash at any moment, each index is the old or the new one, complete, and another
        migration continues.
    Locks: the writers' lock, and those of the archives. Running queries keep the index that they began with.
    Cost: the space of a second index, and of a third if the revision changes. With new fields or types, all segments
        are read once.
    """
    with open_directory(path) as directory:
        config = read_config(directory)
        if dry_run:
            with _datasets(directory, config) as datasets:
                return _reported(datasets)
        if not directory.is_writable():
            hint = "Migrate as a user with that permission."
            raise ReadOnly(f"this user has no permission to write to {directory.path}", hint=hint)
        with WritersLock(directory, config.lock_timeout).hold("migrate"), contextlib.ExitStack() as stack:
            datasets = stack.enter_context(_datasets(directory, config))
            for dataset in datasets:
                if dataset.directory is not directory:
                    stack.enter_context(WritersLock(dataset.directory, config.lock_timeout).hold("migrate"))
                settle_next(dataset.directory, config.lock_timeout)
                clear(dataset.directory)
            return _migrated(datasets)


@dataclass(slots=True)
class _Dataset:
    """A dataset or an archive to migrate.

    Attributes:
        prefix: what precedes the names of its segments in reports.
        config: the configuration after the migration.
        is_configured: whether its `dataset.toml` already contains that configuration.
    """

    directory: Directory
    prefix: str
    config: DatasetConfig
    is_configured: bool
    migration: Migration


@contextlib.contextmanager
def _datasets(directory: Directory, config: DatasetConfig) -> Iterator[list[_Dataset]]:
    """Open the archives of a dataset; yield a list of them, with the dataset itself at the end."""
    find(config.format)(config)
    with contextlib.ExitStack() as stack:
        datasets = []
        for place in _archives(directory):
            archive = stack.enter_context(directory.inside(place))
            own = read_config(archive)
            size = config.segment_size if own.is_sequence else None
            wanted = config._replace(step=own.step, segment_size=size)
            datasets.append(_Dataset(archive, f"{place}/", wanted, own == wanted, Migration(str(archive.path))))
        datasets.append(_Dataset(directory, "", config, True, Migration(str(directory.path))))
        yield datasets


def _archives(directory: Directory) -> Iterator[str]:
    if directory.inode(ARCHIVE) is None:
        return
    for entry in directory.entries(ARCHIVE):
        place = f"{ARCHIVE}/{entry.name}"
        # Its configuration is created last: without one it is not yet an archive.
        if entry.kind == "directory" and directory.regular_file(f"{place}/{CONFIG}") is not None:
            yield place


def _reported(datasets: list[_Dataset]) -> Migration:
    """Return what there is to do."""
    for dataset in datasets:
        with old(dataset.directory, dataset.config) as before:
            if before is None:
                continue
            _plan(dataset, before)
            if _shows_conflicts(before.config, dataset.config):
                _find_conflicts(dataset, before.connection)
    return _result(datasets)


def _migrated(datasets: list[_Dataset]) -> Migration:
    """Build all new indices; if data allow each of them, replace the old ones."""
    built: list[tuple[_Dataset, Rebuilt]] = []
    try:
        for dataset in datasets:
            with old(dataset.directory, dataset.config) as before:
                if before is not None:
                    _plan(dataset, before)
                    if dataset.migration.changes_index:
                        new = Rebuilt.begin(dataset.directory, before.connection)
                        built.append((dataset, new))
                        _build(dataset, before, new)
        for dataset, _ in built:
            if dataset.migration.revision[0] != REVISION:
                with old(dataset.directory, dataset.config) as before:
                    assert before is not None
                    name = f"{INDEX}.before-{REVISION}"
                    dataset.migration.backup = back_up(dataset.directory, before.connection, name)
        for dataset in datasets:
            if not dataset.is_configured:
                # First: after a crash here the index still differs, so the next migration continues.
                dataset.directory.replace(CONFIG, dataset.config.to_toml().encode())
            if dataset.migration.changes_index:
                swap_in(dataset.directory, dataset.config.lock_timeout)
                _open_once(dataset)
                dataset.migration.done = True
    finally:
        for dataset, new in built:
            if new.is_there and dataset.migration.backup is not None:
                dataset.directory.unlink(dataset.migration.backup)
            new.discard()
    return _result(datasets)


def _result(datasets: list[_Dataset]) -> Migration:
    *archives, migration = (dataset.migration for dataset in datasets)
    migration.archives = archives
    return migration


def _plan(dataset: _Dataset, before: Old) -> None:
    """Compare the index with the configuration.

    Raises:
        ConfigError: the step changed, although data were stored.
    """
    now, was, migration = dataset.config, before.config, dataset.migration
    if now.step != was.step and before.is_touched:
        raise Index(dataset.directory, was, None).built_for_another(now)
    migration.revision = before.revision, REVISION
    migration.added = {name: kind for name, kind in now.fields.items() if name not in was.fields}
    migration.dropped = {name: kind for name, kind in was.fields.items() if name not in now.fields}
    migration.retyped = {
        name: (was.fields[name], kind)
        for name, kind in now.fields.items()
        if name in was.fields and was.fields[name] != kind
    }
    migration.unique = was.unique, now.unique
    migration.index = was.index, now.index
    if migration.added or migration.retyped:
        migration.count = before.count()


def _shows_conflicts(was: DatasetConfig, now: DatasetConfig) -> bool:
    """Return whether the old index has the columns to find data that violate a new `unique`."""
    return was.unique != now.unique and all(
        name == "reftime" or was.fields.get(name) == now.fields[name] for name in now.unique
    )


def _build(dataset: _Dataset, before: Old, new: Rebuilt) -> None:
    """Change the copy of the index to the new revision and configuration."""
    now, migration = dataset.config, dataset.migration
    new.upgrade(before.config)
    if migration.changes_fields:
        new.begin_fields(now, [name for name in now.fields if name not in {**migration.added, **migration.retyped}])
        if migration.count:
            _fill(dataset, new)
        new.end_fields()
        if migration.offending:
            raise _refused(dataset, ConfigError, "data do not have the types in dataset.toml, or cannot be read")
    if before.config.unique != now.unique or migration.retyped.keys() & set(now.unique):
        _find_conflicts(dataset, new.connection)
        if migration.offending:
            raise _refused(dataset, DuplicateDatum, f"data have the same values of unique = {list(now.unique)!r}")
    new.finish(now)


def _refused(dataset: _Dataset, kind: type[ConfigError | DuplicateDatum], problem: str) -> ConfigError | DuplicateDatum:
    migration = dataset.migration
    first = migration.offenders[0]
    place = f"{first.location.segment}, at byte {first.location.offset}"
    return kind(
        f"{migration.dataset}: {migration.offending} {problem}, the first in {place}: {first.reason}",
        hint="Nothing was changed. Restore the old dataset.toml; then delete these data, or run `ondisk fix`.",
        migration=migration,
    )


def _find_conflicts(dataset: _Dataset, connection: Any) -> None:
    """Add the data that the new `unique` does not allow together."""
    reason = "another datum has the same"
    for segment, offset, size, values in in_conflict(connection, dataset.config):
        dataset.migration.add(Offender(Location(dataset.prefix + segment, offset, size), reason, values))


def _fill(dataset: _Dataset, new: Rebuilt) -> None:
    """Read the values of new fields from the segments, a few thousand data at a time."""
    migration = dataset.migration
    kinds = migration.added | {name: kind for name, (_, kind) in migration.retyped.items()}
    # Data that were stored under larger limits must still be read.
    config = dataset.config._replace(
        max_datum_size=max(dataset.config.max_datum_size, new.longest()), max_depth=MAX_DEPTH
    )
    reader, folders = ConcatReader(dataset.directory), DirReader(dataset.directory)
    try:
        for id, name, format, places in new.segments():
            ahead = _Ahead(places)
            form = find(format)(config)
            try:
                kind = kind_of(form)
                unverified = partial(Committed, 0, Facts(), form.mutable)
                source: ReadableFile | Directory
                if kind.is_one_file:
                    source = reader.file_of(id, name, unverified())
                else:
                    source = folders.folder_of(id, name, unverified)
                for found in kind.scan(name, form, source):
                    values, others = _matched(ahead.before_end_of(found), found)
                    new.fill(kinds, values)
                    _refuse(dataset, name, others)
                _refuse(dataset, name, [(place, "no complete datum is there") for place in ahead.rest()])
            except SegmentMissing as error:
                _refuse(dataset, name, [(place, error.message) for place in ahead.rest()])
    finally:
        reader.close()
        folders.close()


def _refuse(dataset: _Dataset, segment: str, places: list[tuple[Place, str]]) -> None:
    for (_, offset, size), reason in places:
        dataset.migration.add(Offender(Location(dataset.prefix + segment, offset, size), reason))


class _Ahead:
    """The data of a segment in the order of their offsets, read in step with a scan of its file."""

    def __init__(self, places: Iterator[Place]) -> None:
        self._places = places
        self._next = next(places, None)

    def before_end_of(self, found: ScanResult) -> Iterator[Place]:
        """Yield the next data, up to the end of a scan result."""
        ends = [offset + 1 for offset in found.offsets[-1:]]
        ends += [damage.offset + damage.size for damage in found.damage]
        end = max(ends, default=0)
        while self._next is not None and self._next[1] < end:
            yield self._next
            self._next = next(self._places, None)

    def rest(self) -> Iterator[Place]:
        """Yield all others."""
        while self._next is not None:
            yield self._next
            self._next = next(self._places, None)


def _matched(
    places: Iterator[Place], found: ScanResult
) -> tuple[list[tuple[Mapping[str, Any], int]], list[tuple[Place, str]]]:
    """Return metadata and seq of the data that were found where the index says, and the others with the reason."""
    there = {place: at for at, place in enumerate(zip(found.offsets, found.sizes, strict=True))}
    values, others = [], []
    for seq, offset, size in places:
        at = there.get((offset, size))
        if at is None:
            others.append(((seq, offset, size), reason_at(found, offset)))
        else:
            values.append((found.metadata[at], seq))
    return values, others


def _open_once(dataset: _Dataset) -> None:
    """Create the index's `-wal` and `-shm`, which readers without permission to write need."""
    # If this fails, the new index is in place all the same, and the next writer creates them.
    with (
        contextlib.suppress(StorageError, LockError),
        contextlib.closing(Index.open(dataset.directory, dataset.config)) as index,
    ):
        index.writer()
