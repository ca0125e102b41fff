"""Locks of a dataset: the writers' lock, the locks of long runs, and the shared lock of its directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ondisk.errors import DurabilityLost, InvalidInput, LockError, UnsupportedFilesystem
from ondisk.filesystem.os_errors import raise_as_ours, removed

if TYPE_CHECKING:
    from ondisk.filesystem.directory import Directory

LOCK = ".lock"
_LOCK_RECORD = 256  # bytes; a fixed size, so that writing it needs no new block on a full disk
_MODE = 0o660
_POLL = 0.005  # seconds
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)  # EACCES: on some network filesystems

_held: set[int] = set()
"""The descriptors of the exclusive locks that this process holds."""


def _close_copies() -> None:
    """Close the descriptors that a forked child has of its parent's locks: they would keep these after a kill."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_copies)


class SharedLock:
    """A shared lock of a directory, held until `close`."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


class WritersLock:
    """The writers' lock of a dataset: an flock on the file `.lock`, which is never removed.

    The file contains one record of the holder (JSON, padded with blanks): pid, host, verb, start. Blanks replace it
    when the lock is released. If the holder is killed, the kernel frees the lock at once, and the record stays.

    Args:
        timeout: seconds to wait for the lock.

    Attributes:
        was_killed: a holder left its record: it was killed, or a sync failed. Each one after it leaves its record, too,
            until one who has finished what was interrupted sets this to False.
    """

    _name = LOCK
    _called = "the writers' lock"
    _hint = "Try again when that process has ended, or raise lock_timeout in dataset.toml."

    def __init__(self, directory: Directory, timeout: float = 0) -> None:
        self._directory = directory
        self._timeout = timeout
        self._thread = threading.RLock()  # threads that share this object wait for one another, too
        self._depth = 0
        self._descriptor = -1
        self.was_killed = False

    @contextlib.contextmanager
    def hold(self, verb: str, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock during the block. The same thread may hold it again in the block.

        Args:
            verb: the work that it is held for; the error of a waiting process names it.
            timeout: seconds to wait for it; None waits as long as the lock's own timeout.

        Raises:
            LockError: another process held it for longer than that; names the holder.
            ReadOnly: this user may not write here.
            UnsupportedFilesystem: the filesystem has no locks.
        """
        timeout = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        if not self._thread.acquire(timeout=timeout):
            raise self._timed_out()
        try:
            self._depth += 1
            try:
                if self._depth == 1:
                    self._acquire(verb, deadline)
                yield
            except DurabilityLost:
                self.was_killed = True
                raise
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._release()
        finally:
            self._thread.release()

    def _acquire(self, verb: str, deadline: float) -> None:
        while not self._is_acquired():
            if (left := deadline - time.monotonic()) <= 0:
                raise self._timed_out()
            time.sleep(min(_POLL, left))
        with contextlib.suppress(OSError):
            self.was_killed |= os.pread(self._descriptor, 1, 0) == b"{"
        holder = {
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "verb": verb,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._write(json.dumps(holder).encode()[: _LOCK_RECORD - 1])

    def _is_acquired(self) -> bool:
        """Try once to take the lock; return whether it is this process's now."""
        path = str(self._directory.path / self._name)
        try:
            descriptor = _opened(path)
        except FileNotFoundError as error:
            raise removed(self._directory.path) from error
        except OSError as error:
            raise_as_ours(error, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink > 0:  # else somebody has removed the file, and others lock the next one
                _held.add(descriptor)
                self._descriptor = descriptor
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise _no_locks(self._directory.path) from error
            if error.errno not in _TAKEN:
                raise_as_ours(error, path)
        finally:  # also if an interrupt comes: closing frees the lock
            if self._descriptor != descriptor:
                _held.discard(descriptor)
                os.close(descriptor)
        return self._descriptor == descriptor

    def _release(self) -> None:
        descriptor = self._descriptor
        try:
            if descriptor in _held and not self.was_killed:
                self._write(b"")
        finally:  # also if an interrupt comes while the record is written
            self._descriptor = -1
            if descriptor in _held:
                _held.discard(descriptor)
                # Unlock explicitly: a process that was just forked has a copy, which would keep the lock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def _write(self, record: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk: the lock is held, but names no holder
            os.pwrite(self._descriptor, record.ljust(_LOCK_RECORD - 1) + b"\n", 0)

    def _timed_out(self) -> LockError:
        who = "another process"
        holder: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InvalidInput):
            holder = json.loads(self._directory.read(self._name, _LOCK_RECORD))
            who = f"process {holder['pid']} on {holder['host']} ({holder['verb']}, since {holder['since']})"
        return LockError(
            f"{self._directory.path}: waited {self._timeout:g} s for {self._called}, held by {who}",
            hint=self._hint,
            holder=holder,
        )


def _opened(path: str) -> int:
    """Open a lock's file, and create it if it is missing.

    Only a new file is created with O_CREAT: in a sticky directory Linux refuses the flag for files of other users.
    """
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):  # another process has just created it
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _MODE)
            with contextlib.suppress(PermissionError):
                os.fchmod(descriptor, _MODE)  # whatever the umask is
            return descriptor


def is_locked(directory: Directory) -> bool:
    """Return whether a process holds the writers' lock of a directory; needs no permission to write."""
    try:
        file = directory.open_to_read(LOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    return False


class MaintainLock(WritersLock):
    """The lock of a whole run of maintain: `.maintain.lock`. Writers ignore it, and no process waits for it."""

    _name = ".maintain.lock"
    _called = "the lock of maintain"
    _hint = "Another maintain is running on this dataset: it does the work."


class PipelineLock(WritersLock):
    """The lock of a whole run of a pipeline: `.pipeline.lock` in its dataset for errors. No process waits for it."""

    _name = ".pipeline.lock"
    _called = "the lock of a pipeline"
    _hint = "Another pipeline with this dataset for errors is running; try again when it has ended."


def _no_locks(path: Path) -> UnsupportedFilesystem:
    hint = "Keep the dataset on a filesystem that supports flock."
    return UnsupportedFilesystem(f"{path}: this filesystem has no locks", hint=hint, path=str(path))
