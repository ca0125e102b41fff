"""Move an `index.sqlite` from its revision to a later one, with Alembic.

A new index does not need it: `Columns.create_statements` creates it at the newest revision.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from ondisk.errors import IndexCorrupt

if TYPE_CHECKING:
    from alembic.config import Config


def location() -> Path:
    """Return the folder of Alembic's environment and revisions, in the installed package or next to it."""
    package = Path(__file__).parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def upgrade(connection: sqlite3.Connection, revision: str = "head") -> None:
    """Apply the revisions that an index lacks, up to `revision`.

    Args:
        connection: writes to the index; not in a transaction; stays open.

    Raises:
        sqlite3.Error: an upgrade failed.
        IndexCorrupt: the index has an unknown revision.

    Durability: one transaction; a crash leaves the index at its old revision or at the new one.
    Locks: the caller holds the writers' lock.
    """
    from alembic import command
    from alembic.util import CommandError
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    settings = config()
    with engine.connect() as bound:
        settings.attributes["connection"] = bound
        try:
            command.upgrade(settings, revision)
        except DBAPIError as error:
            raise (error.orig or error) from error
        except CommandError as error:
            raise IndexCorrupt(f"it cannot be moved to a newer revision: {error}") from error


def config() -> Config:
    """Return what Alembic needs to know: where the revisions are."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(location()).replace("%", "%%"))
    return settings
