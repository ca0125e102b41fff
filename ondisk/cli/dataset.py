"""Open the dataset that a command works on, start the Spark session that it is given, and show progress."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ondisk
from ondisk.cli.streams import complain, printable, shows_progress
from ondisk.errors import (
    AuthenticationFailed,
    DataOffline,
    KeyMissing,
    OndiskError,
    SegmentMissing,
    StateError,
    command,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ondisk.maintenance.states import Report


def examined(check: Callable[[], Report]) -> tuple[Report, OndiskError | None]:
    """Return the report of a check, and the error if some segments cannot be read: by this user, or with these keys."""
    try:
        return check(), None
    except OndiskError as error:
        from ondisk.filesystem import is_denied

        is_partial = is_denied(error) or isinstance(error, KeyMissing | AuthenticationFailed)
        is_partial |= isinstance(error, StateError) and "segment" in error.context
        if not is_partial or "report" not in error.context:
            raise
        return error.context["report"], error


@contextlib.contextmanager
def open_dataset(
    path: str, *, read_only: bool = False, doubts: list[str] | None = None, complete: bool = False
) -> Iterator[ondisk.Dataset]:
    """Open a dataset; warn of a lost index (also in `doubts`), of archives, and of data that were in the way.

    With `complete`, raise SegmentMissing instead of the warning of an archive that is offline.
    """
    doubts = [] if doubts is None else doubts
    with ondisk.open(path, read_only) as dataset:
        _warn_of_lost_index(path, dataset, doubts)
        with _warnings_of_archives(complete=complete):
            try:
                yield dataset
            finally:
                for item in () if read_only else dataset.quarantine.kept:
                    how = f"{command('quarantine', path, 'export', item, 'FILE')} copies them"
                    kept = printable(f"data were in the way, and are kept in quarantine: {item}")
                    complain("warning", f"{kept}\n{printable(how)}")


@contextlib.contextmanager
def open_to_read(
    arguments: argparse.Namespace, doubts: list[str], *, complete: bool = False
) -> Iterator[ondisk.Dataset | ondisk.Merged]:
    """Open the dataset of a command, with those of `--also`, as `open_dataset` does."""
    if not arguments.also:
        with open_dataset(arguments.dataset, read_only=True, doubts=doubts, complete=complete) as dataset:
            yield dataset
        return
    with ondisk.merged([arguments.dataset, *arguments.also]) as merged:
        for path in merged.paths:
            with ondisk.open(path, read_only=True) as dataset:
                _warn_of_lost_index(path, dataset, doubts)
        with _warnings_of_archives(complete=complete):
            yield merged


def _warn_of_lost_index(path: str, dataset: ondisk.Dataset, doubts: list[str]) -> None:
    if dataset.needs_check:
        problem = f"{path}: the index was lost and may not know all data: answers may be incomplete"
        remedy = f"Run {command('fix', path, '--yes')}: it rebuilds the index from the segments."
        complain("warning", f"{problem}\n{remedy}")
        doubts.append(problem)
    for each in dataset.doubts(offline=False)[dataset.needs_check :]:
        complain("warning", each)
        doubts.append(each)


@contextlib.contextmanager
def _warnings_of_archives(*, complete: bool) -> Iterator[None]:
    """At the end of the block, print the warnings of archives that cannot answer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if complete else "always", DataOffline)
        try:
            yield
        except DataOffline as error:
            hint = "Mount its disk, then run `ondisk archive DATASET --online NAME --yes`."
            raise SegmentMissing(str(error), hint=hint) from None
        finally:
            for message in dict.fromkeys(str(each.message) for each in caught):
                complain("warning", message)


@contextlib.contextmanager
def executors(master: str | None) -> Iterator[SparkSession | None]:
    """Start Spark for the block and yield its session, or None without a master; raise StateError if it fails."""
    if master is None:
        yield None
        return
    try:
        from ondisk.spark import session

        # The driver's JVM only sends tasks, and their workers read no DataFrames: without its second compiler and their
        # imports, a start takes 6 s of CPU time instead of 10.
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
        settings = {"spark__ui__enabled": "false", "spark__log__level": "ERROR"}
        started = session(master or None, spark__python__daemon__module="pyspark.daemon", **settings)
    except StateError:  # it is not installed
        raise
    except Exception as error:  # of Spark, Py4J or Java; in text from Java the message is the line after ": "
        reason = next((line[2:] for line in str(error).splitlines() if line.startswith(": ")), error)
        hint = "Spark needs Java 17 or newer, and a MASTER that it knows."
        raise StateError(f"Spark did not start: {reason}", hint=hint) from None
    try:
        yield started
    finally:
        started.stop()


@contextlib.contextmanager
def _bar(verb: str, size: int | None, *columns: str) -> Iterator[Callable[..., None]]:
    """Show a bar with columns of rich during the block; yield a function as `Progress.update` of rich."""
    if not shows_progress():
        yield lambda **_values: None
        return
    from rich import progress
    from rich.console import Console

    shown = [progress.TextColumn(each, markup=False) if "{" in each else getattr(progress, each)() for each in columns]
    # rich must not redirect standard output: results go there, and it may be a file.
    with progress.Progress(*shown, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        yield partial(bar.update, bar.add_task(verb, total=size))


def files_progress(files: Sequence[str]) -> AbstractContextManager[Callable[[int], None]]:
    """Show how much of the files has been read during the block; see `bytes_progress`."""
    return bytes_progress("append", _size(files))


@contextlib.contextmanager
def bytes_progress(verb: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Show how much has been read, during the block; yield a function that takes the number of bytes of each read."""
    with _bar(verb, size, "BarColumn", "DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn") as update:
        yield lambda count: update(advance=count)


@contextlib.contextmanager
def segments_progress(verb: str) -> Iterator[Callable[[str], None]]:
    """Show the current segment, and how many have been started; yield a function that takes the name of each."""
    columns = "SpinnerColumn", "TimeElapsedColumn", "{task.completed:.0f} {task.description}"
    with _bar(verb, None, *columns) as update:
        yield lambda name: update(advance=1, description=printable(name))


@contextlib.contextmanager
def changes_progress(verb: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many changes have been applied, and how many are left; yield a function that takes both numbers."""
    done = 0

    def show(count: int, left: int) -> None:
        nonlocal done
        done += count
        update(completed=done, total=done + left)

    with _bar(verb, None, "BarColumn", "MofNCompleteColumn", "TimeRemainingColumn") as update:
        yield show


def _size(files: Sequence[str]) -> int | None:
    try:
        found = [Path(name).stat() for name in files]
    except OSError:
        return None
    return sum(each.st_size for each in found) if all(stat.S_ISREG(each.st_mode) for each in found) else None
