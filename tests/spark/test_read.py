"""Datasets in Spark: by every door the same rows, and clear errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import strategies
from kit.strategies import EVERY_TYPE
from pyspark.sql.types import ArrayType, LongType, StructType

import ondisk
from ondisk import Datum
from ondisk.errors import InvalidInput, MatchError
from ondisk.index.connection import connect_to_read
from ondisk.spark import dataframe, register, source, stream
from ondisk.spark.columns import AS_JSON, arrow_type
from ondisk.spark.match_json import dumps
from ondisk.spark.source import check_options
from ondisk.spark.stream import StreamReader
from ondisk.tables.arrow_values import DataToArrow
from pyspark_ondisk import DefaultSource

ROOT = Path(__file__).parents[2]
T = datetime(2026, 11, 20, tzinfo=UTC)
JULIAN = datetime(1582, 10, 10, tzinfo=UTC)  # a day that Java's old calendar does not have
CONFIG = {
    "format": "seg",
    "step": "daily",
    "unique": ["reftime", "station"],
    "index": ["station"],
    "fields": EVERY_TYPE,
}
DATA_NOT_NULL = StructType().add(
    "data", StructType().add("many", ArrayType(StructType().add("x", LongType(), nullable=False)))
)
TEXTS = ["a", "ab", "A", "é", "e\u0301", "a\0b", "", "\U00010000x"]


def datum(hour, station, **metadata):
    return Datum(T + timedelta(hours=hour), {"station": station, **metadata}, {"wind": hour / 2, "note": f"é{station}"})


def various(count=48):
    """Data of all types of fields, which some lack."""
    for number in range(count):
        metadata = {
            "level": [0.0, -0.0, 1.5, -2.5, float("inf"), float("-inf")][number % 6],
            "product": TEXTS[number % len(TEXTS)],
            "valid": number % 2 == 0,
            "made": JULIAN if number == 20 else T + timedelta(hours=number % 5, microseconds=number % 3),
            "key": [b"", b"\xff\xfe", b"a\0"][number % 3],
        }
        lacking = {name for at, name in enumerate(metadata) if number % (at + 5) == 0}
        yield datum(number, number % 7, **{name: each for name, each in metadata.items() if name not in lacking})


@pytest.fixture
def dataset(create):
    made = create(**CONFIG)
    assert made.append(various()).imported == 48
    return made


def load(spark, dataset, **options):
    """Load without data, unless the options say otherwise."""
    return spark.read.format("ondisk").options(**{"data": "false"} | options).load(str(dataset.path))


def rows(frame):
    """Collect rows, so that they can be compared and hold no time that depends on this process's zone."""
    arrow = frame.toArrow()
    return Counter(repr([_plain(value) for value in row.values()]) for row in arrow.to_pylist())


def _plain(value):
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def asked(dataset, match=None, data=False):
    """Return the rows of the local API in the form of `rows`."""
    fields = dataset.config.fields
    counted = Counter()
    for each in dataset.query(match):
        row = [each.reftime, *(_plain(each.metadata.get(name)) for name in fields),
               each.location.segment, each.location.offset, each.location.size]  # fmt: skip
        if data:
            row.append(json.dumps(each.data, ensure_ascii=False, separators=(",", ":")))
        counted[repr(row)] += 1
    return counted


def error(caught):
    return str(caught.value)


def test_the_columns_have_the_types_of_their_fields(spark, dataset):
    types = dict(load(spark, dataset, data="true").dtypes)
    assert types == {
        "reftime": "timestamp", "station": "bigint", "level": "double", "product": "string", "valid": "boolean",
        "made": "timestamp", "key": "binary", "segment": "string", "offset": "bigint", "size": "bigint",
        "data": "string", "timerange": "string",
    }  # fmt: skip


def test_every_door_returns_what_a_query_returns(spark, dataset):
    wanted, with_data = asked(dataset), asked(dataset, data=True)
    assert rows(load(spark, dataset)) == wanted
    assert rows(load(spark, dataset, data="true")) == with_data
    assert rows(dataset.index_frame(spark)) == wanted
    assert rows(dataset.index_frame(spark, data=True)) == with_data


