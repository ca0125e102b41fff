"""The operating system's errors, as ondisk's."""

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
    """Turn the operating system's errors into ondisk's; those that a caller can handle pass."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, StorageError):
        raise
    except OSError as error:
        raise_as_ours(error, path, writing=writing)


def raise_as_ours(error: OSError, path: str, *, writing: bool = True) -> NoReturn:
    if error.errno in _NO_SPACE:
        hint = "Free some space; deleting data and repacking work on a full disk."
        raise DiskFull(f"{path}: no space left", hint=hint, path=path) from error
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        raise not_regular(path) from error
    if error.errno == errno.EBADF:
        raise StateError(f"{path}: the dataset was closed", hint="Open it again.", path=path) from error
    if error.errno in _DENIED and not writing:
        hint = "Ask its owner for the right to read it."
        raise StorageError(f"{path} may not be read by this user", hint=hint, path=path) from error
    if error.errno in _DENIED:
        hint = "Open it read_only, or as a user who may write there."
        raise ReadOnly(f"{path}: {error.strerror}", hint=hint, path=path) from error
    raise StorageError(f"{path}: {error.strerror}", path=path, errno=error.errno) from error


def not_regular(path: str) -> StorageError:
    hint = "ondisk follows no links inside a dataset: put the file itself in its place."
    return StorageError(f"{path} is, or lies behind, a symbolic link or no plain file", hint=hint, path=path)
