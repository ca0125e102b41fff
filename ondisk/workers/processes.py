"""Import the files of a pipeline in processes of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator, Iterator
from itertools import count
from threading import Lock

from ondisk.errors import OndiskError, StateError
from ondisk.workers.work import Answer, WorkLost, answered, process, spread


def imports(path: str, weights: dict[str, int], staging: str, option: str) -> Generator[Answer, None, None]:
    """Carry out the tasks of a pipeline, see `ondisk.pipeline.run.Tasks`: a process for each core reads files.

    A process that is killed fails the file that it worked on; another one continues with the rest.

    Raises:
        StateError: a process cannot open the dataset for errors.
    """
    running = _Running()
    numbers = count()

    def run(names: list[str]) -> list[Answer]:
        found: list[Answer] = []
        while len(found) < len(names):
            with process("pipeline", path, f"{staging}/{next(numbers)}-", option) as child, running.noted(child):
                try:
                    for answer in answered(child, names[len(found) :]):
                        found.append(answer)  # noqa: PERF402  # what was answered before an error counts
                except WorkLost as error:
                    if not error.name or running.is_stopped:
                        raise
                    left = {"job": "", "left": str(error), "code": OndiskError.exit_code}
                    found.append({"segment": error.name, **left})
        return found

    try:
        yield from spread(weights, run, running.stop, len(os.sched_getaffinity(0)), in_order=True)
    except WorkLost as error:
        raise StateError(f"{path}: {error}", hint="Correct what the message says, and run it again.") from None


class _Running:
    """The processes that are running.

    Attributes:
        is_stopped: whether they were killed, because nobody wants more answers.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()

    @contextlib.contextmanager
    def noted(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """Kill a process, during the block, when the others are."""
        with self._lock:
            self._children.add(child)
            if self.is_stopped:
                child.kill()
        try:
            yield
        finally:
            with self._lock:
                self._children.discard(child)

    def stop(self) -> None:
        """Kill all of them, and those that begin later."""
        with self._lock:
            self.is_stopped = True
            for child in self._children:
                child.kill()
