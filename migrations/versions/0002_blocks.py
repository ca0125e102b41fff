"""Blocks of compressed segments: where each stands; and how far a segment's decompressed bytes go.

In what revision 1 knows, lines, the decompressed bytes are the file's own.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE segment ADD COLUMN length INTEGER DEFAULT 0 NOT NULL",
    'ALTER TABLE segment ADD COLUMN "count" INTEGER DEFAULT 0 NOT NULL',
    "ALTER TABLE segment ADD COLUMN compressed INTEGER DEFAULT 0 NOT NULL",
    "UPDATE segment SET length = size",
    """
    CREATE TABLE block (
        segment INTEGER NOT NULL,
        "offset" INTEGER NOT NULL,
        position INTEGER NOT NULL,
        stored INTEGER NOT NULL,
        PRIMARY KEY (segment, "offset")
    ) STRICT, WITHOUT ROWID
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
