"""Items in Spark: texts in arkimet's notation, whose conditions mean the same as everywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

import ondisk
from ondisk.config import DatasetConfig

SAMPLES = Path(__file__).parents[2] / "sample_datasets"
MATCHES = {
    "level: GRIB2S,100": 12,
    "level: GRIB2S,100,,85000 or GRIB2S,103; timerange: Timedef,6h": 4,
    "run: MINUTE,12; area: GRIB:Nj=8,Ni=12": 9,
    "step: >=6h; level_value: <60000": 8,
}


@pytest.mark.check
def test_conditions_on_items_select_the_same_rows(spark, tmp_path):
    config = DatasetConfig.from_toml((SAMPLES / "forecast.toml").read_text())
    path = tmp_path / "model"
    with ondisk.create(path, config) as dataset:
        dataset.append_file(SAMPLES / "forecast.grib")
        for match, count in MATCHES.items():
            expected = sorted((each.metadata["level"], each.location.offset) for each in dataset.query(match))
            frame = spark.read.format("ondisk").option("match", match).load(str(path))
            found = sorted((row["level"], row["offset"]) for row in frame.select("level", "offset").collect())
            assert (len(found), found) == (count, expected)
    levels = spark.read.format("ondisk").load(str(path)).filter("level = 'GRIB2S,103,0,2'")
    assert levels.count() == 6
