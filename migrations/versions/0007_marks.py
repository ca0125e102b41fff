"""Give each bit of `unread` a column, and record which damage may hide data."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# The end of the text of damage that may hide data: until revision 6 only the text said so.
_HIDES = "to have them back, put the file back from a backup, and fix again"

_STATEMENTS = (
    "ALTER TABLE segment ADD COLUMN has_unknown INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE segment ADD COLUMN copies INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE segment ADD COLUMN shared INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE segment ADD COLUMN unproven INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE segment ADD COLUMN hides_data INTEGER DEFAULT 0 NOT NULL",
    f"""
    UPDATE segment SET
        has_unknown = unread & 1,
        copies = min(2, (unread & 6) / 2),
        shared = (unread & 8) / 8,
        unproven = (unread & 16) / 16,
        hides_data = ifnull(substr(checked, -{len(_HIDES)}) = '{_HIDES}', 0)
    """,
    "ALTER TABLE segment DROP COLUMN unread",
    "ALTER TABLE segment RENAME COLUMN checked TO damage",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
