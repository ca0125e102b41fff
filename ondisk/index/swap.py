"""How a new index takes the place of the old one, beside those who read, so that a crash leaves the one or the other.

    .index.sqlite.new     it is being built; who finds one begins anew
    .index.sqlite.next    it is complete and synced: nothing more is written to the index before it stands in its place

To put it there:

    1. move what is committed from the write-ahead log into the main file of the old index
    2. rename `.new` to `.next`
    3. unlink `-wal` and `-shm`: who has the old index open keeps them, and reads on; sync the directory
    4. rename `.next` to `index.sqlite`

Killed after 2, the next who writes goes on with 3, since a reader of then may still hold files that 3 unlinked: it must
not meet changes of theirs. Who connects to read between 3 and 4 would share `-shm` with those who read the new index;
`connect_to_read` sees `.next`, and waits for the directory's lock, which is held here from 1 to 4.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ondisk.errors import LockError
from ondisk.filesystem import Directory
from ondisk.index.connection import INDEX, NEW, NEXT, connect_to_write, sqlite_errors

_POLL = 0.01  # seconds


def swap_in(directory: Directory, timeout: float) -> None:
    """Put the new index, which is complete, in the place of the old one. Under the writers' lock.

    Args:
        timeout: seconds to wait for queries that read an older state than the last commit.

    Raises:
        LockError: one of them took longer; nothing was changed.
    """
    with _exclusive(directory, timeout):
        _move_log(directory, timeout)
        directory.rename(NEW, NEXT)
        _replace(directory)


def finish_swap(directory: Directory, timeout: float) -> bool:
    """End what was killed while it put a new index in place; tell whether there was such a one.

    Locks: under the writers' lock.
    """
    if directory.inode(NEXT) is None:
        return False
    with _exclusive(directory, timeout):
        _replace(directory)
    return True


def _replace(directory: Directory) -> None:
    for suffix in ("-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(INDEX + suffix)
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
        raise _busy(directory, "reads what was there before the last change")


@contextlib.contextmanager
def _exclusive(directory: Directory, timeout: float) -> Iterator[None]:
    """Hold the lock of the directory, against those who connect to read."""
    deadline = time.monotonic() + timeout
    while True:
        with directory.exclusive_if_free() as free:
            if free:
                yield
                return
        if time.monotonic() >= deadline:
            raise _busy(directory, "reads the main file of the index alone")
        time.sleep(_POLL)


def _busy(directory: Directory, how: str) -> LockError:
    return LockError(
        f"{directory.path}: a program {how}, for too long", hint="End it, or its query, and migrate again."
    )
