"""A dataset's directory, and what can be done with names in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from ondisk.errors import InvalidInput
from ondisk.filesystem import files
from ondisk.filesystem.files import ReadableFile, WritableFile
from ondisk.filesystem.lock import SharedLock
from ondisk.filesystem.os_errors import errors_of, not_regular, raise_as_ours

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p", "lustre", "glusterfs",
                      "beegfs", "gpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs"})  # fmt: skip

_SYNCED_TOGETHER = frozenset({"ext4", "xfs", "btrfs"})
"""Filesystems whose syncfs waits for all data and tells of errors."""

Kind: TypeAlias = Literal["file", "directory", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands under a name of a directory.

    Attributes:
        name: its last component.
        kind: "file", "directory", or "other": a link, a device …
        size: bytes.
        mtime: when its content changed last, nanoseconds since 1970.
        ctime: when anything of it changed last, its names included.
        inode: two names of one file have the same.
    """

    name: str
    kind: Kind
    size: int
    mtime: int
    ctime: int
    inode: int

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> Entry:
        mode = found.st_mode
        kind: Kind = "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"
        return cls(name, kind, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


class Directory:
    """A dataset's directory, held open.

    Raises, in every method:
        InvalidInput: the name leads out of the directory.
        StorageError: a component is a symbolic link, or the operating system refuses; DiskFull, ReadOnly
            and DurabilityLost where the reason is known.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Directory:
        """Open an existing directory.

        Raises:
            FileNotFoundError, NotADirectoryError: there is none.
        """
        absolute = Path(path).absolute()
        return cls(absolute, os.open(absolute, os.O_RDONLY | os.O_DIRECTORY))

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Directory:
        """Make a directory, with its parents, and open it; an existing one is opened.

        Durability: each new directory's parent is synced, so the path survives power loss.
        """
        absolute = Path(path).absolute()
        missing = [each for each in (absolute, *absolute.parents) if not each.exists()]
        with errors_of(str(absolute)):
            absolute.mkdir(parents=True, exist_ok=True)
            for made in missing:
                sync_path(made.parent)
        return cls.open(absolute)

    def inside(self, name: str, *, make: bool = False, durable: bool = True) -> Directory:
        """Open a directory in this one.

        Args:
            make: make it first, and the directories on the way to it, if they are missing.
            durable: sync the parent of each that is made.

        Raises:
            FileNotFoundError: there is none.
            StorageError: something else stands there.
        """
        if make:
            self._make_parents(f"{name}/", durable=durable)
        return Directory(self.path / name, self._open_directory(name))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stat(self, name: str) -> os.stat_result | None:
        """Look at a file without following links; None where there is none."""
        with self._parent_of(name) as (parent, last):
            if parent is None:
                return None
            try:
                return os.stat(last, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise_as_ours(error, str(self.path / name), writing=False)

    def inode(self, name: str) -> int | None:
        """Return the inode number of a file, or None if it does not exist; `.` is this directory."""
        found = self.stat(name)
        return None if found is None else found.st_ino

    def regular_file(self, name: str) -> os.stat_result | None:
        """Look at a file that must be a plain one; None where there is none.

        Raises:
            StorageError: something else stands there: a symbolic link, a directory, a device.
        """
        found = self.stat(name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise not_regular(str(self.path / name))
        return found

    def names(self, name: str = "") -> list[str]:
        """List a directory; empty where there is none."""
        try:
            descriptor = self._open_directory(name)
        except FileNotFoundError:
            return []
        try:
            with errors_of(str(self.path / name), writing=False):
                return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def entries(self, name: str = "") -> list[Entry]:
        """Look at everything in a directory, hidden names too, in the order of names; empty where there is none.

        What goes while it is looked at is left out.
        """
        try:
            descriptor = self._open_directory(name)
        except FileNotFoundError:
            return []
        found = []
        try:
            with errors_of(str(self.path / name), writing=False):
                for each in sorted(os.listdir(descriptor)):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(Entry.of(each, os.stat(each, dir_fd=descriptor, follow_symlinks=False)))
        finally:
            os.close(descriptor)
        return found

    def open_to_read(self, name: str) -> ReadableFile:
        """Open a plain file.

        Raises:
            FileNotFoundError: there is none.
        """
        return ReadableFile(self._open_file(name, os.O_RDONLY), str(self.path / name))

    def read(self, name: str, limit: int) -> bytes:
        """Read a whole small file.

        Raises:
            FileNotFoundError: there is none.
            InvalidInput: it is larger than `limit` bytes.
        """
        file = self.open_to_read(name)
        content = file.read(0, limit + 1)
        if len(content) > limit:
            raise InvalidInput(f"{file.path} is larger than {limit} bytes")
        return content

    def open_to_write(self, name: str) -> WritableFile:
        """Open an existing plain file for writing.

        Raises:
            FileNotFoundError: there is none.
        """
        return WritableFile(self._open_file(name, os.O_RDWR), str(self.path / name))

    def create_file(self, name: str, *, make: bool = True) -> WritableFile:
        """Create a file.

        Args:
            make: make the directories on the way to it, if they are missing.

        Durability: new directories' parents are synced; the caller syncs the file and its directory.

        Raises:
            FileExistsError: the name is taken.
            FileNotFoundError: there is no directory for it.
        """
        if make:
            self._make_parents(name)
        return WritableFile(self._open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), str(self.path / name))

    def write_new(self, name: str, content: bytes) -> None:
        """Write a small file that appears whole or not at all.

        Durability: file synced, linked to its name, directory synced. Killed between: a hidden file is left.

        Raises:
            FileExistsError: the name is taken.
        """
        staged = f".{name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            self.unlink(staged)
        with self.create_file(staged) as file:
            file.write(0, content)
            file.sync()
        try:
            self.link(staged, name)
        finally:
            self.unlink(staged)
        self.sync()

    def rename(self, old: str, new: str) -> None:
        """Rename a file; an existing one is replaced.

        Durability: the new name's directory is synced.

        Raises:
            FileNotFoundError: there is no such file, or no directory for it.
        """
        with self._parent_of(old) as (source, before), self._parent_of(new) as (target, after):
            if source is None or target is None:
                raise FileNotFoundError(old)
            with errors_of(str(self.path / new)):
                os.rename(before, after, src_dir_fd=source, dst_dir_fd=target)
        self.sync(new.rpartition("/")[0])

    def link(self, name: str, alias: str, directory: Directory | None = None) -> bool:
        """Give a file a second name, here or in another directory; the directories on the way to it are made.

        Returns:
            False where that is on another filesystem, so that nothing was done.

        Durability: none; the caller syncs the directory.

        Raises:
            FileNotFoundError: there is no such file.
            FileExistsError: the alias is taken.
        """
        directory = directory or self
        directory._make_parents(alias)
        with self._parent_of(name) as (source, before), directory._parent_of(alias) as (target, after):
            if source is None or target is None:
                raise FileNotFoundError(name)
            with errors_of(str(directory.path / alias)):
                try:
                    os.link(before, after, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    return False
        return True

    def unlink(self, name: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._parent_of(name) as (parent, last), errors_of(str(self.path / name)):
            if parent is None:
                raise FileNotFoundError(name)
            os.unlink(last, dir_fd=parent)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory; one that is not empty, or not there, stays as it is."""
        with self._parent_of(name) as (parent, last), errors_of(str(self.path / name)):
            if parent is None:
                return
            try:
                os.rmdir(last, dir_fd=parent)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def sync(self, name: str = "") -> None:
        """Make the entries of a directory durable.

        Raises:
            DurabilityLost: the sync failed; it must not be tried again.
        """
        descriptor = self._open_directory(name)
        try:
            files.sync(descriptor, str(self.path / name))
        finally:
            os.close(descriptor)

    def is_writable(self) -> bool:
        """Tell whether this user may make files in the directory."""
        return os.access(self.path, os.W_OK | os.X_OK)

    def is_network(self) -> bool:
        """Tell whether the directory lies on a network filesystem, where SQLite's WAL cannot work."""
        return self._filesystem() in _NETWORK

    def sync_together(self, names: Iterable[str]) -> bool:
        """Make durable at once what was written in some directories, their entries too.

        Returns:
            False where that cannot be done safely: the filesystem or the kernel may not tell of errors, or one of the
            directories is on another filesystem. Then nothing was done.

        Raises:
            DurabilityLost: it failed; it must not be tried again.

        Cost: one call for any number of files; waits for what others write to this filesystem, too.
        """
        device = os.fstat(self._descriptor).st_dev
        found = map(self.stat, names)
        if any(each is None or each.st_dev != device for each in found) or self._filesystem() not in _SYNCED_TOGETHER:
            return False
        # Errors are told since this descriptor was opened, which was before anything was written.
        return files.sync_filesystem(self._descriptor, str(self.path))

    def _filesystem(self) -> str | None:
        """Name the kind of filesystem that the directory lies on; None where nothing says it."""
        device = os.fstat(self._descriptor).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return None
        for line in mounts.splitlines():
            before, _, after = line.partition(" - ")
            if before.split(" ", 3)[2] == wanted:
                return after.split(" ", 1)[0]
        return None

    def shared(self) -> SharedLock:
        """Take a shared lock of the directory: no checkpoint of the index runs while it is held.

        Locks: waits for a checkpoint that runs.
        """
        descriptor = self._open_directory("")
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return SharedLock(descriptor)

    @contextlib.contextmanager
    def exclusive_if_free(self) -> Iterator[bool]:
        """Hold the exclusive lock of the directory if nobody holds a shared one; yield whether that is so."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held, or a filesystem without locks: then nobody can hold a shared one safely
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _open_directory(self, name: str) -> int:
        return self._open(name or ".", os.O_RDONLY | os.O_DIRECTORY)

    def _open_file(self, name: str, flags: int) -> int:
        """Open a plain file; anything else is closed again and refused."""
        # O_NONBLOCK: a FIFO in place of a file must not hang us; it changes nothing for plain files.
        descriptor = self._open(name, flags | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise not_regular(str(self.path / name))
        return descriptor

    def _open(self, name: str, flags: int) -> int:
        with self._parent_of(name) as (parent, last):
            if parent is None:
                raise FileNotFoundError(name)
            writing = flags & (os.O_RDWR | os.O_CREAT) != 0
            with errors_of(str(self.path / name), writing=writing):
                return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)

    @contextlib.contextmanager
    def _parent_of(self, name: str) -> Iterator[tuple[int | None, str]]:
        """Walk to the directory of the last component; None where a directory on the way is missing."""
        *directories, last = components(name)
        current = self._descriptor
        opened: list[int] = []
        try:
            for each in directories:
                try:
                    with errors_of(str(self.path / name), writing=False):
                        current = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                except FileNotFoundError:
                    yield None, last
                    return
                opened.append(current)
            yield current, last
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _make_parents(self, name: str, *, durable: bool = True) -> None:
        """Make the directories that a name needs, and sync the parent of each new one if they are to be durable."""
        parts = components(name.rpartition("/")[0]) if "/" in name else []
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            with self._parent_of(path) as (parent, last), errors_of(str(self.path / path)):
                try:
                    os.mkdir(last, dir_fd=parent)
                except FileExistsError:
                    continue
            if durable:
                self.sync("/".join(parts[: depth - 1]))


def components(name: str) -> list[str]:
    """Split a name relative to the dataset.

    Raises:
        InvalidInput: the name is absolute, holds `..` or NUL, or is longer than a file name may be.
    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", "..") or len(part.encode(errors="replace")) > 255 for part in parts):
        raise InvalidInput(f"{name!r} is no name of a file inside the dataset")
    return parts


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files.sync(descriptor, str(path))
    finally:
        os.close(descriptor)
