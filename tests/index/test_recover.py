"""What a new index takes from a damaged one: rows that can be read. Its own errors are not those of the damaged one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from ondisk.config import DatasetConfig
from ondisk.index.recover import _copy_tables
from ondisk.index.tables import Columns

CONFIG = DatasetConfig(format="vm2", step="daily")


@pytest.fixture
def both() -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    with ExitStack() as stack:
        source, index = (stack.enter_context(closing(sqlite3.connect(":memory:"))) for _ in range(2))
        for connection in (source, index):
            for statement in Columns(CONFIG).create_statements():
                connection.execute(statement)
        source.executemany("INSERT INTO done VALUES ('folder', ?)", [(f"{number:080}",) for number in range(999)])
        yield source, index


def test_that_the_disk_is_full_for_the_new_index_is_not_taken_for_the_end_of_a_table(both):
    source, index = both
    (pages,) = index.execute("PRAGMA page_count").fetchone()
    index.execute(f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        _copy_tables(source, index, Columns(CONFIG))


def test_a_row_that_the_new_index_refuses_keeps_no_other_from_it(both):
    source, index = both
    source.execute("DROP TABLE former")
    source.execute("CREATE TABLE former (uuid, seq, count)")
    source.executemany("INSERT INTO former VALUES (?, ?, 0)", [("a", 1), ("b", "text"), ("c", None), ("d", 2)])
    _copy_tables(source, index, Columns(CONFIG))
    assert index.execute("SELECT uuid FROM former ORDER BY uuid").fetchall() == [("a",), ("d",)]
    assert index.execute("SELECT count(*) FROM done").fetchone() == (999,)
