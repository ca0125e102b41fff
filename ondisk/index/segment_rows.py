"""Queries for the rows of one segment, and about all segments. All functions read one snapshot.

`datum` has no index by segment. The rows of a segment are found by their reftimes, which are in the interval of the
segment's row. Only in a damaged index they are not: then a function takes the first and the last reftime.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from ondisk.index.snapshot import SEGMENT_COLUMNS, Row, Segment, Snapshot
from ondisk.segment import Block, End, Facts, NotedDamage
from ondisk.step import ARCHIVE, DAY, Interval, inner_of, number_of, place_of

_ROWS, _LAID = 1024, 16_384
_SUMS = "count(*), ifnull(sum(size), 0)"

Column: TypeAlias = tuple[int, ...]

Places: TypeAlias = tuple[Column, Column, Column, Column]
"""Columns of equal length: offsets, sizes, reftimes, seqs."""


_IN_DAYS = "SELECT ifnull(sum(day_sum.count), 0) FROM day_sum WHERE day_sum.segment = segment.id"
COUNTED = f"iif(summed IS ({_IN_DAYS}), summed, NULL)"
"""The SQL of how many data a segment has by its row and by its sums; NULL if these differ: then one was edited."""
_NOTED = f"damage, hides_data, deleted, {COUNTED}"


def _within(place: str) -> tuple[str, str]:
    """Return the bounds of the names of segments in a place of the archive, `.archive/NAME/`."""
    return place, f"{place[:-1]}0"


def all_segments(snapshot: Snapshot) -> Iterator[tuple[Segment, NotedDamage | None, int | None, int | None]]:
    """Yield every segment with what `noted_of` returns."""
    sql = f"SELECT {SEGMENT_COLUMNS}, {_NOTED} FROM segment ORDER BY name"
    for *columns, reason, hides_data, deleted, counted in chain.from_iterable(snapshot.select(sql)):
        yield snapshot.segment_of(tuple(columns)), NotedDamage.of(reason, hides_data), deleted, counted


def noted_of(snapshot: Snapshot, segment: Segment) -> tuple[NotedDamage | None, int | None, int | None]:
    """Return what the index has noted about a segment's data.

    Returns:
        The damage that the last check of them found; None for no damage. How many bytes, or files, of deleted data are
        still there; None if unknown. How many data it has, by its sums; None if unknown.
    """
    rows = snapshot.fetch(f"SELECT {_NOTED} FROM segment WHERE id = ?", (segment.id,))
    if not rows:
        return None, None, None
    ((reason, hides_data, deleted, counted),) = rows
    return NotedDamage.of(reason, hides_data), deleted, counted


def run_starts(snapshot: Snapshot, paddings: Mapping[str, int], but: Collection[int]) -> Iterator[tuple[Any, ...]]:
    """Find the begin of each run: of data that were appended one after another, consecutive and in order of time.

    Args:
        paddings: format → bytes after each datum that are not part of it.
        but: ids of segments whose runs are not wanted.

    Returns:
        For each run, in the order of appending: seq, segment, offset and reftime of its first datum; then segment, seq,
        end and reftime of the datum before it, None for the first of all. If that datum is of the segment of the
        previous run, it is the last of that run.

    Cost: a third of the time that aggregating the rows takes.
    """
    distinct = {*paddings.values()}
    if len(distinct) > 1:
        cases = " ".join(f"WHEN '{format}' THEN {padding}" for format, padding in paddings.items())
        padding = f"(SELECT CASE format {cases} END FROM segment WHERE id = d.segment)"
    else:
        padding = str(next(iter(distinct), 0))
    sql = (
        "SELECT d.seq, d.segment, d.offset, d.reftime, last.segment, last.seq, last.offset + last.size, last.reftime"
        " FROM datum AS d LEFT JOIN datum AS p ON p.seq = d.seq - 1"
        " LEFT JOIN datum AS last ON last.seq = (SELECT max(seq) FROM datum WHERE seq < d.seq)"
        f" WHERE (p.segment = d.segment AND p.offset + p.size + {padding} = d.offset"
        " AND p.reftime <= d.reftime) IS NOT TRUE"
        f" {'AND d.segment NOT IN (SELECT value FROM json_each(?))' if but else ''} ORDER BY d.seq"
    )
    return chain.from_iterable(snapshot.select(sql, (json.dumps([*but]),) if but else (), _ROWS))


def last_appended(snapshot: Snapshot) -> tuple[int, int, int, int] | None:
    """Return segment, seq, end and reftime of the datum that was appended last; None without data."""
    sql = "SELECT segment, seq, offset + size, reftime FROM datum ORDER BY seq DESC LIMIT 1"
    return next(iter(snapshot.fetch(sql)), None)


def ways(snapshot: Snapshot) -> Iterator[tuple[str, End, int]]:
    """Yield the ways in which segments are stored: format, an end with only `kind` and `compressed`, and how many."""
    sql = "SELECT format, kind, compressed, count(*) FROM segment GROUP BY format, kind, compressed"
    for format, kind, compressed, count in snapshot.fetch(sql):
        yield format, End(kind=kind, compressed=bool(compressed)), count


def formats(snapshot: Snapshot) -> list[str]:
    return [name for (name,) in snapshot.fetch("SELECT DISTINCT format FROM segment ORDER BY format")]


def outside_of_intervals(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """Return segment id → the first and the last reftime of its data that are outside its interval.

    Raises:
        IndexCorrupt: data have no segment that the index knows, or no place or reftime.
    """
    sql = (
        "SELECT segment.id, min(reftime), max(reftime), min(datum.seq), count(*) - count(reftime + offset + datum.size)"
        " FROM datum LEFT JOIN segment ON segment.id = datum.segment"
        ' WHERE (reftime >= "begin" AND reftime < "end" AND offset + datum.size IS NOT NULL) IS NOT TRUE'
        " GROUP BY segment.id"
    )
    outside = {}
    for id_, first, last, seq, broken in snapshot.fetch(sql):
        if id_ is None or broken:
            raise snapshot.corrupt(f"the datum {seq} or a later one has no known segment, no place or no reftime")
        outside[id_] = first, last
    return outside


def places_of(snapshot: Snapshot, segment: Segment, begin: int | None, end: int | None) -> Iterator[Places]:
    """Yield the places of one segment's data, some at a time, in the order of their offsets.

    Args:
        begin, end: the first and the last reftime outside its interval, if any; the rows up to them are read, too.
    """
    span = _span(snapshot, segment, begin, end)
    for rows in _data(snapshot, segment, "offset, size, reftime, seq", "ORDER BY offset, seq", span):
        offsets, sizes, reftimes, seqs = zip(*rows, strict=True)
        yield offsets, sizes, reftimes, seqs


def totals_of(snapshot: Snapshot, segment: Segment, padding: int, begin: int | None, end: int | None) -> Row:
    """Return count, bytes, first offset, end, first and last reftime of one segment's data.

    Args:
        padding: bytes after each datum that are not part of it; they count.
        begin, end: as for `places_of`.
    """
    size = f"size + {padding}"
    totals = f"count(*), sum({size}), min(offset), max(offset + {size}), min(reftime), max(reftime)"
    return next(_data(snapshot, segment, totals, span=_span(snapshot, segment, begin, end)))[0]


def _span(snapshot: Snapshot, segment: Segment, begin: int | None, end: int | None) -> tuple[int, int]:
    interval = interval_of(snapshot, segment)
    first = interval.begin if begin is None else min(begin, interval.begin)
    return first, interval.end if end is None else max(end, interval.end)


def in_order_of_offset(snapshot: Snapshot, segment: Segment, begin: int, end: int) -> Iterator[Row]:
    """Yield offset, size, reftime and seq of one segment's data with reftimes from `begin` to `end`."""
    rows = _data(snapshot, segment, "offset, size, reftime, seq", "ORDER BY offset, seq", (begin, end))
    return chain.from_iterable(rows)


