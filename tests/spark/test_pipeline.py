"""Executors of Spark read the files of a pipeline as processes of one machine do; see tests/pipeline."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipeline.world import create, line, put, run

import ondisk
from ondisk.pipeline import pipeline
from ondisk.workers import work


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = create(tmp_path)
    for number in range(5):
        put(place, f"{number}.jsonl", line(1, number), line(11, number), line("x"), line(1, number, note="again"))
    put(place, "what.txt", "what is this\n")
    return place


def held(place: Path) -> dict[str, Counter[bytes]]:
    found = {}
    for name in ("low", "high", "error", "duplicates"):
        with ondisk.open(place / name, read_only=True) as dataset:
            found[name] = Counter(dataset.payloads())
            assert not [*dataset.path.glob(".staged/*")]
    return found


@pytest.mark.check
def test_executors_import_what_processes_import(
    spark: Any, place: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_LEAST", 1)
    other = create(tmp_path_factory.mktemp("other"))
    (other / "incoming").rmdir()
    (other / "incoming").symlink_to(place / "incoming")
    reports = [pipeline(place / "pipeline.toml", spark), pipeline(other / "pipeline.toml")]
    assert [report.imported for report in reports] == [5, 5]
    assert reports[0].failed == reports[1].failed
    assert reports[0].datasets == reports[1].datasets
    assert held(place) == held(other)
    assert held(place)["low"].total() == 5


@pytest.mark.check
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("way", ["option", "configuration"])
def test_the_command_starts_spark_if_it_is_told(place: Path, way: str) -> None:
    (place / "incoming/what.txt").unlink()
    if way == "configuration":
        config = (place / "pipeline.toml").read_text()
        (place / "pipeline.toml").write_text(f'master = "local[2]"\n{config}')
    done = run(place, "--json", *(["--spark", "local[2]"] if way == "option" else []))
    assert (done.returncode, "jdk.incubator" in done.stderr or "WARN" in done.stderr) == (0, True), done.stderr
    assert held(place)["high"].total() == 5
