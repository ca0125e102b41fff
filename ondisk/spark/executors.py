"""Spark's executors carry out work on segments or files, and the driver gets each answer as soon as it is ready.

The driver runs a job of one task for each group of segments. It runs as many jobs at a time as Spark has cores, and
begins with the largest segments. So no task waits for the slowest of a stage, the driver can commit each answer at
once, and at most two groups for each core are staged. A task starts a process for its work: `ondisk.spark.worker`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import Any, TypeAlias
from uuid import uuid4

from pyspark import TaskContext, inheritable_thread_target
from pyspark.sql import SparkSession

from ondisk.errors import StateError

_GROUPS = 4  # for each core, if there are so many segments: then the last groups are small
_LEAST, _MOST = 8 * 1024 * 1024, 1024 * 1024 * 1024  # bytes of a group of several segments
_HINT = "Install ondisk on every node, and mount the dataset at the same path on all of them."

Answer: TypeAlias = dict[str, Any]
"""The name as `segment`, and the results; `failed` is the message of an error that prevented the work."""


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
    """Let executors work on segments, and yield the answers.

    Args:
        path: of the dataset, the same on every node.
        verb: one of `ondisk.spark.worker.VERBS`.
        weights: name of a segment (with the prefix if archived), or file → bytes.
        staging: the directory in the dataset for large results; empty if the verb has none.
        option: what else the verb needs.
        in_order: yield the answers in the order of `weights`; else begin with the heaviest, and yield each when ready.

    Raises:
        StateError: an executor cannot open the dataset, or its work was lost several times.
    """
    context = spark.sparkContext
    cores = context.defaultParallelism
    group = f"ondisk-{uuid4().hex}"

    def run(segments: list[str]) -> list[Answer]:
        context.setJobGroup(group, f"ondisk {verb} {path}", interruptOnCancel=True)
        task = partial(worked, path, verb, staging, option)
        return [*context.parallelize(segments, 1).mapPartitions(task).collect()]

    inherited = inheritable_thread_target(spark)(run)  # keeps this thread's properties, such as its scheduler pool
    names = list(weights) if in_order else sorted(weights, key=lambda each: (-weights[each], each))
    groups = grouped(names, weights, cores * _GROUPS)
    threads = ThreadPoolExecutor(cores, "ondisk-spark")
    try:
        begun = islice(groups, cores * (1 + in_order))  # so that no core waits while the first answer is not ready
        running: list[Future[list[Answer]]] = [threads.submit(inherited, each) for each in begun]
        while running:
            ended, _ = wait(running[:1] if in_order else running, return_when=FIRST_COMPLETED)
            running = [each for each in running if each not in ended]
            running += [threads.submit(inherited, each) for each in islice(groups, len(ended))]
            for each in ended:
                yield from each.result()
    except Exception as error:  # from Spark, Py4J or Java
        raise StateError(f"{path}: Spark could not {verb} its segments: {_reason(error)}", hint=_HINT) from error
    finally:
        with contextlib.suppress(Exception):  # Spark may have stopped, which was reported
            context.cancelJobGroup(group)
        threads.shutdown(cancel_futures=True)


def grouped(names: list[str], weights: dict[str, int], count: int) -> Iterator[list[str]]:
    """Yield the segments, in their order, in about `count` groups of equal weight; a heavier one is a group alone.

    A group has some megabytes at least: for less, to start its process would take longer than the work.
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


def worked(path: str, verb: str, staging: str, option: str, segments: Iterable[str]) -> Iterator[Answer]:
    """Work on segments in an executor, and yield an answer for each; a child process does the work.

    When this process ends for any reason, the child's standard input ends, and then the child exits.
    """
    context = TaskContext.get()
    assert context is not None
    # Spark may run several attempts of a task at the same time: each writes its own files.
    staged = f"{staging}/{context.taskAttemptId()}-"
    command = [sys.executable, "-m", "ondisk.spark.worker", verb, path, staged, option]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for name in segments:
            child.stdin.write(json.dumps(name).encode() + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
            answer = json.loads(line) if line else {"error": f"{name}: the process that worked on it was killed"}
            if "error" in answer:
                raise RuntimeError(answer["error"])
            yield answer


def _reason(error: Exception) -> str:
    """Return the message of a task's own error, which Spark's long message contains; else the first line of that."""
    lines = str(error).splitlines()
    own = [line.partition("RuntimeError: ")[2] for line in lines if line.strip().startswith("RuntimeError: ")]
    return own[0] if own else lines[0] if lines else type(error).__name__
