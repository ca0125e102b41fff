"""Find the files that are stored already, and those that differ from what their unique fields name.

Two files are the same datum if their unique fields are equal, as everywhere in ondisk. If their bytes are equal, too,
the second one is a duplicate. If they differ, it is refused, not skipped in silence: `unique` lacks a field in
which the two differ, or the file has changed since it was stored. With `replace`, it takes the place of the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ondisk.dataset.archived import of_same_key
from ondisk.errors import OndiskError
from ondisk.formats import Batch

if TYPE_CHECKING:
    from ondisk.dataset.dataset import Dataset

STORED = ""


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
    """Yield the position of each datum whose unique fields are stored, and the stored bytes; or why they are not known.

    An append looks for duplicates in the dataset and in the archive that its repack fills, and so does this.
    """
    if not dataset.config.unique:
        return
    access = dataset._access
    for each in filter(None, (access, access.archives.last())):
        opened = each.current()
        with opened.index.snapshot() as snapshot:
            for position, row in of_same_key(snapshot, batch.reftimes, batch.metadata):
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
