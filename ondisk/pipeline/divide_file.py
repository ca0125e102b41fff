"""One task of a pipeline: read a file and stage its data, each datum for the dataset whose `filter` it matches.

A datum that matches no filter, or several, goes to the last dataset, the one for errors. Each dataset reads a datum as
in an append of the file: with its own declared fields and limits. A datum that it would refuse does not match.

A worker process runs it (see `ondisk.workers.worker`); `ondisk.pipeline.run` commits what the tasks have staged.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.append import refuse_old
from ondisk.dataset.auxiliary_files import filter_of, open_directory, read_config
from ondisk.dataset.input_file import Begun, and_damage, open_source
from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import EXIT_DATA_SKIPPED, EXIT_DONE, LimitExceeded, OndiskError, StateError, StorageError
from ondisk.filesystem import Directory
from ondisk.formats import Batch, Format, find, is_dir, recognised
from ondisk.formats.base import BATCH_SIZE, Readable
from ondisk.matcher import Expression, Values, matches
from ondisk.pipeline.config import plain
from ondisk.segment import Damage
from ondisk.staging.jobs import job_of
from ondisk.staging.stage import Stage

_LINE = re.compile(r"line [0-9]+: ")
_Reading: TypeAlias = tuple[object, ...]
_Read: TypeAlias = dict[int, tuple[int, Mapping[str, Any], bytes]]  # place → reftime, metadata and bytes
CHANGED = "it changed after the run found it"
_EARLIEST, _LATEST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
NAMED = 100  # how many refused data, and how many damaged places, a report names


@dataclass(frozen=True, slots=True)
class Route:
    """A dataset that data may go to; `filter` is None for the one for errors."""

    config: DatasetConfig
    filter: Expression | None


@dataclass(slots=True)
class Share:
    """The data of a batch that go to one dataset, and those that it refuses; positions are those in the file."""

    batch: Batch = field(default_factory=Batch)
    positions: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


class Division:
    """Divides the data of one file among datasets, that for errors last; raises ConfigError if one cannot hold them."""

    def __init__(self, routes: Sequence[Route], format: str) -> None:
        self._routes = routes
        kind = find(format)
        self.formats = [kind(route.config) for route in routes]  # the file's format, configured for each dataset
        self._readings = [_reading(route.config) for route in routes]
        self._verdicts: dict[tuple[int, int], bool] = {}
        self.position = 0  # how many data of the file were divided
        if len(set(self._readings)) == 1:
            self.reader = self.formats[-1]  # the format to read the file with
        else:
            config = routes[-1].config
            self.reader = kind(
                DatasetConfig(
                    config.format,
                    config.step,
                    max_datum_size=max(route.config.max_datum_size for route in routes),
                    max_depth=max(route.config.max_depth for route in routes),
                )
            )

    def divide(self, batch: Batch) -> list[Share]:
        """Return the shares of a batch that `reader` has read, in the order of the datasets."""
        positions = [self.position + position for position in batch.positions()]
        shares = [Share() for _ in self._routes]
        errors = shares[-1]
        errors.refused += [(self.position + position, reason) for position, reason in batch.refused]
        self.position += len(batch)
        read, refused = self._read(batch)
        self._verdicts.clear()  # their keys are ids of the metadata of an earlier batch
        for place, position in enumerate(positions):
            number = self._choose(read, place)
            values = read[number].get(place)
            if values is None:
                errors.refused.append((position, refused[place]))
                continue
            share = shares[number]
            share.positions.append(position)
            share.batch.reftimes.append(values[0])
            share.batch.metadata.append(values[1])
            share.batch.payloads.append(values[2])
        errors.refused.sort()
        for route, share in zip(self._routes, shares, strict=True):
            refuse_old(share.batch, route.config)
            share.refused += [(share.positions[place], reason) for place, reason in share.batch.refused]
            share.batch.refused = []
        return shares

    def _choose(self, read: Sequence[_Read], place: int) -> int:
        chosen = last = len(self._routes) - 1
        for number in range(last):
            values, filter = read[number].get(place), self._routes[number].filter
            if values is not None and filter is not None and self._matches(filter, *values[:2]):
                if chosen != last:
                    return last
                chosen = number
        return chosen

    def _matches(self, filter: Expression, reftime: int, metadata: Mapping[str, Any]) -> bool:
        """Return whether a datum matches; evaluates once for data with shared metadata if no reftime matters."""
        key = id(filter), id(metadata)
        if key not in self._verdicts:
            values = Values(reftime, metadata)
            verdict = matches(filter, values)
            if values.reftime_read:
                return verdict
            self._verdicts[key] = verdict
        return self._verdicts[key]

    def _read(self, batch: Batch) -> tuple[list[_Read], Mapping[int, str]]:
        """Read the data as each dataset does: place → its values; and why the last dataset refuses some."""
        if self.reader is self.formats[-1]:
            same = dict(enumerate(zip(batch.reftimes, batch.metadata, batch.payloads, strict=True)))
            return [same] * len(self._routes), {}
        found: dict[_Reading, tuple[_Read, dict[int, str]]] = {}
        for reading, format in zip(self._readings, self.formats, strict=True):
            if reading not in found:
                again = read_again(batch.payloads, format)
                values = zip(again.reftimes, again.metadata, again.payloads, strict=True)
                found[reading] = dict(zip(again.positions(), values, strict=True)), dict(again.refused)
        return [found[reading][0] for reading in self._readings], found[self._readings[-1]][1]


def read_again(payloads: Sequence[bytes], format: Format) -> Batch:
    """Return payloads as a batch for the dataset of a format; `refused` is what it would refuse of a file."""
    limit = format.config.max_datum_size
    large = {place: len(payload) for place, payload in enumerate(payloads) if len(payload) > limit}
    fitting = [place for place in range(len(payloads)) if place not in large]
    content = format.preamble + b"".join(payloads[place] + format.padding for place in fitting)
    found = Batch()
    for batch in format.parse(io.BytesIO(content), len(payloads)) if fitting else ():
        found.extend(batch)
    if len(found) != len(fitting) or found.damage:
        raise StateError(f"consecutive data of {format.name} cannot be read again")
    refused = {fitting[position]: _LINE.sub("", reason, count=1) for position, reason in found.refused}
    refused |= {place: f"{size} bytes are more than max_datum_size, {limit}" for place, size in large.items()}
    found.refused = sorted(refused.items())
    return found


def _reading(config: DatasetConfig) -> _Reading:
    form = config.version, config.payload, config.encryption  # of frames of `seg`
    return tuple(config.fields.items()), config.max_datum_size, config.max_depth, *form


class InputFile(NamedTuple):
    path: str  # relative to the input folder
    size: int  # bytes
    mtime: int  # time of the last change, in nanoseconds

    @property
    def name(self) -> str:
        """Its path as text, which can be stored and printed."""
        return plain(self.path)

    @property
    def mark(self) -> str:
        return f"{self.size} {self.mtime} {self.name}"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    folder: str  # the input folder
    datasets: list[str]  # paths of the datasets; the one for errors is last
    # one for each dataset, which may differ from its configuration by now; a dataset with None gets no data, except the
    # one for errors
    filters: list[str | None]
    dry_run: bool  # only count
    only: int | None = None  # the number of the dataset that a file is imported into again; None for a new file

    def wants(self, at: int) -> bool:
        return self.only in (None, at)


class _Postponed(Exception):
    def __init__(self, reason: str, code: int = EXIT_DATA_SKIPPED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def import_file(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Stage the data of a file, each datum for the dataset that it belongs to, and return what was done.

    `name` and `option` are `InputFile` and `ImportOptions`, as JSON; `staged` names the job and the stage.
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
def _opened(option: str) -> tuple[ImportOptions, list[Directory], list[DatasetConfig]]:
    """Return the options, and the datasets to stage for; their configurations have the filters of the options."""
    options = ImportOptions(**json.loads(option))
    directories = [*map(open_directory, options.datasets)]
    both = zip(directories, options.filters, strict=True)
    return options, directories, [read_config(directory)._replace(filter=filter) for directory, filter in both]


def _routes(file: InputFile, configs: Sequence[DatasetConfig]) -> list[Route]:
    """Return the routes for the data of a file.

    `today` counts from the file's last change, so that a run that continues a killed one decides the same. A filesystem
    may hold times that are not in the calendar.
    """
    now = from_microseconds(min(max(file.mtime // 1000, _EARLIEST), _LATEST))
    return [Route(config, filter_of(config, now)) for config in configs]


def _stage(file: InputFile, option: str, job: str, number: str) -> dict[str, Any]:
    options, directories, configs = _opened(option)
    path = Path(options.folder, file.path)
    report, stages = _FileReport(), dict[int, Stage]()
    with contextlib.suppress(FileNotFoundError):  # opening it says so
        _check_unchanged(file, path.stat())  # it may be a FIFO by now, and opening that would wait
    with open_source(path) as stream, contextlib.ExitStack() as stack:
        _check_unchanged(file, os.fstat(stream.fileno()))
        content, format = _recognise(stream, configs[-1])
        division = Division(_routes(file, configs), format)
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
                            stage = Stage(directories[at], configs[at], job, number)
                            stages[at] = stack.enter_context(stage)
                        stages[at].add(share.batch, division.formats[at])
        except LimitExceeded as error:  # the data before it are complete
            if options.only is None:
                report.refuse(len(configs) - 1, division.position, error.message)
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
