"""A dataset's directory, and the operations on names in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from ondisk.errors import InvalidInput, NotFound, ReadOnly, StorageError
from ondisk.filesystem import files
from ondisk.filesystem.files import Closing, ReadableFile, WritableFile
from ondisk.filesystem.lock import SharedLock
from ondisk.filesystem.os_errors import denied, errors_of, not_regular, raise_as_ours
from ondisk.named_tuple import NamedTuple

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p", "lustre", "glusterfs",
                      "beegfs", "gpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs"})  # fmt: skip

_SYNCED_TOGETHER = frozenset({"ext4", "xfs", "btrfs"})
"""Filesystems where syncfs waits for all data and reports errors."""

_LONGEST = 255
"""Bytes of a file name, at most."""

Kind: TypeAlias = Literal["file", "directory", "other"]


class Entry(NamedTuple):
    """An entry of a directory."""

    name: str  # the last component
    kind: Kind  # "file", "directory", or "other": a link, a device …
    size: int  # bytes
    mtime: int  # last change of the content, nanoseconds since 1970
    ctime: int  # last change of anything, names included, nanoseconds since 1970
    inode: int  # the same for all names of one file
    looks_readable: bool = True  # its mode lets this user read it; else only `check_readable` knows

    @classmethod
    def of(cls, name: str, found: os.stat_result) -> Entry:
        mode = found.st_mode
        kind: Kind = "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"
        needed = stat.S_IROTH | (stat.S_IXOTH if kind == "directory" else 0)
        user = os.geteuid()
        is_readable = not user or mode & needed == needed or (found.st_uid == user and (mode >> 6) & needed == needed)
        return cls(name, kind, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, is_readable)


class Directory(Closing):
    """A dataset's directory, held open.

    Attributes:
        path: its path.
        kept: what was moved or copied to quarantine since it was opened, for reports; `ondisk.segments.quarantine` adds
            to it.

    Raises, in every method:
        InvalidInput: the name leads out of the directory.
        StorageError: a component is a symbolic link, or the operating system refuses; DiskFull, ReadOnly
            or DurabilityLost if that is the reason.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.kept: list[str] = []
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Directory:
        """Open an existing directory; raise FileNotFoundError, NotADirectoryError, or StorageError."""
        absolute = Path(path).absolute()
        try:
            return cls(absolute, os.open(absolute, os.O_RDONLY | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except PermissionError as error:
            raise denied(str(absolute)) from error
        except OSError as error:
            raise StorageError(f"{absolute}: {error.strerror}", errno=error.errno) from error

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Directory:
        """Create a directory and its parents if they are missing, and open it.

        Raises FileExistsError if a part of the path is no directory, InvalidInput, ReadOnly, or StorageError.
        Durability: syncs the parent of each new directory, so the path survives power loss.
        """
        absolute = Path(path).absolute()
        try:
            if any(len(os.fsencode(part)) > _LONGEST for part in absolute.parts):
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))  # before parents are created
            missing = [each for each in (absolute, *absolute.parents) if not each.exists()]
            absolute.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _raise_not_created(absolute, error)
        with errors_of(str(absolute)):
            for made in missing:
                with cls.open(made.parent) as parent:
                    parent.sync()
        return cls.open(absolute)

    @classmethod
    def above(cls, path: str | os.PathLike[str]) -> Directory:
        """Open the directory of a file, which need not exist; raise NotFound without it, or StorageError."""
        parent = Path(path).absolute().parent
        try:
            return cls.open(parent)
        except (FileNotFoundError, NotADirectoryError):
            hint = f"Create it (`mkdir -p {parent}`), or choose another file."
            raise NotFound(f"{parent}: no such directory", hint=hint) from None

    def inside(self, name: str, *, make: bool = False, durable: bool = True) -> Directory:
        """Open a subdirectory; `make` it and those above it first; if `durable`, sync the parent of each new one."""
        if make:
            self._make_parents(f"{name}/", durable=durable)
        return Directory(self.path / name, self._open_directory(name))

    def at(self, name: str) -> str:
        """Return the path of a name, for messages: in a tenth of the time that pathlib takes."""
        return f"{self.path}/{name}" if name else str(self.path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def held(self, name: str) -> str:
        """Return the path of a name for a library that opens files by path, also after this folder was moved."""
        with contextlib.suppress(OSError):  # without `/proc`, or the permission to read there
            if not self.is_removed:
                return f"{os.readlink(f'/proc/self/fd/{self._descriptor}')}/{name}"
        return self.at(name)

    def __del__(self) -> None:
        self.close()

    def stat(self, name: str) -> os.stat_result | None:
        """Return the stat of a file, without following links, or None if it does not exist."""
        if "/" not in name:  # no directory to open: every query looks at the index like this
            components(name)
            return self._stat_in(self._descriptor, name, name)
        with self._parent_of(name) as (parent, last):
            return None if parent is None else self._stat_in(parent, last, name)

    def _stat_in(self, parent: int, last: str, name: str) -> os.stat_result | None:
        try:
            return os.stat(last, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise_as_ours(error, self.at(name), writing=False)

    @property
    def is_removed(self) -> bool:
        """Whether the directory itself was removed. What is at its path now, if anything, is another one."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError as error:
            raise_as_ours(error, str(self.path), writing=False)

    def inode(self, name: str) -> int | None:
        """Return the inode number of a file, or None if it does not exist; `.` is this directory."""
        found = self.stat(name)
        return None if found is None else found.st_ino

    def regular_file(self, name: str) -> os.stat_result | None:
        """Return the stat of a regular file, or None without one; raise StorageError if it is anything else."""
        found = self.stat(name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise not_regular(self.at(name))
        return found

    def names(self, name: str = "") -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        with self._listed(name) as descriptor:
            return [] if descriptor is None else os.listdir(descriptor)

    def folders(self, name: str = "") -> list[str]:
        """Return the names of the directories in a directory, from one listing; none if it does not exist."""
        with self._listed(name) as descriptor:
            if descriptor is None:
                return []
            with os.scandir(descriptor) as found:
                return [each.name for each in found if each.is_dir(follow_symlinks=False)]

    def entries(self, name: str = "") -> list[Entry]:
        """Return all entries of a directory that stay, hidden ones too, in order of names; none without it."""
        found = []
        with self._listed(name) as descriptor:
            for each in [] if descriptor is None else sorted(os.listdir(descriptor)):
                with contextlib.suppress(FileNotFoundError):
                    found.append(Entry.of(each, os.stat(each, dir_fd=descriptor, follow_symlinks=False)))
        return found

    @contextlib.contextmanager
    def _listed(self, name: str) -> Iterator[int | None]:
        """Open a directory, for the length of the block; yield None if it does not exist."""
        try:
            descriptor = self._open_directory(name)
        except FileNotFoundError:
            yield None
            return
        try:
            with errors_of(self.at(name), writing=False):
                yield descriptor
        finally:
            os.close(descriptor)

    def open_to_read(self, name: str) -> ReadableFile:
        """Open a regular file for reading; raise FileNotFoundError if it does not exist."""
        return ReadableFile(self._open_file(name, os.O_RDONLY), self.at(name))

    def check_readable(self, name: str) -> None:
        """Raise unless this user may read or list a path that is no link; FileNotFoundError if nothing is there."""
        descriptor = self._open(name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            if is_directory and not os.access(".", os.X_OK, dir_fd=descriptor, effective_ids=True):
                raise denied(self.at(name))
        finally:
            os.close(descriptor)

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a small file; raise FileNotFoundError, or InvalidInput if it is too large."""
        file = self.open_to_read(name)
        content = file.read(0, limit + 1)
        if len(content) > limit:
            raise InvalidInput(f"{file.path} is larger than {limit} bytes")
        return content

    def open_to_write(self, name: str) -> WritableFile:
        """Open an existing regular file for writing; raise FileNotFoundError if it does not exist."""
        return WritableFile(self._open_file(name, os.O_RDWR), self.at(name))

    def separate(self, name: str, staged: str) -> bool:
        """Replace a file that has other names by a copy, so that they do not change with it; return whether it had any.

        The others may be somebody's copies, made with `cp -al` or rsnapshot. `staged`: the name of the copy until then.

        Durability: syncs the copy, renames it, syncs the directory.
        """
        found = self.stat(name)
        if found is None or found.st_nlink < 2:
            return False
        source = self.open_to_read(name)
        self.discard(staged)
        with self.create_file(staged) as copy:
            copy.copy(source, 0, source.size(), 0)
            copy.sync()
        self.rename(staged, name)
        return True

    def create_file(self, name: str, *, make: bool = True) -> WritableFile:
        """Create a file and open it for writing; raise FileExistsError, or FileNotFoundError without its directory.

        `make`: create the directories above it if they are missing.
        Durability: syncs the parents of new directories; the caller syncs the file and its directory.
        """
        if make:
            self._make_parents(name)
        return WritableFile(self._open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), self.at(name))

    def write_new(self, name: str, content: bytes, *, staged: str | None = None) -> None:
        """Create a small file that appears complete or not at all; raise FileExistsError if the name is taken.

        `staged`: name of the hidden file that is written first; None for one that only this process uses.
        Durability: syncs the file, links it to its name, syncs the directory. A crash in between leaves a hidden file.
        """
        with self._written(staged or f".{name}.{os.getpid()}", content) as staged:
            self.link(staged, name)
        self.sync()

    def add(self, name: str, content: bytes, staged: str) -> None:
        """Create a file in this directory that appears complete or not at all, in a quarter of the time of `write_new`.

        Raises FileExistsError if the name is taken. A filesystem without hard links does not say so if the file was
        created in this very moment, and replaces it.
        Durability: none; the caller syncs many files together. A crash leaves the hidden file `staged`, or no file.
        """
        components(name)
        here = self._descriptor
        try:
            try:
                descriptor = self._open_in(here, staged, staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:  # of a process that was killed
                self.discard(staged)
                descriptor = self._open_in(here, staged, staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with WritableFile(descriptor, self.at(name)) as file:
                file.write(0, content)
            with errors_of(self.at(name)):
                try:
                    os.link(staged, name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
                except PermissionError:
                    os.rename(staged, name, src_dir_fd=here, dst_dir_fd=here)
        finally:  # also after an interrupt during `open`, which takes longest
            with contextlib.suppress(OSError):
                os.unlink(staged, dir_fd=here)

    def replace(
        self, name: str, content: bytes, *, staged: str | None = None, like: os.stat_result | None = None
    ) -> None:
        """Create or replace a small file, which is the old one or the new one at every moment, complete.

        `staged`: name of the hidden file that is written first; None for `.NAME.new`, under a lock. `like`: the file
        whose owner and permissions the new one gets, where that is possible.
        Durability: syncs the file, renames it, syncs the directory. A crash in between leaves the hidden file, which
            the next call removes.
        """
        with self._written(staged or f".{name}.new", content, like) as staged:
            self.rename(staged, name)

    @contextlib.contextmanager
    def _written(self, staged: str, content: bytes, like: os.stat_result | None = None) -> Iterator[str]:
        """Write and sync a hidden file for the length of the block; yield its name."""
        self.discard(staged)
        try:
            with self.create_file(staged) as file:
                if like is not None:
                    file.belong_like(like)
                file.write(0, content)
                file.sync()
            yield staged
        finally:
            self.discard(staged)

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        """Rename a file, which may replace another; if `durable`, sync its folder; or raise FileNotFoundError."""
        with self._parent_of(old) as (source, before), self._parent_of(new) as (target, after):
            if source is None or target is None:
                raise FileNotFoundError(old)
            with errors_of(self.at(new)):
                os.rename(before, after, src_dir_fd=source, dst_dir_fd=target)
        if durable:
            self.sync(new.rpartition("/")[0])

    def link(self, name: str, alias: str, directory: Directory | None = None) -> bool:
        """Link a file to a second name, here or in another directory; missing directories are created.

        Returns False if the second name is on another filesystem; then nothing was done. Raises FileNotFoundError, or
        FileExistsError if the alias is taken. Durability: none; the caller syncs the directory.
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
        """Remove a file; raise FileNotFoundError if it does not exist."""
        with self._parent_of(name) as (parent, last), errors_of(self.at(name)):
            if parent is None:
                raise FileNotFoundError(name)
            os.unlink(last, dir_fd=parent)

    def discard(self, *names: str) -> None:
        """Remove those of the files that exist."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.unlink(name)

    def remove_directory(self, name: str) -> None:
        """Remove a directory if it exists and is empty."""
        with self._parent_of(name) as (parent, last), errors_of(self.at(name)):
            if parent is None:
                return
            try:
                os.rmdir(last, dir_fd=parent)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def remove_tree(self, name: str) -> None:
        """Remove a directory with everything in it, if it exists. Links in it are removed, not followed."""
        for entry in self.entries(name):
            if entry.kind == "directory":
                self.remove_tree(f"{name}/{entry.name}")
            else:
                self.discard(f"{name}/{entry.name}")
        self.remove_directory(name)

    def sync(self, name: str = "") -> None:
        """Make the entries of a directory durable; raise DurabilityLost if that failed: the caller must not retry."""
        descriptor = self._open_directory(name)
        try:
            files.sync(descriptor, self.at(name))
        finally:
            os.close(descriptor)

    def is_writable(self) -> bool:
        """Return whether this user may create files in the directory."""
        return os.access(self.path, os.W_OK | os.X_OK)

    def free_space(self) -> int:
        """Return the bytes that this user may still write to the filesystem."""
        found = os.fstatvfs(self._descriptor)
        return (found.f_bavail if os.geteuid() else found.f_bfree) * found.f_frsize

    def is_network(self) -> bool:
        """Return whether the directory is on a network filesystem, where SQLite's WAL cannot work."""
        return self._filesystem() in _NETWORK

    @property
    def device(self) -> int:
        """The number of the filesystem that the directory is on."""
        return os.fstat(self._descriptor).st_dev

    @property
    def can_sync_together(self) -> bool:
        """Whether `sync_together` is safe on the directory's filesystem, and with this kernel."""
        return files.can_sync_filesystem() and self._filesystem() in _SYNCED_TOGETHER

    def sync_together(self, names: Iterable[str]) -> bool:
        """Make all files of some directories durable in one call, and the directories' entries.

        Returns False if that is not safe: the filesystem or the kernel may not report errors, or one of the directories
        is on another filesystem. Then nothing was done. Raises DurabilityLost, which the caller must not retry.
        Cost: one call for any number of files; it also waits for what others write to this filesystem.
        """
        found = map(self.stat, names)
        if any(each is None or each.st_dev != self.device for each in found) or not self.can_sync_together:
            return False
        # syncfs reports errors since this descriptor was opened, which was before this process wrote anything.
        return files.sync_filesystem(self._descriptor, str(self.path))

    def _filesystem(self) -> str | None:
        """Return the type of the directory's filesystem, or None if the mount table does not contain it."""
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

    def shared(self, name: str = "") -> SharedLock:
        """Take a shared lock of the directory, so that no checkpoint of the index runs, or of a file; waits."""
        descriptor = self._open_file(name, os.O_RDONLY) if name else self._open_directory("")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
        return SharedLock(descriptor)

    @contextlib.contextmanager
    def exclusive_if_free(self, name: str = "") -> Iterator[bool]:
        """Try to hold the exclusive lock of the directory, or of a file; yield False if somebody holds a shared one."""
        with contextlib.ExitStack() as stack:
            descriptor = self._descriptor
            if name:
                descriptor = self._open_file(name, os.O_RDWR)
                stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another process holds it, or the filesystem has no locks: then a shared one is not safe
                yield False
                return
            stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
            yield True

    def _open_directory(self, name: str) -> int:
        return self._open(name or ".", os.O_RDONLY | os.O_DIRECTORY)

    def _open_file(self, name: str, flags: int) -> int:
        # O_NONBLOCK: opening a FIFO in place of the file must not block; regular files ignore the flag.
        descriptor = self._open(name, flags | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise not_regular(self.at(name))
        return descriptor

    def _open(self, name: str, flags: int) -> int:
        if "/" not in name:  # as in `stat`: each blob that a query reads is opened like this
            components(name)
            return self._open_in(self._descriptor, name, name, flags)
        with self._parent_of(name) as (parent, last):
            if parent is None:
                raise FileNotFoundError(name)
            return self._open_in(parent, last, name, flags)

    def _open_in(self, parent: int, last: str, name: str, flags: int) -> int:
        try:
            return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise_as_ours(error, self.at(name), writing=flags & (os.O_RDWR | os.O_CREAT) != 0)

    @contextlib.contextmanager
    def _parent_of(self, name: str) -> Iterator[tuple[int | None, str]]:
        """Yield the descriptor of a name's directory, or None if a directory is missing, and the last component."""
        *directories, last = components(name)
        current = self._descriptor
        opened: list[int] = []
        try:
            for each in directories:
                try:
                    with errors_of(self.at(name), writing=False):
                        current = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                except FileNotFoundError:
                    yield None, last
                    return
                opened.append(current)
            yield current, last
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _is_empty(self, name: str) -> bool:
        descriptor = self._open_directory(name)
        try:
            with os.scandir(descriptor) as entries:
                return next(entries, None) is None
        finally:
            os.close(descriptor)

    def _make_parents(self, name: str, *, durable: bool = True) -> None:
        """Create the directories that a name needs; if `durable`, sync the parent of each new one.

        An empty one may be new, too: of a process that was killed before it had synced the parent.
        """
        parts = components(name.rpartition("/")[0]) if "/" in name else ()
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            with self._parent_of(path) as (parent, last), errors_of(self.at(path)):
                try:
                    os.mkdir(last, dir_fd=parent)
                except FileExistsError:
                    if not durable or not self._is_empty(path):
                        continue
            if durable:
                self.sync("/".join(parts[: depth - 1]))


def _raise_not_created(path: Path, error: OSError) -> NoReturn:
    match error.errno:
        case errno.EEXIST | errno.ENOTDIR | errno.ELOOP:
            taken = next((each for each in reversed((path, *path.parents)) if not each.is_dir()), path)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(taken)) from error
        case errno.ENAMETOOLONG:
            longest = max(path.parts, key=len)
            message = f"a path may not be so long, nor a name in it: {longest:.60}…, {len(os.fsencode(longest))} bytes"
            raise InvalidInput(message, hint="Choose a shorter path.") from error
        case errno.EACCES | errno.EPERM | errno.EROFS:
            hint = "Choose another path, or create it as a user with permission to write there."
            raise ReadOnly(f"{path} cannot be created: {error.strerror}", hint=hint, path=str(path)) from error
        case errno.ENOENT:  # a filesystem where nobody can create directories, such as /proc
            hint = "Choose a path on another filesystem: nobody can create a directory there."
            raise StorageError(f"{path} cannot be created: {error.strerror}", hint=hint, path=str(path)) from error
    raise_as_ours(error, str(path))


@lru_cache(maxsize=1024)  # every query looks at the index, by name
def components(name: str) -> tuple[str, ...]:
    """Return the components of a name; raise InvalidInput if it leads out of the dataset, or is too long."""
    parts = tuple(name.split("/"))
    if "\0" in name or any(part in ("", "..") or len(part.encode(errors="replace")) > _LONGEST for part in parts):
        raise InvalidInput(f"{name!r} is not a name of a file inside the dataset")
    return parts
