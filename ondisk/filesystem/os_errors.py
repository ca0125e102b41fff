"""Turn the operating system's errors into ondisk's."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import NoReturn

from ondisk.errors import DiskFull, ReadOnly, StateError, StorageError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def errors_of(path: str, *, writing: bool = True) -> Iterator[None]:
    """Turn the operating system's errors into ondisk's, except those that callers handle."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except OSError as error:
        raise_as_ours(error, path, writing=writing)


def raise_as_ours(error: OSError, path: str, *, writing: bool = True) -> NoReturn:
    if error.errno in _NO_SPACE:
        hint = "Free some space: `ondisk delete` and `ondisk repack` work on a full disk."
        raise DiskFull(f"{path}: no space left", hint=hint, path=path) from error
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        raise not_regular(path) from error
    if error.errno == errno.EBADF:
        raise StateError(f"{path}: the dataset was closed", hint="Open it again.", path=path) from error
    if error.errno in _DENIED and not writing:
        hint = "Ask the owner for permission to read it."
        raise StorageError(f"{path}: this user may not read it", hint=hint, path=path) from error
    if error.errno in _DENIED:
        hint = "Open the dataset read_only, or as a user with permission to write."
        raise ReadOnly(f"{path}: {error.strerror}", hint=hint, path=path) from error
    raise StorageError(f"{path}: {error.strerror}", path=path, errno=error.errno) from error


def not_regular(path: str) -> StorageError:
    hint = "ondisk follows no symbolic links inside a dataset: replace the link with the file itself."
    message = f"{path} is not a regular file, or its path contains a symbolic link"
    return StorageError(message, hint=hint, path=path)
