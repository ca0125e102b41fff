"""One index for a dataset and its archive. `ondisk.maintenance.migrate` takes the indices of archives over."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    CREATE TABLE former (
        uuid TEXT NOT NULL,
        seq INTEGER NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (uuid)
    ) STRICT, WITHOUT ROWID
    """,
    "INSERT INTO former SELECT uuid, seq, \"count\" FROM archive WHERE name = ''",
    "DROP TABLE archive",
    "DROP TABLE archived_deletion",
    """
    CREATE TABLE moved (
        generation INTEGER NOT NULL,
        name TEXT NOT NULL,
        format TEXT NOT NULL,
        size INTEGER NOT NULL,
        mtime INTEGER,
        inode INTEGER,
        tail INTEGER,
        checksum INTEGER,
        PRIMARY KEY (generation)
    ) STRICT
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
