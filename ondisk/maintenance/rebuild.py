"""Rebuild: puts a new index in the place of a damaged one, which keeps another name. A fix then reads the segments."""

from __future__ import annotations

import contextlib
import os

from ondisk.dataset.access import Access
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.layout import LAST, SENTINEL, SENTINEL_TEXT, last_generation, open_directory, read_config
from ondisk.errors import IndexCorrupt, NeedsMigration, OndiskError
from ondisk.index import INDEX
from ondisk.index.recover import damage_of, free_name, recover
from ondisk.maintenance.known import all_known
from ondisk.maintenance.states import Done, Report, State

_SOUND = "no damage was found in it"


def rebuild(path: str | os.PathLike[str], *, dry_run: bool = False) -> Report:
    """Move damaged indices of a dataset and of the archive that repack fills aside, and put new ones in their place.

    A new index knows no data yet: call `Dataset.fix` next. It keeps what can be read of the counters, the deletions,
    the import log and the known archives of the damaged one. If neither index is damaged as far as SQLite shows, that
    of the dataset is rebuilt.

    Args:
        dry_run: only report which index is damaged; writes nothing, and needs no permission to write.

    Returns:
        A report with one item for each index that is rebuilt; none if the index is lost already.

    Raises:
        DatasetNotFound: the path contains no dataset.
        VersionTooNew: a newer ondisk made an index.
        ReadOnly: this user has no permission to write.
        LockError: others wrote, or read the index without its log, for longer than `lock_timeout`.

    Durability: the sentinel is created first; then as `ondisk.index.recover`. The damaged index is never removed.
    Locks: the writers' lock, and that of the archive.
    Cost: reads the whole index.
    """
    with open_directory(path) as directory, contextlib.ExitStack() as stack:
        access = DatasetAccess(directory, read_config(directory), read_only=dry_run)
        stack.callback(access.close)
        both = (access, access.archives.get(LAST))
        parts = [part for part in both if part is not None and part.directory.inode(INDEX) is not None]
        if not dry_run:
            for part in parts:
                stack.enter_context(part.locked("fix"))
        found = {part: _damage(part) for part in parts}
        damaged = [part for part, problem in found.items() if problem is not None]
        report = Report(str(access.path), needs_check=True)
        for part in damaged or parts[: access in found]:
            problem = found[part]
            state = State.OK if problem is None else State.CORRUPTED
            name = free_name(part.directory) if dry_run else _rebuilt(part)
            kept = f"it would be renamed to {name}" if dry_run else f"it is {name} now"
            report.segments.append(Done(f"{part.prefix}{INDEX}", state, (problem or _SOUND, kept), "rebuild"))
        return report


def _damage(access: Access) -> str | None:
    """Return what is wrong with an index, or None."""
    try:
        with access.current().index.snapshot() as snapshot:
            all_known(access, snapshot)
    except IndexCorrupt as error:
        return error.message
    except NeedsMigration:
        pass
    problem = damage_of(access.directory)
    return None if problem is None else f"it is damaged: {problem}"


def _rebuilt(access: Access) -> str:
    """Rebuild an index, and return the name that the damaged one has now."""
    directory = access.directory
    if not access.has_sentinel():
        directory.write_new(SENTINEL, SENTINEL_TEXT)
    seq = 0
    with contextlib.suppress(OndiskError):  # of the other index, which may be damaged, too
        seq = access.seq_elsewhere()
    return recover(directory, access.config, access.config.lock_timeout, generation=last_generation(directory), seq=seq)
