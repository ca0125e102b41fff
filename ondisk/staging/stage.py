"""Appending by many processes: each stages data beside the segments, and one commits what all of them have staged.

    .staged/JOB/NAME.data    bytes, as they are to stand in segments
    .staged/JOB/NAME.rows    where they stand, and their rows of the index, see `ondisk.staging.rows`

Who stages takes no lock and does not open the index: it may be on another machine that has the same filesystem. The
commit is one transaction: all that was staged becomes data of the dataset, or nothing of it. `ondisk.staging.jobs`
tells what becomes of the files of a job that was killed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import accumulate, groupby, repeat
from operator import add, floordiv
from typing import Self

from ondisk.config import DatasetConfig
from ondisk.filesystem import Directory
from ondisk.formats import Batch, Format
from ondisk.index.import_log import Mark
from ondisk.index.index import dump
from ondisk.segment import Block, End, Laid
from ondisk.segments import SegmentWriter
from ondisk.staging.jobs import STAGED
from ondisk.staging.rows import Piece, StagedRows
from ondisk.step import DAY

ROWS, DATA = ".rows", ".data"
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Staged:
    """What one stage holds, for who commits it.

    Attributes:
        name: that of the stage.
        count: data in it.
        built_for: what of the configuration the rows depend on.
        mark: what the data are of which source, where they are to be stored but once; see `ondisk.index.import_log`.
    """

    name: str
    count: int
    built_for: str
    mark: Mark | None = None


class Stage:
    """Data that one process stages for a job. A context manager: what is not finished in the block is removed.

    Args:
        directory: the dataset's.
        config: the dataset's.
        job: names all that is committed together.
        name: tells the stages of a job apart, those of several tries of the same work too.

    Raises:
        FileExistsError: there is such a stage.

    Durability: nothing; the commit syncs what it takes over.
    """

    def __init__(self, directory: Directory, config: DatasetConfig, job: str, name: str) -> None:
        self._config = config
        self._name = name
        self._at = 0
        self._finished = False
        self._directory = directory
        self._place = f"{STAGED}/{job}"
        for left in range(_TRIES, 0, -1):
            with contextlib.ExitStack() as undo:
                try:
                    self._folder = undo.enter_context(directory.inside(self._place, make=True, durable=False))
                    self._file = undo.enter_context(self._folder.create_file(name + DATA))
                except FileNotFoundError:  # one that failed took the directory with it
                    if left == 1:
                        raise
                    continue
                self._rows = StagedRows(self._folder, name + ROWS, config.fields)
                undo.pop_all()
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._file.close()
        if not self._finished:
            _discard(self._folder, [self._name + DATA, self._name + ROWS])
            self._directory.remove_directory(self._place)  # unless others are at work there
        self._folder.close()

    def add(self, batch: Batch, format: Format) -> None:
        """Stage the data of a batch; what the format refused of it is for the caller to tell.

        Memory: the batch once more.
        """
        places = _by_segment(batch, format, self._config)
        offsets, pieces = [0] * len(batch.payloads), [0] * len(batch.payloads)
        begin = Laid(b"", End(compressed=format.begin().end.compressed))
        for name, mine in places.items():
            payloads = [batch.payloads[place] for place in mine]
            blocks: list[Block] = []
            writer = SegmentWriter(format, self._file, begin, base=self._at, save_blocks=blocks.extend)
            writer.add(payloads)
            end, data_size = writer.end, sum(map(len, payloads))
            piece = Piece(0, self._name + DATA, name, format.name, self._at, end.size, end.length, len(mine),
                          data_size, end.compressed)  # fmt: skip
            number = self._rows.add_piece(piece, blocks)
            self._at += end.size
            sizes = map(add, map(len, payloads), repeat(len(format.padding)))
            for place, offset in zip(mine, accumulate(sizes, initial=0), strict=False):
                offsets[place], pieces[place] = offset, number
        self._rows.add(batch, pieces, offsets)

    def finish(self, mark: Mark | None = None) -> Staged:
        """End the stage, so that it can be committed."""
        self._rows.finish()
        self._finished = True
        return Staged(self._name, self._rows.count, dump(self._config), mark)


def _by_segment(batch: Batch, format: Format, config: DatasetConfig) -> dict[str, list[int]]:
    """Give the places of a batch's data, by the segments that they belong to."""
    found: dict[str, list[int]] = {}
    names: dict[int, str] = {}
    at = 0
    for day, run in groupby(map(floordiv, batch.reftimes, repeat(DAY))):
        count = len(list(run))
        if day not in names:
            names[day] = f"{config.step.stem_of_day(day)}.{format.extension}"
        found.setdefault(names[day], []).extend(range(at, at + count))
        at += count
    return found


def _discard(directory: Directory, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name)
