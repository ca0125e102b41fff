"""${message}

Revision: ${up_revision}, after ${down_revision | comma,n}.
"""

from __future__ import annotations

from alembic import op

revision = "${up_revision}"
down_revision = "${down_revision}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
