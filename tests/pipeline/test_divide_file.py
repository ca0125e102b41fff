"""A task reports any error, so that the other files are imported."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from worlds import access_to

from ondisk.pipeline import divide_file
from ondisk.pipeline.divide_file import ImportOptions
from ondisk.pipeline.run import input_files
from pipeline.world import line, put


def test_a_file_that_meets_a_bug_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, "a.jsonl", line(1))
    [file] = input_files(place / "incoming", pytest.fail)
    option = json.dumps(asdict(ImportOptions(str(place / "incoming"), [str(place / "error")], [None], False)))
    monkeypatch.setattr(divide_file, "recognised", lambda *_: 1 // 0)
    with access_to(place / "error") as access:
        answer = divide_file.import_file(access, json.dumps(file), ".staged/job/0-0", option)
    assert (answer["left"][:17], answer["code"]) == ("ZeroDivisionError", 1)
