"""The state of an index, whose rows are returned later: with the connector that of a load, else that of a plan.

A datum keeps its number until it is deleted, in whatever segment it is, and new data have higher numbers. So the rows
of the state are those with numbers up to the last one of that time, if none was deleted since. Maintenance changes only
where they are. What it deletes by age can be kept for a while: see `keep_replaced` in `ondisk.segments.replaced`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from ondisk.dataset.access import Opened
from ondisk.errors import IntegrityError, SegmentMissing, StateError
from ondisk.index import Snapshot, replaced_rows, segment_rows
from ondisk.index.changes import OWN, Removal, expired, session_at
from ondisk.segments.generations import ROWS
from ondisk.segments.replaced import replaced

_GONE = "data were deleted or replaced"


class Pinned(NamedTuple):
    """What identifies the state.

    Attributes:
        uuid, inode: identify the index; a rebuilt one has others.
        seq: the highest number of a datum or a deletion.
        last: the highest number that a datum may have: `seq`, unless a replica has numbered data itself.
        rows: how many it has; None if the index has not counted them.
        session: who made the change `seq`; another one after an earlier state was put back.
    """

    uuid: str
    inode: int | None
    seq: int
    last: int
    rows: int | None
    session: int

    @classmethod
    def of(cls, opened: Opened, snapshot: Snapshot) -> Pinned:
        """Return the state of a snapshot. Cost: a row of the index for each segment and day."""
        known = snapshot.dataset()
        sql = "SELECT ifnull(sum(count), 0), EXISTS (SELECT 1 FROM segment WHERE summed IS NULL) FROM day_sum"
        ((count, is_unknown),) = snapshot.fetch(sql)
        seq, rows = known["seq"], None if is_unknown else int(count)
        last, session = max(seq, segment_rows.last_seq(snapshot)), session_at(snapshot, seq)
        return cls(str(known["uuid"]), opened.index.inode, seq, last, rows, session)

    def kept(self, opened: Opened, snapshot: Snapshot) -> list[str]:
        """Raise unless a snapshot, and what is kept, have all rows of this state.

        Returns:
            The files with rows of segments that were too old, and dropped since; see `kept_rows`.

        Raises:
            StateError: rows of this state were deleted or replaced since, or may have been.

        Cost: that of `of`, and a row of the index for each datum that was added since.
        """
        now, path = Pinned.of(opened, snapshot), str(opened.index.directory.path)
        if (now.uuid, now.inode) != (self.uuid, self.inode):
            raise changed(path, "its index was rebuilt")
        if session_at(snapshot, self.seq) != self.session:
            raise changed(path, "an earlier state was put back, or data have other numbers")
        aged = 0
        if now.seq != self.seq:
            if expired(snapshot) > self.seq:
                raise changed(path, "so much that the index has forgotten which data were deleted")
            sql = f"SELECT ifnull(sum(forgotten = ?), 0), count(*) FROM deletion WHERE seq > ? AND {self.has('datum')}"
            ((aged, gone),) = snapshot.fetch(sql, (int(Removal.AGED_AND_KEPT), self.seq))
            if gone > aged:
                raise changed(path, _GONE)
        ((added,),) = snapshot.fetch(f"SELECT count(*) FROM datum WHERE seq > ? AND NOT {self.has('seq')}", (self.seq,))
        # Not all removals are noted as deletions: those of second copies are not.
        if now.rows is not None and self.rows is not None and now.rows - added + aged != self.rows:
            raise changed(path, _GONE)
        found = dict(self._kept(opened)) if aged else {}
        if sum(found.values()) != aged:
            raise self.lost(opened)
        return [*found]

    def lost(self, opened: Opened) -> StateError:
        path = str(opened.index.directory.path)
        return changed(path, "segments were removed, and what was kept of them is gone or damaged")

    def has(self, seq: str) -> str:
        """Return the condition that this state may have a datum with a number, for an SQL expression of it."""
        return f"(+{seq} <= {self.seq} OR +{seq} BETWEEN {OWN} AND {self.last})"

    def aged(self) -> tuple[str, list[int]]:
        """Return the condition for rows of this state that were dropped since, in what is kept of a segment."""
        gone = f"SELECT datum FROM deletion WHERE deletion.seq > ? AND {self.has('datum')} AND forgotten = ?"
        return f"datum.seq IN ({gone})", [self.seq, int(Removal.AGED_AND_KEPT)]

    def _kept(self, opened: Opened) -> Iterator[tuple[str, int]]:
        """Yield the files with rows that were dropped since, and how many; the newest file has all of a segment's."""
        known: set[int] = set()
        condition, values = self.aged()
        for each in sorted(replaced(opened.index.directory), key=lambda each: each.at, reverse=True):
            name = each.name + ROWS
            with contextlib.suppress(Gone), kept_rows(name, opened, self.uuid) as snapshot:
                found = {seq for (seq,) in snapshot.fetch(f"SELECT seq FROM datum WHERE {condition}", values)}
                if found and not found & known:  # the latter: a killed repack left older rows
                    known |= found
                    yield name, len(found)


@contextlib.contextmanager
def kept_rows(name: str, opened: Opened, uuid: str) -> Iterator[Snapshot]:
    """Open what was kept of a segment of the index with this UUID, for the length of a block.

    Raises:
        Gone: it, or what the block reads of the segment, is not there any more, not whole, or of another index.
    """
    try:
        with opened.index.snapshot() as snapshot:
            if replaced_rows.read(snapshot, opened.index.directory.held(name)) != uuid:
                raise Gone
            yield snapshot
    except (SegmentMissing, IntegrityError) as error:  # its hint is about the segment and the index as they are now
        raise Gone from error


class Gone(Exception):
    """What was kept of a segment was removed or damaged."""


def changed(path: str, what: str) -> StateError:
    """Return the error for a state that can no longer be read."""
    hint = "Load the DataFrame again: spark.read.format('ondisk').load(…); create a view of it again, too."
    return StateError(f"{path} has changed since this DataFrame was planned: {what}", hint=hint, path=path)
