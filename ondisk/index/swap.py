"""Replace the index by a new one beside open readers, so that a crash leaves the old one or the new one.

    .index.sqlite.new     is being built; the next migration deletes it and begins again
    .index.sqlite.next    is complete and synced; nothing is written to the old index from now on

The steps:

    1. move the committed pages from the write-ahead log into the main file of the old index
    2. rename `.new` to `.next`
    3. unlink `-wal` and `-shm` (readers of the old index keep them open, and read on); sync the directory
    4. rename `.next` to `index.sqlite`

After a crash between 2 and 4 the next writer continues with 3: a reader of that time may still have the files open that
step 3 unlinked, and must not see changes in them. A reader that connects between 3 and 4 would share `-shm` with the
readers of the new index. So `connect_to_read` looks for `.next`, and waits for the directory's lock, which is held here
from 1 to 4.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ondisk.errors import LockError
from ondisk.filesystem import Directory
from ondisk.index.connection import INDEX, NEW, NEXT, connect_to_write, sqlite_errors

_POLL = 0.01  # seconds
_LOGS = [INDEX + suffix for suffix in ("-journal", "-wal", "-shm")]


def has_other_names(directory: Directory) -> bool:
    """Return whether the index has other names: they may be somebody's backup, made with `cp -al` or rsnapshot."""
    found = (directory.stat(INDEX + suffix) for suffix in ("", "-wal"))
    return any(each is not None and each.st_nlink > 1 for each in found)


def swap_in(directory: Directory, timeout: float, *, with_log: bool = True, kept_as: str | None = None) -> None:
    """Replace the index by the complete new one. The caller must hold the writers' lock.

    Args:
        timeout: seconds to wait for queries that read an older state than the last commit.
        with_log: move the log beside the old index into its main file, unless it belongs to another one, or the main
            file may be somebody's backup. Without that, a query that began before may end with SegmentMissing.
        kept_as: a free name that the old index keeps, and its logs with it; None to remove them.

    Raises:
        LockError: a query took longer; nothing was changed.
    """
    with _exclusive(directory, timeout):
        if with_log:
            _move_log(directory, timeout)
        if kept_as is not None:
            for suffix in ("", "-journal", "-wal"):
                if directory.inode(INDEX + suffix) is not None:
                    directory.link(INDEX + suffix, kept_as + suffix)
            directory.sync()
        directory.discard(f"{NEW}-journal")  # SQLite leaves it behind while a file is locked exclusively
        directory.rename(NEW, NEXT)
        _replace(directory)


def finish_swap(directory: Directory, timeout: float) -> bool:
    """Finish a swap that a crash interrupted, and return whether there was one.

    Locks: the caller must hold the writers' lock.
    """
    if directory.inode(NEXT) is None:
        return False
    with _exclusive(directory, timeout):
        _replace(directory)
    return True


def remove(directory: Directory, timeout: float) -> None:
    """Remove the index; the caller must hold the writers' lock, and have given the index another name.

    Durability: syncs the directory.
    """
    with _exclusive(directory, timeout):
        directory.discard(INDEX, *_LOGS)
        directory.sync()


def _replace(directory: Directory) -> None:
    directory.discard(*_LOGS)
    directory.sync()  # else a power cut could keep the rename and lose an unlink
    directory.rename(NEXT, INDEX)


def _move_log(directory: Directory, timeout: float) -> None:
    connection = connect_to_write(directory)
    try:
        with sqlite_errors(directory):
            connection.execute(f"PRAGMA busy_timeout={int(timeout * 1000)}")
            _, committed, moved = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    finally:
        connection.close()
    if committed != moved:
        raise _busy(directory, "reads a state of the index before the last change")


@contextlib.contextmanager
def _exclusive(directory: Directory, timeout: float) -> Iterator[None]:
    """Hold the directory's lock, so that no reader connects."""
    deadline = time.monotonic() + timeout
    while True:
        with directory.exclusive_if_free() as free:
            if free:
                yield
                return
        if time.monotonic() >= deadline:
            raise _busy(directory, "reads the index without its write-ahead log")
        time.sleep(_POLL)


def _busy(directory: Directory, how: str) -> LockError:
    return LockError(
        f"{directory.path}: another program {how} and did not end in time",
        hint="End it or its query, then repeat the command.",
    )
