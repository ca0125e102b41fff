"""Processes of this machine import the files of a pipeline; tests/pipeline/test_pipeline.py has the data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pipeline.world import ENVIRONMENT, create, line, put

import ondisk
from ondisk.errors import StateError
from ondisk.pipeline import pipeline
from ondisk.workers import work


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return create(tmp_path)


def stored(place: Path) -> int:
    with ondisk.open(place / "low", read_only=True) as dataset:
        return dataset.count()


def test_a_process_that_is_killed_fails_its_file_and_no_other(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        put(place, f"{number}.jsonl", line(1, number))
    real = work.answered

    def answered(child, names):
        if "2.jsonl" in names[0]:  # the first of the rest: it is killed before it can answer
            child.kill()
            child.wait()
        for answer in real(child, names):
            yield answer
            if "1.jsonl" in answer["segment"]:
                child.kill()
                child.wait()

    monkeypatch.setattr(work, "answered", answered)
    report = pipeline(place / "pipeline.toml")
    assert [(name, "was killed" in reason) for name, reason in report.failed] == [("2.jsonl", True)]
    assert (report.imported, stored(place), report.exit_code) == (5, 5, 1)
    monkeypatch.undo()
    report = pipeline(place / "pipeline.toml")
    assert (report.imported, stored(place), report.exit_code) == (1, 6, 0)


def test_a_dataset_that_processes_cannot_open_is_an_error(place: Path) -> None:
    with pytest.raises(StateError, match="nowhere holds no dataset"):
        [*work.imports(str(place / "nowhere"), {"a": 1}, ".staged/job", "{}")]


@pytest.mark.check
def test_ctrl_c_ends_the_run_and_its_processes(place: Path) -> None:
    os.mkfifo(place / "gate")
    put(place, "a.jsonl", line(1))
    program = f"""
import os, sys
from ondisk.pipeline import pipeline
from ondisk.workers import work
real = work.answered
def answered(child, names):
    with open({str(place / "gate")!r}, "w") as gate:
        gate.write(str(child.pid))
    child.stdout.readline()  # it waits for a name, for ever
    yield from real(child, names)
work.answered = answered
pipeline(sys.argv[1])
"""
    command = [sys.executable, "-c", program, place / "pipeline.toml"]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE) as run:
        child = int((place / "gate").read_text())
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=600)
    assert run.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert pipeline(place / "pipeline.toml").imported == 1
    assert stored(place) == 1
