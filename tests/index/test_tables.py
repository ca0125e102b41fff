from __future__ import annotations

import sqlite3

import kit
import pytest

from ondisk import DatasetConfig
from ondisk.index.tables import REVISION, Columns

# An item is stored as a text is.
EVERY_TYPE = {name: kind for name, kind in kit.EVERY_TYPE.items() if kind != "item"}


def config_of(**values):
    return DatasetConfig.from_mapping({"format": "jsonl", "step": "daily", "fields": EVERY_TYPE} | values)


def columns_of(**values):
    return Columns(config_of(**values))


@pytest.fixture
def made():
    """Return a function that creates an index in memory and returns the connection."""
    connections = []

    def make(**values):
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connections.append(connection)
        for statement in columns_of(**values).create_statements():
            connection.execute(statement)
        return connection

    yield make
    for connection in connections:
        connection.close()


def columns(connection, table):
    return {
        name: (kind, bool(required))
        for _, name, kind, required, *_ in connection.execute(f"PRAGMA table_info({table})")
    }


def indices(connection):
    return {
        name: sql.partition(" ON ")[2]
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql NOT NULL")
    }


def test_what_asking_knows_of_the_columns_is_what_there_is(made):
    connection = made()
    for table, names in columns_of().of_table.items():
        assert tuple(columns(connection, table)) == tuple(names)


@pytest.mark.check
def test_people_can_look_at_any_number_of_texts(made):
    texts = {f"text_{number}": "text" for number in range(100)}
    connection = made(fields=texts)
    connection.execute("INSERT INTO value VALUES (1, 'here')")
    connection.execute(
        "INSERT INTO segment (id, name, format, size, [begin], [end], mtime, length)"
        " VALUES (1, '2026/11-20.jsonl', 'jsonl', 0, 0, 1, 0, 0)"
    )
    connection.execute("INSERT INTO datum (seq, reftime, segment, offset, size, f_text_99) VALUES (1, 0, 1, 0, 1, 1)")
    assert connection.execute("SELECT text_98, text_99 FROM data").fetchall() == [(None, "here")]


def test_every_table_is_strict(made):
    connection = made()
    strict = {
        row[1]: row[5]
        for row in connection.execute("PRAGMA table_list")
        if row[2] == "table" and not row[1].startswith("sqlite_")
    }
    assert strict.pop("alembic_version") == 0
    names = ["dataset", "segment", "block", "datum", "value", "deletion", "done", "former", "moved", "session",
             "source", "difference", "day_sum", "value_count"]  # fmt: skip
    assert strict == dict.fromkeys(names, 1)


def test_blocks_are_found_by_their_segment_and_offset(made):
    connection = made()
    (without_rowid,) = connection.execute("SELECT wr FROM pragma_table_list WHERE name = 'block'").fetchone()
    assert without_rowid, "the key is the table: a block is found in one look"
    insert = "INSERT INTO block (segment, offset, position, stored) VALUES (?, ?, 19, 5)"
    connection.executemany(insert, [(1, 12), (1, 100), (2, 12)])
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(insert, (1, 100))
    (plan,) = connection.execute(
        "EXPLAIN QUERY PLAN SELECT * FROM block WHERE segment = 1 AND offset <= 50 ORDER BY offset"
    ).fetchall()
    assert plan[3] == "SEARCH block USING PRIMARY KEY (segment=? AND offset<?)"


def test_declared_fields_are_typed_columns_and_texts_are_ids(made):
    assert columns(made(), "datum") == {
        "seq": ("INTEGER", True),
        "reftime": ("INTEGER", True),
        "segment": ("INTEGER", True),
        "offset": ("INTEGER", True),
        "size": ("INTEGER", True),
        "f_station": ("INTEGER", False),
        "f_level": ("REAL", False),
        "f_product": ("INTEGER", True),
        "f_valid": ("INTEGER", False),
        "f_made": ("INTEGER", False),
        "f_key": ("INTEGER", True),
    }


