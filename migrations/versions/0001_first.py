"""The first schema: dataset, segment, value, deletion, and datum without declared fields.

Frozen: it stays as it is when `ondisk.index.tables` changes. The columns of declared fields, the indices and the view
come from there (`Columns`), as in a new dataset.
There is no downgrade: an upgrade begins with a backup.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = (
    """
    CREATE TABLE dataset (
        id INTEGER NOT NULL PRIMARY KEY,
        uuid TEXT NOT NULL,
        seq INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        config TEXT NOT NULL,
        committed_at INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE segment (
        id INTEGER NOT NULL PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        format TEXT NOT NULL,
        size INTEGER NOT NULL,
        "begin" INTEGER NOT NULL,
        "end" INTEGER NOT NULL,
        mtime INTEGER NOT NULL,
        checked_at INTEGER,
        checked TEXT
    ) STRICT
    """,
    """
    CREATE TABLE value (
        id INTEGER NOT NULL PRIMARY KEY,
        value ANY NOT NULL UNIQUE
    ) STRICT
    """,
    """
    CREATE TABLE deletion (
        seq INTEGER NOT NULL PRIMARY KEY,
        datum INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE datum (
        seq INTEGER NOT NULL PRIMARY KEY,
        reftime INTEGER NOT NULL,
        segment INTEGER NOT NULL,
        "offset" INTEGER NOT NULL,
        size INTEGER NOT NULL
    ) STRICT
    """,
)


def upgrade() -> None:
    for table in _TABLES:
        op.execute(table)
