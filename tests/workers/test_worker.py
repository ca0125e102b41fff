"""The process that works on segments or files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ondisk
from ondisk.staging.jobs import STAGED
from ondisk.staging.stage import FinishedStage


def test_it_works_on_what_it_is_told_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", {"step": "daily"}) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {})])
    command = [sys.executable, "-m", "ondisk.workers.worker", "check", str(dataset.path), "/"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b'""\n' + json.dumps("2026/11-20.seg").encode() + b"\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"segment": "2026/11-20.seg", "wrong": None}
        assert child.poll() is None
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait() == 0


@pytest.mark.check
def test_it_stages_the_rows_of_a_compressed_table(tmp_path: Path) -> None:
    """As executors of Spark do: with the default options of tables."""
    table = tmp_path / "table.csv.gz"
    table.write_bytes(gzip.compress(b"reftime,temp\n2026-11-20T06:00:00Z,1.5\nsoon,2\n"))
    with ondisk.create(tmp_path / "dataset", {"step": "daily"}) as dataset:
        command = [sys.executable, "-m", "ondisk.workers.worker", "append", str(dataset.path), f"{STAGED}/job/"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b'""\n' + json.dumps(str(table)).encode() + b"\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
            child.stdin.close()
        assert answer["refused"] == 1
        assert dataset.append_staged(answer["job"], [FinishedStage(*answer["staged"])]).imported == 1
        assert [each.data for each in dataset.query()] == [{"temp": 1.5}]


def test_it_imports_no_spark() -> None:
    code = "import sys, ondisk.workers.worker, ondisk.workers.work\nprint({'pyspark', 'pyarrow'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
