"""What Spark pushes to the index changes no answer: not those of conditions, columns, limits, aggregates and joins."""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from kit.strategies import EVERY_TYPE

import ondisk
from ondisk import Datum

T = datetime(2026, 11, 20, tzinfo=UTC)
TEXTS = ["", "a", "ab", "a%", "a_b", "A", "é", "e\u0301", "it's", 'a"b', "a\\b", "\U0001f600", "z"]
NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 2**63 - 1]
REALS = [0.0, -0.0, 1.5, -2.5, 1e300, 5e-324, float("inf"), float("-inf")]
TIMES = [
    T, T + timedelta(microseconds=1), T + timedelta(hours=6), T + timedelta(days=1, hours=5),
    datetime(1, 1, 2, tzinfo=UTC), datetime(1582, 10, 10, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC),
]  # fmt: skip
BYTES = [b"", b"a", b"\xff\xfe", b"a\0"]
ZONES = ["UTC", "Europe/Rome", "America/St_Johns"]
COLUMNS = {"station": NUMBERS, "level": REALS, "product": TEXTS, "valid": [True, False], "made": TIMES, "key": BYTES}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return a dataset with 600 data of all types, many of which lack some fields."""
    chance = random.Random(1)
    config = {"format": "jsonl", "step": "yearly", "fields": {"number": "integer", **EVERY_TYPE}, "index": ["station"]}
    with ondisk.create(tmp_path_factory.mktemp("pushed") / "it", config) as made:
        made.append(
            Datum(
                chance.choice([T + timedelta(hours=number % 50), *TIMES]),
                {"number": number}
                | {name: chance.choice(some) for name, some in COLUMNS.items() if chance.random() < 0.8},
                {"wind": number / 2, "note": {"text": f"é{number}"}},
            )
            for number in range(600)
        )
        yield made


def load(spark, dataset, **options):
    return spark.read.format("ondisk").options(**options).load(str(dataset.path))


# Conditions, each as SQL and as a function of a row, which returns True, False or None.


def conditions(chance, zone, count):
    return [condition(chance, zone, 3) for _ in range(count)]


def condition(chance, zone, depth):
    kind = chance.random()
    if depth and kind < 0.5:
        (left, of_left), (right, of_right) = (condition(chance, zone, depth - 1) for _ in range(2))
        if kind < 0.25:
            return f"({left} AND {right})", lambda row: both(of_left(row), of_right(row))
        return f"({left} OR {right})", lambda row: negated(both(negated(of_left(row)), negated(of_right(row))))
    if depth and kind < 0.65:
        sql, of = condition(chance, zone, depth - 1)
        return f"(NOT {sql})", lambda row: negated(of(row))
    return leaf(chance, zone)


def both(one, other):
    return False if one is False or other is False else None if one is None or other is None else True


def negated(one):
    return None if one is None else not one


def leaf(chance, zone):
    name = chance.choice(["reftime", *COLUMNS])
    some = COLUMNS.get(name, TIMES)
    values = [chance.choice(some) for _ in range(3)]
    first = values[0]
    sql = [literal(each, zone) for each in values]
    match chance.choice(["null", "in", "not in", "same", "between", "like", "function", *["compare"] * 6]):
        case "null":
            return f"{name} IS NULL", lambda row: row[name] is None
        case "same":
            if chance.random() < 0.2:
                return f"{name} <=> NULL", lambda row: row[name] is None
            return f"{name} <=> {sql[0]}", lambda row: row[name] is not None and row[name] == first
        case ("in" | "not in") as how:
            with_null = chance.random() < 0.2
            listed = ", ".join([*sql, *["NULL"] * with_null])

            def found(row):
                if row[name] is None:
                    return None
                return True if row[name] in values else None if with_null else False

            if how == "in":
                return f"{name} IN ({listed})", found
            return f"{name} NOT IN ({listed})", lambda row: negated(found(row))
        case "between" if name != "valid":
            text = f"{name} BETWEEN {sql[0]} AND {sql[1]}"
            return text, lambda row: known(row[name], lambda x: ordered(values[0]) <= x <= ordered(values[1]))
        case "like" if name == "product":
            begin = "".join(f"\\{each}" if each in "%_\\" else each for each in first)
            text = quoted(begin + "%")
            return f"product LIKE {text}", lambda row: known(row[name], lambda x: x.startswith(first.encode()))
        case "function" if name == "station":
            return "station % 2 = 1", lambda row: known(row[name], lambda x: (x > 0) and x % 2 == 1)
        case "function" if name == "product":
            return "length(product) > 1", lambda row: known(row[name], lambda x: len(x.decode()) > 1)
    operator, holds = chance.choice(
        [
            ("=", lambda x, y: x == y),
            ("<>", lambda x, y: x != y),
            ("<", lambda x, y: x < y),
            ("<=", lambda x, y: x <= y),
            (">", lambda x, y: x > y),
            (">=", lambda x, y: x >= y),
        ]
    )
    return f"{name} {operator} {sql[0]}", lambda row: known(row[name], lambda x: holds(x, ordered(first)))


def known(value, of):
    return None if value is None else of(ordered(value))


def ordered(value):
    return value.encode() if isinstance(value, str) else value


def literal(value, zone):
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L" if value > -(2**63) else "(-9223372036854775807L - 1L)"
        case float():
            return f"double('{value}')"
        case str():
            return quoted(value)
        case bytes():
            return f"X'{value.hex()}'"
    local = value.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    return f"timestamp'{local.isoformat(sep=' ')}'"


def quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def check_conditions(spark, dataset, chance, zone, ansi, count, together=10):
    """Compare what conditions select, several in one query, with what they are in Python."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
    rows = [{"reftime": each.reftime} | dict.fromkeys(COLUMNS) | dict(each.metadata) for each in dataset.query()]
    try:
        loaded = load(spark, dataset)
        loaded.createOrReplaceTempView("pushed")
        for _ in range(0, count, together):
            some = conditions(chance, zone, together)
            united = " UNION ALL ".join(
                f"SELECT {at} AS at, number FROM pushed WHERE {sql}" for at, (sql, _) in enumerate(some)
            )
            got = Counter((row.at, row.number) for row in spark.sql(united).collect())
            for at, (sql, of) in enumerate(some):
                wanted = Counter((at, row["number"]) for row in rows if of(row) is True)
                assert Counter({each: n for each, n in got.items() if each[0] == at}) == wanted, sql
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.ansi.enabled")


