"""The state of an index at a load: every query of a DataFrame returns the rows of that state, or fails.

With the connector, Spark plans each query by itself, and later than the load. A datum keeps its number until it is
deleted, in whatever segment it is, and new data have higher numbers. So the rows of the load are those with numbers up
to the last one of that time, if none was deleted since. Maintenance changes only where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ondisk.dataset.access import Opened
from ondisk.index import Snapshot, replaced_rows
from ondisk.index.changes import Removal, expired
from ondisk.segments.generations import ROWS
from ondisk.segments.replaced import replaced
from ondisk.spark.plan import REPLACED, IndexState, Partition, changed
from ondisk.spark.replaced import DELETED

_GONE = "data were deleted or replaced"


class Pinned(NamedTuple):
    """What identifies the state.

    Attributes:
        uuid, inode, seq, last: as in `IndexState`.
        rows: how many it has; None if the index has not counted them.
    """

    uuid: str
    inode: int | None
    seq: int
    last: int
    rows: int | None

    @classmethod
    def of(cls, state: IndexState, snapshot: Snapshot) -> Pinned:
        """Return the state of a snapshot."""
        return cls(state.uuid, state.inode, state.seq, state.last, _rows(snapshot))

    def restrict(self, state: IndexState, opened: Opened, snapshot: Snapshot) -> tuple[IndexState, list[Partition]]:
        """Return a later state of the index with a condition for the rows of this one, and partitions of those kept.

        These are of segments that were too old and dropped since, see `ondisk.spark.replaced`.

        Raises:
            StateError: rows of this state were deleted or replaced since, or may have been.

        Cost: a row of the index for each segment and day, and for each datum that was added since.
        """
        if (state.uuid, state.inode) != (self.uuid, self.inode):
            raise changed(state, "its index was rebuilt")
        aged = 0
        if state.seq != self.seq:
            if expired(snapshot) > self.seq:
                raise changed(state, "so much that the index has forgotten which data were deleted")
            sql = "SELECT ifnull(sum(forgotten = ?), 0), count(*) FROM deletion WHERE seq > ? AND datum <= ?"
            ((aged, gone),) = snapshot.fetch(sql, (int(Removal.AGED_AND_KEPT), self.seq, self.last))
            if gone > aged:
                raise changed(state, _GONE)
        ((added,),) = snapshot.fetch("SELECT count(*) FROM datum WHERE seq > ?", (self.last,))
        rows = _rows(snapshot)
        # Not all removals are noted as deletions: those of second copies are not.
        if rows is not None and self.rows is not None and rows - added + aged != self.rows:
            raise changed(state, _GONE)
        if added:
            # With a plus: else SQLite scans all rows by number.
            state = replace(state, sql=f"+datum.seq <= {self.last} AND ({state.sql})", last=self.last)
        kept = [*self._kept(state, opened)] if aged else []
        if sum(each.estimate for each in kept) != aged:
            raise changed(state, f"{REPLACED}, and what was kept of them is gone")
        return state, kept

    def _kept(self, state: IndexState, opened: Opened) -> Iterator[Partition]:
        """Yield partitions with the rows of segments that were dropped since; the newest generation has all of them."""
        sql = "SELECT datum.seq FROM deletion CROSS JOIN datum ON datum.seq = deletion.datum"
        sql += " WHERE deletion.seq > ? AND deletion.datum <= ? AND forgotten = ?"
        known: set[int] = set()
        for each in sorted(replaced(opened.index.directory), key=lambda each: each.generation, reverse=True):
            with opened.index.snapshot() as snapshot:
                numbers = replaced_rows.read(snapshot, opened.index.directory.path / (each.name + ROWS))
                if numbers is None or numbers.uuid != self.uuid or numbers.seq < self.seq:
                    continue
                found = {seq for (seq,) in snapshot.fetch(sql, (self.seq, self.last, int(Removal.AGED_AND_KEPT)))}
                if not found or found & known:  # the latter: a repack replaced it, before its data were dropped
                    continue
                known |= found
                ((deleted,),) = snapshot.fetch(f"SELECT {DELETED} FROM segment")
            of_then = replace(state, seq=self.seq, generation=each.generation)
            condition = f"+datum.segment = {each.generation}"
            yield Partition(of_then, condition, [], (each.generation,), deleted=deleted, estimate=len(found))


def _rows(snapshot: Snapshot) -> int | None:
    sql = "SELECT ifnull(sum(count), 0), EXISTS (SELECT 1 FROM segment WHERE summed IS NULL) FROM day_sum"
    ((count, is_unknown),) = snapshot.fetch(sql)
    return None if is_unknown else int(count)
