"""The rows of a segment whose generation is replaced, in a file of their own, for readers of an older plan.

The file is a SQLite database with the rows of one segment, in the tables `segment`, `datum`, `block` and `value` of the
index (see `ondisk.index.tables`), and with the numbers of the index when they were copied:

    replaced    one row: UUID, `seq` and generation

Who replaces or drops a generation copies its rows in the state that was committed before, and takes a new generation in
the commit. So exactly the plans with this UUID, and with numbers up to these, had the segment with these rows, but for
data that were added or deleted between plan and copy: those added have higher numbers, and the index has noted the
deletions.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ondisk.index.connection import SQLITE_ERRORS, address
from ondisk.index.snapshot import Segment, Snapshot

_TABLES = ("segment", "datum", "block", "value")
_SCHEMA = "replaced_rows"


class Numbers(NamedTuple):
    """Whose rows a file has: UUID, `seq` and generation of the index; name and generation of the segment."""

    uuid: str
    seq: int
    generation: int
    name: str
    id: int


def copy(snapshot: Snapshot, segment: Segment, path: Path) -> None:
    """Copy the rows of a segment to an empty file. The snapshot is of no use after that.

    Durability: SQLite syncs the file.
    """
    snapshot.attach(address(path, "mode=rw"), _SCHEMA)
    execute = snapshot.connection.execute
    execute(f"PRAGMA {_SCHEMA}.journal_mode=OFF").fetchone()
    snapshot.copy(segment, _SCHEMA)
    execute(f"CREATE UNIQUE INDEX {_SCHEMA}.datum_by_seq ON datum (seq)")
    execute(f"CREATE INDEX {_SCHEMA}.datum_by_reftime ON datum (reftime)")
    execute(f"CREATE TABLE {_SCHEMA}.replaced AS SELECT uuid, seq, generation FROM main.dataset")
    execute("COMMIT")


def read(snapshot: Snapshot, path: Path) -> Numbers | None:
    """Let a snapshot read the rows in a file, in place of those in the index; return whose they are.

    Returns:
        None if the file is not whole, or ondisk did not write it. Then the snapshot is of no use.
    """
    try:
        snapshot.attach(address(path, "mode=ro&immutable=1"), _SCHEMA)
        execute = snapshot.connection.execute
        for table in _TABLES:  # SQLite looks for names without a schema here first
            execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM {_SCHEMA}.{table}")
        rows = execute(f"SELECT replaced.*, name, id FROM {_SCHEMA}.replaced, segment").fetchall()
    except SQLITE_ERRORS:
        return None
    return Numbers(*rows[0]) if len(rows) == 1 else None
