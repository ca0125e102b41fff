"""A writer and readers beside it, and what the writer must leave."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from crash.workload import datum_of, left_behind, line

import ondisk

from .conftest import Start

READERS = 3


def beside(
    start: Start, path: Path, change: Callable[..., None], read: Callable[..., None], rounds: int
) -> tuple[int, Counter[str]]:
    """Let a process change a dataset while others read it; gives what the one says, and what the others met."""
    writer = start(change, path, rounds)
    readers = [start(read, path) for _ in range(READERS)]
    for each in (*readers, writer):
        assert each.hear() == "ready"
        each.go()
    done = writer.hear()
    for each in readers:
        with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
            each.go()
    counts = [each.hear() for each in readers]
    assert all(isinstance(each, Counter) for each in counts), counts
    assert all(each["rounds"] for each in counts), counts
    writer.go()
    writer.end()
    return done, sum(counts, Counter())


def check_tidy(path: Path) -> None:
    """The next commit tidies up, and behind a repack nothing is wrong."""
    with ondisk.open(path) as dataset:
        dataset.append([datum_of(line(100, 0, 1, 1), dataset.config.format)])
        assert left_behind(path) == []
        dataset.repack()
        assert not any(each.state for each in dataset.check(accurate=True))
