"""Change the rows of the index in one transaction. The caller must hold the writers' lock."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self

from ondisk.datum import INTEGER_MAX, INTEGER_MIN
from ondisk.errors import OndiskError
from ondisk.formats import find
from ondisk.index.atomic_change import AtomicChange
from ondisk.index.changes import OWN, Removal, begin_session_at
from ondisk.index.connection import sqlite_errors
from ondisk.index.segment_rows import COUNTED
from ondisk.index.snapshot import LONG, SEGMENT_COLUMNS, Segment, Snapshot
from ondisk.index.sums import Sums
from ondisk.index.tables import insert_rows, stored_columns
from ondisk.matcher import Expression
from ondisk.segment import Block, Facts, NotedDamage
from ondisk.step import Interval

_CHANGING = SEGMENT_COLUMNS.split(", ")[3:]  # all but id, name and format
_CACHED_IDS = 200_000
_SOME = 10_000  # rows
_LOST = "it was lost here"
_SEQS = "SELECT value AS seq FROM json_each(?)"
_INSIDE = ' AND reftime >= "begin" AND reftime < "end"'


class Transaction(AtomicChange):
    """Changes the rows of the index: data, segments and deletions."""

    def __enter__(self) -> Self:
        self._deleted: dict[int, tuple[int, int]] = {}  # segment → number and bytes of data that were deleted
        self.sums = Sums(self.connection, self.schema)
        self._recounted: list[Segment] = []
        self._has_new_ids = False
        return super().__enter__()

    def _complete(self) -> None:
        if self._deleted:
            sql = "SELECT id, format FROM segment WHERE id IN (SELECT value FROM json_each(?))"
            formats = self._rows(sql, (json.dumps([*self._deleted]),))
            update = "UPDATE segment SET deleted = deleted + ? WHERE id = ?"
            self._execute_many(update, ((find(format).extent(*self._deleted[id_]), id_) for id_, format in formats))
        with sqlite_errors(self.directory):
            self.sums.save()
            for segment in self._recounted:
                self.sums.count_again(segment.id, self._seqs_of(segment))
            if self._recounted:
                self.sums.save()

    def restore_sums(self, ids: Iterable[int]) -> None:
        """Make the sums of segments again, by their ids; remove those of segments that the index does not know."""
        for id_ in ids:
            if self._rows("SELECT 1 FROM segment WHERE id = ?", (id_,)):
                self._recounted.append(self.segment(id_))
            else:
                self.sums.forget(id_)

    def segments(self, names: Iterable[str]) -> dict[str, Segment]:
        """Return those of some segments that the index knows, by name."""
        sql = f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE name = ?"
        try:
            return {name: Segment.of(row) for name in names for row in self._rows(sql, (name,))}
        except ValueError as error:
            raise self._corrupt(str(error)) from None

    def segment(self, id_: int) -> Segment:
        ((name,),) = self._rows("SELECT name FROM segment WHERE id = ?", (id_,))
        return self.segments([name])[name]

    def segments_in(self, folder: str, count: int) -> list[str]:
        """Return the names of up to `count` segments that the index knows in a folder."""
        sql = "SELECT name FROM segment WHERE name > ? AND name < ? LIMIT ?"
        return [name for (name,) in self._rows(sql, (f"{folder}/", f"{folder}0", count))]

    def last_number(self) -> int | None:
        """Return the highest number of a segment of a sequence, also of an archived one; None without one."""
        last = "replace(name, rtrim(name, replace(name, '/', '')), '')"  # what follows the last slash
        sql = "SELECT max(CAST({} AS INTEGER)) FROM segment WHERE name GLOB '{}'"
        own, archived = sql.format("name", "[0-9]*.*"), sql.format(last, ".archive/*")
        ((number,),) = self._rows(f"SELECT max(ifnull(({own}), ({archived})), ifnull(({archived}), ({own})))")
        return None if number is None else int(number)

    def columns(self, metadata: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Turn metadata into columns of `datum`, one list for each declared field; texts and bytes become ids."""
        return stored_columns(metadata, self.schema.kinds, self._ids_of)

    def insert(self, columns: Sequence[Sequence[Any]]) -> int:
        """Insert rows of `datum`, except duplicates.

        Args:
            columns: seq, reftime, segment, offset, size, fields…

        Returns:
            How many were inserted.
        """
        before = self.connection.total_changes
        with sqlite_errors(self.directory):
            insert_rows(self.connection, self.schema.insert_into, columns, self.schema.on_conflict)
            inserted = self.connection.total_changes - before
            if inserted == len(columns[0]):
                self.sums.add(columns)
            elif inserted:
                self.sums.add_rows(_SEQS, (json.dumps([*columns[0]]),))
        return inserted

    def take_back(self, seqs: Iterable[int]) -> int:
        """Remove rows, and nothing else: nothing is noted or counted as deleted."""
        return self._delete_rows(_SEQS, (json.dumps([*seqs]),))

    def drop_rows(self, seqs: Iterable[int]) -> None:
        """Remove rows without noting deletions. Their bytes stay in their segments, and are counted as deleted."""
        each = iter(seqs)
        while some := [*islice(each, _SOME)]:
            self.count_deleted(_SEQS, (json.dumps(some),))
            self.take_back(some)

    def count_deleted(self, select: str, values: Sequence[Any] = ()) -> None:
        """Count data as deleted from their segments, whose bytes stay there. Call it before their rows are removed.

        The counts tell bytes of deleted data from bytes whose rows somebody has changed without ondisk.
        """
        sql = f"SELECT segment, count(*), sum(size) FROM datum WHERE seq IN ({select}) GROUP BY segment"
        for segment, count, size in self._rows(sql, values):
            self.add_deleted(segment, count, size)

    def add_deleted(self, segment: int, count: int, size: int) -> None:
        """Count some data as deleted from a segment, by its id."""
        before = self._deleted.get(segment, (0, 0))
        self._deleted[segment] = before[0] + count, before[1] + size

    def sums_of(self, segment: Segment) -> tuple[int, int]:
        """Return the number of a segment's data, and their bytes."""
        sql = f"SELECT count(*), ifnull(sum(datum.size), 0) FROM {self.data_of(segment)} WHERE segment.id = ?"
        ((count, size),) = self._rows(sql, (segment.id,))
        return count, size

    def set_unowned(self, segment: Segment, deleted: int) -> None:
        """Save how many bytes, or files, of a segment belong to no datum. The caller has read all of them."""
        self._deleted.pop(segment.id, None)
        self._execute("UPDATE segment SET deleted = ? WHERE id = ?", (deleted, segment.id))

    def note_deletions(self, select: str, values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """Note deletions of the data with the seqs that a SELECT returns, which may be gone, in the order of changes.

        Not if they come from another dataset. Return a SELECT that returns the seqs again.
        """
        if self.counters.follows:
            return select, values
        first = self.counters.seq
        numbered = f"SELECT {first} + row_number() OVER (ORDER BY seq), seq FROM ({select})"
        self.take_seqs(self._execute(f"INSERT INTO deletion (seq, datum) {numbered}", values).rowcount)
        return "SELECT datum FROM deletion WHERE seq > ?", (first,)

    def replace(self, held: tuple[Any, ...], row: tuple[Any, ...], batch: Container[int]) -> None:
        """Replace a row of `datum` by another one with the same unique values.

        Args:
            batch: the seqs of rows that came together with it; replacing one of these is not a deletion.
        """
        seq = held[0]
        with sqlite_errors(self.directory):
            self.connection.execute("DELETE FROM datum WHERE seq = ?", (seq,))
            if seq not in batch:
                self.add_deleted(held[2], 1, held[4])
                if not self.counters.follows:
                    note = "INSERT INTO deletion (seq, datum) VALUES (?, ?)"
                    self.connection.execute(note, (self.take_seqs(1).start, seq))
            self.connection.execute(self.schema.insert, row)
            self.sums.remove([*zip(held)])
            self.sums.add([*zip(row)])

    def set_offsets(self, offsets: Iterable[tuple[int, int]]) -> None:
        """Set the offsets of data that stay in their segment: (offset, seq)."""
        self._execute_many("UPDATE datum SET offset = ? WHERE seq = ?", offsets)

    def forget_if_empty(self, segment: Segment) -> bool:
        """Remove a segment without data from the index; return whether it had none."""
        ((count,),) = self._rows(f"SELECT {COUNTED} FROM segment WHERE id = ?", (segment.id,))
        inside = "SELECT 1 FROM datum JOIN segment ON segment.id = datum.segment" + _INSIDE
        found = count or self._rows(f"{inside} WHERE segment.id = ? LIMIT 1", (segment.id,))
        if found or (count is None and self._rows(f"{self._seqs_of(segment)} LIMIT 1", (segment.id,))):
            return False
        self.supersede(segment)
        return True

    def remove_some(self, segment: Segment, count: int, why: Removal) -> int:
        """Remove up to `count` data of a segment, and return how many: 0 only if it has none.

        The rows are removed first: in a file that cannot grow they make room for the notes of their deletion.
        """
        return self._delete(self._seqs_of(segment), (segment.id,), count, why)

    def remove(self, segment: Segment, why: Removal = Removal.DELETED) -> int:
        """Remove a segment with all its data, and return how many data it had.

        If they are lost, so are those whose rows another program has removed, as the sums show.
        """
        missing = 0
        if why is Removal.LOST:
            rows = self._rows(f"SELECT ifnull({COUNTED}, 0) FROM segment WHERE id = ?", (segment.id,))
            missing = rows[0][0] if rows else 0
        removed = self._delete(self._seqs_of(segment), (segment.id,), why=why)
        missing = max(0, missing - removed)
        self.count_unnamed_lost(missing)
        self.supersede(segment)
        return removed + missing

    def note_lost(self, select: str, values: Sequence[Any] = ()) -> None:
        """Note which data of another dataset are about to be lost, so that they are requested again."""
        if self.counters.follows:
            sql = f"INSERT OR REPLACE INTO difference SELECT seq, 0, ? FROM ({select}) WHERE seq < ?"
            self._execute(sql, (_LOST, *values, OWN))

    def note_why(self, first: int, count: int, why: Removal) -> None:
        """Note why data are gone whose deletions were noted after the seq `first`; count them if they are lost."""
        if why is not Removal.DELETED:
            self._execute("UPDATE deletion SET forgotten = ? WHERE seq > ?", (why, first))
        if why is Removal.LOST:
            self.count_lost(count)

    def expire_tokens(self) -> None:
        """Let every token expire: data have got other numbers, and no deletion says so.

        A token of the present number differs from later ones by its session. No number is given out for this: each
        must be that of a datum or of a deletion.
        """
        if self.counters.seq:
            self._execute("UPDATE dataset SET expired = ?", (self.counters.seq,))
            begin_session_at(self.connection, self.counters.seq, time.time_ns() // 1000)

    def trim_deletions(self, last: int, count: int) -> int:
        """Remove up to `count` deletions with numbers up to `last`; return how many. Older tokens expire.

        Those of lost data stay: who compares a dataset with this one must not take them for deleted.
        """
        some = "SELECT seq FROM deletion WHERE seq <= ? AND forgotten != ? LIMIT ?"
        removed = self._execute(f"DELETE FROM deletion WHERE seq IN ({some})", (last, Removal.LOST, count)).rowcount
        if removed:
            self._execute("UPDATE dataset SET expired = max(expired, ?)", (last,))
        return removed

    def count_lost(self, count: int) -> None:
        """Count data as lost, until somebody acknowledges it."""
        if count:
            self._execute("UPDATE dataset SET lost = lost + ?", (count,))

    def count_unnamed_lost(self, count: int) -> None:
        """Count data as lost whose numbers nobody knows, and note that there are such data.

        Once deletions are forgotten, who compares a dataset with this one must not take them for deleted.
        """
        if count and not self.counters.follows:
            note = "INSERT INTO deletion (seq, datum, forgotten) VALUES (?, 0, ?)"
            self._execute(note, (self.take_seqs(1).start, Removal.LOST))
        self.count_lost(count)

    def account_for(self, count: int | None = None) -> None:
        """Note how many of the changes were found that the index lacks since an older state of it was put back.

        Args:
            count: None for all of them.
        """
        left = "0" if count is None else f"max(0, count - {count:d})"
        self._execute(f"UPDATE former SET count = {left} WHERE count > 0")

    def acknowledge(self) -> int:
        """Count no data as lost any more, and return how many were."""
        ((lost,),) = self._rows("SELECT lost FROM dataset")
        self._execute("UPDATE dataset SET lost = 0")
        return int(lost)

    def data_of(self, segment: Segment) -> str:
        """Return the SQL that joins a segment with its data."""
        span = "" if segment.id in self._outside() else _INSIDE
        return f"datum JOIN segment ON segment.id = datum.segment{span}"

    def _seqs_of(self, segment: Segment) -> str:
        """Return the SELECT of the seqs of a segment's data, by its id."""
        return f"SELECT seq FROM {self.data_of(segment)} WHERE segment.id = ?"

    def _outside(self) -> frozenset[int]:
        """Return the segments that have data outside their interval, where a search by time does not find them.

        Only damage makes such data. Later damage is found by a check.

        Cost: reads all rows, once for each index file.
        """
        if self._index.outside is None:
            sql = (
                "SELECT DISTINCT segment FROM datum JOIN segment ON segment.id = datum.segment"
                ' WHERE (reftime >= "begin" AND reftime < "end") IS NOT TRUE'
            )
            self._index.outside = frozenset(id_ for (id_,) in self._rows(sql))
        return self._index.outside

    def supersede(self, segment: Segment) -> None:
        """Remove a segment but not its data, which the caller moves to its next generation or has removed."""
        self._execute("DELETE FROM segment WHERE id = ?", (segment.id,))
        self.forget_blocks(segment)
        self.sums.forget(segment.id)

    def renew(self, old: Segment, new: Segment) -> None:
        """Give a segment the generation and the facts of another file with the same data at the same places."""
        self._give_data(old, new)
        facts = new.facts
        sets = "id = ?, mtime = ?, inode = ?, tail = ?, checksum = ?, damage = NULL"
        values = (new.id, facts.mtime, facts.inode, facts.tail, facts.checksum)
        self._execute(f"UPDATE segment SET {sets} WHERE id = ?", (*values, old.id))

    def move(self, old: Segment, new: Segment, interval: Interval) -> None:
        """Give all data of a segment to a new one in another folder, at the same places, with its blocks."""
        self._give_data(old, new)
        self._execute("UPDATE block SET segment = ? WHERE segment = ?", (new.id, old.id))
        (noted,) = self._rows("SELECT deleted, checked_at, damage, hides_data FROM segment WHERE id = ?", (old.id,))
        self.supersede(old)
        self.save_segment(new, interval)
        sets = "deleted = ?, checked_at = ?, damage = ?, hides_data = ?"
        self._execute(f"UPDATE segment SET {sets} WHERE id = ?", (*noted, new.id))

    def _give_data(self, old: Segment, new: Segment) -> None:
        self.sums.move(old.id, new.id)
        self._execute(f"UPDATE datum SET segment = ? WHERE seq IN ({self._seqs_of(old)})", (new.id, old.id))

    def note_moved(self, old: Segment) -> None:
        """Record a generation that is moved to another folder, so that its file loses its name after the commit."""
        values = (old.id, old.name, old.format, old.end.size, *old.facts)
        self._execute("INSERT INTO moved VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def forget_moved(self, generations: Iterable[int]) -> None:
        self._execute_many("DELETE FROM moved WHERE generation = ?", ((each,) for each in generations))

    def set_names(self, names: Iterable[tuple[str, str]]) -> None:
        """Give segments whose files have other names now, those names: old and new ones. They may change places."""
        self._execute_many("UPDATE segment SET name = '/' || ? WHERE name = ?", ((new, old) for old, new in names))
        self._execute("UPDATE segment SET name = substr(name, 2) WHERE name GLOB '/*'")

    def deleted_from(self) -> list[Segment]:
        return [self.segment(id_) for id_ in self._deleted]

    def set_places(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Set the segments and the offsets of data: (generation, offset, seq)."""
        places = [*places]
        seqs = (json.dumps([seq for *_, seq in places]),)
        with sqlite_errors(self.directory):
            self.sums.remove_rows(_SEQS, seqs)
            self._execute_many("UPDATE datum SET segment = ?, offset = ? WHERE seq = ?", places)
            self.sums.add_rows(_SEQS, seqs)

    def relocate(self, old: Segment, new: Segment, places: Iterable[tuple[int, int, int]]) -> int:
        """Set the places of data in the next generation of their segment: (seq, old offset, new offset).

        Unlike `set_places`, it finds out which of them are still in the old one.

        Returns:
            How many were moved. Data that were deleted or replaced meanwhile are not.
        """
        self.sums.move(old.id, new.id)
        sql = "UPDATE datum SET segment = ?, offset = ? WHERE seq = ? AND segment = ? AND offset = ?"
        return self._execute_many(sql, ((new.id, to, seq, old.id, before) for seq, before, to in places))

    def resize(self, segment: Segment, sizes: Iterable[tuple[int, int]]) -> None:
        """Set the sizes of data in a segment: (seq, size)."""
        self._recounted.append(segment)
        sql = "UPDATE datum SET size = ? WHERE seq = ? AND segment = ?"
        self._execute_many(sql, ((size, seq, segment.id) for seq, size in sizes))

    def relocate_staged(self, old: Segment, new: Segment, path: str) -> int:
        """Do as `relocate` and `resize` with a file of staged rows, and save the blocks in it.

        Returns:
            How many data were moved; -1 if not all of the file's.
        """
        self.sums.move(old.id, new.id)
        schema = self.attach(path)
        ((count,),) = self._rows(f"SELECT count(*) FROM {schema}.place")
        sql = (
            f"UPDATE main.datum SET segment = ?, offset = place.after FROM {schema}.place AS place"
            " WHERE datum.seq = place.seq AND datum.segment = ? AND datum.offset = place.before"
        )
        moved = self._execute(sql, (new.id, old.id)).rowcount
        sql = f"UPDATE main.datum SET size = resized.size FROM {schema}.resized WHERE datum.seq = resized.seq"
        if self._execute(f"{sql} AND datum.segment = ?", (new.id,)).rowcount:
            self._recounted.append(new)
        self._execute(f'INSERT INTO main.block SELECT ?, "offset", position, stored FROM {schema}.block', (new.id,))
        return moved if moved == count else -1

    def pieces_of(
        self, segments: Sequence[Segment], interval: Interval, size: int
    ) -> Iterator[list[tuple[int, int, int, int, int]]]:
        """Yield seq, reftime, segment, offset and size of the data of some segments, in query order.

        The caller may move the data of one piece before it takes the next.

        Args:
            interval: the interval of the segments, which the index need not know yet.
            size: bytes of data in a piece, at least.
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
            while rows := self.connection.execute(sql, (*after, end)).fetchall():
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

    def block_at(self, segment: Segment, offset: int) -> Block | None:
        """Return the block of a compressed segment that contains an offset; None if none begins before it."""
        sql = "SELECT offset, position, stored FROM block WHERE segment = ? AND offset <= ? ORDER BY 1 DESC LIMIT 1"
        return next(map(Block._make, self._rows(sql, (segment.id, offset))), None)

    def forget_blocks(self, segment: Segment) -> None:
        """Remove all blocks of a segment."""
        self._execute("DELETE FROM block WHERE segment = ?", (segment.id,))

    def damaged(self, ids: Iterable[int]) -> dict[int, NotedDamage]:
        """Return the damage that was noted of some segments, by their ids."""
        sql = (
            "SELECT id, damage, hides_data FROM segment"
            " WHERE damage IS NOT NULL AND id IN (SELECT value FROM json_each(?))"
        )
        return {id_: NotedDamage(reason, bool(hides)) for id_, reason, hides in self._rows(sql, (json.dumps([*ids]),))}

    def note_check(self, segment: Segment, damage: NotedDamage | None, facts: Facts | None = None) -> None:
        """Note that the data of a segment were checked now, and the damage found; None for no damage.

        Args:
            facts: what to record about its file; None for no change.
        """
        values = (time.time_ns() // 1000, *(damage or (None, False)), segment.id)
        self._execute("UPDATE segment SET checked_at = ?, damage = ?, hides_data = ? WHERE id = ?", values)
        if facts is not None:
            self._execute(
                "UPDATE segment SET mtime = ?, inode = ? WHERE id = ?", (facts.mtime, facts.inode, segment.id)
            )

    def note_damage(self, segment: Segment, reason: str) -> None:
        """Note damage that was found before this transaction; what was noted meanwhile stays: it may hide data."""
        if segment.id not in self.damaged([segment.id]):
            self.note_check(segment, NotedDamage(reason))

    def duplicate_of(self, row: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the row of `datum` that a row duplicates; None if it duplicates nothing."""
        find = self.schema.find.duplicate
        return next(iter(self._rows(find, self.schema.key_of(row))), None) if find else None

    def held_by(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the row of `datum` because of which a row could not be inserted."""
        if (held := self.duplicate_of(row)) is None:
            raise self._corrupt("a duplicate cannot be found again")
        return held

    @contextlib.contextmanager
    def known_offsets(self, segment: Segment) -> Iterator[Callable[[int, int], set[int]]]:
        """Yield a function that returns the offsets, in a range, at which the index knew data when the block began."""
        connection = self.connection

        def between(begin: int, end: int) -> set[int]:
            rows = connection.execute("SELECT start FROM known WHERE start >= ? AND start < ?", (begin, end))
            return {start for (start,) in rows}

        with sqlite_errors(self.directory):
            connection.execute("CREATE TEMP TABLE known (start INTEGER PRIMARY KEY)")  # a rollback drops it
            sql = (
                "INSERT OR IGNORE INTO known SELECT offset FROM datum JOIN segment ON segment.id = datum.segment"
                ' AND reftime >= "begin" AND reftime < "end" WHERE segment.id = ?'
            )
            connection.execute(sql, (segment.id,))
            yield between
            connection.execute("DROP TABLE known")

    def save_segment(self, segment: Segment, interval: Interval) -> None:
        """Insert a segment, or update its end and its facts.

        Args:
            interval: of its data; of a segment that the index knows, the interval grows until it contains this one.
        """
        now = (*segment.end, *segment.facts, *segment[5:])
        sets = ", ".join(f"{name} = ?" for name in _CHANGING)
        grow = '"begin" = min("begin", ?), "end" = max("end", ?)'
        update = f"UPDATE segment SET {sets}, {grow} WHERE id = ? AND name = ?"
        if self._execute(update, (*now, interval.begin, interval.end, segment.id, segment.name)).rowcount == 0:
            insert = (
                f'INSERT INTO segment ({", ".join(_CHANGING)}, id, name, format, "begin", "end", deleted, summed)'
                f" VALUES ({'?, ' * (len(_CHANGING) + 5)}0, 0)"
            )
            self._execute(insert, (*now, segment.id, segment.name, segment.format, interval.begin, interval.end))

    def save_blocks(self, segment: Segment, blocks: Iterable[Block]) -> None:
        """Insert new blocks of a compressed segment."""
        self._execute_many("INSERT INTO block VALUES (?, ?, ?, ?)", ((segment.id, *block) for block in blocks))

    def delete(self, tree: Expression, limit: int | None = None) -> int:
        """Delete the data that match, or up to `limit` of them, and return how many."""
        stored = self.connection.stored
        try:
            where = Snapshot.inside(self._index, self.connection).where(tree)
            return self._delete(f"SELECT seq FROM datum WHERE {where.sql}", where.values, limit)
        except OndiskError as error:
            raise stored.take_error() or error from None
        finally:
            stored.clear()

    def delete_at(
        self, segment: str, places: Iterable[tuple[int, int]], limit: int | None = None, generation: int | None = None
    ) -> int:
        """Delete the data at some places (offset, size) of a segment, or up to `limit` of them; return how many.

        Args:
            generation: of the segment: it has other data at these places if it has another one now; None for any.
        """
        self._execute("CREATE TEMP TABLE place (start INTEGER, length INTEGER, PRIMARY KEY (start, length))")
        known = (place for place in places if all(0 <= number < 2**63 for number in place))
        self._execute_many("INSERT OR IGNORE INTO place VALUES (?, ?)", known)
        sql = (
            'SELECT seq FROM segment JOIN datum ON reftime >= "begin" AND reftime < "end" AND segment = segment.id'
            " JOIN place ON place.start = offset AND place.length = datum.size"
            " WHERE segment.name = ? AND segment.id = ifnull(?, segment.id)"
        )
        deleted = self._delete(sql, (segment, generation), limit)
        self._execute("DROP TABLE place")
        return deleted

    def _delete(
        self, select: str, values: Sequence[Any], limit: int | None = None, why: Removal = Removal.DELETED
    ) -> int:
        """Remove the data with the seqs that a SELECT returns, or up to `limit` of them; note that and why."""
        first, seqs = self.counters.seq, []
        if limit is not None:
            seqs = sorted(seq for (seq,) in self._rows(f"{select} LIMIT {limit}", values))
            select, values = _SEQS, (json.dumps(seqs),)
        if why is Removal.LOST:
            self.note_lost(select, values)
        if limit is None:
            select, values = self.note_deletions(select, values)
            self.count_deleted(select, values)
            removed = self._delete_rows(select, values)
        else:
            if why is Removal.LOST:  # a fix reads their bytes, if somebody puts the file back
                self.take_back(seqs)
            else:
                self.drop_rows(seqs)
            self.note_deletions(select, values)
            removed = len(seqs)
        self.note_why(first, removed, why)
        return removed

    def _delete_rows(self, select: str, values: Sequence[Any]) -> int:
        with sqlite_errors(self.directory):
            self.sums.remove_rows(select, values)
        return self._execute(f"DELETE FROM datum WHERE seq IN ({select})", values).rowcount

    def _ids_of(self, values: list[Any]) -> list[int]:
        ids = self._index.ids
        new = set(values).difference(ids)
        if new:
            if len(ids) > _CACHED_IDS:
                self._index.forget_ids()
                new = set(values) - {None}
            # Ids in the order of the data keep consecutive rows together in the UNIQUE index. That makes queries of an
            # interval a fifth faster.
            self._intern(value for value in dict.fromkeys(values) if value in new)
        found = list(map(ids.__getitem__, values))
        for value in new:
            if len(value) > LONG:
                del ids[value]
        return found

    def _intern(self, values: Iterable[str | bytes]) -> None:
        """Look up the ids of values, and give an id to each new value."""
        ids = self._index.ids
        unknown = []
        with sqlite_errors(self.directory):
            for value in values:
                row = self.connection.execute("SELECT id FROM value WHERE value = ?", (value,)).fetchone()
                if row is None:
                    unknown.append(value)
                else:
                    ids[value] = row[0]
        if unknown:
            if not self._has_new_ids:
                self._has_new_ids = True
                # SQLite may have rolled them back by itself, too.
                self.at_end(lambda: None if self.is_committed else self._index.forget_ids())
            ((last,),) = self._rows("SELECT ifnull(max(id), 0) FROM value")
            numbered = list(enumerate(unknown, last + 1))
            self._execute_many("INSERT INTO value VALUES (?, ?)", numbered)
            ids.update((value, id) for id, value in numbered)
