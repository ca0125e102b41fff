"""Compare a source with its replica: by digests of ranges of numbers, and where these differ, datum by datum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.errors import IntegrityError
from ondisk.index.changes import OWN
from ondisk.replication.compared import Compared, Fate
from ondisk.replication.contents import Contents, before, contents_of, entries_at, listed
from ondisk.replication.feed import Kind
from ondisk.replication.source import MOST_SEQS, Numbers, Source, numbers
from ondisk.step import days_ago

_Answer = TypeVar("_Answer", Contents, Numbers)
OnRange = Callable[[int, int], object]
"""Called with how many numbers were compared, and how many are left."""


def by_contents(
    access: Access, source: Source, uuid: str, first: int, last: int, found: Compared, on_range: OnRange
) -> None:
    """Add the data in a range of numbers that differ.

    Args:
        access: to the replica.
        uuid: of the source.

    Cost: reads all data of source and replica. 100 bytes travel for some megabytes that are equal, else 30 for each
        datum.
    """

    def theirs(first: int, last: int, *, is_listed: bool) -> Contents:
        return _checked(source.contents(first, last, listed=is_listed), first, last, uuid)

    mine = partial(contents_of, access, listed=True)
    while first <= last:
        there = theirs(first, last, is_listed=False)
        end = there.last
        if not there.equals(contents_of(access, first, end, listed=False)):
            found.add("theirs", listed(partial(theirs, is_listed=True), first, end))
            found.add("mine", listed(mine, first, end))
            found.drop_equal(by_digest=True)
        on_range(end + 1 - first, last - end)
        first = end + 1


def add_others(access: Access, last: int, found: Compared) -> None:
    """Add the data of a replica with numbers that its source has not given out: above one, and the replica's own."""
    found.add("mine", listed(partial(contents_of, access, listed=True), last + 1, 2 * OWN - 1))


def by_numbers(access: Access, source: Source, uuid: str, last: int, found: Compared, on_range: OnRange) -> None:
    """Add the data whose numbers exist on one side only, up to a number; see `by_contents`.

    Cost: reads both indices. 100 bytes travel for 100,000 numbers that are equal, else 8 for each datum.
    """

    def theirs(first: int, last: int, *, is_listed: bool) -> Numbers:
        return _checked(source.seqs(first, last, listed=is_listed), first, last, uuid)

    for first in range(1, last + 1, MOST_SEQS):
        end = min(last, first + MOST_SEQS - 1)
        if theirs(first, end, is_listed=False).digest != numbers(access, first, end, listed=False).digest:
            for side, read in (("theirs", partial(theirs, is_listed=True)),
                               ("mine", partial(numbers, access, listed=True))):  # fmt: skip
                at = first
                while at <= end:
                    some = read(at, end)
                    found.add_numbers(side, some.seqs)
                    at = some.last + 1
            found.drop_equal(by_digest=False)
        on_range(end + 1 - first, last - end)


def decide(access: Access, source: Source, found: Compared, offset: int) -> None:
    """Find out what becomes of the data of the replica, whose numbers are those of the source.

    Args:
        access: to the replica.
        offset: the replica has applied all deletions up to this number.
    """
    for theirs, mine in found.both():
        if not theirs.digest:
            found.decide([mine.seq], Fate.UNREADABLE if mine.digest else Fate.DAMAGED)
            found.drop("theirs", [mine.seq])
        else:
            found.decide([mine.seq], Fate.REPLACED if mine.digest else Fate.DAMAGED)
    delete_age = DatasetConfig.from_toml(source.describe().config).delete_age
    for some in found.of("mine", f"seq < {OWN} AND seq NOT IN (SELECT seq FROM theirs) AND fate = {Fate.APART:d}"):
        seqs = [each.seq for each in some]
        removed = source.removed(seqs)
        fates = {target: _fate(number, kind, offset) for target, number, kind in removed.notes}
        for seq in seqs:
            forgotten = Fate.UNKNOWN if removed.is_partial or seq > removed.expired else Fate.GONE
            found.decide([seq], fates.get(seq, forgotten))
        if delete_age is not None:  # its notes may be forgotten, too
            found.decide(before(access, [seq for seq in seqs if seq not in fates], days_ago(delete_age)), Fate.AGED)


def _fate(number: int, kind: Kind, offset: int) -> Fate:
    if kind is Kind.DELETED:
        return Fate.DELETED if number <= offset else Fate.PENDING
    return Fate.LOST if kind is Kind.LOST else Fate.AGED


def add_digests(access: Access, source: Source, uuid: str, last: int, found: Compared, *, also_alone: bool) -> None:
    """Add digests to the data that were compared by numbers, if some may be equal and have different numbers.

    Args:
        also_alone: also if none can be equal. A datum that the source cannot read gets none.
    """
    gone = f"fate = {Fate.GONE:d}"
    if not found.count("theirs") or not (also_alone or found.count("mine", gone)):
        return
    for some in found.of("mine", gone):
        found.digest("mine", entries_at(access, [each.seq for each in some]))
    reached = 0
    for some in found.of("theirs"):
        for each in some:
            if each.seq > reached:
                there = _checked(source.contents(each.seq, last, listed=True), each.seq, last, uuid)
                found.digest("theirs", there.entries)
                reached = there.last


def _checked(answer: _Answer, first: int, last: int, uuid: str) -> _Answer:
    """Return what a source has answered.

    Raises:
        IntegrityError: it is not an answer to the request.
    """
    if answer.uuid != uuid or answer.first != first or not first <= answer.last <= last:
        hint = "Somebody may have exchanged or rebuilt its index meanwhile: run it again."
        raise IntegrityError(f"the source does not answer for the numbers {first} to {last}", hint=hint)
    return answer