def test_the_revision_is_written_as_alembic_writes_it(made):
    assert made().execute("SELECT version_num FROM alembic_version").fetchall() == [(REVISION,)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"datum_by_reftime": "datum (reftime)"}),
        ({"unique": ["reftime"]}, {"datum_unique": "datum (reftime)"}),
        (
            {"unique": ["station", "product", "reftime"]},
            {"datum_unique": "datum (reftime, ifnull(f_station, x''), f_product)"},
        ),
        (
            {"unique": ["level"]},
            {"datum_unique": "datum (ifnull(f_level, x''))", "datum_by_reftime": "datum (reftime)"},
        ),
        (
            {"index": ["product", "reftime"], "unique": ["reftime"]},
            {"datum_unique": "datum (reftime)", "datum_by_product": "datum (f_product, reftime)"},
        ),
    ],
)
def test_unique_is_an_index_reftime_first_and_each_index_ends_with_reftime(made, values, expected):
    assert indices(made(**values)) == expected


def test_missing_values_are_equal_under_unique(made):
    connection = made(unique=list(EVERY_TYPE))
    insert = columns_of(unique=list(EVERY_TYPE)).insert
    nothing = (None, None, 0, None, None, 0)
    connection.execute(insert, (1, 0, 1, 0, 1, *nothing))
    connection.execute(insert, (2, 5, 1, 0, 1, *nothing))
    assert connection.execute("SELECT seq FROM datum").fetchall() == [(1,)]


def test_without_unique_nothing_is_a_duplicate(made):
    connection, asked = made(), columns_of()
    for seq in (1, 2):
        connection.execute(asked.insert, (seq, 0, 1, 0, 1, None, None, 0, None, None, 0))
    assert connection.execute("SELECT count(*) FROM datum").fetchone() == (2,)
    assert asked.find.duplicate == ""


def test_a_duplicate_is_found_by_the_unique_index(made):
    values = {"unique": ["reftime", "station", "product"]}
    connection, asked = made(**values), columns_of(**values)
    row = (1, 5, 1, 0, 1, None, 1.5, 3, None, None, 0)
    connection.execute(asked.insert, row)
    assert connection.execute(asked.find.duplicate, asked.key_of(row)).fetchone() == row
    assert connection.execute(asked.find.duplicate, asked.key_of((*row[:7], 4, *row[8:]))).fetchone() is None
    (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {asked.find.duplicate}", asked.key_of(row)).fetchall()
    assert "USING INDEX datum_unique (reftime=? AND <expr>=? AND f_product=?)" in plan[3]


def test_the_view_shows_people_names_and_times(made):
    connection = made()
    connection.execute(
        "INSERT INTO segment (id, name, format, size, [begin], [end], mtime, length)"
        " VALUES (1, '1969/12-31.jsonl', 'jsonl', 5, 0, 1, 0, 5)"
    )
    connection.execute("INSERT INTO value VALUES (1, 'rain')")
    connection.execute("INSERT INTO datum VALUES (1, -1, 1, 0, 5, 7, 1.5, 1, 1, -1000000, 0)")
    connection.row_factory = sqlite3.Row
    (row,) = connection.execute("SELECT * FROM data").fetchall()
    assert dict(row) == {
        "reftime": "1969-12-31T23:59:59.999999Z",
        "station": 7,
        "level": 1.5,
        "product": "rain",
        "valid": 1,
        "made": "1969-12-31T23:59:59Z",
        "key": None,
        "segment": "1969/12-31.jsonl",
        "offset": 0,
        "size": 5,
        "seq": 1,
    }


@pytest.mark.parametrize(
    "name", ["seq", "segment", "offset", "size", "select", "group", "index", "value", "f_f", "rowid", "order"]
)
def test_a_field_may_have_the_name_of_a_column_or_of_a_word_of_sql(made, name):
    values = {"fields": {name: "text"}, "unique": [name], "index": [name]}
    connection = made(**values)
    connection.execute(columns_of(**values).insert, (1, 0, 1, 0, 1, 5))
    assert connection.execute("SELECT * FROM data").fetchall() == []
    assert connection.execute(f"SELECT {columns_of(**values).row} FROM datum").fetchall() == [(0, 1, 0, 1, 5)]


def test_five_hundred_fields_make_an_index(made):
    fields = {f"field_{number}": kind for number, kind in enumerate(list(EVERY_TYPE.values()) * 84) if number < 500}
    connection = made(fields=fields, unique=list(fields)[:50])
    assert len(columns(connection, "datum")) == 505