@pytest.mark.check
def test_one_frame_is_asked_again_joined_and_united(spark, dataset):
    whole = load(spark, dataset)
    three = whole.where("station = 3")
    assert whole.count() == 48
    assert rows(three) == asked(dataset, dataset.fields.station == 3)
    assert whole.count() == 48
    assert three.unionAll(whole.where("station = 4")).count() == sum(
        asked(dataset, dataset.fields.station.isin([3, 4])).values()
    )
    assert whole.alias("a").join(three.alias("b"), ["reftime", "station"]).count() == three.count()
    whole.createOrReplaceTempView("whole")
    [[count]] = spark.sql("SELECT count(*) FROM whole WHERE station = (SELECT max(station) FROM whole)").collect()
    assert count == sum(asked(dataset, dataset.fields.station == 6).values())


@given(st.data())
@settings(max_examples=up_to(5))
def test_any_dataset_and_condition(spark, given_data):
    format = given_data.draw(st.sampled_from(["jsonl", "seg", "vm2"]))
    config = given_data.draw(strategies.configs(format))
    data = given_data.draw(st.lists(strategies.data(config), max_size=12))
    tree = given_data.draw(strategies.expressions(config.fields))
    with tempfile.TemporaryDirectory() as folder, ondisk.create(Path(folder, "it"), config) as dataset:
        dataset.append(data)
        wanted = asked(dataset, tree)
        assert rows(dataset.index_frame(spark, tree)) == wanted
        assert rows(load(spark, dataset, tree=dumps(tree))) == wanted
        loaded = load(spark, dataset, columns="data", tree=dumps(tree))
        kind = arrow_type(loaded.schema["data"].dataType, "data", AS_JSON)
        try:
            contents = DataToArrow(kind).make([each.data for each in dataset.query(tree)])
        except InvalidInput:  # not all that seg holds can be JSON
            return
        assert Counter(map(repr, loaded.toArrow()["data"].to_pylist())) == Counter(map(repr, contents.to_pylist()))


@pytest.mark.check
def test_partitions_are_as_small_as_an_option_says_and_a_plan_is_logged(spark, dataset, logged, caplog):
    loaded = load(spark, dataset, match="station: <5", maxRowsPerPartition=10)
    assert loaded.rdd.getNumPartitions() == 4
    assert rows(loaded) == asked(dataset, "station: <5")
    line = f"{dataset.path}: planned a read, match 'station: <5': 4 partitions, 35 rows (counted)"
    assert line in logged()
    with caplog.at_level("INFO", logger="ondisk.spark"):
        dataset.index_frame(spark, "station: <5")
    assert f"{dataset.path}: read, match 'station: <5': 35 rows (counted)" in caplog.messages


def test_large_answers_are_loads(spark, dataset, monkeypatch):
    monkeypatch.setattr(dataframe, "SMALL", 5)
    condition = dataset.fields.product.startswith("a") | ~dataset.fields.key.is_null()
    large = dataset.index_frame(spark, condition)
    assert large.inputFiles() == []
    assert "BatchScan" in large._jdf.queryExecution().toString()
    assert rows(large) == asked(dataset, condition)
    assert rows(dataset.index_frame(spark, "station: 1 or 2", data=True)) == asked(
        dataset, "station: 1 or 2", data=True
    )


def test_small_answers_are_no_scan(spark, dataset):
    small = dataset.index_frame(spark, "station: 3", columns=["station", "reftime"])
    assert small.columns == ["station", "reftime"]
    assert "LocalTableScan" in small._jdf.queryExecution().toString()


@pytest.mark.check
def test_the_program_itself_opens_no_second_library_of_sqlite():
    code = "import sys, ondisk.spark.dataframe; print([name for name in sys.modules if name.startswith('adbc')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_view_takes_the_options(spark, dataset):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW some USING ondisk"
        f" OPTIONS (path '{dataset.path}', match 'station: 3', columns 'station, reftime')"
    )
    assert spark.sql("SELECT * FROM some").columns == ["station", "reftime"]
    assert spark.sql("SELECT count(*), min(station), max(station) FROM some").collect() == [(7, 3, 3)]


def test_data_become_a_struct(spark, dataset):
    reader = spark.read.format("ondisk").option("match", "station: 3")
    reader = reader.schema("reftime timestamp, data struct<wind: double, note: string, lacks: int>")
    got = reader.load(str(dataset.path))
    row = got.orderBy("reftime").first()
    assert row.data.asDict() == {"wind": 1.5, "note": "é3", "lacks": None}
    assert got.where("data.wind > 10").count() == 4


