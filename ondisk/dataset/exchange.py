"""Exchange data for others in one commit, if nobody else has changed the dataset meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeAlias

from ondisk.dataset.append import insert
from ondisk.dataset.archived import archived_for
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.delete import delete_in
from ondisk.errors import InvalidInput
from ondisk.formats import Batch, Format
from ondisk.matcher import Expression

State: TypeAlias = tuple[tuple[str, int], ...]
"""What data a dataset has: every append and every delete changes it, also one in an archive. A repack does not."""


def state_of(access: DatasetAccess) -> State:
    """Return the state of a dataset and of its archives."""
    return (access.current().index.state(), *(each.current().index.state() for each in access.archives.online()))


def exchange(
    access: DatasetAccess, state: State, deleted: Sequence[Expression], batch: Batch, format: Format
) -> State | None:
    """Delete data and store others; `Dataset.exchange` describes it."""
    with access.transaction("append", adds=len(batch)) as transaction, contextlib.ExitStack() as stack:
        if state_of(access) != state:
            return None
        delete_in(access, transaction, stack, deleted)
        trusted, archived = not access.has_sentinel(), archived_for(access.archives, access.config)
        stored = insert(batch, format, access.config, access.directory, transaction, trusted=trusted, archived=archived)
        if batch.refused:
            raise InvalidInput(f"nothing was changed, because a datum cannot be stored: {batch.refused[0][1]}")
        if stored.duplicates:
            raise InvalidInput("nothing was changed, because a datum is a duplicate")
        if stored.imported:
            transaction.check_space()
        transaction.commit()
        return state_of(access)
