"""Sources: where a replica gets its changes from. A source at a path; the one of a server answers the same.

A source is a dataset that others may write to and maintain meanwhile. Each answer comes from one snapshot of it.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ondisk.dataset.access import Access, Opened
from ondisk.dataset.auxiliary_files import identity_at, untrusted
from ondisk.dataset.dataset import Dataset
from ondisk.errors import InvalidInput, OndiskError, StateError, command, shown
from ondisk.filesystem import Closing
from ondisk.index import Row, Snapshot, changes
from ondisk.replication import feed
from ondisk.replication.feed import MAX_BYTES, Kind, Lag, Part, Run, first_of
from ondisk.replication.records import HIGHEST, Group, Records, packed
from ondisk.replication.token import Token

DIGEST = 16  # the bytes of a datum's digest
MOST_SEQS = 100_000  # numbers that `fetch` and `removed` of a server take, at most
RANGE_BYTES = 8 * 1024 * 1024  # the bytes of data that one answer covers, about
_TOGETHER = 1_000  # data


class Entry(NamedTuple):
    """A datum as it is compared."""

    seq: int  # its number
    reftime: int  # microseconds since 1970
    # the begin of SHA-256 of its format, reftime, and bytes as `Format.exported` returns them; empty if it cannot be
    # read
    digest: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """The data that exist in a range of numbers, in the order of these."""

    uuid: str  # of the index
    first: int  # first, last: the range, both included. `last` may be lower than it was requested: ask again from there
    last: int
    count: int  # how many data they are
    digest: bytes  # SHA-256 of their numbers, each in 8 bytes, little-endian, and then of their digests
    unreadable: int  # how many cannot be read; `digest` says nothing about these
    # seqs, reftimes, digests: as in `Entry`; empty if only the digest was requested
    seqs: Sequence[int] = ()
    reftimes: Sequence[int] = ()
    digests: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    expired: int  # the number up to which not all deletions are known any more
    # the dataset does not know of all data that it has lost which they are: it is a replica, or has lost rows of its
    # index
    is_partial: bool
    # of each datum whose removal is noted: its number, the number of the removal, and why it is gone
    notes: Sequence[tuple[int, int, Kind]]


def rows_in(access: Access, seqs: Sequence[int]) -> Iterator[tuple[Snapshot, Row]]:
    """Yield the rows of the data with some numbers that one index has; see `changes.data_of`."""
    with access.current().index.snapshot() as snapshot:
        for rows in changes.data_of(snapshot, seqs):
            yield from ((snapshot, row) for row in rows)


def errors_at(access: Access, seqs: Sequence[int]) -> dict[int, OndiskError]:
    """Return why some data of a dataset cannot be read, by their numbers, which ascend."""
    with feed.reading(access) as part:
        rows = [row for some in changes.data_of(part[1], seqs) for row in some]
        return {some[0][-1]: found for some, found in _read_digests(part, rows) if isinstance(found, OndiskError)}


def _read_digests(part: Part, rows: Sequence[Row]) -> Iterator[tuple[Sequence[Row], list[bytes] | OndiskError]]:
    """Yield some rows and their digests; or one, and why it cannot be read."""
    opened, snapshot = part
    return feed.read_some(opened, snapshot, rows, lambda each: [*_digests(opened, snapshot, each)])


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


@dataclass(frozen=True, slots=True)
class Description:
    uuid: str  # of its index. A rebuilt or exchanged index has another one
    name: str  # of the dataset
    config: str  # the text of its `dataset.toml`, as ondisk writes it
    seq: int  # the number of its last change
    session: int  # the one that gave out this number


class Source(Closing, ABC):
    """What a replica follows. A server takes at most 1 MiB of numbers of data, and `MOST_SEQS` of them.

    Attributes:
        address: host and port of its server; "" and 0 of a path.
        options: of `ondisk replicate`, which commands in hints repeat: what the source itself does not contain.
    """

    address = ("", 0)
    options: Sequence[str] = ()

    @abstractmethod
    def describe(self) -> Description:
        """Return what the source is."""

    @abstractmethod
    def changes(self, token: Token | None, max_bytes: int = MAX_BYTES) -> Records:
        """Return changes after a token; arguments and errors are those of `Dataset.changes`."""

    @abstractmethod
    def fetch(self, seqs: Sequence[int], max_bytes: int = MAX_BYTES) -> Records:
        """Return the data with some numbers, which ascend.

        Those that do not exist are not in the answer. It ends at `max_bytes`, and has at least one datum if one exists.
        The offset of its token says up to which number it is complete.
        """

    @abstractmethod
    def contents(self, first: int, last: int, *, listed: bool = False) -> Contents:
        """Return the digest of data in a range, or less of it if they are large; and that of each if `listed`."""

    @abstractmethod
    def removed(self, seqs: Sequence[int]) -> Removed:
        """Return what is known of data that do not exist any more, by their numbers, which ascend."""


class DatasetSource(Source):
    """An open dataset; both sides of a comparison are such."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def describe(self) -> Description:
        access = self._access
        if access.current().index.missing:
            raise untrusted(access.path)
        with access.current().index.snapshot() as snapshot:
            uuid, last = snapshot.dataset()["uuid"], feed.last_change(snapshot)
            session = changes.session_at(snapshot, last)
        return Description(uuid, access.path.name, access.config.to_toml(), last, session)

    def changes(self, token: Token | None, max_bytes: int = MAX_BYTES) -> Records:
        with feed.chosen(self._access, token, max_bytes, whole=False) as (part, runs, reached, lag, sessions):
            groups, unreadable = _read(part, runs)
            deletions = [each for run in runs if not run.is_new for each in feed.deletions_in(run)]
        return Records(reached, lag, groups, deletions, unreadable, sessions)

    def fetch(self, seqs: Sequence[int], max_bytes: int = MAX_BYTES) -> Records:
        with feed.reading(self._access) as part:
            snapshot = part[1]
            feed.last_change(snapshot)  # raises during a comparison, when data are gone that will return
            runs, is_all = first_of(feed.runs_of(changes.data_of(snapshot, seqs)), max_bytes)
            groups, unreadable = _read(part, runs)
            reached = max(seqs, default=0) if is_all else runs[-1].seqs[-1]
            token = Token(snapshot.dataset()["uuid"], changes.session_at(snapshot, reached), reached)
        return Records(token, Lag(0, 0), groups, (), unreadable)

    def contents(self, first: int, last: int, *, listed: bool = False) -> Contents:
        # The replica's own numbers, too.
        if type(first) is not int or type(last) is not int or not 1 <= first <= last < 2 * HIGHEST:
            raise InvalidInput(
                f"{shown(first)} to {shown(last)} is not a range of numbers", hint="Numbers begin with 1."
            )
        with feed.reading(self._access) as part:
            uuid = part[1].dataset()["uuid"]
            found = changes.data_between(part[1], first - 1, last, whole=False)
            runs, is_all = first_of(feed.runs_of(found), RANGE_BYTES)
            if not is_all:
                last = runs[-1].seqs[-1]
            entries: list[Entry] = []
            for some, read in _read_digests(part, [row for run in runs for row in run.rows]):
                digests = [b""] if isinstance(read, OndiskError) else read
                entries += (Entry(row[-1], row[0], each) for row, each in zip(some, digests, strict=True))
        whole = [each for each in entries if each.digest]
        digest = hashlib.sha256(packed(each.seq for each in whole))
        digest.update(b"".join(each.digest for each in whole))
        unreadable = len(entries) - len(whole)
        columns = zip(*entries, strict=True) if listed else ()
        return Contents(uuid, first, last, len(entries), digest.digest(), unreadable, *columns)

    def removed(self, seqs: Sequence[int]) -> Removed:
        access = self._access
        found: dict[int, tuple[int, int, Kind]] = {}
        with feed.reading(access) as (_, snapshot):
            expired = changes.expired(snapshot)
            is_partial = access.config.replica or changes.has_unnamed_losses(snapshot)
            for number, target, why in changes.deletions_of(snapshot, seqs):
                if target not in found or found[target][1] < number:
                    found[target] = target, number, feed.kind_of(why)
        return Removed(expired, is_partial, sorted(found.values()))