def test_a_schema_of_the_user_is_read(spark, dataset):
    reader = spark.read.format("ondisk").schema("product string, data struct<wind: double>, reftime timestamp")
    frame = reader.load(str(dataset.path))
    assert frame.columns == ["product", "data", "reftime"]
    assert frame.orderBy("reftime").first().data.wind == 0.0
    binary = spark.read.format("ondisk").schema("data binary").load(str(dataset.path))
    assert b'"wind"' in bytes(binary.first().data)


def test_data_of_vm2_are_bytes(spark, create):
    dataset = create(format="vm2", fields={"area": "text"})
    dataset.append([Datum(T, {}, b"202611200000,1,2,3.5,,,000000000")])
    [row] = load(spark, dataset, data="true").collect()
    assert (row.area, bytes(row.data)) == ("VM2,1", b"202611200000,1,2,3.5,,,000000000")
    with pytest.raises(Exception, match=r"data is b'2026.*, not struct<wind: double>"):
        spark.read.format("ondisk").schema("data struct<wind: double>").load(str(dataset.path)).collect()


@pytest.mark.check
def test_an_index_that_was_lost_gives_no_answer_until_it_is_built_anew(spark, create):
    dataset = create(**CONFIG)
    dataset.append([Datum(T, {"station": 1}, {})])
    dataset.close()
    for path in dataset.path.glob("index.sqlite*"):
        path.unlink()
    with ondisk.open(dataset.path, read_only=True) as dataset:
        for ask in (load(spark, dataset).count, lambda: dataset.index_frame(spark)):
            with pytest.raises(Exception, match="its index was lost, and may not know all data") as caught:
                ask()
            assert f"`ondisk fix {dataset.path} --yes`" in error(caught)
    with ondisk.open(dataset.path) as dataset:
        dataset.append([Datum(T, {"station": 2}, {})])  # into a rebuilt index, which does not know the first
        with pytest.raises(Exception, match="its index was lost, and may not know all data"):
            load(spark, dataset).count()
        dataset.fix()
        assert load(spark, dataset).count() == dataset.index_frame(spark).count() == 2


def test_an_empty_dataset_has_columns_and_no_rows(spark, create):
    dataset = create(**CONFIG)
    for empty in (load(spark, dataset), dataset.index_frame(spark)):
        assert empty.columns[:2] == ["reftime", "station"]
        assert empty.collect() == []
        assert empty.groupBy().count().collect() == [(0,)]


def test_fields_that_are_called_as_columns_have_another_name(spark, create):
    dataset = create(format="jsonl", fields={"size": "text", "f_size": "integer", "data": "real"})
    dataset.append([Datum(T, {"size": "large", "f_size": 5, "data": 1.5}, {})])
    [row] = load(spark, dataset).collect()
    assert (row.f_f_size, row.f_size, row.f_data, row.segment) == ("large", 5, 1.5, "2026/11-20.jsonl")


@pytest.mark.check
def test_archives_are_read_too(spark, dataset):
    dataset.archive("2026/11-20.seg")
    assert rows(load(spark, dataset, data="true")) == asked(dataset, data=True)
    assert load(spark, dataset, match="reftime: =2026-11-20").select("segment").distinct().collect() == [
        (".archive/last/2026/11-20.seg",)
    ]


def test_text_matches_by_any_component(spark, create):
    """In SQLite a function of Python tells it, which ADBC does not have."""
    dataset = create(format="jsonl", fields={"product": "text"})
    dataset.append([Datum(T + timedelta(seconds=n), {"product": f"GRIB,{n % 5},{n}"}, {}) for n in range(300)])
    for match in ("product: GRIB,,7", "product: ,3"):
        assert load(spark, dataset, match=match).count() == dataset.summary(match).count > 0


@pytest.mark.parametrize("step", ["delete", "repack"])
def test_what_has_gone_since_is_a_clear_error_and_a_new_load_is_right(spark, dataset, step):
    frame = load(spark, dataset)
    assert frame.count() == 48
    dataset.append([datum(100, 1)])
    assert frame.count() == 48  # as it was planned
    match step:
        case "delete":
            dataset.delete("station: 3")
        case "repack":
            dataset.delete("station: 3")
            dataset.repack()
    with pytest.raises(Exception, match="has changed since this DataFrame was planned") as caught:
        frame.count()
    assert "Load the DataFrame again" in error(caught)
    assert rows(load(spark, dataset)) == asked(dataset)


