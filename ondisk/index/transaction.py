"""Changes of the index: one transaction for a batch, under the writers' lock."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from ondisk.datum import INTEGER_MAX, INTEGER_MIN
from ondisk.errors import DiskFull, DurabilityLost, IndexCorrupt, LockError, OndiskError, StorageError
from ondisk.filesystem import Directory
from ondisk.index.columns import Columns, stored_columns
from ondisk.index.connection import INDEX, RESTORE, Connection, own_error, sqlite_errors
from ondisk.index.index import Index
from ondisk.index.snapshot import Segment
from ondisk.index.where import condition, resolve
from ondisk.matcher import Expression
from ondisk.segment import Block
from ondisk.step import Interval

_CACHED_IDS = 200_000


class Transaction:
    """A change of the index: BEGIN IMMEDIATE … COMMIT; rolled back unless `commit` succeeds.

    Args:
        lazy: leave the commit in the write-ahead log, until the caller or a later commit runs a checkpoint.
        seq_elsewhere: returns the highest number that other indices have given out in the order of changes, which the
            dataset shares with its archives. Called before the first number is taken.

    Attributes:
        checkpoint_error: the error that kept the commit out of the main file; the commit itself is durable.
        unread: the transaction is committed, and nobody reads an older snapshot any more.

    Durability: a commit is synced (`synchronous=FULL`); the checkpoint after it only moves it into the main file.
    """

    def __init__(self, index: Index, *, lazy: bool = False, seq_elsewhere: Callable[[], int] = lambda: 0) -> None:
        self._index = index
        self._lazy = lazy
        self._seq_elsewhere: Callable[[], int] | None = seq_elsewhere
        self._seq = self._generation = 0
        self._connection = index.writer()
        self._interned = False
        self._committed = False
        # COMMIT was tried. It may have reached the disk even if it failed, so the bytes that it points to must stay.
        self._sealed = False
        self.unread = False
        self.checkpoint_error: OndiskError | None = None
        self._attached: list[str] = []
        self._undo = contextlib.ExitStack()
        self._after: list[Callable[[], object]] = []

    @property
    def directory(self) -> Directory:
        """Where the index is."""
        return self._index.directory

    @property
    def connection(self) -> Connection:
        """The connection that writes, for `ondisk.staging.bulk_insert`."""
        return self._connection

    @property
    def schema(self) -> Columns:
        """The columns of the index."""
        return self._index.columns

    def __enter__(self) -> Self:
        try:
            self._execute("BEGIN IMMEDIATE")
            self._seq, self._generation = self._counters()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sealed:
            self._undo.pop_all()
        self._undo.close()
        self._roll_back()
        self._detach()
        # SQLite may have rolled back by itself, after a failed write: the new ids are gone then, too.
        if self._interned and not self._committed:
            self._index.ids.clear()
            self._index.ids[None] = 0
        if (known := own_error(error, self._connection, self.directory)) is not None:
            raise known from error

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def on_rollback(self, undo: Callable[[], object]) -> None:
        """Call `undo` when the transaction ends without a commit, for whatever reason; the last one is called first.

        After a commit that may have reached the disk nothing is undone, even if the commit raised.
        """
        self._undo.callback(undo)

    def after_commit(self, do: Callable[[], object]) -> None:
        """Call `do` after the commit, in the order of these calls.

        Skipped when the checkpoint after the commit failed: then the disk is not to be trusted, and nothing more is
        written. The next opening for writing does what was skipped. An error of `do` undoes nothing.
        """
        self._after.append(do)

    def attach(self, path: str) -> str:
        """Attach a SQLite file that nobody writes to any more, until the transaction ends; give its name here."""
        schema = f"staged{len(self._attached)}"
        self._execute(f"ATTACH ? AS {schema}", (f"file:{quote(os.fsencode(path))}?immutable=1",))
        self._attached.append(schema)
        return schema

    def _detach(self) -> None:
        """Detach what was attached, which waits for the end of the transaction."""
        while self._attached:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"DETACH {self._attached.pop()}")

    def _counters(self) -> tuple[int, int]:
        """Read the counters; a number given out twice would point one datum at another's bytes."""
        rows = self._rows("SELECT seq, generation FROM dataset")
        if len(rows) != 1:
            raise self._corrupt(f"its table dataset has {len(rows)} rows")
        ((last,),) = self._rows("SELECT max(seq) FROM datum")
        if last is not None and last > rows[0][0]:
            raise self._corrupt(f"its counter of changes, {rows[0][0]}, lags behind its data, {last}")
        return rows[0][0], rows[0][1]

    def _corrupt(self, problem: str) -> IndexCorrupt:
        return IndexCorrupt(f"{self.directory.path / INDEX} is damaged: {problem}", hint=RESTORE)

    def take_seqs(self, count: int) -> range:
        """Take the next numbers in the order of changes, above all that other indices have given out."""
        first = self.seq + 1
        self._seq += count
        return range(first, first + count)

    @property
    def seq(self) -> int:
        """The last number that was given out in the order of changes, here or elsewhere."""
        if self._seq_elsewhere is not None:
            self._seq = max(self._seq, self._seq_elsewhere())
            self._seq_elsewhere = None
        return self._seq

    def advance_seq(self, seq: int) -> None:
        """Take no number up to `seq`: a transaction that is not committed yet has given them out."""
        self._seq = max(self._seq, seq)

    def take_generation(self) -> int:
        """Take the next generation, the id of a new segment.

        Raises:
            IndexCorrupt: the counter lags behind the segments that there are.
        """
        self._generation += 1
        ((taken,),) = self._rows("SELECT max(id) FROM segment WHERE id >= ?", (self._generation,))
        if taken is not None:
            raise self._corrupt(
                f"its counter of generations, {self._generation - 1}, lags behind its segments, {taken}"
            )
        return self._generation

    def segments(self, names: Iterable[str]) -> dict[str, Segment]:
        """Look up those of the segments that the index knows."""
        sql = f"SELECT {Segment.COLUMNS} FROM segment WHERE name = ?"
        return {name: Segment.of(row) for name in names for row in self._rows(sql, (name,))}

    def columns(self, metadata: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Turn metadata into the columns of `datum`, one list a declared field; texts become ids."""
        return stored_columns(metadata, self._index.columns.kinds, self._ids_of)

    def insert(self, rows: Iterable[tuple[Any, ...]]) -> int:
        """Insert rows of `datum` (seq, reftime, segment, offset, size, fields…); duplicates stay out.

        Returns:
            How many went in.
        """
        before = self._connection.total_changes
        self._execute_many(self._index.columns.insert, rows)
        return self._connection.total_changes - before

    def take_back(self, seqs: Iterable[int]) -> int:
        """Remove rows of data that are no deletions: this transaction inserted them, or they stand elsewhere now."""
        return self._execute_many("DELETE FROM datum WHERE seq = ?", ((seq,) for seq in seqs))

    def note_deleted(self, seqs: Sequence[int]) -> None:
        """Note in the order of changes that these data, which stand in another index, are deleted."""
        self._execute_many("INSERT INTO deletion VALUES (?, ?)", zip(self.take_seqs(len(seqs)), seqs, strict=True))

    def delete_as(self, changes: Sequence[tuple[int, int]]) -> None:
        """Delete data as another index has noted it: the numbers of the deletions, and of the data."""
        self._execute_many("INSERT INTO deletion VALUES (?, ?)", changes)
        self.take_back(datum for _, datum in changes)
        self.advance_seq(max(number for number, _ in changes))

    def seqs_from(self, first: int) -> set[int]:
        """Give the numbers, from `first` on, of the data that are in the index."""
        return {seq for (seq,) in self._rows("SELECT seq FROM datum WHERE seq >= ?", (first,))}

    def count_of(self, seqs: Iterable[int]) -> int:
        """Count those of the numbers that are of data in the index."""
        return sum(len(self._rows("SELECT 1 FROM datum WHERE seq = ?", (seq,))) for seq in seqs)

    def replace(self, row: tuple[Any, ...], first: int, version: int | None) -> bool:
        """Put a row in the place of the one that it duplicates.

        Args:
            first: rows from this seq on are of this very batch; replacing them is no change that others saw.
            version: which column of the row tells its version, to replace only older or equal ones; None: any.

        Returns:
            Whether it went in.
        """
        found = self.duplicate_of(row)
        if found is None:
            raise self._corrupt("a duplicate cannot be found again")
        seq = found[0]
        if version is not None:
            old, new = found[version], row[version]
            if new is None or (old is not None and old > new):
                return False
        with sqlite_errors(self.directory):
            self._connection.execute("DELETE FROM datum WHERE seq = ?", (seq,))
            if seq < first:
                self._connection.execute("INSERT INTO deletion VALUES (?, ?)", (self.take_seqs(1)[0], seq))
            self._connection.execute(self._index.columns.insert, row)
        return True

    def move(self, offsets: Iterable[tuple[int, int]]) -> None:
        """Set the offsets of data: (offset, seq)."""
        self._execute_many("UPDATE datum SET offset = ? WHERE seq = ?", offsets)

    def forget(self, segment: Segment, interval: Interval) -> bool:
        """Remove a segment that has no data from the index; tell whether it had none."""
        sql = "SELECT 1 FROM datum WHERE reftime >= ? AND reftime < ? AND segment = ? LIMIT 1"
        if self._rows(sql, (interval.begin, interval.end, segment.id)):
            return False
        self.supersede(segment)
        return True

    def remove_some(self, segment: Segment, count: int) -> int:
        """Remove some data of a segment; returns how many, none only where it has no more.

        Their rows go first, so that a file which cannot grow has space for what is noted of them.
        """
        sql = f"SELECT seq FROM {self._of_segment(segment)} WHERE segment.id = ? LIMIT ?"
        seqs = sorted(seq for (seq,) in self._rows(sql, (segment.id, count)))
        self.take_back(seqs)
        self.note_deleted(seqs)
        return len(seqs)

    def remove(self, segment: Segment, *, moved: bool = False) -> int:
        """Remove a segment and all its data; returns how many data.

        Args:
            moved: the data stand in another index now, so this is no deletion in the order of changes.
        """
        sql = f"SELECT seq FROM {self._of_segment(segment)} WHERE segment.id = ?"
        if moved:
            removed = self._execute(f"DELETE FROM datum WHERE seq IN ({sql})", (segment.id,)).rowcount
        else:
            removed = self._delete(sql, (segment.id,))
        self.supersede(segment)
        return removed

    def _of_segment(self, segment: Segment) -> str:
        """Write the join that finds the data of a segment."""
        span = "" if segment.id in self._outside() else ' AND reftime >= "begin" AND reftime < "end"'
        return f"datum JOIN segment ON segment.id = datum.segment{span}"

    def _outside(self) -> frozenset[int]:
        """Find the segments that have data of other times than theirs, which no search by their time finds.

        Cost: a look at all rows, once; only damage makes such data, and what comes later is found by a check.
        """
        if self._index.outside is None:
            sql = (
                "SELECT DISTINCT segment FROM datum JOIN segment ON segment.id = datum.segment"
                ' WHERE (reftime >= "begin" AND reftime < "end") IS NOT TRUE'
            )
            self._index.outside = frozenset(id_ for (id_,) in self._rows(sql))
        return self._index.outside

    def supersede(self, segment: Segment) -> None:
        """Take the row of a segment away, for that of its next generation; its data are told by `place`."""
        self._execute("DELETE FROM segment WHERE id = ?", (segment.id,))
        self.forget_blocks(segment)

    def place(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Set where data stand: (generation, offset, seq)."""
        self._execute_many("UPDATE datum SET segment = ?, offset = ? WHERE seq = ?", places)

    def relocate(self, old: Segment, new: Segment, places: Iterable[tuple[int, int, int]]) -> int:
        """Set where data of a segment stand in its next generation: (seq, offset before, offset then).

        Returns:
            How many of them stood there before.
        """
        sql = "UPDATE datum SET segment = ?, offset = ? WHERE seq = ? AND segment = ? AND offset = ?"
        return self._execute_many(sql, ((new.id, to, seq, old.id, before) for seq, before, to in places))

    def pieces_of(
        self, segments: Sequence[Segment], interval: Interval, size: int
    ) -> Iterator[list[tuple[int, int, int, int, int]]]:
        """Give seq, reftime, segment, offset and size of the data of some segments, in query order.

        In pieces of about so many bytes; what was given may be placed elsewhere before the next piece is asked for.

        Args:
            interval: that of the segments, which the index need not know yet.
        """
        ids = ", ".join(str(segment.id) for segment in segments)
        sql = (
            "SELECT seq, reftime, segment, offset, size FROM datum WHERE (reftime, seq) > (?, ?)"
            f" AND reftime < ? AND segment IN ({ids}) ORDER BY reftime, seq LIMIT 10000"
        )
        with sqlite_errors(self.directory):
            begin, end = interval.begin, interval.end
            if not self._outside().isdisjoint(segment.id for segment in segments):
                begin, end = INTEGER_MIN, INTEGER_MAX
            after: tuple[int, int] = (begin, INTEGER_MIN)
            while rows := self._connection.execute(sql, (*after, end)).fetchall():
                after = rows[-1][1], rows[-1][0]
                piece, weight = [], 0
                for row in rows:
                    piece.append(row)
                    weight += row[4]
                    if weight >= size:
                        yield piece
                        piece, weight = [], 0
                if piece:
                    yield piece

    def forget_blocks(self, segment: Segment) -> None:
        """Remove the blocks of a segment, before those that a scan found are saved."""
        self._execute("DELETE FROM block WHERE segment = ?", (segment.id,))

    def note_check(self, segment: Segment, damage: str | None) -> None:
        """Remember that a segment's content was looked at just now, and what is wrong with it."""
        values = (time.time_ns() // 1000, damage, segment.id)
        self._execute("UPDATE segment SET checked_at = ?, checked = ? WHERE id = ?", values)

    def duplicate_of(self, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Find the row of `datum` that a row duplicates."""
        columns = self._index.columns
        rows = self._rows(columns.find_duplicate, columns.key_of(row)) if columns.find_duplicate else []
        return rows[0] if rows else None

    @contextlib.contextmanager
    def known_offsets(self, segment: Segment) -> Iterator[Callable[[int, int], set[int]]]:
        """Look up at which offsets, from one to before another, the index knew data of a segment when this began."""
        connection = self._connection

        def between(begin: int, end: int) -> set[int]:
            rows = connection.execute("SELECT start FROM known WHERE start >= ? AND start < ?", (begin, end))
            return {row[0] for row in rows}

        with sqlite_errors(self.directory):
            connection.execute("CREATE TEMP TABLE known (start INTEGER PRIMARY KEY)")  # goes with a rollback, too
            sql = (
                "INSERT OR IGNORE INTO known SELECT offset FROM datum JOIN segment ON segment.id = datum.segment"
                ' AND reftime >= "begin" AND reftime < "end" WHERE segment.id = ?'
            )
            connection.execute(sql, (segment.id,))
            yield between
            connection.execute("DROP TABLE known")

    def save_segment(self, segment: Segment, interval: Interval, mtime: int) -> None:
        """Write a segment's row: a new one, or a known one's end and mtime (nanoseconds)."""
        end = segment.end
        now = (end.size, end.length, end.count, mtime)
        update = "UPDATE segment SET size = ?, length = ?, count = ?, mtime = ? WHERE id = ? AND name = ?"
        if self._execute(update, (*now, segment.id, segment.name)).rowcount == 0:
            insert = (
                'INSERT INTO segment (size, length, count, mtime, id, name, format, "begin", "end", compressed)'
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            )
            row = (segment.id, segment.name, segment.format, interval.begin, interval.end, end.compressed)
            self._execute(insert, (*now, *row))

    def save_blocks(self, segment: Segment, blocks: Iterable[Block]) -> None:
        """Remember where the new blocks of a compressed segment stand."""
        self._execute_many("INSERT INTO block VALUES (?, ?, ?, ?)", ((segment.id, *block) for block in blocks))

    def delete(self, tree: Expression) -> int:
        """Delete what matches; returns how many data."""
        tree = resolve(tree, self._index.columns, self._connection)
        where = condition(tree, self._index.columns)
        return self._delete(f"SELECT seq FROM datum WHERE {where.sql}", where.values)

    def delete_at(self, segment: str, places: Iterable[tuple[int, int]]) -> int:
        """Delete the data that stand at these (offset, size) of a segment; returns how many there were."""
        self._execute("CREATE TEMP TABLE place (start INTEGER, length INTEGER, PRIMARY KEY (start, length))")
        known = (place for place in places if all(0 <= number < 2**63 for number in place))
        self._execute_many("INSERT OR IGNORE INTO place VALUES (?, ?)", known)
        sql = (
            'SELECT seq FROM segment JOIN datum ON reftime >= "begin" AND reftime < "end" AND segment = segment.id'
            " JOIN place ON place.start = offset AND place.length = datum.size WHERE segment.name = ?"
        )
        deleted = self._delete(sql, (segment,))
        self._execute("DROP TABLE place")
        return deleted

    def commit(self) -> bool:
        """Make the change durable, move it into the main file as far as readers allow, and call `after_commit`'s.

        Returns:
            Whether nobody reads an older snapshot any more.

        Raises:
            DiskFull, LockError: nothing was committed.
            DurabilityLost: the commit may or may not be durable.
        """
        directory = self.directory
        try:
            with sqlite_errors(directory):
                sql = "UPDATE dataset SET seq = ?, generation = ?, committed_at = ?"
                now = time.time_ns() // 1000
                self._connection.execute(sql, (self._seq, self._generation, now))
                self._sealed = True
                self._connection.execute("COMMIT")
            self._committed = True
            self._detach()  # else the checkpoint would include the attached files
        except (DiskFull, LockError):
            # The last write of a commit makes it one. Without space or a lock for that write there is no commit.
            self._sealed = False
            raise
        except OndiskError as error:
            if isinstance(error, StorageError) and self._sealed and not isinstance(error, DurabilityLost):
                raise DurabilityLost(error.message, hint=error.hint, **error.context) from error
            raise
        if not self._lazy:
            try:
                self.unread = self._index.checkpoint()
            except OndiskError as error:
                # The commit is durable in the WAL, and so acknowledged; but nothing more may be written.
                self.checkpoint_error = error
        if self.checkpoint_error is None:
            for do in self._after:
                do()
        return self.unread

    def _delete(self, select: str, values: Sequence[Any]) -> int:
        first = self.seq
        sql = f"INSERT INTO deletion SELECT {first} + row_number() OVER (ORDER BY seq), seq FROM ({select})"
        deleted = self._execute(sql, values).rowcount
        self._execute("DELETE FROM datum WHERE seq IN (SELECT datum FROM deletion WHERE seq > ?)", (first,))
        self.take_seqs(deleted)
        return deleted

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        with sqlite_errors(self.directory):
            return self._connection.execute(sql, values)

    def _execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        with sqlite_errors(self.directory):
            return self._connection.executemany(sql, rows).rowcount

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with sqlite_errors(self.directory):
            return self._connection.execute(sql, values).fetchall()

    def _ids_of(self, values: list[Any]) -> list[int]:
        ids = self._index.ids
        new = set(values).difference(ids)
        if new:
            if len(ids) > _CACHED_IDS:
                ids.clear()
                ids[None] = 0
                new = set(values) - {None}
            # In the order of the data: then rows that follow one another do so in the UNIQUE index, too, which makes
            # queries of a span of time a fifth faster.
            self._intern(value for value in dict.fromkeys(values) if value in new)
        return list(map(ids.__getitem__, values))

    def _intern(self, values: Iterable[str | bytes]) -> None:
        """Find the ids of values, and give ids to those that have none."""
        ids = self._index.ids
        unknown = []
        with sqlite_errors(self.directory):
            for value in values:
                row = self._connection.execute("SELECT id FROM value WHERE value = ?", (value,)).fetchone()
                if row is None:
                    unknown.append(value)
                else:
                    ids[value] = row[0]
        if unknown:
            self._interned = True
            ((last,),) = self._rows("SELECT ifnull(max(id), 0) FROM value")
            numbered = list(enumerate(unknown, last + 1))
            self._execute_many("INSERT INTO value VALUES (?, ?)", numbered)
            ids.update((value, id) for id, value in numbered)
