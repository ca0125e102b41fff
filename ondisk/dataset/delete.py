"""Deleting: rows go from the index, of the dataset and of its archives; the bytes stay until a repack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ondisk.dataset.access import Access
from ondisk.dataset.append import iterated
from ondisk.dataset.archives import Archives
from ondisk.dataset.layout import ARCHIVE
from ondisk.dataset.query import Question
from ondisk.datum import INTEGER_MAX, Location
from ondisk.errors import InvalidInput
from ondisk.index import Transaction
from ondisk.matcher import Expression

_Places: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]
"""Segment → offset and size of data."""


def delete(access: Access, archives: Archives, what: str | Expression | Iterable[Location]) -> int:
    """Delete data, and tell how many; see `Dataset.delete`, which also tells durability and locks."""
    chosen = _Matching(access, what) if isinstance(what, str | Expression) else _Located(what)
    with access.transaction("delete") as transaction, contextlib.ExitStack() as stack:
        transaction.go_on_from(access.seq_elsewhere())
        deleted = chosen.delete(access, transaction)
        archives.delete_replaced()
        changed = []
        for archive in filter(chosen.concerns, archives.online()):
            archived = stack.enter_context(archive.transaction("delete"))
            archived.go_on_from(transaction.seq)
            if count := chosen.delete(archive, archived):
                changed.append(archived)
                deleted += count
            transaction.go_on_from(archived.seq)
        if deleted:
            # The dataset's first: the archives share its counter, which must be ahead of them.
            transaction.commit()
        if transaction.checkpoint_error is None:  # else nothing more is written
            for archived in changed:
                archived.commit()
    for part in (access, *archives.online()):
        part.check_not_failed()
    return deleted


class _Matching:
    """The data that match."""

    def __init__(self, access: Access, match: str | Expression) -> None:
        self._question = Question(match)
        self._question.check(access.current().index)

    def concerns(self, archive: Access) -> bool:
        index = archive.current().index
        with index.snapshot() as snapshot:
            return snapshot.totals(self._question.tree(index)).count > 0

    def delete(self, access: Access, transaction: Transaction) -> int:
        return transaction.delete(self._question.tree(access.current().index))


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
    """Tell whether a location's segment is one of a dataset, or of an archive."""
    return segment.startswith(access.prefix) and (access.prefix != "" or not segment.startswith(f"{ARCHIVE}/"))


def _by_segment(locations: Iterable[object]) -> _Places:
    places: dict[str, list[tuple[int, int]]] = {}
    for each in iterated(locations, "delete takes a match or locations"):
        if not isinstance(each, Location):
            hint = "Give a match expression, or locations as datum.location has them."
            raise InvalidInput(f"delete takes a match or locations, not {each!r:.80}", hint=hint)
        if 0 <= each.offset <= INTEGER_MAX and 0 <= each.size <= INTEGER_MAX:  # nothing stands elsewhere
            places.setdefault(each.segment, []).append((each.offset, each.size))
    return places
