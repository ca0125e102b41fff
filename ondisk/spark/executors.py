"""Work on segments, shared out among Spark's executors: the answers come as they are ready.

The driver runs a job of one task for each group of segments, as many at a time as Spark has cores, the largest segments
first: so no task waits for the slowest of a stage, what is ready can be committed at once, and no more is staged than
two groups for each core. A task has its work done by a process of its own, see `ondisk.spark.worker`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias
from uuid import uuid4

from pyspark import TaskContext, inheritable_thread_target
from pyspark.sql import SparkSession

from ondisk.errors import StateError

_GROUPS = 4  # for each core, where there are so many segments: the last ones to run are small
_LEAST, _MOST = 8 * 1024 * 1024, 1024 * 1024 * 1024  # bytes of a group of several segments
_HINT = "ondisk must be installed on every node, and the dataset be at the same path on all of them."

Answer: TypeAlias = dict[str, Any]
"""`segment`, and what there is to say of it; `failed` where an error kept it from being worked on."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an executor is to do with some segments.

    Attributes:
        path: of the dataset, the same on every node.
        verb: one of `ondisk.spark.worker.VERBS`.
        staging: the directory in the dataset that results go to; empty where they are small.
        option: what else the verb needs.
        segments: their names, those of the archive with its prefix; or other files.
    """

    path: str
    verb: str
    staging: str
    option: str
    segments: list[str]


def answers(
    spark: SparkSession,
    path: str,
    verb: str,
    weights: dict[str, int],
    staging: str = "",
    *,
    option: str = "",
    in_order: bool = False,
) -> Generator[Answer, None, None]:
    """Let executors work on segments.

    Args:
        weights: of each segment, its bytes.
        staging: the directory in the dataset that results go to; empty where they are small.
        option: what else the verb needs.
        in_order: give the answers in the order of `weights`; else the heaviest come first, and all as they are ready.

    Raises:
        StateError: an executor cannot get at the dataset, or its work was lost again and again.
    """
    context = spark.sparkContext
    cores = context.defaultParallelism
    group = f"ondisk-{uuid4().hex}"

    def run(segments: list[str]) -> list[Answer]:
        context.setJobGroup(group, f"ondisk {verb} {path}", interruptOnCancel=True)
        order = Order(path, verb, staging, option, segments)
        return [*context.parallelize([order], 1).mapPartitions(worked).collect()]

    inherited = inheritable_thread_target(spark)(run)  # with this thread's properties, such as its scheduler pool
    names = list(weights) if in_order else sorted(weights, key=lambda each: (-weights[each], each))
    groups = grouped(names, weights, cores * _GROUPS)
    threads = ThreadPoolExecutor(cores, "ondisk-spark")
    try:
        begun = islice(groups, cores * (1 + in_order))  # so that none waits while the first is not ready
        running: list[Future[list[Answer]]] = [threads.submit(inherited, each) for each in begun]
        while running:
            ended, _ = wait(running[:1] if in_order else running, return_when=FIRST_COMPLETED)
            running = [each for each in running if each not in ended]
            running += [threads.submit(inherited, each) for each in islice(groups, len(ended))]
            for each in ended:
                yield from each.result()
    except Exception as error:  # of Spark, of Py4J, or of Java
        raise StateError(f"{path}: Spark could not {verb} its segments: {_reason(error)}", hint=_HINT) from error
    finally:
        with contextlib.suppress(Exception):  # Spark may be gone, and that was told
            context.cancelJobGroup(group)
        threads.shutdown(cancel_futures=True)


def grouped(names: list[str], weights: dict[str, int], count: int) -> Iterator[list[str]]:
    """Put segments, in their order, into about so many groups of equal weight; one too heavy is a group alone.

    Of less than some megabytes no group is made: to start the process that works on it would take longer.
    """
    limit = min(max(sum(weights.values()) // count, _LEAST), _MOST)
    group: list[str] = []
    weight = 0
    for name in names:
        if group and weight + weights[name] > limit:
            yield group
            group, weight = [], 0
        group.append(name)
        weight += weights[name]
    if group:
        yield group


def worked(orders: Iterable[Order]) -> Iterator[Answer]:
    """Carry out orders, in an executor: a child process does it, and gives an answer on each segment.

    When this process ends, for whatever reason, the child's standard input ends, and so does the child.
    """
    for order in orders:
        context = TaskContext.get()
        assert context is not None
        # Of one task there may be several attempts, at the same time, too: none writes to the files of another.
        staged = f"{order.staging}/{context.taskAttemptId()}-"
        command = [sys.executable, "-m", "ondisk.spark.worker", order.verb, order.path, staged, order.option]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for name in order.segments:
                child.stdin.write(json.dumps(name).encode() + b"\n")
                child.stdin.flush()
                line = child.stdout.readline()
                answer = json.loads(line) if line else {"error": f"{name}: who worked on it was ended from outside"}
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                yield answer


def _reason(error: Exception) -> str:
    """Give the words of an error of a task that stand in Spark's long message, else its first line."""
    lines = str(error).splitlines()
    own = [line.partition("RuntimeError: ")[2] for line in lines if line.strip().startswith("RuntimeError: ")]
    return own[0] if own else lines[0] if lines else type(error).__name__
