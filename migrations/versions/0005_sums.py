"""Sums of the data of each segment and day, for summaries. `ondisk.index.convert` fills them."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE segment ADD COLUMN summed INTEGER",
    """
    CREATE TABLE day_sum (
        segment INTEGER NOT NULL,
        day INTEGER NOT NULL,
        count INTEGER NOT NULL,
        size INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        PRIMARY KEY (segment, day)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE value_count (
        segment INTEGER NOT NULL,
        day INTEGER NOT NULL,
        field TEXT NOT NULL,
        value ANY NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (segment, day, field, value)
    ) STRICT, WITHOUT ROWID
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
