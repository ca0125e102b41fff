"""Maintenance with Spark: executors read and write segments; the driver diagnoses, commits and reports."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial

from pyspark.sql import SparkSession

from ondisk.dataset.access import Access
from ondisk.maintenance.check import ReadAll, Wrong, wrong_as_far_as_known
from ondisk.maintenance.fix import ScanAll
from ondisk.maintenance.kinds import kind_of
from ondisk.maintenance.repack import WriteAll, can_be_written_elsewhere
from ondisk.maintenance.rewrite import Written
from ondisk.maintenance.scanned import Scanned
from ondisk.maintenance.states import Diagnosis
from ondisk.segment import End, Facts
from ondisk.segments.dir import files_of
from ondisk.spark.executors import answers
from ondisk.staging.jobs import staged
from ondisk.staging.rows import StagedFile
from ondisk.workers.work import Answer


def reads(spark: SparkSession) -> ReadAll:
    """Return a function for `ondisk.maintenance.check`: executors read the data of segments."""
    return partial(_read_all, spark)


def _read_all(
    spark: SparkSession, access: Access, names: list[str], progress: Callable[[str], None]
) -> Iterator[tuple[str, Wrong]]:
    for answer in answers(spark, str(access.path), "check", _weights(access, names)):
        name = answer["segment"]
        progress(name)
        # If the executor failed, the driver reads the segment itself: it raises the same error, or succeeds.
        yield name, wrong_as_far_as_known(access, name) if "failed" in answer else answer["wrong"]


def scans(spark: SparkSession) -> ScanAll:
    """Return a function for `ondisk.maintenance.fix`: executors scan segments."""
    return partial(_scan_all, spark)


@contextlib.contextmanager
def _scan_all(
    spark: SparkSession, access: Access, waiting: list[Diagnosis]
) -> Iterator[Iterator[tuple[Diagnosis, Scanned | None]]]:
    wanted = [
        each for each in waiting if each.action == "rescan" and kind_of(access.format_of(each.segment)).is_one_file
    ]
    # In the order of one machine: if several segments hold data with the same unique fields, the first one wins.
    with _staging(spark, access, "fix", wanted, in_order=True) as found:
        yield _scanned(waiting, {each.segment for each in wanted}, found)


def _scanned(
    waiting: list[Diagnosis], wanted: set[str], found: Iterator[Answer]
) -> Iterator[tuple[Diagnosis, Scanned | None]]:
    for before in waiting:
        answer = next(found) if before.segment in wanted else {}
        yield before, Scanned(tuple(answer["source"]), StagedFile(**answer["rows"])) if "rows" in answer else None


def writes(spark: SparkSession) -> WriteAll:
    """Return a function for `ondisk.maintenance.repack`: executors write the new segments."""
    return partial(_write_all, spark)


def _write_all(
    spark: SparkSession, access: Access, waiting: list[Diagnosis]
) -> Generator[tuple[Diagnosis, Written | None], None, None]:
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