def test_a_damaged_segment_is_named(spark, dataset):
    frame = load(spark, dataset, columns="station", data="true")
    path = dataset.path / "2026/11-20.seg"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Exception, match=r"2026/11-20\.seg") as caught:
        frame.collect()
    assert "SegmentCorrupt" in error(caught)


@pytest.mark.parametrize("name", ["damaged", "Damaged"])
def test_spark_refuses_to_leave_out_damaged_data_by_name(name):
    with pytest.raises(InvalidInput, match="Spark cannot leave out damaged data") as caught:
        check_options({name: "skip"}, ["path", "match"])
    assert "--skip-damaged --parquet FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"macth": "station: 3"}, "unknown option 'macth'", "The options are path, match, columns"),
        ({"match": "stations: 3"}, "there is no field 'stations'", "Did you mean `station`?"),
        ({"match": "metadata.x: 3"}, "the index cannot select by 'metadata.x'", "Declare 'x'"),
        ({"columns": "station,nothing"}, "there is no column 'nothing'", "The columns are reftime, station"),
        ({"columns": "station,station"}, "columns must name at least one column, and each only once", ""),
        (
            {"maxRowsPerPartition": "0"},
            "the option maxRowsPerPartition must be a number of rows, 1 or more",
            "",
        ),
        ({"maxBytesPerPartition": "128m"}, "the option maxBytesPerPartition must be a number of bytes, 1 or more", ""),
        ({"data": "yes"}, "the option data must be true or false, not 'yes'", ""),
    ],
)
def test_what_cannot_be_is_said_with_its_remedy(spark, dataset, options, message, hint):
    with pytest.raises(Exception, match="ondisk") as caught:
        load(spark, dataset, **options).collect()
    assert message in error(caught)
    assert hint in error(caught)


@pytest.mark.check
def test_column_names_follow_the_case_rule_of_spark(spark, create):
    dataset = create(format="jsonl", fields={"area": "text"})
    dataset.append([Datum(T, {"area": "a"}, {"x": 5})])
    assert load(spark, dataset, columns="AREA, RefTime, Data").columns == ["area", "reftime", "data"]
    assert dataset.index_frame(spark, columns=["Area", "SIZE"]).columns == ["area", "size"]
    reader = spark.read.format("ondisk").schema("DATA struct<x: int>, AREA string, SEGMENT string")
    frame = reader.load(str(dataset.path))
    assert frame.columns == ["DATA", "AREA", "SEGMENT"]
    assert frame.select("data.x", "area", "SEGMENT").collect() == [(5, "a", "2026/11-20.jsonl")]
    with pytest.raises(InvalidInput, match="each only once"):
        dataset.index_frame(spark, columns=["area", "AREA"])


@pytest.mark.parametrize("name", ["columns", "data"])
@pytest.mark.parametrize("make", [source.reader, StreamReader])
def test_a_schema_beside_columns_or_data_is_refused(dataset, monkeypatch, name, make):
    for module in (source, stream):
        monkeypatch.setattr(module, "connect", connect_to_read)  # this process has the dataset open with sqlite3
    options = {"path": str(dataset.path), name: {"columns": "reftime", "data": "true"}[name]}
    with pytest.raises(InvalidInput, match=f"the option {name} is of no use beside a schema") as caught:
        make(options, StructType().add("station", LongType()))
    assert caught.value.hint == "Name all columns in the schema, also data; or remove the schema."
    make(options, source.schema(options))
    make({"path": str(dataset.path)}, StructType().add("station", LongType()))


