"""Rows that could not be read, among those of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ondisk.formats.base import Batch


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
