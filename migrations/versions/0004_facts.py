"""Facts about each segment's file, which show that another program changed it; lost data; sessions; archives; sources.

What is NULL in rows of an older revision is filled in when the segment is next written or read as a whole.
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_STATEMENTS = (
    "ALTER TABLE segment ADD COLUMN inode INTEGER",
    "ALTER TABLE segment ADD COLUMN tail INTEGER",
    "ALTER TABLE segment ADD COLUMN checksum INTEGER",
    "ALTER TABLE segment ADD COLUMN unread INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE segment ADD COLUMN deleted INTEGER",
    "ALTER TABLE segment ADD COLUMN kind INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE deletion ADD COLUMN forgotten INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE dataset ADD COLUMN lost INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE dataset ADD COLUMN expired INTEGER DEFAULT 0 NOT NULL",
    """
    CREATE TABLE session (
        first INTEGER NOT NULL,
        id INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        PRIMARY KEY (first)
    ) STRICT
    """,
    """
    CREATE TABLE archive (
        uuid TEXT NOT NULL,
        name TEXT NOT NULL,
        "begin" INTEGER,
        "end" INTEGER,
        seq INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (uuid)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE archived_deletion (
        archive TEXT NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        PRIMARY KEY (archive, first)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE source (
        uuid TEXT NOT NULL,
        replica TEXT NOT NULL,
        session INTEGER NOT NULL,
        "offset" INTEGER NOT NULL,
        index_start INTEGER NOT NULL,
        key BLOB NOT NULL,
        host TEXT NOT NULL,
        port INTEGER NOT NULL,
        bytes_read INTEGER NOT NULL,
        committed_at INTEGER NOT NULL,
        PRIMARY KEY (uuid)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE difference (
        seq INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (seq)
    ) STRICT
    """,
    # What a process killed before this upgrade has replaced in `.archive/last`; '' stands for that archive.
    """
    INSERT INTO archived_deletion
    SELECT '', first, last FROM (SELECT min(seq) AS first, max(seq) AS last FROM deletion) WHERE first IS NOT NULL
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
