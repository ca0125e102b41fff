"""Alembic's environment for `index.sqlite`: it uses the connection that `ondisk.index.migrations` passes.

All revisions of one upgrade are one transaction. This needs two settings: by default Alembic treats SQLite as a
database without transactional DDL, and Python's sqlite3 begins no transaction before CREATE or ALTER.
"""

from __future__ import annotations

from typing import Any

from alembic import context

from ondisk.config import DatasetConfig
from ondisk.index.tables import Any_, Tables
from ondisk.step import Step


def compare_type(_context: Any, _column: Any, _declared: Any, _found_type: Any, declared_type: Any) -> bool | None:
    """Return False for the type ANY, which SQLAlchemy reads back as NUMERIC: `alembic check` finds no change then."""
    return False if isinstance(declared_type, Any_) else None


connection = context.config.attributes["connection"]
# `alembic check` compares with a dataset without declared fields: Alembic does not handle their columns.
target_metadata = Tables(DatasetConfig("vm2", Step.DAILY)).metadata

context.configure(
    connection=connection, target_metadata=target_metadata, compare_type=compare_type, transactional_ddl=True
)
with context.begin_transaction():
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    context.run_migrations()
