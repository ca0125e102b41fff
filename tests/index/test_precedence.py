"""Which of the data with the same unique values counts."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondisk.config import DatasetConfig
from ondisk.index.precedence import Found, Precedence, counts_in_files

FIELDS = {"station": "integer", "version": "integer"}
CONFIGS = [{"replace": "no"}, {"replace": "yes"}, {"replace": "newer", "version_field": "version"}]
VERSIONS = st.lists(st.none() | st.integers(-2, 2), min_size=1, max_size=6)


def one_by_one(precedence, rows):
    """Return the row that counts in the end, and how many replaced another one."""
    held, replaced = rows[0], 0
    for row in rows[1:]:
        if not precedence.keeps(held, row):
            held, replaced = row, replaced + 1
    return held, replaced


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["replace"])
@given(versions=VERSIONS)
def test_a_set_of_data_and_the_same_data_one_by_one_leave_the_same_datum(config, versions):
    precedence = Precedence.of(DatasetConfig("jsonl", "daily", unique=["station"], fields=FIELDS, **config))
    rows = [(seq, 0, 1, 10 * seq, 10, 7, version) for seq, version in enumerate(versions, 1)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE datum (seq, f_version)")
        connection.executemany("INSERT INTO datum VALUES (?, ?)", ((row[0], row[-1]) for row in rows))
        (first, *_), *_ = connection.execute(f"SELECT seq FROM datum ORDER BY {precedence.order}").fetchall()
        counting, replaced = one_by_one(precedence, rows)
        assert first == counting[0]
        if precedence.version:
            before = "SELECT f_version AS v, max(f_version) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING EXCLUDE CURRENT"
            sql = (
                f"SELECT count(*) FROM ({before} ROW) AS most FROM datum) WHERE {precedence.keeps_in_sql('most', 'v')}"
            )
            ((kept,),) = connection.execute(sql).fetchall()
            assert len(rows) - kept - replaced == (versions[0] is not None)


def test_only_a_version_that_is_not_older_replaces():
    precedence = Precedence("newer", "version", 0)
    replaced = [
        (old, new) for old, new in ((1, 2), (2, 2), (2, 1), (None, 1), (1, None)) if not precedence.keeps([old], [new])
    ]
    assert replaced == [(1, 2), (2, 2), (None, 1)]


def test_a_datum_in_a_file_that_can_be_read_counts_then_the_later_one_then_the_one_that_was_found_first():
    assert counts_in_files(Found(False, (2,), 9), Found(True, (1,), 0))
    assert counts_in_files(Found(order=(1,), offset=9), Found(order=(2,)))
    assert counts_in_files(Found(offset=1), Found(offset=2))
    assert not counts_in_files(Found(), Found())
