"""Exchange data for others in one commit, if nobody else has changed the dataset meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import insert
from ondisk.dataset.delete import delete_in
from ondisk.errors import InvalidInput
from ondisk.formats import Batch, Format
from ondisk.matcher import Expression

State: TypeAlias = tuple[str, int]
"""What data a dataset has: every append and every delete changes it. A repack does not."""


def exchange(access: Access, state: State, deleted: Sequence[Expression], batch: Batch, format: Format) -> State | None:
    """Delete data and store others; `Dataset.exchange` describes it."""
    with access.transaction("append", adds=len(batch)) as transaction:
        if access.current().index.state() != state:
            return None
        for each in deleted:
            delete_in(access, transaction, each)
        stored = insert(batch, format, access.config, access.directory, transaction, trusted=not access.has_sentinel())
        if batch.refused:
            raise InvalidInput(f"nothing was changed, because a datum cannot be stored: {batch.refused[0][1]}")
        if stored.duplicates:
            raise InvalidInput("nothing was changed, because a datum is a duplicate")
        if stored.imported:
            transaction.check_space()
        transaction.commit()
        return access.current().index.state()
