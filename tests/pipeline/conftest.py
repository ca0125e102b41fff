"""Fixtures of the tests of pipelines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ondisk.pipeline import divide_file
from ondisk.workers import work, worker
from pipeline.world import create


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return create(tmp_path)


class _Here:
    """Does in this process what a process of its own would do."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments

    def kill(self) -> None:
        """Do nothing: it stops when nobody asks for more."""


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in this process: one of its own takes a second to start. The command starts them as ever."""

    def answered(here: _Here, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        divide_file._opened.cache_clear()  # a new process has opened nothing
        for answer in worker.answers(*here.arguments, names):
            if "error" in answer:
                raise work.WorkLost(answer["error"])
            yield json.loads(json.dumps(answer))

    monkeypatch.setattr(work, "process", lambda *arguments: nullcontext(_Here(*arguments)))
    monkeypatch.setattr(work, "answered", answered)
