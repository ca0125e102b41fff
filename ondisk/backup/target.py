"""The folder of a backup: who may write to it, which points it has, and how files appear and go."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Self

from ondisk.backup.point import POINT, SEGMENTS, Part, Point, SegmentCopy, read_lines, read_point, time_of, whole
from ondisk.dataset.auxiliary_files import CONFIG, check_apart
from ondisk.errors import (
    AlreadyExists,
    DatasetNotFound,
    DurabilityLost,
    IntegrityError,
    OndiskError,
    ReadOnly,
    StateError,
    StorageError,
    VersionTooNew,
    command,
)
from ondisk.filesystem import LOCK, Closing, Directory, WritableFile, WritersLock
from ondisk.segments.generations import parent_of

IDENTITY = "backup.json"
_NEW = "points/.new"
_VERSION = 1
_LIMIT = 64 * 1024  # bytes of `backup.json`
_TOGETHER = 256  # files that are synced together
_POINT = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z")
_ROTTEN = re.compile(r"\.(.+)\.rotten")
_COPY = re.compile(r"\.[0-9a-f]{8}(\.damaged)?$|^\..+\.new$")  # how the name of a copy ends; or a file that is written


class BackupLock(WritersLock):
    """The lock of a backup or of a restore in the folder that it writes to: `.lock`. No process waits for it."""

    _called = "the lock of this folder"
    _hint = "Another backup to it, or restore to it, is running: try again when that has ended."


class Target(Closing):
    """A backup, open. `directory`: its folder."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._waiting: list[tuple[str, str]] = []
        self._changed: set[str] = set()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a backup, to read it; raise DatasetNotFound, or VersionTooNew."""
        try:
            directory = Directory.open(path)
        except (FileNotFoundError, NotADirectoryError):
            raise _no_backup(path) from None
        target = cls(directory)
        if not target._uuid():
            directory.close()
            raise _no_backup(path)
        return target

    @staticmethod
    @contextlib.contextmanager
    def writing(
        path: str | os.PathLike[str], dataset: Path, uuids: Collection[str], *, create: bool
    ) -> Iterator[Target]:
        """Open the backup of a dataset for the length of the block, to add a point.

        Args:
            uuids: of its index: the present one first, then those that it had before it was rebuilt or exchanged.
            create: begin the backup, in a folder that is empty or does not exist; else it must exist.

        Raises:
            AlreadyExists: `create` is true, and there is something at the path: other files, or a backup with a point.
            StateError: it is the backup of another dataset.
            LockError: another run uses it.
        """
        check_apart("backup", path, "dataset", dataset)
        try:
            opened = Target(Directory.create(path)) if create else Target.open(path)
        except FileExistsError as error:
            raise AlreadyExists(f"{error.filename} is not a directory", hint="Choose another path.") from None
        except DatasetNotFound as error:
            first = command("backup", dataset, path, "--create")
            error.hint = f"Check the path, and whether its disk is mounted. To begin a backup there: {first}"
            raise
        with opened as target:
            target._check_own(dataset, uuids)  # before the lock, which would create its file in somebody's folder
            with BackupLock(target.directory).hold("backup"):
                target._check_own(dataset, uuids)
                if create and target.names():
                    hint = f"To add a point to it, omit --create: {command('backup', dataset, path)}"
                    raise AlreadyExists(f"{target.path} is a backup already", hint=hint)
                if not target._uuid():
                    identity = {"version": _VERSION, "uuid": next(iter(uuids)), "dataset": str(dataset)}
                    target.directory.replace(IDENTITY, json.dumps(identity).encode() + b"\n")
                yield target

    def close(self) -> None:
        self.directory.close()

    @property
    def path(self) -> Path:
        return self.directory.path

    def _uuid(self) -> str | None:
        """Return the UUID of the dataset that it was made for; None if this is no backup."""
        path = self.directory.at(IDENTITY)
        try:
            values = json.loads(self.directory.read(IDENTITY, _LIMIT))
            version, uuid = int(values["version"]), str(values["uuid"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            hint = "Begin another backup in another folder; to restore from this one, put the file back from a copy."
            raise StateError(f"{path} is damaged: {error}", hint=hint, path=path) from None
        if version > _VERSION:
            hint = "Use that newer version."
            raise VersionTooNew(f"{path} has version {version}, this ondisk knows {_VERSION}", hint=hint)
        return uuid

    def _check_own(self, dataset: Path, uuids: Collection[str]) -> None:
        """Raise unless this is a backup of the dataset, or an empty folder."""
        names = {*self.directory.names()}
        if CONFIG in names:
            hint = "Choose a folder that is empty or does not exist."
            raise AlreadyExists(f"{self.path} is a dataset: a backup is another kind of folder", hint=hint)
        uuid = self._uuid()
        if uuid is None:
            if others := sorted(names - {LOCK, f".{IDENTITY}.new"}):
                hint = "Choose a folder that is empty or does not exist."
                raise AlreadyExists(f"{self.path} is no backup, and not empty: it contains {others[0]!r}", hint=hint)
            return
        names_of_points = self.names()
        known = {uuid, self.point(names_of_points[-1]).uuid} if names_of_points else {uuid}
        if not known.intersection(uuids):
            message = f"{self.path} is the backup of another dataset than {dataset}: they have different UUIDs"
            raise StateError(message, hint="Choose another folder for this one.", uuid=uuid)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep every run from removing anything, for the length of the block.

        Locks: a shared lock of `backup.json`, which needs no permission to write. Where the filesystem has none, no run
            removes anything.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(contextlib.closing(self.directory.shared(IDENTITY)))
            yield

    def names(self) -> list[str]:
        return sorted(filter(_is_name, self.directory.folders("points")))

    def point(self, name: str) -> Point:
        with self.directory.inside(f"points/{name}") as folder:
            return read_point(folder, name)

    def copies(self, point: Point, part: Part) -> Iterator[SegmentCopy]:
        """Yield the copies of a part of a point; raise IntegrityError if their list is missing or damaged."""
        path = f"points/{point.name}"
        try:
            with self.directory.inside(f"{path}/{part.name}") as folder:
                problem, file = whole(folder, SEGMENTS, part), folder.open_to_read(SEGMENTS)
        except FileNotFoundError:
            problem = f"{self.directory.at(f'{path}/{part.name}/{SEGMENTS}')} is missing"
        if problem is not None:
            hint = f"Restore another point; or remove this one: rm -r {self.directory.at(path)}"
            raise IntegrityError(problem, hint=hint)
        return read_lines(file)

    def has(self, path: str, size: int) -> bool:
        found = self.directory.stat(path)
        return found is not None and found.st_size == size and self.directory.stat(_beside(path, "rotten")) is None

    def note_damage(self, path: str) -> None:
        """Note that a file does not have its checksum, if this user may: the next backup then copies it again."""
        with contextlib.suppress(OndiskError, FileExistsError, FileNotFoundError):
            self.directory.create_file(_beside(path, "rotten"), make=False).close()

    def damaged_in(self, folder: str) -> set[str]:
        return {*(matched[1] for name in self.directory.names(folder) if (matched := _ROTTEN.fullmatch(name)))}

    def stage(self, path: str) -> WritableFile:
        """Create the file of a copy under a hidden name; `keep` or `drop` must follow."""
        self.directory.discard(_beside(path, "new"))
        return self.directory.create_file(_beside(path, "new"))

    def keep(self, path: str, name: str | None = None) -> None:
        """Let a staged file get its name soon; `flush` does it at last. `name`: another name in the same folder."""
        self._waiting.append((_beside(path, "new"), name or path))
        if len(self._waiting) >= _TOGETHER:
            self.flush()

    def repeat(self, path: str, name: str) -> None:
        """Give a copy a second name. Where the filesystem has no links, copy it."""
        try:
            if self.directory.link(path, name):
                self._changed.add(parent_of(name))
                return
        except DurabilityLost:
            raise
        except (StorageError, ReadOnly, FileExistsError):
            pass
        file = self.directory.open_to_read(path)
        with self.stage(name) as staged:
            staged.copy(file, 0, file.size(), 0)
        self.keep(name)

    def drop(self, path: str) -> None:
        self.directory.discard(_beside(path, "new"))

    def flush(self) -> None:
        """Sync the staged files, then rename them to their names, which are durable after `commit`."""
        folders = {parent_of(name) for _, name in self._waiting}
        if self._waiting and not self.directory.sync_together(folders):
            for staged, _ in self._waiting:
                self.directory.open_to_read(staged).sync()
        for staged, name in self._waiting:
            self.directory.rename(staged, name, durable=False)
            self.directory.discard(_beside(name, "rotten"))
        self._changed |= folders
        self._waiting.clear()

    def begin(self) -> bool:
        """Begin a point, and return whether one that was begun before did not come to its end."""
        was_interrupted = any(name.startswith(".") for name in self.directory.folders("points"))
        self.directory.remove_tree(_NEW)
        return was_interrupted

    def part(self, name: str) -> Directory:
        """Create the folder of a part of the point that was begun."""
        return self.directory.inside(f"{_NEW}/{name}", make=True)

    def commit(self, point: Point) -> None:
        """Let the point that was begun appear: sync all that it needs, then rename it, and sync that."""
        self.flush()
        with self.directory.inside(_NEW) as folder:
            folder.replace(POINT, point.encode())
        folders = [*self._changed, *(f"{_NEW}/{part.name}" for part in point.parts), _NEW]
        for each in folders if not self.directory.sync_together(folders) else ():
            self.directory.sync(each)
        self.directory.rename(_NEW, f"points/{point.name}")
        self._changed.clear()

    def remove_points(self, keep: int) -> list[str]:
        """Remove all points but the newest `keep`, and return their names; `sweep` removes their copies."""
        removed = self.names()[:-keep]
        for name in removed:
            with self.directory.exclusive_if_free(IDENTITY) as free:
                if not free:  # somebody restores or verifies: the next run removes it
                    return removed[: removed.index(name)]
                self.directory.rename(f"points/{name}", f"points/.old-{name}")
            self.directory.remove_tree(f"points/.old-{name}")
        return removed

    def sweep(self) -> int:
        """Remove the copies that no point needs, and return how many bytes they had.

        Does nothing while somebody restores from this backup, or verifies it. Leaves files that have no name of a copy:
        they are not from ondisk. The caller must hold the lock.

        Raises:
            IntegrityError: a point is damaged, so what it needs is not known. No copy was removed.

        Memory: the name of each file that is needed; of dir segments that of each folder.
        """
        with self.directory.exclusive_if_free(IDENTITY) as free:
            if not free:
                return 0
            for name in self.directory.folders("points"):
                if name.startswith(".old-"):
                    self.directory.remove_tree(f"points/{name}")
            needed: set[str] = set()
            for name in self.names():
                point = self.point(name)
                for part in point.parts:
                    for copy in self.copies(point, part):
                        needed.add(f"segments/{part.name}/{copy.file}")
                        if copy.is_dir:
                            needed.add(parent_of(f"segments/{part.name}/{copy.file}"))
            return self._sweep("segments", needed)

    def _sweep(self, folder: str, needed: Collection[str]) -> int:
        size = 0
        for entry in self.directory.entries(folder):
            path = f"{folder}/{entry.name}"
            if entry.kind == "directory":
                size += self._sweep(path, needed)
                self.directory.remove_directory(path)
            elif (matched := _ROTTEN.fullmatch(entry.name)) is not None:
                if self.directory.stat(f"{folder}/{matched[1]}") is None:
                    self.directory.discard(path)
            elif (
                path not in needed
                and _COPY.search(entry.name)
                and not (folder in needed and entry.name[:1].isdecimal())
            ):
                self.directory.discard(path)
                size += entry.size
        return size


def _is_name(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return _POINT.fullmatch(name) is not None and time_of(name) is not None
    return False


def _beside(path: str, suffix: str) -> str:
    folder, slash, last = path.rpartition("/")
    return f"{folder}{slash}.{last}.{suffix}"


def _no_backup(path: str | os.PathLike[str]) -> DatasetNotFound:
    hint = "Check the path, and whether its disk is mounted. `ondisk backup DATASET TARGET --create` begins one."
    return DatasetNotFound(f"{os.fspath(path)} is no backup of a dataset", hint=hint)
