"""The process that works on segments or files."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import ondisk


def test_it_works_on_what_it_is_told_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    with ondisk.create(tmp_path / "dataset", {"step": "daily"}) as dataset:
        dataset.append([ondisk.Datum(datetime(2026, 11, 20, tzinfo=UTC), {}, {})])
    command = [sys.executable, "-m", "ondisk.workers.worker", "check", str(dataset.path), "/", ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps("2026/11-20.seg").encode() + b"\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"segment": "2026/11-20.seg", "wrong": None}
        assert child.poll() is None
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait() == 0


def test_it_imports_no_spark() -> None:
    code = "import sys, ondisk.workers.worker, ondisk.workers.processes\nprint({'pyspark', 'pyarrow'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
