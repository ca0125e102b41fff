"""Replace the index by a new one beside open readers, so that a crash leaves the old one or the new one.

    .index.sqlite.new     is being built; the next migration deletes it and begins again
    .index.sqlite.next    is complete and synced; nothing is written to the old index from now on

The steps:

    1. move the committed pages from the write-ahead log into the main file of the old index
    2. rename `.new` to `.next`
    3. unlink `-wal` and `-shm` (readers of the old index keep them open, and read on); sync the directory
    4. rename `.next` to `index.sqlite`

After a crash between 2 and 4 the next writer continues with 3, if `.next` proves that it is the successor of the index
(`why_not_successor`): any program may have put it there, for example one that copied the dataset meanwhile. A reader of
that time may still have the files open that step 3 unlinked, and must not see changes in them. A reader that connects
between 3 and 4 would share `-shm` with the readers of the new index. So `connect_to_read` looks for `.next`, and waits
for the directory's lock, which is held here from 1 to 4.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

from ondisk.errors import LockError, OndiskError, StorageError
from ondisk.filesystem import Directory
from ondisk.index import tide
from ondisk.index.connection import (
    INDEX,
    NEW,
    NEXT,
    SQLITE_ERRORS,
    connect_to_next,
    connect_to_one,
    connect_to_write,
    sqlite_errors,
    state_of,
)
from ondisk.index.tide import State

_POLL = 0.01  # seconds
LOGS = [INDEX + suffix for suffix in ("-journal", "-wal", "-shm")]


def has_other_names(directory: Directory) -> bool:
    """Return whether the index has other names: they may be somebody's copies, made with `cp -al` or rsnapshot."""
    found = (directory.stat(INDEX + suffix) for suffix in ("", "-wal"))
    return any(each is not None and each.st_nlink > 1 for each in found)


def swap_in(directory: Directory, timeout: float, *, with_log: bool = True, kept_as: str | None = None) -> None:
    """Replace the index by the complete new one. The caller must hold the writers' lock.

    Args:
        timeout: seconds to wait for queries that read an older state than the last commit.
        with_log: move the log beside the old index into its main file, unless it belongs to another one, or the main
            file may be somebody's copy. Without that, a query that began before may end with SegmentMissing.
        kept_as: a free name that the old index keeps, and its logs with it; None to remove them.

    Raises:
        LockError: a query took longer; nothing was changed.
    """
    with _exclusive(directory, timeout):
        if with_log:
            move_log(directory, timeout)
        if kept_as is not None:
            for suffix in ("", "-journal", "-wal"):
                if directory.inode(INDEX + suffix) is not None:
                    directory.link(INDEX + suffix, kept_as + suffix)
            directory.sync()
        directory.discard(f"{NEW}-journal")  # SQLite leaves it behind while a file is locked exclusively
        directory.rename(NEW, NEXT)
        _replace(directory)


def finish_swap(directory: Directory, timeout: float) -> None:
    """Finish a swap that a crash interrupted, with an index for which `why_not_successor` returned None.

    Locks: the caller must hold the writers' lock.
    """
    with _exclusive(directory, timeout):
        _replace(directory)


def why_not_successor(directory: Directory) -> str | None:
    """Return why `.next` must not replace the index; None if it is the complete successor of this very index.

    It must be a whole SQLite file of one dataset, of no earlier revision or commit than the index. Its UUID must be
    that of the index, or follow it: it names the one before it, or the tide mark announced it. Its counters must reach
    those of the index, with its log, and those of the tide mark. So without the index and without the mark, nothing is
    a successor.

    Cost: reads all of `.next`. Only a crash during a swap leaves one.

    Locks: the caller must hold the writers' lock.
    """
    try:
        with closing(connect_to_next(directory)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                return "it is damaged"
            new = _described(connection)
            before = {uuid for (uuid,) in connection.execute("SELECT uuid FROM former")}
    except StorageError as error:
        return error.message
    except SQLITE_ERRORS as error:
        return f"it cannot be read as an index: {error}"
    if new is None:
        return "it is not an index of ondisk"
    (uuid, seq, generation), age = new
    try:
        with closing(connect_to_one(directory)) as connection:
            old = _described(connection)
    except (OndiskError, *SQLITE_ERRORS):
        old = None
    mark = tide.read(directory)
    known = {*([] if old is None else old[0][:1]), *([] if mark is None else mark.uuids)}
    if known.isdisjoint({uuid, *before}):
        return "nothing shows that it is the successor of this index"
    reached = [] if old is None else [old[0][1:]]
    if mark is not None and mark.knows(uuid):
        reached.append((mark.seq, mark.generation))
    is_behind = any(seq < each[0] or generation < each[1] for each in reached)
    if is_behind or (old is not None and age < old[1]):
        return "it is older than the index"
    return None


def _described(connection: sqlite3.Connection) -> tuple[State, tuple[str, int]] | None:
    """Return the state of an index, and its age: its revision, and when it was committed."""
    sql = "SELECT uuid, seq, generation, version_num, committed_at FROM dataset, alembic_version LIMIT 2"
    rows = connection.execute(sql).fetchall()
    if len(rows) != 1:
        return None
    *numbers, revision, committed_at = rows[0]
    state = state_of(*numbers)
    return None if state is None else (state, (str(revision), int(committed_at)))


def remove(directory: Directory, timeout: float) -> None:
    """Remove the index; the caller must hold the writers' lock, and have given the index another name.

    Durability: syncs the directory.
    """
    with _exclusive(directory, timeout):
        directory.discard(INDEX, *LOGS)
        directory.sync()


def _replace(directory: Directory) -> None:
    directory.discard(*LOGS)
    directory.sync()  # else a power cut could keep the rename and lose an unlink
    directory.rename(NEXT, INDEX)


def move_log(directory: Directory, timeout: float) -> None:
    """Move the committed pages from the write-ahead log into the main file of the index.

    Raises:
        LockError: a query read an older state than the last commit, for longer than the timeout.
    """
    connection = connect_to_write(directory)
    try:
        with sqlite_errors(directory):
            connection.execute(f"PRAGMA busy_timeout={min(int(timeout * 1000), 2**31 - 1)}")
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
