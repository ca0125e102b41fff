"""Migrate: moves the index of a dataset to this ondisk's revision, and to what `dataset.toml` says now.

Metadata stand in every datum, so the values of a field that was not declared before are read from the segments. These
stay as they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ondisk.config import MAX_DEPTH, DatasetConfig
from ondisk.dataset.layout import ARCHIVE, CONFIG, open_directory, read_config
from ondisk.datum import FieldType, Location, Value
from ondisk.errors import ConfigError, DuplicateDatum, LockError, ReadOnly, SegmentMissing, StorageError
from ondisk.filesystem import Directory, WritersLock
from ondisk.formats import find
from ondisk.index import INDEX, Index
from ondisk.index.columns import REVISION
from ondisk.index.rebuild import Old, Place, Rebuilt, back_up, clear, in_conflict, old
from ondisk.index.swap import finish_swap, swap_in
from ondisk.maintenance.check import reason_at
from ondisk.segment import ScanResult
from ondisk.segments import ConcatReader
from ondisk.segments.dir import scan

_NAMED = 100


@dataclass(frozen=True, slots=True)
class Offender:
    """A datum that keeps a dataset from what `dataset.toml` says.

    Attributes:
        location: where it stands; `.archive/NAME/…` for one of an archive.
        reason: what is wrong with it.
        values: its values of the fields of `unique`, None for missing, where others have the same.
    """

    location: Location
    reason: str
    values: Mapping[str, Value | None] = field(default_factory=dict)


@dataclass(slots=True)
class Migration:
    """What a migration does, or would do, with one dataset or archive.

    Attributes:
        dataset: its path.
        revision: of its index, before and after.
        added, dropped: fields and their types.
        retyped: field → its type before and after.
        unique, index: these before and after.
        count: data whose metadata are read from the segments.
        offenders: data that keep it from being done, the first 100; of a dry run those that the index knows.
        offending: how many there are.
        backup: the file that holds the old index, where the revision changed.
        done: it was done.
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
        """Whether its own index is another afterwards."""
        pairs = (self.revision, self.unique, self.index)
        return self.changes_fields or any(before != after for before, after in pairs)

    @property
    def changes_fields(self) -> bool:
        """Whether the columns of its data are others afterwards."""
        return bool(self.added or self.dropped or self.retyped)

    def add(self, offender: Offender) -> None:
        """Add a datum that keeps it from being done."""
        self.offending += 1
        if len(self.offenders) < _NAMED:
            self.offenders.append(offender)


def migrate(path: str | os.PathLike[str], *, dry_run: bool = False) -> Migration:
    """Move the index of a dataset, and of its archives, to the newest revision and to what `dataset.toml` says.

    Args:
        dry_run: only say what there is to do; writes nothing, and needs no right to.

    Raises:
        DatasetNotFound: there is none.
        StorageError: it cannot be opened, or read.
        ConfigError: `dataset.toml` cannot be understood, says another step than the data have, or a field has values
            that are not of the type that it says.
        DuplicateDatum: data have the same values of the fields of `unique`.
            These two have `context["migration"]`, with the offenders; nothing was changed.
        VersionTooNew: a newer ondisk made the index.
        IndexCorrupt: it is damaged.
        ReadOnly: this user may not write there.
        LockError: others wrote, or read what was there before the last change, for longer than `lock_timeout`.
        DiskFull: there is no room for a second index; nothing was changed.

    Durability: all new indices are built beside the old ones and synced; where the revision changes, the old one is
        copied to `index.sqlite.before-REVISION`, synced; each takes the old one's place by a rename, those of archives
        first. Killed anywhere, each index is the old or the new one, whole, and migrating again goes on.
    Locks: the writers' lock, and those of the archives. Queries that run keep the index that they began with.
    Cost: the space of the index once more, twice where the revision changes; with new fields or types, all segments
        are read once.
    """
    with open_directory(path) as directory:
        config = read_config(directory)
        if dry_run:
            with _parts(directory, config) as parts:
                return _reported(parts)
        if not directory.is_writable():
            hint = "Migrate as a user who may write there."
            raise ReadOnly(f"{directory.path} may not be written by this user", hint=hint)
        with WritersLock(directory, config.lock_timeout).hold("migrate"), contextlib.ExitStack() as stack:
            parts = stack.enter_context(_parts(directory, config))
            for part in parts:
                if part.directory is not directory:
                    stack.enter_context(WritersLock(part.directory, config.lock_timeout).hold("migrate"))
                finish_swap(part.directory, config.lock_timeout)
                clear(part.directory)
            return _migrated(parts)


