"""Move an `index.sqlite` from the revision it has to a later one, with Alembic.

A new index needs none of this: `Tables.create_statements` makes it at the newest revision and stamps it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.config import Config


def location() -> Path:
    """Find the folder of Alembic's environment and revisions: inside an installed package, beside a checkout's."""
    package = Path(__file__).parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def head() -> str:
    """Name the newest revision."""
    from alembic.script import ScriptDirectory

    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def upgrade(connection: sqlite3.Connection, revision: str = "head") -> None:
    """Carry out the revisions that an index lacks, up to `revision`.

    Args:
        connection: to the index, for writing, outside of a transaction; it stays open.

    Durability: one transaction; a crash leaves the index at its old revision or at the new one.
    Locks: the caller holds the writers' lock.
    """
    from alembic import command
    from sqlalchemy import create_engine
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = _config()
    with engine.connect() as bound:
        config.attributes["connection"] = bound
        command.upgrade(config, revision)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(location()).replace("%", "%%"))
    return config
