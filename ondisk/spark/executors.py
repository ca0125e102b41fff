"""Spark's executors carry out work on segments or files, and the driver gets each answer as soon as it is ready.

The driver runs a job of one task for each group of segments, as many at a time as Spark has cores: see
`ondisk.workers.work`. So no task waits for the slowest of a stage. A task starts a process for its work:
`ondisk.workers.worker`.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

from pyspark import TaskContext, inheritable_thread_target
from pyspark.sql import SparkSession

from ondisk.dataset.access import Access
from ondisk.dataset.append import AppendResult
from ondisk.dataset.auxiliary_files import open_directory
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.input_file import notes_of_format
from ondisk.errors import StateError
from ondisk.maintenance.check import ReadAll, Wrong, wrong_as_far_as_known
from ondisk.maintenance.compare import Scanned
from ondisk.maintenance.fix import ScanAll
from ondisk.maintenance.new_file import Written
from ondisk.maintenance.repack import WriteAll, can_be_written_elsewhere
from ondisk.maintenance.states import Action, Diagnosis
from ondisk.segment import Damage, End, Facts
from ondisk.segments.dir import files_of
from ondisk.staging.jobs import STAGED, remove_all, staged
from ondisk.staging.rows import StagedFile
from ondisk.staging.stage import FinishedStage
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
    """Let executors work on segments, and yield the answers; see `ondisk.workers.work.spread`.

    Args:
        verb: one of `ondisk.workers.worker.VERBS`.
        staging: the directory in the dataset for large results; empty if the verb has none.
        option: what else the verb needs.

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


def append_files(
    dataset: Dataset, paths: list[str], spark: SparkSession, format: str | None
) -> Iterator[tuple[str, AppendResult]]:
    """Store the data of files and yield each result; see `Dataset.append_files`."""
    job = uuid4().hex
    sizes = {str(Path(path).absolute()): _size(path) for path in paths}
    waiting = set(sizes)
    found = answers(spark, str(dataset.path), "append", sizes, f"{STAGED}/{job}", option=format or "", in_order=True)
    with open_directory(dataset.path) as directory, contextlib.closing(found):
        try:
            for path in paths:
                absolute = str(Path(path).absolute())
                answer: Answer = next(found) if absolute in waiting else {}
                waiting.discard(absolute)
                # The driver reads a file that an executor could not read, and the second copy of a path.
                yield (
                    path,
                    _stored(dataset, answer, format) if "staged" in answer else dataset.append_file(path, format),
                )
        finally:
            found.close()
            remove_all(directory, job)


def _stored(dataset: Dataset, answer: Answer, format: str | None) -> AppendResult:
    notes = notes_of_format(dataset._access, answer["format"]) if format is None else []
    result = dataset.append_staged(answer["job"], [FinishedStage(*answer["staged"])])
    result.refused = answer["refused"]
    result.refusals = [(position, reason) for position, reason in answer["refusals"]]
    result.damage = [Damage(*each) for each in answer["damage"]]
    result.notes = answer["notes"] + (notes if result.imported else [])
    return result


def _size(path: str) -> int:
    """Return the size of a file, or 0: reading it will report the error."""
    with contextlib.suppress(OSError):
        return Path(path).stat().st_size
    return 0


def reads(spark: SparkSession) -> ReadAll:
    """Return a function for `ondisk.maintenance.check`: executors read the data of segments."""

    def read_all(access: Access, names: list[str], progress: Callable[[str], None]) -> Iterator[tuple[str, Wrong]]:
        for answer in answers(spark, str(access.path), "check", _weights(access, names)):
            name = answer["segment"]
            progress(name)
            # If the executor failed, the driver reads the segment itself: it raises the same error, or succeeds.
            yield name, wrong_as_far_as_known(access, name) if "failed" in answer else answer["wrong"]

    return read_all


def scans(spark: SparkSession) -> ScanAll:
    """Return a function for `ondisk.maintenance.fix`: executors scan segments."""

    @contextlib.contextmanager
    def scan_all(access: Access, waiting: list[Diagnosis]) -> Iterator[Iterator[tuple[Diagnosis, Scanned | None]]]:
        wanted = [
            each for each in waiting if each.action == Action.RESCAN and not access.format_of(each.segment).is_dir
        ]
        # In the order of one machine: if several segments hold data with the same unique fields, the first one wins.
        names = {each.segment for each in wanted}
        with _staging(spark, access, "fix", wanted, in_order=True) as found:
            both = ((each, next(found) if each.segment in names else {}) for each in waiting)
            yield ((each, _scanned(answer) if "rows" in answer else None) for each, answer in both)

    return scan_all


def _scanned(answer: Answer) -> Scanned:
    return Scanned(tuple(answer["source"]), StagedFile(**answer["rows"]))


def writes(spark: SparkSession) -> WriteAll:
    """Return a function for `ondisk.maintenance.repack`: executors write the new segments."""

    def write_all(access: Access, waiting: list[Diagnosis]) -> Generator[tuple[Diagnosis, Written | None], None, None]:
        rewritten: dict[str, Diagnosis] = {}
        for each in waiting:
            if can_be_written_elsewhere(access, each):
                rewritten[each.segment] = each
            else:  # what frees space comes first
                yield each, None
        with _staging(spark, access, "repack", rewritten.values()) as found:
            for answer in found:
                before = rewritten[answer["segment"]]
                if "file" not in answer:
                    yield before, None
                    continue
                end, facts = End(*answer["end"]), Facts(*answer["facts"])
                written = Written(answer["file"], end, facts, answer["size"], StagedFile(**answer["rows"]))
                yield before, written
                written.discard(access.directory)

    return write_all


@contextlib.contextmanager
def _staging(
    spark: SparkSession, access: Access, verb: str, segments: Collection[Diagnosis], *, in_order: bool = False
) -> Iterator[Iterator[Answer]]:
    """Let executors stage their work on segments during the block; its value is an iterator of the answers."""
    if not segments:
        yield iter(())
        return
    with contextlib.ExitStack() as stack:
        with access.locked(verb):
            staging = stack.enter_context(staged(access.directory, verb))
        weights = _weights(access, (each.segment for each in segments))
        found = answers(spark, str(access.path), verb, weights, staging, in_order=in_order)
        yield stack.enter_context(contextlib.closing(found))
    access.checkpoint()  # executors that read during a commit may have kept the log from being emptied


def _weights(access: Access, names: Iterable[str]) -> dict[str, int]:
    """Return segment → bytes on disk."""
    return {name: _weight(access, name) for name in names}


def _weight(access: Access, name: str) -> int:
    found = access.directory.stat(name)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return 0 if found is None else found.st_size
    with access.directory.inside(name) as folder:
        return sum(files_of(folder, name).values())
