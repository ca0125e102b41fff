"""How many data match, and their bytes and times: from the sums of segments and days where these suffice."""

from __future__ import annotations

from typing import NamedTuple

from ondisk.index.snapshot import Snapshot
from ondisk.matcher import Expression, exact_interval

OF_INTERVAL = "day_sum.first >= ? AND day_sum.last < ?"
"""The SQL that selects the sums of an interval that `interval_of_sums` has returned."""


class Totals(NamedTuple):
    """How many data, their bytes, and their first and last reftime (microseconds; None without data)."""

    count: int  # type: ignore[assignment]  # not the method of tuples
    size: int
    begin: int | None
    end: int | None


def totals(snapshot: Snapshot, tree: Expression) -> Totals:
    """Aggregate the data that match.

    Cost: reads the sums of each segment and day, or the rows of all data that match.
    """
    interval = interval_of_sums(snapshot, tree)
    if interval is not None:
        columns = "ifnull(sum(count), 0), ifnull(sum(size), 0), min(first), max(last)"
        sql = f"SELECT {columns} FROM day_sum WHERE {OF_INTERVAL}"
        return Totals(*snapshot.fetch(sql, interval)[0])
    where = snapshot.where(tree)
    sql = f"SELECT count(*), ifnull(sum(size), 0), min(reftime), max(reftime) FROM datum WHERE {where.sql}"
    return Totals(*snapshot.fetch(sql, where.values)[0])


def interval_of_sums(snapshot: Snapshot, tree: Expression) -> tuple[int, int] | None:
    """Return begin and end of an interval whose sums are those of the data that match; None if there is none.

    A condition on something else than the reftime has none, nor an interval that divides the data of a segment and day.
    """
    interval = exact_interval(tree)
    if interval is None or snapshot.leaves_out:
        return None
    bounds = interval.begin, interval.end
    sql = (
        "SELECT EXISTS (SELECT 1 FROM segment WHERE summed IS NULL) OR EXISTS (SELECT 1 FROM day_sum"
        " WHERE first < ?2 AND last >= ?1 AND (first < ?1 OR last >= ?2))"
    )
    ((must_count,),) = snapshot.fetch(sql, bounds)
    return None if must_count else bounds


def wrong_sums(snapshot: Snapshot) -> list[int]:
    """Return the ids of segments whose sums are absent, or are not those of their rows, as after an edit of the index.

    The index may know no segment of such an id.

    Cost: adds up all rows; if the totals differ, those of each segment, too.
    """
    rows, sums = "count(*), ifnull(sum(size), 0) FROM datum", "ifnull(sum(count), 0), ifnull(sum(size), 0) FROM day_sum"
    absent = "SELECT id FROM segment WHERE summed IS NULL"
    if snapshot.fetch(f"SELECT (SELECT {rows}) IS (SELECT {sums})") == [(1,)]:
        return [id_ for (id_,) in snapshot.fetch(absent)]
    each_rows, each_sums = (f"SELECT segment, {each} GROUP BY segment" for each in (rows, sums))
    differing = " UNION ALL ".join(
        f"SELECT segment FROM ({one} EXCEPT {other})" for one, other in ((each_rows, each_sums), (each_sums, each_rows))
    )
    return [id_ for (id_,) in snapshot.fetch(f"{differing} UNION {absent}")]
