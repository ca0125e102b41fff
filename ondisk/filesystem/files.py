"""Open files of a dataset, for reading or for writing."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Self

from ondisk.errors import DurabilityLost
from ondisk.filesystem.os_errors import errors_of, raise_as_ours

if TYPE_CHECKING:
    from ctypes import CDLL

_BLOCK = 1024 * 1024  # bytes of one write: in one large write, ext4 can take several times as long for each
_WRITEBACK = 2 * 1024 * 1024  # bytes; with 8 MiB, a commit of 16 MiB took a tenth longer
_SYNC_FILE_RANGE_WRITE = 2
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


class Closing:
    """What a `with` block closes at its end."""

    __slots__ = ()

    def close(self) -> None:
        """Free what it holds; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _OpenFile:
    __slots__ = ("_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file."""
        try:
            content = os.pread(self._descriptor, size, offset)
            while len(content) < size:
                more = os.pread(self._descriptor, size - len(content), offset + len(content))
                if not more:
                    break
                content += more
        except OSError as error:
            raise_as_ours(error, self.path, writing=False)
        return content

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read bytes into a buffer. Return their number; 0 only at the end of the file."""
        try:
            return os.preadv(self._descriptor, [buffer], offset)
        except OSError as error:
            raise_as_ours(error, self.path, writing=False)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def stat(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def sync(self) -> None:
        """Make the file durable, also what others wrote; raise DurabilityLost: the caller must not retry."""
        sync(self._descriptor, self.path)


class ReadableFile(_OpenFile):
    """A file open for reading. The last reference closes it, so that no thread reads a closed one."""

    __slots__ = ()

    def fileno(self) -> int:
        return self._descriptor

    def identity(self) -> tuple[int, int, int]:
        """Return what identifies this file with its content: inode, size, ctime (ns); mtime may be set back."""
        found = os.fstat(self._descriptor)
        return found.st_ino, found.st_size, found.st_ctime_ns

    def __del__(self) -> None:
        os.close(self._descriptor)


class WritableFile(Closing, _OpenFile):
    """A file open for writing; a context manager that closes it."""

    __slots__ = ("_written",)

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, path)
        self._written = 0  # bytes since the last start of writeback

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with errors_of(self.path):
                os.close(descriptor)

    def write(self, offset: int, content: bytes | memoryview) -> None:
        with errors_of(self.path):
            written, view = 0, memoryview(content)
            while written < len(view):
                written += os.pwrite(self._descriptor, view[written : written + _BLOCK], offset + written)
        self._written += written
        self._start_writeback()

    def copy(self, source: ReadableFile, begin: int, size: int, offset: int) -> None:
        """Copy bytes of another file to `offset`, in the kernel if it can; raise EOFError if that is shorter."""
        self._written += size
        with errors_of(self.path):
            while size:
                count = self._copy_some(source, begin, size, offset)
                if not count:
                    raise EOFError(f"{source.path} ends at byte {begin}")
                begin, size, offset = begin + count, size - count, offset + count
        self._start_writeback()

    def _start_writeback(self) -> None:
        """Start writing to the disk if enough was written, so that `sync`, which reports errors, waits less."""
        if self._written >= _WRITEBACK:
            if sys.platform == "linux":
                from ctypes import c_int64

                _library().sync_file_range(self._descriptor, c_int64(0), c_int64(0), _SYNC_FILE_RANGE_WRITE)
            self._written = 0

    def _copy_some(self, source: ReadableFile, begin: int, size: int, offset: int) -> int:
        try:
            return os.copy_file_range(source.fileno(), self._descriptor, size, begin, offset)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
        content = source.read(begin, min(size, _BLOCK))
        self.write(offset, content)
        return len(content)

    def truncate(self, size: int) -> None:
        with errors_of(self.path):
            os.ftruncate(self._descriptor, size)

    def set_mtime(self, mtime: int) -> None:
        """Set when the content last changed, nanoseconds since 1970: after the undoing of changes."""
        with errors_of(self.path):
            os.utime(self._descriptor, ns=(mtime, mtime))

    def belong_like(self, other: os.stat_result) -> None:
        """Give the file the permissions of another one, and as root also its owner, where the filesystem can."""
        with contextlib.suppress(OSError):
            os.fchmod(self._descriptor, other.st_mode & 0o666)
            if os.geteuid() == 0:
                os.fchown(self._descriptor, other.st_uid, other.st_gid)


def sync(descriptor: int, path: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Filesystems that cannot be written to, as of a CD, may have no fsync.
        if error.errno != errno.EINVAL or not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            raise _not_durable(error, path) from error


def can_sync_filesystem() -> bool:
    """Return whether the kernel can sync a whole filesystem, and reports errors."""
    return sys.platform == "linux" and _release() >= (5, 8)  # before 5.8, syncfs did not report write errors


def sync_filesystem(descriptor: int, path: str) -> bool:
    """Sync the whole filesystem of a descriptor; return False if the kernel cannot, or would not report errors."""
    if not can_sync_filesystem():
        return False
    from ctypes import get_errno

    if _library().syncfs(descriptor) != 0:
        code = get_errno()
        error = OSError(code, os.strerror(code))
        raise _not_durable(error, path) from error
    return True


@cache
def _library() -> CDLL:
    from ctypes import CDLL

    return CDLL(None, use_errno=True)


def _release() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall("[0-9]+", os.uname().release)[:2])


def _not_durable(error: OSError, path: str) -> DurabilityLost:
    # The kernel may have dropped the unwritten pages and marked them clean: a second fsync would falsely succeed.
    return DurabilityLost(
        f"{path}: fsync failed: {error.strerror}; what was written last may be lost",
        hint="Check the disk (dmesg), then open the dataset again and repeat what has failed.",
        path=path,
    )
