"""A session of Spark Connect gets the connector from its client: an own process, since Spark has one kind for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

import ondisk
from ondisk import Datum
from ondisk.spark import register

config = {"format": "jsonl", "step": "daily", "fields": {"station": "integer"}}
with ondisk.create(sys.argv[1] + "/weather", config) as made:
    begin = datetime(2026, 11, 20, tzinfo=UTC)
    made.append(Datum(begin + timedelta(hours=hour), {"station": hour % 5}, {"x": hour}) for hour in range(100))
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for _ in range(2):
    register(spark)
    loaded = spark.read.format("ondisk").load(sys.argv[1] + "/weather")
chosen = loaded.where("station = 3")
assert "ondisk pushed [station IS NOT NULL, station = 3]" in chosen._explain_string()
assert chosen.count() == 20
assert [row.data for row in chosen.orderBy("reftime").select("data").limit(2).collect()] == ['{"x":3}', '{"x":8}']
assert {row.station: row["count"] for row in loaded.groupBy("station").count().collect()} == dict.fromkeys(range(5), 20)
spark.conf.set("spark.sql.catalog.all", "ondisk.spark.OndiskCatalog")
spark.conf.set("spark.sql.catalog.all.root", sys.argv[1])
options = "TBLPROPERTIES (format = 'jsonl', step = 'daily')"
spark.sql(f"CREATE TABLE all.two (reftime TIMESTAMP, station BIGINT, data STRING) {options}")
spark.sql("INSERT INTO all.two SELECT * FROM all.weather WHERE station < 2")
spark.sql("DELETE FROM all.two WHERE station = 0")
assert spark.sql("SELECT station, count(*) FROM all.two GROUP BY station").collect() == [(1, 20)]
spark.stop()
"""


@pytest.mark.slow
def test_a_client_registers_the_connector_and_uses_all_of_it(java, tmp_path):
    pytest.importorskip("grpc", reason="Spark Connect is not installed: pip install 'pyspark[connect]'")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=Path(tmp_path), env=environment,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