def in_order_to_write(snapshot: Snapshot, segment: Segment, begin: int, end: int) -> Iterator[list[Row]]:
    """Yield reftime, segment, offset, size and seq of one segment's data, some at a time, in the order of a new file.

    That is the order of queries, so that these read consecutive bytes; in a sequence, the order of the old file.

    Args:
        begin, end: the first and the last of their reftimes.
    """
    columns = "reftime, segment, offset, size, seq"
    order = "reftime" if number_of(inner_of(segment.name).partition(".")[0]) is None else "offset"
    return _data(snapshot, segment, columns, f"ORDER BY {order}, seq", (begin, end), _LAID)


def interval_of(snapshot: Snapshot, segment: Segment) -> Interval:
    """Return the interval in a segment's row."""
    return Interval(*snapshot.fetch('SELECT "begin", "end" FROM segment WHERE id = ?', (segment.id,))[0])


def in_order_of_seq(snapshot: Snapshot, segment: Segment) -> Iterator[list[tuple[int, Row]]]:
    """Yield seq and row of one segment's data, some at a time, in the order of appending."""
    for rows in _data(snapshot, segment, f"seq, {snapshot.columns.row}", "ORDER BY seq"):
        yield [(row[0], row[1:]) for row in rows]


def blocks_of(snapshot: Snapshot, segment: Segment) -> Iterator[Block]:
    """Yield all blocks of a compressed segment, in order."""
    sql = "SELECT offset, position, stored FROM block WHERE segment = ? ORDER BY offset"
    return map(Block._make, chain.from_iterable(snapshot.select(sql, (segment.id,))))


