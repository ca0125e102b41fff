"""One atomic change of the index, with what is done and undone around it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from ondisk.errors import DiskFull, DurabilityLost, IndexCorrupt, LockError, OndiskError, StateError, StorageError
from ondisk.filesystem import space_hint
from ondisk.index import log, tide
from ondisk.index.changes import OWN, note_session
from ondisk.index.columns import FORMER
from ondisk.index.connection import INDEX, damaged, own_error, sqlite_errors
from ondisk.index.index import Index
from ondisk.index.tide import IndexExchanged, State, Tide

_UNWRITTEN = 2 * 1024 * 1024  # bytes of pages that SQLite keeps in memory until the commit


class AtomicChange:
    """A change of the index: BEGIN IMMEDIATE … COMMIT; rolled back unless `commit` succeeds.

    Args:
        lazy: leave the commit in the write-ahead log, until the caller or a later commit runs a checkpoint. But what is
            done after a commit is done when the main file has it.
        tide: of the directory; None if the caller saves the tide mark itself.

    Attributes:
        directory: of the index.
        schema: the columns of the index.
        connection: writes to the index, for the modules that insert in other ways.
        checkpoint_error: the error that kept the commit out of the main file; the commit itself is durable.
        is_committed: the change is durable.
        follows: the numbers in the order of changes are those of another dataset, from which the deletions come, too:
            none are noted here. Data that are found here, as after the loss of the index, get numbers from `OWN` on,
            which the other never uses.
        unread: the transaction is committed, and nobody reads an older snapshot any more.

    Durability: a commit is synced (`synchronous=FULL`); the checkpoint after it only moves it into the main file.
    """

    def __init__(
        self,
        index: Index,
        *,
        lazy: bool = False,
        tide: Tide | None = None,
    ) -> None:
        self.directory = index.directory
        self.schema = index.columns
        self.connection = index.connections.writer()
        self._index = index
        self._lazy = lazy
        self._tide = tide
        self._uuid = ""
        self._seq = self._begin = self._generation = 0
        self.follows = index.config.replica
        self._own = OWN - 1  # the last number from `OWN` on that was given out
        self._interned = False
        self.is_committed = False
        # COMMIT was tried. It may have reached the disk even if it failed, so the bytes that it points to must stay.
        self._commit_tried = False
        self.unread = False
        self.checkpoint_error: OndiskError | None = None
        self._attached: list[str] = []
        self._undo, self._at_end = contextlib.ExitStack(), contextlib.ExitStack()
        self._after: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        try:
            if self.connection.in_transaction:  # a second interrupt kept the last transaction from its rollback
                self._roll_back()
                self._index.forget_ids()
            self._execute("BEGIN IMMEDIATE")
            self._uuid, self._seq, self._generation = self._counters()
            self._begin = self._seq
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._at_end:
                if not self._commit_tried:
                    self._undo.close()
        finally:  # whatever an undo raises: an open transaction would block all writers, and its ids would be reused
            self._roll_back()
            self._detach()
            # After a failed write SQLite may have rolled back by itself. Then the new ids are gone, too.
            if self._interned and not self.is_committed:
                self._index.forget_ids()
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

        self._undo.callback(undo_quietly)

    def at_end(self, do: Callable[[], object]) -> None:
        """Call `do` when the transaction ends, in any way; after the undoing."""
        self._at_end.callback(do)

    def after_commit(self, do: Callable[[], object]) -> None:
        """Call `do` after the commit, in the order of these calls.

        Skipped when the checkpoint after the commit failed: then the disk is not to be trusted, and nothing more is
        written. The next opening for writing does what was skipped. An error of `do` undoes nothing.
        """
        self._after.append(do)

    def attach(self, path: str) -> str:
        """Attach a SQLite file that nobody writes to, until the transaction ends, and return its name in SQL."""
        schema = f"staged{len(self._attached)}"
        self._execute(f"ATTACH ? AS {schema}", (f"file:{quote(os.fsencode(path))}?immutable=1",))
        self._attached.append(schema)
        return schema

    def _detach(self) -> None:
        """Detach the attached files; SQLite can do so only outside of a transaction."""
        while self._attached:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute(f"DETACH {self._attached.pop()}")

    def _counters(self) -> State:
        """Return UUID, seq and generation. A number given out twice would point one datum at the bytes of another."""
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
        if last is not None and last >= OWN:
            if not self.follows:
                hint = "Write `replica = true` into its dataset.toml again, then run `ondisk promote`."
                raise StateError(f"{self.directory.path} was a replica, and was not promoted", hint=hint)
            self._own = last
            ((last,),) = self._rows("SELECT max(seq) FROM datum WHERE seq < ?", (OWN,))
        if last is not None and last > seq:
            raise self._corrupt(f"its counter of changes is {seq}, but it has a datum with number {last}")
        return uuid, seq, generation

    def _corrupt(self, problem: str) -> IndexCorrupt:
        return damaged(self.directory, f" is damaged: {problem}")

    def take_seqs(self, count: int) -> range:
        """Take the next numbers in the order of changes; if these are another dataset's, from `OWN` on."""
        if self.follows:
            first = self._own + 1
            self._own += count
        else:
            first = self._seq + 1
            self._seq += count
        return range(first, first + count)

    @property
    def seq(self) -> int:
        """The last number that was given out in the order of changes; none from `OWN` on."""
        return self._seq

    @property
    def generation(self) -> int:
        """The last generation that was given out."""
        return self._generation

    @property
    def uuid(self) -> str:
        """The UUID of the index."""
        return self._uuid

    def advance_seq(self, seq: int) -> None:
        """Take no number up to `seq`: another index has given them out."""
        self._seq = max(self._seq, seq)

    def identify_as(self, uuid: str, *, seq: int | None = None) -> None:
        """Assign a new UUID to the index with this commit: tokens and plans of the old one are void.

        Args:
            seq: the last change of the dataset that this one follows from now on. A higher counter of this index is
                lowered to it, but never below the number of a datum in the index.

        Durability: announces the UUID in the tide mark first.
        """
        if seq is not None:
            ((last,),) = self._rows("SELECT ifnull(max(seq), 0) FROM datum WHERE seq < ?", (OWN,))
            self._seq = min(self._seq, max(seq, last))
            self._execute("UPDATE dataset SET expired = min(expired, ?)", (self._seq,))
            self._execute("DELETE FROM session WHERE first > ?", (self._seq,))
        tide.announce(self.directory, uuid, self._seq)
        self._execute(FORMER, (self._uuid,))
        self._execute("UPDATE dataset SET uuid = ?", (uuid,))
        self._uuid = uuid

    def take_generation(self) -> int:
        """Take the next generation, the id of a new segment.

        Raises:
            IndexCorrupt: the index has a segment of that generation or a later one.
        """
        self._generation += 1
        ((taken,),) = self._rows("SELECT max(id) FROM segment WHERE id >= ?", (self._generation,))
        if taken is not None:
            raise self._corrupt(
                f"its counter of generations is {self._generation - 1}, but it has a segment with generation {taken}"
            )
        return self._generation

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
        directory = self.directory
        try:
            self._complete()
            with sqlite_errors(directory):
                sql = "UPDATE dataset SET seq = ?, generation = ?, committed_at = ?"
                now = time.time_ns() // 1000
                self.connection.execute(sql, (self._seq, self._generation, now))
                if self._seq > self._begin and not self.follows:
                    note_session(self.connection, self._index.session, self._begin + 1, now)
                self._commit_tried = True
                self.connection.execute("COMMIT")
            self.is_committed = True
            self._detach()  # else the checkpoint would include the attached files
        except (DiskFull, LockError):
            # The last write of a commit makes it one. Without space or a lock for that write there is no commit.
            self._commit_tried = False
            raise
        except OndiskError as error:
            if isinstance(error, StorageError) and self._commit_tried and not isinstance(error, DurabilityLost):
                raise DurabilityLost(error.message, hint=error.hint, **error.context) from error
            raise
        if not self._lazy or self._after:
            try:
                self.unread = log.checkpoint(self._index.connections)
            except OndiskError as error:
                # The commit is durable in the WAL, and so acknowledged; but nothing more may be written.
                self.checkpoint_error = error
        if self.checkpoint_error is not None:
            return
        if self._tide is not None:
            self._tide.committed((self._uuid, self._seq, self._generation), is_moved=self.unread)
        for do in self._after:
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
