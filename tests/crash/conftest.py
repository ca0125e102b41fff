"""Says at the end how many points were swept: a sweep that silently became short is no proof."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .workload import KEY_LINES

POINTS = "points"
_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def keys_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONDISK_KEYS", KEY_LINES)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Make a directory for the copies of a long sweep: in memory, where there is such a place, as syncs cost time."""
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ondisk-", dir=_MEMORY) as room:
        yield Path(room)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    swept: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == POINTS:
                swept[report.nodeid.partition("::")[0]] += value
    for file, points in sorted(swept.items()):
        terminalreporter.write_line(f"{file}: {points} points killed, failed or cut")
