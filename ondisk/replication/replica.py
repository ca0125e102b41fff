"""Replicas: datasets that follow another one, their source.

A replica has the data of its source under the numbers that they have there, and takes no other writes: `replica = true`
in its `dataset.toml`. Maintenance works as in any dataset; its ages are its own. Its token
is in its index, committed with the data that it covers. So whatever ends a pull, the next one continues after the last
commit.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Self, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.dataset.auxiliary_files import CONFIG, check_apart, read_config
from ondisk.dataset.dataset import Dataset
from ondisk.errors import (
    ConfigError,
    DatasetExists,
    DatasetNotFound,
    IntegrityError,
    OndiskError,
    StateError,
    TokenExpired,
    TokenForeign,
    command,
    shown,
)
from ondisk.filesystem import Closing
from ondisk.index import INDEX, Snapshot
from ondisk.index.transaction import Transaction
from ondisk.replication import source_rows, token
from ondisk.replication.apply import COMPARE_VERSIONS, Applied, apply
from ondisk.replication.feed import Lag
from ondisk.replication.records import Records
from ondisk.replication.source import PathSource, Source, replicate_command, source_of
from ondisk.replication.source_rows import LOST, UNREADABLE, Difference, Followed
from ondisk.replication.token import Entry, Token

ANSWER_BYTES = 16 * 1024 * 1024  # the bytes of changes that are requested at once: each answer is one commit
_Path: TypeAlias = str | os.PathLike[str]
_TOGETHER = 1_000  # data that are requested again at once
_AGAIN = 60.0  # seconds until data that could not be read are requested again
_SHOWN = 100  # differences that a result lists


@dataclass(slots=True)
class Pulled(Applied):
    """What a pull did; see `Applied`."""

    source: str = ""  # the UUID of the source's index
    offset: int = 0  # the number of the last change that the replica has
    lag: Lag = field(default_factory=lambda: Lag(0, 0))  # what is left
    missing: int = 0  # data that the replica lacks, because they cannot be read at the source or not be stored here
    kept: int = 0  # data that the source has lost, and the replica has
    differences: list[Difference] = field(default_factory=list)  # the first 100 of both
    # the first of both for each reason, as for each lost segment, and how many have it
    reasons: list[tuple[Difference, int]] = field(default_factory=list)


class Replica(Closing):
    """A dataset that follows another one.

    Its index also has the token, and lists the data that are missing on either side; see
    `ondisk.replication.source_rows`.

    Attributes:
        dataset: the replica as a dataset; for reading, and for maintenance.
    """

    def __init__(self, dataset: Dataset, source: Source) -> None:
        self.dataset = dataset
        self._source = source
        self._retried: float | None = None
        self._stack = ExitStack()

    @classmethod
    def create(cls, path: str | os.PathLike[str], source: Source | str | os.PathLike[str]) -> Self:
        """Create an empty replica with the configuration of its source, and open it.

        Args:
            path: a directory that is empty or does not exist.
            source: as in `open`.

        Raises:
            DatasetExists: there is a dataset.
            InvalidInput: one is inside the other.
            Also the errors of `Dataset.create`, and those of the source.

        Durability: as `Dataset.create`.
        """
        return cls._with(path, source, _created)

    @classmethod
    def open(cls, path: str | os.PathLike[str], source: Source | str | os.PathLike[str]) -> Self:
        """Open a replica. It is not created: where none is, a disk may not be mounted.

        Args:
            source: a source, which the caller closes; or the path of a dataset, or its URL on a server.

        Raises:
            DatasetNotFound: the path has no dataset.
            InvalidInput: one is inside the other.
            StateError: there is an ordinary dataset.
            Also the errors of `Dataset.open`, for source and replica.
        """
        return cls._with(path, source, _found)

    @classmethod
    def _with(cls, path: _Path, source: Source | _Path, dataset_of: Callable[[_Path, Source], Dataset]) -> Self:
        """Return the replica at a path, whose dataset a function opens."""
        with ExitStack() as stack:
            followed = stack.enter_context(source_of(source)) if isinstance(source, str | os.PathLike) else source
            if isinstance(followed, PathSource):
                check_apart("replica", path, "source", followed.path)
            dataset = stack.enter_context(dataset_of(path, followed))
            check_replica(dataset)
            opened = cls(dataset, followed)
            opened._stack = stack.pop_all()
            return opened

    def close(self) -> None:
        """Close the replica, and the source if it was given as a path."""
        self._stack.close()

    @property
    def source(self) -> Source:
        """What it follows."""
        return self._source

    @property
    def followed(self) -> Followed | None:
        """How far it has followed its source; None if it has not begun."""
        with self._snapshot() as snapshot:
            return source_rows.followed(snapshot)

    def pull(
        self,
        max_bytes: int = ANSWER_BYTES,
        *,
        bandwidth: float | None = None,
        on_answer: Callable[[Applied, Lag], object] = lambda _applied, _lag: None,
    ) -> Pulled:
        """Apply the changes that the source has had when the pull began.

        Args:
            max_bytes: of changes in one answer, and so in one commit. An answer has at least one change.
            bandwidth: bytes of data in a second, on average; None for any.
            on_answer: called after each commit with what it did, and with what is left.

        Raises:
            TokenForeign: the source is another dataset, or its index was rebuilt or exchanged, or an earlier state of
                it was put back; or the same happened to this replica.
            TokenExpired: the source has forgotten deletions that this replica lacks.
            NeedsCheck: the index of the source or of the replica may be incomplete.
            IntegrityError: the source has sent what no source sends.
            ConfigError: `unique` of the source has changed.
                Also the errors of `Dataset.append`.

        Durability: each answer is one commit, with the token. Whatever ends a pull, the next continues after it.
        Locks: the replica's writers' lock, for each commit; none of the source.
        Memory: two answers, several times.
        """
        pulled = Pulled()
        self._retry(self._begun(), pulled, max_bytes)
        for records, applied, seconds in self._answers(max_bytes):
            pulled.add(applied)
            pulled.lag = records.lag
            on_answer(applied, records.lag)
            if bandwidth is not None:
                time.sleep(max(0.0, records.size / bandwidth - seconds))
        return self._described(pulled)

    def _answers(self, max_bytes: int) -> Iterator[tuple[Records, Applied, float]]:
        """Apply the answers of the source, up to the last change that it has now.

        Yields:
            Each answer, the counts of its changes, and the seconds that it took.
        """
        now, until = self._now(), None
        with _Ahead(self._source) as ahead:  # the source reads the next answer meanwhile
            request: Future[Records] | None = ahead.submit(self._changes, now, max_bytes)
            while request is not None:
                began, records = time.monotonic(), request.result()
                if until is None:
                    until = records.token.offset + records.lag.changes
                    if records.count:
                        self._check_unique()
                token, (host, port) = records.token, self._source.address
                after = now._replace(session=token.session, offset=token.offset, reading=token.index_start,
                                     host=host, port=port, bytes_read=now.bytes_read + records.size)  # fmt: skip
                is_last = not records.count or after.offset >= until
                request = None if is_last else ahead.submit(self._changes, after, max_bytes)
                applied = self._apply(records, now, after)
                now = self._now()
                if applied is not None:
                    yield records, applied, time.monotonic() - began
                elif now.offset < until:  # another process has applied some changes
                    request = ahead.submit(self._changes, now, max_bytes)

    def export(self, path: str | os.PathLike[str]) -> str | None:
        """Write the token into a token file, for people and other programs. It is as old as the last commit.

        Returns:
            What was wrong with the file and what its name is now, or None; see `token.update`.
        """
        now = self._now()
        reached = Token(now.uuid, now.session, now.offset, *source_rows.progress(now))
        return token.update(path, [Entry(reached, now.replica, now.host, now.port, bytes_read=now.bytes_read)])

    def _snapshot(self) -> Snapshot:
        return self.dataset._access.current().index.snapshot()

    def _begun(self) -> Followed:
        """Return how far it has followed its source; record the source if it has none yet.

        Raises:
            TokenForeign: the index is not the one that has recorded the source.
        """
        access = self.dataset._access
        access.check_trusted()
        with self._snapshot() as snapshot:
            mine, now = snapshot.dataset(), source_rows.followed(snapshot)
            is_empty = not mine["seq"] and not snapshot.segments()
        if now is not None and now.replica == mine["uuid"]:
            if now.comparison is not None:
                message = f"{access.path}: the comparison with its source is not complete"
                raise TokenForeign(message, hint=self._reconcile())
            return now
        if now is not None or not is_empty:
            message = f"{access.path}: its index was lost, rebuilt or exchanged, so its data may have other numbers"
            raise TokenForeign(message + " than those of its source", hint=self._reconcile())
        (host, port), source = self._source.address, self._source.describe()
        with access.transaction("replicate") as transaction:
            if (now := source_rows.followed(transaction)) is not None:  # another process has begun meanwhile
                return now
            source_rows.follow(transaction, Followed(source.uuid, mine["uuid"], host=host, port=port))
            transaction.commit()
        return self._now()

    def _now(self) -> Followed:
        now = self.followed
        assert now is not None
        return now

    def _changes(self, now: Followed, max_bytes: int) -> Records:
        """Return the next changes of the source, after a look at what it sends."""
        token = Token(now.uuid, now.session, now.offset, now.reading) if now.offset else None
        try:
            records = self._source.changes(token, max_bytes)
        except (TokenForeign, TokenExpired) as error:
            error.hint = self._reconcile()
            with suppress(OndiskError):  # this error is the one to report
                if (other := self._source.describe().uuid) != now.uuid:
                    problem = f"The replica has followed the dataset {now.uuid}, and {self._source} is {other}:"
                    error.hint = f"{problem} another one, or its index was rebuilt. Is it the right one? {error.hint}"
            raise
        check_follows(records, now)
        return records

    def _check_unique(self) -> None:
        """Raise unless both sides have the same `unique`: else a new datum could replace one that the source keeps.

        Raises:
            ConfigError: they differ.
        """
        mine = self.dataset._access.current().index.config.unique
        theirs = DatasetConfig.from_toml(self._source.describe().config).unique
        if sorted(mine) != sorted(theirs):
            path = self.dataset.path
            message = f"{path}: unique is {[*mine]} here, and {[*theirs]} at the source"
            hint = f"Write the source's into {path / CONFIG}, then run {command('migrate', path, '--yes')}."
            raise ConfigError(message, hint=hint, key="unique")

    def _apply(self, records: Records, now: Followed, after: Followed) -> Applied | None:
        """Apply the next changes; None if another process has applied some meanwhile."""
        if after == now:
            return Applied()
        return self.dataset._renewing(partial(apply, self.dataset._access, records, now, after))

    def _retry(self, now: Followed, pulled: Pulled, max_bytes: int) -> None:
        """Request the data again that could not be read, each once."""
        began = time.monotonic()
        if self._retried is not None and began - self._retried < _AGAIN:
            return
        self._retried = began
        last = 0
        while True:
            with self._snapshot() as snapshot:
                missing = [each.seq for each in source_rows.differences(snapshot, UNREADABLE, last, _TOGETHER)]
            if not missing:
                return
            self._changes(now, 1)  # raises if the source is another one, or an earlier state of it was put back
            records = self._source.fetch(missing, max_bytes)
            check_follows(records, now._replace(offset=last))
            after = now._replace(bytes_read=now.bytes_read + records.size)
            access = self.dataset._access
            applied = self.dataset._renewing(partial(apply, access, records, now, after, missing, _expire))
            if applied is not None:
                applied.unreadable = 0  # they were before
                pulled.add(applied)
                last = max(last + 1, records.token.offset)
            now = self._now()

    def _reconcile(self) -> str:
        done = replicate_command(self._source, self.dataset.path, "--reconcile")
        return f"Compare them, and fetch what is missing: {done}"

    def _described(self, pulled: Pulled) -> Pulled:
        with self._snapshot() as snapshot:
            now, counts = source_rows.followed(snapshot), source_rows.count_differences(snapshot)
            pulled.differences = source_rows.differences(snapshot, limit=_SHOWN)
            pulled.reasons = source_rows.reasons(snapshot)
        assert now is not None
        pulled.source, pulled.offset = now.uuid, now.offset
        pulled.missing, pulled.kept = counts.get(UNREADABLE, 0), counts.get(LOST, 0)
        return pulled


class _Ahead:
    """Requests the next answer in a thread, for the length of a block.

    An interrupt does not wait for the answer of a server. It waits for that of a source at a path, which takes no
    longer than reading it: nobody may close an index that a thread reads.
    """

    def __init__(self, source: Source) -> None:
        self._is_remote = source.address[0] != ""
        self._thread: Thread | None = None

    def submit(self, function: Callable[[Followed, int], Records], now: Followed, max_bytes: int) -> Future[Records]:
        """Call a function; the one before it has returned."""
        future: Future[Records] = Future()

        def run() -> None:
            try:
                future.set_result(function(now, max_bytes))
            except BaseException as error:
                future.set_exception(error)

        self._thread = Thread(target=run, name="ondisk-source", daemon=True)
        self._thread.start()
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        if self._thread is not None and not (is_interrupt and self._is_remote):
            self._thread.join()


def check_replica(dataset: Dataset) -> None:
    if not dataset.config.replica:
        hint = "`ondisk replicate SOURCE REPLICA --create` creates a replica at a path where nothing is."
        raise StateError(f"{dataset.path} is an ordinary dataset, and no replica", hint=hint)


def _created(path: _Path, source: Source) -> Dataset:
    about = source.describe()
    config = DatasetConfig.from_toml(about.config, f"dataset.toml of {shown(about.name)}")
    config = config._replace(replica=True, filter=None, aliases=None)
    try:
        return Dataset.create(path, config)
    except DatasetExists as error:
        error.hint = f"If it is the replica, omit --create: {replicate_command(source, path)}"
        raise


def _found(path: _Path, source: Source) -> Dataset:
    try:
        return Dataset.open(path)
    except DatasetNotFound as error:
        if not Path(path, INDEX).exists():  # else only its configuration is missing
            first = replicate_command(source, path, "--create")
            error.hint = f"Check the path, and whether its disk is mounted. To make a new replica there: {first}"
        raise


def promote(path: str | os.PathLike[str]) -> Dataset:
    """Make a replica an ordinary dataset, and open it. It follows its source no more, and takes all writes.

    Its index gets a new UUID, so tokens of its own replicas are void. Data that it has numbered itself get the next
    numbers.

    Raises:
        StateError: it is not a replica.
        NeedsCheck: its index may not know all data.

    Durability: one commit of its index; then `dataset.toml`. After a crash, promote it again.
    Locks: the writers' lock, for each commit.
    """
    with Dataset.open(path) as dataset:
        access = dataset._access
        check_replica(dataset)
        access.check_trusted()
        with access.transaction("promote") as transaction:
            source_rows.renumber_own(transaction, transaction.counters.seq + 1)
            source_rows.forget_source(transaction)
            transaction.identify_as(str(uuid.uuid4()))
            transaction.commit()
        with access.locked("promote"):
            access.directory.replace(CONFIG, read_config(access.directory)._replace(replica=False).to_toml().encode())
    return Dataset.open(path)


def _expire(transaction: Transaction, applied: Applied) -> None:
    """Let tokens expire if data were stored that a replica lacked: replicas of this one have passed their numbers."""
    if applied.stored:
        transaction.expire_tokens()


def check_follows(records: Records, now: Followed) -> None:
    """Raise TokenForeign or IntegrityError unless changes are of the source, and follow those of the replica."""
    if records.token.dataset != now.uuid:
        message = f"the source is {records.token.dataset} now, and the replica follows {now.uuid}"
        raise TokenForeign(message, hint="Check the path or address of the source.")
    if records.token.offset < now.offset or any(column[0] <= now.offset for column in records.numbers):
        problem = f"the source has sent changes up to {now.offset}, which it had sent before"
        raise IntegrityError(problem, hint=COMPARE_VERSIONS)
