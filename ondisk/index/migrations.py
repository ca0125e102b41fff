"""Move an `index.sqlite` from the revision it has to a later one, with Alembic.

A new index needs none of this: `Tables.create_statements` makes it at the newest revision and stamps it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from ondisk.errors import IndexCorrupt
from ondisk.index.connection import RESTORE

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

    Raises:
        sqlite3.Error: it could not be done.
        IndexCorrupt: it has a revision that never was.

    Durability: one transaction; a crash leaves the index at its old revision or at the new one.
    Locks: the caller holds the writers' lock.
    """
    from alembic import command
    from alembic.util import CommandError
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = _config()
    with engine.connect() as bound:
        config.attributes["connection"] = bound
        try:
            command.upgrade(config, revision)
        except DBAPIError as error:
            raise (error.orig or error) from error
        except CommandError as error:
            raise IndexCorrupt(f"the index cannot be moved to a newer revision: {error}", hint=RESTORE) from error


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(location()).replace("%", "%%"))
    return config
