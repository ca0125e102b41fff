"""A pipeline reads regular files that are complete, in a fixed order."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import ondisk
from ondisk.pipeline.run import input_files
from pipeline.world import DATASET, line, put


def test_files_that_are_hidden_unfinished_or_of_datasets_are_no_input(place: Path) -> None:
    for name in (".hidden.jsonl", "a.tmp", "b.part", ".folder/c.jsonl", "d/e.jsonl", "a.jsonl", "z/b.jsonl"):
        put(place, name, line(1))
    ondisk.create(place / "incoming/dataset", DATASET).close()
    (place / "incoming/gone.jsonl").symlink_to("nowhere")
    os.mkfifo(place / "incoming/pipe.jsonl")
    (place / "incoming" / os.fsdecode(b"\xff.jsonl")).write_text(line(1))
    (place / "incoming/link").symlink_to(place / "incoming/z")
    found = [file.name for file in input_files(place / "incoming", pytest.fail)]
    assert found == ["a.jsonl", "\\xff.jsonl", "d/e.jsonl", "z/b.jsonl"]


def test_a_folder_that_goes_while_files_are_found_is_passed_over(place: Path) -> None:
    for name in ("a.jsonl", "b/c.jsonl", "d/e.jsonl"):
        put(place, name, line(1))
    found = input_files(place / "incoming", pytest.fail)
    assert next(found).name == "a.jsonl"
    shutil.rmtree(place / "incoming/b")
    assert [file.name for file in found] == ["d/e.jsonl"]
