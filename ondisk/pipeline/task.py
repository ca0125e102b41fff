"""One task of a pipeline: read a file and stage its data, each datum for the dataset that it belongs to.

A worker process runs it (see `ondisk.workers.worker`); `ondisk.pipeline.run` commits what the tasks have staged.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections import Counter
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.input_file import Begun, and_damage, open_source
from ondisk.dataset.layout import filter_of, open_directory, read_config
from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, LimitExceeded, OndiskError, StorageError
from ondisk.filesystem import Directory
from ondisk.formats import Batch, find, is_dir, recognised
from ondisk.formats.base import BATCH_SIZE, Readable
from ondisk.pipeline.config import plain
from ondisk.pipeline.route import Division, Route, Share
from ondisk.segment import Damage
from ondisk.staging.jobs import job_of
from ondisk.staging.stage import Stage

CHANGED = "it changed after the run found it"
_EARLIEST, _LATEST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
NAMED = 100
"""How many refused data, and how many damaged places, a report names."""


class InputFile(NamedTuple):
    """A file as the run found it."""

    path: str  # relative to the input folder
    size: int  # bytes
    mtime: int  # time of the last change, in nanoseconds

    @property
    def name(self) -> str:
        """Its path as text, which can be stored and printed."""
        return plain(self.path)

    @property
    def mark(self) -> str:
        """The identity of this version of the file."""
        return f"{self.size} {self.mtime} {self.name}"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The settings that all tasks of a run share."""

    folder: str  # the input folder
    datasets: list[str]  # paths of the datasets; the one for errors is last
    # one for each dataset, which may differ from its configuration by now; a dataset with None gets no data, except the
    # one for errors
    filters: list[str | None]
    dry_run: bool  # only count
    only: int | None = None  # the number of the dataset that a file is imported into again; None for a new file

    def wants(self, at: int) -> bool:
        """Return whether data of a dataset are imported."""
        return self.only in (None, at)


@dataclass(frozen=True, slots=True)
class _Destination:
    """A dataset to stage for; its configuration holds the filter of `ImportOptions`."""

    directory: Directory
    config: DatasetConfig

    def route(self, file: InputFile) -> Route:
        """Return the route to this dataset for the data of a file.

        `today` counts from the file's last change, so that a run that continues a killed one decides the same.
        A filesystem may hold times that are not in the calendar.
        """
        now = from_microseconds(min(max(file.mtime // 1000, _EARLIEST), _LATEST))
        return Route(self.config, filter_of(self.config, now))


class _Postponed(Exception):
    """This run stores nothing of the file."""

    def __init__(self, reason: str, code: int = EXIT_DATA_SKIPPED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def import_file(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Stage the data of a file, each datum for the dataset that it belongs to, and return what was done.

    Args:
        name: an `InputFile`, as JSON.
        staged: names the job and the stage.
        option: `ImportOptions`, as JSON.
    """
    job, _, number = job_of(staged).rpartition("-")
    try:
        return {"job": job, **_stage(InputFile(*json.loads(name)), option, job, number)}
    except _Postponed as error:
        return {"job": job, "left": error.reason, "code": error.code}
    except OndiskError as error:
        return {"job": job, "left": str(error), "code": error.exit_code}
    except OSError as error:  # reading failed
        return {"job": job, "left": str(error), "code": StorageError.exit_code}
    except Exception as error:  # a bug must not keep the other files from being imported
        traceback.print_exc()
        return {"job": job, "left": repr(error), "code": OndiskError.exit_code}


@cache  # for the life of this process, which works on one group of files
def _opened(option: str) -> tuple[ImportOptions, list[_Destination]]:
    options = ImportOptions(**json.loads(option))
    destinations = []
    for path, filter in zip(options.datasets, options.filters, strict=True):
        directory = open_directory(path)
        destinations.append(_Destination(directory, read_config(directory)._replace(filter=filter)))
    return options, destinations


def _stage(file: InputFile, option: str, job: str, number: str) -> dict[str, Any]:
    options, destinations = _opened(option)
    path = Path(options.folder, file.path)
    report, stages = _FileReport(), dict[int, Stage]()
    with open_source(path) as stream, contextlib.ExitStack() as stack:
        _check_unchanged(file, os.fstat(stream.fileno()))
        content, format = _recognise(stream, destinations[-1].config)
        division = Division([each.route(file) for each in destinations], format)
        try:
            for batch in and_damage(division.reader.parse(content, BATCH_SIZE), content):
                if options.only is None:  # else an earlier run has reported its damage
                    report.add(batch)
                for at, share in enumerate(division.divide(batch)):
                    if not options.wants(at):
                        continue
                    report.add_share(at, share)
                    if share.batch.payloads and not options.dry_run:
                        if at not in stages:
                            to = destinations[at]
                            stages[at] = stack.enter_context(Stage(to.directory, to.config, job, number))
                        stages[at].add(share.batch, division.formats[at])
        except LimitExceeded as error:  # the data before it are complete
            if options.only is None:
                report.refuse(len(destinations) - 1, division.position, error.message)
        with contextlib.suppress(FileNotFoundError):  # a removed file was read completely
            _check_unchanged(file, path.stat())
        staged = [[at, *astuple(stages[at].finish())] for at in sorted(stages)]
    return {"staged": staged, **report.answer()}


class _FileReport:
    """Counts for each dataset the data that it gets and refuses; collects reasons, damage and notes."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self._refused = Counter[int]()
        self._refusals: list[tuple[int, str]] = []
        self._damage: list[Damage] = []
        self._damaged = 0
        self._notes: list[str] = []

    def add(self, batch: Batch) -> None:
        self._damage += batch.damage[: NAMED - len(self._damage)]
        self._damaged += len(batch.damage)
        self._notes += batch.notes

    def add_share(self, at: int, share: Share) -> None:
        self._counts[at] += len(share.batch.payloads)
        for position, reason in share.refused:
            self.refuse(at, position, reason)

    def refuse(self, at: int, position: int, reason: str) -> None:
        self._refused[at] += 1
        if len(self._refusals) < NAMED:
            self._refusals.append((position, reason))

    def answer(self) -> dict[str, Any]:
        return {
            "counts": sorted((+self._counts).items()),  # without datasets that get nothing
            "refused": sorted(self._refused.items()),
            "refusals": sorted(self._refusals),
            "damage": self._damage,
            "damaged": self._damaged,
            "notes": self._notes,
        }


def _check_unchanged(file: InputFile, found: os.stat_result) -> None:
    if (found.st_size, found.st_mtime_ns) != (file.size, file.mtime):
        raise _Postponed(CHANGED, EXIT_DONE)


def _recognise(stream: BinaryIO, config: DatasetConfig) -> tuple[Readable, str]:
    """Return the content of a file, decompressed if it is text, and the name of its format."""
    begun = Begun.of(stream)
    if begun.table:
        raise _Postponed(f"it is a table ({begun.table}), which no pipeline reads: append it with `ondisk append`")
    format = recognised(begun.path.name, begun.head, config.format)
    if format is None:
        raise _Postponed("neither its extension nor its content is of a known format")
    if is_dir(format):
        raise _Postponed(f"a file of the format {format} contains no reftime and no metadata")
    return begun.plain() if find(format).is_text else begun.stream, format
