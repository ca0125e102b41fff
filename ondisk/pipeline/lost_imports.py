"""Datasets that do not have all files that a pipeline has imported into them: restored, or created again.

The dataset for errors says which files were imported. With each commit it notes, for each other dataset, which index
that had and how many of the files its import log had. Marks are only added to an import log. So an index with the same
UUID and as many marks has them all; one with fewer marks is an earlier state of it, and says exactly what it has. An
index with another UUID was created again or rebuilt, and may have data without their marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from ondisk.dataset.auxiliary_files import untrusted
from ondisk.dataset.dataset import Dataset
from ondisk.errors import StateError
from ondisk.pipeline.divide_file import InputFile


class Note(NamedTuple):
    uuid: str  # of its index
    files: int  # how many files of the pipeline its import log has, or should have
    is_complete: bool = True  # False while a run imports files again

    @classmethod
    def of(cls, dataset: Dataset, pipeline: str) -> Self:
        return cls(dataset.last_change()["uuid"], dataset.count_of_parts(pipeline))

    @classmethod
    def noted(cls, errors: Dataset, source: str) -> Self | None:
        return next((cls(*json.loads(str(text))) for text in errors.parts_of(source)), None)

    def is_reached_by(self, now: Note) -> bool:
        return self.is_complete and self.uuid == now.uuid and self.files <= now.files


@dataclass(frozen=True, slots=True)
class Lacking:
    at: int  # its number in the configuration
    name: str  # its name there
    note: Note  # its index, and how many files it should have
    had: int  # how many it has
    files: tuple[InputFile, ...]  # those to import into it again; some may have no data for it

    def rest(self, again: int) -> int:
        """Return how many files it still lacks after an import; `again` had data for it."""
        return max(0, self.note.files - self.had - again)


def lacking_of(
    at: int, name: str, dataset: Dataset, before: Note, now: Note, files: Iterable[InputFile]
) -> Lacking | None:
    """Return what a dataset lacks; None if it has all files that were noted `before`.

    `files`: those that were imported while it was in the pipeline, and that its import log does not have. Raises
    NeedsCheck or StateError if it may have data of these, and would store them twice or replace newer ones.
    """
    if before.is_reached_by(now):
        return None
    lacked = tuple(sorted(files, key=lambda each: each.mtime))  # about as they came: the last one of a datum counts
    needs_check = dataset.needs_check
    if lacked and needs_check:
        raise untrusted(dataset.path)
    is_known = before.uuid == now.uuid or not (needs_check or dataset.exists())
    if lacked and not is_known and (not dataset.config.unique or dataset.config.replace == "yes"):
        reason = "data could be stored twice" if not dataset.config.unique else "older data could replace newer ones"
        raise StateError(
            f"{dataset.path}: its index is another one than before, and does not know files that were imported: "
            f"{len(lacked)}, the first is {lacked[0].name}. If they were imported again, {reason}",
            hint="If it has all their data, move the files away. Else create it again, empty: then it gets all files.",
        )
    note = Note(now.uuid, before.files if is_known else now.files, is_complete=False)
    return Lacking(at, name, note, now.files, lacked)