@dataclass(slots=True)
class _Part:
    """A dataset or an archive.

    Attributes:
        prefix: what the names of its segments begin with in reports.
        config: what its `dataset.toml` is to say.
        is_configured: it says so.
    """

    directory: Directory
    prefix: str
    config: DatasetConfig
    is_configured: bool
    migration: Migration


@contextlib.contextmanager
def _parts(directory: Directory, config: DatasetConfig) -> Iterator[list[_Part]]:
    """Open the archives of a dataset; gives them, then the dataset itself."""
    find(config.format)(config)
    with contextlib.ExitStack() as stack:
        parts = []
        for place in _archives(directory):
            archive = stack.enter_context(directory.inside(place))
            own = read_config(archive)
            wanted = replace(config, step=own.step)
            parts.append(_Part(archive, f"{place}/", wanted, own == wanted, Migration(str(archive.path))))
        parts.append(_Part(directory, "", config, True, Migration(str(directory.path))))
        yield parts


def _archives(directory: Directory) -> Iterator[str]:
    if directory.inode(ARCHIVE) is None:
        return
    for entry in directory.entries(ARCHIVE):
        place = f"{ARCHIVE}/{entry.name}"
        # Its configuration is made last: without one it is none yet.
        if entry.kind == "directory" and directory.regular_file(f"{place}/{CONFIG}") is not None:
            yield place


def _reported(parts: list[_Part]) -> Migration:
    """Say what there is to do."""
    for part in parts:
        with old(part.directory, part.config) as before:
            if before is None:
                continue
            _plan(part, before)
            if _can_be_asked(before.config, part.config):
                _find_conflicts(part, before.connection)
    return _result(parts)


def _migrated(parts: list[_Part]) -> Migration:
    """Build all new indices; when none was refused, put them in their places."""
    built: list[tuple[_Part, Rebuilt]] = []
    try:
        for part in parts:
            with old(part.directory, part.config) as before:
                if before is not None:
                    _plan(part, before)
                    if part.migration.changes_index:
                        new = Rebuilt.begin(part.directory, before.connection)
                        built.append((part, new))
                        _build(part, before, new)
        for part, _ in built:
            if part.migration.revision[0] != REVISION:
                with old(part.directory, part.config) as before:
                    assert before is not None
                    name = f"{INDEX}.before-{REVISION}"
                    part.migration.backup = back_up(part.directory, before.connection, name)
        for part in parts:
            if not part.is_configured:
                _configure(part)  # first: killed behind it, it is still plain that there is something to do
            if part.migration.changes_index:
                swap_in(part.directory, part.config.lock_timeout)
                _open_once(part)
                part.migration.done = True
    finally:
        for part, new in built:
            if new.is_there and part.migration.backup is not None:
                part.directory.unlink(part.migration.backup)
            new.discard()
    return _result(parts)


def _result(parts: list[_Part]) -> Migration:
    *archives, migration = (part.migration for part in parts)
    migration.archives = archives
    return migration


def _plan(part: _Part, before: Old) -> None:
    """Compare the index with the configuration.

    Raises:
        ConfigError: the step is another one, and there are data.
    """
    now, was, migration = part.config, before.config, part.migration
    if now.step != was.step and before.is_touched:
        raise Index(part.directory, was, None).built_for_another(now)
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


def _can_be_asked(was: DatasetConfig, now: DatasetConfig) -> bool:
    """Tell whether the index as it is can say what a new `unique` is violated by."""
    return was.unique != now.unique and all(
        name == "reftime" or was.fields.get(name) == now.fields[name] for name in now.unique
    )


def _build(part: _Part, before: Old, new: Rebuilt) -> None:
    """Make a copy of the index what it is to be."""
    now, migration = part.config, part.migration
    new.upgrade(before.config)
    if migration.changes_fields:
        new.begin_fields(now, [name for name in now.fields if name not in {**migration.added, **migration.retyped}])
        if migration.count:
            _fill(part, new)
        new.end_fields()
        if migration.offending:
            raise _refused(part, ConfigError, "data do not have the types that dataset.toml says, or cannot be read")
    if before.config.unique != now.unique or migration.retyped.keys() & set(now.unique):
        _find_conflicts(part, new.connection)
        if migration.offending:
            raise _refused(part, DuplicateDatum, f"data are equal in unique = {list(now.unique)!r}")
    new.finish(now)


