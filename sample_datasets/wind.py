"""Compute the mean wind of each station with Spark: `python sample_datasets/wind.py DATASET`."""

import sys
from pathlib import Path

from ondisk.spark import session

spark = session("local[2]", spark__ui__enabled="false")
wind = spark.read.format("ondisk").option("match", "product: VM2,3").option("columns", "area, data")
wind.load(str(Path(sys.argv[1]).resolve())).createOrReplaceTempView("wind")
spark.sql("""
    SELECT area, count(*) AS data, round(avg(double(split(string(data), ',')[3])), 1) AS mean
    FROM wind GROUP BY area ORDER BY area
""").show()