def test_random_conditions_select_what_they_mean(spark, dataset):
    check_conditions(spark, dataset, random.Random(0), "Europe/Rome", True, 20)


@pytest.mark.check
def test_200_random_conditions_select_what_they_mean(spark, dataset):
    chance = random.Random(7)
    for number in range(4):
        check_conditions(spark, dataset, chance, ZONES[number % 3], number % 2 == 0, 50, together=25)


@pytest.mark.slow
def test_10_000_random_conditions_select_what_they_mean(spark, dataset):
    chance = random.Random()
    state = chance.getrandbits(64)
    print("seed", state)
    chance.seed(state)
    for number in range(20):
        check_conditions(spark, dataset, chance, ZONES[number % 3], number % 2 == 0, 500, together=20)


# What is pushed.


def plan(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ("reftime >= '2026-11-20' AND reftime < '2026-11-21'", "reftime >= "),
        ("station = 3 OR product LIKE 'a%'", "OR"),
        ("NOT (station IN (1, 2))", "IN (1, 2)"),
        ("valid", "valid"),
        ("key = X'61'", "key"),
        ("level <=> 1.5D", "level = 1.5"),
    ],
)
def test_a_condition_is_pushed_whole(spark, dataset, condition, shown):
    found = plan(load(spark, dataset).where(condition).select("number"))
    assert "Filter (" not in found
    assert shown in found


def test_what_cannot_be_translated_stays_with_spark(spark, dataset):
    found = plan(load(spark, dataset).where("length(product) > 1 AND station = 3 AND size > 10"))
    assert "Filter (" in found
    assert "station = 3" in found.partition("ondisk pushed")[2]


