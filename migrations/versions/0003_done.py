"""The log of imports: marks of what was stored, so that it is not stored twice."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE done (
            source TEXT NOT NULL,
            part ANY NOT NULL,
            PRIMARY KEY (source, part)
        ) STRICT, WITHOUT ROWID
        """
    )
