"""Where the data of segments stand: what maintenance asks of the index. All functions read one snapshot.

Rows of `datum` have no index by segment: those of one segment are found by their reftimes, and where these may lie
outside of the interval in the segment's row, by a look at all rows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ondisk.index.snapshot import Row, Segment, Snapshot
from ondisk.matcher import Expression
from ondisk.segment import Block
from ondisk.step import Interval

_ROWS = 1024

Column: TypeAlias = tuple[int, ...]
Places: TypeAlias = tuple[Column, Column, Column]
"""Columns of equal length: offsets, sizes, reftimes."""


def segments_in(snapshot: Snapshot, interval: Interval) -> Iterator[Segment]:
    """Give the segments that may hold data of a time."""
    sql = f'SELECT {Segment.COLUMNS} FROM segment WHERE "begin" < ? AND "end" > ?'
    for row in snapshot.connection.execute(sql, (interval.end, interval.begin)):
        yield Segment.of(row)


def all_segments(snapshot: Snapshot) -> Iterator[tuple[Segment, str | None]]:
    """Give every segment, and what was found to be wrong with its content."""
    sql = f"SELECT {Segment.COLUMNS}, checked FROM segment ORDER BY name"
    for *columns, checked in snapshot.connection.execute(sql):
        yield Segment.of(tuple(columns)), checked


def damage_of(snapshot: Snapshot, segment: Segment) -> str | None:
    """Give what was found to be wrong with a segment's content; None where nothing was."""
    row = snapshot.connection.execute("SELECT checked FROM segment WHERE id = ?", (segment.id,)).fetchone()
    return None if row is None else row[0]


