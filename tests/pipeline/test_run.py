"""A run finds its files and checks its datasets before it starts Spark."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ondisk
from ondisk.errors import ConfigError, LockError, NotFound, StorageError
from ondisk.pipeline import pipeline
from ondisk.pipeline.run import Pipeline
from pipeline.world import CONFIG, DATASET, begin, line, put, run


@pytest.mark.check
def test_it_imports_no_spark() -> None:
    code = "import sys, ondisk.pipeline.divide_file; print({'pyspark', 'ondisk.spark'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_imported(place: Path) -> None:
    for name in ("a.jsonl", "b/c.jsonl", "d/e.jsonl"):
        put(place, name, line(1))
    (place / "incoming/b").chmod(0)
    with Pipeline.open(place / "pipeline.toml") as run:
        assert [file.name for file in run.waiting] == ["a.jsonl", "d/e.jsonl"]
        assert (run.report.failed, run.report.exit_code) == ([("b", "Permission denied")], 50)


@pytest.mark.check
def test_a_name_with_a_newline_is_no_message_of_its_own(place: Path) -> None:
    put(place, "a\nondisk: error: forged", "?")
    put(place, "b\nondisk: error: forged.jsonl", "?")
    (place / "incoming/c\nondisk: error: forged.jsonl.gz").write_bytes(gzip.compress(line(1).encode())[:-1])
    printed = run(place).stderr.splitlines()
    assert sorted(each.split("\\n")[0] for each in printed) == [
        "ondisk: damaged: c",
        "ondisk: error: a",
        "ondisk: refused: b",
    ]


def test_of_two_runs_the_second_ends_at_once(place: Path) -> None:
    with (
        Pipeline.open(place / "pipeline.toml"),
        pytest.raises(LockError, match=r"the lock of a pipeline, held by process \d+ on .* \(pipeline, since "),
    ):
        pipeline(place / "pipeline.toml")
    begin(place / "pipeline.toml")


@pytest.mark.check
def test_what_maintenance_did_is_printed_where_its_metrics_cannot_be_written(place: Path) -> None:
    (place / "pipeline.toml").write_text(CONFIG.replace("maintenance = false", '[maintenance]\nmetrics = "no/file"'))
    done = run(place)
    assert done.returncode == 10
    assert done.stdout.count(" OK; ") == 4
    assert "no such directory" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("error", 'unique = ["reftime"]\n', "unique: must be empty"),
        ("duplicates", "max_datum_size = 5\n", "max_datum_size: 5 is less than the 134217728 of .*low"),
        ("duplicates", "max_depth = 5\n", "max_depth: 5 is less than the 64 of .*low"),
        ("error", 'fields = {station = "text"}\n', "fields.station: is text, and integer in .*low"),
    ],
)
def test_a_dataset_that_cannot_keep_what_comes_is_refused_beforehand(
    place: Path, name: str, text: str, problem: str
) -> None:
    (place / name / "dataset.toml").write_text('format = "jsonl"\nstep = "daily"\n' + text)
    with pytest.raises(ConfigError, match=problem):
        begin(place / "pipeline.toml")


@pytest.mark.parametrize("key", ["input", "error"])
def test_a_path_that_is_too_long_is_an_error_of_storage(place: Path, key: str) -> None:
    (place / "pipeline.toml").write_text(re.sub(f"{key} = .*", f'{key} = "{"x" * 5000}"', CONFIG))
    with pytest.raises(StorageError, match="File name too long"):
        begin(place / "pipeline.toml")


def test_a_dataset_without_a_filter_is_refused_and_so_is_a_folder_that_is_not_there(place: Path) -> None:
    (place / "incoming").rmdir()
    with pytest.raises(NotFound, match="incoming: no such folder"):
        begin(place / "pipeline.toml")
    ondisk.create(place / "all", DATASET).close()
    (place / "pipeline.toml").write_text(CONFIG.replace('"low"', '"all"'))
    with pytest.raises(ConfigError, match=r"all/dataset\.toml: filter is required"):
        begin(place / "pipeline.toml")
