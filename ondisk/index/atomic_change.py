"""One atomic change of the index, with what is done and undone around it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ondisk.errors import DiskFull, DurabilityLost, IndexCorrupt, LockError, OndiskError, StateError, StorageError
from ondisk.filesystem import Directory, space_hint
from ondisk.index import tide
from ondisk.index.changes import OWN, note_session
from ondisk.index.connection import INDEX, address, damaged, own_error, sqlite_errors
from ondisk.index.index import Index
from ondisk.index.tables import FORMER, Columns
from ondisk.index.tide import IndexExchanged, Tide

_UNWRITTEN = 2 * 1024 * 1024  # bytes of pages that SQLite keeps in memory until the commit


@dataclass(slots=True)
class Counters:
    """The numbers that a change of the index assigns.

    Attributes:
        seq: the last number in the order of changes, below `OWN`.
        own: the last number from `OWN` on.
        follows: the numbers in the order of changes are those of another dataset, from which the deletions come, too:
            none are noted here. Data that are found here, as after the loss of the index, get numbers from `OWN` on,
            which the other never uses.
        begin: what `seq` was at first.
    """

    uuid: str
    seq: int
    generation: int
    own: int
    follows: bool
    begin: int

    def advance(self, seq: int) -> None:
        """Take no number up to `seq`: another index has given them out."""
        self.seq = max(self.seq, seq)


@dataclass(slots=True)
class _Commit:
    """How far the commit of a change is, and what others want to be done around it.

    Attributes:
        undo, at_end, after: what is done without a commit, in any case, and after a commit.
        is_tried: it may have reached the disk even if it failed, so the bytes that it points to must stay.
        has_no_older_readers: nobody reads an older snapshot any more.
    """

    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    at_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    after: list[Callable[[], object]] = field(default_factory=list)
    is_tried: bool = False
    is_durable: bool = False
    has_no_older_readers: bool = False
    error: OndiskError | None = None


class AtomicChange:
    """A change of the index: BEGIN IMMEDIATE … COMMIT; rolled back unless `commit` succeeds.

    Args:
        lazy: leave the commit in the write-ahead log, until the caller or a later commit runs a checkpoint. But what is
            done after a commit is done when the main file has it.
        tide: of the directory; None if the caller saves the tide mark itself.

    Durability: a commit is synced (`synchronous=FULL`); the checkpoint after it only moves it into the main file.
    """

    counters: Counters

    def __init__(self, index: Index, *, lazy: bool = False, tide: Tide | None = None) -> None:
        self.connection = index.connections.writer()
        self._index = index
        self._lazy = lazy
        self._tide = tide
        self._commit = _Commit()
        self._attached: list[str] = []

    @property
    def directory(self) -> Directory:
        return self._index.directory

    @property
    def schema(self) -> Columns:
        return self._index.columns

    @property
    def is_committed(self) -> bool:
        """Whether the change is durable."""
        return self._commit.is_durable

    @property
    def has_no_older_readers(self) -> bool:
        """Whether the change is committed, and nobody reads an older snapshot any more."""
        return self._commit.has_no_older_readers

    @property
    def checkpoint_error(self) -> OndiskError | None:
        """The error that kept the commit out of the main file; the commit itself is durable."""
        return self._commit.error

    def __enter__(self) -> Self:
        try:
            if self.connection.in_transaction:  # a second interrupt kept the last transaction from its rollback
                self._roll_back()
                self._index.forget_ids()
            self._execute("BEGIN IMMEDIATE")
            self.counters = self._read_counters()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._commit.at_end:
                if not self._commit.is_tried:
                    self._commit.undo.close()
        finally:  # whatever an undo raises: an open transaction would block all writers, and its ids would be reused
            self._roll_back()
            self._detach()
        known = own_error(error, self.connection, self.directory)
        self._index.connections.rest()
        if known is not None:
            raise known from error

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def on_rollback(self, undo: Callable[[], object]) -> None:
        """Call `undo` when the transaction ends without a commit, for whatever reason; the last one is called first.

        After a commit that may have reached the disk nothing is undone, even if the commit raised. An undo that fails
        hides no other error: whatever it leaves is not part of the dataset.
        """

        def undo_quietly() -> None:
            with contextlib.suppress(OSError, OndiskError):
                undo()

        self._commit.undo.callback(undo_quietly)

    def at_end(self, do: Callable[[], object]) -> None:
        """Call `do` when the transaction ends, in any way; after the undoing."""
        self._commit.at_end.callback(do)

    def after_commit(self, do: Callable[[], object]) -> None:
        """Call `do` after the commit, in the order of these calls.

        Skipped when the checkpoint after the commit failed: then the disk is not to be trusted, and nothing more is
        written. The next opening for writing, or the next fix, does what was skipped. An error of `do` undoes nothing.
        """
        self._commit.after.append(do)

    def attach(self, path: str) -> str:
        """Attach a SQLite file that nobody writes to, until the transaction ends, and return its name in SQL."""
        schema = f"staged{len(self._attached)}"
        self._execute(f"ATTACH ? AS {schema}", (address(path, "immutable=1"),))
        self._attached.append(schema)
        return schema

    def _detach(self) -> None:
        """Detach the attached files; SQLite can do so only outside of a transaction."""
        while self._attached:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute(f"DETACH {self._attached.pop()}")

    def _read_counters(self) -> Counters:
        """Return where the counters begin. A number given out twice would point one datum at the bytes of another."""
        rows = self._rows("SELECT uuid, seq, generation FROM dataset")
        if len(rows) != 1:
            raise self._corrupt(f"its table dataset has {len(rows)} rows")
        ((uuid, seq, generation),) = rows
        if self._tide is not None:
            try:
                self._tide.check((uuid, seq, generation))
            except IndexExchanged:
                self._index.begin_session()  # the numbers of this one may be given out again
                raise
        ((last,),) = self._rows("SELECT max(seq) FROM datum")
        own, follows = OWN - 1, self._index.config.replica
        if last is not None and last >= OWN:
            if not follows:
                hint = "Write `replica = true` into its dataset.toml again, then run `ondisk promote`."
                raise StateError(f"{self.directory.path} was a replica, and was not promoted", hint=hint)
            own = last
            ((last,),) = self._rows("SELECT max(seq) FROM datum WHERE seq < ?", (OWN,))
        if last is not None and last > seq:
            raise self._corrupt(f"its counter of changes is {seq}, but it has a datum with number {last}")
        return Counters(uuid, seq, generation, own, follows, seq)

    def _corrupt(self, problem: str) -> IndexCorrupt:
        return damaged(self.directory, f" is damaged: {problem}")

    def take_seqs(self, count: int) -> range:
        """Take the next numbers in the order of changes; if these are another dataset's, from `OWN` on."""
        counters = self.counters
        last = counters.own if counters.follows else counters.seq
        if counters.follows:
            counters.own += count
        else:
            counters.seq += count
        return range(last + 1, last + 1 + count)

    def identify_as(self, uuid: str, *, seq: int | None = None) -> None:
        """Assign a new UUID to the index with this commit: tokens and plans of the old one are void.

        Args:
            seq: the last change of the dataset that this one follows from now on. A higher counter of this index is
                lowered to it, but never below the number of a datum in the index.

        Durability: announces the UUID in the tide mark first.
        """
        counters = self.counters
        if seq is not None:
            ((last,),) = self._rows("SELECT ifnull(max(seq), 0) FROM datum WHERE seq < ?", (OWN,))
            counters.seq = min(counters.seq, max(seq, last))
            self._execute("UPDATE dataset SET expired = min(expired, ?)", (counters.seq,))
            self._execute("DELETE FROM session WHERE first > ?", (counters.seq,))
        tide.announce(self.directory, uuid, counters.seq)
        self._execute(FORMER, (counters.uuid,))
        self._execute("UPDATE dataset SET uuid = ?", (uuid,))
        counters.uuid = uuid

    def take_generation(self) -> int:
        """Take the next generation, the id of a new segment.

        Raises:
            IndexCorrupt: the index has a segment of that generation or a later one.
        """
        self.counters.generation += 1
        generation = self.counters.generation
        ((taken,),) = self._rows("SELECT max(id) FROM segment WHERE id >= ?", (generation,))
        if taken is not None:
            raise self._corrupt(
                f"its counter of generations is {generation - 1}, but it has a segment with generation {taken}"
            )
        return generation

    def check_space(self) -> None:
        """Raise unless the disk has space for the index as this transaction makes it.

        A commit needs space in the log, and again in the main file, to which a checkpoint moves it. If only the log has
        space, it stays full: then nothing more can be committed, and nothing be deleted to make space.

        Raises:
            DiskFull: it has not.
        """
        ((pages,),), ((size,),) = self._rows("PRAGMA page_count"), self._rows("PRAGMA page_size")
        found = self.directory.stat(INDEX)
        growth = pages * size - (0 if found is None else found.st_size)
        if growth <= 0:
            return
        missing = growth + min(growth, _UNWRITTEN) - self.directory.free_space()
        if missing > 0:
            path = str(self.directory.path / INDEX)
            raise DiskFull(f"{path}: no space left to grow by {growth} bytes", hint=space_hint(missing), path=path)

    def commit(self) -> None:
        """Make the change durable, move it into the main file as far as readers allow, save the tide mark, and call
        `after_commit`'s. If it cannot be moved, the disk is not to be trusted, and nothing more is written.

        Raises:
            DiskFull, LockError: nothing was committed.
            DurabilityLost: the commit may or may not be durable.
        """
        directory, counters, commit = self.directory, self.counters, self._commit
        try:
            self._complete()
            with sqlite_errors(directory):
                sql = "UPDATE dataset SET seq = ?, generation = ?, committed_at = ?"
                now = time.time_ns() // 1000
                self.connection.execute(sql, (counters.seq, counters.generation, now))
                if counters.seq > counters.begin and not counters.follows:
                    note_session(self.connection, self._index.session, counters.begin + 1, now)
                commit.is_tried = True
                self.connection.execute("COMMIT")
            commit.is_durable = True
            self._detach()  # else the checkpoint would include the attached files
        except (DiskFull, LockError):
            # The last write of a commit makes it one. Without space or a lock for that write there is no commit.
            commit.is_tried = False
            raise
        except OndiskError as error:
            if isinstance(error, StorageError) and commit.is_tried and not isinstance(error, DurabilityLost):
                raise DurabilityLost(error.message, hint=error.hint, **error.context) from error
            raise
        if not self._lazy or self._commit.after:
            try:
                commit.has_no_older_readers = self._index.connections.checkpoint()
            except OndiskError as error:
                # The commit is durable in the WAL, and so acknowledged; but nothing more may be written.
                commit.error = error
        if commit.error is not None:
            return
        if self._tide is not None:
            self._tide.committed(
                (counters.uuid, counters.seq, counters.generation), is_moved=commit.has_no_older_readers
            )
        for do in self._commit.after:
            with contextlib.suppress(
                DiskFull
            ):  # It would say that nothing was committed. The next opening, or fix, does it
                do()

    def _complete(self) -> None:
        """Write what belongs to the change and is known only at its end."""

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        with sqlite_errors(self.directory):
            return self.connection.execute(sql, values)

    def _execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        with sqlite_errors(self.directory):
            return self.connection.executemany(sql, rows).rowcount

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with sqlite_errors(self.directory):
            return self.connection.execute(sql, values).fetchall()
