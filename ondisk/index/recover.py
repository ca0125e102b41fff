"""A new index in the place of a damaged one, or of one that was exchanged for an older state.

In the place of a damaged one, it has what can be read of its counters, deletions and imports. It knows no data: a fix
reads them from the segments. Rows about data are not taken from an index that is damaged in one place, because nobody
knows where else it is.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator

from ondisk.config import DatasetConfig
from ondisk.filesystem import Directory
from ondisk.formats import is_dir
from ondisk.index import tide
from ondisk.index.connection import (
    INDEX,
    NEW,
    SQLITE_ERRORS,
    connect_to_damaged,
    connect_to_main,
    connect_to_read,
    problem_of,
    sqlite_errors,
)
from ondisk.index.convert import copy_index, free_name, sync_copy
from ondisk.index.index import building, check_revision, dump
from ondisk.index.swap import swap_in
from ondisk.index.tables import FORMER, Columns
from ondisk.index.tide import HIGHEST, Exchanged, Recorded, TideMark
from ondisk.segment import Facts

DAMAGED = f"{INDEX}.damaged"
"""The name that a damaged index gets; `index.sqlite.damaged.2` … if that is taken."""

_KEYS = {"deletion": ("seq",), "done": ("source", "part"), "former": ("uuid",)}
"""The tables that are kept, and their primary keys."""

_SEQS = ("datum.seq", "deletion.seq")
_GENERATIONS = ("segment.id",)
"""The columns with numbers that a counter has given out."""


def damage_of(directory: Directory) -> str | None:
    """Return what SQLite finds wrong with an index, or None.

    Cost: reads the whole index.
    """
    try:
        with contextlib.closing(connect_to_damaged(directory)) as connection:
            return problem_of(connection)
    except SQLITE_ERRORS as error:
        return str(error)


def recover(directory: Directory, config: DatasetConfig, timeout: float, *, generation: int, seq: int) -> str:
    """Replace a damaged index by a new one, and return the name that the damaged one has from then on.

    The caller must hold the writers' lock, and has created the sentinel.

    Args:
        generation, seq: the last numbers that were given out, as far as others know.

    Durability: builds `.index.sqlite.new`, synced by SQLite; announces its UUID in the tide mark, synced; gives the
        damaged index and its logs another name, synced; then as `ondisk.index.swap`. A crash leaves the damaged index,
        perhaps with two names, or the new one.
    """
    mark = tide.read(directory)
    if mark is not None:
        generation, seq = max(generation, mark.generation), max(seq, mark.seq)
    new = str(uuid.uuid4())
    directory.discard(NEW, f"{NEW}-journal")
    try:
        with contextlib.ExitStack() as opened, building(directory, config) as index:
            lost, former = 0, set() if mark is None else {*mark.uuids}
            source = None
            with contextlib.suppress(*SQLITE_ERRORS):
                source = opened.enter_context(contextlib.closing(connect_to_damaged(directory)))
            if source is not None and _is_ours(source, mark):
                _copy_tables(source, index, Columns(config))
                seq = max(seq, *_given_out(source, "seq", _SEQS))
                generation = max(generation, *_given_out(source, "generation", _GENERATIONS))
                lost = max(0, *_given_out(source, "lost", ()))
                former.update(_uuids(source))
            index.executemany(FORMER, ((each,) for each in former))
            row = (1, new, seq, generation, dump(config), time.time_ns() // 1000, lost)
            index.execute("INSERT INTO dataset VALUES (?, ?, ?, ?, ?, ?, ?, 0)", row)
        tide.announce(directory, new)
        kept = name_of_damaged(directory)
        swap_in(directory, timeout, with_log=False, kept_as=kept)
    finally:
        directory.discard(NEW, f"{NEW}-journal")
    tide.save(directory, TideMark(new, seq, generation, (seq, generation)))
    return kept


def _is_ours(source: sqlite3.Connection, mark: TideMark | None) -> bool:
    """Return whether an index is not that of another dataset, as far as it can be read."""
    return mark is None or all(map(mark.knows, _uuids(source)))


def _uuids(source: sqlite3.Connection) -> list[str]:
    """Return the UUID of an index; nothing if it cannot be read."""
    with contextlib.suppress(*SQLITE_ERRORS):
        return [found for (found,) in source.execute("SELECT uuid FROM dataset") if isinstance(found, str)]
    return []


def _copy_tables(source: sqlite3.Connection, index: sqlite3.Connection, columns: Columns) -> None:
    """Copy the rows that can be read, from both ends of each table."""
    for table, keys in _KEYS.items():
        there: set[str] = set()  # an older revision may have fewer columns, or not the table
        with contextlib.suppress(*SQLITE_ERRORS):
            there.update(name for (name,) in source.execute("SELECT name FROM pragma_table_info(?)", (table,)))
        names = [name for name in columns.of_table[table] if name in there]
        listed = ", ".join(f'"{name}"' for name in names)
        insert = f"INSERT OR IGNORE INTO {table} ({listed}) VALUES ({', '.join('?' * len(names))})"
        for direction in ("ASC", "DESC"):
            order = ", ".join(f'"{key}" {direction}' for key in keys)
            if _copy_rows(source, f"SELECT {listed} FROM {table} ORDER BY {order}", index, insert):
                break
    index.execute(f"DELETE FROM deletion WHERE seq NOT BETWEEN 0 AND {HIGHEST}")


def _copy_rows(source: sqlite3.Connection, select: str, index: sqlite3.Connection, insert: str) -> bool:
    """Copy rows until one cannot be read, and return whether all could. A row that the new index refuses is skipped.

    Other errors of the new index are raised: on a full disk, a part of the import log would look like all of it.
    """
    try:
        rows = source.execute(select)
    except SQLITE_ERRORS:
        return False
    while True:
        try:
            row = rows.fetchone()
        except SQLITE_ERRORS:
            return False
        if row is None:
            return True
        with contextlib.suppress(sqlite3.IntegrityError):
            index.execute(insert, row)


def _given_out(source: sqlite3.Connection, counter: str, columns: tuple[str, ...]) -> Iterator[int]:
    """Yield the numbers that a counter has given out, as far as can be read; at least 0."""
    yield 0
    for each in (f"dataset.{counter}", *columns):
        table, _, name = each.partition(".")
        with contextlib.suppress(*SQLITE_ERRORS):
            (highest,) = source.execute(f'SELECT max("{name}") FROM {table} WHERE "{name}" < {HIGHEST}').fetchone()
            if isinstance(highest, int):
                yield highest


def name_of_damaged(directory: Directory) -> str:
    """Return the first name for a damaged index that neither an index nor its log has."""
    return free_name(directory, DAMAGED, "-wal", "-journal")


def renew(
    directory: Directory,
    exchanged: Exchanged,
    timeout: float,
    renewed: Callable[[Recorded], Recorded | None],
    *,
    kept_as: str | None = None,
) -> None:
    """Replace an older state of the index by a copy with a new UUID that continues after the numbers of the tide mark.

    The new file makes every process read it again: their caches are those of the index before the exchange.

    Args:
        renewed: returns what the copy records of a segment; None if it does not know it any more.
        kept_as: a free name that the old index keeps; None to remove it.

    Raises:
        NeedsMigration: it has an older revision.
        LockError: readers took longer.

    Durability: builds `.index.sqlite.new`, synced; announces the UUID in the tide mark, synced; then as
        `ondisk.index.swap`. A crash leaves the older state, which is found again, or the new index.
    Locks: the caller must hold the writers' lock.
    """
    connect = connect_to_main if exchanged.is_log_foreign else connect_to_read
    new, mark = str(uuid.uuid4()), exchanged.mark
    with contextlib.closing(connect(directory)) as source, sqlite_errors(directory):
        check_revision(source, directory)
        with contextlib.closing(copy_index(directory, source, NEW)) as copy:
            copy.execute("BEGIN")
            found = _forget(copy, renewed)
            if kept_as is None:
                _note_unaccounted(copy, mark, found)
            copy.executemany(FORMER, ((each,) for each in mark.uuids))
            copy.execute("UPDATE dataset SET uuid = ?, seq = max(seq, ?), generation = max(generation, ?)",
                         (new, mark.seq, mark.generation))  # fmt: skip
            copy.execute("COMMIT")
            if not directory.is_network():
                copy.execute("PRAGMA journal_mode=wal")
    sync_copy(directory, NEW)
    tide.announce(directory, new)
    swap_in(directory, timeout, with_log=kept_as is None and not exchanged.is_log_foreign, kept_as=kept_as)


def _note_unaccounted(copy: sqlite3.Connection, mark: TideMark, forgotten: int) -> None:
    """Record the former UUID of an older state, and how many numbers the newest one had given out after it.

    They belong to data, which a fix finds in the segments, and to deletions.

    Args:
        forgotten: data that the older state does not know any more, and that a fix finds with them.
    """
    first, count = copy.execute("SELECT min(seq), ifnull(sum(count), 0) FROM former WHERE count > 0").fetchone()
    ((seq,),) = copy.execute("SELECT seq FROM dataset").fetchall()
    copy.execute("UPDATE former SET count = 0")
    first, count = (seq if first is None else first), count + max(0, mark.seq - seq)
    count += forgotten if count else 0
    copy.execute("INSERT OR REPLACE INTO former VALUES (?, ?, ?)", (mark.uuid, first, count))


def _forget(copy: sqlite3.Connection, renewed: Callable[[Recorded], Recorded | None]) -> int:
    """Renew the records of segments; remove those that are not known any more, with their data.

    The data are not deleted: a fix finds them again.

    Returns:
        How many data it finds: also those that were deleted, and whose files are still in a folder.
    """
    columns = "segment.id, name, format, size, committed_at, mtime, inode, tail, checksum"
    rows = copy.execute(f"SELECT {columns} FROM segment, dataset").fetchall()
    before = [
        Recorded(id, name, format, size, committed_at, Facts(*facts))
        for id, name, format, size, committed_at, *facts in rows
    ]
    changed = [(each, now) for each in before if (now := renewed(each)) != each]
    gone = [each for each, now in changed if now is None]
    forgotten = json.dumps([each.generation for each in gone])
    folders = json.dumps([each.generation for each in gone if is_dir(each.format)])
    count = "SELECT count(*) FROM datum WHERE segment IN (SELECT value FROM json_each(?))"
    deleted = "SELECT ifnull(sum(deleted), 0) FROM segment WHERE id IN (SELECT value FROM json_each(?))"
    found = copy.execute(count, (forgotten,)).fetchone()[0] + copy.execute(deleted, (folders,)).fetchone()[0]
    for table in ("datum", "block", "day_sum", "value_count", "segment"):
        column = "id" if table == "segment" else "segment"
        copy.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (forgotten,))
    sets = "name = ?, size = ?, length = iif(compressed, length, ?), mtime = ?, inode = ?, tail = ?, checksum = ?"
    rows = [(now.name, now.size, now.size, *now.facts, now.generation) for _, now in changed if now is not None]
    copy.executemany(f"UPDATE OR IGNORE segment SET {sets} WHERE id = ?", rows)
    return int(found)
