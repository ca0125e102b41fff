"""What an index file must be before it is used: its revision, its tables, its rules, and the configuration it was built
for."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

from ondisk.config import DatasetConfig
from ondisk.errors import IndexCorrupt, NeedsMigration, VersionTooNew, command
from ondisk.filesystem import Directory
from ondisk.formats import RULES
from ondisk.index.connection import INDEX, damaged
from ondisk.index.tables import REVISION, Columns

_RULES = "rules"
_BUILT_FOR = ("step", "unique", "index", "fields")


def built_for_values(config: DatasetConfig) -> dict[str, Any]:
    """Return the keys of a configuration that an index is built for, with plain values."""
    return {
        "step": config.step.value,
        "unique": list(config.unique),
        "index": list(config.index),
        "fields": {name: kind.value for name, kind in config.fields.items()},
    }


def dump(config: DatasetConfig) -> str:
    """Return what an index is built for, as JSON: keys of a configuration, and the rules of this ondisk."""
    return json.dumps({**built_for_values(config), _RULES: RULES})


def built_for(connection: sqlite3.Connection, config: DatasetConfig, directory: Directory) -> DatasetConfig:
    """Return the configuration that the index was built for, with the keys that it does not depend on from `config`."""
    values = _values(connection, directory)
    values.pop(_RULES, None)
    if values == built_for_values(config):
        return config
    try:
        return DatasetConfig.from_mapping({"format": config.format, **{key: values[key] for key in _BUILT_FOR}})
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(directory, error) from None


def other_rules(connection: sqlite3.Connection, directory: Directory) -> list[str]:
    """Return the formats whose data an index has by older rules than those of this ondisk; mostly none.

    Raises:
        VersionTooNew: it has them by newer ones.
    """
    found = _values(connection, directory).get(_RULES, {})
    if found == RULES:
        return []
    if not isinstance(found, dict) or not all(type(each) is int for each in found.values()):
        raise _unreadable(directory, f"its rules are {found!r}")
    newer = [name for name, number in found.items() if number > RULES.get(name, 0)]
    if newer:
        problem = f"has data of {newer[0]} by rules that this ondisk does not know yet"
        raise VersionTooNew(f"{directory.path / INDEX} {problem}", hint="Use that newer version; nothing was changed.")
    return [name for name, number in RULES.items() if found.get(name, 1) < number]


def check_rules(connection: sqlite3.Connection, directory: Directory) -> None:
    """Raise unless an index has all data by the rules of this ondisk."""
    if others := other_rules(connection, directory):
        hint = f"{command('migrate', directory.path)} shows what to do, and reads these data again with --yes."
        problem = f"has data of {', '.join(others)} by older rules than those of this ondisk"
        raise NeedsMigration(f"{directory.path / INDEX} {problem}", hint=hint)


def _values(connection: sqlite3.Connection, directory: Directory) -> dict[str, Any]:
    try:
        ((text,),) = connection.execute("SELECT config FROM dataset").fetchall()
        return dict(json.loads(text))
    except (sqlite3.OperationalError, ValueError, TypeError, RecursionError) as error:
        raise _unreadable(directory, error) from None


def _unreadable(directory: Directory, error: object) -> IndexCorrupt:
    return _corrupt(directory, f"its table dataset cannot be read: {error}")


def revision_of(connection: sqlite3.Connection, directory: Directory) -> str:
    """Return the revision of an index, which this ondisk or an older one created."""
    try:
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.OperationalError as error:
        raise _corrupt(directory, str(error)) from None
    found = rows[0][0] if len(rows) == 1 else None
    if not isinstance(found, str) or not re.fullmatch("[0-9]{4}", found):
        raise _corrupt(directory, f"its revision is {rows!r}")
    if found > REVISION:
        hint = "Use that newer version; nothing was changed."
        path = directory.path / INDEX
        raise VersionTooNew(f"{path} has revision {found}, this ondisk knows up to {REVISION}", hint=hint)
    return found


def check_revision(connection: sqlite3.Connection, directory: Directory) -> None:
    """Raise unless an index has the revision of this ondisk."""
    found = revision_of(connection, directory)
    if found != REVISION:
        hint = f"{command('migrate', directory.path)} shows what to do, and does it with --yes."
        path = directory.path / INDEX
        raise NeedsMigration(f"{path} has revision {found}, this ondisk needs {REVISION}", hint=hint)


def check_tables(connection: sqlite3.Connection, columns: Columns, directory: Directory) -> None:
    """Raise unless an index has the tables that ondisk creates: no triggers, no views instead, no other columns."""
    triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    if triggers:
        raise _corrupt(directory, f"it has a trigger, {triggers[0][0]!r}")
    sql = (  # one statement for all: a worker opens an index for each task
        "SELECT t.name, x.name, x.hidden FROM pragma_table_list t JOIN pragma_table_xinfo(t.name) x"
        " WHERE t.schema = 'main' AND t.type = 'table' AND t.strict AND t.name IN (SELECT value FROM json_each(?))"
    )
    present: dict[str, list[tuple[str, int]]] = {}
    for table, column, hidden in connection.execute(sql, (json.dumps([*columns.of_table]),)):
        present.setdefault(table, []).append((column, hidden))
    for table, names in columns.of_table.items():
        found = present.get(table)
        if found is None:
            raise _corrupt(directory, f"it has no table {table!r} with strict types")
        if sorted(found) != sorted((name, 0) for name in names):
            raise _corrupt(directory, f"the table {table!r} has other columns: {found!r}")


def _corrupt(directory: Directory, problem: str) -> IndexCorrupt:
    return damaged(directory, f" is not an index of this dataset: {problem}")