def test_a_table_of_the_catalog_is_refused(spark, dataset):
    with pytest.raises(Exception, match="a dataset cannot be a table of Spark's catalog") as caught:
        spark.sql(f"CREATE TABLE weather USING ondisk OPTIONS (path '{dataset.path}')")
    assert "Use CREATE TEMPORARY VIEW name USING ondisk" in error(caught)


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("s3a://bucket/weather", "'s3a://bucket/weather' is not on a local or mounted filesystem", "Mount it"),
        ("hdfs://host:8020/weather", "is not on a local or mounted filesystem", "such as Parquet"),
        ("file://host/weather", "'file://host/weather' is not on a local", "Mount it at the same path"),
        ("dbfs:/weather", "is not on a local or mounted filesystem", ""),
        ("~/weather", "the path '~/weather' begins with ~, which only a shell replaces", "/weather', for example"),
    ],
)
def test_a_path_that_is_none_of_this_machine_is_explained(path, message, hint):
    with pytest.raises(InvalidInput, match=re.escape(message)) as caught:
        source.path_of({"path": path})
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("package", "call"),
    [("pyspark", "ondisk.spark.session()"), ("pyarrow", "ondisk.open(sys.argv[1], read_only=True).index_frame(None)")],
)
def test_a_package_that_is_not_installed_is_named_with_its_remedy(dataset, package, call):
    code = f"import sys; sys.modules[{package!r}] = None; import ondisk, ondisk.spark; {call}"
    done = subprocess.run([sys.executable, "-c", code, str(dataset.path)], capture_output=True, text=True)
    [said] = [line for line in done.stderr.splitlines() if "Error: Spark is not installed" in line]
    assert said.startswith("ondisk.errors.StateError: ")
    assert package in said
    assert "pip install 'ondisk[spark]'" in done.stderr


def test_a_wrong_type_in_a_schema_is_said(spark, dataset):
    with pytest.raises(Exception, match=r"data.note is 'é0', not int") as caught:
        spark.read.format("ondisk").schema("data struct<note: int>").load(str(dataset.path)).collect()
    assert "Use another type for data.note" in error(caught)
    with pytest.raises(Exception, match="the column station is bigint, not int"):
        spark.read.format("ondisk").schema("station int").load(str(dataset.path)).collect()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("station bigint, station bigint", "the schema names the column station twice"),
        ("data struct<a: int, b: int, a: int>", "the schema names the column data.a twice"),
        (DATA_NOT_NULL, "the column data.many[].x may be NULL"),
    ],
)
def test_what_spark_would_rely_on_in_a_schema_is_said(spark, dataset, schema, message):
    with pytest.raises(Exception, match="ondisk") as caught:
        spark.read.format("ondisk").schema(schema).load(str(dataset.path)).collect()
    assert message in error(caught)


@pytest.mark.check
@pytest.mark.parametrize("begin", ["file:", "file://", "file://localhost", "/"])
def test_a_path_may_be_an_address(spark, dataset, begin):
    assert spark.read.format("ondisk").load(f"{begin}{dataset.path}").count() == 48


def test_a_path_without_a_dataset_is_said(spark, tmp_path):
    with pytest.raises(Exception, match="holds no dataset") as caught:
        spark.read.format("ondisk").load(str(tmp_path / "nothing"))
    assert "ondisk init" in error(caught)


def test_index_frame_checks_what_it_is_given(spark, dataset):
    with pytest.raises(InvalidInput, match="columns is a list of names") as caught:
        dataset.index_frame(spark, columns="reftime, station")
    assert caught.value.hint == "Write ['reftime', 'station']."
    with pytest.raises(InvalidInput, match="there is no column 'nothing'"):
        dataset.index_frame(spark, columns=["nothing"])
    with pytest.raises(MatchError, match="no field"):
        dataset.index_frame(spark, "nothing: 5")


def test_a_worker_in_which_ondisk_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ondisk.spark.source", None)
    with pytest.raises(ImportError, match=r"Spark's workers run .*python.*: set PYSPARK_PYTHON"):
        DefaultSource({})


@pytest.mark.check
def test_it_can_be_registered_beside_discovery(spark, dataset):
    register(spark)
    assert load(spark, dataset).count() == 48


@pytest.mark.slow
def test_a_fresh_process_finds_it_without_registration(java, tmp_path, dataset):
    """With Spark's own session, and the settings it has of itself."""
    code = f"""if True:
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        loaded = spark.read.format("ondisk").load({str(dataset.path)!r})
        assert loaded.where("station = 3").count() == 7
        print(loaded.count())
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": java,
    }
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300
    )
    assert done.stdout.strip() == "48", done.stderr
    assert done.stderr.count("where and select read all data, since Spark has no connector") == 1
