"""Alembic's environment for `index.sqlite`: works on the connection that `ondisk.index.migrations` gives it.

All revisions of one upgrade are one transaction. SQLite can do that, but has to be told: Alembic takes it for a
database that cannot, and Python's sqlite3 begins no transaction before CREATE or ALTER.
"""

from __future__ import annotations

from typing import Any

from alembic import context

from ondisk.config import DatasetConfig
from ondisk.index.tables import Any_, Tables
from ondisk.step import Step


def compare_type(_context: Any, _column: Any, _declared: Any, _found_type: Any, declared_type: Any) -> bool | None:
    """Tell `alembic check` that ANY did not change: SQLAlchemy takes it for NUMERIC when it reads a schema back."""
    return False if isinstance(declared_type, Any_) else None


connection = context.config.attributes["connection"]
# What `alembic check` compares with: a dataset without declared fields; their columns are not Alembic's matter.
target_metadata = Tables(DatasetConfig("vm2", Step.DAILY)).metadata

context.configure(
    connection=connection, target_metadata=target_metadata, compare_type=compare_type, transactional_ddl=True
)
with context.begin_transaction():
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    context.run_migrations()
