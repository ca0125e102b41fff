"""Alembic's environment for `index.sqlite`: it uses the connection that `ondisk.index.convert` passes.

All revisions of one upgrade are one transaction. This needs two settings: by default Alembic treats SQLite as a
database without transactional DDL, and Python's sqlite3 begins no transaction before CREATE or ALTER.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    context.run_migrations()