class PathSource(DatasetSource):
    """A source at a path, opened for reading; raises the errors of `Dataset.open`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self._identity = identity_at(self.path)
        self._dataset = Dataset.open(self.path, read_only=True)
        super().__init__(self._dataset._access)

    def _renew(self) -> None:
        """Open what is at the path now, if that is another folder, or has another configuration."""
        if identity_at(self.path) != self._identity:
            self._dataset.close()
            self._open()

    def describe(self) -> Description:
        self._renew()
        return super().describe()

    def changes(self, token: Token | None, max_bytes: int = MAX_BYTES) -> Records:
        self._renew()
        return super().changes(token, max_bytes)

    def __str__(self) -> str:
        return str(self.path)

    def close(self) -> None:
        self._dataset.close()


def source_of(place: str | os.PathLike[str], token: str | None = None) -> Source:
    """Open the source at a path, or at the URL of a server; raise StateError if urllib3 is not installed."""
    if not str(place).startswith(("http://", "https://")):
        return PathSource(place)
    try:
        from ondisk.replication.http_source import HttpSource
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'ondisk[server]'"
        raise StateError(f"a source on a server needs the package {error.name}", hint=hint) from None
    return HttpSource(str(place), token)


def replicate_command(source: Source, path: str | os.PathLike[str], *options: str) -> str:
    """Return the command that replicates a source to a path, for a hint."""
    return command("replicate", *source.options, source, path, *options)


def _read(part: Part, runs: Iterable[Run]) -> tuple[list[Group], list[tuple[int, str]]]:
    columns: dict[tuple[str, bool], tuple[list[int], list[bytes], list[bytes]]] = {}
    unreadable: list[tuple[int, str]] = []
    opened, snapshot = part
    rows = [row for run in runs if run.is_new for row in run.rows]
    for some, result in feed.read_some(opened, snapshot, rows, lambda each: [*opened.reader.exported(snapshot, each)]):
        if isinstance(result, OndiskError):
            unreadable.append((some[0][-1], result.message))
            continue
        at = 0
        for format, payloads, beside in result:
            seqs, own, others = columns.setdefault((format, len(beside) > 0), ([], [], []))
            seqs += [row[-1] for row in some[at : at + len(payloads)]]
            own += payloads
            others += beside
            at += len(payloads)
    return [Group(format, *each) for (format, _), each in columns.items()], unreadable
