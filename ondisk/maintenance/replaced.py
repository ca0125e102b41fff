"""What a repack drops since it is too old, and keeps for a while: `keep_replaced` in `dataset.toml`.

`ondisk.segments.replaced` describes the files. A disk that is too full for a repack is a reason to keep nothing.
"""

from __future__ import annotations

import stat
import time

from ondisk.dataset.access import Access
from ondisk.errors import DiskFull, StorageError
from ondisk.filesystem import Directory
from ondisk.index import Segment, replaced_rows
from ondisk.index.transaction import Transaction
from ondisk.segments.generations import ROWS, kept
from ondisk.segments.replaced import folders, remove, staged


def keep(access: Access, transaction: Transaction, segment: Segment) -> bool:
    """Copy the rows of a segment that a transaction drops, so that its generation is kept after that.

    Returns:
        Whether it will be kept.

    Durability: the rows are synced when this returns. If the transaction is rolled back, they go; those that a crash
        leaves go with the others, and nobody reads them.
    """
    if not access.remembered.keeps_replaced:
        return False
    directory = access.directory
    rows = kept(segment.name, segment.id) + ROWS
    new = staged(rows)
    transaction.on_rollback(lambda: directory.discard(new, rows))
    try:
        directory.discard(new)
        directory.create_file(new).close()
        with access.current().index.snapshot() as snapshot:
            replaced_rows.copy(snapshot, segment, directory.held(new))
        directory.rename(new, rows)
    except DiskFull:
        directory.discard(new)
        return False
    except StorageError as error:
        _check_folder(directory, rows.rpartition("/")[0], error)
        raise
    return True


def _check_folder(directory: Directory, folder: str, error: StorageError) -> None:
    """Raise an error that names the folder if something else is in its place."""
    found = directory.stat(folder)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        path = directory.path / folder
        hint = "Move it away: ondisk keeps dropped segments in a folder of this name."
        raise StorageError(f"{path} is not a directory", hint=hint, path=str(path)) from error


def keep_nothing(access: Access) -> bool:
    """Remove all that is kept, for a disk that is full, and keep nothing until the dataset is opened again.

    Returns:
        Whether something was removed.
    """
    access.remembered.keeps_replaced = False
    return remove_old(access, time.time(), 0) > 0


def remove_old(access: Access, now: float, seconds: float) -> int:
    """Remove what a dataset has kept for so many seconds. Locks: the writers' lock, if something is kept."""
    if not folders(access.directory):
        return 0
    with access.locked("repack"):
        return remove(access.directory, now, seconds)
