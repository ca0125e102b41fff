"""Sweeps: a process is killed, or a call fails, at many points of a run; and where they happen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from worlds import POINTS

from .killpoints import Run
from .workload import KEY_LINES

Sweep: TypeAlias = Callable[[Iterable[Run], Callable[[Run], object]], None]
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


@pytest.fixture
def sweep(record_property: Callable[[str, object], None]) -> Sweep:
    """Look at what each run has left, and record at how many points a process was killed or a call failed."""

    def sweep(runs: Iterable[Run], check: Callable[[Run], object]) -> None:
        points = 0
        for run in runs:
            check(run)
            points += run.killed or run.injected is not None
        assert points, "nothing was killed, and no call failed"
        record_property(POINTS, points)

    return sweep
