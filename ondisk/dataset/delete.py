"""Deleting data, and exchanging them for others: removes rows. The bytes stay until a repack, also what is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import insert, iterated
from ondisk.dataset.query import Query
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import DiskFull, InvalidInput, counted
from ondisk.formats import Batch, Format
from ondisk.index.transaction import Transaction
from ondisk.matcher import Expression

_SOME = 16_384
"""Data that one commit deletes when the disk is full."""

_Chosen: TypeAlias = Callable[[Transaction, int | None], int]
"""Deletes what a caller chose, at most so many data, and returns how many; a transaction of its own commits it."""


def delete(access: Access, what: str | Expression | Iterable[Location]) -> int:
    """Delete data, and return how many, in flat memory; `Dataset.delete` describes durability and locks."""
    chosen = _matching(access, what) if isinstance(what, str | Expression) else _located(what)
    try:
        with access.user_transaction("delete") as transaction:
            if deleted := chosen(transaction, None):
                transaction.commit()
    except DiskFull:
        deleted = _delete_in_steps(access, chosen)
    return deleted


def _delete_in_steps(access: Access, chosen: _Chosen) -> int:
    """Delete data in several commits, which need less space than one; return how many.

    A commit needs space for every page of the index that it changes. The bigger ones fail on a full disk; what they
    tried is undone.

    Raises:
        DiskFull: not all of them could be deleted; `error.context["deleted"]` says how many were.
    """
    deleted, some = 0, _SOME
    while True:
        try:
            with access.user_transaction("delete") as transaction:
                if not (count := chosen(transaction, some)):
                    return deleted
                transaction.commit()
            deleted += count
        except DiskFull as error:
            some //= 4
            if not some:
                done = f"{counted(deleted, 'datum', 'was')} deleted, the others were not"
                raise DiskFull(f"{error.message}; {done}", hint=error.hint, **error.context, deleted=deleted) from error


def _matching(access: Access, match: str | Expression) -> _Chosen:
    query = Query(match)
    query.check(access.current().index)
    return lambda transaction, limit: transaction.delete(query.tree(access.current().index), limit)


def _located(locations: Iterable[object]) -> _Chosen:
    places: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
    for each in iterated(locations, "delete takes a match or locations"):
        if not isinstance(each, Location):
            hint = "Pass a match expression, or locations of data: datum.location."
            raise InvalidInput(f"delete takes a match or locations, not {each!r:.80}", hint=hint)
        if 0 <= each.offset <= INTEGER_MAX and 0 <= each.size <= INTEGER_MAX:  # no datum is elsewhere
            places.setdefault((each.segment, each.generation), []).append((each.offset, each.size))

    def delete_some(transaction: Transaction, limit: int | None) -> int:
        deleted = 0
        for (name, generation), some in places.items():
            deleted += transaction.delete_at(name, some, None if limit is None else limit - deleted, generation)
        return deleted

    return delete_some


State: TypeAlias = tuple[str, int]
"""What data a dataset has: every append and every delete changes it. A repack does not."""


def exchange(access: Access, state: State, deleted: Sequence[Expression], batch: Batch, format: Format) -> State | None:
    """Delete data and store others; `Dataset.exchange` describes it."""
    with access.user_transaction("append", adds=len(batch)) as transaction:
        if access.current().index.state() != state:
            return None
        for each in deleted:
            _matching(access, each)(transaction, None)
        stored = insert(batch, format, access.config, access.directory, transaction, trusted=not access.has_sentinel())
        if batch.refused:
            raise InvalidInput(f"nothing was changed, because a datum cannot be stored: {batch.refused[0][1]}")
        if stored.duplicates:
            raise InvalidInput("nothing was changed, because a datum is a duplicate")
        if stored.imported:
            transaction.check_space()
        transaction.commit()
        return access.current().index.state()
