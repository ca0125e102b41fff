"""Batches of rows: joined to larger ones, and with the rows that could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ondisk.formats.base import BATCH_BYTES, Batch


def with_refused(batch: Batch, lines: Sequence[int], refused: Mapping[int, str]) -> Batch:
    """Add rows that were refused before to a batch of the others, each at its place in the file.

    Args:
        lines: those of the rows in the batch.
    """
    if batch.refused:
        refused = {**refused, **{lines[position]: reason for position, reason in batch.refused}}
    if refused:
        positions = {line: position for position, line in enumerate(sorted({*lines, *refused}))}
        batch.refused = [(positions[line], f"line {line}: {refused[line]}") for line in sorted(refused)]
    return batch


def joined(batches: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
    """Yield batches joined to larger ones, which have at most `batch_size` data, and end at `BATCH_BYTES`.

    Args:
        batches: of at most `batch_size` data each.
    """
    whole, size = Batch(), 0
    for batch in batches:
        if len(whole) + len(batch) > batch_size:
            yield whole
            whole, size = Batch(), 0
        whole.extend(batch)
        size += sum(map(len, batch.payloads))
        if len(whole) >= batch_size or size >= BATCH_BYTES:
            yield whole
            whole, size = Batch(), 0
    if len(whole) or whole.notes:
        yield whole
