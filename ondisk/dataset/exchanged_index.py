"""What becomes of an index that was exchanged for an older state of it, or for that of another dataset.

And of one that waits to replace the index, see `ondisk.index.swap`.
"""

from __future__ import annotations

import contextlib
import os
import stat

from ondisk.dataset.auxiliary_files import EXCHANGED_TEXT, SENTINEL
from ondisk.errors import StorageError
from ondisk.filesystem import Directory
from ondisk.formats import find, is_dir
from ondisk.index import INDEX
from ondisk.index.connection import NEXT
from ondisk.index.swap import finish_swap, remove, why_not_successor
from ondisk.index.tide import Exchanged, Recorded
from ondisk.segment import Facts
from ondisk.segments import quarantine
from ondisk.segments.dir import seen_in
from ondisk.segments.file_facts import NO_TAIL, Committed, Seen
from ondisk.segments.generations import hidden
from ondisk.segments.places import twins

_FOREIGN = "it was in the place of the dataset's index: that of another dataset, or one from before the last exchange"
_OTHER = (Seen.OTHER, Seen.UNKNOWN)


def settle_next(directory: Directory, timeout: float) -> None:
    """Under the writers' lock, put the waiting index in place, or into quarantine if it is no successor."""
    if directory.inode(NEXT) is None:
        return
    why = why_not_successor(directory)
    if why is None:
        finish_swap(directory, timeout)
    else:
        quarantine.keep(directory, NEXT, verb="open", why=f"it would have replaced the index: {why}")


def take_over(directory: Directory, exchanged: Exchanged, timeout: float) -> None:
    """Make an exchanged index safe to write to; create the sentinel first. The caller must hold the writers' lock.

    An older state of the index gets a new UUID, continues after the numbers of the tide mark, and believes nothing
    about the segments that have changed since. It forgets dir segments. A fix compares its rows of the others with
    their files, so that data which are still there keep their `seq`. The index of another dataset knows nothing of
    these segments: it is moved to quarantine, and counts as lost. In all cases, a fix reads the segments that the index
    does not know.
    """
    if directory.inode(SENTINEL) is None:
        directory.write_new(SENTINEL, EXCHANGED_TEXT)
    if exchanged.is_foreign:
        quarantine.link(directory, INDEX, verb="open", why=_FOREIGN)
        remove(directory, timeout)
        return
    from ondisk.index.recover import renew

    renew(directory, exchanged, timeout, lambda recorded: _renewed(directory, recorded))


def _renewed(directory: Directory, recorded: Recorded) -> Recorded | None:
    """Return what the index records of a segment from now on; None if it forgets it.

    What is missing has not changed: its bytes may be at a hidden name, which only its row explains.
    """
    name = recorded.name
    found = directory.stat(name)
    if found is None:
        return recorded
    if is_dir(recorded.format):
        return None if _has_changed_dir(directory, recorded, found) else recorded
    if not stat.S_ISREG(found.st_mode):
        return None
    committed = Committed(recorded.size, recorded.facts, find(recorded.format).mutable)
    if committed.seen_in(directory.open_to_read(name), found) not in _OTHER:
        return recorded
    if directory.stat(hidden(name, recorded.generation)) is not None:
        return None  # these rows are about the hidden file, and that at the name has newer data
    for twin in twins(directory, name):
        if _has_bytes(directory, twin, committed):
            return recorded._replace(name=twin)  # it was moved since, and the file at the name has late data
    return recorded._replace(size=min(recorded.size, found.st_size), facts=Facts(tail=NO_TAIL))


def _has_bytes(directory: Directory, name: str, committed: Committed) -> bool:
    with contextlib.suppress(FileNotFoundError, StorageError):
        file = directory.open_to_read(name)
        seen = committed.seen_in(file, file.stat())
        return seen is Seen.UNTOUCHED or (seen is Seen.SAME_TAIL and committed.is_whole_in(file) is True)
    return False


def _has_changed_dir(directory: Directory, recorded: Recorded, found: os.stat_result) -> bool:
    """Return whether there is something else at the name of a dir segment than the older state describes."""
    if not stat.S_ISDIR(found.st_mode):
        return True
    with directory.inside(recorded.name) as folder:
        is_same = seen_in(folder, recorded.facts, recorded.size) is Seen.UNTOUCHED
    # Whoever creates or removes a file in it changes the time of the directory.
    return not is_same or max(found.st_mtime_ns, found.st_ctime_ns) // 1000 > recorded.committed_at
