"""Spark filters the rows that it has read, also where it is told to hand its filters to data sources."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

from spark.test_read import CONFIG, _plain, asked, load, rows, various

pytestmark = pytest.mark.usefixtures("pushdown")


@pytest.fixture
def dataset(create):
    made = create(**CONFIG)
    assert made.append(various()).imported == 48
    return made


CONDITIONS = [
    "station = 3", "station <=> 3", "station <=> NULL", "station != 3", "NOT (station = 3)", "station IN (1, 2, NULL)",
    "station NOT IN (1, 2)", "station NOT IN (1, NULL)", "station BETWEEN 2 AND 4", "station > 2.5", "-station < -3",
    "level = 0", "level > 1", "level < 'NaN'", "level <= double('NaN')", "level > double('NaN')",
    "level = double('inf')", "level IN (1.5, double('NaN'))", "NOT (level > 1)", "level IS NULL",
    "level IS NOT NULL", "level = -0.0",
    "product = 'é'", "product = 'e\u0301'", "product LIKE 'a%'", "product LIKE '%b'", "product LIKE '%\0%'",
    "product LIKE 'a%b'", "NOT (product LIKE 'a%')", "product = ''", "product > 'a'", "upper(product) = 'A'",
    "product < '\U00010000'", "product LIKE 'A%'", "contains(product, '')", "endswith(product, 'x')",
    "valid", "NOT valid", "valid = false", "valid IS NULL", "valid <=> NULL", "valid > false",
    "made = timestamp'2026-11-20 01:00:00'", "made > '2026-11-20 01:00:00.000001'", "to_date(made) = '2026-11-20'",
    "made > '1582-10-05'", "made = timestamp'1582-10-10 00:00:00'", "made IN (timestamp'1582-10-10 00:00:00', NULL)",
    "reftime >= '2026-11-20 12:00' AND reftime < '2026-11-21'", "to_date(reftime) = '2026-11-21'",
    "reftime = timestamp'2026-11-20 06:00:00+05:00'", "reftime < timestamp_ntz'2026-11-20 06:00'",
    "reftime IN ('2026-11-20', '2026-11-20 01:00')", "year(reftime) = 2026",
    "key = X'FFFE'", "key > X'61'", "key IN (X'', X'6100')", "key IS NULL",
    "station = 3 OR product = 'a'", "station = 3 AND (product = 'a' OR level > 0)", "NOT (station = 3 OR valid)",
    "segment = '2026/11-20.seg'", "size > 10 AND station = 1", "station = 1 AND station = 2", "station = 2 AND 1 = 1",
]  # fmt: skip


@pytest.mark.check
@pytest.mark.parametrize(
    ("zone", "some"),
    [
        pytest.param("UTC", CONDITIONS[::3], id="UTC"),
        pytest.param(
            "America/New_York", [each for each in CONDITIONS if "2026-" in each or "1582-" in each], id="New York"
        ),
        pytest.param("UTC", CONDITIONS, id="all", marks=pytest.mark.slow),
    ],
)
def test_filters_select_the_rows_that_they_select_from_parquet(spark, dataset, tmp_path, zone, some):
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        loaded = load(spark, dataset)
        loaded.coalesce(1).write.parquet(str(tmp_path / "parquet"))
        parquet = spark.read.parquet(str(tmp_path / "parquet"))
        # All conditions in one query: which rows does each select?
        chosen = [f"CASE WHEN ({each}) THEN reftime END AS c{at}" for at, each in enumerate(some)]
        by_parquet = [Counter(map(_plain, each)) for each in zip(*parquet.selectExpr(*chosen).collect(), strict=True)]
        for condition, wanted in zip(some, by_parquet, strict=True):
            del wanted[None]
            got = Counter(_plain(row.reftime) for row in loaded.where(condition).select("reftime").collect())
            assert got == wanted, condition
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.check
def test_one_frame_is_filtered_counted_and_united(spark, dataset):
    whole = load(spark, dataset)
    three = whole.where("station = 3")
    assert rows(three) == asked(dataset, "station: 3")
    assert rows(whole) == asked(dataset)
    assert rows(three.unionAll(whole.where("station = 4"))) == asked(dataset, "station: 3 or 4")


def test_a_frame_is_counted_after_a_filter_of_it_was_explained(spark, dataset, capsys):
    whole = load(spark, dataset)
    whole.where("station = 3").explain()
    assert "BatchScan" in capsys.readouterr().out
    assert whole.count() == 48


@pytest.mark.parametrize(("how", "count"), [("inner", 7), ("left_semi", 7), ("left_anti", 41)])
def test_a_frame_is_joined_with_a_filter_of_itself(spark, dataset, how, count):
    whole = load(spark, dataset)
    assert whole.join(whole.where("station = 3"), ["reftime", "station"], how).count() == count


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("reftime > timestamp'-0005-01-01'", 48),
        ("reftime < timestamp'0000-06-01' OR station = 3", 7),
        ("reftime != timestamp'+12026-01-01' AND station = 3", 7),
        ("reftime IN (timestamp'-0005-01-01', timestamp'2026-11-20')", 1),
    ],
)
def test_a_filter_may_name_a_year_that_python_lacks(spark, dataset, condition, count):
    assert load(spark, dataset).where(condition).count() == count


@pytest.mark.check
def test_other_data_sources_take_filters_all_the_same(spark, dataset):
    class Filtered(DataSource, DataSourceReader):
        """Another data source, with a row for each filter that Spark hands over."""

        def __init__(self, options):
            super().__init__(options)
            self.found = []

        @classmethod
        def name(cls):
            return "filtered"

        def schema(self):
            return "station bigint"

        def reader(self, schema):
            return self

        def pushFilters(self, filters):  # noqa: N802
            self.found = [each.value for each in filters if isinstance(each, EqualTo)]
            return [each for each in filters if not isinstance(each, EqualTo)]

        def partitions(self):
            return [InputPartition(each) for each in self.found]

        def read(self, partition):
            yield (partition.value,)

    spark.dataSource.register(Filtered)
    for _ in range(3):  # by the same workers
        assert load(spark, dataset).where("station = 3").count() == 7
        assert spark.read.format("filtered").load().where("station = 5").count() == 1
