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
import stat
import warnings
from collections.abc import Callable, Iterator

from ondisk.config import DatasetConfig
from ondisk.dataset import overlap
from ondisk.dataset.access import Access
from ondisk.dataset.archive_record import ArchiveRecord
from ondisk.dataset.known_archives import (
    state_of,
)
from ondisk.dataset.layout import ARCHIVE, CONFIG, LAST, clear_unmade, create_files, read_config, untrusted
from ondisk.errors import (
    ArchiveOffline,
    ArchiveUntrusted,
    DatasetNotFound,
    DurabilityLost,
    OndiskError,
    StateError,
    command,
    shell_words,
)
from ondisk.filesystem import Directory
from ondisk.index.connection import Connection, connect_to_read
from ondisk.segments.generations import parents

_OF_DATASET = (
    "archive_age",
    "delete_age",
    "quarantine_age",
    "keep_replaced",
    "lock_timeout",
    "max_datum_size",
    "max_depth",
    "replica",
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
    """The archives of one dataset. Each is opened when it is first needed.

    Attributes:
        record: what the dataset knows of them.
    """

    def __init__(self, main: Access) -> None:
        self._main = main
        self._opened: dict[str, Access] = {}
        self.record = ArchiveRecord(main, self)

    def online(self) -> Iterator[Access]:
        """Yield the archives that are used, in the order in which they are queried: by name, `last` at the end.

        The others are those with a fault, see `ondisk.dataset.known_archives`.
        """
        present = self.present()
        faults = self.record.faults(present)
        return (archive for name, archive in present.items() if name not in faults)

    def present(self) -> dict[str, Access]:
        """Return the archives that can be opened, by name, in the order in which they are queried."""
        if self._main.directory.inode(ARCHIVE) is None:
            return {}
        names = [entry.name for entry in self._main.directory.entries(ARCHIVE) if entry.kind == "directory"]
        opened = {name: self.get(name) for name in sorted(names, key=lambda each: (each == LAST, each))
                  if not name.startswith(".")}  # fmt: skip
        return {name: archive for name, archive in opened.items() if archive is not None}

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
        if self._main.directory.inode(ARCHIVE) is None:
            return []
        from ondisk.dataset import summaries

        return summaries.offline(self._main.directory)

    def warn_of_offline(self, effect: str = "was not queried") -> None:
        """Warn of archives that are offline, and of archives whose indices may have lost data.

        Args:
            effect: what this means for the caller.
        """
        for kind, message in self.doubts(effect):
            warnings.warn(message, kind, stacklevel=2)

    def doubts(self, effect: str | None) -> Iterator[tuple[type[ArchiveOffline], str]]:
        """Yield what `warn_of_offline` warns of.

        Args:
            effect: of archives that are offline; None if they have none.
        """
        for name in self.offline() if effect is not None else ():
            yield ArchiveOffline, f"{self._main.path}: the archive {name!r} is offline and {effect}"
        for archive, reason in self.untrusted():
            yield ArchiveUntrusted, f"{archive.path}: {reason}"

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
                copy = shell_words("cp", self._main.path / CONFIG, f"{path}/")
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
        return max(map(_seq, self.present().values()), default=0)

    def catch_up(self) -> None:
        """Advance the dataset's `seq` to that of the archives, which is higher after an archive's index was rebuilt.

        Not that of a replica: it is the last change of the source, and an archive that somebody put there has others.
        """
        if self._main.config.replica:
            return
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
        return None if found is None or LAST in self.record.faults(self.present()) else found

    def check_last(self) -> None:
        """Raise if the archive that repack fills is not used.

        Raises:
            StateError: it is away, or has another fault.
        """
        for each in self.record.unusable():
            if each.name == LAST:
                raise self.record.problem(each)

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

    def close(self) -> None:
        for name in [*self._opened]:
            self._drop(name)

    def _open(self, directory: Directory, prefix: str) -> Access:
        try:
            config = read_config(directory)
        except DatasetNotFound:
            directory.close()
            raise
        config = config._replace(**{name: getattr(self._main.config, name) for name in _OF_DATASET})
        return _Archive(self._main, self, directory, config, prefix)

    def _drop(self, name: str) -> None:
        found = self._opened.pop(name, None)
        if found is not None:
            found.close()


def _has_segments(directory: Directory, place: str) -> bool:
    with directory.inside(place) as archive:
        return any(True for _ in parents(archive))


def _seq(access: Access) -> int:
    return state_of(access.current().index)[1]
