"""Digests of data by their numbers: two datasets with the same numbers and digests have the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.archives import DatasetAccess
from ondisk.errors import InvalidInput, OndiskError, shown
from ondisk.index import Row, Snapshot, changes
from ondisk.replication import feed
from ondisk.replication.feed import Broken, Kind, Parts
from ondisk.replication.merge import Run, first_of
from ondisk.replication.records import HIGHEST, packed

DIGEST = 16
"""The bytes of a datum's digest."""

MOST_REMOVED = 100_000
"""Numbers that `removed` takes, at most."""

RANGE_BYTES = 8 * 1024 * 1024
"""The bytes of data that one answer covers, about."""

_TOGETHER = 1_000  # data


class Entry(NamedTuple):
    """A datum as it is compared.

    Attributes:
        seq: its number.
        reftime: microseconds since 1970.
        digest: the begin of SHA-256 of its format, reftime, and bytes as `Format.exported` returns them; empty if it
            cannot be read.
    """

    seq: int
    reftime: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """The data that exist in a range of numbers.

    Attributes:
        uuid: of the index.
        first, last: the range, both included. `last` may be lower than it was requested: ask again from there.
        count: how many they are.
        digest: SHA-256 of the numbers and digests.
        unreadable: how many of them cannot be read. `digest` says nothing about them.
        entries: the data in the order of their numbers; empty if only the digest was requested.
    """

    uuid: str
    first: int
    last: int
    count: int
    digest: bytes
    unreadable: int
    entries: Sequence[Entry] = ()

    def equals(self, other: Contents) -> bool:
        """Return whether both are the same data, and all of them can be read."""
        return (self.last, self.digest, self.unreadable, other.unreadable) == (other.last, other.digest, 0, 0)

    @property
    def data(self) -> Iterable[tuple[int, int, bytes | None]]:
        """Number, reftime and digest of each."""
        return self.entries


@dataclass(frozen=True, slots=True)
class Removed:
    """What is known of data that do not exist any more.

    Attributes:
        expired: the number up to which not all deletions are known any more.
        is_partial: the dataset does not know of all data that it has lost which they are: it is a replica, or has lost
            an archive.
        notes: of each datum whose removal is noted: its number, the number of the removal, and why it is gone.
    """

    expired: int
    is_partial: bool
    notes: Sequence[tuple[int, int, Kind]]


def contents_of(access: DatasetAccess, first: int, last: int, *, listed: bool) -> Contents:
    """Return digests of data; see `Source.contents`. The numbers may also be those of a replica."""
    if type(first) is not int or type(last) is not int or not 1 <= first <= last < 2 * HIGHEST:
        raise InvalidInput(f"{shown(first)} to {shown(last)} is not a range of numbers", hint="Numbers begin with 1.")
    with feed.parts_of(access) as parts:
        uuid = parts[-1][1].dataset()["uuid"]
        found = partial(changes.data_between, first=first - 1, last=last, whole=False)
        runs, is_all = first_of(feed.in_order(access, parts, found), RANGE_BYTES)
        if not is_all:
            last = runs[-1].seqs[-1]
        entries = [*_entries(parts, runs)]
    whole = [each for each in entries if each.digest]
    digest = hashlib.sha256(packed(each.seq for each in whole))
    digest.update(b"".join(each.digest for each in whole))
    unreadable = len(entries) - len(whole)
    return Contents(uuid, first, last, len(entries), digest.digest(), unreadable, tuple(entries) if listed else ())


def removed_of(access: DatasetAccess, seqs: Sequence[int]) -> Removed:
    """Return what is known of data that do not exist any more; see `Source.removed`."""
    if len(seqs) > MOST_REMOVED or any(type(seq) is not int or not 1 <= seq < HIGHEST for seq in seqs):
        raise InvalidInput(f"removed takes up to {MOST_REMOVED} numbers of data")
    found: dict[int, tuple[int, int, Kind]] = {}
    with feed.parts_of(access) as parts:
        main = parts[-1][1]
        expired, is_partial = changes.expired(main), access.config.replica or changes.has_unnamed_losses(main)
        for _, snapshot in parts:
            for number, target, why in changes.deletions_of(snapshot, seqs):
                if target not in found or found[target][1] < number:
                    found[target] = target, number, feed.kind_of(why)
    return Removed(expired, is_partial, sorted(found.values()))


def rows_in(access: Access, seqs: Sequence[int]) -> Iterator[tuple[Snapshot, Row]]:
    """Yield the rows of the data with some numbers that one index has; see `changes.data_of`."""
    with access.current().index.snapshot() as snapshot:
        for rows in changes.data_of(snapshot, seqs):
            yield from ((snapshot, row) for row in rows)


def reftimes_at(access: DatasetAccess, seqs: Sequence[int]) -> Iterator[tuple[int, int, None]]:
    """Yield number and reftime of some data of a dataset, in place of entries without digests."""
    for opened in access.archives.all():
        yield from ((row[-1], row[0], None) for _, row in rows_in(opened, seqs))


def entries_at(access: DatasetAccess, seqs: Sequence[int]) -> Iterator[Entry]:
    """Yield some data of a dataset, by their numbers, which ascend."""
    for begin in range(0, len(seqs), _TOGETHER):
        with feed.parts_of(access) as parts:
            some = seqs[begin : begin + _TOGETHER]
            yield from _entries(parts, feed.in_order(access, parts, partial(changes.data_of, seqs=some)))


def errors_at(access: DatasetAccess, seqs: Sequence[int]) -> dict[int, OndiskError]:
    """Return why some data of a dataset cannot be read, by their numbers, which ascend."""
    with feed.parts_of(access) as parts:
        read = _read(parts, feed.in_order(access, parts, partial(changes.data_of, seqs=seqs)))
        return {some[0][-1]: found.error for some, found in read if isinstance(found, Broken)}


def _entries(parts: Parts, runs: Iterable[Run]) -> Iterator[Entry]:
    for some, found in _read(parts, runs):
        if isinstance(found, Broken):
            yield Entry(some[0][-1], some[0][0], b"")
        else:
            yield from (Entry(row[-1], row[0], digest) for row, digest in zip(some, found, strict=True))


def _read(parts: Parts, runs: Iterable[Run]) -> Iterator[tuple[Sequence[Row], list[bytes] | Broken]]:
    """Yield some rows and their digests; or one, and why it cannot be read."""
    for part, together in groupby(runs, key=lambda run: run.part):
        opened, snapshot = parts[part]

        def digests(rows: Sequence[Row], opened: Opened = opened, snapshot: Snapshot = snapshot) -> list[bytes]:
            return [*_digests(opened, snapshot, rows)]

        yield from feed.read_some(opened, snapshot, [row for run in together for row in run.rows], digests)


def _digests(opened: Opened, snapshot: Snapshot, rows: Sequence[Row]) -> Iterator[bytes]:
    at = 0
    for format, payloads, beside in opened.reader.exported(snapshot, rows):
        begin = f"{format}\0".encode()
        for place, payload in enumerate(payloads):
            digest = hashlib.sha256(begin)
            digest.update(packed((rows[at][0], len(payload))))
            digest.update(payload)
            if beside:
                digest.update(beside[place])
            yield digest.digest()[:DIGEST]
            at += 1
