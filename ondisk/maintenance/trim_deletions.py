"""Trimming: forgets deletions that are older than `deletions_kept`. Tokens that lack them expire."""

from __future__ import annotations

from ondisk.dataset.access import Access
from ondisk.index import changes
from ondisk.maintenance.ages import Ages
from ondisk.step import days_ago

_SOME = 100_000  # rows that one commit removes


def trim_deletions(dataset: Access, ages: Ages) -> None:
    """Remove the deletions that are old enough from the dataset's index. Rows of data are never removed.

    A deletion is as old as the run of changes that it belongs to; a run ends after a day, or with another writer.

    Durability: one commit for some rows. The first also says which tokens expire.
    Locks: the writers' lock, for each commit.
    """
    days = dataset.config.deletions_kept
    if days is None or ages.doubt is not None:
        return
    with dataset.current().index.snapshot() as snapshot:
        last = changes.last_before(snapshot, days_ago(days, ages.now))
        if not changes.has_deletions(snapshot, last):
            return
    removed = _SOME
    while removed == _SOME:
        with dataset.transaction("repack") as transaction:
            removed = transaction.trim_deletions(last, _SOME)
            if removed:
                transaction.commit()
