"""The only code of ondisk that opens, writes, syncs, renames, links, unlinks or locks files of a dataset.

Every name is relative to the dataset and is walked from an open directory, component by component, without following
symbolic links: neither a name in a damaged index nor a link somebody planted leads out of the dataset.
(`index.sqlite` is opened by SQLite; `regular_file` refuses a link in its place first.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ondisk.errors import (
    DiskFull,
    DurabilityLost,
    InvalidInput,
    LockError,
    ReadOnly,
    StateError,
    StorageError,
    UnsupportedFilesystem,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK = ".lock"
_LOCK_RECORD = 256  # bytes; of one size, so that writing it needs no new block on a full disk
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p", "lustre", "glusterfs",
                      "beegfs", "gpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs"})  # fmt: skip
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


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
        with _errors_of(str(absolute)):
            absolute.mkdir(parents=True, exist_ok=True)
            for made in missing:
                _sync_path(made.parent)
        return cls.open(absolute)

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
                _raise(error, str(self.path / name), writing=False)

    def inode(self, name: str) -> int | None:
        """Give the inode number of a file at the top of the directory; None where there is none."""
        try:
            return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None
        except OSError as error:
            _raise(error, str(self.path / name), writing=False)

    def regular_file(self, name: str) -> os.stat_result | None:
        """Look at a file that must be a plain one; None where there is none.

        Raises:
            StorageError: something else stands there: a symbolic link, a directory, a device.
        """
        found = self.stat(name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise _not_regular(str(self.path / name))
        return found

    def names(self, name: str = "") -> list[str]:
        """List a directory; empty where there is none."""
        try:
            descriptor = self._open_directory(name)
        except FileNotFoundError:
            return []
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

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

    def create_file(self, name: str) -> WritableFile:
        """Create a file, and the directories on the way to it.

        Durability: new directories' parents are synced; the caller syncs the file and its directory.

        Raises:
            FileExistsError: the name is taken.
        """
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
            with _errors_of(str(self.path / name)):
                os.link(staged, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor, follow_symlinks=False)
        finally:
            self.unlink(staged)
        self.sync()

    def rename(self, old: str, new: str) -> None:
        """Rename a file at the top of the directory; an existing one is replaced.

        Durability: the directory is synced.
        """
        with _errors_of(str(self.path / new)):
            os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        self.sync()

    def unlink(self, name: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._parent_of(name) as (parent, last), _errors_of(str(self.path / name)):
            if parent is None:
                raise FileNotFoundError(name)
            os.unlink(last, dir_fd=parent)

    def sync(self, name: str = "") -> None:
        """Make the entries of a directory durable.

        Raises:
            DurabilityLost: the sync failed; it must not be tried again.
        """
        descriptor = self._open_directory(name)
        try:
            _sync(descriptor, str(self.path / name))
        finally:
            os.close(descriptor)

    def is_writable(self) -> bool:
        """Tell whether this user may make files in the directory."""
        return os.access(self.path, os.W_OK | os.X_OK)

    def is_network(self) -> bool:
        """Tell whether the directory lies on a network filesystem, where SQLite's WAL cannot work."""
        device = os.fstat(self._descriptor).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return False
        for line in mounts.splitlines():
            before, _, after = line.partition(" - ")
            if before.split(" ", 3)[2] == wanted:
                return after.split(" ", 1)[0] in _NETWORK
        return False

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
            raise _not_regular(str(self.path / name))
        return descriptor

    def _open(self, name: str, flags: int) -> int:
        with self._parent_of(name) as (parent, last):
            if parent is None:
                raise FileNotFoundError(name)
            writing = flags & (os.O_RDWR | os.O_CREAT) != 0
            with _errors_of(str(self.path / name), writing=writing):
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
                    with _errors_of(str(self.path / name), writing=False):
                        current = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                except FileNotFoundError:
                    yield None, last
                    return
                opened.append(current)
            yield current, last
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _make_parents(self, name: str) -> None:
        """Make the directories that a name needs, and sync the parent of each new one."""
        parts = components(name)[:-1]
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            with self._parent_of(path) as (parent, last), _errors_of(str(self.path / path)):
                try:
                    os.mkdir(last, dir_fd=parent)
                except FileExistsError:
                    continue
            self.sync("/".join(parts[: depth - 1]))