@pytest.mark.check
def test_a_large_condition_stays_with_spark_and_a_match_leaves_less_room(spark, dataset):
    many = " OR ".join(f"(station = {number} AND product = 'a')" for number in range(600))
    large = load(spark, dataset).where(many)
    assert "Filter (" in plan(large)
    wanted = sum(each.metadata.get("product") == "a" and 0 <= each.metadata.get("station", -1) < 600
                 for each in dataset.query())  # fmt: skip
    assert large.count() == wanted
    match = "station: " + " or ".join(map(str, range(240)))
    some = load(spark, dataset, match=match)
    assert some.where("product = 'a' AND valid").count() == dataset.summary(f'{match}; product: "a"; valid: true').count


@pytest.mark.check
def test_only_the_nested_fields_that_are_selected_are_read(spark, dataset):
    schema = "number bigint, data struct<wind: double, note: struct<text: string>>"
    loaded = spark.read.format("ondisk").schema(schema).load(str(dataset.path))
    chosen = loaded.where("number = 7").select("data.note.text")
    assert chosen.collect() == [("é7",)]
    assert "wind" not in chosen._jdf.queryExecution().executedPlan().apply(1).toString()
    assert loaded.count() == 600


@pytest.mark.check
def test_counts_and_extremes_are_answered_by_the_index(spark, dataset):
    loaded = load(spark, dataset)
    grouped = loaded.groupBy("valid").agg(
        {"*": "count", "reftime": "max", "station": "min", "level": "max", "made": "min", "product": "count"}
    )
    assert "aggregate_1" in plan(grouped)
    copied = spark.createDataFrame(loaded.toArrow())
    assert "aggregate_1" not in plan(copied.groupBy("valid").count())
    again = copied.groupBy("valid").agg(
        {"*": "count", "reftime": "max", "station": "min", "level": "max", "made": "min", "product": "count"}
    )
    assert Counter(map(repr, grouped.collect())) == Counter(map(repr, again.collect()))
    for by in (["product", "key"], ["reftime"], ["segment", "valid"]):
        assert Counter(map(repr, loaded.groupBy(*by).count().collect())) == Counter(
            map(repr, copied.groupBy(*by).count().collect())
        )


@pytest.mark.check
def test_counts_and_times_of_whole_days_are_known_without_a_job(spark, create):
    dataset = create(format="jsonl", step="daily", fields={"station": "integer"})
    empty = load(spark, dataset)
    functions = ["count(*)", "count(reftime)", "min(reftime)", "max(reftime)"]
    dataset.append(Datum(T + timedelta(hours=hour), {"station": hour % 5}, {"x": hour}) for hour in range(100))
    with ondisk.create(dataset.path.with_name("another"), dataset.config) as another:
        another.append([Datum(T + timedelta(days=9), {"station": 3}, {})])
        both = spark.read.format("ondisk").load([str(dataset.path), str(another.path)])
    loaded = load(spark, dataset)
    first, last = datetime(2026, 11, 20), datetime(2026, 11, 24, 3)
    for frame, wanted in (
        (loaded, (100, 100, first, last)),
        (loaded.where("reftime >= '2026-11-21' AND reftime < '2026-11-23'"),
         (48, 48, datetime(2026, 11, 21), datetime(2026, 11, 22, 23))),
        (loaded.where("reftime < '2026-11-20'"), (0, 0, None, None)),
        (load(spark, dataset, match="reftime: >=2026-11-24"), (4, 4, datetime(2026, 11, 24), last)),
        (both, (101, 101, first, datetime(2026, 11, 29))),
        (empty, (0, 0, None, None)),
    ):  # fmt: skip
        asked = frame.selectExpr(*functions)
        assert ("LocalTableScan" in plan(asked)) == (frame is not empty)  # rows were added since
        assert asked.collect() == [wanted]
        assert frame.count() == wanted[0]
    for some in ("station = 3", "reftime >= '2026-11-20 06:00:00'"):
        assert "BatchScan" in plan(loaded.where(some).selectExpr(*functions))
    assert "BatchScan" in plan(loaded.selectExpr("count(DISTINCT reftime)"))
    assert loaded.selectExpr("count(DISTINCT reftime)", "count(*) + 1").collect() == [(100, 101)]
    assert spark.range(3).crossJoin(loaded.selectExpr("count(*) AS n").limit(3)).selectExpr("sum(n)").first() == (300,)


