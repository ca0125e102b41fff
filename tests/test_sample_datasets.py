"""The sample datasets are what their generator creates, and contain what their README says."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ondisk
from ondisk.config import DatasetConfig

SAMPLES = Path(__file__).parents[1] / "sample_datasets"
README = (SAMPLES / "README.md").read_text(encoding="utf-8")
BEATS = {"beats-queue/0.seg": 8, "beats-queue/1.seg": 1, "beats-queue/2.seg": 20}
CONFIGS = {
    "observations.toml": ["observations-1.vm2", "observations-2.vm2"],
    "stations.toml": ["observations.jsonl"],
    "reports.toml": ["reports.bufr"],
    "forecast.toml": ["forecast.grib"],
}


def documented(file: str) -> tuple[int, int]:
    """Return the imported and duplicates that the README states for a file."""
    row = re.search(rf"^\| `{file}` .*\| (\d+) imported(?:, (\d+) duplicates)? \|$", README, re.MULTILINE)
    assert row
    return int(row[1]), int(row[2] or 0)


@pytest.mark.check
def test_the_commands_of_the_readme_work_in_the_folder_of_the_project_and_can_be_repeated(tmp_path):
    (tmp_path / "sample_datasets").symlink_to(SAMPLES)
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    ondisk = f'ondisk() {{ {sys.executable} -m ondisk "$@"; }}\n'
    for block in blocks * 2:
        subprocess.run(
            ["sh", "-ec", ondisk + block],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SAMPLES.parent)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    assert {path.name for path in tmp_path.iterdir()} == {"sample_datasets", "demo"}


def test_the_files_are_what_make_py_makes():
    made = runpy.run_path(str(SAMPLES / "make.py"))["files"]()
    assert set(made) == {file for files in CONFIGS.values() for file in files}
    for name, content in made.items():
        assert (SAMPLES / name).read_bytes() == content


@pytest.mark.parametrize(("name", "files"), [*CONFIGS.items()])
def test_appending_returns_the_documented_counts(tmp_path, name, files):
    config = DatasetConfig.from_toml((SAMPLES / name).read_text(encoding="utf-8"))
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for file in files:
            result = dataset.append_file(SAMPLES / file)
            assert (result.imported, result.duplicates) == documented(file)
            assert result.refused == 0
        assert dataset.summary().count == sum(documented(file)[0] for file in files)


def test_appending_the_disk_queue_of_beats_returns_the_documented_counts(tmp_path):
    config = DatasetConfig.from_toml((SAMPLES / "beats.toml").read_text(encoding="utf-8"))
    with ondisk.create(tmp_path / "dataset", config) as dataset:
        for file, count in BEATS.items():
            assert re.search(rf"^\| `{file}` .*\| {count} events? \|$", README, re.MULTILINE)
            result = dataset.append_file(SAMPLES / file)
            assert (result.imported, result.refused, result.damage, result.notes) == (count, 0, [], [])
        assert dataset.summary().count == sum(BEATS.values())
        assert [datum.metadata["_id"] for datum in dataset.query("pipeline: p")] == ["id-4", "id-14"]


@pytest.mark.check
def test_the_demo_runs_to_its_end(tmp_path):
    shutil.copytree(SAMPLES, tmp_path / "sample_datasets")
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin/java"  # Spark has tests of its own
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    path = f"{java.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    source = Path(ondisk.__file__).parent.parent
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(source)}
    done = subprocess.run(["sh", "sample_datasets/demo.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "Try it on this dataset" in done.stdout
