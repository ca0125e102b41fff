"""Find the files that are stored already, and those that differ from what their unique fields name.

Two files are the same datum if their unique fields are equal, as everywhere in ondisk. If their bytes are equal, too,
the second one is a duplicate. If they differ, it is refused, not skipped in silence: `unique` lacks a field in
which the two differ, or the file has changed since it was stored. With `replace`, it takes the place of the first one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ondisk.dataset.access import Access
from ondisk.errors import OndiskError
from ondisk.filesystem import ReadableFile
from ondisk.formats import Batch, is_dir
from ondisk.index.segment_rows import all_segments
from ondisk.segments.dir import number_of
from ondisk.segments.generations import hidden

if TYPE_CHECKING:
    from ondisk.dataset.access import Access
    from ondisk.dataset.dataset import Dataset

STORED = ""


class OwnFiles:
    """The files of the data of a dataset: one that is appended under another name is a duplicate."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], tuple[str, int]] | None = None

    def have(self, dataset: Dataset, file: ReadableFile) -> bool:
        """Return whether a file is that of a datum of the dataset.

        Cost: of a file with several names, or in the dataset: the first time, lists all dir segments. Memory: 200 bytes
            for each file in them.
        """
        status = file.stat()
        if status.st_nlink == 1 and not Path(file.path).resolve().is_relative_to(dataset.path.resolve()):
            return False
        if self._places is None:
            self._places = dict(_files(dataset._access))
        place = self._places.get((status.st_dev, status.st_ino))
        if place is None:
            return False
        name, number = place
        with dataset._access.current().index.snapshot() as snapshot:
            segment = snapshot.segment_named(name)
            return segment is not None and snapshot.row_at(segment, number, status.st_size) is not None


def _files(access: Access) -> Iterator[tuple[tuple[int, int], tuple[str, int]]]:
    """Yield device and inode of each file of a dir segment, with its segment and number."""
    with access.current().index.snapshot() as snapshot:
        for segment, *_ in all_segments(snapshot):
            if not is_dir(segment.format):
                continue
            for place in (hidden(segment.name, segment.id), segment.name):
                with contextlib.suppress(FileNotFoundError), access.directory.inside(place) as folder:
                    device = folder.device
                    for entry in folder.entries():
                        number = number_of(segment.name, entry.name)
                        if number is not None:
                            yield (device, entry.inode), (segment.name, number)
                    break


def known(dataset: Dataset, batch: Batch, names: Sequence[str]) -> dict[int, str]:
    """Return the data of a batch that are not to be stored: position → the reason, `STORED` if it is there already.

    Args:
        batch: without refused data.
        names: the paths of its data, for messages.

    Cost: reads what is stored with the same unique fields. Memory: one such datum.
    """
    found: dict[int, str] = {}
    keeps = dataset.config.replace == "no"
    unique = ", ".join(dataset.config.unique)
    for position, content, problem in _stored(dataset, batch):
        if content == batch.payloads[position]:
            found[position] = STORED
        elif keeps:
            found[position] = f"{problem or 'it differs from the file that is stored'} with the same {unique}"
    for position, first in _repeated(dataset, batch, found):
        if batch.payloads[first] == batch.payloads[position]:
            found[position] = STORED
        elif keeps:
            found[position] = f"it differs from {names[first]}, which has the same {unique}"
    return found


def _stored(dataset: Dataset, batch: Batch) -> Iterator[tuple[int, bytes | None, str]]:
    """Yield the positions of data whose unique fields are stored, and the stored bytes; or why they are unknown."""
    if not dataset.config.unique:
        return
    opened = dataset._access.current()
    with opened.index.snapshot() as snapshot:
        for position, (reftime, metadata) in enumerate(zip(batch.reftimes, batch.metadata, strict=True)):
            if (row := snapshot.of_key(reftime, metadata)) is None:
                continue
            try:
                [[datum]] = opened.reader.rows(snapshot, [row[1:]])
            except OndiskError as error:
                yield position, None, f"it cannot be compared ({error.message})"
            else:
                yield position, datum.data, ""


def _repeated(dataset: Dataset, batch: Batch, found: dict[int, str]) -> Iterator[tuple[int, int]]:
    """Yield the position of each datum with the unique fields of one before it in the batch, and that of the first.

    Args:
        found: the positions of data that do not count; the caller may add to it.
    """
    unique = dataset.config.unique
    if not unique:
        return
    seen: dict[tuple[Any, ...], int] = {}
    for position, (reftime, metadata) in enumerate(zip(batch.reftimes, batch.metadata, strict=True)):
        if position in found:
            continue
        key = tuple(reftime if name == "reftime" else metadata.get(name) for name in unique)
        first = seen.setdefault(key, position)
        if first != position:
            yield position, first
