"""The question to Spark that `make demo` ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ondisk
from ondisk.config import DatasetConfig

SAMPLES = Path(__file__).parents[2] / "sample_datasets"


@pytest.mark.slow
def test_the_demo_asks_spark_for_the_mean_wind(tmp_path: Path) -> None:
    config = DatasetConfig.from_toml((SAMPLES / "observations.toml").read_text())
    with ondisk.create(tmp_path / "weather", config) as dataset:
        for number in (1, 2):
            dataset.append_file(SAMPLES / f"observations-{number}.vm2")
        winds = [float(datum.data.split(b",")[3]) for datum in dataset.query("area: VM2,104; product: VM2,3")]
    asked = [sys.executable, SAMPLES / "wind.py", dataset.path]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert f"|VM2,104|{len(winds):>4}|{round(sum(winds) / len(winds), 1):>4}|" in said
    assert said.count("|VM2,") == 6
