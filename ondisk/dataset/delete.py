"""Deleting data: removes rows from the index of the dataset and of its archives. The bytes stay until a repack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import iterated
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.layout import ARCHIVE
from ondisk.dataset.query import Query
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import DiskFull, InvalidInput
from ondisk.index import Snapshot, segment_rows
from ondisk.index.transaction import Transaction
from ondisk.matcher import Expression, reftime_interval
from ondisk.step import NEVER, Interval

_SOME = 16_384
"""Data that one commit deletes when the disk is full."""

_Places: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]
"""Segment → offset and size of data."""


def delete(access: DatasetAccess, what: str | Expression | Iterable[Location]) -> int:
    """Delete data, and return how many; `Dataset.delete` describes durability and locks.

    Memory: does not grow with the number of data that match.
    """
    chosen = _Matching(access, what) if isinstance(what, str | Expression) else _Located(what)
    try:
        deleted = _delete(access, chosen)
    except DiskFull as error:
        if not (some := _delete_in_steps(access, chosen)):
            raise
        try:
            deleted = some + _delete(access, chosen)  # what is in archives
        except DiskFull:
            error.context["deleted"] = some
            raise error from None
    access.archives.warn_of_offline("was left as it is: delete again when it is back")
    return deleted


def _delete_in_steps(access: DatasetAccess, chosen: _Matching | _Located) -> int:
    """Delete the data of the dataset itself in several commits, which need less space than one; return how many.

    A commit needs space for every page of the index that it changes. The bigger ones fail on a full disk; what they
    tried is undone.
    """
    deleted, some = 0, _SOME
    while some:
        try:
            with access.transaction("delete") as transaction:
                if not (count := chosen.delete(access, transaction, some)):
                    break
                transaction.commit()
            deleted += count
        except DiskFull:
            some //= 4
    return deleted


def _delete(access: DatasetAccess, chosen: _Matching | _Located) -> int:
    """Delete data in one act."""
    with access.transaction("delete") as transaction, contextlib.ExitStack() as stack:
        deleted = _delete_in(access, transaction, stack, [chosen])
        if deleted:
            transaction.commit()
    return deleted


def delete_in(
    access: DatasetAccess, transaction: Transaction, stack: contextlib.ExitStack, matches: Sequence[Expression]
) -> int:
    """Delete the data that match one of some expressions, in a transaction that the caller commits; return how many.

    Args:
        stack: holds the locks of archives with such data; the caller closes it after the commit.
    """
    return _delete_in(access, transaction, stack, [_Matching(access, match) for match in matches])


def _delete_in(
    access: DatasetAccess,
    transaction: Transaction,
    stack: contextlib.ExitStack,
    chosen: Sequence[_Matching | _Located],
) -> int:
    archives = access.archives
    for each in chosen:
        archives.record.check_present(each.interval())
    archives.complete_deletes()
    deleted = sum(each.delete(access, transaction) for each in chosen)
    for archive in archives.online():
        with archive.current().index.snapshot() as snapshot:
            uuid = snapshot.dataset()["uuid"]
            count = sum(transaction.note_archived(uuid, each.seqs(archive, snapshot)) for each in chosen)
        if count:
            stack.enter_context(archive.locked("delete"))  # an error after the commit would be too late
            deleted += count
    transaction.after_commit(archives.complete_deletes_later)
    return deleted


class _Matching:
    """The data that match."""

    def __init__(self, access: Access, match: str | Expression) -> None:
        self._query = Query(match)
        self._query.check(access.current().index)
        self._tree = self._query.tree(access.current().index)

    def interval(self) -> Interval:
        """Return the interval of the data that can match."""
        return reftime_interval(self._tree)

    def delete(self, access: Access, transaction: Transaction, limit: int | None = None) -> int:
        return transaction.delete(self._query.tree(access.current().index), limit)

    def seqs(self, archive: Access, snapshot: Snapshot) -> Iterator[list[int]]:
        """Yield the seqs of the data in an archive, some at a time."""
        return segment_rows.seqs_of(snapshot, self._query.tree(archive.current().index))


class _Located:
    """The data at locations."""

    def __init__(self, locations: Iterable[object]) -> None:
        self._places = _by_segment(locations)

    def interval(self) -> Interval:
        """Return no interval: who names a datum has seen it."""
        return NEVER

    def delete(self, access: Access, transaction: Transaction, limit: int | None = None) -> int:
        deleted = 0
        for name, places in self._in(access).items():
            deleted += transaction.delete_at(name, places, None if limit is None else limit - deleted)
        return deleted

    def seqs(self, archive: Access, snapshot: Snapshot) -> Iterator[list[int]]:
        """Yield the seqs of the data in an archive, some at a time."""
        for name, places in self._in(archive).items():
            yield from segment_rows.seqs_at(snapshot, name, places)

    def _in(self, access: Access) -> _Places:
        """Return the places in a dataset or archive, by the names of the segments there."""
        here = {name: places for name, places in self._places.items() if _is_of(name, access)}
        return {name.removeprefix(access.prefix): places for name, places in here.items()}


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
