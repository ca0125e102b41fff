"""Append with many processes: each stages data in files of the dataset, and one commits what all of them have staged.

    .staged/JOB/NAME.data    bytes, as segments will contain them; if these are encrypted, with another IV and key
    .staged/JOB/NAME.rows    where they are, and their rows of the index, see `ondisk.staging.rows`

A process that stages takes no lock and does not open the index: it may run on another machine with the same filesystem.
The commit is one transaction: everything that was staged is stored, or nothing. `ondisk.staging.jobs` describes what
happens to the files of a job that was killed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import add
from typing import Self

from ondisk.config import DatasetConfig
from ondisk.filesystem import Directory
from ondisk.formats import Batch, Format, find
from ondisk.index.import_log import Mark
from ondisk.index.index import dump
from ondisk.segment import Block, Laid
from ondisk.segments.concat_writer import SegmentWriter
from ondisk.staging.jobs import STAGED
from ondisk.staging.rows import Piece, StagedRows
from ondisk.step import runs_of

ROWS, DATA = ".rows", ".data"
_TRIES = 10


@dataclass(frozen=True, slots=True)
class FinishedStage:
    """A stage that is ready to be committed."""

    name: str  # its name
    count: int  # number of data in it
    built_for: str  # the parts of the configuration on which the rows depend
    # the part of a source that the data are, if it must be stored only once; see `ondisk.index.import_log`
    mark: Mark | None = None


class Stage:
    """Stages data of one process for a job. A context manager: removes its files unless it was finished.

    Args:
        job: the name of everything that is committed together.
        name: different for each stage of the job, and for each try of the same work.

    Raises:
        FileExistsError: the job has a stage of this name.

    Durability: none; the commit syncs the segments that it copies the data to.
    """

    def __init__(self, directory: Directory, config: DatasetConfig, job: str, name: str) -> None:
        self._config = config
        self._name = name
        self._finished = False
        self._directory = directory
        self._path = f"{STAGED}/{job}"
        begin, self._sealer = find(config.format)(config).begin_staged()
        self._at = len(begin)
        for left in range(_TRIES, 0, -1):
            with contextlib.ExitStack() as undo:
                try:
                    self._folder = undo.enter_context(directory.inside(self._path, make=True, durable=False))
                    self._file = undo.enter_context(self._folder.create_file(name + DATA))
                except FileNotFoundError:  # a stage that failed has just removed the directory
                    if left == 1:
                        raise
                    continue
                self._rows = StagedRows(self._folder, name + ROWS, config.fields)
                if begin:
                    self._file.write(0, begin)
                undo.pop_all()
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._file.close()
        if not self._finished:
            self._folder.discard(self._name + DATA, self._name + ROWS)
            self._directory.remove_directory(self._path)  # stays while it has files of other stages
        self._folder.close()

    def add(self, batch: Batch, format: Format) -> None:
        """Stage the data of a batch; the caller reports what the format refused. Memory: the batch once more."""
        find = _by_size if self._config.is_sequence else _by_segment
        by_segment = find(batch, format, self._config)
        offsets, pieces = [0] * len(batch.payloads), [0] * len(batch.payloads)
        begin = Laid(b"", format.begin().end._replace(size=0, length=0))
        for name, places in by_segment.items():
            payloads = [batch.payloads[place] for place in places]
            blocks: list[Block] = []
            writer = SegmentWriter(format, self._file, name, begin, checksum=None, base=self._at, sealer=self._sealer,
                                   save_blocks=blocks.extend)  # fmt: skip
            writer.add(payloads)
            end, data_size = writer.end, sum(map(len, payloads))
            piece = Piece(0, self._name + DATA, name, format.name, self._at, end.size, end.length, len(places),
                          data_size, end.compressed, end.kind)  # fmt: skip
            number = self._rows.add_piece(piece, blocks)
            self._at += end.size
            sizes = map(add, map(len, payloads), repeat(len(format.padding)))
            for place, offset in zip(places, accumulate(sizes, initial=0), strict=False):
                offsets[place], pieces[place] = offset, number
        self._rows.add(batch, pieces, offsets)

    def finish(self, mark: Mark | None = None) -> FinishedStage:
        self._rows.finish()
        self._finished = True
        return FinishedStage(self._name, self._rows.count, dump(self._config), mark)


def _by_segment(batch: Batch, format: Format, config: DatasetConfig) -> dict[str, list[int]]:
    """Return the segments that a batch's data belong to: name → positions of the data in the batch."""
    found: dict[str, list[int]] = {}
    names: dict[int, str] = {}
    at = 0
    for unit, count in runs_of(config.step.unit, batch.reftimes):
        if unit not in names:
            names[unit] = f"{config.step.stem_of(unit)}.{format.extension}"
        found.setdefault(names[unit], []).extend(range(at, at + count))
        at += count
    return found


def _by_size(batch: Batch, format: Format, config: DatasetConfig) -> dict[str, list[int]]:
    """Return pieces of a batch, small enough for a segment of a sequence; the commit ignores their names."""
    room = config.roll_size - format.begin().end.length
    found: dict[str, list[int]] = {}
    left = 0
    for place, payload in enumerate(batch.payloads):
        if len(payload) > left:
            found[f"{len(found)}.{format.extension}"], left = [], room
        found[f"{len(found) - 1}.{format.extension}"].append(place)
        left -= len(payload)
    return found
