"""Deleting data: removes rows from the index of the dataset and of its archives. The bytes stay until a repack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import iterated
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.layout import ARCHIVE
from ondisk.dataset.query import Query
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput
from ondisk.index import Transaction
from ondisk.matcher import Expression

_Places: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]
"""Segment → offset and size of data."""


def delete(access: DatasetAccess, what: str | Expression | Iterable[Location]) -> int:
    """Delete data, and return how many; `Dataset.delete` describes durability and locks."""
    archives = access.archives
    chosen = _Matching(access, what) if isinstance(what, str | Expression) else _Located(what)
    with access.transaction("delete") as transaction, contextlib.ExitStack() as stack:
        deleted = chosen.delete(access, transaction)
        archives.delete_replaced()
        for archive in filter(chosen.concerns, archives.online()):
            archived = stack.enter_context(archive.transaction("delete"))
            archived.advance_seq(transaction.seq, is_highest=True)
            if count := chosen.delete(archive, archived):
                # The dataset is committed first: the archives share its counter, which must be ahead of them.
                transaction.after_commit(archived.commit)
                deleted += count
            transaction.advance_seq(archived.seq)
        if deleted:
            transaction.commit()
    return deleted


class _Matching:
    """The data that match."""

    def __init__(self, access: Access, match: str | Expression) -> None:
        self._query = Query(match)
        self._query.check(access.current().index)

    def concerns(self, archive: Access) -> bool:
        index = archive.current().index
        with index.snapshot() as snapshot:
            return snapshot.totals(self._query.tree(index)).count > 0

    def delete(self, access: Access, transaction: Transaction) -> int:
        return transaction.delete(self._query.tree(access.current().index))


class _Located:
    """The data at locations."""

    def __init__(self, locations: Iterable[object]) -> None:
        self._places = _by_segment(locations)

    def concerns(self, archive: Access) -> bool:
        return any(_is_of(name, archive) for name in self._places)

    def delete(self, access: Access, transaction: Transaction) -> int:
        here = {name: places for name, places in self._places.items() if _is_of(name, access)}
        return sum(transaction.delete_at(name.removeprefix(access.prefix), places) for name, places in here.items())


def _is_of(segment: str, access: Access) -> bool:
    """Return whether the segment of a location belongs to this dataset or archive."""
    return segment.startswith(access.prefix) and (access.prefix != "" or not segment.startswith(f"{ARCHIVE}/"))


def _by_segment(locations: Iterable[object]) -> _Places:
    places: dict[str, list[tuple[int, int]]] = {}
    for each in iterated(locations, "delete takes a match or locations"):
        if not isinstance(each, Location):
            hint = "Pass a match expression, or locations of data: datum.location."
            raise InvalidInput(f"delete takes a match or locations, not {each!r:.80}", hint=hint)
        if 0 <= each.offset <= INTEGER_MAX and 0 <= each.size <= INTEGER_MAX:  # no datum is elsewhere
            places.setdefault(each.segment, []).append((each.offset, each.size))
    return places
