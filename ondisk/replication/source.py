"""Sources: where a replica gets its changes from. A source at a path; the one of a server answers the same.

A source is a dataset that others may write to, repack and archive meanwhile. Each answer comes from one snapshot of it.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol, Self

from ondisk.dataset.access import Opened
from ondisk.dataset.archives import DatasetAccess
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.layout import untrusted
from ondisk.errors import InvalidInput, StateError, command, shown
from ondisk.index import Row, Snapshot, changes
from ondisk.replication import feed
from ondisk.replication.contents import Contents, Removed, contents_of, removed_of
from ondisk.replication.feed import MAX_BYTES, Broken, Lag, Parts
from ondisk.replication.merge import Run, first_of
from ondisk.replication.records import HIGHEST, Group, Records, packed
from ondisk.replication.token import Token

MOST_SEQS = 100_000
"""Numbers that `fetch` takes, and about as many as `seqs` lists, at most."""

_Data = tuple[str, Sequence[bytes], Sequence[bytes]]
"""Format, bytes, and bytes beside them, of some data."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a source is.

    Attributes:
        uuid: of its index. A rebuilt or exchanged index has another one.
        name: of the dataset.
        config: the text of its `dataset.toml`, as ondisk writes it.
        seq: the number of its last change.
        session: the one that gave out this number.
    """

    uuid: str
    name: str
    config: str
    seq: int
    session: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of the data that exist at a source, in a range.

    Attributes:
        uuid: of its index.
        first, last: the range, both included. `last` may be lower than it was requested: ask again from there.
        count: how many they are.
        digest: SHA-256 of the numbers, each in 8 bytes, little-endian.
        seqs: the numbers, ascending; empty if only the digest was requested.
    """

    uuid: str
    first: int
    last: int
    count: int
    digest: bytes
    seqs: Sequence[int] = ()

    def equals(self, other: Numbers) -> bool:
        """Return whether both are the same numbers."""
        return (self.last, self.digest) == (other.last, other.digest)

    @property
    def data(self) -> Iterable[tuple[int, int, bytes | None]]:
        """The numbers, in place of entries: nothing else of the data is known."""
        return ((seq, 0, None) for seq in self.seqs)


class Source(Protocol):
    """What a replica follows.

    Attributes:
        address: host and port of its server; "" and 0 of a path.
        options: of `ondisk replicate`, which commands in hints repeat: what the source itself does not contain.
    """

    address: tuple[str, int]
    options: Sequence[str]

    def describe(self) -> Description:
        """Return what the source is."""

    def changes(self, token: Token | None, max_bytes: int = MAX_BYTES) -> Records:
        """Return changes after a token; arguments and errors are those of `Dataset.changes`."""

    def seqs(self, first: int, last: int, *, listed: bool = False) -> Numbers:
        """Return the numbers of the data that exist, from `first` to `last`: their digest, and all if `listed`.

        If they are listed and more than `MOST_SEQS`, the range of the answer is shorter.
        """

    def fetch(self, seqs: Sequence[int], max_bytes: int = MAX_BYTES) -> Records:
        """Return the data with some numbers: at most `MOST_SEQS`, ascending.

        Those that do not exist are not in the answer. It ends at `max_bytes`, and has at least one datum if one exists.
        The offset of its token says up to which number it is complete.
        """

    def contents(self, first: int, last: int, *, listed: bool = False) -> Contents:
        """Return the digest of the data from the number `first` to `last`, and those of each if `listed`.

        If they have more than `RANGE_BYTES`, the range of the answer is shorter; it has at least one datum then.
        """

    def removed(self, seqs: Sequence[int]) -> Removed:
        """Return what is known of data that do not exist any more, by their numbers: at most `MOST_REMOVED`."""