def end_of_block_before(snapshot: Snapshot, segment: Segment, offset: int) -> int:
    """Return the position in a compressed file where the block ends that contains the byte before `offset`."""
    sql = "SELECT position + stored FROM block WHERE segment = ? AND offset < ? ORDER BY offset DESC LIMIT 1"
    return next((end for (end,) in snapshot.fetch(sql, (segment.id, offset))), 0)


def span(snapshot: Snapshot) -> Interval | None:
    """Return the interval from the begin of the first segment to the end of the last; None without segments."""
    ((begin, end),) = snapshot.fetch('SELECT min("begin"), max("end") FROM segment')
    return None if begin is None else Interval(begin, end)


def first_to_end(snapshot: Snapshot, places: Sequence[str]) -> tuple[int, list[str]] | None:
    """Return the first day that begins when segments have ended, since 1970, and their names; None without segments.

    Args:
        places: which segments count: "" for the dataset's own folders, or places of the archive.
    """
    sql = 'SELECT "end", name FROM segment WHERE "begin" < "end" ORDER BY "end", name'
    found: dict[int, list[str]] = {}
    for end, name in chain.from_iterable(snapshot.select(sql)):
        if place_of(name) in places:
            found.setdefault(-(-end // DAY), []).append(name)
            if len(found) > 1:
                break
    return next(((day, sorted(names)) for day, names in found.items()), None)


def ended_by(snapshot: Snapshot, time: int, places: Sequence[str]) -> tuple[int, int]:
    """Return how many segments with data end at or before a time, and how many there are.

    Args:
        places: as for `first_to_end`.
    """
    sql = (
        'SELECT name, "end" <= ? FROM segment WHERE EXISTS (SELECT 1 FROM datum'
        ' WHERE reftime >= "begin" AND reftime < "end" AND datum.segment = segment.id)'
    )
    ended = [is_old for name, is_old in snapshot.fetch(sql, (time,)) if place_of(name) in places]
    return sum(ended), len(ended)


def former_uuids(snapshot: Snapshot) -> list[str]:
    """Return the UUIDs that an index had before it was lost, rebuilt or exchanged."""
    return [uuid for (uuid,) in snapshot.fetch("SELECT uuid FROM former")]


def unaccounted(snapshot: Snapshot) -> int:
    """Return how many numbers belong to changes that were not found again since an older index was put back."""
    return int(snapshot.fetch("SELECT ifnull(sum(count), 0) FROM former WHERE count > 0")[0][0])


def in_place(snapshot: Snapshot, place: str) -> list[Segment]:
    """Return the segments in a place of the archive, `.archive/NAME/`."""
    sql = f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE name > ? AND name < ?"
    return [*map(snapshot.segment_of, snapshot.fetch(sql, _within(place)))]


def places(snapshot: Snapshot) -> Iterator[str]:
    """Yield the places of the archive that have segments, `.archive/NAME/`.

    Cost: a look-up for each.
    """
    after = f"{ARCHIVE}/"
    while rows := snapshot.fetch("SELECT min(name) FROM segment WHERE name > ? AND name < ?", (after, f"{ARCHIVE}0")):
        if rows[0][0] is None:
            return
        place = place_of(rows[0][0])
        yield place
        _, after = _within(place)


def meets(snapshot: Snapshot, place: str, interval: Interval) -> bool:
    """Return whether a segment in a place of the archive may have data of an interval."""
    during = f'"begin" < ? AND "end" > ? AND {COUNTED} IS NOT 0'
    sql = f"SELECT 1 FROM segment WHERE name > ? AND name < ? AND {during} LIMIT 1"
    return bool(snapshot.fetch(sql, (*_within(place), interval.end, interval.begin)))


def has_data(snapshot: Snapshot, place: str, sql: str, values: Sequence[Any]) -> bool:
    """Return whether data of a condition in SQL are in a place of the archive."""
    held = "datum.segment IN (SELECT id FROM segment WHERE name > ? AND name < ?)"
    query = f"SELECT 1 FROM datum WHERE {sql} AND {held} LIMIT 1"
    return bool(snapshot.fetch(query, (*values, *_within(place))))


def extent_of(snapshot: Snapshot, place: str) -> tuple[int, Interval | None]:
    """Return how many data a place of the archive has, and the interval of its segments."""
    sql = (
        f'SELECT sum(ifnull({COUNTED}, (SELECT count(*) FROM datum WHERE reftime >= "begin" AND reftime < "end"'
        ' AND datum.segment = segment.id))), min("begin"), max("end") FROM segment WHERE name > ? AND name < ?'
    )
    ((count, begin, end),) = snapshot.fetch(sql, _within(place))
    return count or 0, None if begin is None else Interval(begin, end)


def moved(snapshot: Snapshot) -> list[tuple[int, str, str, int, Facts]]:
    """Return generation, name, format, size and facts of what was moved to another folder and may have its old name."""
    sql = "SELECT generation, name, format, size, mtime, inode, tail, checksum FROM moved"
    return [(*row[:4], Facts(*row[4:])) for row in snapshot.fetch(sql)]


def has_other_name(snapshot: Snapshot, segment: Segment) -> bool:
    """Return whether a newer segment has the bytes of a missing one, as far as the facts say, and as many data."""
    sql = (  # their times may be others than its name says, so that their rows are found only by its number
        "SELECT 1 FROM segment WHERE id > ? AND format = ? AND size = ? AND length = ? AND tail = ? AND checksum IS ?"
        " AND NOT has_unknown AND NOT copies AND (SELECT count(*) FROM datum WHERE datum.segment = segment.id) >= ?"
    )
    end, facts = segment.end, segment.facts
    count = max(count_of(snapshot, segment), noted_of(snapshot, segment)[2] or 0)
    values = (segment.id, segment.format, end.size, end.length, facts.tail, facts.checksum, count)
    return bool(snapshot.fetch(sql, values))


def last_seq(snapshot: Snapshot) -> int:
    """Return the highest seq of a datum; 0 without data."""
    return int(snapshot.fetch("SELECT ifnull(max(seq), 0) FROM datum")[0][0])


def count_of(snapshot: Snapshot, segment: Segment) -> int:
    return sums_of(snapshot, segment)[0]


def sums_of(snapshot: Snapshot, segment: Segment) -> tuple[int, int]:
    """Return how many data a segment has, and their bytes."""
    count, size = next(_data(snapshot, segment, _SUMS))[0]
    return count, size


def rows_by_offset(snapshot: Snapshot, segment: Segment) -> Iterator[list[tuple[int, ...]]]:
    """Yield offset, size, reftime and stored fields of one segment's data, some at a time, ordered by offset."""
    fields = "".join(f", f_{name}" for name in snapshot.columns.kinds)
    yield from _data(snapshot, segment, f"offset, size, reftime{fields}", "ORDER BY offset")


def following(snapshot: Snapshot, segment: Segment, offset: int, count: int) -> list[Row]:
    """Return up to `count` rows of one segment's data from an offset on, in the order of offsets.

    Cost: reads all rows of the segment's interval.
    """
    rest = f"AND offset >= {offset:d} ORDER BY offset, seq LIMIT {count:d}"
    return [*chain.from_iterable(_data(snapshot, segment, snapshot.columns.row, rest))]


def has_across(snapshot: Snapshot, segment: Segment, offset: int) -> bool:
    """Return whether a datum of a segment begins before an offset and ends after it."""
    rest = f"AND offset < {offset:d} AND offset + size > {offset:d} LIMIT 1"
    return any(_data(snapshot, segment, "1", rest))


def before(snapshot: Snapshot, segment: Segment, offset: int) -> tuple[int, int]:
    """Return how many data of a segment begin before an offset, and their bytes."""
    count, size = next(_data(snapshot, segment, _SUMS, f"AND offset < {offset:d}"))[0]
    return count, size


def since(snapshot: Snapshot, segment: Segment, offset: int) -> tuple[int, int, int | None]:
    """Return how many data of a segment begin at an offset or after it, their bytes, and the first reftime."""
    count, size, first = next(_data(snapshot, segment, f"{_SUMS}, min(reftime)", f"AND offset >= {offset:d}"))[0]
    return count, size, first


def numbered_segments(snapshot: Snapshot, least: int) -> dict[int, Segment]:
    """Return the segments of a sequence from a number on, by their numbers."""
    found = {}
    for row in snapshot.fetch(f"SELECT {SEGMENT_COLUMNS} FROM segment"):
        number = number_of(row[1].partition(".")[0])
        if number is not None and number >= least:
            found[number] = snapshot.segment_of(row)
    return found


def longest_unchecked(snapshot: Snapshot) -> list[str]:
    """Return the names of the segments: first those whose data no check has read, then the longest unread."""
    return [name for (name,) in snapshot.fetch("SELECT name FROM segment ORDER BY checked_at NULLS FIRST, name")]


def _data(
    snapshot: Snapshot,
    segment: Segment,
    columns: str,
    rest: str = "",
    span: tuple[int, int] | None = None,
    count: int = _ROWS,
) -> Iterator[list[Row]]:
    """Select columns of one segment's data, by default of those in its interval; yield the rows some at a time.

    Args:
        span: the first and the last reftime instead.
    """
    until = "<="
    if span is None:
        interval = interval_of(snapshot, segment)
        until, span = "<", (interval.begin, interval.end)
    sql = f"SELECT {columns} FROM datum WHERE reftime >= ? AND reftime {until} ? AND segment = ? {rest}"
    return snapshot.select(sql, (*span, segment.id), count)
