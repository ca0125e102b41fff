from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from ondisk import DatasetConfig
from ondisk.errors import MatchError
from ondisk.index.connection import Connection
from ondisk.index.tables import Columns
from ondisk.index.where import add_functions, check_fields, check_size, condition, resolve, without_functions
from ondisk.matcher import (
    And,
    Compare,
    Components,
    EverySeconds,
    Everything,
    Fields,
    Item,
    Not,
    OneOf,
    Or,
    StartsWith,
    parse,
)

FIELDS = {"station": "integer", "level": "real", "product": "text", "key": "bytes"}
CONFIG = DatasetConfig.from_mapping(
    {
        "format": "jsonl",
        "step": "daily",
        "fields": FIELDS,
        "unique": ["reftime", "station"],
        "index": ["product", "level"],
    }
)
COLUMNS = Columns(CONFIG)
HOSTILE = [
    "'; DROP TABLE datum; --",
    '" OR 1=1 --',
    "%",
    "_",
    "datum.f_station",
    "\0",
    "x' OR 'x'='x",
    "?1",
    ":p0",
    "*",
    "\\",
]


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    for statement in Columns(CONFIG).create_statements():
        connection.execute(statement)
    add_functions(connection)
    yield connection
    connection.close()


def intern(connection, *values):
    connection.executemany("INSERT INTO value VALUES (?, ?)", enumerate(values, 1))


def plan(connection, tree, order=""):
    where = condition(resolve(tree, COLUMNS, connection), COLUMNS)
    rows = connection.execute(f"EXPLAIN QUERY PLAN SELECT * FROM datum WHERE {where.sql} {order}", where.values)
    return [row[3] for row in rows]


@pytest.mark.parametrize("text", HOSTILE)
def test_values_are_bound_and_never_part_of_the_sql(text):
    trees = [
        Compare("product", "=", text),
        Compare("product", "<", text),
        StartsWith("product", text),
        OneOf("product", (text, "b")),
        Components("product", (text,)),
        Components("product", (None, text)),
        Compare("key", "=", text.encode()),
    ]
    plain = [type(tree) for tree in trees]
    for tree, kind in zip(trees, plain, strict=True):
        where = condition(tree, COLUMNS)
        harmless = condition(kind(*[each if each != text else "harmless" for each in astuple(tree)]), COLUMNS)
        assert where.sql.count("?") == harmless.sql.count("?")
        assert "DROP" not in where.sql
        assert "OR 1=1" not in where.sql


def astuple(tree):
    return [getattr(tree, name) for name in tree.__match_args__]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_matches_itself_alone(connection, text):
    others = [each for each in HOSTILE if each != text]
    intern(connection, *others, text)
    connection.executemany(
        "INSERT INTO datum VALUES (?, 0, 1, 0, 1, ?, NULL, ?, 0)", ((n, n, n) for n in range(1, len(HOSTILE) + 1))
    )
    for tree in (
        Compare("product", "=", text),
        OneOf("product", (text,)),
        Components("product", (text,)),
        StartsWith("product", text),
    ):
        where = condition(resolve(tree, COLUMNS, connection), COLUMNS)
        found = connection.execute(f"SELECT f_station FROM datum WHERE {where.sql}", where.values).fetchall()
        assert found == [(len(HOSTILE),)]
    assert connection.execute("SELECT count(*) FROM datum").fetchone() == (len(HOSTILE),)


def test_a_unique_key_is_looked_up_in_the_unique_index(connection):
    fields = Fields(CONFIG.fields)
    (step,) = plan(connection, And((Compare("reftime", "=", 5), fields.station == 1)))
    assert step == "SEARCH datum USING INDEX datum_unique (reftime=? AND <expr>=?)"


def test_a_day_is_a_range_of_the_index_without_a_sort(connection):
    steps = plan(connection, parse("reftime:=2026-11-20", CONFIG.fields), "ORDER BY datum.reftime, datum.seq")
    assert steps[0] == "SEARCH datum USING INDEX datum_unique (reftime>? AND reftime<?)"


def test_a_text_is_equality_of_its_id_and_needs_no_sort(connection):
    intern(connection, "VM2,2", "VM2,227", "VM2,3")
    for tree in (Compare("product", "=", "VM2,2"), Components("product", ("VM2", "2")), StartsWith("product", "VM2,3")):
        steps = plan(connection, tree, "ORDER BY datum.reftime, datum.seq")
        assert steps == ["SEARCH datum USING INDEX datum_by_product (f_product=?)"]


@pytest.mark.parametrize("kind", ["text", "integer"])
@pytest.mark.parametrize(("rare", "common"), [("product", "area"), ("area", "product")])
def test_of_two_equalities_the_rarer_one_is_searched(rare, common, kind):
    config = DatasetConfig.from_mapping({
        "format": "jsonl", "step": "daily", "fields": {"area": "text", "product": kind},
        "unique": ["reftime", "area", "product"], "index": ["area", "product"],
    })  # fmt: skip
    columns = Columns(config)
    tree = And((Compare("area", "=", "a"), Compare("product", "=", "p" if kind == "text" else 2)))
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=Connection)) as connection:
        for statement in Columns(config).create_statements():
            connection.execute(statement)
        intern(connection, "a", "p")
        ids = {"area": 1, "product": 2}
        connection.execute("INSERT INTO day_sum VALUES (1, 5, 12, 12, 0, 0)")
        for field, count in ((rare, 2), (common, 10)):
            connection.execute("INSERT INTO value_count VALUES (1, 5, ?, ?, ?)", (field, ids[field], count))
        for condition_, used in (
            (tree, f"datum_by_{rare} (f_{rare}=?)"),
            (And((*tree.children, Compare("reftime", "=", 5))), "datum_unique (reftime=? AND"),
        ):
            where = condition(resolve(condition_, columns, connection), columns)
            (step,) = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT * FROM datum WHERE {where.sql} ORDER BY datum.reftime, datum.seq",
                where.values,
            )
            assert f"SEARCH datum USING INDEX {used}" in step[3]


