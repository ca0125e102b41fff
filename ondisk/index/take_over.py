"""Takes the rows of the indices of archives over into a copy of the index of their dataset; see
`ondisk.maintenance.migrate`.

Until revision 5 each archive had an index of its own. Their generations, and sometimes the numbers of their data, were
given out by other counters. So each segment gets a new generation, and a datum gets a new number if another change has
its number, or had it.

- A datum that the dataset has deleted from an archive, which has not carried that out, is left out.
- A datum that the dataset and an archive both have under one number, because a move was interrupted, counts once.
- Of data with the same unique values one counts, see `drop_duplicates`.

The bytes of what is left out stay in their segment, which counts them as deleted.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.errors import StateError, command
from ondisk.filesystem import Directory
from ondisk.formats import extent
from ondisk.index.changes import OWN, Removal, begin_session_at
from ondisk.index.connection import damaged
from ondisk.index.precedence import Precedence
from ondisk.index.snapshot import Copies
from ondisk.index.tables import FORMER, Columns

_ROWS = 5_000
_TOGETHER = "SELECT value FROM json_each(?)"
_DROPPED = "another datum of an archive has the same unique values"


@dataclass(slots=True)
class Taken:
    """What became of the data of an archive.

    Attributes:
        count: data that its index had.
        renumbered: those with a new number.
        twice: those that the dataset has, too, because a move was interrupted: they count once.
        deleted: those that the dataset had deleted, and the archive had not.
    """

    count: int = 0
    renumbered: int = 0
    twice: int = 0
    deleted: int = 0


class TakeOver:
    """Changes a copy of the index of a dataset, which has the newest revision and no UNIQUE index, in a transaction.

    Raises, in every method:
        sqlite3.Error: for the caller's `sqlite_errors`.
    """

    def __init__(self, directory: Directory, connection: sqlite3.Connection, config: DatasetConfig) -> None:
        self._directory = directory
        self._connection = connection
        self._config = config
        self._follows = config.replica
        self._columns = Columns(config)
        ((self._uuid, self._seq, self._generation),) = self._rows("SELECT uuid, seq, generation FROM dataset")
        self._count = self._rows("SELECT count(*) FROM datum")[0][0]  # how many data there must be in the end
        self._names = dict(self._rows("SELECT id, name FROM segment"))
        self._is_renumbered = self._must_expire = False
        for statement in (
            "CREATE TEMP TABLE gone (number INTEGER PRIMARY KEY)",
            "INSERT OR IGNORE INTO gone SELECT seq FROM deletion UNION SELECT datum FROM deletion",
            "CREATE TEMP TABLE noted (seq INTEGER PRIMARY KEY, datum INTEGER, forgotten INTEGER)",
        ):
            self._connection.execute(statement)

    def start_after(self, seq: int) -> None:
        """Give out no number up to `seq`: an archive has it."""
        if not self._follows:  # its counter is that of the other
            self._seq = max(self._seq, seq)

    def take(self, archive: sqlite3.Connection, place: str, deleted: Collection[int], *, is_known: bool) -> Taken:
        """Take over the rows of an archive.

        Args:
            archive: reads a copy of its index, which has the newest revision and the same fields.
            place: `.archive/NAME/`.
            is_known: the dataset has recorded the archive, so the numbers of its data are below those of later changes.

        Raises:
            StateError: a number is taken, and the numbers are those of another dataset.
        """
        taken = Taken(*archive.execute("SELECT count(*) FROM datum").fetchone())
        new = dict(self._take_segments(archive, place))
        names = dict(archive.execute("SELECT id, name FROM segment"))
        interned = [at for at, kind in enumerate(self._columns.kinds.values(), 5) if kind.interned]
        selected = ", ".join(self._columns.of_table["datum"])
        for rows in _batches(archive, f"SELECT {selected} FROM datum ORDER BY seq"):
            numbers = json.dumps([row[0] for row in rows])
            there = {
                row[0]: row
                for row in self._rows(f"SELECT {selected} FROM datum WHERE seq IN ({_TOGETHER})", (numbers,))
            }
            gone = {seq for (seq,) in self._rows(f"SELECT number FROM gone WHERE number IN ({_TOGETHER})", (numbers,))}
            ids = self._ids(archive, dict.fromkeys(row[at] for row in rows for at in interned))
            kept = []
            for seq, reftime, segment, offset, size, *fields in rows:
                if segment not in new:
                    raise damaged(self._directory, f": it has data of a segment {segment} that it does not know")
                row = [seq, reftime, new[segment], offset, size, *fields]
                for at in interned:
                    row[at] = ids[row[at]]
                if seq in deleted:
                    taken.deleted += 1
                    self._leave_out(row[2], 1, size)
                    continue
                if seq in there and self._is_same(there[seq], row, names[segment]):
                    taken.twice += 1
                    self._leave_out(row[2], 1, size, Copies.SOME)
                    continue
                if seq in there or seq in gone:
                    taken.renumbered += 1
                    row[0] = self._next_seq(place)
                kept.append(row)
            self._insert_many("datum", kept)
        self._count += taken.count - taken.deleted - taken.twice
        self._is_renumbered |= taken.renumbered > 0
        self._must_expire |= taken.count > 0 and not is_known  # tokens may have passed its numbers
        self._take_history(archive, is_other=taken.renumbered > 0)
        return taken

    def drop_duplicates(self) -> dict[str, int]:
        """Let only one of the data with the same unique values count; note that the others were deleted.

        Nothing but `replace` and their numbers decides, so that a dataset which follows this one chooses the same.

        Returns:
            Segment → how many of its data do not count.
        """
        if not self._columns.unique_names:
            return {}
        order = Precedence.of(self._config).order
        keys = ", ".join(self._columns.keys_of("datum"))
        ranked = f"SELECT seq, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS place FROM datum"
        self._connection.execute("CREATE TEMP TABLE dropped (seq INTEGER PRIMARY KEY)")
        self._connection.execute(f"INSERT INTO dropped SELECT seq FROM ({ranked}) WHERE place > 1")
        sql = (
            "SELECT name, id, count(*), sum(datum.size) FROM dropped JOIN datum USING (seq)"
            " JOIN segment ON segment.id = datum.segment GROUP BY id ORDER BY name"
        )
        dropped = {}
        for name, id_, count, size in self._rows(sql):
            dropped[name] = count
            self._leave_out(id_, count, size, Copies.SOME)
        self._connection.execute("DELETE FROM datum WHERE seq IN (SELECT seq FROM dropped)")
        count = sum(dropped.values())
        self._count -= count
        if self._follows:  # deletions come from the other, which drops the same, or sends what is missing
            sql = "INSERT OR REPLACE INTO difference SELECT seq, 0, ? FROM dropped WHERE seq < ?"
            self._connection.execute(sql, (_DROPPED, OWN))
        else:
            note = "INSERT INTO deletion SELECT ? + row_number() OVER (ORDER BY seq), seq, 0 FROM dropped"
            self._connection.execute(note, (self._seq,))
            self._seq += count
        return dropped

    def count_lost(self, count: int) -> None:
        """Count the data of an archive that is gone as lost."""
        self._connection.execute("UPDATE dataset SET lost = lost + ?", (count,))
        if count and not self._follows:
            self._seq += 1
            self._connection.execute("INSERT INTO deletion VALUES (?, 0, ?)", (self._seq, Removal.LOST))

    def expire_tokens(self) -> None:
        """Let every token expire: data are gone, and no deletion says so."""
        self._must_expire = True

    def finish(self) -> str | None:
        """Save the counters, and compare the counts; return the new UUID if the index needs one.

        Raises:
            IndexCorrupt: the index has not as many data as it must have.
        """
        execute = self._connection.execute
        noted = "INSERT OR IGNORE INTO deletion SELECT * FROM noted WHERE NOT EXISTS"
        execute(f"{noted} (SELECT 1 FROM datum WHERE datum.seq IN (noted.seq, noted.datum))")
        counts = self._rows("SELECT count(*), count(segment.id) FROM datum LEFT JOIN segment ON segment.id = segment")
        if counts != [(self._count, self._count)]:
            problem = f"the new index has {counts[0][1]} data instead of {self._count}; nothing was changed"
            raise damaged(self._directory, f": {problem}")
        ((last,),) = self._rows("SELECT ifnull(max(seq), 0) FROM datum WHERE seq < ?", (OWN,))
        seq = max(self._seq, last)
        execute("UPDATE dataset SET seq = ?, generation = ?", (seq, self._generation))
        if self._is_renumbered:
            new = str(uuid.uuid4())
            execute(FORMER, (self._uuid,))
            execute("UPDATE dataset SET uuid = ?", (new,))
            return new
        if self._must_expire and seq:
            execute("UPDATE dataset SET expired = ?", (seq,))
            begin_session_at(self._connection, seq, time.time_ns() // 1000)
        return None

    def _take_segments(self, archive: sqlite3.Connection, place: str) -> Iterator[tuple[int, int]]:
        """Insert all rows of segments, with their blocks and sums; yield their old and new ids."""
        names = self._columns.of_table["segment"]
        columns = ", ".join(f'"{name}"' for name in names)
        for id_, name, *rest in archive.execute(f"SELECT {columns} FROM segment ORDER BY id").fetchall():
            self._generation += 1
            new = self._generation
            self._insert_many("segment", [(new, place + name, *rest)])
            self._copy(archive, "block", id_, new)
            if rest[-1] is not None:
                self._copy(archive, "day_sum", id_, new)
                self._copy(archive, "value_count", id_, new)
            yield id_, new

    def _copy(self, archive: sqlite3.Connection, table: str, old: int, new: int) -> None:
        columns = ", ".join(self._columns.of_table[table])
        rows = archive.execute(f"SELECT {columns} FROM {table} WHERE segment = ?", (old,)).fetchall()
        if table == "value_count":
            interned = {name for name, kind in self._columns.kinds.items() if kind.interned}
            ids = self._ids(archive, {row[3] for row in rows if row[2] in interned and isinstance(row[3], int)})
            rows = [(*row[:3], ids.get(row[3], row[3]) if row[2] in interned else row[3], row[4]) for row in rows]
        self._insert_many(table, ((new, *row[1:]) for row in rows))

    def _ids(self, archive: sqlite3.Connection, old: Iterable[int]) -> dict[int, int]:
        """Return the ids here of texts and bytes, by their ids in an archive; 0, a missing value, stays 0."""
        sql = f"SELECT id, value FROM value WHERE id IN ({_TOGETHER})"
        values = archive.execute(sql, (json.dumps([*old]),)).fetchall()
        intern = "INSERT OR IGNORE INTO value (value) VALUES (?)"
        self._connection.executemany(intern, ((value,) for _, value in values))
        find = "SELECT id FROM value WHERE value = ?"
        return {0: 0} | {id_: self._rows(find, (value,))[0][0] for id_, value in values}

    def _is_same(self, mine: Sequence[Any], row: Sequence[Any], segment: str) -> bool:
        """Return whether a row is that of the same datum, which is in a segment of the same name."""
        return self._names.get(mine[2]) == segment and (mine[1], *mine[4:]) == (row[1], *row[4:])

    def _next_seq(self, place: str) -> int:
        if self._follows:
            leave_out = command("migrate", self._directory.path, "--leave-out", place.split("/")[1])
            hint = f"{leave_out} makes the archive a dataset of its own."
            raise StateError(
                f"{self._directory.path / place} has data with numbers that the source has used", hint=hint
            )
        self._seq += 1
        return int(self._seq)

    def _leave_out(self, segment: int, count: int, size: int, copies: Copies = Copies.NONE) -> None:
        """Count data without rows as deleted from their segment, whose sums are made again."""
        ((format,),) = self._rows("SELECT format FROM segment WHERE id = ?", (segment,))
        sql = "UPDATE segment SET deleted = deleted + ?, unread = unread | ?, summed = NULL WHERE id = ?"
        self._connection.execute(sql, (extent(format, count, size), copies, segment))

    def _take_history(self, archive: sqlite3.Connection, *, is_other: bool) -> None:
        """Take over what an archive has noted besides its data.

        Not its sessions: tokens name those of the dataset.

        Args:
            is_other: its numbers are not those of the dataset, so they say nothing here.
        """
        ((uuid_, lost, expired),) = archive.execute("SELECT uuid, lost, expired FROM dataset").fetchall()
        self._connection.execute("UPDATE dataset SET lost = lost + ?", (lost,))
        self._connection.execute(FORMER, (uuid_,))
        tables = ["former", "done"]
        if not is_other:
            self._connection.execute("UPDATE dataset SET expired = max(expired, ?)", (expired,))
            tables += ["difference", "deletion"]
        for table in tables:
            rows = archive.execute(f"SELECT {', '.join(self._columns.of_table[table])} FROM {table}")
            self._insert_many({"deletion": "noted"}.get(table, table), rows, or_ignore=True)

    def _insert_many(self, table: str, rows: Iterable[Sequence[Any]], *, or_ignore: bool = False) -> None:
        names = self._columns.of_table[{"noted": "deletion"}.get(table, table)]
        insert = "INSERT OR IGNORE" if or_ignore else "INSERT"
        columns = ", ".join(f'"{name}"' for name in names)
        self._connection.executemany(f"{insert} INTO {table} ({columns}) VALUES ({', '.join('?' * len(names))})", rows)

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


def _batches(connection: sqlite3.Connection, sql: str) -> Iterator[list[Any]]:
    cursor = connection.execute(sql)
    while rows := cursor.fetchmany(_ROWS):
        yield rows
