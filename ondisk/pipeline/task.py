"""What an executor does for a pipeline: it reads a file, and stages its data for the datasets that they belong to.

See `ondisk.spark.worker`, in whose process it runs, and `ondisk.pipeline.run`, which commits what was staged.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections import Counter
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ondisk.config import DatasetConfig
from ondisk.dataset.access import Access
from ondisk.dataset.append import BATCH_SIZE
from ondisk.dataset.input_file import Peeked, open_source
from ondisk.dataset.layout import filter_of, open_directory, read_config
from ondisk.datum import from_microseconds, microseconds
from ondisk.errors import EXIT_DATA_LEFT_OUT, EXIT_DONE, LimitExceeded, OndiskError, StorageError
from ondisk.filesystem import Directory
from ondisk.formats import Batch, Damage, is_dir, recognised
from ondisk.pipeline.config import plain
from ondisk.pipeline.route import Division, Share, Target
from ondisk.staging.jobs import STAGED
from ondisk.staging.stage import Stage

CHANGED = "it changed since it was found"
_EARLIEST, _LATEST = (microseconds(time.replace(tzinfo=UTC)) for time in (datetime.min, datetime.max))
NAMED = 100
"""So many places of a file are named at which data are damaged, or refused."""


class InputFile(NamedTuple):
    """A file as it was found.

    Attributes:
        path: below the input folder.
        size: bytes.
        mtime: when it changed last, nanoseconds.
    """

    path: str
    size: int
    mtime: int

    @property
    def name(self) -> str:
        """Its path, as it can be stored and printed."""
        return plain(self.path)

    @property
    def mark(self) -> str:
        """What tells it from others, and from what it was before it changed."""
        return f"{self.size} {self.mtime} {self.name}"


@dataclass(frozen=True, slots=True)
class Intake:
    """What executors must know.

    Attributes:
        folder: of the files.
        datasets: their paths, that for errors last.
        filters: what each takes, not what its configuration says by now; None takes nothing, but for errors.
        dry_run: count only.
    """

    folder: str
    datasets: list[str]
    filters: list[str | None]
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """A dataset, to stage for; its configuration has the filter that files are divided by."""

    directory: Directory
    config: DatasetConfig

    def target(self, file: InputFile) -> Target:
        """Give it as what the data of a file are divided among.

        `today` counts from when the file changed last: a run that goes on where another was killed divides it alike.
        Filesystems have times that no calendar has.
        """
        now = from_microseconds(min(max(file.mtime // 1000, _EARLIEST), _LATEST))
        return Target(self.config, filter_of(self.config, now))


class _LeftForLater(Exception):
    """Nothing of the file is stored now."""

    def __init__(self, reason: str, code: int = EXIT_DATA_LEFT_OUT) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def take_in(access: Access, name: str, staged: str, option: str) -> dict[str, Any]:
    """Stage the data of a file, each for the dataset that it belongs to.

    Args:
        name: an `InputFile`, as JSON.
        staged: names the job, and the stage.
        option: an `Intake`, as JSON.
    """
    job, _, number = staged.removeprefix(f"{STAGED}/").replace("/", "-").rpartition("-")
    file, intake = InputFile(*json.loads(name)), Intake(**json.loads(option))
    try:
        return {"job": job, **_taken_in(file, intake, _places(option), job, number)}
    except _LeftForLater as error:
        return {"job": job, "left": error.reason, "code": error.code}
    except OndiskError as error:
        return {"job": job, "left": str(error), "code": error.exit_code}
    except OSError as error:  # of reading it
        return {"job": job, "left": str(error), "code": StorageError.exit_code}
    except Exception as error:  # of a bug: the other files are imported all the same
        traceback.print_exc()
        return {"job": job, "left": repr(error), "code": OndiskError.exit_code}


@cache  # as long as this process, which works for one group of files, lives
def _places(option: str) -> list[_Place]:
    intake = Intake(**json.loads(option))
    places = []
    for path, filter in zip(intake.datasets, intake.filters, strict=True):
        directory = open_directory(path)
        places.append(_Place(directory, replace(read_config(directory), filter=filter)))
    return places


def _taken_in(file: InputFile, intake: Intake, places: list[_Place], job: str, number: str) -> dict[str, Any]:
    path = Path(intake.folder, file.path)
    told, stages = _Told(), dict[int, Stage]()
    with open_source(path) as stream, contextlib.ExitStack() as stack:
        _check_is(file, os.fstat(stream.fileno()))
        peeked, format = _begun(path, stream, places[-1].config)
        division = Division([place.target(file) for place in places], format)
        try:
            for batch in division.reader.parse(peeked, BATCH_SIZE):
                told.add(batch)
                for at, share in enumerate(division.divide(batch)):
                    told.add_share(at, share)
                    if share.batch.payloads and not intake.dry_run:
                        if at not in stages:
                            place = places[at]
                            stages[at] = stack.enter_context(Stage(place.directory, place.config, job, number))
                        stages[at].add(share.batch, division.formats[at])
        except LimitExceeded as error:  # what stands before it is whole
            told.refuse(len(places) - 1, division.position, error.message)
        with contextlib.suppress(FileNotFoundError):  # what was read of it was whole
            _check_is(file, path.stat())
        staged = [[at, *astuple(stages[at].finish())] for at in sorted(stages)]
    return {"staged": staged, **told.answer()}


class _Told:
    """What there is to say of a file: how many data each dataset gets and refuses, and what is wrong where."""

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
            "counts": sorted(self._counts.items()),
            "refused": sorted(self._refused.items()),
            "refusals": sorted(self._refusals),
            "damage": [astuple(each) for each in self._damage],
            "damaged": self._damaged,
            "notes": self._notes,
        }


def _check_is(file: InputFile, found: os.stat_result) -> None:
    if (found.st_size, found.st_mtime_ns) != (file.size, file.mtime):
        raise _LeftForLater(CHANGED, EXIT_DONE)


def _begun(path: Path, stream: BinaryIO, config: DatasetConfig) -> tuple[Peeked, str]:
    """Recognise a file's format."""
    peeked = Peeked(stream)
    format = recognised(path.name, peeked.head, config.format)
    if format is None:
        raise _LeftForLater("its format is not known, neither by its extension nor by its content")
    if is_dir(format):
        raise _LeftForLater(f"a file of the format {format} does not say its reftime and metadata")
    return peeked, format
