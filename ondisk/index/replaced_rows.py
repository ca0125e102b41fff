"""The rows of a segment that is dropped, in a file of their own, for readers of an older state.

The file is a SQLite database with the rows of one segment, in the tables `segment`, `datum`, `block` and `value` of the
index (see `ondisk.index.tables`), and with the UUID of the index in the table `replaced`: the numbers of the data mean
something only there.
"""

from __future__ import annotations

from ondisk.index.connection import SQLITE_ERRORS, address
from ondisk.index.snapshot import Segment, Snapshot

_TABLES = ("segment", "datum", "block", "value")
_SCHEMA = "replaced_rows"


def copy(snapshot: Snapshot, segment: Segment, path: str) -> None:
    """Copy the rows of a segment to an empty file. The snapshot is of no use after that.

    Durability: SQLite syncs the file.
    """
    snapshot.attach(address(path, "mode=rw"), _SCHEMA)
    execute = snapshot.connection.execute
    execute(f"PRAGMA {_SCHEMA}.journal_mode=OFF").fetchone()
    snapshot.copy(segment, _SCHEMA)
    execute(f"CREATE UNIQUE INDEX {_SCHEMA}.datum_by_seq ON datum (seq)")
    execute(f"CREATE INDEX {_SCHEMA}.datum_by_reftime ON datum (reftime)")
    execute(f"CREATE TABLE {_SCHEMA}.replaced AS SELECT uuid FROM main.dataset")
    execute("COMMIT")


def read(snapshot: Snapshot, path: str) -> str | None:
    """Let a snapshot read the rows in a file, in place of those in the index; return the UUID of their index.

    Returns:
        None if the file is not whole, or ondisk did not write it. Then the snapshot is of no use.
    """
    try:
        snapshot.attach(address(path, "mode=ro&immutable=1"), _SCHEMA)
        execute = snapshot.connection.execute
        for table in _TABLES:  # SQLite looks for names without a schema here first
            execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM {_SCHEMA}.{table}")
        rows = execute(f"SELECT uuid FROM {_SCHEMA}.replaced, segment").fetchall()
    except SQLITE_ERRORS:
        return None
    return str(rows[0][0]) if len(rows) == 1 else None