def _refused(part: _Part, kind: type[ConfigError | DuplicateDatum], problem: str) -> ConfigError | DuplicateDatum:
    migration = part.migration
    first = migration.offenders[0]
    place = f"{first.location.segment}, at byte {first.location.offset}"
    return kind(
        f"{migration.dataset}: {migration.offending} {problem}, the first in {place}: {first.reason}",
        hint="Nothing was changed. Write dataset.toml as it was; then delete these data, or fix the dataset.",
        migration=migration,
    )


def _find_conflicts(part: _Part, connection: Any) -> None:
    """Find data that the configuration's `unique` does not allow beside each other."""
    reason = "others have the same"
    for segment, offset, size, values in in_conflict(connection, part.config):
        part.migration.add(Offender(Location(part.prefix + segment, offset, size), reason, values))


def _fill(part: _Part, new: Rebuilt) -> None:
    """Read the values of new fields from the segments, some thousand data at a time."""
    migration = part.migration
    kinds = migration.added | {name: kind for name, (_, kind) in migration.retyped.items()}
    # What was stored under larger limits is still to be read.
    config = replace(part.config, max_datum_size=max(part.config.max_datum_size, new.longest()), max_depth=MAX_DEPTH)
    reader = ConcatReader(part.directory)
    try:
        for id, name, format, places in new.segments():
            ahead = _Ahead(places)
            form = find(format)(config)
            try:
                for found in (
                    scan(part.directory, name, form.describe) if form.is_dir else form.scan(reader.file_of(id, name))
                ):
                    values, others = _matched(ahead.before_end_of(found), found)
                    new.fill(kinds, values)
                    _refuse(part, name, others)
                _refuse(part, name, [(place, "no complete datum is there") for place in ahead.rest()])
            except SegmentMissing as error:
                _refuse(part, name, [(place, error.message) for place in ahead.rest()])
    finally:
        reader.close()


def _refuse(part: _Part, segment: str, places: list[tuple[Place, str]]) -> None:
    for (_, offset, size), reason in places:
        part.migration.add(Offender(Location(part.prefix + segment, offset, size), reason))


class _Ahead:
    """The data of a segment in the order of their offsets, taken as far as a scan has come."""

    def __init__(self, places: Iterator[Place]) -> None:
        self._places = places
        self._next = next(places, None)

    def before_end_of(self, found: ScanResult) -> Iterator[Place]:
        """Take those that begin before what was found ends."""
        ends = [offset + 1 for offset in found.offsets[-1:]]
        ends += [damage.offset + damage.size for damage in found.damage]
        end = max(ends, default=0)
        while self._next is not None and self._next[1] < end:
            yield self._next
            self._next = next(self._places, None)

    def rest(self) -> Iterator[Place]:
        """Take all others."""
        while self._next is not None:
            yield self._next
            self._next = next(self._places, None)


def _matched(
    places: Iterator[Place], found: ScanResult
) -> tuple[list[tuple[Mapping[str, Any], int]], list[tuple[Place, str]]]:
    """Give metadata and seq of the data that were found in their places, and those that were not, with the reason."""
    there = {place: at for at, place in enumerate(zip(found.offsets, found.sizes, strict=True))}
    values, others = [], []
    for seq, offset, size in places:
        at = there.get((offset, size))
        if at is None:
            others.append(((seq, offset, size), reason_at(found, offset)))
        else:
            values.append((found.metadata[at], seq))
    return values, others


def _open_once(part: _Part) -> None:
    """Make the index's `-wal` and `-shm`, which readers without the right to write need."""
    # Where it fails the new index is in place all the same, and the next who writes makes them.
    with (
        contextlib.suppress(StorageError, LockError),
        contextlib.closing(Index.open(part.directory, part.config)) as index,
    ):
        index.writer()


def _configure(part: _Part) -> None:
    """Write what an archive's `dataset.toml` is to say."""
    staged = f".{CONFIG}.new"
    with contextlib.suppress(FileNotFoundError):
        part.directory.unlink(staged)
    with part.directory.create_file(staged) as file:
        file.write(0, part.config.to_toml().encode())
        file.sync()
    part.directory.rename(staged, CONFIG)
