"""How work on segments or files is divided into groups, given to processes, and answered; `imports` is a pipeline's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count, islice
from pathlib import Path
from threading import Event
from typing import IO, Any, TypeAlias

from ondisk.batched import batched
from ondisk.errors import OndiskError, StateError

_GROUPS = 4  # for each core, if there are so many segments: then the last groups are small
_LEAST, _MOST = 8 * 1024 * 1024, 1024 * 1024 * 1024  # bytes of a group of several segments

Answer: TypeAlias = dict[str, Any]
"""The name as `segment`, and the results; `failed` is the message of an error that prevented the work."""


class WorkLost(Exception):
    """A process could not work; its message says why. `name`: what it was killed at; empty before it began."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


def spread(
    weights: dict[str, int],
    run: Callable[[list[str]], list[Answer]],
    stop: Callable[[], None],
    cores: int,
    *,
    in_order: bool,
) -> Generator[Answer, None, None]:
    """Run groups of segments at the same time, one for each core, and yield the answers.

    It begins with the largest segments. So no core waits for the slowest, each answer can be committed at once, and at
    most two groups for each core are staged.

    Args:
        weights: name of a segment, or file → bytes.
        stop: ends what still runs when nobody wants more answers.
        in_order: yield the answers in the order of `weights`; else begin with the heaviest, and yield each when ready.
    """
    names = list(weights) if in_order else sorted(weights, key=lambda each: (-weights[each], each))
    groups = grouped(names, weights, cores * _GROUPS)
    threads = ThreadPoolExecutor(cores, "ondisk-work")
    try:
        begun = islice(groups, cores * (1 + in_order))  # so that no core waits while the first answer is not ready
        running: list[Future[list[Answer]]] = [threads.submit(run, each) for each in begun]
        while running:
            ended, _ = wait(running[:1] if in_order else running, return_when=FIRST_COMPLETED)
            running = [each for each in running if each not in ended]
            running += [threads.submit(run, each) for each in islice(groups, len(ended))]
            for each in ended:
                yield from each.result()
    finally:
        stop()
        threads.shutdown(cancel_futures=True)  # nothing is staged after that


def grouped(names: list[str], weights: dict[str, int], count: int) -> Iterator[list[str]]:
    """Return the segments, in order, in about `count` groups of equal weight, but of some megabytes at least."""
    limit = min(max(sum(weights.values()) // count, _LEAST), _MOST)
    return batched(names, weights.__getitem__, limit)


@contextlib.contextmanager
def process(verb: str, path: str, staged: str, option: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process of `ondisk.workers.worker`, for the length of the block.

    When this process ends for any reason, the other one's standard input ends, and then it exits. It has a process
    group of its own: Ctrl-C ends this process first. It imports what this process does, and nothing from the current
    folder, which may have any `queue.py`.
    """
    command = [sys.executable, "-P", "-m", "ondisk.workers.worker", verb, path, staged]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
    ) as child:
        try:
            assert child.stdin is not None
            _write(child.stdin, option)
            yield child
        except BaseException:
            child.kill()
            raise
        finally:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it was killed, and never read what was written
                child.stdin.close()


def _write(stream: IO[bytes], text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the process has ended; its last line says why
        stream.write(json.dumps(text).encode() + b"\n")
        stream.flush()


def answered(child: subprocess.Popen[bytes], names: Iterable[str]) -> Iterator[Answer]:
    """Let a process work on segments, and yield an answer for each; raise WorkLost if it cannot, or is killed."""
    assert child.stdin is not None
    assert child.stdout is not None
    for name in names:
        _write(child.stdin, name)
        line = child.stdout.readline()
        if not line.endswith(b"\n"):  # also if it was killed while it answered
            raise WorkLost(f"{name}: the process that worked on it was killed", name)
        answer = json.loads(line)
        if "error" in answer:
            raise WorkLost(answer["error"])
        yield answer


def imports(path: str, weights: dict[str, int], staging: str, option: str) -> Generator[Answer, None, None]:
    """Carry out the tasks of a pipeline on this machine: each core has a process.

    A process that is killed fails the file that it worked on; another one continues with the rest.
    """
    children: list[subprocess.Popen[bytes]] = []
    is_stopped = Event()  # nobody wants more answers
    numbers = count()

    def run(names: list[str]) -> list[Answer]:
        found: list[Answer] = []
        while len(found) < len(names):
            with process("pipeline", path, f"{staging}/{next(numbers)}-", option) as child:
                children.append(child)
                if is_stopped.is_set():
                    child.kill()
                try:
                    for answer in answered(child, names[len(found) :]):
                        found.append(answer)  # noqa: PERF402  # what was answered before an error counts
                except WorkLost as error:
                    if not error.name or is_stopped.is_set():
                        raise
                    left = {"job": "", "left": str(error), "code": OndiskError.exit_code}
                    found.append({"segment": error.name, **left})
        return found

    def stop() -> None:
        is_stopped.set()
        for child in children:
            child.kill()

    try:
        yield from spread(weights, run, stop, len(os.sched_getaffinity(0)), in_order=True)
    except WorkLost as error:
        raise StateError(f"{path}: {error}", hint="Correct what the message says, and run it again.") from None
