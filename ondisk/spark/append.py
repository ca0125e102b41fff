"""Appending many files with Spark: executors read and stage them, the driver commits them one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import SparkSession

from ondisk.dataset.append import AppendResult
from ondisk.dataset.dataset import Dataset
from ondisk.dataset.input_file import notes_of_format
from ondisk.dataset.layout import open_directory
from ondisk.segment import Damage
from ondisk.spark.executors import answers
from ondisk.staging.jobs import STAGED, remove
from ondisk.staging.stage import FinishedStage
from ondisk.workers.work import Answer

if TYPE_CHECKING:
    from ondisk.pipeline.run import Tasks


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
            for name in directory.names(STAGED):
                if name.startswith(job):
                    remove(directory, name)


def imports(spark: SparkSession) -> Tasks:
    """Return a function that carries out the tasks of a pipeline: executors read the files."""

    def carry_out(path: str, weights: dict[str, int], staging: str, option: str) -> Generator[Answer, None, None]:
        return answers(spark, path, "pipeline", weights, staging, option=option, in_order=True)

    return carry_out


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
