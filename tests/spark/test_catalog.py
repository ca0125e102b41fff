"""The catalog: folders are namespaces, datasets are tables; nothing outside of its folder can be named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import AnalysisException

import ondisk
from ondisk import Datum
from ondisk.spark import last_write

T = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {
    "format": "jsonl",
    "step": "daily",
    "unique": ["reftime", "station"],
    "index": ["station"],
    "fields": {"station": "integer", "name": "text"},
}


@pytest.fixture(scope="module")
def root(spark, tmp_path_factory):
    """Return the folder of a catalog `data`."""
    folder = tmp_path_factory.mktemp("catalog")
    spark.conf.set("spark.sql.catalog.data", "ondisk.spark.OndiskCatalog")
    spark.conf.set("spark.sql.catalog.data.root", str(folder))
    return folder


@pytest.fixture
def weather(root):
    """Return the dataset of the table `data.north.weather`, beside another one."""
    number = len([*root.iterdir()])
    (root / f"n{number}").mkdir()
    with ondisk.create(root / f"n{number}/other", CONFIG):
        pass
    with ondisk.create(root / f"n{number}/weather", CONFIG) as made:
        made.append(Datum(T + timedelta(hours=hour), {"station": hour % 5}, {"wind": hour}) for hour in range(100))
        yield made


def table(dataset, name=None):
    return f"data.{dataset.path.parent.name}.{dataset.path.name if name is None else name}"


def ask(spark, sql):
    return [tuple(row) for row in spark.sql(sql).collect()]


@pytest.mark.check
def test_names_are_listed_and_described(spark, weather):
    namespace = weather.path.parent.name
    assert (namespace,) in ask(spark, "SHOW NAMESPACES IN data")
    assert [name for _, name, *_ in ask(spark, f"SHOW TABLES IN data.{namespace}")] == ["other", "weather"]
    described = ask(spark, f"DESCRIBE TABLE {table(weather)}")
    assert [name for name, *_ in described[:4]] == ["reftime", "station", "name", "data"]
    properties = dict(ask(spark, f"SHOW TBLPROPERTIES {table(weather)}"))
    assert properties["step"] == "daily"
    assert properties["unique"] == "reftime, station"
    assert properties["index"] == "station"
    assert (properties["rows"], properties["first"]) == ("100", "2026-11-20T00:00:00Z")
    assert spark.catalog.tableExists(table(weather))
    assert not spark.catalog.tableExists(table(weather, "nothing"))


def test_a_table_is_read_and_each_statement_sees_the_newest(spark, weather):
    name = table(weather)
    count = f"SELECT count(*), max(reftime) FROM {name} WHERE station = 3"
    assert ask(spark, count) == [(20, datetime(2026, 11, 24, 2))]
    kept = spark.table(name)
    assert kept.columns == ["reftime", "station", "name", "data"]
    assert "ondisk pushed [station IS NOT NULL, station = 3]" in ask(spark, f"EXPLAIN {count}")[0][0]
    weather.append([Datum(T + timedelta(days=9), {"station": 3}, {"wind": 1})])
    assert ask(spark, count)[0][0] == 21
    assert kept.count() == 100
    hidden = ask(spark, f"SELECT segment, offset, size FROM {name} WHERE reftime = '2026-11-20'")
    assert hidden == [("2026/11-20.jsonl", 0, 55)]


def test_rows_are_inserted_replaced_and_deleted(spark, weather):
    name, other = table(weather), table(weather, "other")
    spark.sql(f"INSERT INTO {other} SELECT * FROM {name} WHERE station < 2")
    assert ask(spark, f"SELECT station, count(*) FROM {other} GROUP BY station ORDER BY station") == [(0, 20), (1, 20)]
    with ondisk.open(weather.path.with_name("other")) as dataset:
        assert next(dataset.query("station: 1")).data == {"wind": 1}
        assert last_write(dataset).imported == 40
    day = f"SELECT * FROM {name} WHERE station = 1 AND reftime < '2026-11-21'"
    spark.sql(f"INSERT INTO {other} REPLACE WHERE station = 1 {day}")
    assert ask(spark, f"SELECT count(*) FROM {other}") == [(25,)]
    with pytest.raises(Exception, match="does not match the condition, which the write overwrites"):
        spark.sql(f"INSERT INTO {other} REPLACE WHERE station = 1 SELECT * FROM {name} WHERE station = 2")
    spark.table(name).where("station = 4").writeTo(other).append()
    assert ask(spark, f"SELECT count(*) FROM {other} WHERE station = 4") == [(20,)]
    spark.sql(f"DELETE FROM {other} WHERE station = 4 AND reftime < '2026-11-22'")
    assert ask(spark, f"SELECT count(*) FROM {other} WHERE station = 4") == [(11,)]
    spark.sql(f"TRUNCATE TABLE {other}")
    assert ask(spark, f"SELECT count(*) FROM {other}") == [(0,)]
    with pytest.raises(Exception, match=rf"{name}: cannot delete where \[CHAR_LENGTH\(name\) = 3\]: name reftime"):
        spark.sql(f"DELETE FROM {name} WHERE length(name) = 3")
    assert weather.summary().count == 100


@pytest.mark.check
def test_several_datasets_are_one_table_that_cannot_be_changed(spark, weather):
    namespace = weather.path.parent.name
    several = f"data.{namespace}.`*`"
    assert ask(spark, f"SELECT dataset, count(*) FROM {several} WHERE station = 3 GROUP BY dataset") == [
        (str(weather.path), 20)
    ]
    for statement in (
        f"INSERT INTO {several} SELECT * FROM {several}",
        f"INSERT INTO {several} SELECT * FROM {table(weather)}",
        f"INSERT OVERWRITE {several} VALUES (1)",
        f"DELETE FROM {several} WHERE station = 3",
        f"TRUNCATE TABLE {several}",
    ):
        with pytest.raises(Exception, match="is several datasets"):
            spark.sql(statement)
    assert weather.summary().count == 100


@pytest.mark.check
def test_a_stream_of_a_table_goes_to_another(spark, weather, tmp_path):
    other = table(weather, "other")
    writer = spark.readStream.table(table(weather)).writeStream.option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).toTable(other).awaitTermination()
    assert ask(spark, f"SELECT station, data FROM {other} WHERE reftime = '2026-11-20 07:00:00'") == [(2, '{"wind":7}')]
    assert spark.table(other).count() == 100


DAILY = "TBLPROPERTIES (format = 'jsonl', step = 'daily')"


@pytest.mark.check
def test_a_table_is_created(spark, root, weather):
    name = table(weather, "made")
    spark.sql(f"""
        CREATE TABLE {name} (reftime TIMESTAMP, station BIGINT, level DOUBLE, name STRING, ok BOOLEAN, data STRING)
        TBLPROPERTIES (format = 'jsonl', step = 'monthly', unique = 'reftime, station', index = 'station',
            replace = 'yes', delete_age = '36500', compression = 'none')
    """)
    with ondisk.open(weather.path.with_name("made")) as made:
        assert (made.config.replace, made.config.delete_age, made.config.compression) == ("yes", 36500, "none")
        assert {name: str(kind) for name, kind in made.config.fields.items()} == {
            "station": "integer", "level": "real", "name": "text", "ok": "boolean"
        }  # fmt: skip
        assert (made.config.step, made.config.unique, made.config.index) == (
            "monthly", ("reftime", "station"), ("station",)
        )  # fmt: skip
    spark.sql(f"INSERT INTO {name} VALUES (timestamp'2026-11-20', 1, 1.5D, 'a', true, '{{\"x\": 1}}')")
    assert ask(spark, f"SELECT station, level, ok, data FROM {name}") == [(1, 1.5, True, '{"x":1}')]
    for columns, more, message in (
        ("reftime TIMESTAMP", "", "the table property format is missing"),
        ("reftime DATE", DAILY, "a table has a column reftime TIMESTAMP and a column data"),
        ("x BIGINT", DAILY, "a table has a column reftime TIMESTAMP and a column data"),
        ("reftime TIMESTAMP, x BIGINT", DAILY, "a table has a column reftime TIMESTAMP and a column data"),
        (
            DAILY,
            "AS SELECT timestamp'2026-11-20' AS reftime, 1L AS x",
            "a table has a column reftime TIMESTAMP and a column data",
        ),
        ("reftime TIMESTAMP, data STRING, x DECIMAL(5,2)", DAILY, "the column x cannot be decimal"),
        ("reftime TIMESTAMP, data STRUCT<a: INT>", DAILY, "the column data is STRING"),
        ("reftime TIMESTAMP, data STRING", f"{DAILY[:-1]}, uniqe = 'x')", "uniqe: unknown key"),
        ("reftime TIMESTAMP, data STRING", f"{DAILY[:-1]}, fields = 'x')", "fields: must be a table"),
        ("reftime TIMESTAMP, data STRING", f"{DAILY[:-1]}, delete_age = 'old')", "delete_age: must be a whole number"),
        ("x BIGINT", "PARTITIONED BY (x)", "a dataset is divided by reftime"),
        ("x BIGINT", "LOCATION '/elsewhere'", "the name of a table is its place"),
    ):
        with pytest.raises(Exception, match=r"(?i)ondisk|dataset") as caught:
            spark.sql(
                f"CREATE TABLE {table(weather, 'wrong')} {columns if more.startswith('AS') else f'({columns})'} {more}"
            )
        assert message in str(caught.value)
        assert not weather.path.with_name("wrong").exists()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(ask, spark, f"SELECT station FROM {name}").result() == [(1,)]
    with pytest.raises(Exception, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE {name} (x BIGINT) TBLPROPERTIES (format = 'jsonl', step = 'daily')")


@pytest.mark.check
def test_an_error_of_ondisk_has_no_traceback(spark, weather):
    loaded = spark.read.format("ondisk").load(str(weather.path))
    weather.delete("station: 3")
    for ask, message in (
        (lambda: spark.read.format("ondisk").load(f"{weather.path}/nothing"), "DatasetNotFound: "),
        (lambda: spark.sql(f"CREATE TABLE {table(weather, 'new')} (x BIGINT)"), "InvalidInput: the table property"),
        (loaded.count, "StateError: "),
        (loaded.where("station = 1").collect, "StateError: "),
    ):
        with pytest.raises(AnalysisException, match=f": ondisk.errors.{message}") as caught:
            ask()
        assert "Traceback" not in str(caught.value)


@pytest.mark.check
@pytest.mark.parametrize(
    ("condition", "is_deleted"),
    [
        ("name IS NULL", lambda station, name: name is None),
        ("name <> 'n1'", lambda station, name: name not in (None, "n1")),
        ("NOT (name <=> 'n1')", lambda station, name: name != "n1"),
        ("name NOT IN ('n1', NULL)", lambda station, name: False),
        ("name LIKE 'n%' AND station IN (1, 2)", lambda station, name: name is not None and station in (1, 2)),
        ("NOT (station = 1 AND name = 'n1')", lambda station, name: station != 1 or name not in (None, "n1")),
        ("station >= 4 OR (station <= 0 AND name = 'n0')", lambda station, name: station >= 4
            or (station == 0 and name == "n0")),
        ("to_date(reftime) = '2026-11-20'", lambda station, name: True),
        ("true", lambda station, name: True),
    ],
)  # fmt: skip
def test_a_delete_removes_what_its_condition_says_and_nothing_else(spark, weather, condition, is_deleted):
    with ondisk.open(weather.path.with_name("other")) as other:
        names = {hour: None if hour % 4 == 0 else f"n{hour % 3}" for hour in range(20)}
        for hour, name in names.items():
            other.append(
                [Datum(T + timedelta(hours=hour), {"station": hour % 5} | ({"name": name} if name else {}), {})]
            )
        ask(spark, f"DELETE FROM {table(weather, 'other')} WHERE {condition}")
        kept = {round((each.reftime - T) / timedelta(hours=1)) for each in other.query()}
        assert kept == {hour for hour, name in names.items() if not is_deleted(hour % 5, name)}


@pytest.mark.check
def test_what_a_catalog_does_not_do_is_said_with_what_to_do_instead(spark, weather):
    name = table(weather)
    for statement, instead in {
        f"DROP TABLE {name}": "a dataset is removed with its folder: rm -r",
        f"ALTER TABLE {name} ADD COLUMN x BIGINT": "then run: ondisk migrate",
        f"ALTER TABLE {name} RENAME TO {table(weather, 'new')}": "rename the folder",
        "CREATE NAMESPACE data.new": "a namespace is a folder: mkdir",
        f"DROP NAMESPACE data.{weather.path.parent.name}": "a namespace is a folder: rm -r",
        f"INSERT INTO {name} REPLACE WHERE length(name) = 3 SELECT * FROM {name}":
            f"{name}: cannot replace where [CHAR_LENGTH(name) = 3]: name reftime and declared fields",
        f"SELECT * FROM {name} TIMESTAMP AS OF '2026-11-20'": "there is no time travel",
        f"SELECT * FROM {name} VERSION AS OF 1": "there is no time travel",
        f"CREATE OR REPLACE TABLE {name} TBLPROPERTIES (format = 'jsonl', step = 'daily') AS SELECT * FROM {name}":
            "a dataset is removed with its folder: rm -r",
        f"UPDATE {name} SET name = 'x' WHERE station = 1": "does not support UPDATE",
    }.items():  # fmt: skip
        with pytest.raises(Exception, match=r"(?i)folder|migrate|cannot|support|travel") as caught:
            spark.sql(statement)
        assert instead in str(caught.value)
    assert weather.summary().count == 100


@pytest.fixture
def outside(weather, tmp_path):
    """Return a dataset outside of the catalog, to which a link of the catalog leads."""
    with ondisk.create(tmp_path / "outside", CONFIG) as made:
        made.append([Datum(T, {"station": 1}, {})])
        (weather.path.parent / "linked").symlink_to(made.path)
        (weather.path.parent / "folder").symlink_to(made.path.parent)
        yield made


@pytest.mark.parametrize(
    "name", ["`..`.outside", "`../outside`", "`/tmp`", "linked", "folder.outside", "`.`.weather", "``"]
)
@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM {}", "DELETE FROM {} WHERE station = 1", "INSERT INTO {} SELECT * FROM {}", "TRUNCATE TABLE {}",
     "CREATE TABLE {} (x BIGINT) TBLPROPERTIES (format = 'jsonl', step = 'daily')", "DROP TABLE {}", "DESCRIBE {}"],
)  # fmt: skip
def test_nothing_outside_of_the_folder_can_be_named(spark, weather, outside, name, statement):
    with pytest.raises(
        Exception, match=r"(?i)is not the name|linked|not found|no such|cannot be found|empty|SCHEMA_NOT"
    ):
        spark.sql(statement.replace("{}", f"data.{weather.path.parent.name}.{name}")).collect()
    assert outside.summary().count == 1
    assert {each.name for each in weather.path.parent.iterdir()} == {"other", "weather", "linked", "folder"}


@pytest.mark.check
def test_a_pattern_and_a_list_leave_out_what_is_linked_from_outside(spark, weather, outside):
    namespace = weather.path.parent.name
    assert [name for _, name, *_ in ask(spark, f"SHOW TABLES IN data.{namespace}")] == ["other", "weather"]
    assert ask(spark, f"SELECT count(*) FROM data.{namespace}.`*`") == [(100,)]
