"""Locks of a dataset: the writers' lock, the locks of long runs, and the shared lock of its directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ondisk.errors import DurabilityLost, InvalidInput, LockError, UnsupportedFilesystem
from ondisk.filesystem.os_errors import raise_as_ours

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from ondisk.filesystem.directory import Directory

LOCK = ".lock"
_LOCK_RECORD = 256  # bytes; a fixed size, so that writing it needs no new block on a full disk


class SharedLock:
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

    `was_killed`: a holder left its record: it was killed, or a sync failed. Each one after it leaves its record, too,
    until one who has finished what was interrupted sets this to False.
    """

    _name = LOCK
    _called = "the writers' lock"
    _hint = "Try again when that process has ended, or raise lock_timeout in dataset.toml."

    def __init__(self, directory: Directory, timeout: float = 0) -> None:
        self._directory = directory
        self._timeout = timeout
        self._verb = ""
        self._lock: BaseFileLock | None = None
        self._descriptor = -1
        self.was_killed = False

    @contextlib.contextmanager
    def hold(self, verb: str, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock during the block; the error of a waiting process names the verb.

        Raises LockError, which names the holder, after `timeout` seconds (None: those of the lock); ReadOnly; or
        UnsupportedFilesystem if the filesystem has no locks.
        """
        import filelock

        path = self._directory.held(self._name)
        if self._lock is None or (self._lock.lock_file != path and not self._lock.is_locked):
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
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                hint, here = "Keep the dataset on a filesystem that supports flock.", str(self._directory.path)
                raise UnsupportedFilesystem(f"{here}: this filesystem has no locks", hint=hint, path=here) from error
            raise_as_ours(error, str(self._directory.path / self._name))
        try:
            try:
                yield
            except DurabilityLost:
                self.was_killed = True
                raise
            finally:
                if self._lock.lock_counter == 1 and not self.was_killed:
                    self._write(b"")
        finally:  # also if an interrupt comes while the record is written
            # Release explicitly: a forked child has a copy of the descriptor, which would keep the lock.
            self._lock.release()

    def _sign(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with contextlib.suppress(OSError):
            self.was_killed |= os.pread(descriptor, 1, 0) == b"{"
        holder = {
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "verb": self._verb,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._write(json.dumps(holder).encode()[: _LOCK_RECORD - 1])

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