def test_alternatives_and_negations_still_search_only_their_reftimes(connection):
    for text in ("reftime:=2026-11-20 or =2026-11-22", "reftime:=2026-11-20 or =2026-11-22; station:5"):
        steps = plan(connection, parse(text, CONFIG.fields))
        assert steps[0].startswith("SEARCH datum USING INDEX datum_unique (reftime>? AND reftime<?")
    late = Not(Compare("reftime", "<", 5))
    assert plan(connection, late)[0] == "SEARCH datum USING INDEX datum_unique (reftime>?)"


def test_a_condition_that_selects_many_values_is_left_to_sqlite(connection):
    intern(connection, *(f"text {n}" for n in range(100)))
    tree = StartsWith("product", "text")
    assert resolve(tree, COLUMNS, connection) is tree
    assert resolve(StartsWith("product", "text 5"), COLUMNS, connection) is not tree


@pytest.mark.check
def test_a_condition_with_too_many_parts_is_refused_with_a_way_out():
    fields = Fields(CONFIG.fields)
    check_size(Or(tuple(fields.station == n for n in range(499))))
    with pytest.raises(MatchError, match="501 parts, at most 500") as caught:
        check_size(Or(tuple(fields.station == n for n in range(500))))
    assert "isin" in caught.value.hint
    endless = deep(Everything(), lambda _, tree: Not(tree), 100_000)
    with pytest.raises(MatchError, match="100000 parts"):
        check_size(endless)
    while isinstance(endless, Not):  # freed level by level: freeing it at once would recurse
        endless = endless.child


def test_a_condition_with_too_many_values_is_refused(connection):
    fields = Fields(CONFIG.fields)
    most = fields.station.isin(range(30_000))
    check_size(most)
    where = condition(most, COLUMNS)
    assert connection.execute(f"SELECT count(*) FROM datum WHERE {where.sql}", where.values).fetchone() == (0,)
    with pytest.raises(MatchError, match="30001 values"):
        check_size(most | (fields.station == 1) | fields.level.isin([1.0]))


LEAVES = [
    Fields(CONFIG.fields).product.startswith("a"),
    Fields(CONFIG.fields).station == 1,
    Fields(CONFIG.fields).level.is_null(),
    Components("product", ("a", None, "b")),
    EverySeconds("reftime", 60, 0),
]


def deep(leaf, wrap, depth):
    tree = leaf
    for level in range(depth - 1):
        tree = wrap(level, tree)
    return tree


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: type(leaf).__name__)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda _, tree: Not(tree),
        lambda level, tree: (And, Or)[level % 2]((LEAVES[0], tree)),
        lambda level, tree: Not(tree) if level % 2 else (And, Or)[level % 4 // 2]((LEAVES[3], tree, LEAVES[1])),
    ],
    ids=["not", "and or", "all"],
)
def test_the_deepest_condition_that_is_taken_is_one_that_sqlite_takes(create, leaf, wrap):
    dataset = create(fields=FIELDS)
    deepest = deep(leaf, wrap, 16)
    assert list(dataset.query(deepest & (dataset.fields.station == 1) if isinstance(deepest, And) else deepest)) == []
    assert dataset.summary(deepest).fields["product"].values == []
    assert dataset.delete(deepest) == 0
    with pytest.raises(MatchError, match="nested 17 deep, at most 16") as caught:
        dataset.query(wrap(15, deepest))
    assert caught.value.hint


@pytest.mark.parametrize(
    "tree", [Compare("colour", "=", 1), Not(And((Everything(), Or((OneOf("colour", ()),))))), StartsWith("seq", "")]
)
def test_a_field_that_the_index_does_not_have_is_refused(tree):
    with pytest.raises(MatchError, match="the index has no field") as caught:
        check_fields(tree, COLUMNS)
    assert caught.value.hint == "The fields are key, level, product, reftime, station."


def test_empty_alternatives_match_nothing_and_empty_conjunctions_all():
    assert condition(Or(()), COLUMNS).sql.endswith("0")
    assert condition(And(()), COLUMNS).sql == "1"


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (Item("level", "GRIB1,105"), [1, 2]),
        (Item("level", "GRIB1,,10"), [2]),
        (Not(Item("level", "GRIB2S")), [1, 2, 4]),
        (Item("quantity", "b"), [4]),
        (Components("level", ("GRIB1", None, "10")), [2]),
    ],
)
def test_conditions_on_texts_need_no_function_where_ids_replace_them(tree, expected):
    config = DatasetConfig.from_mapping(
        {"format": "jsonl", "step": "daily", "fields": {"level": "item", "quantity": "item"}}
    )
    columns = Columns(config)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as plain:
        for statement in Columns(config).create_statements():
            plain.execute(statement)
        intern(plain, "GRIB1,105,2", "GRIB1,105,10", "GRIB2S,1,0,0", "a,b", b"GRIB1,105")
        insert = (
            "INSERT INTO datum (seq, reftime, segment, offset, size, f_level, f_quantity) VALUES (?, 0, 1, ?, 1, ?, ?)"
        )
        plain.executemany(insert, [(1, 0, 1, 0), (2, 1, 2, 0), (3, 2, 3, 0), (4, 3, 0, 4)])
        where = condition(without_functions(tree, columns, plain), columns)
        assert [row[0] for row in plain.execute(f"SELECT seq FROM datum WHERE {where.sql}", where.values)] == expected
