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
import os
import sqlite3
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.errors import StateError, command
from ondisk.filesystem import Directory
from ondisk.formats import find
from ondisk.index.changes import OWN, Removal, begin_session_at
from ondisk.index.connection import damaged
from ondisk.index.precedence import Precedence
from ondisk.index.snapshot import Copies
from ondisk.index.tables import FORMER, Columns

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
    """Changes a copy of the index of a dataset, which has the newest revision and no UNIQUE index.

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
        self._is_renumbered = self._must_expire = False
        for statement in (
            "CREATE TEMP TABLE gone (number INTEGER PRIMARY KEY)",
            "INSERT OR IGNORE INTO gone SELECT seq FROM deletion UNION SELECT datum FROM deletion",
            "CREATE TEMP TABLE noted (seq INTEGER PRIMARY KEY, datum INTEGER, forgotten INTEGER)",
        ):
            connection.execute(statement)

    def start_after(self, seq: int) -> None:
        """Give out no number up to `seq`: an archive has it."""
        if not self._follows:  # its counter is that of the other
            self._seq = max(self._seq, seq)

    def take(self, archive: str, place: str, deleted: Collection[int], *, is_known: bool) -> Taken:
        """Take over the rows of an archive.

        Args:
            archive: the path of a copy of its index, which has the newest revision and the same fields.
            place: `.archive/NAME/`.
            deleted: the numbers of its data that the dataset has deleted, and it has not.
            is_known: the dataset has recorded the archive, so the numbers of its data are below those of later changes.

        Raises:
            StateError: a number is taken, and the numbers are those of another dataset.
        """
        execute, columns = self._connection.execute, self._columns.of_table["datum"]
        execute("ATTACH ? AS archive", (os.fsencode(archive),))  # it need not be UTF-8
        execute("BEGIN")
        self._take_segments(place)
        self._judge(place, deleted)
        how = dict(self._rows("SELECT fate, count(*) FROM temp.judged GROUP BY fate"))
        taken = Taken(*self._rows("SELECT count(*) FROM archive.datum")[0], **how)
        if taken.renumbered and self._follows:
            leave_out = command("migrate", self._directory.path, "--leave-out", place.split("/")[1])
            path, hint = self._directory.path / place, f"{leave_out} makes the archive a dataset of its own."
            raise StateError(f"{path} has data with numbers that the source has used", hint=hint)
        into, rest = f"INSERT INTO main.datum ({', '.join(columns)})", ", ".join(columns[1:])
        execute(f"{into} SELECT seq, {rest} FROM came WHERE seq NOT IN (SELECT seq FROM temp.judged) ORDER BY seq")
        renumbered = "SELECT seq FROM temp.judged WHERE fate = 'renumbered'"
        new = f"{self._seq} + row_number() OVER (ORDER BY seq)"
        execute(f"{into} SELECT {new}, {rest} FROM came WHERE seq IN ({renumbered})")
        left_out = "SELECT segment, fate, count(*), sum(size) FROM temp.judged WHERE fate != 'renumbered' GROUP BY 1, 2"
        for segment, fate, count, size in self._rows(left_out):
            self._leave_out(segment, count, size, Copies.SOME if fate == "twice" else Copies.NONE)
        self._seq += taken.renumbered
        self._count += taken.count - taken.deleted - taken.twice
        self._is_renumbered |= taken.renumbered > 0
        self._must_expire |= taken.count > 0 and not is_known  # tokens may have passed its numbers
        self._take_history(is_other=taken.renumbered > 0)
        for each in ("VIEW came", "TABLE own", "TABLE judged"):
            execute(f"DROP {each}")
        execute("COMMIT")
        execute("DETACH archive")
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

    def finish(self, *, must_expire: bool) -> str | None:
        """Save the counters, and compare the counts; return the new UUID if the index needs one.

        Args:
            must_expire: data are gone, and no deletion says so: let every token expire.

        Raises:
            IndexCorrupt: the index has not as many data as it must have.
        """
        execute = self._connection.execute
        noted = "INSERT OR IGNORE INTO deletion SELECT * FROM noted WHERE NOT EXISTS"
        execute(f"{noted} (SELECT 1 FROM datum WHERE datum.seq IN (noted.seq, noted.datum))")
        counts = self._rows("SELECT count(segment.id), count(*) FROM datum LEFT JOIN segment ON segment.id = segment")
        if counts != [(self._count, self._count)]:
            problem = f"the new index has {counts[0][0]} data instead of {self._count}; nothing was changed"
            raise damaged(self._directory, f": {problem}")
        ((last,),) = self._rows("SELECT ifnull(max(seq), 0) FROM datum WHERE seq < ?", (OWN,))
        seq = max(self._seq, last)
        execute("UPDATE dataset SET seq = ?, generation = ?", (seq, self._generation))
        if self._is_renumbered:
            new = str(uuid.uuid4())
            execute(FORMER, (self._uuid,))
            execute("UPDATE dataset SET uuid = ?", (new,))
            return new
        if (must_expire or self._must_expire) and seq:
            execute("UPDATE dataset SET expired = ?", (seq,))
            begin_session_at(self._connection, seq, time.time_ns() // 1000)
        return None

    def _take_segments(self, place: str) -> None:
        """Insert all rows of segments, and let the view `came` show those of data as they will be but for `seq`."""
        execute, shift = self._connection.execute, f" + {self._generation}"
        interned = [each for each, kind in self._columns.kinds.items() if kind.interned]
        self._generation += self._rows("SELECT ifnull(max(id), 0) FROM archive.segment")[0][0]
        execute("CREATE TEMP TABLE own (old INTEGER PRIMARY KEY, new INTEGER)")  # ids of texts and bytes
        execute("INSERT OR IGNORE INTO main.value (value) SELECT value FROM archive.value ORDER BY id")
        mine = "SELECT old.id, new.id FROM archive.value AS old CROSS JOIN main.value AS new ON new.value = old.value"
        execute(f"INSERT INTO own SELECT 0, 0 UNION ALL {mine}")
        own, names = "(SELECT new FROM own WHERE old = {})", ", ".join(f"'{name}'" for name in interned)
        is_id = f"field IN ({names}) AND typeof(value) = 'integer'"
        of_segment = {"segment": f"segment{shift}"}
        self._copy("segment", {"id": f"id{shift}", "name": "? || name"}, (place,))
        for table in ("block", "day_sum"):
            self._copy(table, of_segment)
        self._copy("value_count", of_segment | {"value": f"iif({is_id}, {own.format('value')}, value)"})
        changed = of_segment | {f"f_{name}": own.format(f"f_{name}") for name in interned}
        columns = (f"{changed.get(name, name)} AS {name}" for name in self._columns.of_table["datum"])
        execute(f"CREATE TEMP VIEW came AS SELECT {', '.join(columns)} FROM archive.datum")

    def _judge(self, place: str, deleted: Collection[int]) -> None:
        """Note in `judged` which data are left out, or get another number."""
        name = "(SELECT name FROM main.segment WHERE id = {}.segment)"
        equal = (f"mine.{each} IS came.{each}" for each in self._columns.of_table["datum"]
                 if each not in ("seq", "segment", "offset"))  # fmt: skip
        is_same = f"? || {name.format('mine')} = {name.format('came')} AND {' AND '.join(equal)}"
        is_deleted, numbers = "came.seq IN (SELECT value FROM json_each(?))", json.dumps([*deleted])
        self._connection.execute(
            f"CREATE TEMP TABLE judged AS SELECT came.seq AS seq, came.segment AS segment, came.size AS size,"
            f" CASE WHEN {is_deleted} THEN 'deleted' WHEN {is_same} THEN 'twice' ELSE 'renumbered' END AS fate"
            " FROM came LEFT JOIN main.datum AS mine ON mine.seq = came.seq"
            f" WHERE mine.seq IS NOT NULL OR came.seq IN temp.gone OR {is_deleted}",
            (numbers, place, numbers),
        )

    def _copy(self, table: str, changed: Mapping[str, str], values: Sequence[Any] = ()) -> None:
        """Copy the rows of a table of the archive; `changed`: column → the SQL of its value here."""
        names = {each: f'"{each}"' for each in self._columns.of_table[table]}
        columns = ", ".join(changed.get(each, name) for each, name in names.items())
        into = f"INSERT INTO main.{table} ({', '.join(names.values())})"
        self._connection.execute(f"{into} SELECT {columns} FROM archive.{table}", values)

    def _leave_out(self, segment: int, count: int, size: int, copies: Copies) -> None:
        """Count data without rows as deleted from their segment, whose sums are made again."""
        ((format,),) = self._rows("SELECT format FROM segment WHERE id = ?", (segment,))
        sql = "UPDATE segment SET deleted = deleted + ?, copies = max(copies, ?), summed = NULL WHERE id = ?"
        self._connection.execute(sql, (find(format).extent(count, size), copies, segment))

    def _take_history(self, *, is_other: bool) -> None:
        """Take over what the archive has noted besides its data.

        Not its sessions: tokens name those of the dataset.

        Args:
            is_other: its numbers are not those of the dataset, so they say nothing here.
        """
        execute, into = self._connection.execute, {"former": "former", "done": "done"}
        execute("UPDATE dataset SET lost = lost + (SELECT lost FROM archive.dataset)")
        execute("INSERT OR IGNORE INTO former SELECT uuid, 0, 0 FROM archive.dataset")
        if not is_other:
            execute("UPDATE dataset SET expired = max(expired, (SELECT expired FROM archive.dataset))")
            into |= {"difference": "difference", "deletion": "noted"}
        for table, mine in into.items():
            columns = ", ".join(self._columns.of_table[table])
            execute(f"INSERT OR IGNORE INTO {mine} ({columns}) SELECT {columns} FROM archive.{table}")

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()