def test_aggregates_over_nothing(spark, dataset, create):
    nothing = load(spark, dataset).where("station = 77")
    functions = ["count(*)", "max(reftime)", "min(station)", "count(product)"]
    assert nothing.selectExpr(*functions).collect() == [(0, None, None, 0)]
    assert nothing.groupBy("valid").count().collect() == []
    empty = create(format="jsonl", fields={"station": "integer", "product": "text"})
    assert load(spark, empty).selectExpr(*functions).collect() == [(0, None, None, 0)]
    assert load(spark, empty).count() == 0


@pytest.mark.parametrize(("limit", "rows"), [(0, 0), (5, 5), (599, 599), (700, 600)])
def test_limits(spark, dataset, limit, rows):
    loaded = load(spark, dataset)
    assert len(loaded.limit(limit).collect()) == rows
    assert len(loaded.where("number >= 590").limit(limit).select("data").collect()) == min(limit, 10)
    assert len(loaded.orderBy("number").offset(limit).collect()) == 600 - rows
    assert loaded.limit(limit).count() == rows


def test_a_limit_within_the_second_of_several_small_datasets_ends(spark, tmp_path):
    paths = [str(tmp_path / name) for name in ("first", "second", "third")]
    for path in paths:
        with ondisk.create(path, {"format": "jsonl", "step": "yearly", "fields": {"number": "integer"}}) as made:
            made.append(Datum(T + timedelta(hours=number), {"number": number}, {}) for number in range(30))
    loaded = spark.read.format("ondisk").load(paths)
    for limit in (29, 30, 50, 200):
        assert len(loaded.limit(limit).collect()) == loaded.limit(limit).count() == min(limit, 90)


def test_show_and_first_say_nothing_beside_their_result(spark, dataset, capfd):
    loaded = load(spark, dataset)
    loaded.show(5)
    assert loaded.first() is not None
    assert len(loaded.take(3)) == 3
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    assert "planned a read" not in printed.err
    assert "where and select read all data" not in printed.err


@pytest.mark.check
def test_a_join_prunes_and_reads_once_what_it_uses_twice(spark, dataset):
    loaded = load(spark, dataset)
    wanted = spark.createDataFrame([(1, "x"), (2, "y")], "station bigint, name string").where("name = 'y'")
    joined = loaded.join(wanted, "station")
    assert joined.count() == dataset.summary("station: 2").count
    assert "dynamicpruning" in plan(joined)


# One frame in many queries.


@pytest.mark.check
def test_16_shapes_of_queries_on_one_frame(spark, dataset):
    loaded = load(spark, dataset)
    loaded.createOrReplaceTempView("t")
    three = dataset.summary("station: 3").count
    two = dataset.summary("station: 2").count
    assert loaded.count() == 600
    assert loaded.where("station = 3").count() == three
    assert loaded.count() == 600
    assert loaded.where("station = 3").union(loaded.where("station = 2")).count() == two + three
    with_neither = any(not {"station", "valid"} & each.metadata.keys() for each in dataset.query())
    answers = {
        "t a JOIN t b USING (number) WHERE a.station = 3": three,
        "t a LEFT ANTI JOIN (SELECT * FROM t WHERE station = 3) b ON a.number = b.number": 600 - three,
        "t WHERE number = (SELECT max(number) FROM t WHERE number < 100)": 1,
        "t a WHERE EXISTS (SELECT 1 FROM t b WHERE b.number = a.number AND b.station = 3)": three,
        "(SELECT * FROM c UNION ALL SELECT * FROM c)": 2 * three,
        "(SELECT station, valid FROM t GROUP BY ROLLUP (station, valid)) WHERE station IS NULL AND valid IS NULL":
            2 + with_neither,
        "(SELECT explode(sequence(1, n)) FROM (SELECT count(*) AS n FROM t WHERE station IN (2, 3)))": two + three,
        "(SELECT DISTINCT station FROM t WHERE station > 1)": 3,
        "(SELECT row_number() OVER (ORDER BY number) AS r FROM t WHERE station = 3)": three,
    }  # fmt: skip
    for sql, wanted in answers.items():
        found = spark.sql(f"WITH c AS (SELECT * FROM t WHERE station = 3) SELECT count(*) FROM {sql}").collect()
        assert found == [(wanted,)], sql
    cached = loaded.where("station = 3").cache()
    assert cached.count() == cached.count() == three
    cached.unpersist()
    assert loaded.where("station = 3").limit(2).count() == min(2, three)
    assert len(loaded.where("station = 3").toArrow()) == three


