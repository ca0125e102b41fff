"""Spark's executors carry out work on segments or files, and the driver gets each answer as soon as it is ready.

The driver runs a job of one task for each group of segments, as many at a time as Spark has cores: see
`ondisk.workers.work`. So no task waits for the slowest of a stage. A task starts a process for its work:
`ondisk.workers.worker`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from uuid import uuid4

from pyspark import TaskContext, inheritable_thread_target
from pyspark.sql import SparkSession

from ondisk.errors import StateError
from ondisk.workers.work import Answer, WorkLost, answered, process, spread

_HINT = "Install ondisk on every node, and mount the dataset at the same path on all of them."


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
        verb: one of `ondisk.workers.worker.VERBS`.
        weights: name of a segment or file → bytes.
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

    def stop() -> None:
        with contextlib.suppress(Exception):  # Spark may have stopped, which was reported
            context.cancelJobGroup(group)

    try:
        yield from spread(weights, inherited, stop, cores, in_order=in_order)
    except Exception as error:  # from Spark, Py4J or Java
        raise StateError(f"{path}: Spark could not {verb} its segments: {_reason(error)}", hint=_HINT) from error


def worked(path: str, verb: str, staging: str, option: str, segments: Iterable[str]) -> Iterator[Answer]:
    """Work on segments in an executor, and yield an answer for each; a child process does the work."""
    context = TaskContext.get()
    assert context is not None
    # Spark may run several attempts of a task at the same time: each writes its own files.
    with process(verb, path, f"{staging}/{context.taskAttemptId()}-", option) as child:
        try:
            yield from answered(child, segments)
        except WorkLost as error:
            raise RuntimeError(str(error)) from None  # which executors can send to the driver


def _reason(error: Exception) -> str:
    """Return the message of a task's own error, which Spark's long message contains; else the first line of that."""
    lines = str(error).splitlines()
    own = [line.partition("RuntimeError: ")[2] for line in lines if line.strip().startswith("RuntimeError: ")]
    return own[0] if own else lines[0] if lines else type(error).__name__
