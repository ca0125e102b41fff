"""The blocks of compressed segments, and the length of a segment's decompressed bytes.

Revision 1 knows only formats of lines, whose bytes are not compressed: there the length is the size of the file.
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
