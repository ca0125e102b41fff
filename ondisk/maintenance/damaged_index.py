"""Rebuild: puts a new index in the place of a damaged one, which keeps another name. A fix then reads the segments."""

from __future__ import annotations

import contextlib
import os
import stat

from ondisk.dataset.access import Access
from ondisk.dataset.auxiliary_files import SENTINEL, SENTINEL_TEXT, last_generation, open_directory, read_config
from ondisk.errors import IndexCorrupt, InvalidInput, NeedsMigration, OndiskError, command
from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.index import INDEX, tide
from ondisk.index.recover import damage_of, name_of_damaged, recover, renew
from ondisk.index.tide import HIGHEST, Exchanged, TideMark
from ondisk.maintenance import old_archives
from ondisk.maintenance.observe import all_known
from ondisk.maintenance.states import Done, Report, State
from ondisk.segment import Facts
from ondisk.segments import dir
from ondisk.segments.file_facts import SAME_BYTES, Committed
from ondisk.segments.generations import hidden
from ondisk.segments.places import note_unread, places

_SOUND = "no damage was found in it"
_SEGMENTS = (
    "SELECT id, name, format, size, mtime, inode, tail, checksum,"
    " iif(compressed, (SELECT max(position + stored) FROM block WHERE block.segment = segment.id), length) FROM segment"
)


def rebuild(path: str | os.PathLike[str], *, dry_run: bool = False) -> Report:
    """Move the index aside, and put a new one in its place.

    The new index knows no data yet: call `Dataset.fix` next. It keeps what can be read of the counters, the deletions
    and the import log of the old one. If that is not damaged as far as SQLite shows, the new one still knows segments
    that are missing or changed, so that the fix counts or reports what is gone.

    Args:
        dry_run: only report whether it is damaged; writes nothing, and needs no permission to write.

    Returns:
        A report with one item; none if the index is lost already.

    Raises:
        DatasetNotFound: the path contains no dataset.
        VersionTooNew: a newer ondisk made an index.
        ReadOnly: this user has no permission to write.
        LockError: others wrote, or read the index without its log, for longer than `lock_timeout`.
        NeedsMigration: the index is of an older revision, and not damaged.
        StateError: the index is of an older revision, and so is an archive, which has an index of its own.

    Durability: the sentinel is created first; then as `ondisk.index.recover`. The damaged index is never removed.
    Locks: the writers' lock.
    Cost: reads the whole index.
    """
    with open_directory(path) as directory, contextlib.ExitStack() as stack:
        access = Access(directory, read_config(directory), read_only=dry_run)
        stack.callback(access.close)
        report = Report(str(access.path), needs_check=True)
        if directory.inode(INDEX) is None:
            return report
        if not dry_run:
            stack.enter_context(access.locked("fix"))
        problem = _damage(access)
        state = State.OK if problem is None else State.CORRUPTED
        name = name_of_damaged(directory) if dry_run else _rebuilt(access, is_sound=problem is None)
        kept = f"it would be renamed to {name}" if dry_run else f"it is {name} now"
        report.segments.append(Done(INDEX, state, (problem or _SOUND, kept), "rebuild"))
        return report


def _damage(access: Access) -> str | None:
    older = None
    try:
        with access.current().index.snapshot() as snapshot:
            all_known(access, snapshot)
    except IndexCorrupt as error:
        return error.message
    except NeedsMigration as error:
        older = error
        with old_archives.opened(access.directory) as archives:
            if archives:
                raise old_archives.refused(
                    access.directory,
                    "cannot be rebuilt",
                    f"its archive {min(archives)} has an index of its own",
                    f"Run {command('fix', access.path, '--rebuild', '--yes')}",
                ) from None
    problem = damage_of(access.directory)
    if problem is None and older is not None:
        raise older  # a rebuild would forget which data are missing; a migration knows them
    return None if problem is None else f"it is damaged: {problem}"


def _rebuilt(access: Access, *, is_sound: bool) -> str:
    """Rebuild an index, and return the name that the damaged one has now."""
    directory, timeout = access.directory, access.config.lock_timeout
    if not access.has_sentinel():
        directory.write_new(SENTINEL, SENTINEL_TEXT)
    seq = 0
    generation, mark = last_generation(directory), tide.read(directory)
    uuid, only_known = _only_known(access, mark) if is_sound else ("", set())
    # What is away remains known, unless nothing does.
    note_unread(directory, (each for each in places(directory).values() if not only_known or each.why_away is None))
    if not only_known:
        return recover(directory, access.config, timeout, generation=generation, seq=seq)
    if mark is not None:
        generation, seq = max(generation, mark.generation), max(seq, mark.seq)
    kept, exchanged = name_of_damaged(directory), Exchanged(TideMark(uuid, seq, generation), is_foreign=False)
    renew(directory, exchanged, timeout, lambda each: each if each.generation in only_known else None, kept_as=kept)
    return kept


def _only_known(access: Access, mark: TideMark | None) -> tuple[str, set[int]]:
    """Return the UUID of an index, and its segments that are missing or changed: only the index knows their data.

    No segments, if the index is of another revision, configuration or dataset, or has numbers that cannot be.
    """
    try:
        with access.current().index.snapshot() as snapshot:
            about, rows = snapshot.dataset(), snapshot.connection.execute(_SEGMENTS).fetchall()
    except (NeedsMigration, IndexCorrupt):
        return "", set()
    is_ours = mark is None or mark.knows(about["uuid"])
    counters = [about["seq"], about["generation"]]
    if not is_ours or not all(isinstance(each, int) and 0 <= each < HIGHEST for each in counters):
        return "", set()
    return about["uuid"], {
        id
        for id, name, format, size, *facts, end in rows
        if _is_only_known(access.directory, name, id, Committed(size, Facts(*facts), find(format).mutable), end)
    }


def _is_only_known(directory: Directory, name: str, id: int, committed: Committed, end: int) -> bool:
    """Return whether a segment is missing, or its file is another one, as far as its row can be believed."""
    try:
        found = directory.stat(name)
    except InvalidInput:  # a row that cannot be: ondisk stores nothing outside of the dataset
        return False
    if found is None:
        return directory.stat(hidden(name, id)) is None
    with contextlib.suppress(OndiskError, FileNotFoundError):
        if stat.S_ISDIR(found.st_mode):
            with directory.inside(name) as folder:
                return dir.seen_in(folder, committed.facts, committed.size) not in SAME_BYTES
        if committed.size == end and stat.S_ISREG(found.st_mode):
            return committed.seen_in(directory.open_to_read(name), found) not in SAME_BYTES
    return False
