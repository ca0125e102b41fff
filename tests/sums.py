"""The sums of an index, compared with its rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from ondisk.index import INDEX
from ondisk.step import DAY

_DAY = f"(reftime - ((reftime % {DAY}) + {DAY}) % {DAY}) / {DAY}"
_SUMS = "segment, {}, count(*), sum(size), min(reftime), max(reftime) FROM datum GROUP BY 1, 2"


def wrong_sums(path: Path) -> list[Any]:
    """Return what differs between the sums in the index of a dataset and its rows; empty if they are exact."""
    with closing(sqlite3.connect(path / INDEX)) as connection:
        return differences(connection)


def differences(connection: sqlite3.Connection) -> list[Any]:
    """Return sums that are not those of the rows, and sums of rows that are not there."""

    def rows(sql: str, *values: Any) -> set[tuple[Any, ...]]:
        return {*connection.execute(f"SELECT {sql}", values)}

    found = [rows(_SUMS.format(_DAY)) ^ rows("* FROM day_sum")]
    counts = "SELECT count(*) FROM datum WHERE segment = segment.id"
    found.append(rows(f"id, summed FROM segment WHERE summed IS NOT ({counts})".replace("= segment.id", "= id")))
    (config,) = connection.execute("SELECT config FROM dataset").fetchone()
    for name in {*json.loads(config)["index"]} - {"reftime"}:
        stored = rows("segment, day, value, count FROM value_count WHERE field = ?", name)
        too_many = {row[:2] for row in stored if row[2] == ""}
        exact = rows(f"segment, {_DAY}, ifnull(f_{name}, x''), count(*) FROM datum GROUP BY 1, 2, 3")
        found.append({row for row in exact if row[:2] not in too_many} ^ {row for row in stored if row[2] != ""})
    return [each for each in found if each]
