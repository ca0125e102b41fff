"""Writing DataFrames to datasets: the result is that of an append of the same data, all of it or nothing."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from drawn import up_to
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kit import EVERY_TYPE, strategies
from worlds import content, same

import ondisk
from ondisk import Datum
from ondisk.maintenance.states import State
from ondisk.replication import Replica

T = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = {"format": "seg", "step": "daily", "unique": ["reftime", "station"], "fields": {"station": "integer"}}
ROWS = "SELECT timestamp'2026-11-20 00:00:00Z' + make_interval(0,0,0,0,0,0,id) AS reftime, id AS station"


def data(count=48):
    """Data of all types of fields, which some lack."""
    for number in range(count):
        metadata = {
            "station": number % 7,
            "level": [0.0, -0.0, 1.5, float("inf")][number % 4],
            "product": ["a", "é", "", "\U00010000x"][number % 4],
            "valid": number % 2 == 0,
            "made": T + timedelta(hours=number % 5, microseconds=number % 3),
            "key": [b"", b"\xff\xfe"][number % 2],
        }
        lacking = {name for at, name in enumerate(metadata) if number % (at + 5) == 0}
        metadata = {name: each for name, each in metadata.items() if name not in lacking}
        yield Datum(T + timedelta(hours=number), metadata, {"wind": number / 2, "note": f"é{number}"})


def load(spark, dataset, **options):
    return spark.read.format("ondisk").options(**options).load(str(dataset.path))


def write(frame, dataset, mode="append", **options):
    frame.write.format("ondisk").mode(mode).options(**options).save(str(dataset.path))


def check_sound(dataset, *, failed=False):
    """Nothing is wrong, and nothing left of what was staged; of a job that failed, nothing that check does not name."""

    def look():
        """Return the staged files before a check, those that it names, and its report."""
        before = sorted(f".staged/{each.name}" for each in dataset.path.glob(".staged/*"))
        report = dataset.check(accurate=True)
        named = [each.segment for each in report if each.segment.startswith(".staged")]
        return before, named, report

    left, named, report = look()
    end = time.monotonic() + 30
    while failed and named != left and time.monotonic() < end:  # other tasks of the job still end
        left, named, report = look()
    assert [each for each in report if each.state & ~State.DIRTY] == []
    assert left == [] or failed
    assert named == left


@pytest.mark.check
def test_a_replica_refuses_a_write_before_anything_is_staged(spark, create, tmp_path):
    source = create("source", fields={"station": "integer"})
    source.append(data())
    with Replica.create(tmp_path / "replica", source.path) as replica:
        with pytest.raises(Exception, match="is a replica"):
            write(load(spark, source, data="true").drop("segment", "offset", "size"), replica.dataset)
        assert not [*replica.dataset.path.glob(".staged/*")]


@pytest.mark.check
def test_what_was_read_can_be_written_elsewhere(spark, create):
    config = {"format": "seg", "unique": ["reftime", "station"], "fields": EVERY_TYPE}
    source, target = create("source", **config), create("target", **config, compression="none")
    source.append(data())
    rows = load(spark, source, data="true")  # also with the location of each datum
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write(rows.repartition(3), target)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert same(content(target), content(source))
    write(rows, target)  # nothing but duplicates
    assert same(content(target), content(source))
    check_sound(target)


@pytest.mark.check
@pytest.mark.parametrize("format", ["seg", "jsonl"])
def test_structs_become_data_without_what_is_null(spark, create, format):
    dataset = create(**CONFIG | {"format": format})
    struct = """named_struct('wind', 1.5D, 'lacks', CAST(NULL AS int), 'at', timestamp'2026-11-20 06:00:00Z', 'many',
        array(1, NULL), 'inner', named_struct('x', X'FF', 'y', CAST(NULL AS string)), 'of', map('k', 5L, 'n', NULL))"""
    write(spark.sql(f"{ROWS}, {struct} AS data FROM range(2)"), dataset)
    [first, _] = [each.data for each in dataset.query()]
    assert first == {
        "wind": 1.5,
        "at": "2026-11-20T06:00:00Z",
        "many": [1, None],
        "inner": {"x": b"\xff"},
        "of": {"k": 5},
    }
    assert list(first) == ["wind", "at", "many", "inner", "of"]


@pytest.mark.check
@pytest.mark.parametrize("format", ["seg", "jsonl"])
def test_undeclared_columns_become_keys_of_the_content_as_those_of_a_table_of_arrow_do(spark, create, format):
    written, appended = (create(name, **CONFIG | {"format": format}) for name in ("written", "appended"))
    frame = spark.sql(f"""{ROWS}, 1.5D AS t, IF(id = 0, NULL, 'é') AS `data.note`, 1 AS `a.b`, array(1, NULL) AS many,
        named_struct('x', X'FF', 'y', CAST(NULL AS string)) AS inner, map('k', 5L, 'n', NULL) AS of,
        timestamp'2026-11-20 06:00:00Z' AS at, timestamp_ntz'2026-11-20 06:00:00' AS local, date'2026-11-20' AS day
        FROM range(2)""")
    write(frame, written)
    appended.append_arrow(frame.toArrow())
    [first, second] = [each.data for each in written.query()]
    assert first == {
        "t": 1.5,
        "a.b": 1,
        "many": [1, None],
        "inner": {"x": b"\xff"},
        "of": {"k": 5},
        "at": "2026-11-20T06:00:00Z",
        "local": "2026-11-20T06:00:00",
        "day": "2026-11-20",
    }
    assert second == first | {"note": "é"}
    assert same(content(written), content(appended))
    assert written.to_pandas()["data.t"].tolist() == [1.5, 1.5]
    loaded = spark.read.format("ondisk").schema("data struct<t: double, note: string>").load(str(written.path))
    assert sorted(map(tuple, loaded.selectExpr("data.t", "data.note").fillna("").collect())) == [(1.5, ""), (1.5, "é")]


def test_an_hourly_dataset_is_written_and_read_by_reftime_in_partitions(spark, create):
    dataset = create(**CONFIG | {"step": "hourly"})
    write(spark.sql(f"{ROWS.replace('id)', '900 * id)')} FROM range(48)"), dataset)
    loaded = load(spark, dataset, match="reftime: >=2026-11-20 03:00, <2026-11-20 06:00", maxRowsPerPartition=5)
    assert loaded.rdd.getNumPartitions() == 3
    found = {(row.station, row.segment) for row in loaded.select("station", "segment").collect()}
    assert found == {(number, f"2026/11-20T{number // 4:02}.seg") for number in range(12, 24)}


def test_strings_are_json_or_text_by_the_format(spark, create):
    seg, vm2 = create("seg", **CONFIG), create("vm2", format="vm2", fields={"area": "text"})
    write(spark.sql(f"""{ROWS}, '{{"a": [1, {{"$bytes": "/w=="}}]}}' AS data FROM range(1)"""), seg)
    assert [each.data for each in seg.query()] == [{"a": [1, b"\xff"]}]
    write(
        spark.sql("SELECT timestamp'2026-11-20 00:00:00Z' AS reftime, '202611200000,1,2,3.5,,,000000000' AS data"), vm2
    )
    assert [(each.data, each.metadata["area"]) for each in vm2.query()] == [
        (b"202611200000,1,2,3.5,,,000000000", "VM2,1")
    ]


def test_bytes_become_files(spark, create):
    dataset = create(**CONFIG | {"format": "blob"})
    rows = spark.sql(f"{ROWS}, CAST(repeat('x', CAST(id AS int)) AS binary) AS data FROM range(5)").repartition(2)
    write(rows, dataset)
    write(rows, dataset)
    assert sorted(each.data for each in dataset.query()) == [b"x" * count for count in range(5)]
    check_sound(dataset)


def test_column_names_of_a_write_follow_the_case_rule_of_spark(spark, create):
    dataset = create(**CONFIG)
    row = "timestamp'2026-11-20' AS RefTime, 5L AS STATION, named_struct('wind', 1) AS Data"
    write(spark.sql(f"SELECT {row}"), dataset)
    [found] = dataset.query()
    assert (found.metadata, found.data) == ({"station": 5}, {"wind": 1})
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(Exception, match="two columns have the name 'station': 2 and 4"):
            write(spark.sql(f"SELECT {row}, 6L AS station"), dataset)
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")


@pytest.mark.check
def test_rows_without_data_and_narrower_types_are_taken(spark, create):
    dataset = create(**CONFIG | {"fields": {"station": "integer", "level": "real", "made": "timestamp"}})
    values = (
        "timestamp'2026-11-20' AS reftime, CAST(5 AS tinyint) AS station, CAST(1.5 AS float) AS level, NULL AS made"
    )
    write(spark.sql(f"SELECT {values}"), dataset)
    [found] = dataset.query()
    assert (found.metadata, found.data) == ({"station": 5, "level": 1.5}, {})


@given(st.data())
@settings(max_examples=up_to(5), phases=[Phase.generate])  # to shrink an example takes a quarter of an hour
def test_any_data_arrive(spark, given_data):
    format = given_data.draw(st.sampled_from(["jsonl", "seg", "vm2", "blob"]))
    config = given_data.draw(strategies.configs(format))
    some = given_data.draw(st.lists(strategies.data(config), max_size=12))
    with (
        tempfile.TemporaryDirectory() as folder,
        ondisk.create(Path(folder, "source"), config) as source,
        ondisk.create(Path(folder, "target"), config) as target,
    ):
        source.append(some)
        rows = load(spark, source, data="true").drop("segment", "offset", "size")
        try:
            rows.write.format("noop").mode("overwrite").save()  # reads all columns, which a count does not
        except Exception as error:
            if format != "seg" or "InvalidInput" not in str(error):
                raise
            return  # not all that seg holds can be JSON
        write(rows, target)
        assert declared(target) == declared(source)
        check_sound(target)


def declared(dataset):
    """Return the result of a query, with the metadata that have a column."""
    fields = dataset.config.fields
    return Counter(
        repr((each.reftime, {name: each.metadata.get(name) for name in fields}, each.data)) for each in dataset.query()
    )


def test_overwriting_replaces_what_matches(spark, create):
    dataset = create(**CONFIG)
    dataset.append([Datum(T + timedelta(days=day), {"station": day}, {"old": day}) for day in range(3)])
    rows = spark.sql(f"{ROWS}, named_struct('new', id) AS data FROM range(2)")
    write(rows, dataset, "overwrite", match="reftime: =2026-11-20 or =2026-11-21")
    assert [each.data for each in dataset.query()] == [{"new": 0}, {"new": 1}, {"old": 2}]
    write(rows.limit(0), dataset, "overwrite", match="")
    assert dataset.summary().count == 0


@pytest.mark.check
def test_rows_that_an_overwrite_does_not_replace_are_refused_unless_an_option_allows_them(spark, create):
    dataset = create(**CONFIG)
    dataset.append([Datum(T + timedelta(days=1), {"station": 1}, {"old": True})])
    rows = spark.sql(f"{ROWS}, named_struct('new', id) AS data FROM range(0, 4, 1, 2)")
    message = (
        r"the row with reftime 2026-11-20 00:00:02\+00:00, station 2 does not match"
        " 'reftime: =2026-11-20; station: 0 or 1 or 3', which the write overwrites; nothing was stored"
    )
    with pytest.raises(Exception, match=message) as caught:
        write(rows, dataset, "overwrite", match="reftime: =2026-11-20; station: 0 or 1 or 3")
    assert 'Filter the rows, or widen the match. With .option("constraintCheck", "false")' in str(caught.value)
    # Of the first or the second task:
    with pytest.raises(Exception, match=r"the row with reftime 2026-11-20 00:00:0[02]"):
        write(rows, dataset, "overwrite", match="reftime: =2026-11-21")
    assert [each.data for each in dataset.query()] == [{"old": True}]
    check_sound(dataset, failed=True)
    write(rows, dataset, "overwrite", match="reftime: =2026-11-21", constraintCheck="false")
    assert [each.data for each in dataset.query()] == [{"new": number} for number in range(4)]
    write(rows, dataset, "overwrite", match="reftime: =2026-11-20; station: <4", constraintCheck="TRUE")
    assert dataset.summary().count == 4


@pytest.mark.check
def test_duplicates_can_fail_the_write(spark, create):
    dataset = create(**CONFIG)
    write(spark.sql(f"{ROWS} FROM range(2)"), dataset, on_duplicate="fail")
    with pytest.raises(
        Exception, match="2 of 4 data are duplicates, the first has reftime 2026-11-20 00:00:00"
    ) as caught:
        write(spark.sql(f"{ROWS} FROM range(4)"), dataset, on_duplicate="fail")
    assert "DuplicateDatum" in str(caught.value)
    assert dataset.summary().count == 2
    write(spark.sql(f"{ROWS} FROM range(4)"), dataset, on_duplicate="skip")
    assert dataset.summary().count == 4
    check_sound(dataset)


@pytest.mark.parametrize(
    ("rows", "options", "message", "hint"),
    [
        (f"{ROWS}, 1 AS Size FROM range(1)", {}, "the dataset has no column 'Size'", "station, data and data.KEY"),
        (f"{ROWS}, 1 AS x, '{{}}' AS data FROM range(1)", {}, "data is the whole content, and x a part", "Drop one"),
        (f"{ROWS}, 1.5 AS x FROM range(1)", {}, "the column x cannot be decimal(2,1)", "Cast x to another type"),
        (f"{ROWS}, parse_json('1') AS x FROM range(1)", {}, "the column x cannot be variant", "such as string"),
        ("SELECT 1 AS station", {}, "the column reftime is missing", ""),
        (
            "SELECT current_timestamp() AS reftime, 'x' AS station",
            {},
            "the column station is bigint, not string",
            "cast",
        ),
        (
            "SELECT timestamp_ntz'2026-11-20' AS reftime",
            {},
            "the column reftime is timestamp, not timestamp_ntz",
            "cast",
        ),
        (f"{ROWS}, 1 AS data FROM range(1)", {}, "the column data cannot be int", "as a struct"),
        (f"{ROWS}, named_struct('a', 1.5) AS data FROM range(1)", {}, "data.a cannot be decimal(2,1)", "Cast data.a"),
        (f"{ROWS}, '[1' AS data FROM range(1)", {}, "data '[1': not JSON", ""),
        ("SELECT CAST(NULL AS timestamp) AS reftime", {}, "reftime is NULL", "Remove or correct"),
        (
            f"{ROWS}, named_struct('a', CAST(X'61ff' AS string)) AS data FROM range(1)",
            {},
            "a string is not UTF-8: 'utf-8' codec can't decode byte 0xff in position 1",
            "Remove or correct",
        ),
        (
            f"{ROWS}, '[1]' AS data FROM range(3)",
            {},
            " cannot be stored, the first: the data of seg must be a mapping",
            "",
        ),
        (f"{ROWS} FROM range(1)", {"on_duplicates": "fail"}, "unknown option 'on_duplicates'", "match"),
        (f"{ROWS} FROM range(1)", {"on_duplicate": "raise"}, "on_duplicate must be skip or fail, not 'raise'", ""),
        (f"{ROWS} FROM range(1)", {"match": ""}, "the option match is for the mode overwrite", ""),
        (f"{ROWS} FROM range(1)", {"constraintCheck": "true"}, "the option constraintCheck is for the mode", ""),
        (f"{ROWS} FROM range(1)", {"mode": "overwrite"}, "the mode overwrite needs the option match", "everything"),
        (
            f"{ROWS} FROM range(1) WHERE raise_error('tasks ran') IS NULL",
            {"mode": "overwrite", "match": "x: 1"},
            "there is no field 'x'",
            "",
        ),
        (
            f"{ROWS} FROM range(1) WHERE raise_error('tasks ran') IS NULL",
            {"mode": "overwrite", "match": "metadata.x: 1"},
            "the index cannot select by 'metadata.x'",
            "Declare 'x'",
        ),
    ],
)
def test_what_cannot_be_written_is_said_with_its_remedy(spark, create, rows, options, message, hint):
    dataset = create(**CONFIG)
    dataset.append([Datum(T, {"station": 99}, {})])
    with pytest.raises(Exception, match="ondisk") as caught:
        write(spark.sql(rows), dataset, **options)
    assert message in str(caught.value)
    assert hint in str(caught.value)
    assert dataset.summary().count == 1
    check_sound(dataset, failed=True)


@pytest.mark.parametrize(("mode", "message"), [("error", "ErrorIfExists"), ("ignore", "Ignore")])
def test_modes_that_spark_does_not_carry_fail(spark, create, mode, message):
    with pytest.raises(Exception, match="cannot be written") as caught:
        write(spark.sql(f"{ROWS} FROM range(1)"), create(**CONFIG), mode)
    assert f'in the "{message}" mode. Please use either the "Append" or "Overwrite" mode' in str(caught.value)


def test_a_partitioned_write_fails(spark, create):
    dataset = create(**CONFIG)
    with pytest.raises(Exception, match=r"(?i)partition"):
        spark.sql(f"{ROWS} FROM range(1)").write.format("ondisk").mode("append").partitionBy("station").save(
            str(dataset.path)
        )
    assert dataset.summary().count == 0


def test_a_path_without_a_dataset_is_said(spark, tmp_path):
    with pytest.raises(Exception, match="holds no dataset"):
        spark.sql(f"{ROWS} FROM range(1)").write.format("ondisk").mode("append").save(str(tmp_path / "nothing"))


def test_a_task_that_fails_leaves_nothing(spark, create):
    dataset = create(**CONFIG)
    rows = spark.sql(f"{ROWS} FROM range(0, 100, 1, 4) WHERE id < 80 OR raise_error('too bad') IS NULL")
    with pytest.raises(Exception, match="too bad"):
        write(rows, dataset)
    assert dataset.summary().count == 0
    check_sound(dataset, failed=True)