def run_starts(snapshot: Snapshot, paddings: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    """Give the data that do not go on, in place and time, from the one appended just before.

    Args:
        paddings: bytes behind each datum that are not part of it, by format.

    Returns:
        seq, segment, offset and reftime of each, in the order of appending; then seq, end and reftime of the datum with
        the number before, which ends a run: None where there is none.

    Cost: a third of what summing the rows up takes.
    """
    distinct = {*paddings.values()}
    if len(distinct) > 1:
        cases = " ".join(f"WHEN '{format}' THEN {padding}" for format, padding in paddings.items())
        padding = f"(SELECT CASE format {cases} END FROM segment WHERE id = d.segment)"
    else:
        padding = str(next(iter(distinct), 0))
    sql = (
        "SELECT d.seq, d.segment, d.offset, d.reftime, p.seq, p.offset + p.size, p.reftime"
        " FROM datum AS d LEFT JOIN datum AS p ON p.seq = d.seq - 1 WHERE (p.segment = d.segment"
        f" AND p.offset + p.size + {padding} = d.offset AND p.reftime <= d.reftime) IS NOT TRUE ORDER BY d.seq"
    )
    return snapshot.connection.execute(sql)


def last_appended(snapshot: Snapshot) -> tuple[int, int, int] | None:
    """Give seq, end and reftime of the datum that was appended last; None without data."""
    sql = "SELECT seq, offset + size, reftime FROM datum ORDER BY seq DESC LIMIT 1"
    row: tuple[int, int, int] | None = snapshot.connection.execute(sql).fetchone()
    return row


def outside_of_intervals(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """Give the first and the last reftime of the data that lie outside of their segment's interval, by segment."""
    sql = (
        "SELECT segment.id, min(reftime), max(reftime) FROM datum JOIN segment ON segment.id = datum.segment"
        ' WHERE reftime < "begin" OR reftime >= "end" GROUP BY segment.id'
    )
    return {id_: (first, last) for id_, first, last in snapshot.connection.execute(sql)}


def places_of(snapshot: Snapshot, segment: Segment, begin: int | None, end: int | None) -> Iterator[Places]:
    """Give the places of one segment's data, some thousands at a time.

    Args:
        begin, end: reftimes that lie outside of its interval, if there are any; the rows between are looked at, too.
    """
    interval = interval_of(snapshot, segment)
    first = interval.begin if begin is None else min(begin, interval.begin)
    last = interval.end if end is None else max(end, interval.end)
    for rows in _some(_data(snapshot, segment, "offset, size, reftime", span=(first, last))):
        offsets, sizes, reftimes = zip(*rows, strict=True)
        yield offsets, sizes, reftimes


def in_order_of_offset(
    snapshot: Snapshot, segment: Segment, begin: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Give offset, size, reftime and seq of one segment's data, whose reftimes lie from `begin` to `end`."""
    return _data(snapshot, segment, "offset, size, reftime, seq", "ORDER BY offset, seq", (begin, end))


def in_order_of_query(snapshot: Snapshot, segment: Segment, begin: int, end: int) -> Iterator[list[tuple[int, Row]]]:
    """Give seq and row of one segment's data, whose reftimes lie from `begin` to `end`, some hundreds at a time."""
    data = _data(snapshot, segment, f"seq, {snapshot.columns.row}", "ORDER BY reftime, seq", (begin, end))
    for rows in _some(data):
        yield [(row[0], row[1:]) for row in rows]


def interval_of(snapshot: Snapshot, segment: Segment) -> Interval:
    """Give the interval that a segment's row says it spans."""
    row = snapshot.connection.execute('SELECT "begin", "end" FROM segment WHERE id = ?', (segment.id,)).fetchone()
    return Interval(*row)


def in_order_of_seq(snapshot: Snapshot, segment: Segment) -> Iterator[list[tuple[int, Row]]]:
    """Give seq and row of one segment's data, in the order of appending, some thousands at a time."""
    for rows in _some(_data(snapshot, segment, f"seq, {snapshot.columns.row}", "ORDER BY seq")):
        yield [(row[0], row[1:]) for row in rows]


def blocks_of(snapshot: Snapshot, segment: Segment) -> Iterator[Block]:
    """Give all blocks of a compressed segment, in order."""
    sql = "SELECT offset, position, stored FROM block WHERE segment = ? ORDER BY offset"
    return map(Block._make, snapshot.connection.execute(sql, (segment.id,)))


def end_of_block_before(snapshot: Snapshot, segment: Segment, offset: int) -> int:
    """Tell where in the file of a compressed segment the block ends that holds the byte before `offset`."""
    sql = "SELECT position + stored FROM block WHERE segment = ? AND offset < ? ORDER BY offset DESC LIMIT 1"
    row: tuple[Any, ...] | None = snapshot.connection.execute(sql, (segment.id, offset)).fetchone()
    return 0 if row is None else int(row[0])


def span(snapshot: Snapshot) -> Interval | None:
    """Give the time from the begin of the first segment to the end of the last; None without segments."""
    begin, end = snapshot.connection.execute('SELECT min("begin"), max("end") FROM segment').fetchone()
    return None if begin is None else Interval(begin, end)


def numbers_of(snapshot: Snapshot, segment: Segment, last: int) -> Iterator[tuple[int, int]]:
    """Give seq and reftime of one segment's data, in the order of their numbers, up to one of these."""
    # Without the +, SQLite may go through all data by their numbers.
    return _data(snapshot, segment, "seq, reftime", f"AND +seq <= {last} ORDER BY +seq")


def last_seq(snapshot: Snapshot) -> int:
    """Give the highest number of a datum; 0 without data."""
    return int(snapshot.connection.execute("SELECT ifnull(max(seq), 0) FROM datum").fetchone()[0])


def count_of(snapshot: Snapshot, segment: Segment) -> int:
    """Count one segment's data."""
    return int(_data(snapshot, segment, "count(*)").fetchone()[0])


def deletions(snapshot: Snapshot, after: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """Give the deletions behind a number, of data up to another: the numbers of the deletions, and of the data."""
    sql = "SELECT seq, datum FROM deletion WHERE seq > ? AND datum <= ? ORDER BY seq"
    return _some(snapshot.connection.execute(sql, (after, last)))


def still_present(snapshot: Snapshot, changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give those of some changes whose data are there."""
    if not changes:
        return changes
    sql = "SELECT seq FROM datum WHERE seq IN (SELECT value FROM json_each(?))"
    there = {row[0] for row in snapshot.connection.execute(sql, (json.dumps([datum for _, datum in changes]),))}
    return [change for change in changes if change[1] in there]


def seqs_of(snapshot: Snapshot, tree: Expression) -> Iterator[int]:
    """Give the numbers of the data that match."""
    where = snapshot.where(tree)
    return (seq for (seq,) in snapshot.connection.execute(f"SELECT seq FROM datum WHERE {where.sql}", where.values))


def rows_by_offset(snapshot: Snapshot, segment: Segment) -> Iterator[list[tuple[int, ...]]]:
    """Give offset, size, reftime and stored fields of one segment's data, in the order of their offsets."""
    fields = "".join(f", f_{name}" for name in snapshot.columns.kinds)
    yield from _some(_data(snapshot, segment, f"offset, size, reftime{fields}", "ORDER BY offset"))


def longest_unchecked(snapshot: Snapshot) -> list[str]:
    """Name the segments, those first whose data were never read by a check, or not for the longest time."""
    names = snapshot.connection.execute("SELECT name FROM segment ORDER BY checked_at NULLS FIRST, name")
    return [name for (name,) in names]


def _data(
    snapshot: Snapshot, segment: Segment, columns: str, rest: str = "", span: tuple[int, int] | None = None
) -> sqlite3.Cursor:
    """Select columns of one segment's data.

    Args:
        span: the first and the last reftime; by default those of the segment's interval.
    """
    until = "<="
    if span is None:
        interval = interval_of(snapshot, segment)
        until, span = "<", (interval.begin, interval.end)
    sql = f"SELECT {columns} FROM datum WHERE reftime >= ? AND reftime {until} ? AND segment = ? {rest}"
    return snapshot.connection.execute(sql, (*span, segment.id))


def _some(cursor: sqlite3.Cursor) -> Iterator[list[Any]]:
    while rows := cursor.fetchmany(_ROWS):
        yield rows
