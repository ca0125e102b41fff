"""Files of a dataset, open for reading or for writing."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ondisk.errors import DurabilityLost
from ondisk.filesystem.os_errors import errors_of, raise_as_ours

if TYPE_CHECKING:
    from ctypes import CDLL

_PIECE = 1024 * 1024
_GATHERED = 144 * 1024  # bytes; larger writes were measured to take longer, and so did copies of as much in the kernel
_WRITTEN_OUT = 8 * 1024 * 1024  # bytes
_SYNC_FILE_RANGE_WRITE = 2
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


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
            raise_as_ours(error, self.path, writing=False)
        return content

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read bytes into a buffer; gives how many, none only at the end of the file."""
        try:
            return os.preadv(self._descriptor, [buffer], offset)
        except OSError as error:
            raise_as_ours(error, self.path, writing=False)

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def identity(self) -> tuple[int, int, int]:
        """Give what tells this file, and what is in it now, from others: inode, size, and when it changed last.

        That is not when it was written last: who puts a backup in its place may set this as it was.
        """
        found = os.fstat(self._descriptor)
        return found.st_ino, found.st_size, found.st_ctime_ns

    def sync(self) -> None:
        """Make durable what others wrote to the file.

        Raises:
            DurabilityLost: the sync failed; it must not be tried again.
        """
        sync(self._descriptor, self.path)

    def __del__(self) -> None:
        os.close(self._descriptor)


class WritableFile:
    """A file open for writing; a context manager that closes it."""

    __slots__ = ("_copied", "_descriptor", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._copied = 0  # bytes since the disk was last set to work
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
            with errors_of(self.path):
                os.close(descriptor)

    def write(self, offset: int, content: bytes | memoryview) -> None:
        with errors_of(self.path):
            written = os.pwrite(self._descriptor, content, offset)
            while written < len(content):
                written += os.pwrite(self._descriptor, memoryview(content)[written:], offset + written)

    def copy(self, source: ReadableFile, begin: int, size: int, offset: int) -> None:
        """Copy bytes of another file to `offset`, inside the kernel where the filesystems allow it.

        Raises:
            EOFError: the other file ends before these bytes do.
        """
        self._copied += size
        with errors_of(self.path):
            while size:
                count = self._copy_some(source, begin, size, offset)
                if not count:
                    raise EOFError(f"{source.path} ends at byte {begin}")
                begin, size, offset = begin + count, size - count, offset + count
        self._set_to_work()

    def copy_spans(self, source: ReadableFile, spans: Iterable[tuple[int, int]], offset: int) -> None:
        """Copy spans of another file (begin, size) to `offset`, one behind the other; small ones are gathered.

        Raises:
            EOFError: the other file ends before one of them does.
        """
        buffer, held = memoryview(bytearray(_GATHERED)), 0
        for begin, size in spans:
            if held and held + size > _GATHERED:
                self.write(offset, buffer[:held])
                offset, held = offset + held, 0
            if size > _GATHERED:
                self.copy(source, begin, size, offset)
                offset += size
                continue
            self._copied += size
            end = held + size
            while held < end:
                count = source.read_into(begin, buffer[held:end])
                if not count:
                    raise EOFError(f"{source.path} ends at byte {begin}")
                begin, held = begin + count, held + count
        self.write(offset, buffer[:held])
        self._set_to_work()

    def _set_to_work(self) -> None:
        """Let the disk write when enough was copied, so that `sync` waits less."""
        if self._copied >= _WRITTEN_OUT:
            _write_out(self._descriptor)
            self._copied = 0

    def _copy_some(self, source: ReadableFile, begin: int, size: int, offset: int) -> int:
        try:
            return os.copy_file_range(source.fileno(), self._descriptor, size, begin, offset)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
        content = source.read(begin, min(size, _PIECE))
        self.write(offset, content)
        return len(content)

    def truncate(self, size: int) -> None:
        with errors_of(self.path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Make the file's bytes and size durable.

        Raises:
            DurabilityLost: the sync failed; it must not be tried again.
        """
        sync(self._descriptor, self.path)

    def stat(self) -> os.stat_result:
        return os.fstat(self._descriptor)


def sync(descriptor: int, path: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _not_durable(error, path) from error


def _write_out(descriptor: int) -> None:
    """Let the disk begin to write what there is of a file, where the kernel can; nothing waits, `sync` tells errors."""
    if sys.platform == "linux":
        from ctypes import c_int64

        _library().sync_file_range(descriptor, c_int64(0), c_int64(0), _SYNC_FILE_RANGE_WRITE)


def sync_filesystem(descriptor: int, path: str) -> bool:
    """Sync the whole filesystem of a descriptor; False where the kernel cannot, or would not tell of errors."""
    if sys.platform != "linux" or _release() < (5, 8):  # before, syncfs kept errors of writing to itself
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
    # The kernel may have dropped the unwritten pages and marked them clean: a second fsync would lie.
    return DurabilityLost(
        f"{path}: fsync failed: {error.strerror}; nothing of this batch was acknowledged",
        hint="Look at the disk (dmesg), then open the dataset again and append the batch again.",
        path=path,
    )
