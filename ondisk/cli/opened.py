"""The dataset that a command works on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ondisk
from ondisk.cli.output import complain

_REMEDY = "Restore index.sqlite from a backup, as docs/dataset.md tells; a later version's `ondisk fix` rebuilds it."


@contextlib.contextmanager
def opened(path: str, *, read_only: bool = False) -> Iterator[ondisk.Dataset]:
    """Open a dataset, and warn where its index may not know all data."""
    with ondisk.open(path, read_only) as dataset:
        if dataset.needs_check:
            problem = f"{path}: the index was lost and may not know all data: answers may be incomplete"
            complain("warning", f"{problem}\n{_REMEDY}")
        yield dataset