class OpenSource(Source, Protocol):
    """A source that holds files or connections, for a `with` block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class PathSource:
    """A source at a path.

    Args:
        path: of the dataset. It is opened for reading only.

    Raises, in every method:
        Also the errors of `Dataset.open`.
    """

    address = ("", 0)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.options: Sequence[str] = ()
        self._dataset: Dataset | None = None

    def __str__(self) -> str:
        return str(self.path)

    def close(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
            self._dataset = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def describe(self) -> Description:
        return described(self._access())

    def changes(self, token: Token | None, max_bytes: int = MAX_BYTES) -> Records:
        return records(self._access(), token, max_bytes)

    def seqs(self, first: int, last: int, *, listed: bool = False) -> Numbers:
        return numbers(self._access(), first, last, listed=listed)

    def fetch(self, seqs: Sequence[int], max_bytes: int = MAX_BYTES) -> Records:
        return fetched(self._access(), seqs, max_bytes)

    def contents(self, first: int, last: int, *, listed: bool = False) -> Contents:
        return contents_of(self._access(), first, last, listed=listed)

    def removed(self, seqs: Sequence[int]) -> Removed:
        return removed_of(self._access(), seqs)

    def _access(self) -> DatasetAccess:
        if self._dataset is None:
            self._dataset = Dataset.open(self.path, read_only=True)
        return self._dataset._access


def source_of(place: str | os.PathLike[str], token: str | None = None) -> OpenSource:
    """Return the source at a path, or at the URL that a server prints.

    Args:
        token: what the server demands.

    Raises:
        StateError: urllib3 is not installed.
    """
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


def described(access: DatasetAccess) -> Description:
    """Return what a source is.

    Raises:
        NeedsCheck: its index was lost.
    """
    if access.current().index.missing:
        raise untrusted(access.path)
    with access.current().index.snapshot() as snapshot:
        uuid, last = snapshot.dataset()["uuid"], feed.last_change(snapshot)
        session = changes.session_at(snapshot, last)
    return Description(uuid, access.path.name, access.config.to_toml(), last, session)


def records(access: DatasetAccess, token: Token | None, max_bytes: int) -> Records:
    """Return changes after a token; see `Dataset.changes`."""
    with feed.chosen(access, token, max_bytes, whole=False) as (parts, runs, reached, lag, sessions):
        groups, unreadable = _read(parts, runs)
        deletions = [each for run in runs if not run.is_new for each in feed.deletions_in(run)]
    return Records(reached, lag, groups, deletions, unreadable, sessions)


def numbers(access: DatasetAccess, first: int, last: int, *, listed: bool) -> Numbers:
    """Return the numbers of the data that exist; see `Source.seqs`."""
    if type(first) is not int or type(last) is not int or not 1 <= first <= last < HIGHEST:
        raise InvalidInput(f"{shown(first)} to {shown(last)} is not a range of numbers", hint="Numbers begin with 1.")
    with feed.parts_of(access) as parts:
        uuid = parts[-1][1].dataset()["uuid"]
        found = partial(changes.numbers_between, first=first - 1, last=last)
        digest, count, seqs = hashlib.sha256(), 0, array("q")
        for run in feed.in_order(access, parts, found):
            some = run.seqs
            digest.update(packed(some))
            count += len(some)
            if listed:
                seqs.extend(some)
                if count >= MOST_SEQS:
                    last = seqs[-1]
                    break
    return Numbers(uuid, first, last, count, digest.digest(), seqs.tolist())


def fetched(access: DatasetAccess, seqs: Sequence[int], max_bytes: int) -> Records:
    """Return the data with some numbers; see `Source.fetch`."""
    if len(seqs) > MOST_SEQS or any(type(seq) is not int or not 1 <= seq < HIGHEST for seq in seqs):
        hint = f"Fetch at most {MOST_SEQS} data at once."
        raise InvalidInput(f"fetch takes up to {MOST_SEQS} numbers of data", hint=hint)
    with feed.parts_of(access) as parts:
        main = parts[-1][1]
        feed.last_change(main)  # raises during a comparison, when data are gone that will return
        runs, is_all = first_of(feed.in_order(access, parts, partial(changes.data_of, seqs=seqs)), max_bytes)
        groups, unreadable = _read(parts, runs)
        reached = max(seqs, default=0) if is_all else runs[-1].seqs[-1]
        token = Token(main.dataset()["uuid"], changes.session_at(main, reached), reached)
    return Records(token, Lag(0, 0), groups, (), unreadable)


def _read(parts: Parts, runs: Iterable[Run]) -> tuple[list[Group], list[tuple[int, str]]]:
    """Read the data of some changes: those that can be read, by format, and why others cannot."""
    columns: dict[tuple[str, bool], tuple[list[int], list[bytes], list[bytes]]] = {}
    unreadable: list[tuple[int, str]] = []
    for part, together in groupby((run for run in runs if run.is_new), key=lambda run: run.part):
        opened, snapshot = parts[part]

        def exported(rows: Sequence[Row], opened: Opened = opened, snapshot: Snapshot = snapshot) -> list[_Data]:
            return [*opened.reader.exported(snapshot, rows)]

        rows = [row for run in together for row in run.rows]
        for some, result in feed.read_some(opened, snapshot, rows, exported):
            if isinstance(result, Broken):
                unreadable.append((some[0][-1], result.error.message))
                continue
            at = 0
            for format, payloads, beside in result:
                seqs, own, others = columns.setdefault((format, len(beside) > 0), ([], [], []))
                seqs += [row[-1] for row in some[at : at + len(payloads)]]
                own += payloads
                others += beside
                at += len(payloads)
    return [Group(format, *each) for (format, _), each in columns.items()], unreadable