class ReadableFile:
    """A file open for reading; closed with its last reference, so that no thread reads a closed one."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        try:
            content = os.pread(self._descriptor, size, offset)
            while len(content) < size:
                more = os.pread(self._descriptor, size - len(content), offset + len(content))
                if not more:
                    break
                content += more
        except OSError as error:
            _raise(error, self.path, writing=False)
        return content

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        os.close(self._descriptor)


class WritableFile:
    """A file open for writing; a context manager that closes it."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it; closing it again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _errors_of(self.path):
                os.close(descriptor)

    def write(self, offset: int, content: bytes) -> None:
        with _errors_of(self.path):
            written = os.pwrite(self._descriptor, content, offset)
            while written < len(content):
                written += os.pwrite(self._descriptor, memoryview(content)[written:], offset + written)

    def truncate(self, size: int) -> None:
        with _errors_of(self.path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Make the file's bytes and size durable.

        Raises:
            DurabilityLost: the sync failed; it must not be tried again.
        """
        _sync(self._descriptor, self.path)

    def stat(self) -> os.stat_result:
        return os.fstat(self._descriptor)


class SharedLock:
    """A shared lock of a directory; held until it is closed."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


class WritersLock:
    """The writers' lock of a dataset: `.lock`, held by flock, never removed.

    The file holds one record of the holder (JSON, padded with blanks): pid, host, verb, start. It is stale while
    nobody holds the lock; a killed holder's lock is free at once, since the kernel drops it.
    """

    def __init__(self, directory: Directory, timeout: float) -> None:
        self._directory = directory
        self._timeout = timeout
        self._verb = ""
        self._lock: BaseFileLock | None = None

    @contextlib.contextmanager
    def hold(self, verb: str, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock for the length of the block.

        Args:
            verb: what it is held for, which others are told.
            timeout: seconds to wait for it; `lock_timeout` unless told otherwise.

        Raises:
            LockError: others held it for longer than that; names the holder.
            ReadOnly: this user may not write here.
            UnsupportedFilesystem: the filesystem has no locks.
        """
        import filelock

        if self._lock is None:
            path = self._directory.path / LOCK
            self._lock = filelock.FileLock(
                path,
                timeout=self._timeout,
                mode=0o660,
                poll_interval=0.005,
                preserve_lock_file=True,
                fallback_to_soft=False,
                on_acquired=self._sign,
            )
        self._verb = verb
        try:
            self._lock.acquire(timeout=timeout)
        except filelock.Timeout:
            raise self._timed_out() from None
        except NotImplementedError as error:
            raise _no_locks(self._directory.path) from error
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise _no_locks(self._directory.path) from error
            _raise(error, str(self._directory.path / LOCK))
        try:
            yield
        finally:
            # Released explicitly: a forked child holds a copy of the descriptor, and with it the lock.
            self._lock.release()

    def _sign(self, descriptor: int) -> None:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "verb": self._verb,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        record = json.dumps(holder).encode()[: _LOCK_RECORD - 1].ljust(_LOCK_RECORD - 1) + b"\n"
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same, only nameless
            os.pwrite(descriptor, record, 0)

    def _timed_out(self) -> LockError:
        who = "another process"
        holder: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InvalidInput):
            holder = json.loads(self._directory.read(LOCK, _LOCK_RECORD))
            who = f"process {holder['pid']} on {holder['host']} ({holder['verb']}, since {holder['since']})"
        return LockError(
            f"{self._directory.path}: waited {self._timeout:g} s for the writers' lock, held by {who}",
            hint="Try again when it is done, or raise lock_timeout in dataset.toml.",
            holder=holder,
        )


def components(name: str) -> list[str]:
    """Split a name relative to the dataset.

    Raises:
        InvalidInput: the name is absolute, holds `..` or NUL, or is longer than a file name may be.
    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", "..") or len(part.encode(errors="replace")) > 255 for part in parts):
        raise InvalidInput(f"{name!r} is no name of a file inside the dataset")
    return parts


def _sync(descriptor: int, path: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # The kernel may have dropped the unwritten pages and marked them clean: a second fsync would lie.
        raise DurabilityLost(
            f"{path}: fsync failed: {error.strerror}; nothing of this batch was acknowledged",
            hint="Look at the disk (dmesg), then open the dataset again and append the batch again.",
            path=path,
        ) from error


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor, str(path))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _errors_of(path: str, *, writing: bool = True) -> Iterator[None]:
    """Turn the operating system's errors into ondisk's; those that a caller can handle pass."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except OSError as error:
        _raise(error, path, writing=writing)


def _raise(error: OSError, path: str, *, writing: bool = True) -> NoReturn:
    if error.errno in _NO_SPACE:
        hint = "Free some space; deleting data and repacking work on a full disk."
        raise DiskFull(f"{path}: no space left", hint=hint, path=path) from error
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        raise _not_regular(path) from error
    if error.errno == errno.EBADF:
        raise StateError(f"{path}: the dataset was closed", hint="Open it again.", path=path) from error
    if error.errno in _DENIED and not writing:
        hint = "Ask its owner for the right to read it."
        raise StorageError(f"{path} may not be read by this user", hint=hint, path=path) from error
    if error.errno in _DENIED:
        hint = "Open it read_only, or as a user who may write there."
        raise ReadOnly(f"{path}: {error.strerror}", hint=hint, path=path) from error
    raise StorageError(f"{path}: {error.strerror}", path=path, errno=error.errno) from error


def _not_regular(path: str) -> StorageError:
    hint = "ondisk follows no links inside a dataset: put the file itself in its place."
    return StorageError(f"{path} is, or lies behind, a symbolic link or no plain file", hint=hint, path=path)


def _no_locks(path: Path) -> UnsupportedFilesystem:
    hint = "Keep the dataset on a filesystem with flock."
    return UnsupportedFilesystem(f"{path}: this filesystem has no locks", hint=hint, path=str(path))