@pytest.mark.check
def test_threads_use_one_frame(spark, dataset):
    loaded = load(spark, dataset)
    wanted = {number: dataset.summary(f"station: {number}").count for number in (0, 1, 2, 3)}
    got = {}

    def ask(number):
        got[number] = loaded.where(f"station = {number}").count()

    threads = [threading.Thread(target=ask, args=[number]) for number in wanted]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert got == wanted


def test_a_frame_returns_the_state_of_its_load(spark, create):
    dataset = create(format="jsonl", step="daily", fields={"station": "integer"}, keep_replaced="6h")
    dataset.append(Datum(T + timedelta(hours=hour), {"station": hour % 5}, {"x": hour}) for hour in range(100))
    loaded = load(spark, dataset)
    declared = spark.read.format("ondisk").schema("station bigint, data struct<x: bigint>").load(str(dataset.path))

    def asked(frame):
        three = frame.where("station = 3")
        found = (
            frame.count(),
            three.count(),
            len(three.select("data").collect()),
            frame.groupBy("station").count().count(),
        )
        return (*found, len(frame.limit(1000).collect()))

    wanted = (100, 20, 20, 5, 100)
    assert asked(declared) == wanted
    dataset.append(Datum(T + timedelta(hours=hour), {"station": 3}, {"x": hour}) for hour in range(7))
    assert asked(loaded) == asked(declared) == wanted
    assert asked(load(spark, dataset)) == (107, 27, 27, 5, 107)
    dataset.repack()
    dataset.archive("2026/11-20.jsonl")
    assert asked(loaded) == asked(declared) == wanted
    dataset.delete("station: 4")
    for each in (loaded, declared):
        with pytest.raises(Exception, match="has changed since this DataFrame was planned: data were deleted"):
            each.where("station = 3").count()
    assert asked(load(spark, dataset))[:2] == (87, 27)


@pytest.mark.check
def test_several_datasets_of_which_one_lacks_a_field(spark, create, tmp_path):
    both = {"format": "jsonl", "step": "daily"}
    one = create(**both, fields={"station": "integer"})
    with ondisk.create(
        one.path.with_name("another"), {**both, "fields": {"station": "integer", "name": "text"}}
    ) as two:
        one.append(Datum(T + timedelta(hours=hour), {"station": hour % 3}, {}) for hour in range(30))
        two.append(Datum(T + timedelta(hours=hour), {"station": hour % 3, "name": "x"}, {}) for hour in range(30))
        loaded = spark.read.format("ondisk").load([str(one.path), str(two.path)])
        assert loaded.count() == 60
        assert loaded.where("station = 1").count() == 20
        assert loaded.where("name = 'x'").count() == 30
        assert loaded.where("name IS NULL AND station = 2").count() == 10
        assert loaded.where("NOT (name <=> 'x')").count() == 30
        assert loaded.where(loaded.dataset == str(two.path)).selectExpr("count(*)", "count(name)").collect() == [
            (30, 30)
        ]
        by_dataset = {row.dataset: row["count"] for row in loaded.groupBy("dataset").count().collect()}
        assert by_dataset == {str(one.path): 30, str(two.path): 30}
        assert loaded.selectExpr("count(name)", "max(station)").collect() == [(30, 2)]
        two.append(Datum(T, {"station": 1}, {}) for _ in range(5))
        assert loaded.count() == 60
