"""Turn the operating system's errors into ondisk's."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ondisk.errors import DatasetNotFound, DiskFull, OndiskError, ReadOnly, StateError, StorageError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_HINTS = {
    errno.EFBIG: "The filesystem, or a limit of this user (`ulimit -f`), allows no larger file.",
    errno.EMFILE: "Close other datasets and queries, or raise the limit of open files (`ulimit -n`).",
    errno.EIO: "Look at the disk with `dmesg`.",
}
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
        raise DiskFull(f"{path}: no space left", hint=space_hint(), path=path) from error
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        raise not_regular(path) from error
    if error.errno == errno.EBADF:
        raise StateError(f"{path}: the dataset was closed", hint="Open it again.", path=path) from error
    if error.errno in _DENIED and not writing:
        raise denied(path) from error
    if error.errno in _DENIED:
        hint = "Open the dataset read_only, or as a user with permission to write."
        raise ReadOnly(f"{path}: {error.strerror}", hint=hint, path=path) from error
    hint = _HINTS.get(error.errno or 0, "")
    raise StorageError(f"{path}: {error.strerror}", hint=hint, path=path, errno=error.errno) from error


def removed(path: Path) -> DatasetNotFound:
    hint = "If it was restored, or mounted again, open it again."
    return DatasetNotFound(f"{path} was removed while it was open", hint=hint)


def space_hint(missing: int | None = None) -> str:
    """Return what to do about a full disk. `missing`: how many bytes must be freed at least, if known."""
    amount = "some space" if missing is None else f"at least {missing:,} bytes"
    return (
        f"Free {amount} on this disk. These work on a full disk: `ondisk delete DATASET MATCH --yes`, then"
        " `ondisk repack DATASET --yes`."
    )


def denied(path: str) -> StorageError:
    """Return the error for a file that this user may not read; it names the file, or the folder that is in the way."""
    place = Path(path)
    for each in (*reversed(place.parents), place):
        needed = os.X_OK if each != place else os.R_OK | os.X_OK * each.is_dir()
        if not os.access(each, needed, effective_ids=True):
            place = each
            break
    user, who, permissions = os.geteuid(), "its owner", ""
    with contextlib.suppress(OSError):
        found = place.stat()
        owner, mode = _name_of(found.st_uid), stat.filemode(found.st_mode)
        permissions = f"; its permissions are {mode}, its owner is {owner}"
        who = "its owner" if found.st_uid == user else owner
    hint = f"Let {who} run `chmod a+rX {place}`, or run the command as a user who may read it."
    message = f"{place}: permission denied: the user {_name_of(user)} may not read it{permissions}"
    return StorageError(message, hint=hint, path=path, errno=errno.EACCES)


def is_denied(error: OndiskError) -> bool:
    """Return whether an error is that of a file that this user may not read."""
    return isinstance(error, StorageError) and error.context.get("errno") == errno.EACCES


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def not_regular(path: str) -> StorageError:
    hint = "Replace a link with the file itself: ondisk follows none inside a dataset. Move anything else out of it."
    message = f"{path} is not a regular file, or its path contains a symbolic link"
    return StorageError(message, hint=hint, path=path)
