"""Second copies of data that are nowhere else any more: their segment is kept before its bytes are removed."""

from __future__ import annotations

from ondisk.dataset.access import Access
from ondisk.dataset.archives import Archives
from ondisk.index import Copies
from ondisk.maintenance.known import known_of
from ondisk.maintenance.rescan import Rescan
from ondisk.maintenance.second_copy import OtherIndex
from ondisk.segments import quarantine

_WHY = "data in it were equal to data of other segments, which were deleted, changed or removed since"


def keep_single_copies(access: Access, archives: Archives, name: str, verb: str) -> None:
    """Link a segment into quarantine if a fix found second copies in it, and the others are not there now.

    Call it before the segment is rewritten, merged or removed.

    Args:
        access: the dataset or the archive that has the segment.
        archives: of the dataset.
        verb: what is about to be done.

    Locks: the writers' lock.
    Cost: reads the segment, and what it was compared with; nothing if it has no second copies.
    """
    with access.current().index.snapshot() as snapshot:
        segment = snapshot.segment_named(name)
        if segment is None or segment.copies is Copies.NONE:
            return
        known = known_of(access, snapshot, name, None)
    with archives.assigning_seq(access, verb), access.transaction(verb) as transaction:  # it ends without a commit
        try:
            is_copied = Rescan(access, transaction, name, known, OtherIndex(archives, access)).has_only_copies()
        except FileNotFoundError:  # somebody has removed it: there is nothing to keep
            return
        if not is_copied:
            quarantine.link(access.directory, name, verb=verb, why=_WHY)
