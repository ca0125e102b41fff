"""The sample datasets are what their generator makes, and hold what their README says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import ondisk
from ondisk.config import DatasetConfig

SAMPLES = Path(__file__).parents[1] / "sample_datasets"
README = (SAMPLES / "README.md").read_text(encoding="utf-8")
BEATS = {"beats-queue/0.seg": 8, "beats-queue/1.seg": 1, "beats-queue/2.seg": 20}
CONFIGS = {"observations.toml": ["observations-1.vm2", "observations-2.vm2"], "stations.toml": ["observations.jsonl"]}


def documented(file: str) -> tuple[int, int]:
    """Give the imported and duplicates that the README says of a file."""
    row = re.search(rf"^\| `{file}` .*\| (\d+) imported(?:, (\d+) duplicates)? \|$", README, re.MULTILINE)
    assert row
    return int(row[1]), int(row[2] or 0)


def test_the_files_are_what_make_py_makes():
    made = runpy.run_path(str(SAMPLES / "make.py"))["files"]()
    assert set(made) == {file for files in CONFIGS.values() for file in files}
    for name, content in made.items():
        assert (SAMPLES / name).read_bytes() == content


@pytest.mark.parametrize(("name", "files"), [*CONFIGS.items()])
def test_appending_gives_the_documented_counts(tmp_path, name, files):
    config = DatasetConfig.from_toml((SAMPLES / name).read_text(encoding="utf-8"))
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for file in files:
            result = dataset.append_file(SAMPLES / file)
            assert (result.imported, result.duplicates) == documented(file)
            assert result.refused == 0
        assert dataset.summary().count == sum(documented(file)[0] for file in files)


def test_the_disk_queue_of_beats_gives_the_documented_counts(tmp_path):
    config = DatasetConfig.from_toml((SAMPLES / "beats.toml").read_text(encoding="utf-8"))
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for file, count in BEATS.items():
            assert re.search(rf"^\| `{file}` .*\| {count} events? \|$", README, re.MULTILINE)
            result = dataset.append_file(SAMPLES / file)
            assert (result.imported, result.refused, result.damage, result.notes) == (count, 0, [], [])
        assert dataset.summary().count == sum(BEATS.values())
        assert [datum.metadata["_id"] for datum in dataset.query("pipeline: p")] == ["id-4", "id-14"]
